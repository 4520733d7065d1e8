"""Events and entries of the audit log, and the verification of its hash chain. Pure.

An entry is one line of canonical JSON (RFC 8785). Its hash is the SHA-256 of that line without its line end and is a
member of the next entry: docs/reference/audit-log.md.

A chain cannot show that its last entries were cut off or that the whole log was replaced. Comparing it with a head that
was kept elsewhere shows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

OBSERVED = "observed"
"""A definition was served: an item of a list, or what the server says of itself."""
CALLED = "called"
"""The client used an item, or the server sent the client a request, and nothing stood against it."""
ALLOWED = "allowed"
"""Something that the approved surface does not cover passed, because the policy only watches."""
WARNED = "warned"
"""The same, and the client was told."""
BLOCKED = "blocked"
"""Something was withheld from a list, or a message was refused."""
HELD = "held"
"""A change waits for review."""
TRUSTED = "trusted"
"""Taken as approved because it was the first thing ever seen of this server."""
APPROVED = "approved"
REJECTED = "rejected"
POLICY_CHANGED = "policy_changed"
LOCK_CHANGED = "lock_changed"
"""The approved surfaces were read anew."""
STARTED = "started"
"""A server was started or connected to."""
STOPPED = "stopped"
"""A server was ended, or a connection of a client was cut, with the reason."""
SPOOLED = "spooled"
"""Written by the log itself, about the files in which events wait for the database: one of them is damaged."""

KINDS = (
    OBSERVED,
    CALLED,
    ALLOWED,
    WARNED,
    BLOCKED,
    HELD,
    TRUSTED,
    APPROVED,
    REJECTED,
    POLICY_CHANGED,
    LOCK_CHANGED,
    STARTED,
    STOPPED,
    SPOOLED,
)

SERVER_ITEM = "server"
"""The ``item_kind`` of what a server says of itself; ``item`` is then serverInfo, capabilities or instructions."""

_TEXT = 1024  # characters of a name or a sentence that are kept; a server may send megabytes
_ARGUMENTS = 64 * 1024  # of arguments, where they are asked for
_MANY = 64  # expected digests that are kept

_TEXTS = ("server", "client", "session", "call", "method", "item_kind", "item", "observed", "level", "code", "reason")
_LATER = ("policy", "by")
_EVENT_MEMBERS = frozenset({"kind", "expected", "arguments", *_TEXTS, *_LATER})


class AuditEvent(Record):
    """One thing that the gateway saw or did. Empty text means that there is nothing to say."""

    kind: str
    """One of `KINDS`."""
    server: str = ""
    client: str = ""
    """The name of the client: of its token, or what it says of itself in the handshake."""
    session: str = ""
    """Names one connection between a client and a server."""
    call: str = ""
    """The correlation id. All facts about one message have the same; it is also in the refusal that the client gets."""
    method: str = ""
    item_kind: str = ""
    """tool, prompt, resource or resourceTemplate, as in changes; `SERVER_ITEM`; request for one that the server sent;
    task or method if that is unknown."""
    item: str = ""
    """Its key in the list: a name, an address."""
    expected: tuple[str, ...] = ()
    """The digests that were allowed."""
    observed: str = ""
    """The digest that was seen; empty for an item that has none."""
    level: str = ""
    """How grave a change is: a level of surface/drift."""
    code: str = ""
    """Why, as stable data."""
    reason: str = ""
    """Why, for people."""
    policy: str = ""
    """The digest of the policy that decided."""
    by: str = ""
    """Who approved or rejected."""
    arguments: bytes | None = None
    """The JSON text of a call's arguments, only if the user asked for it."""


