"""Vouching for a bundle. Whoever says that it is whole has looked at every byte of it first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.bundle import attestation
from pinwarden.bundle.acceptance.verdict import BundleDocuments
from pinwarden.bundle.attestation import CLAIM_PREFIX, Claim
from pinwarden.bundle.bundle_files import BundleFiles, open_files
from pinwarden.bundle.signatures import signed, to_bytes
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import Signer
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report
from pinwarden.core.timestamps import parse_timestamp
from pinwarden.system.files import write_atomically


class Attesting(Record):
    """Who says what of which bundle."""

    files: BundleFiles
    signer: Signer
    role: str
    claims: tuple[str, ...]
    """Of which kinds: integrity, audit, compatibility."""
    now: str
    output: Path
    expires: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What else the claims say, as it was given."""


def attest(attesting: Attesting) -> Report:
    """The report of ``pinwarden attest``.

    1. Open the bundle and check all of it.
    2. Make the claims.
    3. Sign, and write the envelope.
    """
    opened = open_files(attesting.files)
    document = attestation_of(opened.documents, attesting)
    write_atomically(attesting.output, to_bytes(document))
    until = f" until {attesting.expires}" if attesting.expires else ""
    return Report(
        command="attest",
        subject=attesting.files.archive.name,
        summary=f"{attesting.output}: {attesting.role} vouches ({', '.join(attesting.claims)}){until}",
        exit_code=EXIT_CLEAN,
        notes=() if attesting.expires else ("it never expires; --expires-in 90d would end it",),
        facts={
            "file": str(attesting.output),
            "root_cid": opened.documents.root_cid,
            "descriptor_cid": opened.documents.descriptor_cid,
            "key_id": attesting.signer.public_key.did,
            "role": attesting.role,
            "claims": [CLAIM_PREFIX + kind for kind in attesting.claims],
            "expires_at_utc": attesting.expires,
        },
    )


def attestation_of(documents: BundleDocuments, attesting: Attesting) -> dict[str, Any]:
    """The signed envelope over a bundle that was checked."""
    expires, now = parse_timestamp(attesting.expires), parse_timestamp(attesting.now)
    if attesting.expires is not None and (expires is None or now is None or expires <= now):
        raise PinwardenError("USAGE", f"{attesting.expires[:80]!a} is not a moment to come, with its time zone")
    claims = [_claim(kind, documents, attesting) for kind in attesting.claims]
    value = attestation.to_value(documents.root_cid, documents.descriptor_cid, documents.descriptor.cid_profile, claims)
    made = signed(value, attestation.SIGNED_FIELDS, attesting.signer)
    attestation.of(made)
    return made


def _claim(kind: str, documents: BundleDocuments, attesting: Attesting) -> Claim:
    return Claim(
        type=CLAIM_PREFIX + kind,
        issued_at_utc=attesting.now,
        expires_at_utc=attesting.expires,
        issuer_key_id=attesting.signer.public_key.did,
        issuer_role=attesting.role,
        payload={
            **attesting.payload,
            "kind": kind,
            "verified_root_cid": documents.root_cid,
            "verified_descriptor_cid": documents.descriptor_cid,
        },
    )
