"""Signatures inside documents (rulebook section 3): which fields they must cover, and how one is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.bundle.shape import Shape
from pinwarden.core.canonical import canonicalize
from pinwarden.core.keys import Signer
from pinwarden.core.record import Record
from pinwarden.core.signing import ALGORITHM, sign_document


class Signature(Record):
    """One signature of a document."""

    key_id: str
    sig: str
    signed_fields: tuple[str, ...]


def signatures_in(shape: Shape) -> tuple[Signature, ...]:
    """The signatures of a document, one or more; whether they are good is another question."""
    return tuple(_signature(each) for each in shape.each("signatures", at_least=1))


def _signature(shape: Shape) -> Signature:
    shape.one_of("alg", (ALGORITHM,))
    return Signature(key_id=shape.text("key_id"), sig=shape.text("sig"), signed_fields=shape.texts("signed_fields"))


def signed(document: Mapping[str, Any], fields: Sequence[str], signer: Signer) -> dict[str, Any]:
    """The document with one more signature. A second one by the same key takes the place of the first."""
    made = sign_document(dict(document), fields, signer)
    others = [each for each in document.get("signatures", []) if each.get("key_id") != made["key_id"]]
    return {**document, "signatures": [*others, made]}


def to_bytes(document: Any) -> bytes:
    """A document as files hold it: its canonical form, and a newline."""
    return canonicalize(document, "rulebook") + b"\n"
