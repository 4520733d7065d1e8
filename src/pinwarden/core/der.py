"""A strict DER parser. It refuses every encoding that DER forbids (X.690, sections 8, 10 and 11).

The parser supports tags below 31 and lengths up to 4 GiB, which is enough for signatures. It does not recurse: the
caller reads each level of nesting with ``DerValue.children``.
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
_CONSTRUCTED_TYPES = frozenset({0x10, 0x11})  # DER encodes only sequences and sets in constructed form


class DerValue(Record):
    """One DER value. ``encoded`` is the complete encoding: tag, length and content."""

    tag: int
    content: bytes = field(repr=False)
    encoded: bytes = field(repr=False)

    def expect(self, tag: int) -> DerValue:
        """Return the value itself. Raises unless it has this tag."""
        return self if self.tag == tag else _refuse(f"has tag {self.tag:#04x} instead of {tag:#04x}")

    def children(self) -> DerReader:
        """Return a reader of the values inside a sequence, set or tagged value."""
        if not self.tag & _CONSTRUCTED:
            _refuse(f"has a primitive value with tag {self.tag:#04x} where a constructed one is required")
        return DerReader(self.content)

    @property
    def oid(self) -> str:
        """The value of an OBJECT IDENTIFIER, in dotted form. Raises if the value has another type."""
        return _decode_oid(self.expect(OID).content)

    @property
    def integer(self) -> int:
        """The value of an INTEGER. Raises if the value has another type."""
        data = self.expect(INTEGER).content
        if not data or (len(data) > 1 and data[0] in (0, 0xFF) and (data[0] ^ data[1]) < 0x80):
            _refuse("has an integer with redundant leading bytes")
        return int.from_bytes(data, "big", signed=True)


class DerReader:
    """Reads consecutive DER values."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    @property
    def next_tag(self) -> int | None:
        """The tag of the next value; None at the end."""
        return self._data[self._offset] if self._offset < len(self._data) else None

    def read_value(self, expected_tag: int | None = None) -> DerValue:
        """Read the next value. Raises if it does not have the expected tag."""
        start = self._offset
        tag = self._read_byte()
        if tag & 0x1F == 0x1F:
            _refuse("has a tag of more than one byte")
        if tag < 0x40 and (tag & 0x1F in _CONSTRUCTED_TYPES) != bool(tag & _CONSTRUCTED):
            _refuse("has a value whose form (primitive or constructed) does not match its type")
        size = self._read_length()
        if size > len(self._data) - self._offset:
            _refuse("ends inside a value")
        content = self._data[self._offset : self._offset + size]
        self._offset += size
        value = DerValue(tag=tag, content=content, encoded=self._data[start : self._offset])
        return value if expected_tag is None else value.expect(expected_tag)

    def read_optional(self, tag: int) -> DerValue | None:
        """Read the next value if it has this tag. Otherwise returns None and reads nothing."""
        return self.read_value() if self.next_tag == tag else None

    def check_end(self) -> None:
        """Raise if bytes follow the last value that was read."""
        if self._offset != len(self._data):
            _refuse("has trailing data")

    def __iter__(self) -> Iterator[DerValue]:
        while self._offset < len(self._data):
            yield self.read_value()

    def _read_byte(self) -> int:
        if self._offset >= len(self._data):
            _refuse("ends inside a value")
        self._offset += 1
        return self._data[self._offset - 1]

    def _read_length(self) -> int:
        first = self._read_byte()
        if first < 0x80:
            return first
        if first == 0x80 or first > 0x84:
            _refuse("has an indefinite length, or a length above 4 GiB")
        size = 0
        for _ in range(first - 0x80):
            size = size << 8 | self._read_byte()
        if size < 0x80 or size >> 8 * (first - 0x81) == 0:
            _refuse("has a length that is not encoded in its shortest form")
        return size


def parse_der(data: bytes, tag: int) -> DerValue:
    """Parse one value with this tag. Raises if bytes follow it."""
    reader = DerReader(data)
    value = reader.read_value(tag)
    reader.check_end()
    return value


def _decode_oid(data: bytes) -> str:
    if not data or data[-1] & 0x80 or len(data) > 64:
        _refuse("has a malformed object identifier")
    arcs: list[int] = []
    arc = 0
    at_arc_start = True
    for byte in data:
        if at_arc_start and byte == 0x80:
            _refuse("has a malformed object identifier")
        arc = arc << 7 | byte & 0x7F
        at_arc_start = not byte & 0x80
        if at_arc_start:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(str(arc) for arc in (first, arcs[0] - 40 * first, *arcs[1:]))


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("SIGNATURE_INVALID", f"the DER encoding {problem}")
