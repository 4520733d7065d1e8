"""A typed reader of policy tables, whose errors name the key; and glob patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, datetime
from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_ONE_STAR = re.compile(r"([^*?]*)(\*+)([^*?]*)")


class Pattern(Record):
    """A glob: ``*`` matches any characters except a slash, ``**`` any characters, ``?`` one."""

    text: str

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        usual = _ONE_STAR.fullmatch(self.text)
        if usual is not None:  # the fast path, for names of many megabytes too
            before, star, after = usual.groups()
            if len(name) < len(before) + len(after) or not (name.startswith(before) and name.endswith(after)):
                return False
            return len(star) > 1 or name.find("/", len(before), len(name) - len(after)) < 0
        return _match_pieces(re.findall(r"\*\*+|.", self.text, re.DOTALL), name)


class Table:
    """A table and its path."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            invalid(path, "is not a table")
        self.value: dict[str, Any] = value
        self.path = path

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """An unknown key is an error: a misspelled rule would silently not apply."""
        for key in self.value:
            if key not in known:
                self.invalid(key, f"is not a known key; known: {', '.join(known)}")

    def table(self, key: str, known: tuple[str, ...]) -> Table | None:
        """A nested table; None if absent. It must not be empty."""
        if key not in self.value:
            return None
        inner = Table(self.value[key], f"{self.path}.{key}")
        inner.refuse_unknown(known)
        if not inner.value:
            invalid(inner.path, "is empty")
        return inner

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings that is not empty; None if absent."""
        if key not in self.value:
            return None
        listed = self.value[key]
        if not isinstance(listed, list) or not all(isinstance(item, str) and item for item in listed):
            self.invalid(key, "is not a list of strings")
        if not listed:
            self.invalid(key, "is empty, which is ambiguous: it could mean everything or nothing")
        return tuple(listed)

    def patterns(self, key: str) -> tuple[Pattern, ...] | None:
        """A list of globs; None if absent."""
        listed = self.texts(key)
        return None if listed is None else tuple(self.pattern(text) for text in listed)

    def pattern(self, text: str) -> Pattern:
        """A glob of limited length."""
        if text.count("*") > 8 or len(text) > 300:
            invalid(self.path, f"has a pattern with too many stars or characters: {text[:80]!a}")
        return Pattern(text=text)

    def required_text(self, key: str) -> str:
        """A required string."""
        text = self.value.get(key)
        if not isinstance(text, str) or not text.strip():
            self.invalid(key, "is missing or empty")
        return text

    def flag(self, key: str) -> bool:
        """A boolean; False if absent."""
        value = self.value.get(key, False)
        if not isinstance(value, bool):
            self.invalid(key, "is neither true nor false")
        return value

    def number(self, key: str, largest: int) -> int | None:
        """An integer from 0 to ``largest``; None if absent."""
        value = self.value.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
            self.invalid(key, f"is not a whole number from 0 to {largest}")
        return value

    def day(self, key: str) -> date:
        """A required date."""
        value = self.value.get(key)
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                self.invalid(key, "is not a date such as 2026-12-31")
        if not isinstance(value, date) or isinstance(value, datetime):
            self.invalid(key, "is missing or not a date such as 2026-12-31; every waiver needs an expiry date")
        return value

    def invalid(self, key: str, why: str) -> NoReturn:
        """Raise POLICY_INVALID for a key."""
        invalid(f"{self.path}.{key}", why)


def plain_host(host: str) -> str:
    """A host or host pattern in the form in which they are compared: IDNA, lower case, without a trailing dot."""
    name = host.removesuffix(".")
    if not name.isascii():
        with suppress(UnicodeError):
            name = name.encode("idna").decode("ascii")
    return name.lower()


def invalid(path: str, why: str) -> NoReturn:
    """Raise POLICY_INVALID for the key at a path."""
    raise PinwardenError("POLICY_INVALID", f"{path[:200]} {why}", data={"key": path})


def _match_pieces(pieces: Iterable[str], name: str) -> bool:
    """Whether the pieces of a glob match a name, in linear time, because names come from untrusted servers.

    ``reached`` has the positions in the name at which the pieces so far can end.
    """
    reached = {0}
    for piece in pieces:
        if piece[0] == "*":
            reached = _match_star(reached, name, over_slashes=len(piece) > 1)
        else:
            reached = {
                position + 1
                for position in reached
                if position < len(name) and (name[position] == piece or (piece == "?" and name[position] != "/"))
            }
    return len(name) in reached


def _match_star(reached: set[int], name: str, *, over_slashes: bool) -> set[int]:
    positions: set[int] = set()
    going = False
    for position in range(len(name) + 1):
        going = position in reached or (going and (over_slashes or name[position - 1] != "/"))
        if going:
            positions.add(position)
    return positions
