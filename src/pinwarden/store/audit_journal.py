"""The file that events go to before they reach the database.

An event is in the file when `Journal.append` returns, so that a killed gateway loses none; after `sync` a power cut
does not lose it either. What the database has taken is cut off again; while the database is away, the file grows.

The file is mapped into memory and has its room before it needs it: an event costs a copy and no system call, and what
is in the map belongs to the system, which keeps it when the process is killed. Room is reserved on the disk, since
writing to a map of a full disk would end the process.

A record is a row of words of eight bytes, in the order of bytes of this machine, which no journal leaves. The first one
tells how long it is and holds a checksum of everything so far, so a file that was damaged or edited while no gateway
held it is told, and not read as if nothing were. What is recorded most, the call of a tool, is three words: nothing has
to be written out while the call waits. The chain that nobody can edit unseen is made when events get their places in
the database. The file is locked by its gateway: one that nobody holds was left behind by a killed process, and whoever
comes next takes it up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from operator import attrgetter
from pathlib import Path
from sys import byteorder
from typing import Any, NamedTuple, NoReturn
from zlib import adler32

from pinwarden.adapters.file_lock import try_lock
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.documents.gateway_event import Fact, encode, parse

_MAGIC = b"pinwarden-journal/3 "
_HEADER = 256  # bytes, filled up with spaces
WORD = 8  # bytes
CALL = 3 * WORD  # bytes of a call: the form with the checksum, the number, the moment
SUM = 0xFFFFFFFF  # what a checksum is kept within
_CALL_BIT = 1 << 63  # in the first word: a call, and its form instead of a length
_LONGEST = 8192  # of an event that is packed; what is longer is written as JSON, which cuts it
STEP = 1 << 17  # bytes of room that are made at once
_MOST = 1 << 20  # of a framed event at all; what claims to be longer is no event

# Texts one after the other, between characters that they hold only if somebody wants to fool us: then JSON is written.
_BETWEEN, _WITHIN = "\x1f", "\x1e"
_TEXTS = (
    *("kind", "server", "client", "session", "call", "method", "item_kind", "item", "observed", "level", "code"),
    *("reason", "policy", "by"),
)
_texts_of = attrgetter(*_TEXTS)


class Noted(NamedTuple):
    """A fact and when it happened, in nanoseconds since 1970. There may be a hundred thousand at once."""

    at: int
    fact: Fact
    """Of a call: its form, of which only the end of ``call`` is missing."""
    number: str = ""
    """The end of ``call``."""


class Batch(Record):
    """Events of one run of one gateway, one after the other."""

    gateway: str
    source: str
    first: int
    """The count of the first of them."""
    events: tuple[Noted, ...]


def pack(at: int, fact: Fact) -> bytes:
    """An event as bytes, within a microsecond or two: this is done while a call waits."""
    if fact.arguments is None:
        text = _BETWEEN.join((*_texts_of(fact), _WITHIN.join(fact.expected)))
        within = max(0, len(fact.expected) - 1)
        if len(text) < _LONGEST and text.count(_BETWEEN) == len(_TEXTS) and text.count(_WITHIN) == within:
            with suppress(UnicodeEncodeError):
                return b"%d %s" % (at, text.encode())
    return b"%d {%s" % (at, encode(fact))


def unpack(data: bytes) -> Noted:
    """Read what `pack` wrote."""
    at, _, rest = data.partition(b" ")
    if rest.startswith(b"{"):
        return Noted(at=int(at), fact=parse(rest[1:]))
    *texts, expected = rest.decode().split(_BETWEEN)
    given: dict[str, Any] = dict(zip(_TEXTS, texts, strict=True))
    return Noted(at=int(at), fact=Fact(expected=tuple(expected.split(_WITHIN)) if expected else (), **given))


class Mark(Record):
    """A place in a journal: so many bytes, so many events, and the checksum of all of them."""

    offset: int
    nth: int
    """The count of the last event before the place."""
    check: int


class Journal:
    """The journal of one run of a gateway. Its caller keeps threads apart."""

    def __init__(self, path: Path, descriptor: int, gateway: str, source: str, start: Mark) -> None:
        self.path = path
        self.gateway = gateway
        self.source = source
        self.start = start
        """Behind the header."""
        self.room = 0
        """Where the map ends."""
        self.map: mmap | None = None
        self.words: Any = ()
        """The same as words of eight bytes."""
        self.forms: list[Fact] = []
        """What numbered events refer to."""
        self._descriptor = descriptor
        self._step = STEP
        self.end = start

    @property
    def end(self) -> Mark:
        """Behind the last event."""
        return Mark(offset=self.size, nth=self.count, check=self.check)

    @end.setter
    def end(self, place: Mark) -> None:
        """Say where the last event ends."""
        self.size, self.count, self.check = place.offset, place.nth, place.check

    @classmethod
    def create(cls, folder: Path, gateway: str, source: str, step: int = STEP) -> Journal:
        """A new file, locked before it has its name, so that nobody takes it for one left behind.

        It gets room in steps of so many bytes.
        """
        path = folder / f"{source}.journal"
        new = path.with_suffix(".new")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            try_lock(descriptor)
            made = cls(path, descriptor, gateway, source, _write_header(descriptor, gateway, source, 0))
            made._step = -(-step // WORD) * WORD
            made._make_room(_HEADER)
            new.rename(path)
        except (OSError, ValueError) as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{path} cannot be written: {err}") from err
        return made

    def append(self, packed: list[bytes]) -> int:
        """Add events, and return the count of the last. Either all of them are in the file, or none."""
        self._write(packed)
        self.count += len(packed)
        return self.count

    def add_form(self, fact: Fact) -> int:
        """Write down what calls have in common, and return the first word of such a call but for its checksum."""
        if len(self.forms) > _MOST:
            raise PinwardenError("AUDIT_UNAVAILABLE", "the journal has too many forms")
        self._write([b"#" + pack(0, fact)])
        self.forms.append(fact)
        return _CALL_BIT | (len(self.forms) - 1) << 32

    def add_call(self, form: int, number: int, at: int) -> None:
        """Add an event of a form, for which there is room: all but its moment and its number are known.

        The word that makes it an event comes last: a killed process leaves it whole or not at all.
        """
        size = self.size
        self.check = check = (self.check + number + at) & SUM
        words, place = self.words, size >> 3
        words[place + 1] = number
        words[place + 2] = at
        words[place] = form | check
        self.size = size + CALL
        self.count += 1

    def _write(self, packed: list[bytes]) -> None:
        running = self.check
        frames: list[bytes] = []
        for data in packed:
            running = (running + adler32(data)) & SUM
            frames += ((len(data) << 32 | running).to_bytes(WORD, byteorder), data, bytes(-len(data) % WORD))
        text = b"".join(frames)
        self.have_room(len(text))
        end = self.size + len(text)
        self.map[self.size : end] = text  # type: ignore[index]
        self.size = end
        self.check = running

    def have_room(self, more: int) -> None:
        """Make sure that so many bytes can be added."""
        if self.size + more > self.room:
            try:
                self._make_room(self.size + more)
            except (OSError, ValueError) as err:
                raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err}") from err

    def _make_room(self, least: int) -> None:
        """Have so many bytes of the file in the map, and some more, all of which the disk has."""
        if self._descriptor < 0:
            raise ValueError("it is closed")
        room = -(-least // self._step) * self._step
        _reserve(self._descriptor, room)
        self._unmap()
        self.map = mmap(self._descriptor, room)
        self.words = memoryview(self.map).cast("Q")
        self.room = room

    def sync(self) -> None:
        """Make sure that what is in the file survives a power cut."""
        try:
            if self.map is not None:
                self.map.flush()
            os.fsync(self._descriptor)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err.strerror or err}") from err

    def read(self, since: Mark, until: Mark, most: int) -> tuple[Batch, Mark]:
        """Some events behind a place, at most so many bytes but at least one event, and the place behind them."""
        length = until.offset - since.offset
        data = _pread(self._descriptor, min(length, max(most, _MOST)), since.offset)
        events, place = _events(data, since, self.path, self.forms, most=most)
        if not events and length:
            _tampered(self.path, since.nth)
        batch = Batch(gateway=self.gateway, source=self.source, first=since.nth + 1, events=tuple(events))
        return batch, place

    def reset(self) -> None:
        """Forget the events, which the database has, and their forms; their count goes on."""
        self.forms = []
        try:
            self._unmap()
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self.start = self.end = _write_header(self._descriptor, self.gateway, self.source, self.count)
            self._make_room(_HEADER)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err.strerror or err}") from err

    def close(self, *, remove: bool) -> None:
        """Let go of the file; without it, if the database has everything."""
        if remove:
            with suppress(OSError):
                self.path.unlink()
        else:
            with suppress(OSError):
                self._unmap()
                os.ftruncate(self._descriptor, self.size)
        # The number may be given to another file: who still writes must not write into that one.
        self._unmap()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _unmap(self) -> None:
        before, self.map, self.room = self.map, None, 0
        if before is not None:
            self.words.release()
            before.close()


@contextmanager
def left_behind(path: Path) -> Iterator[Journal | None]:
    """A journal whose process is gone, with its end found; None if somebody has it, or if nothing is in it.

    The last event of a killed process may be there in part. Nothing came of it, since its writer never got to know
    that it was written, so it is no event.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        yield None
        return
    except OSError as err:
        raise PinwardenError("AUDIT_UNAVAILABLE", f"{path}: {err.strerror or err}") from err
    try:
        yield _opened(path, descriptor) if try_lock(descriptor) else None
    finally:
        os.close(descriptor)