def event_content(fact: AuditEvent) -> dict[str, Any]:
    """The fact as JSON members. What is empty is left out, and what is too long is cut off and says so."""
    members: dict[str, Any] = {"kind": fact.kind}
    for name in _TEXTS + _LATER:
        text = getattr(fact, name)
        if text:
            members[name] = _bounded(text, _TEXT)
    if fact.expected:
        members["expected"] = [_bounded(each, _TEXT) for each in fact.expected[:_MANY]]
    if fact.arguments is not None:
        members["arguments"] = _bounded(fact.arguments.decode("utf-8", "backslashreplace"), _ARGUMENTS)
    return members


def encode_event(fact: AuditEvent) -> bytes:
    """The fact as one line of canonical JSON (RFC 8785), the same bytes on every machine."""
    return canonicalize(event_content(fact))


def parse_event(data: bytes) -> AuditEvent:
    """Read what `encode_event` wrote."""
    return event_from_content(strict_json.parse_json(data))


def event_from_content(members: Any) -> AuditEvent:
    """A fact from its JSON members. What is not one raises; it never becomes a fact that says less."""
    if not isinstance(members, Mapping):
        _invalid_event("it is not an object")
    unknown = sorted(members.keys() - _EVENT_MEMBERS)
    if unknown:
        _invalid_event(f"it has the unknown member {unknown[0][:80]!a}")
    if members.get("kind") not in KINDS:
        _invalid_event("its kind is unknown")
    texts = {name: members[name] for name in _TEXTS + _LATER if name in members}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            _invalid_event(f"{name} is not a text")
    expected = members.get("expected", [])
    if not isinstance(expected, list) or not all(isinstance(each, str) for each in expected):
        _invalid_event("expected is not a list of digests")
    arguments = members.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        _invalid_event("arguments is not a text")
    return AuditEvent(
        kind=members["kind"],
        expected=tuple(expected),
        arguments=None if arguments is None else arguments.encode(),
        **texts,
    )


def _bounded(text: str, most: int) -> str:
    """At most so many characters, and nothing that UTF-8 cannot write: a fact is never refused for its text."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text)} characters)"
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _invalid_event(why: str) -> NoReturn:
    raise PinwardenError("AUDIT_INVALID", f"not an event of the audit log: {why}")


FORMAT = "pinwarden-audit/1"
START = f"sha256:{'0' * 64}"
"""What the first entry names as the hash before it."""

_ENTRY_MEMBERS = frozenset({"format", "number", "previous", "at", "gateway", "source", "nth", "fact"})


class LogEntry(Record):
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
    fact: AuditEvent


class LogHead(Record):
    """The last entry of a log at some time. Kept elsewhere, it proves that nothing before it was touched since."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


EMPTY = LogHead(number=0, hash=START)


def encode_entry(entry: LogEntry) -> bytes:
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
            "fact": event_content(entry.fact),
        }
    )


def entry_hash(line: bytes) -> str:
    """The hash by which the next entry names this one."""
    return f"sha256:{sha256(line).hexdigest()}"


def parse_entry(line: bytes) -> LogEntry:
    """Read a line. Only the exact bytes that `encode_event` writes are an entry."""
    members = strict_json.parse_json(line)
    if not isinstance(members, dict) or members.keys() != _ENTRY_MEMBERS or members["format"] != FORMAT:
        _invalid_entry(f"it is not an entry of format {FORMAT}")
    for name in ("previous", "at", "gateway", "source"):
        if not isinstance(members[name], str):
            _invalid_entry(f"{name} is not a text")
    for name in ("number", "nth"):
        if type(members[name]) is not int or members[name] < 1:
            _invalid_entry(f"{name} is not a count")
    if canonicalize(members) != line:
        _invalid_entry("it is not in its canonical form")
    return LogEntry(
        number=members["number"],
        previous=members["previous"],
        at=members["at"],
        gateway=members["gateway"],
        source=members["source"],
        nth=members["nth"],
        fact=event_from_content(members["fact"]),
    )


