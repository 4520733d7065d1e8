"""Digests of bytes, content identifiers (CIDs) of documents, and digests of tools.

A `Digest` has two text forms: ``sha256:<hex>`` and the SRI form ``sha256-<base64>``.

A `Cid` is a content identifier as the verifier rulebook (v0.1.1, section 4) defines it: version 1, SHA-256, lower-case
base32. The CID of a document is computed over the DAG-CBOR encoding of its canonical JSON, so ``1.0`` and ``1`` are the
same document. The CID of a blob is computed over its bytes.

`tool_digest` has three profiles. ``pinwarden`` covers every member that the server sent. ``hangar`` and ``hangar-1.2``
cover name, description, inputSchema and outputSchema, as MCP Hangar does, so that its pins can be compared.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import Any, BinaryIO

import libipld

from pinwarden.core.canonical import canonicalize, encode_without_floats, get_profile
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import DEFAULT_LIMITS, parse_json

DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}
_CHUNK = 1 << 20


class Digest:
    """A digest and the name of its algorithm. Comparison takes constant time."""

    __slots__ = ("algorithm", "raw")

    algorithm: str
    raw: bytes

    def __init__(self, raw: bytes, algorithm: str = "sha256") -> None:
        if DIGEST_SIZES.get(algorithm) != len(raw):
            raise PinwardenError("DIGEST_INVALID", f"{len(raw)} bytes are not a digest of algorithm {algorithm[:20]!a}")
        _SET_ALGORITHM(self, algorithm)
        _SET_RAW(self, raw)

    @classmethod
    def of_bytes(cls, data: bytes, algorithm: str = "sha256") -> Digest:
        """Hash bytes with this algorithm."""
        raw = hashlib.sha256(data).digest() if algorithm == "sha256" else _create_hasher(algorithm, data).digest()
        return cls(raw, algorithm)

    @classmethod
    def of_stream(cls, stream: BinaryIO, algorithm: str = "sha256") -> Digest:
        """Return the digest of an open binary file, from its current position to its end, in constant memory."""
        hasher = _create_hasher(algorithm)
        buffer = bytearray(_CHUNK)
        view = memoryview(buffer)
        while count := stream.readinto(buffer):  # type: ignore[attr-defined]
            hasher.update(view[:count])
        return cls(hasher.digest(), algorithm)

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse either text form. Hex may be in upper case; base64 must be padded and canonical."""
        algorithm, raw = _decode_digest(text)
        if raw is None or DIGEST_SIZES.get(algorithm) != len(raw):
            raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a digest")
        return cls(raw, algorithm)

    @property
    def hex(self) -> str:
        """The digest without its algorithm, in lower-case hex."""
        return self.raw.hex()

    @property
    def sri(self) -> str:
        """The Subresource Integrity form, as npm and ToolPin write it."""
        return f"{self.algorithm}-{b64encode(self.raw).decode()}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.raw.hex()}"

    def __repr__(self) -> str:
        return f"Digest.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Digest):
            return NotImplemented
        return self.algorithm == other.algorithm and compare_digest(self.raw, other.raw)

    def __hash__(self) -> int:
        return hash((self.algorithm, self.raw))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Digest is immutable: {name}")

    def __reduce__(self) -> tuple[type[Digest], tuple[bytes, str]]:
        return Digest, (self.raw, self.algorithm)


# Slot setters that bypass __setattr__, for speed: one run creates thousands of digests.
_SET_ALGORITHM = Digest.__dict__["algorithm"].__set__
_SET_RAW = Digest.__dict__["raw"].__set__


def _create_hasher(algorithm: str, data: bytes = b"") -> hashlib._Hash:
    if algorithm not in DIGEST_SIZES:
        raise PinwardenError("DIGEST_INVALID", f"unknown digest algorithm {str(algorithm)[:20]!a}")
    return hashlib.new(algorithm, data)


def _decode_digest(text: str) -> tuple[str, bytes | None]:
    if not isinstance(text, str) or not text.isascii():
        return "", None
    algorithm, mark, rest = text.partition(":")
    if mark:
        if not rest.isalnum():  # bytes.fromhex would skip spaces
            return algorithm, None
        try:
            return algorithm, bytes.fromhex(rest)
        except ValueError:
            return algorithm, None
    algorithm, _, rest = text.partition("-")
    try:
        raw = b64decode(rest, validate=True)
    except (BinasciiError, ValueError):
        return algorithm, None
    return algorithm, raw if b64encode(raw).decode() == rest else None


_DAG_CBOR = b"\x01\x71\x12\x20"  # version 1, codec, sha2-256, 32 bytes
BLOB_PREFIX = b"\x01\x55\x12\x20"

_MANIFEST_PREIMAGE = ("schema_version", "cid_profile", "entries")


