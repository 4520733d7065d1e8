"""Signed notes and checkpoints (C2SP signed-note, tlog-checkpoint), read and written byte for byte."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterable
from hashlib import sha256
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record
from pinwarden.core.tlog import HASH_SIZE

_ED25519 = b"\x01"
_MAX_NOTE = 1 << 20  # sixteen post-quantum signatures stay below 100 kB
_MAX_SIGNATURES = 64
_MAX_TREE_SIZE = 2**63 - 1


class NoteKey(Record):
    """A key and the name it signs notes under."""

    name: str
    key: PublicKey

    def __post_init__(self) -> None:
        if not self.name or "+" in self.name or any(c.isspace() or c < " " for c in self.name):
            _invalid("a key name is not empty and holds neither spaces nor +")

    @classmethod
    def parse(cls, vkey: str) -> NoteKey:
        """Read ``name+hex(id)+base64(type || key)``."""
        name, _, rest = vkey.partition("+")
        key_id, _, encoded = rest.partition("+")
        material = _decode(encoded)
        if material[:1] != _ED25519:
            _invalid("only Ed25519 verifier keys are understood")
        found = cls(name=name, key=PublicKey(material[1:]))
        if found.key_id.hex() != key_id:
            _invalid("the verifier key's id does not belong to its name and key")
        return found

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell keys of one name apart; an identifier, not a proof."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.key.raw).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(_ED25519 + self.key.raw).decode()}"


class NoteSignature(Record):
    """One signature line. Unknown keys are kept: others may know them."""

    name: str
    key_id: bytes
    signature: bytes

    def line(self) -> str:
        """The line as it stands in a note."""
        return f"\u2014 {self.name} {b64encode(self.key_id + self.signature).decode()}\n"


class Note(Record):
    """Text and the signatures under it. Nothing in it may be believed before ``verified_by``."""

    text: str
    signatures: tuple[NoteSignature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Note:
        """Split a note into text and signatures."""
        if len(data) > _MAX_NOTE:
            _invalid("the note is too large")
        try:
            whole = data.decode("utf-8", "strict")
        except UnicodeDecodeError as err:
            raise PinwardenError("NOTE_INVALID", "the note is not UTF-8") from err
        if any(c < " " and c != "\n" for c in whole):
            _invalid("the note holds control characters")
        head, mark, tail = whole.rpartition("\n\n")
        if not mark or not tail.endswith("\n"):
            _invalid("the note has no signatures after an empty line")
        lines = tail[:-1].split("\n")
        if len(lines) > _MAX_SIGNATURES:
            _invalid("the note has too many signatures")
        return cls(text=head + "\n", signatures=tuple(_signature(line) for line in lines))

    def verified_by(self, keys: Iterable[NoteKey]) -> tuple[NoteKey, ...]:
        """The known keys that signed the text.

        Lines of unknown keys are passed over. A line of a known key that does not verify spoils the whole note,
        and so does having no known signer.
        """
        known = {(key.name, key.key_id): key for key in keys}
        signers: list[NoteKey] = []
        for line in self.signatures:
            key = known.get((line.name, line.key_id))
            if key is None:
                continue
            if not key.key.verifies(self.text.encode(), line.signature):
                raise PinwardenError("SIGNATURE_INVALID", f"the signature of {key.name} on the note does not verify")
            if key not in signers:
                signers.append(key)
        if not signers:
            raise PinwardenError("SIGNATURE_INVALID", "no known key signed the note")
        return tuple(signers)

    def signed(self, name: str, key: Signer) -> Note:
        """The note with one more signature."""
        holder = NoteKey(name=name, key=key.public_key)
        line = NoteSignature(name=name, key_id=holder.key_id, signature=key.sign(self.text.encode()))
        return Note(text=self.text, signatures=(*self.signatures, line))

    def __bytes__(self) -> bytes:
        return (self.text + "\n" + "".join(line.line() for line in self.signatures)).encode()


class Checkpoint(Record):
    """The head of a log: whose log, how many entries, which root."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the text of a checkpoint note."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] != "" or "" in lines[:-1]:
            _invalid("a checkpoint is three or more lines, none empty")
        origin, size, root = lines[:3]
        if not (size.isascii() and size.isdigit()) or (size != "0" and size[0] == "0") or len(size) > 19:
            _invalid("the tree size of a checkpoint is a plain decimal number")
        if int(size) > _MAX_TREE_SIZE:
            _invalid("the tree size of a checkpoint is too large")
        raw = _decode(root)
        if len(raw) != HASH_SIZE:
            _invalid("the root of a checkpoint has 32 bytes")
        return cls(origin=origin, size=int(size), root=raw, extensions=tuple(lines[3:-1]))

    def note(self) -> Note:
        """The checkpoint as a note that is yet to be signed."""
        lines = (self.origin, str(self.size), b64encode(self.root).decode(), *self.extensions)
        if any(not line or "\n" in line for line in lines):
            _invalid("a line of a checkpoint is not empty and holds no newline")
        return Note(text="".join(line + "\n" for line in lines), signatures=())


def _signature(line: str) -> NoteSignature:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "\u2014" or not parts[1] or "+" in parts[1]:
        _invalid("a signature line of the note is malformed")
    raw = _decode(parts[2])
    if len(raw) < 5:
        _invalid("a signature of the note is too short")
    return NoteSignature(name=parts[1], key_id=raw[:4], signature=raw[4:])


def _decode(text: str) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError) as err:
        raise PinwardenError("NOTE_INVALID", "a part of the note is not base64") from err
    if b64encode(raw).decode() != text:
        _invalid("a part of the note is not base64")
    return raw


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("NOTE_INVALID", why)
