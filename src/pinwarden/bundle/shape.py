"""Reading the members of a bundle's documents: what is missing or of the wrong kind is named by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.cid import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.timestamps import parse_timestamp

LIMITS = Limits(max_bytes=16 * 1024 * 1024)
"""A manifest of a hundred thousand files has about this size; the other documents have a few kilobytes."""
_MAX_TEXT = 64 * 1024
DOCUMENT_CID = "bafyrei"
BLOB_CID = "bafkrei"


class Shape:
    """One object inside a document, and the path by which errors name it."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str) -> None:
        if type(value) is not dict:
            refuse(path, "is not an object")
        self.value: Mapping[str, Any] = value
        self.path = path

    @classmethod
    def of(cls, document: Any, schema: str) -> Shape:
        """A whole document, of the kind that its ``schema_version`` must state."""
        shape = cls(document, schema.partition(".v")[0])
        if shape.value.get("schema_version") != schema:
            refuse(f"{shape.path}/schema_version", f"is not {schema}")
        return shape

    def inside(self, member: str) -> Shape:
        """The object under a member."""
        return Shape(self.value.get(member), f"{self.path}/{member}")

    def each(self, member: str, *, at_least: int = 0) -> list[Shape]:
        """The objects of a list under a member."""
        items = self.value.get(member)
        if type(items) is not list or len(items) < at_least:
            refuse(f"{self.path}/{member}", f"is not a list of {at_least} or more")
        return [Shape(item, f"{self.path}/{member}/{number}") for number, item in enumerate(items)]

    def text(self, member: str) -> str:
        """Text, not empty."""
        value = self.value.get(member)
        if type(value) is not str or not value or len(value) > _MAX_TEXT:
            refuse(f"{self.path}/{member}", "is not text")
        return value

    def texts(self, member: str) -> tuple[str, ...]:
        """A list of texts; none if the member is absent."""
        value = self.value.get(member, [])
        if type(value) is not list or any(type(item) is not str for item in value):
            refuse(f"{self.path}/{member}", "is not a list of texts")
        return tuple(value)

    def one_of(self, member: str, allowed: Sequence[str]) -> str:
        """One of a few words."""
        value = self.value.get(member)
        if type(value) is not str or value not in allowed:
            refuse(f"{self.path}/{member}", f"is not one of {', '.join(allowed)}")
        return value

    def number(self, member: str, least: int = 0) -> int:
        """A whole number."""
        value = self.value.get(member)
        if type(value) is not int or value < least:
            refuse(f"{self.path}/{member}", f"is not a whole number from {least}")
        return value

    def flag(self, member: str, default: bool | None = None) -> bool:
        """True or false; the default stands for an absent member, if there is one."""
        value = self.value.get(member, default)
        if type(value) is not bool:
            refuse(f"{self.path}/{member}", "is not true or false")
        return value

    def moment(self, member: str) -> str:
        """A moment, with its time zone."""
        value = self.text(member)
        if parse_timestamp(value) is None:
            refuse(f"{self.path}/{member}", "is not a moment with its time zone")
        return value

    def cid(self, member: str, kind: str = DOCUMENT_CID) -> str:
        """A CID of a document, or of a blob."""
        value = self.text(member)
        try:
            Cid.parse(value)
        except PinwardenError as err:
            refuse(f"{self.path}/{member}", f"is not a CID: {err.message}")
        if not value.startswith(kind):
            refuse(f"{self.path}/{member}", f"is not a CID that begins with {kind}")
        return value


def read(data: bytes) -> Any:
    """The value of a document's bytes, read strictly."""
    return strict_json.parse_json(data, LIMITS)


def refuse(path: str, why: str) -> NoReturn:
    """The document is not what it should be."""
    raise PinwardenError("DOCUMENT_INVALID", f"{path[:200]} {why}", data={"path": path})
