"""Attestations (``attestation.envelope``): signed claims about a bundle, and how claims are renewed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.bundle.document import DocumentReader, Signature, read_json, read_profile, read_signatures
from pinwarden.core.record import Record, field
from pinwarden.core.text import parse_timestamp

ATTESTATION_SCHEMA = "attestation.envelope.v0.1"
ATTESTATION_SIGNED_FIELDS = ("/subject", "/claims")
CLAIM_PREFIX = "mcp.claim."
INTEGRITY_CLAIM = "mcp.claim.integrity"
CLAIM_TYPES = (INTEGRITY_CLAIM, "mcp.claim.audit", "mcp.claim.compatibility")
MAX_ATTESTATION_BYTES = 1024 * 1024
"""The maximum size of an attestation that an installer downloads. Real attestations have a few kilobytes."""
ROLES = ("verifier", "maintainer", "auditor")


class Claim(Record):
    """One claim about a bundle, by one issuer."""

    type: str
    issued_at_utc: str
    issuer_key_id: str
    issuer_role: str
    payload: Mapping[str, Any]
    expires_at_utc: str | None = None


class BundleAttestation(Record):
    """Claims about one bundle, with signatures that cover all claims."""

    root_cid: str
    descriptor_cid: str
    cid_profile: Mapping[str, Any]
    claims: tuple[Claim, ...]
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_attestation(data: bytes) -> BundleAttestation:
    """Parse an attestation, without verifying its signatures."""
    return attestation_from_json(read_json(data))


def attestation_from_json(document: Any) -> BundleAttestation:
    """Build an attestation from a strictly parsed value, without verifying its signatures."""
    reader = DocumentReader.for_schema(document, ATTESTATION_SCHEMA)
    subject = reader.object("subject")
    return BundleAttestation(
        root_cid=subject.cid("root_cid"),
        descriptor_cid=subject.cid("descriptor_cid"),
        cid_profile=read_profile(subject),
        claims=tuple(_read_claim(claim) for claim in reader.objects("claims", min_items=1)),
        signatures=read_signatures(reader),
        document=document,
    )


def _read_claim(reader: DocumentReader) -> Claim:
    issuer = reader.object("issuer")
    return Claim(
        type=reader.one_of("type", CLAIM_TYPES),
        issued_at_utc=reader.timestamp("issued_at_utc"),
        issuer_key_id=issuer.text("key_id"),
        issuer_role=issuer.one_of("role", ROLES),
        payload=reader.object("payload").value,
        expires_at_utc=reader.timestamp("expires_at_utc") if "expires_at_utc" in reader else None,
    )


def build_unsigned_attestation(
    root_cid: str, descriptor_cid: str, cid_profile: Mapping[str, Any], claims: Iterable[Claim]
) -> dict[str, Any]:
    """Build an attestation without signatures. ``add_signature`` signs it over ``ATTESTATION_SIGNED_FIELDS``."""
    return {
        "schema_version": ATTESTATION_SCHEMA,
        "subject": {"root_cid": root_cid, "descriptor_cid": descriptor_cid, "cid_profile": dict(cid_profile)},
        "claims": [_claim_to_json(claim) for claim in claims],
    }


def _claim_to_json(claim: Claim) -> dict[str, Any]:
    value: dict[str, Any] = {"type": claim.type, "issued_at_utc": claim.issued_at_utc}
    if claim.expires_at_utc is not None:
        value["expires_at_utc"] = claim.expires_at_utc
    issuer = {"key_id": claim.issuer_key_id, "role": claim.issuer_role}
    return {**value, "issuer": issuer, "payload": dict(claim.payload)}


def list_current_attestations(attestations: Mapping[str, BundleAttestation]) -> list[str]:
    """Return the names of the attestations that no other attestation renews, in order.

    An issuer renews an attestation by signing the same claims later, with a later expiry date. Registries do not list
    renewed attestations, because an expired claim of a trusted key stops every install.
    """
    return [
        name
        for name, old in attestations.items()
        if not any(_renews(new, old) for other, new in attestations.items() if other != name)
    ]


def _renews(new: BundleAttestation, old: BundleAttestation) -> bool:
    """Whether ``new`` renews every claim of ``old``. Only the issuer of a claim can renew it."""
    signers = {
        signature.key_id
        for signature in new.signatures
        if set(ATTESTATION_SIGNED_FIELDS) <= set(signature.signed_fields)
    }
    signed_claims = [claim for claim in new.claims if claim.issuer_key_id in signers]
    return all(any(_extends_claim(claim, old_claim) for claim in signed_claims) for old_claim in old.claims)


def _extends_claim(new: Claim, old: Claim) -> bool:
    if (new.type, new.issuer_key_id, new.issuer_role) != (old.type, old.issuer_key_id, old.issuer_role):
        return False
    new_expiry, old_expiry = parse_timestamp(new.expires_at_utc), parse_timestamp(old.expires_at_utc)
    new_issue, old_issue = parse_timestamp(new.issued_at_utc), parse_timestamp(old.issued_at_utc)
    if old_expiry is None or new_issue is None or old_issue is None or new_issue <= old_issue:
        return False
    return new_expiry is None or new_expiry > old_expiry
