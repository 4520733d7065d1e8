"""Which known keys signed a document, and all of it that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pinwarden.bundle.acceptance.values import listed, member
from pinwarden.bundle.trust import TrustedKey
from pinwarden.core.signing import document_signature_valid

_MAX_SIGNATURES = 64
"""Each takes a tenth of a millisecond, and a document of a megabyte has room for thousands."""


def signers_of(
    document: Any, known: Callable[[Any], TrustedKey | None], needed_fields: Sequence[str], *, literal: bool
) -> list[TrustedKey]:
    """The known keys that signed, in the order of their signatures.

    To the letter only the first signature is looked at, whatever fields it covers. Hardened, any will do that covers
    the fields on which everything rests.
    """
    signatures = listed(document, "signatures")[: 1 if literal else _MAX_SIGNATURES]
    found: list[TrustedKey] = []
    for signature in signatures:
        trusted = known(member(signature, "key_id"))
        if trusted is None or trusted in found:
            continue
        if not literal and not _covers(signature, needed_fields):
            continue
        if document_signature_valid(document, signature, [trusted.key]):
            found.append(trusted)
    return found


def _covers(signature: Any, needed: Sequence[str]) -> bool:
    fields = member(signature, "signed_fields")
    return type(fields) is list and all(each in fields for each in needed)
