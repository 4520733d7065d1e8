"""Events and entries of the audit log, and the verification of its hash chain. Pure.

An entry is one line of canonical JSON (RFC 8785). The hash of an entry is the SHA-256 of that line without its line
end, and is a member of the next entry: docs/reference/audit-log.md.

A chain alone cannot prove that its last entries were not removed, or that the log was not replaced as a whole.
Comparing the log with a head that is stored elsewhere detects both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names

OBSERVED = "observed"
"""The server served a definition: an item of a list, or its serverInfo, capabilities or instructions."""
CALLED = "called"
"""The client used an item, or the server sent the client a request, and the gateway forwarded it unchanged."""
ALLOWED = "allowed"
"""The gateway forwarded an unapproved item or message, because the policy only records it (``audit``)."""
WARNED = "warned"
"""The gateway forwarded an unapproved item or message, and warned the client."""
BLOCKED = "blocked"
"""The gateway removed an item from a list, or refused a message."""
HELD = "held"
"""A change is pending review."""
TRUSTED = "trusted"
"""The gateway trusted a server on first use, because it had never seen the server before."""
APPROVED = "approved"
FIRST_APPROVED = "first_approved"
"""The first of two people approved a change. It stays blocked until the second one does."""
REJECTED = "rejected"
POLICY_CHANGED = "policy_changed"
LOCK_CHANGED = "lock_changed"
"""The gateway reloaded the approved surfaces."""
STARTED = "started"
"""The gateway started a server or connected to it."""
STOPPED = "stopped"
"""A server ended, or the gateway closed a client's connection; ``reason`` says why."""
EVENTS_LOST = "spooled"
"""Events were lost or could not be read: a journal, in which they wait for the database, is damaged, or a machine
dropped events before the company's gateway got them. The audit log records this event itself."""

TOKEN_ADDED = "token_added"  # noqa: S105
"""A person created a token of a client or machine: ``item`` is its id, ``by`` the person."""
TOKEN_REVOKED = "token_revoked"  # noqa: S105
SIGNED_IN = "signed_in"
"""A person signed in to the dashboard (``by``), or the gateway admitted a client for the first time in its run."""
SIGN_IN_REFUSED = "sign_in_refused"
"""A code, token or login was refused. Of many, only the 1st, 10th, 100th and so on of a run are recorded."""
RESTORED = "restored"
"""The database was restored from a backup whose head is ``call``: what happened after that is not in this log."""

GRANT_ADDED = "grant_added"
"""A person connected a remote server: ``by`` is the person, ``item`` the id of the grant."""
GRANT_REMOVED = "grant_removed"
"""A grant was deleted with its tokens."""
GRANT_FAILED = "grant_failed"
"""A grant cannot be used any more, so the person has to connect the server again."""
ARCHIVED = "archived"
"""The oldest entries were moved into a file: ``item`` is its name, ``observed`` its digest, ``call`` its head."""

KINDS = (
    OBSERVED,
    CALLED,
    ALLOWED,
    WARNED,
    BLOCKED,
    HELD,
    TRUSTED,
    FIRST_APPROVED,
    APPROVED,
    REJECTED,
    POLICY_CHANGED,
    LOCK_CHANGED,
    STARTED,
    STOPPED,
    EVENTS_LOST,
    TOKEN_ADDED,
    TOKEN_REVOKED,
    SIGNED_IN,
    SIGN_IN_REFUSED,
    GRANT_ADDED,
    GRANT_REMOVED,
    GRANT_FAILED,
    RESTORED,
    ARCHIVED,
)

SERVER_ITEM = "server"
"""The ``item_kind`` for a server's description of itself; ``item`` is serverInfo, capabilities or instructions."""

_MAX_TEXT = 1024  # characters of a name or sentence; a server may send megabytes
_MAX_ARGUMENTS = 64 * 1024  # characters of the arguments of one call
_MAX_EXPECTED = 64  # approved digests in one event


class AuditEvent(Record):
    """An observation or action of the gateway. Members that do not apply are empty.

    A new member is added as the last text, so that the journals of earlier releases can be read.
    """

    kind: str
    """One of `KINDS`."""
    server: str = ""
    client: str = ""
    """The client's name: the one in its token, or else the one that the client sent about itself."""
    session: str = ""
    """Identifies one connection between a client and a server."""
    call: str = ""
    """The correlation id, the same in all events about one message and in the refusal that the client gets."""
    method: str = ""
    item_kind: str = ""
    """tool, prompt, resource or resourceTemplate; `SERVER_ITEM`; request for a server request; task; method for a
    method that no revision of MCP defines."""
    item: str = ""
    """The item's key in the list: a name or URI."""
    expected: tuple[str, ...] = ()
    """The approved digests."""
    observed: str = ""
    """The digest of the served content; empty if the content has none."""
    level: str = ""
    """The severity of a change, as in surface/drift."""
    code: str = ""
    """The reason as a stable code."""
    reason: str = ""
    """The reason as a sentence."""
    policy: str = ""
    """The digest of the policy that decided."""
    by: str = ""
    """The person who approved or rejected, created or revoked a token, or signed in."""
    arguments: bytes | None = None
    """The JSON text of a call's arguments, only if the policy records them."""


