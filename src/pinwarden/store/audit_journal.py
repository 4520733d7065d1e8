"""The file that events go to before they reach the database.

An event is in the file when `Journal.append` returns, so that a killed gateway loses none; after `sync` a power cut
does not lose it either. What the database has taken is cut off again; while the database is away, the file grows.

Each event is framed by its length and by the hash of everything before it, so a file that was tampered with while no
gateway held it is told, and not read as if nothing were. The file is locked by its gateway: one that nobody holds was
left behind by a killed process, and whoever comes next takes it up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

from pinwarden.adapters.file_lock import try_lock
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.documents.gateway_event import Fact, encode, parse

_MAGIC = b"pinwarden-journal/1 "
_HEADER = 256  # bytes, filled up with spaces
_LENGTH = 4
_HASH = 32
_LONGEST = 8192  # of an event that is packed; what is longer is written as JSON, which cuts it
_MOST = 1 << 20  # of a framed event at all; what claims to be longer is no event

# Texts one after the other, between characters that they hold only if somebody wants to fool us: then JSON is written.
_BETWEEN, _WITHIN = "\x1f", "\x1e"
_TEXTS = (
    *("kind", "server", "client", "session", "call", "method", "item_kind", "item", "observed", "level", "code"),
    *("reason", "policy", "by"),
)
_texts_of = attrgetter(*_TEXTS)


class Noted(Record):
    """A fact and when it happened, in nanoseconds since 1970."""

    at: int
    fact: Fact


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
    """A place in a journal: so many bytes, so many events, and the hash of all of them."""

    offset: int
    nth: int
    """The count of the last event before the place."""
    hash: bytes


class Journal:
    """The journal of one run of a gateway. Its caller keeps threads apart."""

    def __init__(self, path: Path, descriptor: int, gateway: str, source: str, start: Mark) -> None:
        self.path = path
        self.gateway = gateway
        self.source = source
        self.start = start
        """Behind the header."""
        self._descriptor = descriptor
        self.end = start

    @property
    def end(self) -> Mark:
        """Behind the last event."""
        return Mark(offset=self.size, nth=self.count, hash=self._hash)

    @end.setter
    def end(self, place: Mark) -> None:
        """Say where the last event ends."""
        self.size, self.count, self._hash = place.offset, place.nth, place.hash

    @classmethod
    def create(cls, folder: Path, gateway: str, source: str) -> Journal:
        """A new file, locked before it has its name, so that nobody takes it for one left behind."""
        path = folder / f"{source}.journal"
        new = path.with_suffix(".new")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            try_lock(descriptor)
            made = cls(path, descriptor, gateway, source, _write_header(descriptor, gateway, source, 0))
            new.rename(path)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{path} cannot be written: {err.strerror or err}") from err
        return made

    def append(self, packed: list[bytes]) -> int:
        """Add events in one write, and return the count of the last. Either all of them are in the file, or none."""
        running = self._hash
        frames: list[bytes] = []
        for data in packed:
            running = sha256(running + data).digest()
            frames += (len(data).to_bytes(_LENGTH, "big"), data, running)
        text = b"".join(frames)
        try:
            written = os.write(self._descriptor, text)
        except OSError as err:
            self._cut_back()
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err.strerror or err}") from err
        if written != len(text):
            self._cut_back()
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: no space is left")
        self.size += written
        self.count += len(packed)
        self._hash = running
        return self.count

    def sync(self) -> None:
        """Make sure that what is in the file survives a power cut."""
        try:
            os.fsync(self._descriptor)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err.strerror or err}") from err

    def read(self, since: Mark, until: Mark, most: int) -> tuple[Batch, Mark]:
        """Some events behind a place, at most so many bytes but at least one event, and the place behind them."""
        length = until.offset - since.offset
        data = _pread(self._descriptor, min(length, max(most, _MOST)), since.offset)
        events: list[Noted] = []
        place = since
        for noted, behind in _frames(data, since, self.path):
            if events and behind.offset - since.offset > most:
                break
            events.append(noted)
            place = behind
        if not events and length:
            _tampered(self.path, since)
        batch = Batch(gateway=self.gateway, source=self.source, first=since.nth + 1, events=tuple(events))
        return batch, place

    def reset(self) -> None:
        """Forget the events, which the database has; their count goes on."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self.start = self.end = _write_header(self._descriptor, self.gateway, self.source, self.count)
        except OSError as err:
            raise PinwardenError("AUDIT_UNAVAILABLE", f"{self.path}: {err.strerror or err}") from err

    def close(self, *, remove: bool) -> None:
        """Let go of the file; without it, if the database has everything."""
        if remove:
            with suppress(OSError):
                self.path.unlink()
        # The number may be given to another file: who still writes must not write into that one.
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _cut_back(self) -> None:
        """Take back what was written in part."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, self.size)
            os.lseek(self._descriptor, self.size, os.SEEK_SET)


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
    journal = Journal(path, descriptor, gateway, source, Mark(offset=_HEADER, nth=count, hash=sha256(header).digest()))
    place = journal.start
    while place.offset < size:
        data = _pread(descriptor, 4 * _MOST, place.offset)
        whole = [behind for _, behind in _frames(data, place, path)]
        if not whole:
            break  # in part, or nothing but zeros where a power cut came before the data
        place = whole[-1]
    journal.end = place
    return journal


def _frames(data: bytes, place: Mark, path: Path) -> Iterator[tuple[Noted, Mark]]:
    """The whole events at the start of some bytes; one whose hash is not that of what stands there is an error."""
    at = 0
    while at + _LENGTH <= len(data):
        length = int.from_bytes(data[at : at + _LENGTH], "big")
        end = at + _LENGTH + length + _HASH
        if length == 0 and not any(data[at:]):
            return
        if length == 0 or length > _MOST:
            _tampered(path, place)
        if end > len(data):
            return
        body = data[at + _LENGTH : end - _HASH]
        running = sha256(place.hash + body).digest()
        if running != data[end - _HASH : end]:
            _tampered(path, place)
        place = Mark(offset=place.offset + end - at, nth=place.nth + 1, hash=running)
        yield unpack(body), place
        at = end


def _write_header(descriptor: int, gateway: str, source: str, count: int) -> Mark:
    text = b"%s%s %d %s" % (_MAGIC, source.encode(), count, gateway.encode("utf-8", "backslashreplace")[:128])
    header = text.ljust(_HEADER - 1) + b"\n"
    os.write(descriptor, header)
    return Mark(offset=_HEADER, nth=count, hash=sha256(header).digest())


def _read_header(path: Path, header: bytes) -> tuple[str, str, int]:
    words = header.removeprefix(_MAGIC).split(b" ", 2)
    if not header.startswith(_MAGIC) or len(words) != 3 or not words[1].isdigit():
        raise PinwardenError("AUDIT_TAMPERED", f"{path} is not a journal of the audit log")
    return words[2].decode("utf-8", "replace").rstrip(), words[0].decode("utf-8", "replace"), int(words[1])


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    here = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, length)
    os.lseek(descriptor, here, os.SEEK_SET)
    return data


def _tampered(path: Path, place: Mark) -> NoReturn:
    raise PinwardenError(
        "AUDIT_TAMPERED",
        f"{path} is not what a gateway wrote, from event {place.nth + 1} on",
        hint="Look at who could write to it. Move the file away to go on without the events in it.",
    )
