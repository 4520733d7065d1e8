"""Error codes about downloads, packages, container images and environments. `errors.CODES` has all codes."""

from __future__ import annotations

from pinwarden.core.error_codes import EXIT_REFUSED, EXIT_UNCHECKED, EXIT_USAGE, ErrorCode

PACKAGE_CODES = (
    ErrorCode(
        "FETCH_FAILED",
        EXIT_UNCHECKED,
        "A download failed, or the registry sent an unexpected response. data.reason is one of: offline, connect, tls, "
        "timeout, unauthorized, status, protocol.",
        "Check the network, the proxy and the address, then try again. The address of a package registry comes from "
        "the settings of your package client.",
    ),
    ErrorCode(
        "FETCH_LIMIT",
        EXIT_UNCHECKED,
        "A registry sent more bytes than the limit for one document or file.",
        "Check that the address is the one you meant. Real packages stay far below the limits.",
    ),
    ErrorCode(
        "ADDRESS_REFUSED",
        EXIT_UNCHECKED,
        "Pinwarden did not contact the address, because it is private, not encrypted or the target of a redirect.",
        "If you trust the address, repeat the command with --allow-private, --allow-redirects or --allow-plain-http, "
        "depending on the reason in the message.",
    ),
    ErrorCode(
        "ARCHIVE_UNSAFE",
        EXIT_REFUSED,
        "An archive is damaged, or has content that no regular package has: a path outside the archive, a link, a "
        "device, a name twice, or far more data than its size suggests.",
        "Do not use the package. Report it to its author and to the registry.",
    ),
    ErrorCode(
        "ARTIFACT_MISMATCH",
        EXIT_REFUSED,
        "The downloaded bytes do not have the expected digest, or are incomplete. They were discarded.",
        "Do not use this artifact. Download it again; if the error persists, ask the operator of the registry.",
    ),
    ErrorCode(
        "ARTIFACT_MISSING",
        EXIT_UNCHECKED,
        "A locked file is not in the store of verified files.",
        "Run `pinwarden fetch` with a network connection.",
    ),
    ErrorCode(
        "CLOSURE_INVALID",
        EXIT_UNCHECKED,
        "The recorded dependencies of a server cannot be read, or one of them has no digest.",
        "Restore the file from version control, or resolve the dependencies again with `pinwarden update`.",
    ),
    ErrorCode(
        "NO_USABLE_FILE",
        EXIT_UNCHECKED,
        "The package has no built file for this platform. Pinwarden never builds from source, because that would run "
        "the package's code.",
        "Use a platform that the package supports, or ask its author for a built file.",
    ),
    ErrorCode(
        "PACKAGES_NOT_PACKED",
        EXIT_USAGE,
        "The packages that a server needs cannot be packed with it as they are.",
        "Install the packages with npm ci, or correct pyproject.toml, and pack the folder again.",
    ),
    ErrorCode(
        "PLATFORMS_NOT_DECLARED",
        EXIT_USAGE,
        "A bundle has native code, and its server.json does not state for which platforms.",
        'State the platforms in server.json, such as "platforms": ["linux/amd64"].',
    ),
    ErrorCode(
        "PROGRAM_UNKNOWN",
        EXIT_UNCHECKED,
        "The program that a command starts does not exist on this machine or in the package.",
        "Install the program, or write its full path. For a package, name one of the programs it contains.",
    ),
    ErrorCode(
        "PACKAGE_INVALID",
        EXIT_UNCHECKED,
        "The name or version of a package is not valid in its ecosystem, or the version is not exact. No registry was "
        "contacted.",
        "Check the spelling. Give an exact version: no range, no wildcard, no tag such as latest.",
    ),
    ErrorCode(
        "PROVENANCE_INVALID",
        EXIT_UNCHECKED,
        "A provenance statement, its signature or its list of keys is malformed or in an unknown format.",
        "Try again later. If the error persists, ask the publisher, and do not rely on this provenance.",
    ),
    ErrorCode(
        "TRUST_ROOT_INVALID",
        EXIT_UNCHECKED,
        "The file is not a sigstore trust root (trusted_root.json), or it lacks a certificate authority or a log.",
        "Use the file of the sigstore instance that you trust, or omit the option to use the public instance.",
    ),
    ErrorCode(
        "OSV_INVALID",
        EXIT_UNCHECKED,
        "A vulnerability record is not in OSV format, or the export has too many or too large files.",
        "Download the export again. Pinwarden did not use this one.",
    ),
    ErrorCode(
        "RESOLVER_FAILED",
        EXIT_UNCHECKED,
        "npm or uv could not resolve the dependencies of a package.",
        "Read what it wrote, below the error. To see all of it, run npm or uv on the package yourself.",
    ),
    ErrorCode(
        "RESOLVER_MISSING",
        EXIT_UNCHECKED,
        "The program that resolves dependencies is not installed: npm for npm packages, uv for Python packages.",
        "Install uv for Python packages, or Node.js, which contains npm, for npm packages.",
    ),
    ErrorCode(
        "SCRIPT_FAILED",
        EXIT_UNCHECKED,
        "An approved install script failed, or changed or removed files of another package. The incomplete environment "
        "was deleted.",
        "Read the output of the script. Scripts run without a network, so a script that downloads something fails.",
    ),
    ErrorCode(
        "SCRIPT_REFUSED",
        EXIT_REFUSED,
        "An approved install script was not run, because bubblewrap, which sandboxes it, is not installed.",
        "Run: apt-get install bubblewrap. To run the script with all of your own permissions instead, run: pinwarden "
        "fetch --scripts-without-sandbox",
    ),
    ErrorCode(
        "STORE_UNSAFE",
        EXIT_UNCHECKED,
        "The folder with the store of verified files belongs to another user, or other users can write to it.",
        "Run: chmod 700 FOLDER. Or choose another folder with PINWARDEN_STORE.",
    ),
    ErrorCode(
        "IMAGE_INVALID",
        EXIT_UNCHECKED,
        "The reference, index, manifest or config of a container image is malformed, ambiguous, too large, or of an "
        "unknown or unexpected type.",
        "Check the spelling of the reference (host/name:tag@digest). If it is correct, ask the publisher of the image.",
    ),
    ErrorCode(
        "BUNDLE_INVALID",
        EXIT_REFUSED,
        "An MCPB bundle is ambiguous: its signature block is misplaced, or its manifest.json is malformed or names a "
        "file outside the bundle.",
        "Do not use the bundle. Ask its author to pack it again with the official mcpb program.",
    ),
    ErrorCode(
        "NOTHING_TO_RUN",
        EXIT_USAGE,
        "The command needs a package or a command that Pinwarden can start, and the server has none: it is an address, "
        "a local program without bytes to verify, or a command in a form that Pinwarden cannot reproduce.",
        "Run `pinwarden explain SERVER` to see what is locked. Only packages and container images run from verified "
        "bytes.",
    ),
    ErrorCode(
        "BYTES_NOT_LOCKED",
        EXIT_REFUSED,
        "The lock has a version of the server, but no digests of its bytes and dependencies.",
        "Run `pinwarden prove SERVER` and review what it writes into the lock.",
    ),
    ErrorCode(
        "ARGUMENTS_CHANGED",
        EXIT_REFUSED,
        "The server was started with other arguments than the approved ones.",
        "Restore the entry in the client's configuration. If the change is intended, review it with `pinwarden doctor` "
        "and lock the server again.",
    ),
    ErrorCode(
        "VERSION_FLOATS",
        EXIT_REFUSED,
        "The server is locked by a tag or range instead of one version, so its bytes can change at any time.",
        "Write an exact version into the configuration and lock the server again.",
    ),
    ErrorCode(
        "REGISTRY_IN_COMMAND",
        EXIT_REFUSED,
        "The server's command or variables choose the registry of its package. Pinwarden downloads from the registry "
        "in your own settings, which may have another package with that name.",
        "Set the registry in the settings of your package client instead, and lock the server again.",
    ),
    ErrorCode(
        "SANDBOX_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The server was not started, because the sandbox that limits an installed bundle to its accepted permissions "
        "is not available on this machine.",
        "Run: apt-get install bubblewrap. To start the server with all of your own permissions, add "
        "--unsafe-no-sandbox.",
    ),
)
