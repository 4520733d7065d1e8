"""Signed notes, checkpoints, witness cosignatures and log proofs, in the exact bytes of the C2SP specifications.

A note is text with signatures (signed-note). A checkpoint is a note with the size and root of a log (tlog-checkpoint).
A witness cosigns a checkpoint only if it is consistent with the one it signed before (tlog-cosignature), so a client
that requires a witness sees the same log as the witness. A proof file has an entry's index, its path to the root and
the checkpoint (tlog-proof).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterable
from hashlib import sha256
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record
from pinwarden.core.tlog import HASH_SIZE, hash_leaf, verify_inclusion

_ED25519 = b"\x01"
_MAX_NOTE = 1 << 20  # sixteen post-quantum signatures stay below 100 kB
_MAX_SIGNATURES = 64
_MAX_TREE_SIZE = 2**63 - 1


class NoteKey(Record):
    """A key, and the name under which it signs notes."""

    name: str
    key: PublicKey

    def __post_init__(self) -> None:
        if not self.name or "+" in self.name or any(c.isspace() or c < " " for c in self.name):
            _refuse("the name of a key is empty, or contains spaces or +")

    @classmethod
    def parse(cls, vkey: str) -> NoteKey:
        """Parse a verifier key of the form ``name+hex(id)+base64(type || key)``."""
        name, _, rest = vkey.partition("+")
        key_id, _, encoded = rest.partition("+")
        material = _decode_base64("the verifier key", encoded)
        if material[:1] != _ED25519:
            _refuse("the verifier key is not an Ed25519 key")
        named_key = cls(name=name, key=PublicKey(material[1:]))
        if named_key.key_id.hex() != key_id:
            _refuse("the id of the verifier key does not match its name and key")
        return named_key

    @property
    def key_id(self) -> bytes:
        """Four bytes that distinguish keys of the same name. They do not prove anything."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.key.raw).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(_ED25519 + self.key.raw).decode()}"


class NoteSignature(Record):
    """One signature line of a note. Lines of unknown keys are kept, because other readers may know the keys."""

    name: str
    key_id: bytes
    signature: bytes

    def line(self) -> str:
        """Return the signature line of a note."""
        return f"\u2014 {self.name} {b64encode(self.key_id + self.signature).decode()}\n"


class Note(Record):
    """Text and its signatures. Do not trust the text before calling ``verify``."""

    text: str
    signatures: tuple[NoteSignature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Note:
        """Split a note into text and signatures."""
        if len(data) > _MAX_NOTE:
            _refuse("the note is too large")
        try:
            whole = data.decode("utf-8", "strict")
        except UnicodeDecodeError as err:
            raise PinwardenError("NOTE_INVALID", "the note is not UTF-8") from err
        if any(c < " " and c != "\n" for c in whole):
            _refuse("the note contains control characters")
        head, mark, tail = whole.rpartition("\n\n")
        if not mark or not tail.endswith("\n"):
            _refuse("the note has no signatures after an empty line")
        lines = tail[:-1].split("\n")
        if len(lines) > _MAX_SIGNATURES:
            _refuse("the note has too many signatures")
        return cls(text=head + "\n", signatures=tuple(_parse_signature(line) for line in lines))

    def verify(self, keys: Iterable[NoteKey]) -> tuple[NoteKey, ...]:
        """Return the known keys that signed the text.

        Lines of unknown keys are ignored. Raises SIGNATURE_INVALID if the signature of a known key does not verify, or
        if no known key signed.
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

    def sign(self, name: str, key: Signer) -> Note:
        """Return a copy of the note with one more signature."""
        note_key = NoteKey(name=name, key=key.public_key)
        line = NoteSignature(name=name, key_id=note_key.key_id, signature=key.sign(self.text.encode()))
        return Note(text=self.text, signatures=(*self.signatures, line))

    def __bytes__(self) -> bytes:
        return (self.text + "\n" + "".join(line.line() for line in self.signatures)).encode()


class Checkpoint(Record):
    """The head of a log: its origin, size and root."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the text of a checkpoint note."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] != "" or "" in lines[:-1]:
            _refuse("the checkpoint has fewer than three lines, or an empty one")
        origin, size, root = lines[:3]
        if not (size.isascii() and size.isdigit()) or (size != "0" and size[0] == "0") or len(size) > 19:
            _refuse("the tree size of the checkpoint is not a plain decimal number")
        if int(size) > _MAX_TREE_SIZE:
            _refuse("the tree size of the checkpoint is too large")
        raw = _decode_base64("the root of the checkpoint", root)
        if len(raw) != HASH_SIZE:
            _refuse("the root of the checkpoint does not have 32 bytes")
        return cls(origin=origin, size=int(size), root=raw, extensions=tuple(lines[3:-1]))

    def note(self) -> Note:
        """Return the checkpoint as an unsigned note."""
        lines = (self.origin, str(self.size), b64encode(self.root).decode(), *self.extensions)
        if any(not line or "\n" in line for line in lines):
            _refuse("a line of the checkpoint is empty or contains a newline")
        return Note(text="".join(line + "\n" for line in lines), signatures=())


def _parse_signature(line: str) -> NoteSignature:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "\u2014" or not parts[1] or "+" in parts[1]:
        _refuse("a signature line of the note is malformed")
    raw = _decode_base64("a signature of the note", parts[2])
    if len(raw) < 5:
        _refuse("a signature of the note is too short")
    return NoteSignature(name=parts[1], key_id=raw[:4], signature=raw[4:])


