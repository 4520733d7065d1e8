"""Error codes about values, files, servers, projects and the gateway. `errors.CODES` is the table of all codes.

This table is the only source of exit codes, default hints and ``docs/reference/errors.md``. Codes are stable, because
scripts match on them, while sentences may change between releases. An error message says what failed and why. The hint
says what to do, if possible with a command to paste.
"""

from __future__ import annotations

EXIT_CLEAN = 0
EXIT_REFUSED = 1  # Pinwarden found drift, or refused something after checking it
EXIT_USAGE = 2
EXIT_UNCHECKED = 3  # a check could not be completed: unreadable input, network failure, corrupt state


class ErrorCode:
    """An error code with its meaning, its default hint, and the exit code of a command that fails with it."""

    __slots__ = ("code", "exit_code", "hint", "meaning")

    def __init__(self, code: str, exit_code: int, meaning: str, hint: str) -> None:
        self.code = code
        self.exit_code = exit_code
        self.meaning = meaning
        self.hint = hint


GENERAL_CODES = (
    # JSON, digests and keys. The verifier rulebook (v0.1.1, section 1.7) names the first two.
    ErrorCode(
        "JSON_PARSE_ERROR",
        EXIT_UNCHECKED,
        "The input is not strict JSON: invalid UTF-8, a byte order mark, a syntax error, a number that is not finite, "
        "or more bytes, levels, digits or values than the limits allow.",
        "Fix the input at the position in the message, and save it as UTF-8 without a byte order mark.",
    ),
    ErrorCode(
        "JSON_CANONICALIZATION_ERROR",
        EXIT_UNCHECKED,
        "The JSON is well formed but has no single canonical form: a member occurs twice in one object, a string has a "
        "lone surrogate, a double cannot represent an integer exactly, or a value is not JSON.",
        "Remove the repeated member or replace the value. Two parsers could read this document differently.",
    ),
    ErrorCode(
        "PROFILE_UNKNOWN",
        EXIT_USAGE,
        "There is no canonical form or tool digest with this name.",
        "Use one of the names listed in the message.",
    ),
    ErrorCode(
        "TOOL_INVALID",
        EXIT_REFUSED,
        "A tool definition is not an object with a name, so Pinwarden cannot compute its digest.",
        "Do not use this tool. Report the protocol violation to the author of the server.",
    ),
    ErrorCode(
        "TOOL_NAME_DUPLICATE",
        EXIT_REFUSED,
        "Two tools of one server have the same name, so a call is ambiguous.",
        "Do not use either tool. Ask the author of the server to rename one of them.",
    ),
    ErrorCode(
        "DIGEST_INVALID",
        EXIT_UNCHECKED,
        "The text is not a digest of the form sha256:HEX or sha256-BASE64.",
        "Copy the complete digest, including the name of the algorithm.",
    ),
    ErrorCode(
        "CID_INVALID",
        EXIT_UNCHECKED,
        "The text is not a CIDv1 with SHA-256 in lower-case base32.",
        "Copy the complete identifier. It begins with bafyrei (document) or bafkrei (blob).",
    ),
    ErrorCode(
        "MANIFEST_INVALID",
        EXIT_UNCHECKED,
        "A bundle manifest lacks a member that its root CID is computed from.",
        "Add the missing member. A manifest has schema_version, cid_profile and entries.",
    ),
    ErrorCode(
        "POINTER_PATH_INVALID",
        EXIT_UNCHECKED,
        "A JSON Pointer is malformed, or the document has no value at it.",
        "Write the pointer as in RFC 6901: it begins with /, and ~ and / in names are escaped as ~0 and ~1.",
    ),
    ErrorCode(
        "KEY_INVALID",
        EXIT_UNCHECKED,
        "The key is not a usable Ed25519 key: wrong type, length or encoding, or a point of small order.",
        "Give an Ed25519 key as did:key, PEM, or 32 bytes in base64url without padding.",
    ),
    ErrorCode(
        "KEY_PASSPHRASE_REQUIRED",
        EXIT_USAGE,
        "The private key is encrypted, and the passphrase is missing or wrong.",
        "Enter the passphrase of the key, or set PINWARDEN_KEY_PASSPHRASE to it.",
    ),
    ErrorCode(
        "KEY_FILE_UNSAFE",
        EXIT_UNCHECKED,
        "Other users can read the private key file, or it is not a regular file.",
        "Run: chmod 600 FILE",
    ),
    ErrorCode(
        "SIGNATURE_INVALID",
        EXIT_REFUSED,
        "A signature is malformed, or does not match the signed bytes and the key.",
        "Do not use the document. Download it again, or ask its author for a new copy.",
    ),
    # Files
    ErrorCode(
        "FILE_UNREADABLE",
        EXIT_UNCHECKED,
        "A file could not be read: it does not exist, is not a regular file or is too large, or you may not read it.",
        "Check the path and its permissions: ls -l PATH",
    ),
    ErrorCode(
        "FILE_EXISTS",
        EXIT_REFUSED,
        "The file exists already and was not overwritten.",
        "Choose another path, or remove the file if you no longer need it.",
    ),
    ErrorCode(
        "FILE_UNWRITABLE",
        EXIT_UNCHECKED,
        "A file could not be written.",
        "Check that the folder exists, that you may write to it, and that the disk is not full.",
    ),
    # Probing a server for its tools, prompts, resources and instructions
    ErrorCode(
        "SURFACE_INVALID",
        EXIT_UNCHECKED,
        "The file is not a surface document or listing, or its digests do not match its text.",
        "Write the file again with `pinwarden inspect`. If you reviewed it before, find out who edited it: git log -p "
        "FILE",
    ),
    ErrorCode(
        "TARGET_INVALID",
        EXIT_USAGE,
        "The target is not a usable command or address.",
        "Give a command after --, or an http(s) address without user name, password and fragment.",
    ),
    ErrorCode(
        "VARIABLE_MISSING",
        EXIT_USAGE,
        "A command, address, header or environment names a ${VARIABLE} that is not set.",
        "Set the variable for this run, or give it a default: ${NAME:-default}",
    ),
    ErrorCode(
        "CONSENT_REQUIRED",
        EXIT_USAGE,
        "Pinwarden did not start or contact the server, because that would run its command or send it one of your "
        "variables, and you have not consented to that.",
        "If you trust the server, repeat the command with --allow-execute. To send it one of your variables, add "
        "--pass-env NAME.",
    ),
    ErrorCode(
        "PROBE_FAILED",
        EXIT_UNCHECKED,
        "The probe of the server failed: the server did not start, exited, timed out or sent an invalid response.",
        "Run the server's command yourself to see its output. Pinwarden passes only a few environment variables on; if "
        "the server needs another one, add --pass-env NAME.",
    ),
    ErrorCode(
        "PROBE_LIMIT",
        EXIT_UNCHECKED,
        "The server sent more than the limits allow: an endless or looping list, too many bytes or too many messages.",
        "Ask the author of the server why it sends so much. Real servers stay far below the limits.",
    ),
    ErrorCode(
        "SECRET_REPEATED",
        EXIT_REFUSED,
        "The server's tools, prompts, resources or instructions contain a value that the server got in a variable, "
        "header or address. A lock or report would store that value in plain text.",
        "Nothing was written. Do not approve this server with this value. If it is a secret, report it to the author "
        "of the server.",
    ),
    ErrorCode(
        "SERVER_IMPORT_FAILED",
        EXIT_UNCHECKED,
        "The Python server could not be imported: its code raised an error, ended the process or did not finish.",
        'Run the file with the same Python to see the error. Start the server only under if __name__ == "__main__", or '
        "choose another interpreter with --python.",
    ),
    ErrorCode(
        "SERVER_OBJECT_UNKNOWN",
        EXIT_USAGE,
        "There is no such file, or it has no MCP server with this name.",
        "Give path/to/server.py:object, where the object is an MCPServer, a FastMCP or a low-level Server.",
    ),
    ErrorCode(
        "SERVER_TOOLS_DUPLICATE",
        EXIT_UNCHECKED,
        "The server registers or lists two tools with one name, so one hides the other. Nothing was locked.",
        "Give each tool a unique name.",
    ),
    # Databases, audit log, reviews and the gateway
    ErrorCode(
        "DATABASE_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The database cannot be opened or does not respond. No data was lost.",
        "Check that the database is running and that its address and permissions are correct, then try again.",
    ),
    ErrorCode(
        "DATABASE_CORRUPT",
        EXIT_UNCHECKED,
        "The database file is damaged or is not a database. It was not overwritten.",
        "Keep a copy of the file and restore it from a backup.",
    ),
    ErrorCode(
        "DATABASE_MISSING",
        EXIT_UNCHECKED,
        "There is no database at this address, or Pinwarden did not create it. The command does not create one.",
        "Name the gateway's database with --audit, PINWARDEN_DATABASE or PINWARDEN_STATE.",
    ),
    ErrorCode(
        "DATABASE_NEWER",
        EXIT_UNCHECKED,
        "A newer release of Pinwarden changed the tables of this database. Nothing was changed now.",
        "Install the newer release on this machine too, or choose another database.",
    ),
    ErrorCode(
        "ALERTS_INVALID",
        EXIT_USAGE,
        "The file with the destinations of alerts is not TOML, or has a destination that is incomplete or unknown.",
        "Correct the member that the message names: docs/guides/alerts.md describes them.",
    ),
    ErrorCode(
        "ALERT_UNDELIVERED",
        EXIT_UNCHECKED,
        "A test alert did not arrive at its destination.",
        "Check the address and the secret, and whether this machine may connect to the host.",
    ),
    ErrorCode(
        "DEVICE_UNKNOWN",
        EXIT_USAGE,
        "There is no device with this name or token, or its token was revoked.",
        "See the machines with pinwarden fleet status. Add one: pinwarden fleet device add NAME",
    ),
    ErrorCode(
        "DEVICE_TOKEN_USED",
        EXIT_REFUSED,
        "Another machine, or another state folder, uses this device token.",
        "Give each machine a token of its own: pinwarden fleet device add NAME",
    ),
    ErrorCode(
        "FLEET_NOT_JOINED",
        EXIT_USAGE,
        "This machine does not follow a company's gateway.",
        "Join: pinwarden fleet join URL",
    ),
    ErrorCode(
        "FLEET_REPORT_INVALID",
        EXIT_REFUSED,
        "The report of a machine is malformed, so the company's gateway stored nothing from it.",
        "Use the same release of Pinwarden on the machine and on the gateway.",
    ),
    ErrorCode(
        "FLEET_REFUSED",
        EXIT_REFUSED,
        "The company's gateway does not accept this machine's token or report, or its response is invalid.",
        "Ask for a new device token, and join again: pinwarden fleet join URL",
    ),
    ErrorCode(
        "FLEET_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The company's gateway cannot be reached. The last known policy applies; with --fail-closed, everything is "
        "blocked after a while.",
        "Check the network and the address, then run: pinwarden fleet sync",
    ),
    ErrorCode(
        "AUDIT_INVALID",
        EXIT_UNCHECKED,
        "An entry of the audit log is malformed, or a newer release wrote it.",
        "Run: pinwarden audit verify",
    ),
    ErrorCode(
        "AUDIT_NOT_COVERED",
        EXIT_UNCHECKED,
        "The head that you gave is older than the first event in the exported file, so the two cannot be compared.",
        "Verify the log itself with `pinwarden audit verify --head HEAD`, or use an export that begins before this "
        "head.",
    ),
    ErrorCode(
        "AUDIT_TAMPERED",
        EXIT_REFUSED,
        "The audit log was changed after it was written: an event was edited, removed, moved, inserted or cut off.",
        "Copy the database, then compare it with your last export. The message names the first event that is wrong.",
    ),
    ErrorCode(
        "AUDIT_UNAVAILABLE",
        EXIT_UNCHECKED,
        "An event could not be written to the audit log, so the gateway did not carry out the action.",
        "Make the database available again, or start the gateway with --when-away spool to keep events in a file.",
    ),
    ErrorCode(
        "REVIEW_NOT_FOUND",
        EXIT_USAGE,
        "No change with this number is pending review.",
        "Run: pinwarden review list",
    ),
    ErrorCode(
        "REVIEW_STALE",
        EXIT_REFUSED,
        "The change differs from the one you were shown, or someone has decided on it already.",
        "Look at the change again with `pinwarden review show NUMBER`, then decide.",
    ),
    ErrorCode(
        "FOUR_EYES",
        EXIT_REFUSED,
        "The policy demands that two people approve this change, and this is not the approval of another one.",
        "Sign in to the dashboard at your identity provider: `pinwarden dashboard --sign-in provider`.",
    ),
    ErrorCode(
        "REVIEW_FROM_SERVER",
        EXIT_REFUSED,
        "The approval came from inside a server that the gateway started, or from one of its clients.",
        "Approve in a terminal of your own. A server cannot approve itself.",
    ),
    ErrorCode(
        "TOKEN_UNKNOWN",
        EXIT_USAGE,
        "No token and no client of the gateway has this name.",
        "Run: pinwarden gateway token list",
    ),
    ErrorCode(
        "IDENTITY_INVALID",
        EXIT_USAGE,
        "The table [identity] of pinwarden.toml is missing, has an unknown key or a value that is not allowed, or "
        "names an environment variable that is not set.",
        "Correct the key that the message names. docs/reference/identity.md has an example.",
    ),
    ErrorCode(
        "ISSUER_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The metadata or keys of the issuer of access tokens cannot be fetched now.",
        "Check the URL in [identity] and the network, then run: pinwarden identity check",
    ),
    ErrorCode(
        "ISSUER_INVALID",
        EXIT_REFUSED,
        "The issuer is refused: its URL is not HTTPS, its metadata name another issuer, an address is private or "
        "redirects, a document is too large or malformed, there is no usable key, or it does not support PKCE.",
        "Compare the URL in [identity] with the member issuer of the provider's metadata; they must be identical.",
    ),
    ErrorCode(
        "ACCESS_TOKEN_INVALID",
        EXIT_REFUSED,
        "An access token is refused: it expired, is for another server, is from another issuer, or has a wrong "
        "signature.",
        "Get a new token for the address of this gateway. The reason is in the data of the error.",
    ),
    ErrorCode(
        "LOGIN_REFUSED",
        EXIT_REFUSED,
        "A login is refused: it took too long, the response belongs to another login or provider, the provider "
        "refused, or no role is configured for the groups of the person.",
        "Start the login again. If no role is configured, add a group of the person to [identity.roles].",
    ),
    ErrorCode(
        "REMOTES_INVALID",
        EXIT_USAGE,
        "A table [remotes.NAME] of pinwarden.toml has an unknown key or a value that is not allowed, or names an "
        "environment variable that is not set.",
        "Correct the key that the message names. docs/reference/remotes.md has an example.",
    ),
    ErrorCode(
        "REMOTE_NOT_CONNECTED",
        EXIT_REFUSED,
        "A remote server needs a token of the person who uses it, and there is none, or it is no longer accepted.",
        "Run: pinwarden remote connect NAME",
    ),
    ErrorCode(
        "REMOTE_REFUSED",
        EXIT_REFUSED,
        "Pinwarden does not use an answer of a remote server or of its issuer: an address is private, not encrypted or "
        "redirects, metadata name something else, a response belongs to another request or issuer, or the issuer "
        "refused. data.reason has the reason.",
        "Read the reason in the message. To connect again, run: pinwarden remote connect NAME",
    ),
    ErrorCode(
        "REMOTE_UNAVAILABLE",
        EXIT_UNCHECKED,
        "A remote server or its issuer cannot be asked now.",
        "Check the network and the address of the server, then try again.",
    ),
    ErrorCode(
        "GRANT_KEY_INVALID",
        EXIT_USAGE,
        "The key that encrypts tokens of remote servers is missing, malformed, readable by other users, or not the "
        "one that the tokens were encrypted with.",
        "Set PINWARDEN_GRANT_KEY or PINWARDEN_GRANT_KEY_FILE to the key with which the servers were connected. If it "
        "is lost, forget and connect them again: pinwarden remote forget NAME",
    ),
    ErrorCode(
        "GATEWAY_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The gateway cannot start: its address is in use or not allowed, its certificate is unreadable, a Python "
        "package is missing, or no locked server can be started.",
        "Correct the setting that the message names; `pinwarden gateway --help` lists the options. For a missing "
        "package, install Pinwarden with the extra [gateway].",
    ),
    ErrorCode(
        "DASHBOARD_UNAVAILABLE",
        EXIT_UNCHECKED,
        "The dashboard cannot start: other machines could reach its address without TLS, its certificate is "
        "unreadable, or a Python package is missing.",
        "Correct the setting that the message names; `pinwarden dashboard --help` lists the options. For a missing "
        "package, install Pinwarden with the extra [registry].",
    ),
    ErrorCode(
        "DASHBOARD_FORBIDDEN",
        EXIT_REFUSED,
        "The role of the person who signed in to the dashboard does not allow this.",
        "Ask a person with that role, or start a dashboard with it: `pinwarden dashboard --role`.",
    ),
    ErrorCode(
        "SIGN_IN_FAILED",
        EXIT_REFUSED,
        "The sign-in code is wrong or was used already, or the session ended.",
        "Enter the newest code that the terminal with `pinwarden dashboard` shows.",
    ),
    ErrorCode(
        "HOST_REFUSED",
        EXIT_REFUSED,
        "The request names a host that the dashboard is not served as, as in a DNS rebinding attack.",
        "Open the address that `pinwarden dashboard` prints, or add the name with --allow-host.",
    ),
    ErrorCode(
        "ORIGIN_REFUSED",
        EXIT_REFUSED,
        "A request that would change something does not come from a page of this dashboard and session.",
        "Open the page again in the dashboard and repeat the action there.",
    ),
    ErrorCode(
        "PAGE_NOT_FOUND",
        EXIT_USAGE,
        "The dashboard has no page at this address.",
        "Start from the overview.",
    ),
    ErrorCode(
        "INPUT_LIMIT",
        EXIT_REFUSED,
        "The input is too long, or has more items than one request may have.",
        "Split the input into smaller parts. The message names the limit.",
    ),
    ErrorCode(
        "OVERLOADED",
        EXIT_UNCHECKED,
        "Too much work is queued for this client, or for all clients together.",
        "Send fewer requests in parallel, and retry in a moment.",
    ),
    # Configurations, locks, contracts and policies
    ErrorCode(
        "CONFIG_INVALID",
        EXIT_UNCHECKED,
        "A client's configuration file is damaged or ambiguous, for example because a member occurs twice.",
        "Repair the file at the position in the message, then run: pinwarden doctor",
    ),
    ErrorCode(
        "CONFIG_UNEDITABLE",
        EXIT_UNCHECKED,
        "A client's configuration file is formatted so that this server cannot be edited without changing other parts. "
        "Nothing was changed.",
        "Add or remove the server by hand, then run: pinwarden doctor",
    ),
    ErrorCode(
        "CONFIG_CHANGED",
        EXIT_UNCHECKED,
        "Another program changed a client's file or a lock after Pinwarden had shown its edit. No file was edited.",
        "Run the command again; it shows the edit of the file as it is now.",
    ),
    ErrorCode(
        "NOTHING_TO_UNDO",
        EXIT_REFUSED,
        "There is no backup of an edit by this command, or none for the named servers.",
        "Run `pinwarden status` to see which servers are started through Pinwarden. To remove a server from Pinwarden, "
        "write its own command into the client's file.",
    ),
    ErrorCode(
        "BACKUP_DAMAGED",
        EXIT_UNCHECKED,
        "Pinwarden kept a copy of a client's file before it edited the file. That copy was changed or removed, so the "
        "file cannot be restored.",
        "Restore the client's file by hand, then delete the folder in the message.",
    ),
    ErrorCode(
        "CLIENT_UNKNOWN",
        EXIT_USAGE,
        "There is no client with this name.",
        "Run `pinwarden doctor --help` to see the names of the clients.",
    ),
    ErrorCode(
        "LOCK_INVALID",
        EXIT_UNCHECKED,
        "The file is not a valid lockfile: a member is missing, malformed or of an unknown kind.",
        "Restore the file from version control: git checkout mcp-lock.json. To lock the servers again, move the file "
        "away and run: pinwarden init",
    ),
    ErrorCode(
        "LOCK_VERSION_UNSUPPORTED",
        EXIT_UNCHECKED,
        "This release does not support the version of the lockfile.",
        "Supported versions: lockfileVersion 2. To lock the servers again, move the file away and run: pinwarden init",
    ),
    ErrorCode(
        "LOCK_TAMPERED",
        EXIT_REFUSED,
        "The lockfile, or an approved surface next to it, was changed after approval.",
        "Find out who changed it: git log -p mcp-lock.json. If the change is intended, review the server again with "
        "`pinwarden approve SERVER`.",
    ),
    ErrorCode(
        "LOCK_BUSY",
        EXIT_UNCHECKED,
        "Another process is writing this lockfile and did not finish in time. Nothing was changed.",
        "Wait until the other command has finished, then try again.",
    ),
    ErrorCode(
        "LOCK_NOT_PUBLISHED",
        EXIT_UNCHECKED,
        "No lock is published under this name in the gateway's database.",
        "Publish it: pinwarden lock publish --name NAME --database DATABASE",
    ),
    ErrorCode(
        "LOCK_UNSIGNED",
        EXIT_REFUSED,
        "The published lock lacks a signature that the gateway requires. A running gateway continues with the one "
        "before.",
        "Publish a lock signed with a key that the gateway trusts: pinwarden lock publish --key FILE",
    ),
    ErrorCode(
        "LOCK_ROLLED_BACK",
        EXIT_REFUSED,
        "The published lock is older than the one that the gateway has accepted. A running gateway continues with that "
        "one.",
        "Publish the lock again: pinwarden lock publish. If the database was restored on purpose, delete the folder "
        "published in the gateway's state folder.",
    ),
    ErrorCode(
        "LOCK_MISSING",
        EXIT_UNCHECKED,
        "There is no lockfile.",
        "Run `pinwarden setup` to lock the configured servers, or name another lockfile with --file.",
    ),
    ErrorCode(
        "SERVER_NOT_LOCKED",
        EXIT_REFUSED,
        "The lock has no entry for this server.",
        "Run `pinwarden status` to see the locked servers.",
    ),
    ErrorCode(
        "SERVER_NOT_FOUND",
        EXIT_REFUSED,
        "No registry has a server with this name and version.",
        "Check the spelling and the version. Names look like io.github.owner/server, names of bundles like acme.notes.",
    ),
    ErrorCode(
        "SERVER_ENTRY_INVALID",
        EXIT_UNCHECKED,
        "A registry entry or server.json is invalid: a member is missing or has the wrong type.",
        "Ask the author of the server to correct the member that the message names.",
    ),
    ErrorCode(
        "NO_INSTALL_TARGET",
        EXIT_REFUSED,
        "The registry entry offers no package and no remote, or none of the requested kind.",
        "Choose a kind of package that the entry offers with --target, or another server.",
    ),
    ErrorCode(
        "PROJECT_NOT_NAMED",
        EXIT_REFUSED,
        "The lock in the current folder has a server with this name, but neither the command nor a client's "
        "configuration says that the server belongs to this project. A project's lock does not apply to servers that "
        "you configured for yourself.",
        "Add --project DIR to the command, with the folder whose lock applies to this server.",
    ),
    ErrorCode(
        "CONTRACT_INVALID",
        EXIT_UNCHECKED,
        "A contract file of a server is malformed. Nothing was compared.",
        "Correct the member that the message names, or write the file again with `pinwarden contract lock`.",
    ),
    ErrorCode(
        "POLICY_INVALID",
        EXIT_UNCHECKED,
        "The policy has an unknown key, a value of the wrong type, contradicting rules or no rule. An invalid policy "
        "allows nothing.",
        "Correct the key that the message names, then run: pinwarden policy check",
    ),
    ErrorCode(
        "POLICY_REFUSED",
        EXIT_REFUSED,
        "The policy does not allow this server, or the lock marks the server as blocked.",
        "Read the reasons in the message. To make an exception to a rule, add a waiver with reason, owner and expiry "
        "to the policy.",
    ),
    ErrorCode(
        "REGISTRY_UNAVAILABLE",
        EXIT_UNCHECKED,
        "A registry did not respond, or its response does not follow the registry API.",
        "Try again later, choose another source with --source, or work with --offline.",
    ),
    ErrorCode(
        "SURFACE_DIFFERS",
        EXIT_REFUSED,
        "On this machine, the server sends other tools, prompts, resources or instructions than its registry recorded "
        "for the same bytes.",
        "Ask the author why the server's text depends on where it runs. Do not use the server until you know.",
    ),
    ErrorCode(
        "SERVER_BLOCKED",
        EXIT_REFUSED,
        "pinwarden.guard blocked the server: it differs from its approved surface, or the gateway policy forbids the "
        "message.",
        "Show the change: pinwarden diff NAME. To approve it: pinwarden approve NAME",
    ),
    ErrorCode(
        "CLIENT_UNSUPPORTED",
        EXIT_USAGE,
        "pinwarden.guard cannot guard this object, or not at this moment.",
        "Give an open ClientSession or Client of mcp 1.x or 2.x, or an open Client of fastmcp.",
    ),
    ErrorCode(
        "WARNINGS_NOT_APPROVED",
        EXIT_REFUSED,
        "The server's text has scan warnings that you have not approved.",
        "Read the text that the warnings quote. To approve it, repeat the command with --approve-warnings.",
    ),
    ErrorCode(
        "USAGE",
        EXIT_USAGE,
        "The command line is not valid.",
        "Run: pinwarden --help",
    ),
    ErrorCode(
        "DEMO_FAILED",
        EXIT_UNCHECKED,
        "A command of pinwarden demo did not end as it should. The demo changes nothing outside its temporary folder.",
        "The output of the command is above. If you did not interrupt the demo, report it.",
    ),
    ErrorCode(
        "INTERNAL",
        EXIT_UNCHECKED,
        "Pinwarden failed because of a bug. No decision was made.",
        "Run the same command with PINWARDEN_DEBUG=1 and report its output.",
    ),
)
