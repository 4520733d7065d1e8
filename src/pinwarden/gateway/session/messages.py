"""JSON-RPC messages: parsing, building, and detecting messages that two parsers could read differently.

A message passes only if every JSON parser reads it the same way. Member names are case-sensitive, but some parsers
ignore case, so an object with both ``name`` and ``Name`` is ambiguous. `is_ambiguous_request` and the other
``is_ambiguous_`` functions check the members that clients, servers or the gateway act on.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from json import JSONDecodeError, dumps, loads
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import show_invisible
from pinwarden.gateway.gates.lists import METHOD_UNKNOWN, NOT_LISTED, format_digest
from pinwarden.gateway.gates.verdict import RATE_LIMITED, RULE_DENIED, Verdict
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CLIENT_META,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PROGRESS,
    TASK_NOTIFICATIONS,
    VERSION_META,
)
from pinwarden.surface.surface import ITEM_KINDS, ItemKind

CALL = "tools/call"
LISTEN = "subscriptions/listen"
LIST_METHODS: Mapping[str, ItemKind] = {kind.method: kind for kind in ITEM_KINDS}
META_KEYS = (VERSION_META, CLIENT_META, CAPABILITIES_META)
"""Members of ``_meta`` that describe the client in every request of the stateless era."""
WARNINGS = "pinwarden/warnings"
"""The member of ``_meta`` with warnings about items that pass only because the policy warns instead of blocking."""
_MAX_NAME = 120


# Parsed messages

RequestId = tuple[type, Any]
"""A JSON-RPC id with its type, because the number 1 and the string "1" are different ids."""
_NO_MEMBERS: dict[str, Any] = {}
_ID_TYPES = frozenset({int, str})


class ParsedMessage:
    """The bytes and the parsed value of one message."""

    __slots__ = ("data", "id", "is_request", "is_response", "members", "method", "params", "value")

    def __init__(self, data: bytes, value: Any) -> None:
        self.data = data
        self.value = value
        """The strictly parsed value; None if the bytes are not strict JSON."""
        members: dict[str, Any] = value if type(value) is dict else _NO_MEMBERS
        self.members = members
        """The members of the message; empty if it is not an object."""
        method = members.get("method")
        self.method: str = method if type(method) is str else ""
        """The method; empty for a response."""
        params = members.get("params")
        self.params: dict[str, Any] = params if type(params) is dict else _NO_MEMBERS
        request_id = members.get("id")
        self.id: RequestId | None = (type(request_id), request_id) if type(request_id) in _ID_TYPES else None
        """The id of a request or a response."""
        self.is_request = method is not None and "id" in members
        self.is_response = method is None and ("result" in members or "error" in members)

    def is_response_to(self, request_id: RequestId | None) -> bool:
        """Whether this is the response to the request with this id, even if the response is malformed."""
        return self.id is not None and self.id == request_id and (self.is_response or self.value is None)

    @property
    def meta(self) -> dict[str, Any]:
        """The ``_meta`` object of the parameters."""
        meta = self.params.get("_meta")
        return meta if type(meta) is dict else _NO_MEMBERS

    @property
    def progress_token(self) -> RequestId | None:
        """The progress token: in the ``_meta`` of a request, or in a progress notification."""
        members = self.params if self.method == PROGRESS else self.meta
        return to_request_id(members.get("progressToken"))


def to_request_id(value: Any) -> RequestId | None:
    """Combine an id with its type; None if the value cannot be an id."""
    return (type(value), value) if type(value) in _ID_TYPES else None


def parse_client_message(data: bytes, limits: Limits) -> ParsedMessage:
    """Parse a message from a client. Raises if it is not strict JSON."""
    return ParsedMessage(data, strict_json.parse_json(data, limits))


def parse_server_value(data: bytes, limits: Limits) -> Any:
    """Parse a message from a server to a JSON value; None if it is not strict JSON."""
    try:
        return strict_json.parse_json(data, limits)
    except PinwardenError:
        return None


def parse_server_message(data: bytes, limits: Limits) -> ParsedMessage:
    """Parse a message from a server. Recovers the id of malformed JSON, to match the message with its request."""
    return recover_id(ParsedMessage(data, parse_server_value(data, limits)), limits)


def recover_id(parsed: ParsedMessage, limits: Limits) -> ParsedMessage:
    """If a server's message is not strict JSON, set its id where it can be recovered."""
    if parsed.value is None and not is_stray_output(parsed.data):
        parsed.id = to_request_id(find_response_id(parsed.data, limits))
    return parsed