def parse_head(text: str) -> LogHead:
    """Read a head as people write it down: ``NUMBER:sha256:HEX``."""
    number, _, rest = text.strip().partition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise PinwardenError("USAGE", f"{text[:120]!a} is no head of an audit log", hint="Write NUMBER:sha256:HEX.")
    return LogHead(number=int(number), hash=str(Digest.parse(rest)))


def _invalid_entry(why: str) -> NoReturn:
    raise PinwardenError("AUDIT_INVALID", f"not an entry of the audit log: {why}")


MESSAGES = {
    "unreadable": "is not an entry that a gateway wrote",
    "gap": "does not follow the entry before it: something was removed",
    "moved": "stands in another place than the one it was written to",
    "broken_link": "names another entry before it than the one that is there: one of the two was changed",
    "misfiled": "is kept under another run or count than the one that it names, where it keeps other events out",
    "lost_event": "was not preceded by the event that its gateway counted before it",
    "cut_off": "is not there: the log ends before the head that was kept",
    "rewritten": "is not the one that was kept: the log was written anew",
}
_MOST = 100  # breaks that are told; who finds so many will not read on


class Break(Record):
    """One place where the log is not what was written."""

    number: int
    code: str
    message: str


class Verified(Record):
    """What came of following the chain."""

    entries: int
    head: LogHead
    breaks: tuple[Break, ...]


class ChainCheck:
    """Follows a chain entry by entry, in constant memory but for a number per run of a gateway."""

    def __init__(self, heads: Iterable[LogHead] = (), start: LogHead = EMPTY) -> None:
        """``start`` is what the first entry follows: heads before it cannot be checked, and must not be given."""
        self._kept: dict[int, set[str]] = {}
        for head in heads:
            self._kept.setdefault(head.number, set()).add(head.hash)
        self._head = start
        self._whole = start == EMPTY
        self._entries = 0
        self._counts: dict[str, int] = {}
        self._breaks: list[Break] = []
        self._hold_to_heads(start)

    def follow(self, number: int, line: bytes, filed: tuple[str, int] | None = None) -> None:
        """The next entry, the number under which it is kept, and the run and count, where they are kept beside it."""
        if number < 1:  # none was ever written there
            self._break(number, "moved")
            return
        self._entries += 1
        before, self._head = self._head, LogHead(number=number, hash=entry_hash(line))
        self._hold_to_heads(self._head)
        try:
            entry = parse_entry(line)
        except PinwardenError as err:
            self._break(number, "unreadable", err.message)
        else:
            self._check(number, entry, before)
            if filed is not None and filed != (entry.source, entry.nth):
                self._break(number, "misfiled")

    def outcome(self) -> Verified:
        """What was found, when there are no more entries."""
        for number in sorted(self._kept):
            self._break(number, "cut_off")
        self._kept.clear()
        return Verified(entries=self._entries, head=self._head, breaks=tuple(self._breaks))

    def differs(self, number: int) -> None:
        """The entry is not the one that an earlier export has."""
        self._break(number, "rewritten")

    def _hold_to_heads(self, here: LogHead) -> None:
        if self._kept.pop(here.number, {here.hash}) != {here.hash}:
            self._break(here.number, "rewritten")

    def _check(self, number: int, entry: LogEntry, before: LogHead) -> None:
        if entry.number != number:
            self._break(number, "moved")
        elif number != before.number + 1:
            self._break(number, "gap")
        elif entry.previous != before.hash:
            self._break(number, "broken_link")
        expected = self._counts.get(entry.source, 0 if self._whole else entry.nth - 1) + 1
        if entry.nth != expected:
            self._break(number, "lost_event", f"event {expected} of {entry.source[:40]} is missing")
        self._counts[entry.source] = max(entry.nth, expected)

    def _break(self, number: int, code: str, more: str = "") -> None:
        if len(self._breaks) < _MOST:
            told = f"entry {number} {MESSAGES[code]}" + (f" ({more})" if more else "")
            self._breaks.append(Break(number=number, code=code, message=told))