class Cid:
    """A version 1 CID over SHA-256; ``str()`` gives its text."""

    __slots__ = ("_bytes",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != 36 or raw[:4] not in (_DAG_CBOR, BLOB_PREFIX):
            raise PinwardenError("CID_INVALID", "not a CIDv1 of DAG-CBOR or raw bytes with SHA-256")
        self._bytes = raw

    @classmethod
    def parse(cls, text: str) -> Cid:
        """Parse the text form. Raises CID_INVALID for every spelling except lower-case base32."""
        try:
            raw = libipld.decode_multibase(text)[1]
        except (TypeError, ValueError) as err:
            raise PinwardenError("CID_INVALID", f"{str(text)[:100]!a} is not a CID") from err
        cid = cls(raw)
        if str(cid) != text:
            raise PinwardenError("CID_INVALID", f"{text[:100]!a} is not a CID in lower-case base32")
        return cid

    def __bytes__(self) -> bytes:
        return self._bytes

    def __str__(self) -> str:
        text: str = libipld.encode_multibase("b", self._bytes)
        return text

    def __repr__(self) -> str:
        return f"Cid.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, Cid) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bytes)


def document_cid(document: Any) -> Cid:
    """Return the CID of a document, given as a value or as JSON text in ``bytes``."""
    return Cid(_DAG_CBOR + hashlib.sha256(document_cbor(document)).digest())


def blob_cid(data: bytes) -> Cid:
    """Return the CID of a blob with these bytes."""
    return Cid(BLOB_PREFIX + hashlib.sha256(data).digest())


def manifest_root_cid(manifest: Any) -> Cid:
    """Return the root CID of a bundle manifest. It covers the schema version, the CID profile and the list of files."""
    if isinstance(manifest, bytes):
        manifest = parse_json(manifest)
    if type(manifest) is not dict:
        raise PinwardenError("MANIFEST_INVALID", "the manifest is not an object")
    missing = [member for member in _MANIFEST_PREIMAGE if member not in manifest]
    if missing:
        raise PinwardenError("MANIFEST_INVALID", f"the manifest has no {', '.join(missing)}")
    return document_cid({member: manifest[member] for member in _MANIFEST_PREIMAGE})


def document_cbor(document: Any) -> bytes:
    """Return the DAG-CBOR bytes that a document's CID is computed over."""
    if isinstance(document, bytes):
        document = parse_json(document)
    plain = encode_without_floats(document)
    if plain is not None:
        return plain[1]
    # Section 4.2.1: encode the value parsed back from canonical JSON. This turns 1.0 into 1.
    cbor: bytes = libipld.encode_dag_cbor(parse_json(canonicalize(document, "rulebook")))
    return cbor


_HANGAR_MEMBERS = ("name", "description", "inputSchema", "outputSchema")


def tool_digest(tool: Any, profile: str = "pinwarden") -> Digest:
    """Return the digest of a tool, given as a value or as JSON text in ``bytes``."""
    try:
        form, covered = TOOL_PROFILES[profile]
    except (KeyError, TypeError):
        known = ", ".join(TOOL_PROFILES)
        raise PinwardenError("PROFILE_UNKNOWN", f"unknown tool digest {profile!a}; known: {known}") from None
    if type(tool) is bytes:
        tool = get_profile(form).parse(tool, DEFAULT_LIMITS)
    if type(tool) is not dict:
        raise PinwardenError("TOOL_INVALID", f"the tool is not an object but {type(tool).__name__}")
    return Digest.of_bytes(canonicalize(covered(tool), form))


def _select_all_members(tool: dict[str, Any]) -> dict[str, Any]:
    _require_name(tool)
    return tool


def _select_hangar_members(tool: dict[str, Any]) -> dict[str, Any]:
    _require_name(tool)
    chosen = {member: tool.get(member) for member in _HANGAR_MEMBERS}
    return {member: value for member, value in chosen.items() if value is not None and value not in ("", {}, [])}


def _select_hangar_1_2_members(tool: dict[str, Any]) -> dict[str, Any]:
    if not tool.get("name"):
        raise PinwardenError("TOOL_INVALID", "the tool has no name")
    return {member: tool[member] for member in _HANGAR_MEMBERS if tool.get(member) is not None}


def _require_name(tool: dict[str, Any]) -> None:
    name = tool.get("name")
    if type(name) is not str or not name:
        raise PinwardenError("TOOL_INVALID", "the tool has no name")


TOOL_PROFILES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "pinwarden": ("jcs", _select_all_members),
    "hangar-1.2": ("hangar-1.2", _select_hangar_1_2_members),
    "hangar": ("hangar", _select_hangar_members),
}


# Folders

TreeFile = tuple[str, bool, str]
"""One file: its path, whether it is executable, and its SHA-256 in hex."""


def hash_file_list(rows: Iterable[TreeFile]) -> Digest:
    """Return the digest of a folder, which covers the path, the executable bit and the SHA-256 of each file.

    No other folder has this digest, unless a path contains a line feed; `artifacts/archives/rules.py` refuses that.
    """
    return Digest.of_bytes(format_file_list(rows))


def format_file_list(rows: Iterable[TreeFile]) -> bytes:
    """Format a list of files as one line per file, sorted by path. Tree digests are computed from this text."""
    lines = sorted((path, f"{digest} {'x' if executable else '-'} {path}\n") for path, executable, digest in rows)
    return "".join(line for _, line in lines).encode("utf-8", "strict")
