"""Witnesses bring their cosignatures: lines under the checkpoint that they have seen."""

from __future__ import annotations

from pinwarden.core.errors import PinwardenError
from pinwarden.core.signed_note import Note, WitnessKey, verify_cosignatures
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import pointer_log


def take_cosignatures(registry: Registry, data: bytes) -> int:
    """Keep the lines of known witnesses under the present head; how many there were.

    What is sent is the whole checkpoint with the witness's line under it, as a note.
    """
    witnesses = [WitnessKey.parse(each) for each in registry.witnesses]
    note = Note.parse(data)
    with registry.database.transaction(exclusive=pointer_log.ALONE) as step:
        head = pointer_log.head_of(step)
        if head is None or Note.parse(head.note).text != note.text:
            raise PinwardenError("REQUEST_STALE", "the log has another head by now")
        cosigned = verify_cosignatures(note, witnesses)
        if not cosigned:
            raise PinwardenError("SIGNATURE_INVALID", "no witness that is known here signed the checkpoint")
        names = {(each.witness.name, each.witness.key_id) for each in cosigned}
        for line in note.signatures:
            if (line.name, line.key_id) in names:
                pointer_log.keep_cosignature(step, head.size, line.name, line.line())
    return len(cosigned)