def _opened(path: Path, descriptor: int) -> Journal | None:
    size = os.fstat(descriptor).st_size
    header = _pread(descriptor, _HEADER, 0)
    if len(header) < _HEADER:
        return None  # killed while it made the file, or while it cut it off: the database has everything
    gateway, source, count = _read_header(path, header)
    journal = Journal(path, descriptor, gateway, source, Mark(offset=_HEADER, nth=count, check=adler32(header)))
    place = journal.start
    while place.offset < size:
        data = _pread(descriptor, 4 * _MOST, place.offset)
        before, (_, place) = place, _events(data, place, path, journal.forms)
        if place == before:
            break  # in part, or nothing but zeros: the room that was never used
    journal.end = place
    return journal


def _events(
    data: bytes, place: Mark, path: Path, forms: list[Fact], *, most: int | None = None
) -> tuple[list[Noted], Mark]:
    """The whole events at the start of some bytes, and the place behind them.

    With ``most``: at most so many bytes but at least one event, and the forms among them are known. Without, they are
    put to the others. An event that does not fit its checksum is the last one, written in part, or the file was
    damaged: then more follows.
    """
    words = memoryview(data[: len(data) // WORD * WORD]).cast("Q")
    found: list[Noted] = []
    nth, running, at = place.nth, place.check, 0
    stop = len(words) if most is None else most // WORD
    while at < len(words):
        first = words[at]
        if first & _CALL_BIT:
            size = CALL // WORD
            if at + size > len(words) or (at + size > stop and found):
                break
            form, number, moment = (first ^ _CALL_BIT) >> 32, words[at + 1], words[at + 2]
            running = (running + number + moment) & SUM
            if form >= len(forms) or first & SUM != running:
                _tampered(path, nth)
            found.append(Noted(moment, forms[form], str(number)))
        else:
            length = first >> 32
            size = -(-length // WORD) + 1
            if 0 < length <= _MOST and (at + size > len(words) or (at + size > stop and found)):
                break
            body = data[(at + 1) * WORD : (at + 1) * WORD + length]
            check = (running + adler32(body)) & SUM
            if not 0 < length <= _MOST or check != first & SUM:
                _refuse_unless_torn(data[at * WORD :], length, path, nth)
                break
            running = check
            if not body.startswith(b"#"):
                found.append(unpack(body))
            elif most is None:
                forms.append(unpack(body[1:]).fact)
        at += size
        nth = place.nth + len(found)
    return found, Mark(offset=place.offset + at * WORD, nth=nth, check=running)


def _refuse_unless_torn(data: bytes, length: int, path: Path, nth: int) -> None:
    """Bytes are copied in any order, so the length itself may be missing from what was written in part. What was not
    copied is zero, so a record without a zero was written to its end, by somebody else."""
    sound = 0 < length <= _MOST
    end = WORD + length if sound else WORD + _LONGEST
    if (sound and b"\0" not in data[WORD:end]) or data[end:].strip(b"\0"):
        _tampered(path, nth)


def _write_header(descriptor: int, gateway: str, source: str, count: int) -> Mark:
    text = b"%s%s %d %s" % (_MAGIC, source.encode(), count, gateway.encode("utf-8", "backslashreplace")[:128])
    header = text.ljust(_HEADER - 1) + b"\n"
    os.write(descriptor, header)
    return Mark(offset=_HEADER, nth=count, check=adler32(header))


def _read_header(path: Path, header: bytes) -> tuple[str, str, int]:
    words = header.removeprefix(_MAGIC).split(b" ", 2)
    if not header.startswith(_MAGIC) or len(words) != 3 or not words[1].isdigit():
        raise PinwardenError("AUDIT_TAMPERED", f"{path} is not a journal of the audit log")
    return words[2].decode("utf-8", "replace").rstrip(), words[0].decode("utf-8", "replace"), int(words[1])


def _reserve(descriptor: int, size: int) -> None:
    """Make the file so large, with blocks on the disk behind all of it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    here = os.fstat(descriptor).st_size
    os.lseek(descriptor, here, os.SEEK_SET)
    while here < size:
        here += os.write(descriptor, bytes(min(size - here, STEP)))


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    here = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, length)
    os.lseek(descriptor, here, os.SEEK_SET)
    return data


def _tampered(path: Path, nth: int) -> NoReturn:
    raise PinwardenError(
        "AUDIT_TAMPERED",
        f"{path} is not what a gateway wrote, from event {nth + 1} on",
        hint="Look at who could write to it. Move the file away to go on without the events in it.",
    )
