"""The journal: a file to which events are written before they reach the database.

An event is in the file when `Journal.append` returns, so a killed gateway loses no events. After `sync`, events also
survive a power cut. Events are removed from the file when the database has them. While the database is unavailable, the
file grows.

The file is mapped into memory, so adding an event is a copy without a system call, and the kernel keeps the mapped
pages when the process is killed. Disk blocks are reserved in advance, because writing to a map on a full disk would
kill the process.

A record consists of 8-byte words in the byte order of this machine, because journals never move to another machine. The
first word has the length of the record, and a checksum of all records so far, which detects damage and edits. The most
frequent event, a tool call, takes three words if its request id is an integer: template, id and time. If the id is
a string, the record has the template, the time and the string. The tamper-evident hash chain is built when events are
written to the database.

A running gateway holds a lock on its journal file. An unlocked file was abandoned by a killed process, and the next
reader of the log recovers it. docs/reference/audit-log.md describes the format.
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
from pinwarden.gateway.audit.event import KINDS, TEXT_MEMBERS, AuditEvent, encode_event, parse_event
from pinwarden.system.files import try_lock_file

_MAGIC = b"pinwarden-journal/4 "
_OLDER_MAGIC = b"pinwarden-journal/3 "  # the format before calls with a string as request id
_HEADER = 256  # bytes of the header, which ends with spaces
WORD = 8  # bytes
CALL = 3 * WORD  # bytes of a call: template with checksum, request id, time
CHECKSUM_MASK = 0xFFFFFFFF
_CALL_BIT = 1 << 63  # set in the first word of a call, which has a template instead of a length
_MAX_PACKED = 8192  # characters of a packed event; a longer one is written as JSON, which truncates it
STEP = 1 << 17  # bytes by which the file grows
_MAX_RECORD = 1 << 20  # bytes; a longer record is damage
_MAX_TIME = 1 << 64  # nanoseconds; the time of a call is a word
_MAX_COUNT = 1 << 52  # an integer that every JSON parser reads exactly

# Separators of packed texts. A text that contains one is written as JSON.
_SEPARATOR, _DIGEST_SEPARATOR = "\x1f", "\x1e"
_get_texts = attrgetter(*TEXT_MEMBERS)
_FEWEST_TEXTS = 14  # texts of an event in the earliest release whose journals are read; later texts are then empty
TEXT_CALL = Struct("=cQQ")
"""The start of the record of a call whose request id is a string. It has ``@``, the template and the time."""


class JournalEvent(NamedTuple):
    """An event and its time in nanoseconds since 1970. A tuple, because there may be 100,000 at once."""

    at: int
    event: AuditEvent
    """The event. Calls of one tool share an event, whose ``call`` ends before the request id (see ``request_id``)."""
    request_id: str = ""
    """The request id of a call, which belongs at the end of ``call``."""


class JournalBatch(Record):
    """Consecutive events of one run of a gateway."""

    gateway: str
    source: str
    first: int
    """The ``nth`` of the first event."""
    events: tuple[JournalEvent, ...]


class JournalPosition(Record):
    """A position in a journal: offset in bytes, count of events, and the checksum up to there."""

    offset: int
    nth: int
    """The number of events of the run before this position."""
    checksum: int


class Journal:
    """The journal of one run of a gateway. Not thread-safe."""

    def __init__(self, path: Path, descriptor: int, gateway: str, source: str, start: JournalPosition) -> None:
        self.path = path
        self.gateway = gateway
        self.source = source
        self.start = start
        """The position after the header."""
        self.capacity = 0
        """The size of the map in bytes."""
        self.map: mmap | None = None
        self.words: Any = ()
        """The map as 8-byte words."""
        self.templates: list[AuditEvent] = []
        """The templates of calls, by number: the members that all calls of one tool in one session share."""
        self.damaged = False
        """Whether there is data after the last event that no gateway wrote."""
        self._header = b""
        """The header, if it is not in the file yet."""
        self._descriptor = descriptor
        self._step = STEP
        self.end = start

    @property
    def end(self) -> JournalPosition:
        """The position after the last event."""
        return JournalPosition(offset=self.size, nth=self.count, checksum=self.checksum)

    @end.setter
    def end(self, position: JournalPosition) -> None:
        """Set the position after the last event."""
        self.size, self.count, self.checksum = position.offset, position.nth, position.checksum

    @classmethod
    def create(cls, folder: Path, gateway: str, source: str, step: int = STEP) -> Journal:
        """Create a journal that grows by ``step`` bytes.

        The file is locked before it gets its name, so that no other process takes it for an abandoned one.
        """
        path = folder / f"{source}.journal"
        new = path.with_suffix(".new")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            try_lock_file(descriptor)
            header = _build_header(gateway, source, 0)
            start = JournalPosition(offset=_HEADER, nth=0, checksum=adler32(header))
            journal = cls(path, descriptor, gateway, source, start)
            journal._header = header
            journal._step = -(-step // WORD) * WORD
            journal._grow(_HEADER)
            new.rename(path)
        except (OSError, ValueError) as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"the journal {path} cannot be written: {err}") from err
        return journal

    def append(self, packed: list[bytes]) -> int:
        """Add events, and return the number of events in this run so far. If the disk is full, no event is added.

        If the process is killed during the call, the file may contain only the first events.
        """
        self._write_records(packed)
        self.count += len(packed)
        return self.count

    def add_template(self, event: AuditEvent) -> int:
        """Add a template. Returns the first word of the records of its calls, without the checksum."""
        if len(self.templates) > _MAX_RECORD:
            raise PinwardenError("AUDIT_UNAVAILABLE", "the journal has too many templates")
        self._write_records([b"#" + pack_event(0, event)])
        self.templates.append(event)
        return _CALL_BIT | (len(self.templates) - 1) << 32

    def add_call(self, template: int, request_id: int, at: int) -> None:
        """Add a call. Call `ensure_capacity` before.

        The first word is written last, so a killed process leaves either a complete record or none.
        """
        size = self.size
        self.checksum = checksum = (self.checksum + request_id + at) & CHECKSUM_MASK
        words, index = self.words, size >> 3
        words[index + 1] = request_id
        words[index + 2] = at
        words[index] = template | checksum
        self.size = size + CALL
        self.count += 1

    def add_text_call(self, data: bytes) -> None:
        """Add the output of `pack_text_call`, in the same way as `add_call`."""
        size = self.size
        start, end = size + WORD, size + WORD + len(data)
        self.map[start:end] = data  # type: ignore[index]
        self.checksum = checksum = (self.checksum + adler32(data)) & CHECKSUM_MASK
        self.words[size >> 3] = len(data) << 32 | checksum
        self.size = end + WORD - 1 & -WORD
        self.count += 1

    def _write_records(self, packed: list[bytes]) -> None:
        self.ensure_capacity(sum(WORD + len(data) + -len(data) % WORD for data in packed))
        for data in packed:
            self._write_record(data)

    def _write_record(self, data: bytes) -> None:
        """Write one record in an order that distinguishes damage from a record that a killed process did not finish.

        A memory copy may store its bytes in any order. Therefore the first word is written before the copy, with the
        length and an inverted checksum, and again after the copy, with the valid checksum.
        """
        start, length = self.size, len(data)
        self.checksum = checksum = (self.checksum + adler32(data)) & CHECKSUM_MASK
        self.words[start >> 3] = length << 32 | checksum ^ CHECKSUM_MASK
        self.map[start + WORD : start + WORD + length] = data  # type: ignore[index]
        self.words[start >> 3] = length << 32 | checksum
        self.size = start + WORD + length + -length % WORD

    def ensure_capacity(self, length: int) -> None:
        """Make sure that ``length`` bytes can be added."""
        if self.size + length > self.capacity:
            try:
                self._grow(self.size + length)
            except (OSError, ValueError) as err:
                raise PinwardenError("AUDIT_UNAVAILABLE", f"the journal {self.path} cannot be extended: {err}") from err

    def _grow(self, size: int) -> None:
        """Map at least ``size`` bytes of the file, with disk blocks reserved for all of them."""
        if self._descriptor < 0:
            raise ValueError("the journal is closed")
        if self._header:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, self._header)
            self._header = b""
        capacity = -(-size // self._step) * self._step
        _reserve_blocks(self._descriptor, capacity)
        self._unmap()
        self.map = mmap(self._descriptor, capacity)
        self.words = memoryview(self.map).cast("Q")
        self.capacity = capacity

    def sync(self) -> None:
        """Flush the file, so that its events survive a power cut."""
        try:
            if self.map is not None:
                self.map.flush()
            os.fsync(self._descriptor)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"the journal {self.path} cannot be used: {err}") from err

    def read(
        self, since: JournalPosition, until: JournalPosition, max_bytes: int
    ) -> tuple[JournalBatch, JournalPosition]:
        """Return the events after ``since``, at least one and at most ``max_bytes``, and the position after them.

        Reads no event after ``until``. Raises ``AUDIT_TAMPERED`` if the data is invalid.
        """
        length = until.offset - since.offset
        data = _read_at(self._descriptor, min(length, max(max_bytes, _MAX_RECORD)), since.offset)
        events, position = _parse_records(data, since, self.templates, max_bytes=max_bytes)
        if not events and length:
            raise self.build_tampered_error(since.nth)
        batch = JournalBatch(gateway=self.gateway, source=self.source, first=since.nth + 1, events=tuple(events))
        return batch, position

    def reset(self) -> None:
        """Drop all events and templates after the database stored them. The event count continues.

        If this raises, nothing was dropped. If the new header cannot be written, adding the next event raises.
        """
        try:
            self._unmap()
            os.ftruncate(self._descriptor, _HEADER)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"the journal {self.path} cannot be used: {err}") from err
        self.templates = []
        self._header = _build_header(self.gateway, self.source, self.count)
        self.start = self.end = JournalPosition(offset=_HEADER, nth=self.count, checksum=adler32(self._header))
        with suppress(OSError, ValueError):
            self._grow(_HEADER)

    def build_tampered_error(self, nth: int) -> PinwardenError:
        """Return the error for a journal with invalid data after event ``nth``."""
        return PinwardenError(
            "AUDIT_TAMPERED",
            f"{self.path} was damaged or changed after event {nth}",
            hint="Check who can write to it. Move the file elsewhere to continue without its remaining events.",
        )

    def close(self, *, remove: bool) -> None:
        """Close the file. Pass ``remove`` if the database has all its events: the file is then deleted."""
        if remove:
            with suppress(OSError):
                self.path.unlink()
        else:
            with suppress(OSError):
                self._unmap()
                os.ftruncate(self._descriptor, self.size)
        # The system reuses descriptors; a late writer must not write to another file.
        self._unmap()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _unmap(self) -> None:
        mapped, self.map, self.capacity = self.map, None, 0
        if mapped is not None:
            self.words.release()
            mapped.close()


@contextmanager
def open_abandoned_journal(path: Path) -> Iterator[Journal | None]:
    """Open the journal of a killed process; None if another process has it locked, or if it is empty.

    An incomplete last record is ignored: the gateway never acted on its event.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        yield None
        return
    except OSError as err:
        raise PinwardenError("AUDIT_UNAVAILABLE", f"the journal {path} cannot be used: {err}") from err
    try:
        yield _read_journal(path, descriptor) if try_lock_file(descriptor) else None
    finally:
        os.close(descriptor)