TEXT_MEMBERS = tuple(name for name in field_names(AuditEvent) if name not in ("expected", "arguments"))
"""The members of an event that are texts, in the order in which a journal has them."""


def event_to_json(event: AuditEvent) -> dict[str, Any]:
    """Return the event as JSON. Empty members are omitted; long texts are truncated, and state their length."""
    members: dict[str, Any] = {}
    for name in TEXT_MEMBERS:
        text = getattr(event, name)
        if text:
            members[name] = _truncate(text, _MAX_TEXT)
    if event.expected:
        members["expected"] = [_truncate(digest, _MAX_TEXT) for digest in event.expected[:_MAX_EXPECTED]]
    if event.arguments is not None:
        members["arguments"] = _truncate(event.arguments.decode("utf-8", "backslashreplace"), _MAX_ARGUMENTS)
    return members


def encode_event(event: AuditEvent) -> bytes:
    """Return the event as canonical JSON (RFC 8785), without a line end."""
    return canonicalize(event_to_json(event))


def parse_event(data: bytes) -> AuditEvent:
    """Parse the output of `encode_event`; raises ``AUDIT_INVALID``."""
    return event_from_json(strict_json.parse_json(data))


def event_from_json(members: Any) -> AuditEvent:
    """Build an event from its JSON members. Unknown or malformed members raise ``AUDIT_INVALID``."""
    if not isinstance(members, Mapping):
        _raise_invalid_event("it is not an object")
    unknown = sorted(members.keys() - set(field_names(AuditEvent)))
    if unknown:
        _raise_invalid_event(f"it has the unknown member {unknown[0][:80]!a}")
    if members.get("kind") not in KINDS:
        _raise_invalid_event("its kind is unknown")
    texts = {name: members[name] for name in TEXT_MEMBERS if name in members}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            _raise_invalid_event(f"{name} is not a non-empty string")
    expected = members.get("expected", [])
    if not isinstance(expected, list) or not all(isinstance(digest, str) for digest in expected):
        _raise_invalid_event("expected is not a list of digests")
    arguments = members.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        _raise_invalid_event("arguments is not a string")
    return AuditEvent(
        expected=tuple(expected),
        arguments=None if arguments is None else arguments.encode(),
        **texts,
    )


def _truncate(text: str, length: int) -> str:
    """Truncate a text, and escape characters that UTF-8 cannot encode, so that every event can be recorded."""
    if len(text) > length:
        text = f"{text[:length]}… ({len(text)} characters)"
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _raise_invalid_event(reason: str) -> NoReturn:
    raise PinwardenError("AUDIT_INVALID", f"not an event of the audit log: {reason}")


FORMAT = "pinwarden-audit/1"
START_HASH = f"sha256:{'0' * 64}"
"""The ``previous`` hash of the first entry."""

_ENTRY_MEMBERS = frozenset({"format", "number", "previous", "at", "gateway", "source", "nth", "fact"})


class LogEntry(Record):
    """An event with its position in the chain."""

    number: int
    """Counts the entries of the log from 1, without gaps."""
    previous: str
    """The hash of the previous entry."""
    at: str
    """The time of the event by the gateway's clock, in UTC with microseconds."""
    gateway: str
    """The name of the gateway, or of its machine."""
    source: str
    """Identifies one run of one gateway."""
    nth: int
    """Counts the events of that run from 1, without gaps, so that verification detects a lost event."""
    event: AuditEvent


class AuditHead(Record):
    """The number and hash of the last entry of a log.

    A copy that is kept outside the log reveals whether this entry or an earlier one was changed.
    """

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


EMPTY_HEAD = AuditHead(number=0, hash=START_HASH)


def encode_entry(entry: LogEntry) -> bytes:
    """Return the entry as canonical JSON (RFC 8785), without a line end."""
    return canonicalize(
        {
            "format": FORMAT,
            "number": entry.number,
            "previous": entry.previous,
            "at": entry.at,
            "gateway": entry.gateway,
            "source": entry.source,
            "nth": entry.nth,
            "fact": event_to_json(entry.event),
        }
    )


def hash_entry(line: bytes) -> str:
    """Return the hash of an encoded entry. The next entry contains it."""
    return f"sha256:{sha256(line).hexdigest()}"


def parse_entry(line: bytes) -> LogEntry:
    """Parse a line of the log. Raises ``AUDIT_INVALID`` if `encode_entry` would write it differently."""
    members = strict_json.parse_json(line)
    if not isinstance(members, dict) or members.keys() != _ENTRY_MEMBERS or members["format"] != FORMAT:
        _raise_invalid_entry(f"it is not an entry of format {FORMAT}")
    for name in ("previous", "at", "gateway", "source"):
        if not isinstance(members[name], str):
            _raise_invalid_entry(f"{name} is not a string")
    for name in ("number", "nth"):
        if type(members[name]) is not int or members[name] < 1:
            _raise_invalid_entry(f"{name} is not a positive integer")
    if canonicalize(members) != line:
        _raise_invalid_entry("it is not canonical JSON")
    return LogEntry(
        number=members["number"],
        previous=members["previous"],
        at=members["at"],
        gateway=members["gateway"],
        source=members["source"],
        nth=members["nth"],
        event=event_from_json(members["fact"]),
    )


