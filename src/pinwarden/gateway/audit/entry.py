"""One entry of the audit log: a fact, its moment, who wrote it, and the hash of the entry before it.

An entry is one line of canonical JSON (RFC 8785). The hash of an entry is the SHA-256 of that line without its line
end, so anyone can follow the chain with the tools at hand: docs/reference/audit-log.md.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.event import Fact, content, from_content

FORMAT = "pinwarden-audit/1"
START = f"sha256:{'0' * 64}"
"""What the first entry names as the hash before it."""

_MEMBERS = frozenset({"format", "number", "previous", "at", "gateway", "source", "nth", "fact"})


class Entry(Record):
    """One event in its place."""

    number: int
    """Counts the entries of the log from 1, without a gap."""
    previous: str
    """The hash of the entry before."""
    at: str
    """When it happened, by the clock of the gateway: UTC, to the microsecond."""
    gateway: str
    """The name that its operator gave the gateway, or its machine's."""
    source: str
    """Names one run of one gateway."""
    nth: int
    """Counts the events of that run from 1, without a gap: one that was lost on its way is missed."""
    fact: Fact


class Head(Record):
    """The last entry of a log at some time. Kept elsewhere, it proves that nothing before it was touched since."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


EMPTY = Head(number=0, hash=START)


def encode(entry: Entry) -> bytes:
    """The line of an entry."""
    return canonicalize(
        {
            "format": FORMAT,
            "number": entry.number,
            "previous": entry.previous,
            "at": entry.at,
            "gateway": entry.gateway,
            "source": entry.source,
            "nth": entry.nth,
            "fact": content(entry.fact),
        }
    )


def hash_of(line: bytes) -> str:
    """The hash by which the next entry names this one."""
    return f"sha256:{sha256(line).hexdigest()}"


def parse(line: bytes) -> Entry:
    """Read a line. Only the exact bytes that `encode` writes are an entry."""
    members = strict_json.parse_json(line)
    if not isinstance(members, dict) or members.keys() != _MEMBERS or members["format"] != FORMAT:
        _invalid(f"it is not an entry of format {FORMAT}")
    for name in ("previous", "at", "gateway", "source"):
        if not isinstance(members[name], str):
            _invalid(f"{name} is not a text")
    for name in ("number", "nth"):
        if type(members[name]) is not int or members[name] < 1:
            _invalid(f"{name} is not a count")
    if canonicalize(members) != line:
        _invalid("it is not in its canonical form")
    return Entry(
        number=members["number"],
        previous=members["previous"],
        at=members["at"],
        gateway=members["gateway"],
        source=members["source"],
        nth=members["nth"],
        fact=from_content(members["fact"]),
    )


def parse_head(text: str) -> Head:
    """Read a head as people write it down: ``NUMBER:sha256:HEX``."""
    number, _, rest = text.strip().partition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise PinwardenError("USAGE", f"{text[:120]!a} is no head of an audit log", hint="Write NUMBER:sha256:HEX.")
    return Head(number=int(number), hash=str(Digest.parse(rest)))


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("AUDIT_INVALID", f"not an entry of the audit log: {why}")