def _decode_base64(subject: str, text: str) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError) as err:
        raise PinwardenError("NOTE_INVALID", f"{subject} is not base64") from err
    if b64encode(raw).decode() != text:
        _refuse(f"{subject} is not base64")
    return raw


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("NOTE_INVALID", why)


HEADER = "c2sp.org/tlog-proof@v1"
_MAX_PATH = 63
_MAX_PROOF = 1 << 20


class TlogProof(Record):
    """A proof that a log contains an entry: the index of the entry, its path to the root, and the checkpoint."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: Note
    extra: bytes | None = None

    @classmethod
    def parse(cls, data: bytes) -> TlogProof:
        """Parse a proof file. Verify the checkpoint first, then call `verify_entry`."""
        if len(data) > _MAX_PROOF:
            _refuse("the proof is too large")
        head, mark, note = data.partition(b"\n\n")
        try:
            lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError as err:
            raise PinwardenError("NOTE_INVALID", "the proof is not text") from err
        if not mark or lines.pop(0) != HEADER:
            _refuse(f"the proof does not begin with {HEADER}")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = _decode_base64("a line of the proof", lines.pop(0)[6:])
        if not lines or not lines[0].startswith("index "):
            _refuse("the proof names no index")
        index = _parse_index(lines.pop(0)[6:])
        if len(lines) > _MAX_PATH:
            _refuse("the path of the proof is too long")
        path = tuple(_decode_base64("a line of the proof", line) for line in lines)
        if any(len(digest) != HASH_SIZE for digest in path):
            _refuse("a hash of the proof does not have 32 bytes")
        return cls(index=index, path=path, checkpoint=Note.parse(note), extra=extra)

    def __bytes__(self) -> bytes:
        lines = [HEADER, *([f"extra {b64encode(self.extra).decode()}"] if self.extra is not None else [])]
        lines += [f"index {self.index}", *(b64encode(digest).decode() for digest in self.path)]
        return "\n".join(lines).encode() + b"\n\n" + bytes(self.checkpoint)

    def verify_entry(self, entry: bytes) -> Checkpoint:
        """Verify that the log contains the entry, and return the checkpoint. The caller verifies its signatures."""
        checkpoint = Checkpoint.parse(self.checkpoint.text)
        verify_inclusion(hash_leaf(entry), self.index, checkpoint.size, checkpoint.root, self.path)
        return checkpoint


def _parse_index(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or (text != "0" and text[0] == "0") or len(text) > 19:
        _refuse("the index of the proof is not a plain decimal number")
    return int(text)


_COSIGNATURE_V1 = b"\x04"
_MAX_TIME = 2**63 - 1


class WitnessKey(Record):
    """The key of a witness, and the name under which the witness signs."""

    name: str
    key: PublicKey

    @classmethod
    def parse(cls, vkey: str) -> WitnessKey:
        """Parse a verifier key of the form ``name+hex(id)+base64(0x04 || key)``."""
        name, _, rest = vkey.partition("+")
        key_id, _, encoded = rest.partition("+")
        try:
            material = b64decode(encoded, validate=True)
        except (BinasciiError, ValueError) as err:
            raise PinwardenError("NOTE_INVALID", "the witness's key is not base64") from err
        if not name or any(c.isspace() or c < " " for c in name) or material[:1] != _COSIGNATURE_V1:
            _refuse("not the verifier key of a witness (Ed25519 cosignature)")
        witness = cls(name=name, key=PublicKey(material[1:]))
        if witness.key_id.hex() != key_id:
            _refuse("the witness key's id does not belong to its name and key")
        return witness

    @property
    def key_id(self) -> bytes:
        """Four bytes that distinguish keys of the same name. They do not prove anything."""
        return sha256(self.name.encode() + b"\n" + _COSIGNATURE_V1 + self.key.raw).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(_COSIGNATURE_V1 + self.key.raw).decode()}"


class Cosignature(Record):
    """A witness that cosigned a checkpoint, and the time of its signature."""

    witness: WitnessKey
    time: int
    """Seconds since 1970."""


def verify_cosignatures(note: Note, witnesses: Iterable[WitnessKey]) -> tuple[Cosignature, ...]:
    """Return the cosignatures of known witnesses. Raises SIGNATURE_INVALID if one of them does not verify."""
    known = {(witness.name, witness.key_id): witness for witness in witnesses}
    cosignatures: dict[WitnessKey, Cosignature] = {}
    for line in note.signatures:
        witness = known.get((line.name, line.key_id))
        if witness is None:
            continue
        time = int.from_bytes(line.signature[:8], "big")
        is_well_formed = len(line.signature) == 72 and time <= _MAX_TIME
        if not is_well_formed or not witness.key.verifies(_build_cosigned_message(note, time), line.signature[8:]):
            raise PinwardenError("SIGNATURE_INVALID", f"the cosignature of {witness.name} does not verify")
        cosignatures.setdefault(witness, Cosignature(witness=witness, time=time))
    return tuple(cosignatures.values())


def cosign(note: Note, name: str, signer: Signer, time: int) -> NoteSignature:
    """Return the cosignature of a witness on a checkpoint (cosignature/v1). ``time`` is in seconds since 1970."""
    key_id = WitnessKey(name=name, key=signer.public_key).key_id
    signature = time.to_bytes(8, "big") + signer.sign(_build_cosigned_message(note, time))
    return NoteSignature(name=name, key_id=key_id, signature=signature)


def _build_cosigned_message(note: Note, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{note.text}".encode()
