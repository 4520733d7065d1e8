"""``pinwarden witness cosign``: cosign a registry's checkpoint once."""

from __future__ import annotations

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.signed_note import Checkpoint, Note
from pinwarden.core.tlog import TileNodes, prove_consistency, tile_path
from pinwarden.registry import names
from pinwarden.registry.registry_client import HttpRegistry, RegistryReader
from pinwarden.registry.witness import Witness, WitnessResponse, build_request


def cosign_once(witness: Witness, files: RegistryReader, *, submit: bool) -> Report:
    """Cosign the current checkpoint of a registry, and return the report of ``pinwarden witness cosign``.

    1. Download the checkpoint.
    2. Build the proof that it extends the checkpoint which the witness cosigned last, from the log's tiles.
    3. Verify and sign it as the witness's server does.
    4. Send the cosignature to the registry.
    """
    note = Note.parse(files.get(names.CHECKPOINT))
    checkpoint = Checkpoint.parse(note.text)
    old = witness.load_size(checkpoint.origin)
    if old > checkpoint.size:
        raise PinwardenError(
            "LOG_ROLLBACK", f"the log had {old} entries and now has {checkpoint.size}", data={"shown": note.text}
        )

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{names.LOG}/{tile_path(level, index, width)}")

    nodes = TileNodes(checkpoint.size, fetch)
    answer = witness.add_checkpoint(build_request(old, prove_consistency(old, checkpoint.size, nodes.read), note))
    if answer.status != 200:
        raise _build_refusal(answer, note)
    cosigned = bytes(note) + answer.body.encode()
    if submit:
        if not isinstance(files, HttpRegistry):
            raise PinwardenError("USAGE", "--submit needs the address of a registry, not a folder")
        files.send("POST", "api/cosignatures", cosigned, "text/plain; charset=utf-8")
    return Report(
        command="witness cosign",
        subject=checkpoint.origin,
        summary=f"{witness.key.name} cosigned the log of {checkpoint.size} entries, {old} of them for the second time",
        exit_code=EXIT_CLEAN,
        facts={
            "log_id": checkpoint.origin,
            "witness": str(witness.key),
            "previous_size": old,
            "size": checkpoint.size,
            "cosignature": answer.body,
            "submitted": submit,
        },
    )


def _build_refusal(answer: WitnessResponse, note: Note) -> PinwardenError:
    if answer.status == 404:
        return PinwardenError("TRUST_UNKNOWN", "the log is not among those that the witness watches (--log)")
    if answer.status == 403:
        return PinwardenError("SIGNATURE_INVALID", "no known key of the log signed the checkpoint")
    return PinwardenError(
        "LOG_PROOF_INVALID",
        "the log shows another history than the one that the witness cosigned before",
        data={"shown": note.text},
    )
