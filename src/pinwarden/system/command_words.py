"""The words of a command line: options and values as common launchers parse them, and a quick check for secrets.

`surely_has_no_secret` is for a server's start, where loading the patterns of ``masking.py`` would take too long. Nearly
every command line lacks a character that all of these patterns need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import Record

MAX_COMMAND_LINE = 20_000  # splitting takes a microsecond for each character

_PROGRAM_ENDING = pattern(r"\.(?:exe|cmd|bat|ps1|com)$", re.IGNORECASE)
_ABSOLUTE = pattern(r"(?:/|~|[A-Za-z]:[\\/]|\\\\|\$|%[A-Za-z_]+%)")


class Options(Record):
    """The options before the first positional word, and the words from there on."""

    values: Mapping[str, tuple[str, ...]]
    rest: tuple[str, ...]

    def get(self, *names: str) -> str | None:
        """The value of the first of these options that was given."""
        return next((self.values[name][0] for name in names if self.values.get(name)), None)

    def has(self, *names: str) -> bool:
        """Whether one of these options was given."""
        return any(name in self.values for name in names)

    def settings(self, long_names: Mapping[str, str], *, ignored: frozenset[str], first_of: str) -> tuple[str, ...]:
        """The options in one spelling and order, without those in ``ignored`` and the first value of ``first_of``."""
        found: dict[str, list[str]] = {}
        for name, values in self.values.items():
            if name not in ignored:
                found.setdefault(long_names.get(name, name), []).extend(values)
        if first_of in found:
            del found[first_of][0]
        return tuple(f"{name}={value}" for name in sorted(found) for value in found[name])


def name_set(text: str) -> frozenset[str]:
    """A set of option names, from a text with one space between them."""
    return frozenset(text.split())


def parse_options(words: Sequence[str], with_value: frozenset[str]) -> Options:
    """Options up to the first other word; those of ``with_value`` take the next word unless they hold ``=``."""
    values: dict[str, tuple[str, ...]] = {}
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        word = words[place]
        place += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not equals and name in with_value and place < len(words):
            value = words[place]
            place += 1
        elif not equals and not name.startswith("--") and len(name) > 2 and name[:2] in with_value:
            name, value = name[:2], name[2:]
        values[name] = (*values.get(name, ()), value)
    return Options(values=values, rest=tuple(words[place:]))


def split_command_line(line: str) -> list[str]:
    """Split a line into words like a shell; empty if a quote is not closed or the line is too long."""
    import shlex

    try:
        return shlex.split(line) if len(line) <= MAX_COMMAND_LINE else []
    except ValueError:
        return []


def program_name(program: str) -> str:
    """The name of a program, without its folder and Windows suffix, in lower case."""
    return _PROGRAM_ENDING.sub("", re.split(r"[\\/]", program)[-1]).lower()


def is_absolute(path: str) -> bool:
    """Whether a path is absolute. A path that begins with a variable counts as absolute."""
    return bool(_ABSOLUTE.match(path))


_SYNTAX = frozenset("=: \t\r\n\v\f")
"""Every assignment, header and URL contains one of these characters."""
_MARKS = (
    *("gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-", "sk_", "rk_", "AKIA", "ASIA", "xox"),
    *("xapp-", "AIza", "ya29.", "npm_", "pypi-", "hf_", "dop_v1_", "SG.", "ntn_", "secret_", "lin_api_", "shpat_"),
    *("dckr_pat_", "figd_", "eyJ"),
)
"""Every key in a known format of a service contains one of these."""
_RANDOM = 24  # characters without a dot or slash: from there on a word may be taken for a key
_MAX_WORD = 4096


def surely_has_no_secret(words: Sequence[str]) -> bool:
    """Whether no word can be, contain or announce a secret. False if in doubt."""
    return all(_is_plain_word(word) for word in words)


def _is_plain_word(word: str) -> bool:
    if not word.isascii() or len(word) > _MAX_WORD or not _SYNTAX.isdisjoint(word):
        return False
    if word.startswith("-") and len(word) > 2:  # the name of an option; its value may be the next word
        return False
    if any(mark in word for mark in _MARKS):
        return False
    return all(len(part) < _RANDOM for part in word.replace("/", ".").split("."))
