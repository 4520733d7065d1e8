"""``attestation.envelope``: what somebody says of a bundle, signed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.bundle.profile import profile_in
from pinwarden.bundle.shape import Shape, read
from pinwarden.bundle.signatures import Signature, signatures_in
from pinwarden.core.record import Record, field

SCHEMA = "attestation.envelope.v0.1"
SIGNED_FIELDS = ("/subject", "/claims")
CLAIM_PREFIX = "mcp.claim."
INTEGRITY = "mcp.claim.integrity"
CLAIM_TYPES = (INTEGRITY, "mcp.claim.audit", "mcp.claim.compatibility")
MOST_BYTES = 1024 * 1024
"""What whoever installs takes of one. They have a few kilobytes."""
ROLES = ("verifier", "maintainer", "auditor")


class Claim(Record):
    """One thing that is said."""

    type: str
    issued_at_utc: str
    issuer_key_id: str
    issuer_role: str
    payload: Mapping[str, Any]
    expires_at_utc: str | None = None


class Attestation(Record):
    """Claims about one bundle, signed together."""

    root_cid: str
    descriptor_cid: str
    cid_profile: Mapping[str, Any]
    claims: tuple[Claim, ...]
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of it, with what is not known here."""


def parse(data: bytes) -> Attestation:
    """An attestation; its signatures are not checked here."""
    return of(read(data))


def of(document: Any) -> Attestation:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    subject = shape.inside("subject")
    return Attestation(
        root_cid=subject.cid("root_cid"),
        descriptor_cid=subject.cid("descriptor_cid"),
        cid_profile=profile_in(subject),
        claims=tuple(_claim(each) for each in shape.each("claims", at_least=1)),
        signatures=signatures_in(shape),
        document=document,
    )


def _claim(shape: Shape) -> Claim:
    issuer = shape.inside("issuer")
    return Claim(
        type=shape.one_of("type", CLAIM_TYPES),
        issued_at_utc=shape.moment("issued_at_utc"),
        issuer_key_id=issuer.text("key_id"),
        issuer_role=issuer.one_of("role", ROLES),
        payload=shape.inside("payload").value,
        expires_at_utc=shape.moment("expires_at_utc") if "expires_at_utc" in shape.value else None,
    )


def to_value(
    root_cid: str, descriptor_cid: str, cid_profile: Mapping[str, Any], claims: Iterable[Claim]
) -> dict[str, Any]:
    """The document without signatures; ``signatures.signed(…, SIGNED_FIELDS, signer)`` adds one."""
    return {
        "schema_version": SCHEMA,
        "subject": {"root_cid": root_cid, "descriptor_cid": descriptor_cid, "cid_profile": dict(cid_profile)},
        "claims": [_claim_value(each) for each in claims],
    }


def _claim_value(claim: Claim) -> dict[str, Any]:
    value: dict[str, Any] = {"type": claim.type, "issued_at_utc": claim.issued_at_utc}
    if claim.expires_at_utc is not None:
        value["expires_at_utc"] = claim.expires_at_utc
    issuer = {"key_id": claim.issuer_key_id, "role": claim.issuer_role}
    return {**value, "issuer": issuer, "payload": dict(claim.payload)}
