"""A witness of transparency logs (C2SP tlog-witness): it cosigns a checkpoint if the log only grew since the last one.

The witness keeps the last checkpoint of each log that it cosigned, and changes it under a lock, so that it never
cosigns two histories.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import Signer
from pinwarden.core.record import Record
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey, NoteSignature, WitnessKey, cosign
from pinwarden.core.tlog import EMPTY_ROOT, HASH_SIZE, verify_consistency
from pinwarden.system.files import hold_write_lock, read_file, write_atomically

MAX_REQUEST_BYTES = 64 * 1024
SIZE_MEDIA_TYPE = "text/x.tlog.size"
_MAX_PROOF = 63
_LOCK_SECONDS = 30.0


class WitnessResponse(Record):
    """The HTTP response to a request to cosign."""

    status: int
    body: str
    media_type: str = "text/plain; charset=utf-8"


class Witness:
    """Cosigns the checkpoints of known logs, with one key."""

    def __init__(
        self, name: str, signer: Signer, logs: Sequence[NoteKey], folder: Path, now: Callable[[], int]
    ) -> None:
        self.key = WitnessKey.parse(str(WitnessKey(name=name, key=signer.public_key)))
        self._signer, self._logs, self._folder, self._now = signer, tuple(logs), folder, now
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{folder} cannot be created: {err.strerror or err}") from err

    def add_checkpoint(self, body: bytes) -> WitnessResponse:
        """Answer ``POST /add-checkpoint``.

        1. Parse the request: the old size, a consistency proof and a checkpoint.
        2. Check that the log is known, and that its key signed the checkpoint.
        3. Under the lock: check that the old size is that of the last cosigned checkpoint, and verify the proof.
        4. Save the checkpoint, and then sign it.
        """
        try:
            old_size, proof, note = _parse_request(body)
            checkpoint = Checkpoint.parse(note.text)
        except PinwardenError as err:
            return WitnessResponse(status=400, body=f"{err.message}\n")
        keys = [log for log in self._logs if log.name == checkpoint.origin]
        if not keys:
            return WitnessResponse(status=404, body="the log is not known to this witness\n")
        try:
            note.verify(keys)
        except PinwardenError:
            return WitnessResponse(status=403, body="no known key of the log signed the checkpoint\n")
        if old_size > checkpoint.size:
            return WitnessResponse(status=400, body="the old size is larger than the checkpoint\n")
        path = self._find_state(checkpoint.origin)
        with hold_write_lock(path, _LOCK_SECONDS):
            last = self._load(path)
            if old_size != last.size or (checkpoint.size == last.size and checkpoint.root != last.root):
                return WitnessResponse(status=409, body=f"{last.size}\n", media_type=SIZE_MEDIA_TYPE)
            try:
                if last.size:
                    verify_consistency(last.size, checkpoint.size, last.root, checkpoint.root, proof)
                elif proof or (checkpoint.size == 0 and checkpoint.root != EMPTY_ROOT):
                    return WitnessResponse(status=422, body="the first checkpoint has no proof\n")
            except PinwardenError as err:
                return WitnessResponse(status=422, body=f"{err.message}\n")
            write_atomically(path, bytes(note))
        return WitnessResponse(status=200, body=self._sign(note).line())

    def load_size(self, origin: str) -> int:
        """Return the size of the last checkpoint of a log that this witness cosigned; 0 for none."""
        return self._load(self._find_state(origin)).size

    def _sign(self, note: Note) -> NoteSignature:
        return cosign(note, self.key.name, self._signer, self._now())

    def _find_state(self, origin: str) -> Path:
        return self._folder / f"{sha256(origin.encode()).hexdigest()[:32]}.checkpoint"

    @staticmethod
    def _load(path: Path) -> Checkpoint:
        """Load the last checkpoint. A damaged file is an error: starting over could cosign another history."""
        if not path.exists():
            return Checkpoint(origin="", size=0, root=EMPTY_ROOT)
        try:
            return Checkpoint.parse(Note.parse(read_file(path, MAX_REQUEST_BYTES)).text)
        except PinwardenError as err:
            raise PinwardenError("LOG_STATE_CORRUPT", f"{path} is damaged: {err.message}") from err


def build_request(old_size: int, proof: Sequence[bytes], note: Note) -> bytes:
    """Return the body of ``POST /add-checkpoint``."""
    lines = [f"old {old_size}", *(b64encode(item).decode() for item in proof)]
    return "".join(f"{line}\n" for line in lines).encode() + b"\n" + bytes(note)


def _parse_request(body: bytes) -> tuple[int, list[bytes], Note]:
    head, mark, note = body.partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as err:
        raise PinwardenError("NOTE_INVALID", "the request is not text") from err
    word, _, size = lines[0].partition(" ")
    if not mark or word != "old" or not size.isdecimal() or len(size) > 19 or (size != "0" and size[0] == "0"):
        raise PinwardenError("NOTE_INVALID", "the request does not begin with the old size")
    if len(lines) - 1 > _MAX_PROOF:
        raise PinwardenError("NOTE_INVALID", "the consistency proof is too long")
    return int(size), [_decode_hash(line) for line in lines[1:]], Note.parse(note)


def _decode_hash(line: str) -> bytes:
    try:
        value = b64decode(line, validate=True)
    except (BinasciiError, ValueError) as err:
        raise PinwardenError("NOTE_INVALID", "a line of the proof is not base64") from err
    if len(value) != HASH_SIZE:
        raise PinwardenError("NOTE_INVALID", "a hash of the proof does not have 32 bytes")
    return value