def pack_event(at: int, event: AuditEvent) -> bytes:
    """Encode an event. Takes one or two microseconds, which delay the message."""
    if event.arguments is None:
        text = _SEPARATOR.join((*_get_texts(event), _DIGEST_SEPARATOR.join(event.expected)))
        separators = max(0, len(event.expected) - 1)
        is_plain = text.count(_SEPARATOR) == len(TEXT_MEMBERS) and text.count(_DIGEST_SEPARATOR) == separators
        if is_plain and len(text) < _MAX_PACKED:
            with suppress(UnicodeEncodeError):
                return b"%d %s" % (at, text.encode())
    return b"%d {%s" % (at, encode_event(event))


def unpack_event(data: bytes) -> JournalEvent:
    """Decode the output of `pack_event`; raises ``ValueError`` or ``AUDIT_INVALID``."""
    at, _, rest = data.partition(b" ")
    if rest.startswith(b"{"):
        return JournalEvent(at=int(at), event=parse_event(rest[1:]))
    *texts, expected = rest.decode().split(_SEPARATOR)
    if not _FEWEST_TEXTS <= len(texts) <= len(TEXT_MEMBERS):
        raise ValueError(f"the event has {len(texts)} texts")
    members: dict[str, Any] = dict(zip(TEXT_MEMBERS, texts, strict=False))
    return JournalEvent(
        at=int(at), event=AuditEvent(expected=tuple(expected.split(_DIGEST_SEPARATOR)) if expected else (), **members)
    )


