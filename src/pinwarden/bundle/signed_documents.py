"""``pinwarden attest`` and ``pinwarden sign``: create an attestation, or add a signature to a document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.bundle import attestation, log_documents
from pinwarden.bundle.attestation import CLAIM_PREFIX, Claim
from pinwarden.bundle.bundle_documents import BundleDocuments
from pinwarden.bundle.bundle_files import BundleFiles, open_files
from pinwarden.bundle.document import DOCUMENT_LIMITS, add_signature, encode_document, read_json
from pinwarden.bundle.log_documents import POINTER_SCHEMA, POINTER_SIGNED_FIELDS, pointers_from_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import Signer
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report
from pinwarden.core.text import parse_timestamp
from pinwarden.system.files import read_file, write_atomically


class AttestOptions(Record):
    """The bundle to attest, the attester's key and role, and the file to write."""

    files: BundleFiles
    signer: Signer
    role: str
    claims: tuple[str, ...]
    """Kinds of claims: integrity, audit, compatibility."""
    now: str
    output: Path
    expires: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    """Additional members of each claim's payload."""


def attest(options: AttestOptions) -> Report:
    """Run ``pinwarden attest`` in these steps:

    1. Open the bundle and verify every byte.
    2. Create the claims.
    3. Sign them and write the attestation.
    """
    opened = open_files(options.files)
    document = make_attestation(opened.documents, options)
    write_atomically(options.output, encode_document(document))
    until = f" until {options.expires}" if options.expires else ""
    return Report(
        command="attest",
        subject=options.files.archive.name,
        summary=f"{options.output}: attested as {options.role} ({', '.join(options.claims)}){until}",
        exit_code=EXIT_CLEAN,
        notes=() if options.expires else ("the attestation never expires; limit it with --expires-in 90d",),
        facts={
            "file": str(options.output),
            "root_cid": opened.documents.root_cid,
            "descriptor_cid": opened.documents.descriptor_cid,
            "key_id": options.signer.public_key.did,
            "role": options.role,
            "claims": [CLAIM_PREFIX + kind for kind in options.claims],
            "expires_at_utc": options.expires,
        },
    )


def make_attestation(documents: BundleDocuments, options: AttestOptions) -> dict[str, Any]:
    """Create a signed attestation of a verified bundle."""
    expires, now = parse_timestamp(options.expires), parse_timestamp(options.now)
    if options.expires is not None and (expires is None or now is None or expires <= now):
        raise PinwardenError("USAGE", f"{options.expires[:80]!a} is not a timestamp in the future with a time zone")
    claims = [_build_claim(kind, documents, options) for kind in options.claims]
    value = attestation.build_unsigned_attestation(
        documents.root_cid, documents.descriptor_cid, documents.descriptor.cid_profile, claims
    )
    document = add_signature(value, attestation.ATTESTATION_SIGNED_FIELDS, options.signer)
    attestation.attestation_from_json(document)  # raises if the signed attestation is not valid
    return document


def _build_claim(kind: str, documents: BundleDocuments, options: AttestOptions) -> Claim:
    return Claim(
        type=CLAIM_PREFIX + kind,
        issued_at_utc=options.now,
        expires_at_utc=options.expires,
        issuer_key_id=options.signer.public_key.did,
        issuer_role=options.role,
        payload={
            **options.payload,
            "kind": kind,
            "verified_root_cid": documents.root_cid,
            "verified_descriptor_cid": documents.descriptor_cid,
        },
    )


SIGNED_FIELDS = {
    POINTER_SCHEMA: POINTER_SIGNED_FIELDS,
    attestation.ATTESTATION_SCHEMA: attestation.ATTESTATION_SIGNED_FIELDS,
    log_documents.LOG_EVENT_SCHEMA: log_documents.LOG_EVENT_SIGNED_FIELDS,
    log_documents.CHECKPOINT_SCHEMA: log_documents.CHECKPOINT_SIGNED_FIELDS,
}
_PARSERS = {
    POINTER_SCHEMA: pointers_from_json,
    attestation.ATTESTATION_SCHEMA: attestation.attestation_from_json,
    log_documents.LOG_EVENT_SCHEMA: log_documents.log_event_from_json,
    log_documents.CHECKPOINT_SCHEMA: log_documents.checkpoint_from_json,
}


def sign_file(path: Path, signer: Signer, output: Path) -> Report:
    """Run ``pinwarden sign``, which adds a signature to a document. The document must be valid for its schema."""
    document = read_json(read_file(path, DOCUMENT_LIMITS.max_bytes))
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if schema not in SIGNED_FIELDS:
        raise PinwardenError(
            "DOCUMENT_INVALID",
            f"{path.name} is not a document that can be signed; supported schemas: {', '.join(SIGNED_FIELDS)}",
            data={"path": "schema_version"},
        )
    signed = add_signature(document, SIGNED_FIELDS[schema], signer)
    _PARSERS[schema](signed)
    write_atomically(output, encode_document(signed))
    return Report(
        command="sign",
        subject=path.name,
        summary=f"{output} is signed by {signer.public_key.did}",
        exit_code=EXIT_CLEAN,
        facts={
            "file": str(output),
            "schema_version": schema,
            "key_id": signer.public_key.did,
            "signed_fields": list(SIGNED_FIELDS[schema]),
            "signatures": len(signed["signatures"]),
        },
    )
