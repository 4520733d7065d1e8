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
        "finite, or more bytes, levels or digits than the limits allow.",
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
