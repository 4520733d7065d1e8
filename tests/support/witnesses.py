"""A witness of a transparency log, as another operator runs one."""

from __future__ import annotations

from pinwarden.core.keys import PrivateKey
from pinwarden.core.signed_note import Note, NoteSignature, WitnessKey


def cosign(note: Note, name: str, key: PrivateKey, time: int) -> NoteSignature:
    """The witness's signature line for a checkpoint (C2SP tlog-cosignature v1)."""
    holder = WitnessKey(name=name, key=key.public_key)
    message = f"cosignature/v1\ntime {time}\n{note.text}".encode()
    return NoteSignature(name=name, key_id=holder.key_id, signature=time.to_bytes(8, "big") + key.sign(message))