# Messages in a session


class ForwardedRequest:
    """A request from the client that was forwarded to the server and has no response yet."""

    __slots__ = ("change_count", "has_cursor", "list_kind", "method", "order", "request_id", "target", "warning")

    def __init__(self, request_id: Any, method: str, target: str = "", warning: Verdict | None = None) -> None:
        self.request_id = request_id
        self.method = method
        self.target = target
        """The tool, prompt, resource URI or task that the request uses."""
        self.warning = warning
        """A verdict that is added to the response as a warning."""
        self.list_kind: ItemKind | None = None
        """The list that is requested; None for requests that are not for lists."""
        self.order = 0
        """Counts requests for lists. A higher number was requested later."""
        self.change_count = 0
        """The number of list-changed notifications before the request was forwarded."""
        self.has_cursor = False
        """Whether the request is for a page after the first."""


OpenRequest = ForwardedRequest | str
"""A request without a response. Of a call that took the fast path, only the name of the tool is kept."""


class ClientRequest:
    """A request from the client that is not decided yet."""

    __slots__ = ("data", "message", "since")

    def __init__(self, data: bytes, message: Any, since: float) -> None:
        self.data = data
        self.message = message
        self.since = since

    @property
    def request_id(self) -> Any:
        """The JSON-RPC id."""
        return self.message["id"]

    @property
    def method(self) -> str:
        """The method."""
        return str(self.message["method"])


class ServerResponse:
    """A response from the server to a forwarded request."""

    __slots__ = ("attempts", "data", "message", "request", "since")

    def __init__(self, data: bytes, message: Any, request: ForwardedRequest, since: float) -> None:
        self.data = data
        self.message = message
        """The strictly parsed value; None if the bytes are not strict JSON."""
        self.request = request
        self.since = since
        self.attempts = 0
        """How often the response was deferred."""

    @property
    def request_id(self) -> Any:
        """The JSON-RPC id of the request."""
        return self.request.request_id

    @property
    def method(self) -> str:
        """The method of the request."""
        return self.request.method


class TaskNotification:
    """A notification from the server about a task, which may contain the task's result."""

    __slots__ = ("data", "message", "since")
    request_id = None

    def __init__(self, data: bytes, message: Any, since: float) -> None:
        self.data = data
        self.message = message
        self.since = since

    @property
    def method(self) -> str:
        """The method."""
        return str(self.message["method"])


# Messages that the gateway builds


def encode(message: Any) -> bytes:
    """Encode a JSON value as compact JSON."""
    try:
        return dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return dumps(message, separators=(",", ":")).encode()


def build_request(request_id: str, method: str, params: Mapping[str, Any]) -> bytes:
    """Encode a request from the gateway to the server."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params:
        message["params"] = params
    return encode(message)


def build_notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Encode a notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return encode(message)


def build_error_response(request_id: Any, code: int, text: str, data: Mapping[str, Any] | None = None) -> bytes:
    """Encode an error response."""
    error: dict[str, Any] = {"code": code, "message": text}
    if data:
        error["data"] = data
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def build_unrecorded_response(request_id: Any, problem: PinwardenError) -> bytes:
    """Encode the response to a request that was not forwarded because the audit log could not record it."""
    text = f"pinwarden: the request was not forwarded, because it cannot be recorded: {problem.message}"
    return build_error_response(request_id, INTERNAL_ERROR, text, {"pinwarden": {"code": problem.code}})


def build_blocked_response(
    request_id: Any, verdict: Verdict, server: str, call: str, requested_name: str = ""
) -> bytes:
    """Encode the response to a blocked request: the reason, and the command with which a person reviews the change.

    ``requested_name`` is the name in the client's request, if it differs from the verdict's key. The response never
    quotes text from the server. The digests are in its data.
    """
    name = requested_name or verdict.key
    item = f"{verdict.entity} '{make_printable(name)}'"
    # An item that the server never listed has no definition to review.
    unlisted = verdict.code in (NOT_LISTED, METHOD_UNKNOWN)
    shown = shlex.quote(make_printable(server))
    if verdict.code in (RULE_DENIED, RATE_LIMITED):
        purpose, command = "see why", f"policy explain --server {shown} --tool {shlex.quote(make_printable(name))}"
    else:
        purpose, command = "review it", "audit tail" if unlisted else f"approve {shown}"
    text = (
        f"Pinwarden blocked {item} of server '{make_printable(server)}': {verdict.reason}"
        f" To {purpose}, a person can run in a terminal: pinwarden {command}"
    )
    # A server without the method would respond with the same error.
    code = METHOD_NOT_FOUND if verdict.code == METHOD_UNKNOWN else INVALID_PARAMS
    data = {**verdict_to_json(verdict), "name": name[:_MAX_NAME], "server": server, "call": call}
    return build_error_response(request_id, code, text, {"pinwarden": data})


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON."""
    return {
        "code": verdict.code,
        "level": verdict.level,
        "kind": verdict.entity,
        "name": verdict.key[:_MAX_NAME],
        "expected": list(verdict.expected),
        "observed": format_digest(verdict.digest) or None,
    }


