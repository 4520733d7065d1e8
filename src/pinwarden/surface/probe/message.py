"""JSON-RPC messages from a probed server, and the interface of the probe's transports.

Messages that are not strict JSON are split as text, so that one invalid item does not hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_array, split_object
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.surface.surface import Item, ItemKind
from pinwarden.system.probe_budget import probe_error

_RAW_MEMBERS = frozenset({"result", "params"})  # members that stay bytes until they are needed


class Message(Record):
    """A request, notification or response from the server."""

    members: dict[str, Any]
    """The members of the JSON-RPC object. If the message is not strict JSON, ``result`` and ``params`` are bytes."""
    problem: PinwardenError | None
    """Why the message is not strict JSON; None if it is."""

    @property
    def is_call(self) -> bool:
        """Whether the message is a request or a notification, not a response."""
        return isinstance(self.members.get("method"), str)


class ListPage(Record):
    """One page of a list."""

    items: list[Item]
    cursor: str | None
    """The cursor of the next page, which may be an empty string; None on the last page."""


def parse_message(text: bytes, limits: Limits) -> Message:
    """Parse a message. Raises PROBE_FAILED if it is not an object, or repeats a member."""
    try:
        members = strict_json.parse_json(text, limits)
    except PinwardenError as err:
        return Message(members=_split_members(text, limits, err), problem=err)
    if not isinstance(members, dict):
        raise probe_error("protocol", "the server sent JSON that is not a JSON-RPC message")
    return Message(members=members, problem=None)


def parse_result(message: Message) -> dict[str, Any]:
    """Return the result of a response. Raises PROBE_FAILED if the response is not strict JSON."""
    if message.problem is not None:
        raise probe_error(
            "protocol", f"the server's response is not strict JSON: {message.problem}"
        ) from message.problem
    return _require_result(message.members.get("result"))


def parse_page(message: Message, kind: ItemKind, limits: Limits, max_items: int | None = None) -> ListPage:
    """Parse one page of a list. Raises PROBE_LIMIT for more than ``max_items``; invalid items become undigestable."""
    if message.problem is None:
        result = _require_result(message.members.get("result"))
        values = _require_list(result, kind)
        if not isinstance(values, list):
            raise probe_error("protocol", f"the server's response to {kind.method} has no list of {kind.member}")
        _check_count(values, kind, max_items)
        return ListPage(items=[Item.from_value(kind, value) for value in values], cursor=_parse_cursor(result, kind))
    members = _split_members(message.members.get("result", b""), limits, message.problem, raw_member=kind.member)
    values = _require_list(members, kind)
    elements = _split_elements(values, message.problem)
    _check_count(elements, kind, max_items)
    items = [Item.from_json_text(kind, element, limits) for element in elements]
    return ListPage(items=items, cursor=_parse_cursor(members, kind))


def _check_count(items: list[Any], kind: ItemKind, max_items: int | None) -> None:
    if max_items is not None and len(items) > max_items:
        raise PinwardenError(
            "PROBE_LIMIT",
            f"the server's response to {kind.method} has {len(items)} items; at most {max_items} are allowed",
        )


def _split_members(
    text: bytes, limits: Limits, problem: PinwardenError, raw_member: str | None = None
) -> dict[str, Any]:
    """Split an object that is not strict JSON into members, and parse all members except the raw members.

    The raw members are ``raw_member``, or else ``result`` and ``params``. Raises if a member is repeated.
    """
    try:
        texts_by_name = split_object(text)
    except PinwardenError as err:
        raise probe_error("protocol", f"the server sent text that is not a JSON-RPC message: {problem}") from err
    members: dict[str, Any] = {}
    for name, member_text in texts_by_name:
        if name in members:
            raise probe_error(
                "protocol", f"the server's response has the member {name[:80]!a} more than once"
            ) from problem
        is_raw = name == raw_member or (raw_member is None and name in _RAW_MEMBERS)
        members[name] = member_text if is_raw else _parse_member(member_text, limits)
    return members


def _parse_member(text: bytes, limits: Limits) -> Any:
    try:
        return strict_json.parse_json(text, limits)
    except PinwardenError as err:
        raise probe_error("protocol", f"the server's response is not strict JSON: {err}") from err


def _split_elements(text: Any, problem: PinwardenError) -> list[bytes]:
    try:
        return split_array(text)
    except PinwardenError as err:
        raise probe_error("protocol", f"the server sent a list that cannot be split into items: {problem}") from err


def _require_result(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise probe_error("protocol", "the server's response has no result object")
    return result


def _require_list(result: dict[str, Any], kind: ItemKind) -> Any:
    if result.get("resultType", "complete") != "complete":
        raise probe_error("protocol", f"the server requests input before it responds to {kind.method}")
    if kind.member not in result:
        raise probe_error("protocol", f"the server's response to {kind.method} has no member {kind.member}")
    return result[kind.member]


def _parse_cursor(result: dict[str, Any], kind: ItemKind) -> str | None:
    cursor = result.get("nextCursor")
    if cursor is not None and not isinstance(cursor, str):
        raise probe_error("protocol", f"the server's response to {kind.method} has a nextCursor that is not a string")
    return cursor


class NoMessage(Record):
    """The outcome of a wait that ended without a message.

    Depending on the reason, the probe tries another protocol era or transport.
    """

    reason: Literal["quiet", "refused", "ended"]
    """``quiet``: nothing arrived in time. ``refused``: an HTTP error status. ``ended``: the connection closed."""
    detail: str
    status: int | None = None
    """The HTTP status, if there is one."""


class ProbeTransport(Protocol):
    """One connection to one server."""

    name: str
    line_based: bool
    """Whether each message is a line, so that log lines can occur between messages and requests can overlap."""

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Send one message. Only HTTP uses the headers."""

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """Return the bytes of the next message. Waits at most ``wait`` seconds; None waits until the time limit."""

    def restart(self) -> None:
        """Start a new session after the server ended the last one."""

    def close(self) -> None:
        """End the session and release all resources."""

    def abort(self) -> None:
        """Release all resources immediately. Can be called from any thread."""
