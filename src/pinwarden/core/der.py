"""DER, read strictly: every value has exactly one encoding, and any other one is refused (X.690 sections 8, 10, 11).

Enough for signatures: tags below 31 and definite lengths. There is no recursion; whoever reads says how deep to go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

INTEGER, OCTET_STRING, NULL, OID = 0x02, 0x04, 0x05, 0x06
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
SEQUENCE, SET = 0x30, 0x31
_CONSTRUCTED = 0x20
_NEEDS_PARTS = frozenset({0x10, 0x11})  # sequences and sets have no primitive form, all else here no other


class Value(Record):
    """One value: its tag, its content, and both with the length between them as they stood."""

    tag: int
    content: bytes = field(repr=False)
    whole: bytes = field(repr=False)

    def expect(self, tag: int) -> Value:
        """Itself, if it has that tag."""
        return self if self.tag == tag else _refuse(f"has tag {self.tag:#04x} where {tag:#04x} belongs")

    def parts(self) -> Reader:
        """What a sequence, a set or a tagged value consists of."""
        if not self.tag & _CONSTRUCTED:
            _refuse("takes apart what has no parts")
        return Reader(self.content)

    @property
    def oid(self) -> str:
        """An object identifier in dotted form."""
        return _oid(self.expect(OID).content)

    @property
    def integer(self) -> int:
        """A whole number."""
        data = self.expect(INTEGER).content
        if not data or (len(data) > 1 and data[0] in (0, 0xFF) and (data[0] ^ data[1]) < 0x80):
            _refuse("has a number that is longer than it needs to be")
        return int.from_bytes(data, "big", signed=True)


class Reader:
    """Values one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def tag(self) -> int | None:
        """The tag of the next value; None at the end."""
        return self._data[self._at] if self._at < len(self._data) else None

    def next(self, tag: int | None = None) -> Value:
        """The next value, which must have that tag."""
        start = self._at
        kind = self._byte()
        if kind & 0x1F == 0x1F:
            _refuse("has a tag of more than one byte")
        if kind < 0x40 and (kind & 0x1F in _NEEDS_PARTS) != bool(kind & _CONSTRUCTED):
            _refuse("has a value in pieces")
        size = self._length()
        if size > len(self._data) - self._at:
            _refuse("ends inside a value")
        content = self._data[self._at : self._at + size]
        self._at += size
        value = Value(tag=kind, content=content, whole=self._data[start : self._at])
        return value if tag is None else value.expect(tag)

    def optional(self, tag: int) -> Value | None:
        """The next value if it has that tag."""
        return self.next() if self.tag == tag else None

    def end(self) -> None:
        """Refuse anything further."""
        if self._at != len(self._data):
            _refuse("goes on where it should end")

    def __iter__(self) -> Iterator[Value]:
        while self._at < len(self._data):
            yield self.next()

    def _byte(self) -> int:
        if self._at >= len(self._data):
            _refuse("ends inside a value")
        self._at += 1
        return self._data[self._at - 1]

    def _length(self) -> int:
        first = self._byte()
        if first < 0x80:
            return first
        if first == 0x80 or first > 0x84:
            _refuse("has a length that DER does not have, or that is far too large")
        size = 0
        for _ in range(first - 0x80):
            size = size << 8 | self._byte()
        if size < 0x80 or size >> 8 * (first - 0x81) == 0:
            _refuse("has a length that is longer than it needs to be")
        return size


def parse(data: bytes, tag: int) -> Value:
    """The one value that the bytes are."""
    reader = Reader(data)
    value = reader.next(tag)
    reader.end()
    return value


def _oid(data: bytes) -> str:
    if not data or data[-1] & 0x80 or len(data) > 64:
        _refuse("has a malformed object identifier")
    arcs: list[int] = []
    arc = 0
    fresh = True
    for byte in data:
        if fresh and byte == 0x80:
            _refuse("has a malformed object identifier")
        arc = arc << 7 | byte & 0x7F
        fresh = not byte & 0x80
        if fresh:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(str(each) for each in (first, arcs[0] - 40 * first, *arcs[1:]))


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("SIGNATURE_INVALID", f"the DER {why}")