def pack_text_call(template: int, request_id: str, at: int) -> bytes:
    """Return the record of a call whose request id is a string; ``template`` is from `Journal.add_template`."""
    return TEXT_CALL.pack(b"@", template, at) + request_id.encode()


def _unpack_text_call(body: bytes, templates: list[AuditEvent]) -> JournalEvent | None:
    """Decode the output of `pack_text_call`; None if it is malformed."""
    try:
        _, template, at = TEXT_CALL.unpack_from(body)
        return JournalEvent(at, templates[(template ^ _CALL_BIT) >> 32], body[TEXT_CALL.size :].decode())
    except (error, ValueError, IndexError):
        return None


def _read_journal(path: Path, descriptor: int) -> Journal | None:
    size = os.fstat(descriptor).st_size
    header = _read_at(descriptor, _HEADER, 0)
    if len(header) < _HEADER:
        return None  # the gateway was killed while creating or truncating the file, so the database has all events
    gateway, source, count = _read_header(path, header)
    journal = Journal(
        path, descriptor, gateway, source, JournalPosition(offset=_HEADER, nth=count, checksum=adler32(header))
    )
    position = journal.start
    while position.offset < size:
        data = _read_at(descriptor, 4 * _MAX_RECORD, position.offset)
        start, (_, position) = position, _parse_records(data, position, journal.templates)
        if position == start:
            journal.damaged = not _has_no_finished_record(descriptor, position, size)
            break
    journal.end = position
    return journal


