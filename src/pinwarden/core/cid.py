"""Content identifiers as the verifier rulebook (v0.1.1, section 4) defines them.

The CID of a document is computed over the DAG-CBOR encoding of its canonical JSON, so ``1.0`` and ``1`` are the same
document. The CID of a blob is computed over its bytes. Text form: version 1, SHA-256, lower-case base32.
"""

from __future__ import annotations

import hashlib
from typing import Any

import libipld

from pinwarden.core.canonical import canonicalize, encode_plain
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import parse_json

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
        """Parse the text form. Each CID has exactly one spelling."""
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
    """The CID of a document, given as a value or as JSON text in ``bytes``."""
    return Cid(_DAG_CBOR + hashlib.sha256(document_cbor(document)).digest())


def blob_cid(data: bytes) -> Cid:
    """The CID of raw bytes."""
    return Cid(BLOB_PREFIX + hashlib.sha256(data).digest())


def manifest_root_cid(manifest: Any) -> Cid:
    """The root CID of a bundle manifest. It covers only the three members of section 4.2.3, no links to documents."""
    if isinstance(manifest, bytes):
        manifest = parse_json(manifest)
    if type(manifest) is not dict:
        raise PinwardenError("MANIFEST_INVALID", "the manifest is not an object")
    missing = [member for member in _MANIFEST_PREIMAGE if member not in manifest]
    if missing:
        raise PinwardenError("MANIFEST_INVALID", f"the manifest has no {', '.join(missing)}")
    return document_cid({member: manifest[member] for member in _MANIFEST_PREIMAGE})


def document_cbor(document: Any) -> bytes:
    """The DAG-CBOR bytes that a document's CID is computed over."""
    if isinstance(document, bytes):
        document = parse_json(document)
    plain = encode_plain(document)
    if plain is not None:
        return plain[1]
    # Section 4.2.1: encode the value parsed back from canonical JSON. This turns 1.0 into 1.
    cbor: bytes = libipld.encode_dag_cbor(parse_json(canonicalize(document, "rulebook")))
    return cbor
