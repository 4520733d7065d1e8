"""Proof files (C2SP tlog-proof): an entry's index, its path to the root, and the checkpoint that signs the root."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.note import Checkpoint, Note
from pinwarden.core.record import Record
from pinwarden.core.tlog import HASH_SIZE, leaf_hash, verify_inclusion

HEADER = "c2sp.org/tlog-proof@v1"
_MAX_PATH = 63
_MAX_PROOF = 1 << 20


class TlogProof(Record):
    """One proof file."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: Note
    extra: bytes | None = None

    @classmethod
    def parse(cls, data: bytes) -> TlogProof:
        """Read a proof file. Nothing in it may be believed before the checkpoint is verified, and then `proves`."""
        if len(data) > _MAX_PROOF:
            _invalid("the proof is too large")
        head, mark, note = data.partition(b"\n\n")
        try:
            lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError as err:
            raise PinwardenError("NOTE_INVALID", "the proof is not text") from err
        if not mark or lines.pop(0) != HEADER:
            _invalid(f"the proof does not begin with {HEADER}")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = _decode(lines.pop(0)[6:])
        if not lines or not lines[0].startswith("index "):
            _invalid("the proof names no index")
        index = _number(lines.pop(0)[6:])
        if len(lines) > _MAX_PATH:
            _invalid("the path of the proof is too long")
        path = tuple(_decode(line) for line in lines)
        if any(len(each) != HASH_SIZE for each in path):
            _invalid("a hash of the proof does not have 32 bytes")
        return cls(index=index, path=path, checkpoint=Note.parse(note), extra=extra)

    def __bytes__(self) -> bytes:
        lines = [HEADER, *([f"extra {b64encode(self.extra).decode()}"] if self.extra is not None else [])]
        lines += [f"index {self.index}", *(b64encode(each).decode() for each in self.path)]
        return "\n".join(lines).encode() + b"\n\n" + bytes(self.checkpoint)

    def proves(self, entry: bytes) -> Checkpoint:
        """The checkpoint, if the entry is in the log that it names. Its signatures are for the caller to check."""
        checkpoint = Checkpoint.parse(self.checkpoint.text)
        verify_inclusion(leaf_hash(entry), self.index, checkpoint.size, checkpoint.root, self.path)
        return checkpoint


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or (text != "0" and text[0] == "0") or len(text) > 19:
        _invalid("the index of the proof is not a plain decimal number")
    return int(text)


def _decode(text: str) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError) as err:
        raise PinwardenError("NOTE_INVALID", "a line of the proof is not base64") from err
    if b64encode(raw).decode() != text:
        _invalid("a line of the proof is not base64")
    return raw


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("NOTE_INVALID", why)