def parse_head(text: str) -> AuditHead:
    """Parse ``NUMBER:sha256:HEX``."""
    number, _, rest = text.strip().partition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise PinwardenError(
            "USAGE", f"{text[:120]!a} is not the head of an audit log", hint="Write NUMBER:sha256:HEX."
        )
    return AuditHead(number=int(number), hash=str(Digest.parse(rest)))


def _raise_invalid_entry(reason: str) -> NoReturn:
    raise PinwardenError("AUDIT_INVALID", f"not an entry of the audit log: {reason}")


MESSAGES = {
    "unreadable": "was not written by a gateway",
    "gap": "does not follow the previous entry: entries were removed",
    "moved": "states another number than its position in the log",
    "broken_link": "does not contain the hash of the previous entry: one of the two was changed",
    "misfiled": "and its database row name different runs or event counts, which could suppress other events",
    "lost_event": "does not follow the previous event of its gateway: events are missing",
    "cut_off": "is missing: the log ends before the given head",
    "unarchived": "and all before it are missing, and no entry says that they were archived",
    "rewritten": "differs from the given head or export: the log was rewritten",
}
_MAX_BREAKS = 100  # problems of the chain that a report lists


class ChainBreak(Record):
    """A place where the chain is broken: an entry that does not fit, or that is missing."""

    number: int
    code: str
    message: str


class ChainResult(Record):
    """The result of verifying a chain."""

    entries: int
    head: AuditHead
    breaks: tuple[ChainBreak, ...]


class ChainVerifier:
    """Verifies a chain entry by entry. Memory grows only with the number of gateway runs."""

    def __init__(
        self,
        heads: Iterable[AuditHead] = (),
        start: AuditHead = EMPTY_HEAD,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Verify the entries after the head ``start``. The chain must contain ``heads``, none older than ``start``.

        ``counts`` is the number of events of each gateway run up to ``start``, if it is known.
        """
        self._heads: dict[int, set[str]] = {}
        for head in heads:
            self._heads.setdefault(head.number, set()).add(head.hash)
        self._head = start
        self._knows_counts = start == EMPTY_HEAD or counts is not None
        self._entries = 0
        self.counts = dict(counts or {})
        """The number of events of each gateway run so far."""
        self._breaks: list[ChainBreak] = []
        self._compare_with_heads(start)

    def check_entry(self, number: int, line: bytes, columns: tuple[str, int] | None = None) -> AuditHead:
        """Check the next entry, and return the head of the chain up to it.

        ``columns`` are ``source`` and ``nth`` in its database row; None for an export.
        """
        if number < 1:  # no gateway writes such an entry
            self._add_break(number, "moved")
            return self._head
        self._entries += 1
        previous, self._head = self._head, AuditHead(number=number, hash=hash_entry(line))
        self._compare_with_heads(self._head)
        try:
            entry = parse_entry(line)
        except PinwardenError as err:
            self._add_break(number, "unreadable", err.message)
        else:
            self._check_order(number, entry, previous)
            if columns is not None and columns != (entry.source, entry.nth):
                self._add_break(number, "misfiled")
        return self._head

    @property
    def head(self) -> AuditHead:
        """The head of the chain so far."""
        return self._head

    def report_unarchived(self, start: AuditHead) -> None:
        """Report that the entries up to a head are missing, and that the log does not say that they were archived."""
        self._add_break(start.number, "unarchived")

    def finish(self) -> ChainResult:
        """Report heads that the chain does not reach, and return the result. Call it after the last entry."""
        for number in sorted(self._heads):
            self._add_break(number, "cut_off")
        self._heads.clear()
        return ChainResult(entries=self._entries, head=self._head, breaks=tuple(self._breaks))

    def report_rewritten(self, number: int) -> None:
        """Report that an entry differs from an earlier export."""
        self._add_break(number, "rewritten")

    def _compare_with_heads(self, head: AuditHead) -> None:
        if self._heads.pop(head.number, {head.hash}) != {head.hash}:
            self._add_break(head.number, "rewritten")

    def _check_order(self, number: int, entry: LogEntry, previous: AuditHead) -> None:
        if entry.number != number:
            self._add_break(number, "moved")
        elif number != previous.number + 1:
            self._add_break(number, "gap")
        elif entry.previous != previous.hash:
            self._add_break(number, "broken_link")
        expected = self.counts.get(entry.source, 0 if self._knows_counts else entry.nth - 1) + 1
        if entry.nth != expected:
            self._add_break(number, "lost_event", f"event {expected} of {entry.source[:40]} is missing")
        self.counts[entry.source] = max(entry.nth, expected)

    def _add_break(self, number: int, code: str, detail: str = "") -> None:
        if len(self._breaks) < _MAX_BREAKS:
            message = f"entry {number} {MESSAGES[code]}" + (f" ({detail})" if detail else "")
            self._breaks.append(ChainBreak(number=number, code=code, message=message))
