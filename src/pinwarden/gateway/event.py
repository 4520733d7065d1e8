"""What the gateway saw or did, as a value and as the JSON that the audit log keeps.

A fact says who, what, and why, in digests and names. It holds no time: the log that takes it puts the moment beside
it. It holds no arguments and no results, unless the user asked for the arguments of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
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
_MEMBERS = frozenset({"kind", "expected", "arguments", *_TEXTS, *_LATER})


class Fact(Record):
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


def content(fact: Fact) -> dict[str, Any]:
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


def encode(fact: Fact) -> bytes:
    """The fact as one line of canonical JSON (RFC 8785), the same bytes on every machine."""
    return canonicalize(content(fact))


def parse(data: bytes) -> Fact:
    """Read what `encode` wrote."""
    return from_content(strict_json.parse_json(data))


def from_content(members: Any) -> Fact:
    """A fact from its JSON members. What is not one raises; it never becomes a fact that says less."""
    if not isinstance(members, Mapping):
        _invalid("it is not an object")
    unknown = sorted(members.keys() - _MEMBERS)
    if unknown:
        _invalid(f"it has the unknown member {unknown[0][:80]!a}")
    if members.get("kind") not in KINDS:
        _invalid("its kind is unknown")
    texts = {name: members[name] for name in _TEXTS + _LATER if name in members}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            _invalid(f"{name} is not a text")
    expected = members.get("expected", [])
    if not isinstance(expected, list) or not all(isinstance(each, str) for each in expected):
        _invalid("expected is not a list of digests")
    arguments = members.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        _invalid("arguments is not a text")
    return Fact(
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


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("AUDIT_INVALID", f"not an event of the audit log: {why}")
