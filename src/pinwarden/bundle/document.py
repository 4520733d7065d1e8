"""The common parts of all bundle documents: the reader of their members, the CID profile, and signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import ALGORITHM, Signer, sign_document
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import parse_timestamp
from pinwarden.core.typed_json import JsonObject

DOCUMENT_LIMITS = Limits(max_bytes=16 * 1024 * 1024)
"""A manifest of 100,000 files has about this size. Other documents have a few kilobytes."""
_MAX_TEXT = 64 * 1024
DOCUMENT_CID = "bafyrei"
BLOB_CID = "bafkrei"


class DocumentReader(JsonObject):
    """One object of a bundle document. Errors are ``DOCUMENT_INVALID``."""

    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, build_document_error)

    @classmethod
    def for_schema(cls, document: Any, schema: str) -> DocumentReader:
        """Create a reader for a whole document, whose ``schema_version`` must be ``schema``."""
        reader = cls(document, schema.partition(".v")[0])
        reader.one_of("schema_version", (schema,))
        return reader

    def text(self, name: str) -> str:
        """Read a string that is neither empty nor longer than 65,536 characters."""
        value = self.string(name)
        if not value or len(value) > _MAX_TEXT:
            self.fail(name, "is empty or too long")
        return value

    def timestamp(self, name: str) -> str:
        """Read a timestamp with a time zone, without converting it."""
        value = self.text(name)
        if parse_timestamp(value) is None:
            self.fail(name, "is not a timestamp with a time zone")
        return value

    def cid(self, name: str, prefix: str = DOCUMENT_CID) -> str:
        """Read a CID that starts with ``prefix``, which is `DOCUMENT_CID` or `BLOB_CID`."""
        self.text(name)  # refuse long texts before decoding them
        value = str(self.parse_string(name, Cid.parse))
        if not value.startswith(prefix):
            self.fail(name, f"is not a CID that starts with {prefix}")
        return value

    def _wrap(self, value: Any, path: str) -> Self:
        return type(self)(value, path)


def read_json(data: bytes) -> Any:
    """Parse a document strictly."""
    return strict_json.parse_json(data, DOCUMENT_LIMITS)


def build_document_error(path: str, problem: str) -> PinwardenError:
    """Build the error ``DOCUMENT_INVALID`` for the member at a path."""
    return PinwardenError("DOCUMENT_INVALID", f"{path[:200]} {problem}", data={"path": path})


NORMALIZATION: Mapping[str, Any] = {
    "path_separator": "/",
    "sort_entries": True,
    "strip_timestamps": True,
    "strip_owner": True,
    "strip_permissions": True,
    "reject_symlinks": True,
}
_PROFILE_MEMBERS: Mapping[str, str] = {
    "name": "mcp.cidprofile.default",
    "version": "1",
    "hash": "sha2-256",
    "codec": "dag-cbor",
    "base": "base32",
}


def build_default_profile() -> dict[str, Any]:
    """Build the only supported CID profile, with its normalization."""
    return {**_PROFILE_MEMBERS, "normalization": dict(NORMALIZATION)}


def is_supported_profile(profile: Any) -> bool:
    """Whether a profile is the default one. ``normalization`` may be absent or partial, but must not differ."""
    if type(profile) is not dict or any(profile.get(member) != value for member, value in _PROFILE_MEMBERS.items()):
        return False
    normalization = profile.get("normalization", {})
    if type(normalization) is not dict or profile.keys() - _PROFILE_MEMBERS.keys() - {"normalization"}:
        return False
    return all(type(NORMALIZATION.get(k)) is type(v) and NORMALIZATION[k] == v for k, v in normalization.items())


def read_profile(reader: DocumentReader) -> Mapping[str, Any]:
    """Read the CID profile of an object, without checking that it is supported."""
    profile = reader.object("cid_profile")
    for member in _PROFILE_MEMBERS:
        profile.text(member)
    return profile.value


class Signature(Record):
    """One entry of a document's ``signatures``."""

    key_id: str
    sig: str
    signed_fields: tuple[str, ...]


def read_signatures(reader: DocumentReader) -> tuple[Signature, ...]:
    """Read a document's signatures, at least one, without verifying them."""
    return tuple(_read_signature(signature) for signature in reader.objects("signatures", min_items=1))


def _read_signature(reader: DocumentReader) -> Signature:
    reader.one_of("alg", (ALGORITHM,))
    return Signature(
        key_id=reader.text("key_id"), sig=reader.text("sig"), signed_fields=reader.strings("signed_fields", default=[])
    )


def add_signature(document: Mapping[str, Any], fields: Sequence[str], signer: Signer) -> dict[str, Any]:
    """Return the document with a signature added, which replaces an earlier signature by the same key."""
    signature = sign_document(dict(document), fields, signer)
    kept = [given for given in document.get("signatures", []) if given.get("key_id") != signature["key_id"]]
    return {**document, "signatures": [*kept, signature]}


def encode_document(document: Any) -> bytes:
    """Encode a document for a file: its canonical form and a newline."""
    return canonicalize(document, "rulebook") + b"\n"
