"""Typed access to parsed JSON. Every error names the path of the invalid value.

``JsonObject`` wraps one object of a document; its methods return a member as the requested type or raise. The caller
passes ``invalid``, which turns a path and a problem ("is not a string") into the error for its kind of document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError

Invalid = Callable[[str, str], PinwardenError]


class JsonObject:
    """One object of a parsed document and its path, such as ``manifests/0/platform``."""

    __slots__ = ("_invalid", "_separator", "path", "value")

    def __init__(self, value: object, path: str, invalid: Invalid, *, separator: str = "/") -> None:
        if not isinstance(value, dict):
            raise invalid(path, "is not an object")
        self.value: Mapping[str, Any] = value
        self.path = path
        self._invalid = invalid
        self._separator = separator

    def __contains__(self, name: str) -> bool:
        """Whether the member is present, even as null."""
        return name in self.value

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the document's error about a member."""
        raise self._invalid(self.path_of(name), problem)

    def path_of(self, name: str) -> str:
        """The path of a member."""
        return f"{self.path}{self._separator}{name}" if self.path else name

    def object(self, name: str) -> JsonObject:
        """An object."""
        return self._wrap(self.value.get(name), self.path_of(name))

    def optional_object(self, name: str) -> JsonObject | None:
        """An object; None if the member is missing or null."""
        return None if self.value.get(name) is None else self.object(name)

    def objects(self, name: str, *, max_items: int | None = None, optional: bool = False) -> list[JsonObject]:
        """A list of objects."""
        items = self.items(name, max_items=max_items, optional=optional)
        path = self.path_of(name)
        return [self._wrap(item, f"{path}{self._separator}{index}") for index, item in enumerate(items)]

    def items(self, name: str, *, max_items: int | None = None, optional: bool = False) -> list[Any]:
        """A list of anything; empty if it is ``optional`` and the member is missing or null."""
        value = self.value.get(name)
        if optional and value is None:
            return []
        if not isinstance(value, list):
            self.fail(name, "is not a list")
        if max_items is not None and len(value) > max_items:
            self.fail(name, f"has {len(value)} items; at most {max_items} are supported")
        return value

    def string(self, name: str, pattern: re.Pattern[str] | None = None, *, kind: str = "a string") -> str:
        """A string that matches the entire pattern, if there is one. ``kind`` names it in the error."""
        value = self.value.get(name)
        if not isinstance(value, str) or (pattern is not None and not pattern.fullmatch(value)):
            self.fail(name, f"is not {kind}")
        return value

    def optional_string(self, name: str) -> str | None:
        """A string; None if the member is missing or null."""
        return None if self.value.get(name) is None else self.string(name)

    def strings(self, name: str, *, optional: bool = False) -> tuple[str, ...]:
        """A list of strings."""
        items = self.items(name, optional=optional)
        if not all(isinstance(item, str) for item in items):
            self.fail(name, "is not a list of strings")
        return tuple(items)

    def string_map(self, name: str) -> Mapping[str, str]:
        """An object whose values are all strings; empty if the member is missing or null."""
        value = self.optional_object(name)
        if value is None:
            return {}
        if not all(isinstance(text, str) for text in value.value.values()):
            self.fail(name, "has a value that is not a string")
        return value.value

    def integer(self, name: str, *, minimum: int = 0, maximum: int | None = None) -> int:
        """An integer within bounds."""
        value = self.value.get(name)
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            self.fail(name, f"is not an integer of at least {minimum}" + (f" and at most {maximum}" if maximum else ""))
        return value

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """True or false; ``default`` if the member is missing."""
        value = self.value.get(name, default)
        if type(value) is not bool:
            self.fail(name, "is not true or false")
        return value

    def _wrap(self, value: Any, path: str) -> JsonObject:
        return JsonObject(value, path, self._invalid, separator=self._separator)