def make_printable(name: str) -> str:
    """Shorten a name from a client or server, and make its invisible characters visible."""
    return show_invisible(name[:_MAX_NAME])


# Ids

_MAX_DIGITS = 18


def is_id(value: Any) -> bool:
    """Whether a value can be the id of a request."""
    return (type(value) is int) or (type(value) is str and len(value) <= 1024)


def coerce_id(value: Any) -> int | None:
    """Return the integer for which a lenient client may take an id: 7 for 7.0 or "7"; None if there is none."""
    if type(value) is float:
        return int(value) if value.is_integer() else None
    if type(value) is str and len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
        return int(value)
    return None


# Messages that are slow to check

_SHORT = 4096  # bytes of a short message, which takes a millisecond or two to check
_SLOW_METHODS = frozenset({"interceptor/invoke", LISTEN})
"""Client requests that name many items."""
_EMBEDDING = frozenset({"inputRequests", "tools", "task", "result"})
"""Members of a result that contain requests or tool definitions."""


def is_slow_client_message(message: Any, size: int) -> bool:
    """Whether checking a message from the client is slow."""
    return size > _SHORT and type(message) is dict and message.get("method") in _SLOW_METHODS


def is_slow_server_message(message: Any, size: int) -> bool:
    """Whether checking a message from the server is slow, because requests in it are scanned for attacks."""
    if size <= _SHORT or type(message) is not dict:
        return False
    if "method" in message:
        return "id" in message or message["method"] in TASK_NOTIFICATIONS
    result = message.get("result")
    if type(result) is dict:
        return not _EMBEDDING.isdisjoint(result)
    error = message.get("error")
    return type(error) is dict and "data" in error


# Ambiguous messages


class _MemberNames:
    """The names of the members that clients, servers or the gateway act on, in one type of object."""

    __slots__ = ("folded", "names")

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self.folded = frozenset(name.casefold() for name in names)


_MESSAGE = _MemberNames("jsonrpc", "id", "method", "params", "result", "error")
_PARAMS = _MemberNames("name", "uri", "cursor", "ref", "arguments", "_meta", "taskId", "notifications")
_SUBSCRIPTIONS = _MemberNames("resourceSubscriptions", "taskIds")
_REF = _MemberNames("type", "name", "uri")
_RESULT = _MemberNames(
    *("tools", "prompts", "resources", "resourceTemplates", "nextCursor", "ttlMs", "cacheScope", "_meta"),
    *("serverInfo", "capabilities", "instructions", "protocolVersion", "resultType", "inputRequests", "tasks"),
)
_TASK = _MemberNames("taskId", "status", "statusMessage", "result", "error", "inputRequests", "task", "_meta")
_ERROR = _MemberNames("code", "data")
_ELICITATIONS = _MemberNames("elicitations")
_SERVER_PARAMS = _MemberNames("mode", "url", "tools", "toolChoice", "systemPrompt", "messages")


def is_ambiguous_request(message: Mapping[str, Any]) -> bool:
    """Whether two JSON parsers could read a client's request differently."""
    if "result" in message or "error" in message or _has_lookalike_member(message, _MESSAGE):
        return True
    params = message.get("params")
    if type(params) is not dict:
        return False
    if _has_lookalike_member(params, _PARAMS) or _has_lookalike_member(params.get("ref"), _REF):
        return True
    return _has_lookalike_member(params.get("notifications"), _SUBSCRIPTIONS)


def is_ambiguous_server_request(message: Mapping[str, Any]) -> bool:
    """Whether two JSON parsers could read a server's request or notification differently."""
    if "result" in message or "error" in message or _has_lookalike_member(message, _MESSAGE):
        return True
    return _has_lookalike_member(message.get("params"), _SERVER_PARAMS)