def _parse_records(
    data: bytes, start: JournalPosition, templates: list[AuditEvent], *, max_bytes: int | None = None
) -> tuple[list[JournalEvent], JournalPosition]:
    """Return the events at the start of ``data``, up to the first invalid record, and the position after them.

    With ``max_bytes``, returns at least one event and at most that many bytes, and ``templates`` must be complete.
    Without ``max_bytes``, adds the templates in ``data`` to ``templates``.
    """
    words = memoryview(data[: len(data) // WORD * WORD]).cast("Q")
    events: list[JournalEvent] = []
    checksum, index = start.checksum, 0
    stop = len(words) if max_bytes is None else max_bytes // WORD
    while index < len(words):
        first = words[index]
        length = 2 * WORD if first & _CALL_BIT else first >> 32
        size = -(-length // WORD) + 1
        if not 0 < length <= _MAX_RECORD or index + size > len(words) or (index + size > stop and events):
            break
        if first & _CALL_BIT:
            template, request_id, at = (first ^ _CALL_BIT) >> 32, words[index + 1], words[index + 2]
            expected = (checksum + request_id + at) & CHECKSUM_MASK
            event = JournalEvent(at, templates[template], str(request_id)) if template < len(templates) else None
        else:
            body = data[(index + 1) * WORD : (index + 1) * WORD + length]
            expected = (checksum + adler32(body)) & CHECKSUM_MASK
            event = None
            if expected == first & CHECKSUM_MASK:
                is_call = body.startswith(b"@")
                event = _unpack_text_call(body, templates) if is_call else _unpack_known_event(body.removeprefix(b"#"))
        if event is None or expected != first & CHECKSUM_MASK:
            break
        checksum = expected
        if first & _CALL_BIT or not body.startswith(b"#"):
            events.append(event)
        elif max_bytes is None:
            templates.append(event.event)
        index += size
    end = JournalPosition(offset=start.offset + index * WORD, nth=start.nth + len(events), checksum=checksum)
    return events, end


def _unpack_known_event(body: bytes) -> JournalEvent | None:
    """Decode an event; None if no gateway of this release writes such an event."""
    try:
        event = unpack_event(body)
    except (PinwardenError, ValueError):
        return None
    return event if event.event.kind in KINDS and 0 <= event.at < _MAX_TIME else None


def _has_no_finished_record(descriptor: int, position: JournalPosition, size: int) -> bool:
    """Whether a position is followed by no data, or only by a record that a killed process did not finish.

    Bytes that were not written are zero. If the first word is missing, the length of the record is unknown. A record
    without zeros was copied completely, so only its checksum may be missing.
    """
    data = _read_at(descriptor, WORD + _MAX_RECORD, position.offset)
    first = int.from_bytes(data[:WORD], byteorder)
    length = first >> 32
    if first & _CALL_BIT:
        return len(data) < CALL
    is_valid_length = 0 < length <= _MAX_RECORD
    end = WORD + (length if is_valid_length else _MAX_PACKED)
    body = data[WORD:end]
    if is_valid_length and body.startswith(b"@"):
        return len(body) < length
    has_inverted_checksum = first & CHECKSUM_MASK == (position.checksum + adler32(body)) & CHECKSUM_MASK ^ CHECKSUM_MASK
    if is_valid_length and len(body) == length and b"\0" not in body and not has_inverted_checksum:
        return False
    offset = position.offset + end
    while offset < size:
        rest = _read_at(descriptor, _MAX_RECORD, offset)
        if not rest or rest.strip(b"\0"):
            return not rest
        offset += len(rest)
    return True


def _build_header(gateway: str, source: str, count: int) -> bytes:
    text = b"%s%s %d %s" % (_MAGIC, source.encode(), count, gateway.encode("utf-8", "backslashreplace")[:128])
    return text.ljust(_HEADER - 1) + b"\n"


def _read_header(path: Path, header: bytes) -> tuple[str, str, int]:
    words = header.removeprefix(_MAGIC).removeprefix(_OLDER_MAGIC).split(b" ", 2)
    is_journal = header.startswith((_MAGIC, _OLDER_MAGIC))
    if is_journal and len(words) == 3 and words[1].isdigit() and int(words[1]) < _MAX_COUNT:
        gateway, source = words[2].decode("utf-8", "replace").rstrip(), words[0].decode("utf-8", "replace")
        # A forged journal could otherwise take the place of another run's events in the chain.
        if source.isascii() and source.isalnum() and source == path.stem:
            return gateway, source, int(words[1])
    raise PinwardenError("AUDIT_TAMPERED", f"{path} is not a journal of the audit log")


def _reserve_blocks(descriptor: int, size: int) -> None:
    """Extend the file to ``size`` bytes, and reserve disk blocks for all bytes."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    allocated = os.fstat(descriptor).st_size
    os.lseek(descriptor, allocated, os.SEEK_SET)
    while allocated < size:
        allocated += os.write(descriptor, bytes(min(size - allocated, STEP)))


def _read_at(descriptor: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    current = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, length)
    os.lseek(descriptor, current, os.SEEK_SET)
    return data
