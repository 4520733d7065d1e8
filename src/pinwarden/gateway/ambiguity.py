"""Finding messages that two JSON readers may understand differently, and ids in text that is not strict JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from json import JSONDecodeError, loads
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits


class Names(Record):
    """The members of one object that somebody acts on."""

    exact: frozenset[str]
    folded: frozenset[str]


def names(*words: str) -> Names:
    """These members."""
    return Names(exact=frozenset(words), folded=frozenset(word.casefold() for word in words))


_MESSAGE = names("jsonrpc", "id", "method", "params", "result", "error")
_PARAMS = names("name", "uri", "cursor", "ref", "arguments", "_meta", "taskId", "notifications")
_WANTED = names("resourceSubscriptions", "taskIds")
_REF = names("type", "name", "uri")
_RESULT = names(
    *("tools", "prompts", "resources", "resourceTemplates", "nextCursor", "ttlMs", "cacheScope", "_meta"),
    *("serverInfo", "capabilities", "instructions", "protocolVersion", "resultType", "inputRequests", "tasks"),
)
_TASK = names("taskId", "status", "statusMessage", "result", "error", "inputRequests", "task", "_meta")
_ERROR = names("code", "data")
_ELICITATIONS = names("elicitations")
_ASKED = names("mode", "url", "tools", "toolChoice", "systemPrompt", "messages")


def is_ambiguous_request(message: Mapping[str, Any]) -> bool:
    """Whether readers may differ on which request of the client this is, or on what it uses."""
    if "result" in message or "error" in message or _looks_alike(message, _MESSAGE):
        return True
    params = message.get("params")
    if type(params) is not dict:
        return False
    if _looks_alike(params, _PARAMS) or _looks_alike(params.get("ref"), _REF):
        return True
    return _looks_alike(params.get("notifications"), _WANTED)


def is_ambiguous_server_request(message: Mapping[str, Any]) -> bool:
    """The same for what a server asks of the client."""
    if "result" in message or "error" in message or _looks_alike(message, _MESSAGE):
        return True
    return _looks_alike(message.get("params"), _ASKED)


def is_ambiguous_answer(message: Mapping[str, Any]) -> bool:
    """Whether readers may differ on what an answer of the server says."""
    if ("result" in message) is ("error" in message) or "method" in message or _looks_alike(message, _MESSAGE):
        return True
    if "result" in message:
        result = message["result"]
        return _looks_alike(result, _RESULT) or _doubtful_requests(result)
    return _doubtful_error(message["error"])


def is_ambiguous_task(task: Any) -> bool:
    """The same for what is told of a task, which may hold a result, an error or questions."""
    if type(task) is not dict:
        return False
    result = task.get("result")
    if _looks_alike(task, _TASK) or _doubtful_requests(task) or _doubtful_error(task.get("error")):
        return True
    return _looks_alike(result, _RESULT) or _doubtful_requests(result)


def is_ambiguous_result(result: Any) -> bool:
    """The same for the result alone."""
    return _looks_alike(result, _RESULT)


def _doubtful_error(error: Any) -> bool:
    if type(error) is not dict:
        return False
    data = error.get("data")
    return _looks_alike(error, _ERROR) or _looks_alike(data, _ELICITATIONS) or _any(data, "elicitations", _ASKED)


def _doubtful_requests(result: Any) -> bool:
    """Whether a question that stands in a result (``input_required``) is doubtful."""
    requests = result.get("inputRequests") if type(result) is dict else None
    if type(requests) is not dict:
        return False
    return any(type(each) is dict and is_ambiguous_server_request(each) for each in requests.values())


def _any(value: Any, member: str, read: Names) -> bool:
    found = value.get(member) if type(value) is dict else None
    return type(found) is list and any(_looks_alike(each, read) for each in found)


def _looks_alike(value: Any, read: Names) -> bool:
    """Whether an object has a member that is none of those, but that a careless reader takes for one."""
    members: Iterable[str] = value if type(value) is dict else ()
    return any(name not in read.exact and name.casefold() in read.folded for name in members)


_ID = rb'"id"[ \t\r]*:[ \t\r]*(-?[0-9]{1,18}|"(?:[^"\\]|\\.){0,1024}")[ \t\r]*'
_JSONRPC = rb'"jsonrpc"[ \t\r]*:[ \t\r]*"2\.0"[ \t\r]*'
_COMMA = rb",[ \t\r]*"
_OPENING = rb"\{[ \t\r]*(?:" + _JSONRPC + _COMMA + rb")?"
_OUTCOME = rb'"(?:result|error)"[ \t\r]*:'
_ID_FIRST = re.compile(_OPENING + _ID + _COMMA + rb"(?:" + _JSONRPC + _COMMA + rb")?" + _OUTCOME)
_ID_LAST = re.compile(_OPENING + _OUTCOME)
_LAST = re.compile(_COMMA + _ID + rb"(?:" + _COMMA + _JSONRPC + rb")?\}\Z")
_BEFORE = b"\xef\xbb\xbf\0 \t\r\n"  # a byte order mark, as some systems write before each text
_TAIL = 1200  # bytes in which an id and what may stand behind it have room


def is_noise(frame: bytes) -> bool:
    """Whether it was never meant to be a message: a log line on the wrong stream, as some servers print."""
    return frame.lstrip(_BEFORE)[:1] not in (b"{", b"[")


def answered_id(frame: bytes, limits: Limits) -> Any:
    """The id that an answer which is no strict JSON has, or seems to have."""
    from pinwarden.surface.probe.message import parse_message

    try:
        return parse_message(frame, limits).members.get("id")
    except PinwardenError:
        return likely_id(frame)


def likely_id(frame: bytes) -> Any:
    """The id of the request that a text seems to answer; None if it does not look like an answer.

    The id is looked for where servers write it: before the result, or at the end. So this takes no longer for a long
    text, and no words inside of a result are taken for it.
    """
    text = frame[: 2 * _TAIL].lstrip(_BEFORE)
    found = _ID_FIRST.match(text)
    if found is None and _ID_LAST.match(text) is not None:
        found = _LAST.search(frame[-_TAIL:].rstrip())
    if found is None:
        return None
    try:
        return loads(found[1])
    except (JSONDecodeError, UnicodeDecodeError):
        return None
