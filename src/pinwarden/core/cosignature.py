"""Cosignatures of witnesses (C2SP tlog-cosignature, Ed25519): somebody else saw this head of the log, at that time.

A witness signs a checkpoint only if it follows from the one it signed before. Whoever demands a witness's signature
therefore sees the same log as the witness does.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterable
from hashlib import sha256
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.note import Note
from pinwarden.core.record import Record

_COSIGNATURE_V1 = b"\x04"
_MAX_TIME = 2**63 - 1


class WitnessKey(Record):
    """A witness's key, and the name it signs under."""

    name: str
    key: PublicKey

    @classmethod
    def parse(cls, vkey: str) -> WitnessKey:
        """Read ``name+hex(id)+base64(0x04 || key)``."""
        name, _, rest = vkey.partition("+")
        key_id, _, encoded = rest.partition("+")
        try:
            material = b64decode(encoded, validate=True)
        except (BinasciiError, ValueError) as err:
            raise PinwardenError("NOTE_INVALID", "the witness's key is not base64") from err
        if not name or any(c.isspace() or c < " " for c in name) or material[:1] != _COSIGNATURE_V1:
            _invalid("not the verifier key of a witness (Ed25519 cosignature)")
        found = cls(name=name, key=PublicKey(material[1:]))
        if found.key_id.hex() != key_id:
            _invalid("the witness key's id does not belong to its name and key")
        return found

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell keys of one name apart."""
        return sha256(self.name.encode() + b"\n" + _COSIGNATURE_V1 + self.key.raw).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(_COSIGNATURE_V1 + self.key.raw).decode()}"


class Cosigned(Record):
    """A witness that signed, and when."""

    witness: WitnessKey
    time: int
    """Seconds since 1970."""


def cosigned_by(note: Note, witnesses: Iterable[WitnessKey]) -> tuple[Cosigned, ...]:
    """The known witnesses that signed a checkpoint. A line of a known one that does not verify spoils the note."""
    known = {(each.name, each.key_id): each for each in witnesses}
    found: dict[WitnessKey, Cosigned] = {}
    for line in note.signatures:
        witness = known.get((line.name, line.key_id))
        if witness is None:
            continue
        time = int.from_bytes(line.signature[:8], "big")
        good = len(line.signature) == 72 and time <= _MAX_TIME
        if not good or not witness.key.verifies(_message(note, time), line.signature[8:]):
            raise PinwardenError("SIGNATURE_INVALID", f"the cosignature of {witness.name} does not verify")
        found.setdefault(witness, Cosigned(witness=witness, time=time))
    return tuple(found.values())


def _message(note: Note, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{note.text}".encode()


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("NOTE_INVALID", why)
