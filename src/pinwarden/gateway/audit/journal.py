"""The file that events go to before they reach the database.

An event is in the file when `Journal.append` returns, so that a killed gateway loses none; after `sync` a power cut
does not lose it either. What the database has taken is cut off again; while the database is away, the file grows.

The file is mapped into memory and has its room before it needs it: an event costs a copy and no system call, and what
is in the map belongs to the system, which keeps it when the process is killed. Room is reserved on the disk, since
writing to a map of a full disk would end the process.

A record is a row of words of eight bytes, in the order of bytes of this machine, which no journal leaves. The first one
tells how long it is and holds a checksum of everything so far, so a file that was damaged or edited while no gateway
held it is told, and not read as if nothing were. What is recorded most, the call of a tool, is three words if the
request id is a number: nothing has to be written out while the call waits. If it is a text, the record is a form, the
moment and the text. The chain that nobody can edit unseen is made when events get their places in
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
from struct import Struct, error
from sys import byteorder
from typing import Any, NamedTuple
from zlib import adler32

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.audit.event import KINDS, AuditEvent, encode_event, parse_event
from pinwarden.system.files import try_lock_file

_MAGIC = b"pinwarden-journal/4 "
_OLDER_MAGIC = b"pinwarden-journal/3 "  # had no calls with a text as request id
_HEADER = 256  # bytes, filled up with spaces
WORD = 8  # bytes
CALL = 3 * WORD  # bytes of a call: the form with the checksum, the number, the moment
SUM = 0xFFFFFFFF  # what a checksum is kept within
_CALL_BIT = 1 << 63  # in the first word: a call, and its form instead of a length
_LONGEST = 8192  # of an event that is packed; what is longer is written as JSON, which cuts it
STEP = 1 << 17  # bytes of room that are made at once
_MOST = 1 << 20  # of a framed event at all; what claims to be longer is no event
_LATEST = 1 << 64  # nanoseconds; the moment of a call is a word
_HIGHEST = 1 << 52  # count of an event; a number of JSON that every reader takes for the same

# Texts one after the other, between characters that they hold only if somebody wants to fool us: then JSON is written.
_BETWEEN, _WITHIN = "\x1f", "\x1e"
_TEXTS = (
    *("kind", "server", "client", "session", "call", "method", "item_kind", "item", "observed", "level", "code"),
    *("reason", "policy", "by"),
)
_texts_of = attrgetter(*_TEXTS)
TEXT_CALL = Struct("=cQQ")
"""What the record of a call begins with whose request id is a text: a mark, the form, the moment."""


class JournalEvent(NamedTuple):
    """A fact and when it happened, in nanoseconds since 1970. There may be a hundred thousand at once."""

    at: int
    fact: AuditEvent
    """Of a call: its form, of which only the end of ``call`` is missing."""
    number: str = ""
    """The end of ``call``: the request id."""


class Batch(Record):
    """Events of one run of one gateway, one after the other."""

    gateway: str
    source: str
    first: int
    """The count of the first of them."""
    events: tuple[JournalEvent, ...]


def pack(at: int, fact: AuditEvent) -> bytes:
    """An event as bytes, within a microsecond or two: this is done while a call waits."""
    if fact.arguments is None:
        text = _BETWEEN.join((*_texts_of(fact), _WITHIN.join(fact.expected)))
        within = max(0, len(fact.expected) - 1)
        if len(text) < _LONGEST and text.count(_BETWEEN) == len(_TEXTS) and text.count(_WITHIN) == within:
            with suppress(UnicodeEncodeError):
                return b"%d %s" % (at, text.encode())
    return b"%d {%s" % (at, encode_event(fact))


def unpack(data: bytes) -> JournalEvent:
    """Read what `pack` wrote."""
    at, _, rest = data.partition(b" ")
    if rest.startswith(b"{"):
        return JournalEvent(at=int(at), fact=parse_event(rest[1:]))
    *texts, expected = rest.decode().split(_BETWEEN)
    given: dict[str, Any] = dict(zip(_TEXTS, texts, strict=True))
    return JournalEvent(
        at=int(at), fact=AuditEvent(expected=tuple(expected.split(_WITHIN)) if expected else (), **given)
    )


def text_call(form: int, request_id: str, at: int) -> bytes:
    """The record of a call whose request id is a text; ``form`` is what `Journal.add_form` returned."""
    return TEXT_CALL.pack(b"@", form, at) + request_id.encode()


def _text_call(body: bytes, forms: list[AuditEvent]) -> JournalEvent | None:
    """Read what `text_call` wrote; None if no gateway wrote it."""
    try:
        _, form, at = TEXT_CALL.unpack_from(body)
        return JournalEvent(at, forms[(form ^ _CALL_BIT) >> 32], body[TEXT_CALL.size :].decode())
    except (error, ValueError, IndexError):
        return None


class JournalPosition(Record):
    """A place in a journal: so many bytes, so many events, and the checksum of all of them."""

    offset: int
    nth: int
    """The count of the last event before the place."""
    check: int


class Journal:
    """The journal of one run of a gateway. Its caller keeps threads apart."""

    def __init__(self, path: Path, descriptor: int, gateway: str, source: str, start: JournalPosition) -> None:
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
        self.forms: list[AuditEvent] = []
        """What numbered events refer to."""
        self.damaged = False
        """Behind the end is something that no gateway wrote."""
        self._header = b""
        """One that is not in the file yet."""
        self._descriptor = descriptor
        self._step = STEP
        self.end = start

    @property
    def end(self) -> JournalPosition:
        """Behind the last event."""
        return JournalPosition(offset=self.size, nth=self.count, check=self.check)

    @end.setter
    def end(self, place: JournalPosition) -> None:
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
            try_lock_file(descriptor)
            header = _header(gateway, source, 0)
            start = JournalPosition(offset=_HEADER, nth=0, check=adler32(header))
            made = cls(path, descriptor, gateway, source, start)
            made._header = header
            made._step = -(-step // WORD) * WORD
            made._make_room(_HEADER)
            new.rename(path)
        except (OSError, ValueError) as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{path} cannot be written: {err}") from err
        return made

    def append(self, packed: list[bytes]) -> int:
        """Add events, and return the count of the last. If there is no room for all of them, none is added.

        Of several events a killed process leaves the first ones.
        """
        self._write(packed)
        self.count += len(packed)
        return self.count

    def add_form(self, fact: AuditEvent) -> int:
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

    def add_text_call(self, data: bytes) -> None:
        """Add what `text_call` made, for which there is room. As in `add_call`, the first word comes last."""
        size = self.size
        start, end = size + WORD, size + WORD + len(data)
        self.map[start:end] = data  # type: ignore[index]
        self.check = check = (self.check + adler32(data)) & SUM
        self.words[size >> 3] = len(data) << 32 | check
        self.size = end + WORD - 1 & -WORD
        self.count += 1

    def _write(self, packed: list[bytes]) -> None:
        self.have_room(sum(WORD + len(data) + -len(data) % WORD for data in packed))
        for data in packed:
            self._copy(data)

    def _copy(self, data: bytes) -> None:
        """One record, in an order in which a kill at any moment leaves what can be told from damage.

        A copy stores its bytes in any order. So before it the first word says how long the record will be, with a
        checksum that is none, and after it the right one: until then the record is known to be one in part.
        """
        place, length = self.size, len(data)
        self.check = check = (self.check + adler32(data)) & SUM
        self.words[place >> 3] = length << 32 | check ^ SUM
        self.map[place + WORD : place + WORD + length] = data  # type: ignore[index]
        self.words[place >> 3] = length << 32 | check
        self.size = place + WORD + length + -length % WORD

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
        if self._header:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, self._header)
            self._header = b""
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

    def read(self, since: JournalPosition, until: JournalPosition, most: int) -> tuple[Batch, JournalPosition]:
        """Some events behind a place, at most so many bytes but at least one event, and the place behind them."""
        length = until.offset - since.offset
        data = _pread(self._descriptor, min(length, max(most, _MOST)), since.offset)
        events, place = _events(data, since, self.forms, most=most)
        if not events and length:
            raise self.tampered(since.nth)
        batch = Batch(gateway=self.gateway, source=self.source, first=since.nth + 1, events=tuple(events))
        return batch, place

    def reset(self) -> None:
        """Forget the events, which the database has, and their forms; their count goes on.

        Either nothing is forgotten, or everything is. What may fail after that, to write the new header and to make
        room, is left to whoever adds the next event, and told to him.
        """
        try:
            self._unmap()
            os.ftruncate(self._descriptor, _HEADER)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err.strerror or err}") from err
        self.forms = []
        self._header = _header(self.gateway, self.source, self.count)
        self.start = self.end = JournalPosition(offset=_HEADER, nth=self.count, check=adler32(self._header))
        with suppress(OSError, ValueError):
            self._make_room(_HEADER)

    def tampered(self, nth: int) -> PinwardenError:
        """What is told of a file whose events are not those of a gateway behind this one."""
        return PinwardenError(
            "AUDIT_TAMPERED",
            f"{self.path} is not what a gateway wrote, from event {nth + 1} on",
            hint="Look at who could write to it. Move the file away to go on without the events in it.",
        )

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
        yield _opened(path, descriptor) if try_lock_file(descriptor) else None
    finally:
        os.close(descriptor)


def _opened(path: Path, descriptor: int) -> Journal | None:
    size = os.fstat(descriptor).st_size
    header = _pread(descriptor, _HEADER, 0)
    if len(header) < _HEADER:
        return None  # killed while it made the file, or while it cut it off: the database has everything
    gateway, source, count = _read_header(path, header)
    journal = Journal(
        path, descriptor, gateway, source, JournalPosition(offset=_HEADER, nth=count, check=adler32(header))
    )
    place = journal.start
    while place.offset < size:
        before, (_, place) = place, _events(_pread(descriptor, 4 * _MOST, place.offset), place, journal.forms)
        if place == before:
            journal.damaged = not _is_torn(descriptor, place, size)
            break
    journal.end = place
    return journal


def _events(
    data: bytes, place: JournalPosition, forms: list[AuditEvent], *, most: int | None = None
) -> tuple[list[JournalEvent], JournalPosition]:
    """The whole events at the start of some bytes, and the place behind them.

    With ``most``: at most so many bytes but at least one event, and the forms among them are known. Without, they are
    put to the others. What does not fit its checksum, or cannot be read, is no event, and neither is what follows it.
    """
    words = memoryview(data[: len(data) // WORD * WORD]).cast("Q")
    found: list[JournalEvent] = []
    running, at = place.check, 0
    stop = len(words) if most is None else most // WORD
    while at < len(words):
        first = words[at]
        length = 2 * WORD if first & _CALL_BIT else first >> 32
        size = -(-length // WORD) + 1
        if not 0 < length <= _MOST or at + size > len(words) or (at + size > stop and found):
            break
        if first & _CALL_BIT:
            form, number, moment = (first ^ _CALL_BIT) >> 32, words[at + 1], words[at + 2]
            check = (running + number + moment) & SUM
            read = JournalEvent(moment, forms[form], str(number)) if form < len(forms) else None
        else:
            body = data[(at + 1) * WORD : (at + 1) * WORD + length]
            check = (running + adler32(body)) & SUM
            read = None
            if check == first & SUM:
                read = _text_call(body, forms) if body.startswith(b"@") else _read(body.removeprefix(b"#"))
        if read is None or check != first & SUM:
            break
        running = check
        if first & _CALL_BIT or not body.startswith(b"#"):
            found.append(read)
        elif most is None:
            forms.append(read.fact)
        at += size
    return found, JournalPosition(offset=place.offset + at * WORD, nth=place.nth + len(found), check=running)


def _read(body: bytes) -> JournalEvent | None:
    """An event; None if no gateway of this release wrote it, whatever its checksum says."""
    try:
        noted = unpack(body)
    except (PinwardenError, ValueError):
        return None
    return noted if noted.fact.kind in KINDS and 0 <= noted.at < _LATEST else None


def _is_torn(descriptor: int, place: JournalPosition, size: int) -> bool:
    """Whether what follows the last whole record is one that a killed process wrote in part, or nothing at all.

    What was not copied is zero. Of a record without its first word the length is not known; one without a zero was
    copied to its end, and then only its checksum may be missing.
    """
    data = _pread(descriptor, WORD + _MOST, place.offset)
    first = int.from_bytes(data[:WORD], byteorder)
    length = first >> 32
    if first & _CALL_BIT:
        return len(data) < CALL
    sound = 0 < length <= _MOST
    end = WORD + (length if sound else _LONGEST)
    body = data[WORD:end]
    if sound and body.startswith(b"@"):
        return len(body) < length
    unfinished = first & SUM == (place.check + adler32(body)) & SUM ^ SUM
    if sound and len(body) == length and b"\0" not in body and not unfinished:
        return False
    behind = place.offset + end
    while behind < size:
        rest = _pread(descriptor, _MOST, behind)
        if not rest or rest.strip(b"\0"):
            return not rest
        behind += len(rest)
    return True


def _header(gateway: str, source: str, count: int) -> bytes:
    text = b"%s%s %d %s" % (_MAGIC, source.encode(), count, gateway.encode("utf-8", "backslashreplace")[:128])
    return text.ljust(_HEADER - 1) + b"\n"


def _read_header(path: Path, header: bytes) -> tuple[str, str, int]:
    words = header.removeprefix(_MAGIC).removeprefix(_OLDER_MAGIC).split(b" ", 2)
    is_journal = header.startswith((_MAGIC, _OLDER_MAGIC))
    if is_journal and len(words) == 3 and words[1].isdigit() and int(words[1]) < _HIGHEST:
        gateway, source = words[2].decode("utf-8", "replace").rstrip(), words[0].decode("utf-8", "replace")
        # The file of one run under the name of another would take its places in the chain.
        if source.isascii() and source.isalnum() and source == path.stem:
            return gateway, source, int(words[1])
    raise PinwardenError("AUDIT_TAMPERED", f"{path} is not a journal of the audit log")


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
