"""A signed request to a registry: do this, here, now, once.

The signature covers every member, the registry's log and the moment too, so a request cannot be shown to another
registry, shown again later, or taken for a document of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.shape import Shape, refuse
from pinwarden.bundle.signatures import signatures_in
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, field
from pinwarden.core.signing import document_signature_valid, signing_preimage

SCHEMA = "pinwarden.registry.statement.v1"
SIGNED_FIELDS = ("/schema_version", "/log_id", "/action", "/body", "/issued_at_utc", "/nonce")
_MEMBERS = {field[1:] for field in SIGNED_FIELDS} | {"signatures"}
PUBLISH = "publish"
POINT = "point"
YANK = "yank"
UNYANK = "unyank"
KEYS = "keys"
ACTIONS = (PUBLISH, POINT, YANK, UNYANK, KEYS)


class Statement(Record):
    """A request and who signed it."""

    log_id: str
    action: str
    body: Mapping[str, Any]
    issued_at_utc: str
    key_id: str
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def digest(self) -> Digest:
        """What tells this request from every other: whose it is, and what was signed. Nothing else is in it, because
        whoever has seen a request could change what is not signed, and ask for the same a second time."""
        return Digest.of_bytes(self.key_id.encode() + b"\0" + signing_preimage(dict(self.document), SIGNED_FIELDS))

    @property
    def shape(self) -> Shape:
        """What is asked for, to be read member by member."""
        return Shape(self.body, "statement/body")


def of(document: Any) -> Statement:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    shape.text("nonce")
    signatures = signatures_in(shape)
    if document.keys() - _MEMBERS:
        refuse(shape.path, "has a member that nobody signed")
    if len(signatures) != 1 or signatures[0].signed_fields != SIGNED_FIELDS:
        raise PinwardenError("SIGNATURE_INVALID", "a request is signed once, and all of it")
    key_id = signatures[0].key_id
    if not document_signature_valid(document, document["signatures"][0], [PublicKey.from_did(key_id)]):
        raise PinwardenError("SIGNATURE_INVALID", "the request's signature does not verify")
    return Statement(
        log_id=shape.text("log_id"),
        action=shape.one_of("action", ACTIONS),
        body=shape.inside("body").value,
        issued_at_utc=shape.moment("issued_at_utc"),
        key_id=key_id,
        document=document,
    )


def to_value(log_id: str, action: str, body: Mapping[str, Any], issued_at_utc: str, nonce: str) -> dict[str, Any]:
    """The request without its signature; ``signatures.signed(…, SIGNED_FIELDS, signer)`` adds it."""
    return {
        "schema_version": SCHEMA,
        "log_id": log_id,
        "action": action,
        "body": dict(body),
        "issued_at_utc": issued_at_utc,
        "nonce": nonce,
    }
