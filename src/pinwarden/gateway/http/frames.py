"""JSON-RPC messages as the HTTP gateway sees them: ids, names, matching headers, and edits of single values."""

from __future__ import annotations

import base64
import binascii
import re
from json import dumps
from typing import Any

import orjson

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.gateway import splice
from pinwarden.surface.protocol import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROGRESS,
    VERSION_UNSUPPORTED,
)

_STATUS = {PARSE_ERROR: 400, INVALID_REQUEST: 400, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, METHOD_NOT_FOUND: 404}
_STATUS |= {CAPABILITY_MISSING: 400, VERSION_UNSUPPORTED: 400}

NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that names the item of a method."""
ROUTED_BY = {**NAMED_BY, **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")}
"""The parameter that the header Mcp-Name repeats."""

_WORD = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ENCODED = re.compile(r"=\?base64\?([A-Za-z0-9+/]*={0,2})\?=")

RequestId = tuple[type, Any]
"""A JSON-RPC id with its type, because the number 1 and the string "1" are different ids."""


class Frame:
    """One message, as bytes and parsed."""

    __slots__ = ("data", "id", "is_answer", "is_request", "members", "message", "method", "params")

    def __init__(self, data: bytes, message: Any) -> None:
        self.data = data
        self.message = message
        """The strictly parsed value; None if the bytes are not strict JSON."""
        members: dict[str, Any] = message if type(message) is dict else _NOTHING
        self.members = members
        """The members of the message; empty if it is not an object."""
        method = members.get("method")
        self.method: str = method if type(method) is str else ""
        """The method; empty for a response."""
        params = members.get("params")
        self.params: dict[str, Any] = params if type(params) is dict else _NOTHING
        number = members.get("id")
        self.id: RequestId | None = (type(number), number) if type(number) in _ID_TYPES else None
        """The id of a request or a response."""
        self.is_request = method is not None and "id" in members
        self.is_answer = method is None and ("result" in members or "error" in members)

    def may_answer(self, asked: RequestId | None) -> bool:
        """Whether this is the response to a request, or a malformed one with its id."""
        return self.id is not None and self.id == asked and (self.is_answer or self.message is None)

    @property
    def meta(self) -> dict[str, Any]:
        """The ``_meta`` object of the parameters."""
        meta = self.params.get("_meta")
        return meta if type(meta) is dict else _NOTHING

    @property
    def progress_token(self) -> RequestId | None:
        """The progress token: in the ``_meta`` of a request, or in a progress notification."""
        where = self.params if self.method == PROGRESS else self.meta
        return request_id_of(where.get("progressToken"))


_NOTHING: dict[str, Any] = {}
_ID_TYPES = frozenset({int, str})


def read_client(data: bytes, limits: Limits) -> Frame:
    """Parse a message of a client. Raises if it is not strict JSON."""
    return Frame(data=data, message=strict_json.parse_json(data, limits))


def parse_server(data: bytes, limits: Limits) -> Any:
    """Parse a message of a server; None if it is not strict JSON, which the session judges."""
    try:
        return strict_json.parse_json(data, limits)
    except PinwardenError:
        return None


def frame_from_server(data: bytes, limits: Limits) -> Frame:
    """A message of a server. If it is not strict JSON, it gets the id that the session would find in it, so that it can
    be matched with its request."""
    return with_known_id(Frame(data, parse_server(data, limits)), limits)


def with_known_id(frame: Frame, limits: Limits) -> Frame:
    """A message of a server with its id, even if it is not strict JSON."""
    if frame.message is None:
        from pinwarden.gateway.session.messages import is_noise, response_id

        if not is_noise(frame.data):
            frame.id = request_id_of(response_id(frame.data, limits))
    return frame


def request_id_of(given: Any) -> RequestId | None:
    """The id with its type; None if the value cannot be an id."""
    return (type(given), given) if type(given) in _ID_TYPES else None


def encode(value: Any) -> bytes:
    """Encode JSON. A client's id may be an integer of any length, which orjson rejects."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def error_frame(number: Any, code: int, why: str) -> bytes:
    """A JSON-RPC error of the gateway."""
    return encode({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": why}})


def status_of(message: Any) -> int:
    """The HTTP status for a response of the stateless era."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict):
        return 200
    code = error.get("code")
    return _STATUS.get(code, 200) if type(code) is int else 200


def encode_header(text: str) -> str:
    """A name as a header value: plain if HTTP allows it, otherwise base64 as the protocol defines."""
    if _WORD.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_header(value: str) -> str | None:
    """The text that a header value encodes; None if it is malformed."""
    if not value.startswith("=?"):
        return value
    found = _ENCODED.fullmatch(value)
    if found is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


_BEFORE_ID = frozenset({b"{", b'{"jsonrpc":"2.0",', b'{"jsonrpc": "2.0", '})
_ID = b'"id":'


def replace_id(data: bytes, number: int, instead: int) -> bytes | None:
    """A message with another id, if the id is at the very start or end as usual; otherwise None.

    The message must be well-formed, and have this id. At the end: a quote that no backslash precedes and that is not
    the end of a string begins one, and what the last brace closes is the message itself.
    """
    text = b"%d" % number
    start = data.find(_ID)
    if data[:start] in _BEFORE_ID:
        place = start + 6 if data[start + 5 : start + 6] == b" " else start + 5
        end = place + len(text)
        if data[place:end] != text or data[end : end + 1] not in (b",", b"}"):
            return None
        return data[:place] + b"%d" % instead + data[end:]
    place = len(data) - len(text) - 1
    if data[place:] != text + b"}":
        return None
    before = data[place - 1 : place] == b" "
    start = place - before - 5
    if start < 2 or data[start : start + 5] != _ID or data[start - 1 : start] not in (b",", b" "):
        return None
    return data[:place] + b"%d}" % instead


def replace_value(data: bytes, path: tuple[str, ...], value: bytes) -> bytes:
    """The message with another value at a path, which must exist. All other bytes stay the same."""
    text = data.decode()
    place = 0
    span = None
    for name in path:
        span = splice.member(text, place, name)
        if span is None:
            raise PinwardenError("JSON_PARSE_ERROR", f"the member {name} is missing")
        place = span.start
    return data if span is None else splice.edited(text, [(span.start, span.end, value.decode())]).encode()
