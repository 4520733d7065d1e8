"""The one error type, and the table of every code it can carry.

The table is the single source for ``docs/reference/errors.md``, for exit codes and for hints. A code is
stable data that scripts may match on; the message text may change between releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXIT_CLEAN = 0
EXIT_REFUSED = 1  # drift, or something that was checked and is not acceptable
EXIT_USAGE = 2
EXIT_UNCHECKED = 3  # could not check: unreadable input, network, corrupt state


class ErrorCode:
    """One row of the table: what a code means, what to do about it, and the exit code it leads to."""

    __slots__ = ("code", "exit_code", "hint", "meaning")

    def __init__(self, code: str, exit_code: int, meaning: str, hint: str) -> None:
        self.code = code
        self.exit_code = exit_code
        self.meaning = meaning
        self.hint = hint


def _table(*rows: ErrorCode) -> Mapping[str, ErrorCode]:
    return MappingProxyType({row.code: row for row in rows})


CODES: Mapping[str, ErrorCode] = _table(
    # The first two keep the names that the verifier rulebook (v0.1.1, section 1.7) gives them.
    ErrorCode(
        "JSON_PARSE_ERROR",
        EXIT_UNCHECKED,
        "The bytes are not strict JSON: bad UTF-8, a byte order mark, a syntax error, a number that is not "
        "finite, or more bytes, levels, digits or values than the limits allow.",
        "Look at the position in the message. Save the file as UTF-8 without a byte order mark.",
    ),
    ErrorCode(
        "JSON_CANONICALIZATION_ERROR",
        EXIT_UNCHECKED,
        "The JSON is well formed but has no single canonical form: a member twice in one object, a lone "
        "surrogate, an integer that a double cannot hold, or a value that is not JSON.",
        "Remove the repeated member or replace the value; two readers could understand this text differently.",
    ),
    ErrorCode(
        "PROFILE_UNKNOWN",
        EXIT_USAGE,
        "There is no canonical form or tool digest of that name.",
        "Use one of the names that the message lists.",
    ),
    ErrorCode(
        "TOOL_INVALID",
        EXIT_REFUSED,
        "A tool definition cannot be digested because it is not an object with a usable name.",
        "Refuse this tool; the server breaks the protocol.",
    ),
    ErrorCode(
        "TOOL_NAME_DUPLICATE",
        EXIT_REFUSED,
        "Two tools of one server have the same name, so a call does not say which one it means.",
        "Refuse both tools; ask the server's author to give each its own name.",
    ),
    ErrorCode(
        "DIGEST_INVALID",
        EXIT_UNCHECKED,
        "The text is not a digest in the form sha256:<hex> or sha256-<base64>.",
        "Copy the whole digest, including the name of the algorithm.",
    ),
    ErrorCode(
        "CID_INVALID",
        EXIT_UNCHECKED,
        "The text is not a version 1 CID with SHA-256 in lower-case base32.",
        "Copy the whole identifier; it begins with bafyrei (document) or bafkrei (blob).",
    ),
    ErrorCode(
        "MANIFEST_INVALID",
        EXIT_UNCHECKED,
        "A bundle manifest lacks a member that its root CID is computed from.",
        "A manifest has schema_version, cid_profile and entries.",
    ),
    ErrorCode(
        "POINTER_PATH_INVALID",
        EXIT_UNCHECKED,
        "A JSON Pointer is malformed or names nothing in the document.",
        "Pointers follow RFC 6901: they begin with / and escape ~ as ~0 and / as ~1.",
    ),
    ErrorCode(
        "KEY_INVALID",
        EXIT_UNCHECKED,
        "The key is not a usable Ed25519 key: wrong type, length or encoding, or a weak point of the curve.",
        "Give an Ed25519 key as did:key, PEM, or 32 bytes in base64url without padding.",
    ),
    ErrorCode(
        "KEY_PASSPHRASE_REQUIRED",
        EXIT_USAGE,
        "The private key is encrypted and no passphrase, or a wrong one, was given.",
        "Give the passphrase of the key.",
    ),
    ErrorCode(
        "KEY_FILE_UNSAFE",
        EXIT_UNCHECKED,
        "The private key file can be read by other users, or is not a regular file.",
        "Run: chmod 600 <file>",
    ),
    ErrorCode(
        "SIGNATURE_INVALID",
        EXIT_REFUSED,
        "A signature is malformed, or was not made by that key over these bytes.",
        "Do not use the document. Ask its author for a fresh copy by another way.",
    ),
    ErrorCode(
        "NOTE_INVALID",
        EXIT_UNCHECKED,
        "The text is not a signed note, a verifier key or a checkpoint (C2SP signed-note, tlog-checkpoint).",
        "Fetch the file again, byte for byte; notes end with a newline and hold no other control characters.",
    ),
    ErrorCode(
        "LOG_PROOF_INVALID",
        EXIT_REFUSED,
        "A transparency-log proof does not lead to the stated root: the log shows different histories.",
        "Keep both checkpoints as evidence and stop trusting this log until its operator explains.",
    ),
    ErrorCode(
        "FILE_UNREADABLE",
        EXIT_UNCHECKED,
        "A file could not be read: it is missing, not permitted, not a regular file, or too large.",
        "Check the path and its permissions.",
    ),
    ErrorCode(
        "FILE_EXISTS",
        EXIT_REFUSED,
        "A file would be overwritten that must not be.",
        "Choose another path, or remove the file first if it is no longer needed.",
    ),
    ErrorCode(
        "FILE_UNWRITABLE",
        EXIT_UNCHECKED,
        "A file could not be written.",
        "Check that the folder exists, is writable and has room.",
    ),
    ErrorCode(
        "SURFACE_INVALID",
        EXIT_UNCHECKED,
        "The file is not a surface document or listing, or its digests do not belong to its text.",
        "Make it again with pinwarden inspect; if it was reviewed before, find out who edited it.",
    ),
    ErrorCode(
        "TARGET_INVALID",
        EXIT_USAGE,
        "What should be probed is not a usable command or address.",
        "Give a command after --, or an http(s) address without user name, password or fragment.",
    ),
    ErrorCode(
        "VARIABLE_MISSING",
        EXIT_USAGE,
        "A ${VARIABLE} in a command, address, header or environment is not set.",
        "Set the variable for this run, or give a default: ${NAME:-default}.",
    ),
    ErrorCode(
        "CONSENT_REQUIRED",
        EXIT_USAGE,
        "Asking this server means running its command, or sending it a variable of yours, and nobody agreed to that.",
        "Read what the message names; if you trust it, add --allow-execute, or --pass-env NAME for a variable.",
    ),
    ErrorCode(
        "PROBE_FAILED",
        EXIT_UNCHECKED,
        "A server could not be asked: it did not start, died, took too long or answered something else.",
        "Run the command, or ask the address with another client; what a command wrote to stderr is shown. A command "
        "gets few variables: name those that it needs with --pass-env NAME.",
    ),
    ErrorCode(
        "PROBE_LIMIT",
        EXIT_UNCHECKED,
        "A server sent more than is looked at: an endless or looping list, too many bytes or messages.",
        "Do not approve this server. Lists end; if an honest one is larger, raise the limit.",
    ),
    ErrorCode(
        "SECRET_REPEATED",
        EXIT_REFUSED,
        "What a server tells the model holds a value that the server was given in a variable, header or address. "
        "Whatever is written down of it would hold that value too.",
        "Nothing was written. Do not approve this server with that value; if it is a secret, tell the server's author.",
    ),
    ErrorCode(
        "FETCH_FAILED",
        EXIT_UNCHECKED,
        "A registry or download could not be reached, or answered with something other than what was asked for. "
        "data.reason says why: offline, connect, tls, timeout, unauthorized, status or protocol.",
        "Check the network, the proxy and the address (for packages, that of your own client's settings); try again.",
    ),
    ErrorCode(
        "ARCHIVE_UNSAFE",
        EXIT_REFUSED,
        "An archive is damaged, or holds something that no honest package holds: a path that leads elsewhere, a link, "
        "a device, a name twice, or far more than its size promises.",
        "Do not use the package. Report it to its author and to the registry.",
    ),
    ErrorCode(
        "ARTIFACT_MISSING",
        EXIT_UNCHECKED,
        "A file that was locked is neither in the store nor, where it was asked for, at its registry.",
        "Run pinwarden fetch with a network connection.",
    ),
    ErrorCode(
        "CLOSURE_INVALID",
        EXIT_UNCHECKED,
        "The dependency closure of a server cannot be understood, or names things that have no verifiable bytes.",
        "Restore the file from version control, or resolve it again with pinwarden update.",
    ),
    ErrorCode(
        "NO_USABLE_FILE",
        EXIT_UNCHECKED,
        "A package has no built file for this platform. Packages are never built from source here, because that would "
        "run their code.",
        "Use a platform that the package supports, or ask its author for a built file.",
    ),
    ErrorCode(
        "PROGRAM_UNKNOWN",
        EXIT_UNCHECKED,
        "The program that a command starts is not there: not on this machine, or not in the package.",
        "Install it, or write its whole path; of a package, name one of the programs that it has.",
    ),
    ErrorCode(
        "RESOLVER_FAILED",
        EXIT_UNCHECKED,
        "npm or uv could not work out what a package depends on.",
        "Look at data.stderr in --format json; run the same program by hand to see more.",
    ),
    ErrorCode(
        "RESOLVER_MISSING",
        EXIT_UNCHECKED,
        "The program that works out dependencies is not installed: npm for npm packages, uv for Python ones.",
        "Install it, for example with: pipx install uv",
    ),
    ErrorCode(
        "SCRIPT_FAILED",
        EXIT_UNCHECKED,
        "An approved install script failed, or did what it may not: changed or removed files of another package.",
        "Read what it says; it has no network. Nothing of the half-made environment is kept.",
    ),
    ErrorCode(
        "SCRIPT_REFUSED",
        EXIT_REFUSED,
        "An approved install script may not run here, because there is no bubblewrap to shut it in.",
        "Run: apt-get install bubblewrap; or pinwarden fetch --scripts-without-sandbox, which lets it do anything.",
    ),
    ErrorCode(
        "SERVER_IMPORT_FAILED",
        EXIT_UNCHECKED,
        "The Python server could not be imported: its code raised an error, ended the process or never came to an end.",
        "Run the file with the same Python to see the error. Start the server only under if __name__ == "
        '"__main__", or name another interpreter with --python.',
    ),
    ErrorCode(
        "SERVER_OBJECT_UNKNOWN",
        EXIT_USAGE,
        "There is no such file, or no MCP server in it under that name.",
        "Give path/to/server.py:object, where the object is an MCPServer, a FastMCP or a lowlevel Server.",
    ),
    ErrorCode(
        "SERVER_TOOLS_DUPLICATE",
        EXIT_UNCHECKED,
        "A server registers or lists two tools under one name, so that one of them hides the other.",
        "Give each tool a name of its own; nothing is locked until then.",
    ),
    ErrorCode(
        "DATABASE_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The database cannot be opened or did not answer.",
        "Check that it runs and that its address and its rights are right, then try again. Nothing was lost.",
    ),
    ErrorCode(
        "DATABASE_CORRUPT",
        EXIT_UNCHECKED,
        "The database's file is damaged, or is no database.",
        "Keep a copy of the file, and bring it back from a backup. It is not overwritten.",
    ),
    ErrorCode(
        "DATABASE_MISSING",
        EXIT_UNCHECKED,
        "The database that was to be read is not there, or is not one of Pinwarden.",
        "Name the one that the gateway uses (--audit, PINWARDEN_DATABASE, PINWARDEN_STATE). Nothing was made.",
    ),
    ErrorCode(
        "DATABASE_NEWER",
        EXIT_UNCHECKED,
        "The database was made by a release of Pinwarden with other tables.",
        "Use the release that made it, or another database.",
    ),
    ErrorCode(
        "AUDIT_INVALID",
        EXIT_UNCHECKED,
        "Something that should be an event of the audit log is not one, or was written by a newer release.",
        "Verify the log with: pinwarden audit verify",
    ),
    ErrorCode(
        "AUDIT_NOT_COVERED",
        EXIT_UNCHECKED,
        "A head that was kept is older than everything in the file that was to be checked against it.",
        "Verify the log itself, or an export that begins before that head.",
    ),
    ErrorCode(
        "AUDIT_TAMPERED",
        EXIT_REFUSED,
        "The audit log is not what was written: an event was changed, removed, moved, put in or cut off.",
        "Keep a copy of the database, and compare it with the last export. The message names the first place.",
    ),
    ErrorCode(
        "AUDIT_UNAVAILABLE",
        EXIT_UNCHECKED,
        "An event could not be written to the audit log, so what it tells of was not done.",
        "Bring the database back, or let events wait in a file with the setting spool.",
    ),
    ErrorCode(
        "REVIEW_NOT_FOUND",
        EXIT_USAGE,
        "No change with that number waits for review.",
        "Run pinwarden review list to see what waits.",
    ),
    ErrorCode(
        "REVIEW_STALE",
        EXIT_REFUSED,
        "What was to be approved is not what was shown, or somebody decided about it already.",
        "Look at it again with pinwarden review show, and approve what it shows now.",
    ),
    ErrorCode(
        "REVIEW_FROM_SERVER",
        EXIT_REFUSED,
        "An approval was asked for from inside a server that the gateway started, or from a client of it.",
        "Approve from a terminal of your own. A server never approves itself.",
    ),
    ErrorCode(
        "TOKEN_UNKNOWN",
        EXIT_USAGE,
        "No token and no client of the gateway has that name.",
        "Run pinwarden gateway token list to see them.",
    ),
    ErrorCode(
        "GATEWAY_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The gateway cannot serve: its address is taken or not allowed, its certificate cannot be read, a package is "
        "missing, or no locked server can be started.",
        "Read the message. pinwarden gateway --help names the options; the extra gateway brings the packages.",
    ),
    ErrorCode(
        "STORE_UNSAFE",
        EXIT_UNCHECKED,
        "The folder of verified files belongs to somebody else, or others may write to it.",
        "Take it away from the others (chmod 700), or name another folder with PINWARDEN_STORE.",
    ),
    ErrorCode(
        "PACKAGE_INVALID",
        EXIT_UNCHECKED,
        "The name or version of a package is not one that its ecosystem allows, or not exact; no registry was asked.",
        "Check the spelling. A version is exact: no range, no wildcard, no tag such as latest.",
    ),
    ErrorCode(
        "PROVENANCE_INVALID",
        EXIT_UNCHECKED,
        "A statement about who built an artifact, its signature, or a list of keys for it is not in a form that is "
        "known here and has one meaning.",
        "Do not count it as proof. Fetch it again; if it stays so, ask the publisher.",
    ),
    ErrorCode(
        "TRUST_ROOT_INVALID",
        EXIT_UNCHECKED,
        "The file is not a sigstore trust root (trusted_root.json), or it lacks a certificate authority or a log.",
        "Take the file from the sigstore instance that you trust, or leave the option out for the public one.",
    ),
    ErrorCode(
        "OSV_INVALID",
        EXIT_UNCHECKED,
        "A vulnerability record is not in the OSV format, or an export has more or larger files than are read.",
        "Fetch the export again. Nothing was decided with it.",
    ),
    ErrorCode(
        "NOTHING_TO_RUN",
        EXIT_USAGE,
        "The locked server is not something that is started here from verified bytes: an address, a program of this "
        "machine, or a command inside another command.",
        "pinwarden explain <server> says what it is. Only packages and container images can be run from the lock.",
    ),
    ErrorCode(
        "BYTES_NOT_LOCKED",
        EXIT_REFUSED,
        "The lock names a version of the server, but nobody has hashed its bytes and its dependencies yet.",
        "Run pinwarden prove <server>, and review what it writes into the lock.",
    ),
    ErrorCode(
        "ARGUMENTS_CHANGED",
        EXIT_REFUSED,
        "A locked server was to be started with other arguments than those that were approved.",
        "Take the server's entry in the client's configuration from the lock, or review the change and lock it.",
    ),
    ErrorCode(
        "VERSION_FLOATS",
        EXIT_REFUSED,
        "A server is locked by a name or range and not by one version, so its bytes can be anything.",
        "Write an exact version into the configuration and lock it again.",
    ),
    ErrorCode(
        "REGISTRY_IN_COMMAND",
        EXIT_REFUSED,
        "A server's command or variables name the registry that its package comes from. Your own registry may have "
        "something else under that name, so its bytes prove nothing about what the client starts.",
        "Name the registry in the settings of your package client instead, and lock the server again without it.",
    ),
    ErrorCode(
        "FETCH_LIMIT",
        EXIT_UNCHECKED,
        "A registry sent more bytes than are taken for one document or file.",
        "Look at what the address serves; real packages are far below the limits.",
    ),
    ErrorCode(
        "ARTIFACT_MISMATCH",
        EXIT_REFUSED,
        "The bytes that a registry gave out are not those that the digest names, or a part of them is missing.",
        "Do not use them. Nothing was kept; ask whoever runs the registry, and compare with another copy.",
    ),
    ErrorCode(
        "IMAGE_INVALID",
        EXIT_UNCHECKED,
        "The name, index, manifest or config of a container image cannot be read in only one way: malformed, too "
        "large, of an unknown kind, or not of the kind it was given out as.",
        "Check the spelling of the reference (host/name:tag@digest). If the registry sent this, do not use the image.",
    ),
    ErrorCode(
        "BUNDLE_INVALID",
        EXIT_REFUSED,
        "An MCPB bundle cannot be read in only one way: its signature block is not where it belongs, or its "
        "manifest.json is malformed or names a file outside the bundle.",
        "Do not use the bundle. Ask its author to pack it again with the official mcpb program.",
    ),
    ErrorCode(
        "ADDRESS_REFUSED",
        EXIT_UNCHECKED,
        "An address was not contacted: it is private, not encrypted, or a redirect led there.",
        "If it is meant, allow it: --allow-private for private addresses, --allow-redirects for redirects, and where "
        "the command has it --allow-plain-http.",
    ),
    ErrorCode(
        "CONFIG_INVALID",
        EXIT_UNCHECKED,
        "A client's configuration file cannot be read in only one way: it is damaged, or names a member twice.",
        "Repair the file; until then nobody can say which servers it starts.",
    ),
    ErrorCode(
        "CONFIG_UNEDITABLE",
        EXIT_UNCHECKED,
        "A client's configuration file is written in a way that cannot be edited without touching more than the "
        "server in question. Nothing was changed.",
        "Add or remove the server by hand, then run pinwarden doctor.",
    ),
    ErrorCode(
        "CLIENT_UNKNOWN",
        EXIT_USAGE,
        "There is no client of that name.",
        "Use one of the clients that pinwarden doctor --help lists.",
    ),
    ErrorCode(
        "LOCK_INVALID",
        EXIT_UNCHECKED,
        "The file is not a lockfile that can be read: a member is missing, malformed or of an unknown kind.",
        "Look at the path in the message; restore the file from version control, or lock the servers again.",
    ),
    ErrorCode(
        "LOCK_VERSION_UNSUPPORTED",
        EXIT_UNCHECKED,
        "The lockfile has a version that is not read here.",
        "Supported versions: lockfileVersion 2. Lock the servers again.",
    ),
    ErrorCode(
        "LOCK_TAMPERED",
        EXIT_REFUSED,
        "The lockfile, or an approved surface beside it, is not what was approved.",
        "Find out who changed it (git log -p); if the change is meant, review it and lock those servers again.",
    ),
    ErrorCode(
        "LOCK_BUSY",
        EXIT_UNCHECKED,
        "Another process is writing this lockfile and did not finish in time.",
        "Wait for the other command to end, then try again. Nothing was changed.",
    ),
    ErrorCode(
        "CONTRACT_INVALID",
        EXIT_UNCHECKED,
        "A file that should hold the contracts of a server, or a part of one, cannot be understood.",
        "The message names the member. Make the file again; nothing was compared.",
    ),
    ErrorCode(
        "SERVER_ENTRY_INVALID",
        EXIT_UNCHECKED,
        "A registry entry or server.json cannot be read without guessing: a member is missing or of the wrong kind.",
        "The message names the member. Tell the server's author; nothing was decided about this server.",
    ),
    ErrorCode(
        "NO_INSTALL_TARGET",
        EXIT_REFUSED,
        "The entry offers nothing to install: no package and no remote, or none of the kind that was asked for.",
        "Look at what the entry offers, and ask for another --target or another server.",
    ),
    ErrorCode(
        "POLICY_INVALID",
        EXIT_UNCHECKED,
        "The policy cannot be followed: an unknown key, a value of the wrong kind, rules that contradict each other, "
        "or no rule at all.",
        "Correct the key that the message names. Nothing is allowed by a policy that cannot be read.",
    ),
    ErrorCode(
        "REGISTRY_UNAVAILABLE",
        EXIT_UNCHECKED,
        "A registry could not be asked, or answered something else than the registry API describes.",
        "Try again later, name another source with --source, or work with --offline.",
    ),
    ErrorCode(
        "SERVER_NOT_FOUND",
        EXIT_REFUSED,
        "No registry has a server of that name and version.",
        "Check the spelling and the version; names look like io.github.owner/server, those of bundles like acme.notes.",
    ),
    ErrorCode(
        "POLICY_REFUSED",
        EXIT_REFUSED,
        "A policy, or a verdict that blocks, forbids this server.",
        "Read the reasons; where a rule is meant to have an exception, write a waiver with reason, owner and expiry.",
    ),
    ErrorCode(
        "PROJECT_NOT_NAMED",
        EXIT_REFUSED,
        "The lock of the current folder has a server of this name, but neither the command nor a client's "
        "configuration there says that the server belongs to this project. A repository does not decide about a "
        "user's own server.",
        "Add --project DIR to the command, with the folder whose lock applies to this server.",
    ),
    ErrorCode(
        "LOCK_MISSING",
        EXIT_UNCHECKED,
        "There is no lockfile to check against.",
        "Run pinwarden init, or name the file with --file.",
    ),
    ErrorCode(
        "SERVER_NOT_LOCKED",
        EXIT_REFUSED,
        "The lock has no entry for that server.",
        "Run pinwarden list to see what is locked.",
    ),
    # Section 7 of the verifier rulebook, by its names and in its order: the first that applies is the answer.
    ErrorCode(
        "POINTER_SIGNATURE_INVALID",
        EXIT_REFUSED,
        "No trusted registry signed the pointer, or its signature leaves out what it points to.",
        "Fetch the pointer again. If it stays so, do not install from this registry until its operator explains.",
    ),
    ErrorCode(
        "LEGACY_NOT_ALLOWED",
        EXIT_REFUSED,
        "The channel is one of those whose name begins with legacy-, and the installer policy does not allow them.",
        "Choose another channel, or allow legacy channels in the installer policy.",
    ),
    ErrorCode(
        "CID_PROFILE_MISMATCH",
        EXIT_REFUSED,
        "The documents of a bundle name different ways to compute identifiers, or one that is not used here.",
        "Ask the publisher to pack the bundle again; its identifiers cannot be compared.",
    ),
    ErrorCode(
        "ROOT_CID_MISMATCH",
        EXIT_REFUSED,
        "The pointer and the descriptor name different bundles.",
        "Fetch both again. If it stays so, the registry gives out a descriptor of something else.",
    ),
    ErrorCode(
        "DESCRIPTOR_CID_MISMATCH",
        EXIT_REFUSED,
        "The descriptor is not the one that the pointer names: its content has another identifier.",
        "Do not use it. Fetch the descriptor by its identifier, from another copy if need be.",
    ),
    ErrorCode(
        "MANIFEST_CID_MISMATCH",
        EXIT_REFUSED,
        "The manifest's list of files is not the one that its root identifier, or the pointer, names.",
        "Do not use it. Fetch the manifest again, from another copy if need be.",
    ),
    ErrorCode(
        "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
        EXIT_REFUSED,
        "The manifest belongs to another descriptor than the one that the pointer names.",
        "Fetch the manifest again; a bundle's documents belong together.",
    ),
    ErrorCode(
        "MANIFEST_ENTRY_ORDER_INVALID",
        EXIT_REFUSED,
        "The files of a manifest are not sorted, or one is there twice.",
        "Ask the publisher to pack the bundle again.",
    ),
    ErrorCode(
        "MANIFEST_PATH_INVALID",
        EXIT_REFUSED,
        "A file of a manifest has a path that leads elsewhere, or is not the same file on every machine.",
        "Do not use the bundle. Report it to the registry.",
    ),
    ErrorCode(
        "ATTESTATION_EXPIRED",
        EXIT_REFUSED,
        "Somebody known vouched for the bundle, and that is no longer valid.",
        "Ask for a fresh attestation of this bundle.",
    ),
    ErrorCode(
        "NO_VALID_ATTESTATIONS",
        EXIT_REFUSED,
        "Nobody known vouches for the integrity of the bundle.",
        "Ask somebody whom you trust to attest it, or add the key of whoever did: pinwarden trust add.",
    ),
    ErrorCode(
        "REQUIRED_SIGNER_MISSING",
        EXIT_REFUSED,
        "None of those vouches for the bundle whom the registry demands for it.",
        "Ask one of the signers that the message names for an attestation.",
    ),
    ErrorCode(
        "VERIFIER_ATTESTATION_REQUIRED",
        EXIT_REFUSED,
        "The registry demands that a verifier vouches for the bundle, and none does.",
        "Ask somebody who is trusted as a verifier for an attestation.",
    ),
    ErrorCode(
        "INSUFFICIENT_ATTESTATIONS",
        EXIT_REFUSED,
        "Fewer people vouch for the bundle than the registry demands. Each counts once.",
        "Ask further people for an attestation.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_NETWORK",
        EXIT_REFUSED,
        "The tool asks for network access, and the installer policy does not allow it.",
        "Use another tool, or allow the network in the installer policy.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_FILESYSTEM",
        EXIT_REFUSED,
        "The tool asks for more of the file system than the installer policy allows.",
        "Use another tool, or allow it in the installer policy.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_EXEC",
        EXIT_REFUSED,
        "The tool asks to start programs, and the installer policy does not allow it.",
        "Use another tool, or allow it in the installer policy.",
    ),
    # What the rulebook has no code for; none of these ever goes before one of the above.
    ErrorCode(
        "POINTER_NOT_FOUND",
        EXIT_REFUSED,
        "The pointer document has nothing for the tool and channel that were asked for.",
        "Check the spelling of the tool and the channel.",
    ),
    ErrorCode(
        "TOOL_NAME_MISMATCH",
        EXIT_REFUSED,
        "A pointer leads to a bundle that goes by another name.",
        "Do not install it: asked for one tool, the registry gives out another.",
    ),
    ErrorCode(
        "DOCUMENT_INVALID",
        EXIT_UNCHECKED,
        "A document of a bundle or of the log lacks a member, or has one of the wrong kind.",
        "The message names the member. Fetch the document again, or ask who made it.",
    ),
    ErrorCode(
        "TRUST_INVALID",
        EXIT_UNCHECKED,
        "The file of trusted keys cannot be read in only one way. Nobody is trusted by a file that cannot be read.",
        "Restore the file from a backup, or add the keys again.",
    ),
    ErrorCode(
        "KEY_REVOKED",
        EXIT_REFUSED,
        "The key was revoked in the trust store. A revoked key is never trusted again.",
        "Ask its owner for their new key, and add that one with --replaces.",
    ),
    ErrorCode(
        "REGISTRY_KEY_ENDED",
        EXIT_REFUSED,
        "Something is signed by a key that a registry has given up: its log says which key came after it.",
        "Try again, if the registry changed its key just now. If it stays so, somebody may have stolen the old key.",
    ),
    ErrorCode(
        "TRUST_UNKNOWN",
        EXIT_REFUSED,
        "The trust store has nobody of that key or name.",
        "Run pinwarden trust list to see whom you trust.",
    ),
    ErrorCode(
        "POINTER_UNLOGGED",
        EXIT_REFUSED,
        "A registry gives out a pointer that its log does not have, or shows no proof of it.",
        "Do not install it: others may be shown something else. Name the registry's log with --log if it is elsewhere.",
    ),
    ErrorCode(
        "POINTER_STALE",
        EXIT_REFUSED,
        "A registry gives out an old pointer although its log has a newer one for this tool and channel.",
        "Try again. If it stays so, somebody holds you on an old version; ask the registry's operator.",
    ),
    ErrorCode(
        "LOG_FROZEN",
        EXIT_REFUSED,
        "The registry's last word about the head of its log is older than you accept, so newer events may be hidden.",
        "Check this machine's clock; then try again later, or from another copy. Static exports have to be renewed.",
    ),
    ErrorCode(
        "SURFACE_DIFFERS",
        EXIT_REFUSED,
        "A server tells the model something else here than its registry wrote down for the same bytes.",
        "Do not use it before somebody has looked at why; its text depends on where it runs.",
    ),
    ErrorCode(
        "WARNINGS_NOT_APPROVED",
        EXIT_REFUSED,
        "What a server tells the model has scan warnings that the approver has not approved.",
        "Read the text that is warned of; if you approve it as it is, repeat the command with --approve-warnings.",
    ),
    ErrorCode(
        "VERSION_BELOW_FLOOR",
        EXIT_REFUSED,
        "The channel points to a lower version than the least that was asked for.",
        "Choose another channel, or a lower floor if the older version is meant.",
    ),
    ErrorCode(
        "VERSION_LOCKED",
        EXIT_REFUSED,
        "Another version of the tool is locked, and an install does not change what was approved.",
        "Run pinwarden update: it shows what would change, and writes it if you agree.",
    ),
    ErrorCode(
        "SANDBOX_UNAVAILABLE",
        EXIT_UNCHECKED,
        "An installed bundle is held to what it was accepted with by a sandbox, and there is none on this machine.",
        "Install bubblewrap (Linux). Only --unsafe-no-sandbox starts it without being held to anything.",
    ),
    ErrorCode(
        "REGISTRY_NAME_INVALID",
        EXIT_USAGE,
        "The name of a namespace, tool, channel or version is not one that a registry can hold.",
        "Use lower-case letters, digits, - and _, with dots between the parts of a name.",
    ),
    ErrorCode(
        "REGISTRY_KEY_MISMATCH",
        EXIT_UNCHECKED,
        "The database belongs to a registry with another key or log than this one was started with.",
        "Start every replica with the key file of the first one (--key), or name another database.",
    ),
    ErrorCode(
        "REGISTRY_LOG_BEHIND",
        EXIT_UNCHECKED,
        "The log in a registry's database is shorter than the checkpoint that the registry signed last and keeps "
        "beside its key, or is another log. To append to it would fork the log.",
        "Restore the newest copy of the database; copy it after the registry was stopped. If it is lost, begin a new "
        "registry in another folder, with a new key.",
    ),
    ErrorCode(
        "PUBLISHER_UNKNOWN",
        EXIT_REFUSED,
        "A request to a registry carries no token, or one that is unknown, expired or revoked.",
        "Ask the registry's operator for a token: pinwarden registry token add.",
    ),
    ErrorCode(
        "NAMESPACE_REFUSED",
        EXIT_REFUSED,
        "The token or the key of a request does not belong to the namespace of what it is about.",
        "Publish under your own namespace, with a key that its owner has added.",
    ),
    ErrorCode(
        "VERSION_EXISTS",
        EXIT_REFUSED,
        "The registry has this version already, with other content. A version never changes.",
        "Publish the changed bundle under a new version.",
    ),
    ErrorCode(
        "VERSION_OLDER",
        EXIT_REFUSED,
        "To publish this version would move its channel back from a newer one.",
        "Publish on another channel (--channel), or say that it is meant: --allow-older.",
    ),
    ErrorCode(
        "VERSION_YANKED",
        EXIT_REFUSED,
        "The version was taken back by its publisher, so no channel may point to it.",
        "Choose another version; only its publisher can bring it back.",
    ),
    ErrorCode(
        "REQUEST_STALE",
        EXIT_REFUSED,
        "A signed request is for another registry, too old or from the future, or was carried out before.",
        "Check this machine's clock, then make the request again.",
    ),
    ErrorCode(
        "INPUT_LIMIT",
        EXIT_REFUSED,
        "The input has more items than are judged or compared at once.",
        "Split the input into smaller parts; the message names the limit.",
    ),
    ErrorCode(
        "OVERLOADED",
        EXIT_UNCHECKED,
        "More work waits to be judged or compared than the limits for one client, or for all of them, allow.",
        "Send fewer requests at once, and try again in a moment.",
    ),
    ErrorCode(
        "PUBLISH_LIMIT",
        EXIT_REFUSED,
        "More was sent to a registry than it takes: too many requests or bytes in an hour, or one file too large.",
        "Wait, or ask the registry's operator for a higher limit.",
    ),
    ErrorCode(
        "LOG_ROLLBACK",
        EXIT_REFUSED,
        "A registry shows an older head of its log than it did before.",
        "Do not install from it. Keep both checkpoints as evidence and ask the registry's operator.",
    ),
    ErrorCode(
        "LOG_EVENT_INVALID",
        EXIT_REFUSED,
        "An entry of a registry's log is not an event that the registry signed, or does not follow from those before.",
        "Do not install from it. Keep the entry as evidence and ask the registry's operator.",
    ),
    ErrorCode(
        "LOG_STATE_CORRUPT",
        EXIT_UNCHECKED,
        "The file in which the last seen head of a registry's log is kept is damaged.",
        "Bring it back from a backup. To begin anew is to give up the proof that nothing was changed since.",
    ),
    ErrorCode(
        "LOG_WITNESS_MISSING",
        EXIT_REFUSED,
        "Fewer witnesses than demanded have signed the head of a registry's log.",
        "Wait until the witnesses have seen it, or ask for fewer if you accept the registry's word alone.",
    ),
    ErrorCode(
        "USAGE",
        EXIT_USAGE,
        "The command line is not understood.",
        "Run: pinwarden --help",
    ),
    ErrorCode(
        "INTERNAL",
        EXIT_UNCHECKED,
        "Pinwarden itself failed. Nothing was decided.",
        "Please report this with the output of the same command under PINWARDEN_DEBUG=1.",
    ),
)


class PinwardenError(Exception):
    """Every failure that Pinwarden reports. ``code`` is stable; ``str()`` is for people."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        row = CODES[code]  # a code outside the table is a programming error, and says so at once
        self.code = code
        self.message = message
        self.hint = row.hint if hint is None else hint
        self.exit_code = row.exit_code
        self.data: Mapping[str, object] = {} if data is None else data
