"""Typed access to parsed JSON. Every error names the path of the invalid value.

``JsonObject`` wraps one object of a document. Each method returns a member as the requested type, or raises. The caller
passes ``invalid``, a function that builds the error of its document type from a path and a problem ("is not a string").

A ``default`` replaces a missing member, but null is still refused. An ``optional`` member may be missing or null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar

from pinwarden.core.errors import PinwardenError

Invalid = Callable[[str, str], PinwardenError]
_Parsed = TypeVar("_Parsed")
_Word = TypeVar("_Word", bound=str)


class JsonObject:
    """One object of a parsed document and its path: ``layers/0/size``, or ``layers[0].size`` with ``separator="."``."""

    __slots__ = ("_invalid", "_separator", "path", "value")

    def __init__(self, value: object, path: str, invalid: Invalid, *, separator: str = "/") -> None:
        if not isinstance(value, dict):
            raise invalid(path, "is not an object")
        self.value: Mapping[str, Any] = value
        self.path = path
        self._invalid = invalid
        self._separator = separator

    def __contains__(self, name: str) -> bool:
        """Whether the object has this member, even if its value is null."""
        return name in self.value

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the document's error for a member, such as ``layers/0/size is not an integer``."""
        raise self._invalid(self.path_of(name), problem)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise for an unknown member, because a misspelled setting would silently not apply."""
        for name in self.value:
            if name not in known:
                self.fail(name, f"is not a known key; known: {', '.join(known)}")

    def path_of(self, name: str) -> str:
        """Return the path of a member, as error messages show it."""
        return f"{self.path}{self._separator}{name}" if self.path else name

    def object(self, name: str) -> Self:
        """Return the member as an object."""
        return self._wrap(self.value.get(name), self.path_of(name))

    def optional_object(self, name: str) -> Self | None:
        """Return the member as an object, or None if it is missing or null."""
        return None if self.value.get(name) is None else self.object(name)

    def objects(
        self,
        name: str,
        *,
        min_items: int = 0,
        max_items: int | None = None,
        optional: bool = False,
        default: list[Any] | None = None,
    ) -> list[Self]:
        """Return the member as a list of objects."""
        items = self.array(name, min_items=min_items, max_items=max_items, optional=optional, default=default)
        path = self.path_of(name)
        before, after = ("[", "]") if self._separator == "." else (self._separator, "")
        return [self._wrap(item, f"{path}{before}{index}{after}") for index, item in enumerate(items)]

    def members(self) -> Iterator[tuple[str, Self]]:
        """Iterate over the names and values of all members. Raises if a value is not an object."""
        return ((name, self.object(name)) for name in self.value)

    def array(
        self,
        name: str,
        *,
        min_items: int = 0,
        max_items: int | None = None,
        optional: bool = False,
        default: list[Any] | None = None,
    ) -> list[Any]:
        """Return the member as a list, whose items can have any type."""
        value = self.value.get(name, default)
        if optional and value is None:
            return []
        if not isinstance(value, list):
            self.fail(name, "is not a list")
        if len(value) < min_items:
            self.fail(name, f"has {len(value)} items; at least {min_items} are required")
        if max_items is not None and len(value) > max_items:
            self.fail(name, f"has {len(value)} items; at most {max_items} are supported")
        return value

    def string(
        self,
        name: str,
        pattern: re.Pattern[str] | None = None,
        *,
        kind: str = "a string",
        default: str | None = None,
    ) -> str:
        """Return the member as a string that matches the whole pattern.

        ``kind`` says in the error what was expected.
        """
        value = self.value.get(name, default)
        if not isinstance(value, str) or (pattern is not None and not pattern.fullmatch(value)):
            self.fail(name, f"is not {kind}")
        return value

    def optional_string(self, name: str) -> str | None:
        """Return the member as a string, or None if it is missing or null."""
        return None if self.value.get(name) is None else self.string(name)

    def strings(
        self,
        name: str,
        *,
        max_items: int | None = None,
        optional: bool = False,
        default: list[Any] | None = None,
    ) -> tuple[str, ...]:
        """Return the member as a list of strings."""
        items = self.array(name, max_items=max_items, optional=optional, default=default)
        if not all(isinstance(item, str) for item in items):
            self.fail(name, "is not a list of strings")
        return tuple(items)

    def one_of(self, name: str, allowed: Sequence[_Word], *, default: _Word | None = None) -> _Word:
        """Return the member, which must be one of the allowed strings."""
        value = self.value.get(name, default)
        for word in allowed:
            if value == word:
                return word
        self.fail(name, f"is not {'one of ' if len(allowed) > 1 else ''}{', '.join(allowed)}")

    def string_map(self, name: str) -> Mapping[str, str]:
        """Return the member as an object whose values are all strings. It is empty if the member is missing or null."""
        value = self.optional_object(name)
        if value is None:
            return {}
        if not all(isinstance(text, str) for text in value.value.values()):
            self.fail(name, "has a value that is not a string")
        return value.value

    def parse_string(self, name: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        """Parse the member, which must be a string. An error of ``parse`` becomes the document's error."""
        text = self.string(name)
        try:
            return parse(text)
        except PinwardenError as err:
            raise self._invalid(self.path_of(name), f"is invalid: {err.message}") from err

    def integer(self, name: str, *, minimum: int | None = 0, maximum: int | None = None) -> int:
        """Return the member as an integer, which must not be below ``minimum`` or above ``maximum``."""
        value = self.value.get(name)
        if (
            type(value) is not int
            or (minimum is not None and value < minimum)
            or (maximum is not None and value > maximum)
        ):
            bounds = [f"at least {minimum}"] * (minimum is not None) + [f"at most {maximum}"] * (maximum is not None)
            self.fail(name, f"is not an integer{' of ' if bounds else ''}{' and '.join(bounds)}")
        return value

    def optional_number(self, name: str) -> int | float | None:
        """Return the member as a number, or None if it is missing or null."""
        value = self.value.get(name)
        if value is not None and type(value) not in (int, float):
            self.fail(name, "is not a number")
        return value

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Return the member as true or false."""
        value = self.value.get(name, default)
        if type(value) is not bool:
            self.fail(name, "is not true or false")
        return value

    def _wrap(self, value: Any, path: str) -> Self:
        """Create the reader of an inner object. Subclasses with another constructor override this method."""
        return type(self)(value, path, self._invalid, separator=self._separator)
