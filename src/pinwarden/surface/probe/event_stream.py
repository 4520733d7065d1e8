"""A parser for server-sent events that needs linear time and bounded memory."""

from __future__ import annotations

from pinwarden.core.record import Record
from pinwarden.system.probe_budget import probe_limit_error

_BOM = b"\xef\xbb\xbf"


class Event(Record):
    """One server-sent event that has data."""

    name: str
    data: bytes


class EventParser:
    """Parses an event stream according to the WHATWG HTML standard, section 9.2.6."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_bytes = max_event_bytes
        # Byte arrays, because a list of many small byte strings can take twenty times as much memory.
        self._line = bytearray()
        self._data: bytearray | None = None
        self._name = ""
        self._size = 0
        self._started = False
        self._after_return = False

    @property
    def buffered_bytes(self) -> int:
        """The bytes that the parser keeps of an incomplete event."""
        return len(self._line) + (0 if self._data is None else len(self._data))

    def feed(self, chunk: bytes) -> list[Event]:
        """Parse the next bytes of the stream. Returns the events that they complete."""
        if not chunk:
            return []
        self._size += len(chunk)
        if self._after_return and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_return = chunk[-1:] == b"\r"
        *complete_lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events: list[Event] = []
        for text in complete_lines:
            line = text
            if self._line:
                self._line += text
                line, self._line = bytes(self._line), bytearray()
            event = self._add_line(line)
            if event is not None:
                events.append(event)
                self._size = len(rest)
        self._line += rest
        if self._size > self._max_bytes:
            raise probe_limit_error("bytes in one event", self._max_bytes)
        return events

    def _add_line(self, line: bytes) -> Event | None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Event | None:
        name, data = self._name or "message", bytes(self._data or b"")
        self._name = ""
        self._data = None
        return Event(name=name, data=data) if data else None