def is_ambiguous_response(message: Mapping[str, Any]) -> bool:
    """Whether two JSON parsers could read a server's response differently."""
    if ("result" in message) is ("error" in message) or "method" in message or _has_lookalike_member(message, _MESSAGE):
        return True
    if "result" in message:
        result = message["result"]
        return _has_lookalike_member(result, _RESULT) or _has_ambiguous_requests(result)
    return _is_ambiguous_error(message["error"])


def is_ambiguous_task(task: Any) -> bool:
    """Whether two JSON parsers could read the state of a task, with its result, error and requests, differently."""
    if type(task) is not dict:
        return False
    result = task.get("result")
    if _has_lookalike_member(task, _TASK) or _has_ambiguous_requests(task) or _is_ambiguous_error(task.get("error")):
        return True
    return _has_lookalike_member(result, _RESULT) or _has_ambiguous_requests(result)


def is_task_result(result: Any) -> bool:
    """Whether a result says that the call became a task. The client then fetches the task's result later."""
    if type(result) is not dict:
        return False
    return result.get("resultType") == "task" or type(result.get("task")) is dict


def is_ambiguous_result(result: Any) -> bool:
    """Whether two JSON parsers could read a result differently."""
    return _has_lookalike_member(result, _RESULT)


def _is_ambiguous_error(error: Any) -> bool:
    if type(error) is not dict:
        return False
    data = error.get("data")
    if _has_lookalike_member(error, _ERROR) or _has_lookalike_member(data, _ELICITATIONS):
        return True
    elicitations = data.get("elicitations") if type(data) is dict else None
    return type(elicitations) is list and any(_has_lookalike_member(value, _SERVER_PARAMS) for value in elicitations)


def _has_ambiguous_requests(result: Any) -> bool:
    requests = result.get("inputRequests") if type(result) is dict else None
    if type(requests) is not dict:
        return False
    return any(type(message) is dict and is_ambiguous_server_request(message) for message in requests.values())


def _has_lookalike_member(value: Any, known: _MemberNames) -> bool:
    """Whether an object has a member whose name differs from a known one only in case."""
    names: Iterable[str] = value if type(value) is dict else ()
    return any(name not in known.names and name.casefold() in known.folded for name in names)


# Messages that are not strict JSON

_ID = rb'"id"[ \t\r]*:[ \t\r]*(-?[0-9]{1,18}|"(?:[^"\\]|\\.){0,1024}")[ \t\r]*'
_JSONRPC = rb'"jsonrpc"[ \t\r]*:[ \t\r]*"2\.0"[ \t\r]*'
_COMMA = rb",[ \t\r]*"
_START = rb"\{[ \t\r]*(?:" + _JSONRPC + _COMMA + rb")?"
_OUTCOME = rb'"(?:result|error)"[ \t\r]*:'
_ID_FIRST = re.compile(_START + _ID + _COMMA + rb"(?:" + _JSONRPC + _COMMA + rb")?" + _OUTCOME)
_OUTCOME_FIRST = re.compile(_START + _OUTCOME)
_ID_LAST = re.compile(_COMMA + _ID + rb"(?:" + _COMMA + _JSONRPC + rb")?\}\Z")
_BEFORE = b"\xef\xbb\xbf\0 \t\r\n"  # some servers write a byte order mark before each message
_TAIL = 1200  # bytes at the end of a message that are searched for the id


def is_stray_output(data: bytes) -> bool:
    """Whether a server's output is not JSON, such as a log line that it printed to standard output."""
    return data.lstrip(_BEFORE)[:1] not in (b"{", b"[")


def find_response_id(data: bytes, limits: Limits) -> Any:
    """Return the id of a response that is not strict JSON; None if it cannot be found."""
    from pinwarden.surface.probe.message import parse_message

    try:
        return parse_message(data, limits).members.get("id")
    except PinwardenError:
        return guess_response_id(data)


def guess_response_id(data: bytes) -> Any:
    """Guess the id of malformed JSON that looks like a response; None if it looks like something else.

    Servers write the id before the result or at the end, so only these positions are searched. A long message takes no
    longer than a short one, and text inside a result is never mistaken for the id.
    """
    start = data[: 2 * _TAIL].lstrip(_BEFORE)
    match = _ID_FIRST.match(start)
    if match is None and _OUTCOME_FIRST.match(start) is not None:
        match = _ID_LAST.search(data[-_TAIL:].rstrip())
    if match is None:
        return None
    try:
        return loads(match[1])
    except (JSONDecodeError, UnicodeDecodeError):
        return None
