"""What all bundle documents share: a typed reader whose errors name the path, the CID profile, and signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import ALGORITHM, Signer, sign_document
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import parse_timestamp

DOCUMENT_LIMITS = Limits(max_bytes=16 * 1024 * 1024)
"""About the size of a manifest of 100,000 files; other documents have a few kilobytes."""
_MAX_TEXT = 64 * 1024
DOCUMENT_CID = "bafyrei"
BLOB_CID = "bafkrei"


class DocumentReader:
    """Reads one object of a document, member by member. Errors name the member's path."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str) -> None:
        if type(value) is not dict:
            refuse_document(path, "is not an object")
        self.value: Mapping[str, Any] = value
        self.path = path

    @classmethod
    def for_schema(cls, document: Any, schema: str) -> DocumentReader:
        """A reader of a whole document, whose ``schema_version`` must be ``schema``."""
        reader = cls(document, schema.partition(".v")[0])
        if reader.value.get("schema_version") != schema:
            refuse_document(f"{reader.path}/schema_version", f"is not {schema}")
        return reader

    def object(self, member: str) -> DocumentReader:
        """A reader of the object under a member."""
        return DocumentReader(self.value.get(member), f"{self.path}/{member}")

    def objects(self, member: str, *, at_least: int = 0) -> list[DocumentReader]:
        """Readers of the objects in the list under a member."""
        items = self.value.get(member)
        if type(items) is not list or len(items) < at_least:
            refuse_document(f"{self.path}/{member}", f"is not a list of at least {at_least} objects")
        return [DocumentReader(item, f"{self.path}/{member}/{index}") for index, item in enumerate(items)]

    def text(self, member: str) -> str:
        """A string that is not empty."""
        value = self.value.get(member)
        if type(value) is not str or not value or len(value) > _MAX_TEXT:
            refuse_document(f"{self.path}/{member}", "is not a string, or is empty or too long")
        return value

    def texts(self, member: str) -> tuple[str, ...]:
        """A list of strings; empty if the member is absent."""
        value = self.value.get(member, [])
        if type(value) is not list or any(type(item) is not str for item in value):
            refuse_document(f"{self.path}/{member}", "is not a list of strings")
        return tuple(value)

    def one_of(self, member: str, allowed: Sequence[str]) -> str:
        """A string from a fixed set."""
        value = self.value.get(member)
        if type(value) is not str or value not in allowed:
            refuse_document(f"{self.path}/{member}", f"is not one of {', '.join(allowed)}")
        return value

    def integer(self, member: str, least: int = 0) -> int:
        """An integer that is at least ``least``."""
        value = self.value.get(member)
        if type(value) is not int or value < least:
            refuse_document(f"{self.path}/{member}", f"is not an integer of {least} or more")
        return value

    def boolean(self, member: str, default: bool | None = None) -> bool:
        """A boolean; the default, if given, replaces an absent member."""
        value = self.value.get(member, default)
        if type(value) is not bool:
            refuse_document(f"{self.path}/{member}", "is not true or false")
        return value

    def timestamp(self, member: str) -> str:
        """A timestamp with a time zone, as it was written."""
        value = self.text(member)
        if parse_timestamp(value) is None:
            refuse_document(f"{self.path}/{member}", "is not a timestamp with a time zone")
        return value

    def cid(self, member: str, kind: str = DOCUMENT_CID) -> str:
        """A CID whose text starts with ``kind``: a document's or a blob's."""
        value = self.text(member)
        try:
            Cid.parse(value)
        except PinwardenError as err:
            refuse_document(f"{self.path}/{member}", f"is not a CID: {err.message}")
        if not value.startswith(kind):
            refuse_document(f"{self.path}/{member}", f"is not a CID that starts with {kind}")
        return value


def read_json(data: bytes) -> Any:
    """Parse a document strictly."""
    return strict_json.parse_json(data, DOCUMENT_LIMITS)


def refuse_document(path: str, problem: str) -> NoReturn:
    """Raise ``DOCUMENT_INVALID`` for the member at a path."""
    raise PinwardenError("DOCUMENT_INVALID", f"{path[:200]} {problem}", data={"path": path})


NORMALIZATION: Mapping[str, Any] = {
    "path_separator": "/",
    "sort_entries": True,
    "strip_timestamps": True,
    "strip_owner": True,
    "strip_permissions": True,
    "reject_symlinks": True,
}
_STATED: Mapping[str, str] = {
    "name": "mcp.cidprofile.default",
    "version": "1",
    "hash": "sha2-256",
    "codec": "dag-cbor",
    "base": "base32",
}


def default_profile() -> dict[str, Any]:
    """The only supported CID profile, with its normalization."""
    return {**_STATED, "normalization": dict(NORMALIZATION)}


def is_supported_profile(profile: Any) -> bool:
    """Whether a profile is the default one. ``normalization`` may be absent or partial, but must not differ."""
    if type(profile) is not dict or any(profile.get(member) != value for member, value in _STATED.items()):
        return False
    normalization = profile.get("normalization", {})
    if type(normalization) is not dict or profile.keys() - _STATED.keys() - {"normalization"}:
        return False
    return all(type(NORMALIZATION.get(k)) is type(v) and NORMALIZATION[k] == v for k, v in normalization.items())


def read_profile(reader: DocumentReader) -> Mapping[str, Any]:
    """The CID profile of an object; its members must be strings."""
    profile = reader.object("cid_profile")
    for member in _STATED:
        profile.text(member)
    return profile.value


class Signature(Record):
    """One entry of a document's ``signatures``."""

    key_id: str
    sig: str
    signed_fields: tuple[str, ...]


def read_signatures(reader: DocumentReader) -> tuple[Signature, ...]:
    """A document's signatures, at least one. They are not verified."""
    return tuple(_read_signature(signature) for signature in reader.objects("signatures", at_least=1))


def _read_signature(reader: DocumentReader) -> Signature:
    reader.one_of("alg", (ALGORITHM,))
    return Signature(key_id=reader.text("key_id"), sig=reader.text("sig"), signed_fields=reader.texts("signed_fields"))


def add_signature(document: Mapping[str, Any], fields: Sequence[str], signer: Signer) -> dict[str, Any]:
    """The document with a signature added. It replaces an earlier signature by the same key."""
    signature = sign_document(dict(document), fields, signer)
    others = [given for given in document.get("signatures", []) if given.get("key_id") != signature["key_id"]]
    return {**document, "signatures": [*others, signature]}


def document_bytes(document: Any) -> bytes:
    """A document as it is stored in files: its canonical form and a newline."""
    return canonicalize(document, "rulebook") + b"\n"
