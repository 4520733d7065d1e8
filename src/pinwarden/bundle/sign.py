"""Adding a signature to a document of a bundle, over the fields that matter for its kind."""

from __future__ import annotations

from pathlib import Path

from pinwarden.bundle import attestation, checkpoint, log_event, pointer
from pinwarden.bundle.shape import LIMITS, read
from pinwarden.bundle.signatures import signed, to_bytes
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import Signer
from pinwarden.core.report import Report
from pinwarden.system.files import read_file, write_atomically

FIELDS = {
    pointer.SCHEMA: pointer.SIGNED_FIELDS,
    attestation.SCHEMA: attestation.SIGNED_FIELDS,
    log_event.SCHEMA: log_event.SIGNED_FIELDS,
    checkpoint.SCHEMA: checkpoint.SIGNED_FIELDS,
}
_READERS = {
    pointer.SCHEMA: pointer.of,
    attestation.SCHEMA: attestation.of,
    log_event.SCHEMA: log_event.of,
    checkpoint.SCHEMA: checkpoint.of,
}


def sign_file(path: Path, signer: Signer, output: Path) -> Report:
    """The report of ``pinwarden sign``. What cannot be read is not signed."""
    document = read(read_file(path, LIMITS.max_bytes))
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if schema not in FIELDS:
        raise PinwardenError(
            "DOCUMENT_INVALID",
            f"{path.name} is none of the documents that are signed: {', '.join(FIELDS)}",
            data={"path": "schema_version"},
        )
    made = signed(document, FIELDS[schema], signer)
    _READERS[schema](made)
    write_atomically(output, to_bytes(made))
    return Report(
        command="sign",
        subject=path.name,
        summary=f"{output} is signed by {signer.public_key.did}",
        exit_code=EXIT_CLEAN,
        facts={
            "file": str(output),
            "schema_version": schema,
            "key_id": signer.public_key.did,
            "signed_fields": list(FIELDS[schema]),
            "signatures": len(made["signatures"]),
        },
    )
