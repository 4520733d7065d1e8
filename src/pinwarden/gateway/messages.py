"""JSON-RPC messages as the gateway reads, makes and answers them."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import show_invisible
from pinwarden.gateway.gates.lists import LIST_FAILED, METHOD_UNKNOWN, NOT_LISTED, digest_text
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.tasks import TASK_NOTIFICATIONS
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CLIENT_META,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    VERSION_META,
)
from pinwarden.surface.surface import ITEM_KINDS, ItemKind

META_KEYS = (VERSION_META, CLIENT_META, CAPABILITIES_META)
"""What a request of the stateless era says about its client, whatever it asks for."""
LISTEN = "subscriptions/listen"
WARNINGS = "pinwarden/warnings"
"""The member of ``_meta`` that tells a client what passed only because the policy warns."""

LIST_METHODS: Mapping[str, ItemKind] = {kind.method: kind for kind in ITEM_KINDS}
_MAX_NAME = 120
_DIGITS = 18


def encode(message: Mapping[str, Any]) -> bytes:
    """A message of our own."""
    return dumps(message, separators=(",", ":")).encode()


def request(number: str, method: str, params: Mapping[str, Any]) -> bytes:
    """A request of our own."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method}
    if params:
        message["params"] = params
    return encode(message)


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """A notification of our own."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return encode(message)


def error_response(number: Any, code: int, text: str, data: Mapping[str, Any] | None = None) -> bytes:
    """An answer that something went wrong."""
    body: dict[str, Any] = {"code": code, "message": text}
    if data:
        body["data"] = data
    return encode({"jsonrpc": "2.0", "id": number, "error": body})


def printable_name(name: str) -> str:
    """A name from outside, for a sentence."""
    return show_invisible(name[:_MAX_NAME])


def blocked_response(number: Any, verdict: Verdict, server: str, call: str, asked_for: str = "") -> bytes:
    """The answer to a request that uses something that is blocked: why, which digests, and how to review it.

    ``asked_for`` is what the client wanted, where the verdict is about something that the server calls otherwise: a
    refusal speaks with our voice, and says no word of a server.
    """
    name = asked_for or verdict.key
    what = f"{verdict.entity} '{printable_name(name)}'"
    digests = f" Served: {digest_text(verdict.digest) or 'nothing that has a digest'}."
    approved = (
        f" Approved: {', '.join(verdict.expected)}." if verdict.expected else " Nothing of that name is approved."
    )
    if verdict.code == LIST_FAILED:
        approved = digests = ""  # nobody could look
    # What no server ever listed has no definition that a review could show.
    where = "pinwarden audit tail" if verdict.code in (NOT_LISTED, METHOD_UNKNOWN) else "pinwarden review"
    text = (
        f"pinwarden: {what} of server '{printable_name(server)}' is blocked: {verdict.reason}{approved}{digests}"
        f" A person can look at it with: {where}"
    )
    # An unknown method is answered as by a server that does not have it.
    code = METHOD_NOT_FOUND if verdict.code == METHOD_UNKNOWN else INVALID_PARAMS
    data = {**verdict_data(verdict), "name": name[:_MAX_NAME], "server": server, "call": call}
    return error_response(number, code, text, {"pinwarden": data})


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as data for programs."""
    return {
        "code": verdict.code,
        "level": verdict.level,
        "kind": verdict.entity,
        "name": verdict.key[:_MAX_NAME],
        "expected": list(verdict.expected),
        "observed": digest_text(verdict.digest) or None,
    }


def unrecorded_response(number: Any, problem: PinwardenError) -> bytes:
    """The answer to a request that must not pass because it cannot be recorded."""
    text = f"pinwarden: nothing passes that cannot be recorded: {problem.message}"
    return error_response(number, INTERNAL_ERROR, text, {"pinwarden": {"code": problem.code}})


def is_id(value: Any) -> bool:
    """Whether a value can be the id of a request."""
    return (type(value) is int) or (type(value) is str and len(value) <= 1024)


def coerced_id(value: Any) -> int | None:
    """The whole number that some clients take an id for that is none: 7.0, or the text 7."""
    if type(value) is float:
        return int(value) if value.is_integer() else None
    if type(value) is str and len(value) <= _DIGITS and value.isascii() and value.isdigit():
        return int(value)
    return None


_SHORT = 4096  # bytes; what so few can hold is judged in a millisecond or two
_JUDGED = frozenset({"interceptor/invoke", LISTEN})
"""Requests of the client that hold many things to be judged."""
_EMBEDDING = frozenset({"inputRequests", "tools", "task", "result"})
"""Members of a result that hold requests or tool definitions."""


def is_slow_client_message(message: Any, size: int) -> bool:
    """Whether judging a message of the client takes long."""
    return size > _SHORT and type(message) is dict and message.get("method") in _JUDGED


def is_slow_server_message(message: Any, size: int) -> bool:
    """Whether judging a message of the server takes long: requests, and what holds requests, are scanned."""
    if size <= _SHORT or type(message) is not dict:
        return False
    if "method" in message:
        return "id" in message or message["method"] in TASK_NOTIFICATIONS
    result = message.get("result")
    if type(result) is dict:
        return not _EMBEDDING.isdisjoint(result)
    error = message.get("error")
    return type(error) is dict and "data" in error
