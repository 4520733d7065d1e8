"""The front matter of a ``SKILL.md``, read line by line, as the most lenient client does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinwarden.core.record import Record

_MEMBER = re.compile(r"([A-Za-z_][A-Za-z0-9_ -]*?)[ \t]*:(?:[ \t]+(.*)|[ \t]*)")
_NESTED_POWER = re.compile(r"\s+[\"']?(?:hooks|(?:dis)?allowed[-_ ]tools)[\"']?\s*:", re.IGNORECASE)
"""A line that belongs to another member for a YAML parser, and not for a reader that searches for words."""


class FrontMatter(Record):
    """The front matter of a ``SKILL.md``."""

    name: str = ""
    description: str = ""
    license: str = ""
    members: Mapping[str, str]
    """The text of each member, by its name in lower case with hyphens."""
    unusual: tuple[str, ...] = ()
    """Lines at the top level that are not ``name: value``."""
    body: str = ""


def read_front_matter(text: str) -> FrontMatter:
    """Read the front matter line by line. Text without one is all body."""
    lines = text.lstrip("\ufeff \t\r\n").splitlines()
    if not lines or not re.fullmatch(r"-{3,}\s*", lines[0]):
        return FrontMatter(members={}, body=text)
    end = next(
        (index for index, line in enumerate(lines[1:], 1) if re.fullmatch(r"-{3,}\s*|\.{3}\s*", line)), len(lines)
    )
    parts: dict[str, list[str]] = {}
    unusual: list[str] = []
    current = ""
    for line in lines[1:end]:
        match = _MEMBER.fullmatch(line.rstrip())
        if match is not None:
            current = match[1].strip().lower().replace("_", "-").replace(" ", "-")
            parts.setdefault(current, []).append(match[2] or "")
        elif line[:1] in (" ", "\t", "-") and current and not _NESTED_POWER.match(line):
            parts[current].append(line.rstrip())
        elif line.strip() and not line.startswith("#"):
            unusual.append(line.strip())
    members = {name: _join(lines) for name, lines in parts.items()}
    return FrontMatter(
        name=_read_plain(members.get("name", "")),
        description=_read_plain(members.get("description", "")),
        license=_read_plain(members.get("license", "")),
        members=members,
        unusual=tuple(unusual),
        body="\n".join(lines[end + 1 :]),
    )


def _join(lines: list[str]) -> str:
    """Join the lines of a member. An indented line keeps an empty first one, as in a block."""
    first, *others = lines
    return "\n".join([first, *others]) if first or (others and others[0][:1] in " \t-") else "\n".join(others)


def _read_plain(value: str) -> str:
    """Return a scalar of the front matter without quotation marks and the mark of a block."""
    text = re.sub(r"^[>|][+-]?\s*\n", "", value).strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return " ".join(text.split())
