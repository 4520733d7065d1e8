"""A typed reader of policy tables, with errors that name the key; and glob patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, datetime
from typing import Any, Self

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.typed_json import JsonObject

_ONE_STAR = re.compile(r"([^*?]*)(\*+)([^*?]*)")


class GlobPattern(Record):
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


class PolicyTable(JsonObject):
    """A table of a policy. Errors are ``POLICY_INVALID``."""

    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise policy_error(path, "is not a table")
        super().__init__(value, path, policy_error, separator=".")

    def table(self, key: str, known: tuple[str, ...]) -> Self | None:
        """Return a nested table; None if absent. It must not be empty."""
        if key not in self:
            return None
        inner = self.object(key)
        inner.refuse_unknown(known)
        if not inner.value:
            self.fail(key, "is empty")
        return inner

    def nonempty_strings(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings that is not empty; None if absent."""
        if key not in self:
            return None
        texts = self.strings(key)
        if not texts:
            self.fail(key, "is empty, which is ambiguous: it could mean everything or nothing")
        if not all(texts):
            self.fail(key, "has an empty string")
        return texts

    def patterns(self, key: str) -> tuple[GlobPattern, ...] | None:
        """Return a list of globs; None if absent."""
        listed = self.nonempty_strings(key)
        return None if listed is None else tuple(self.pattern(text) for text in listed)

    def pattern(self, text: str) -> GlobPattern:
        """Build a glob. Raises if it is too long or has too many stars."""
        if text.count("*") > 8 or len(text) > 300:
            raise policy_error(self.path, f"has a pattern with too many stars or characters: {text[:80]!a}")
        return GlobPattern(text=text)

    def required_text(self, key: str) -> str:
        """Return a required string that is not blank."""
        text = self.string(key, default="")
        if not text.strip():
            self.fail(key, "is missing or empty")
        return text

    def flag(self, key: str) -> bool:
        """Return a boolean; False if absent."""
        return self.boolean(key, default=False)

    def optional_integer(self, key: str, largest: int) -> int | None:
        """Return an integer from 0 to ``largest``; None if absent."""
        return None if self.value.get(key) is None else self.integer(key, maximum=largest)

    def date(self, key: str) -> date:
        """Return a required date."""
        value = self.value.get(key)
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                self.fail(key, "is not a date such as 2026-12-31")
        if not isinstance(value, date) or isinstance(value, datetime):
            self.fail(key, "is missing or not a date such as 2026-12-31; every waiver needs an expiry date")
        return value

    def _wrap(self, value: Any, path: str) -> Self:
        return type(self)(value, path)


def normalize_host(host: str) -> str:
    """Return a host or host pattern in IDNA form and lower case, without a trailing dot, for comparisons."""
    name = host.removesuffix(".")
    if not name.isascii():
        with suppress(UnicodeError):
            name = name.encode("idna").decode("ascii")
    return name.lower()


def policy_error(path: str, problem: str) -> PinwardenError:
    """Return the error POLICY_INVALID for the key at a path."""
    return PinwardenError("POLICY_INVALID", f"{path[:200]} {problem}", data={"key": path})


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
