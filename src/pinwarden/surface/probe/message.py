"""JSON-RPC messages from a probed server, and the transport interface. One invalid item does not hide the others."""

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

_RAW_MEMBERS = frozenset({"result", "params"})  # members that are kept as text and parsed later


class Message(Record):
    """A request, notification or response from the server."""

    members: dict[str, Any]
    """The members of the envelope. Members that are not strict JSON are bytes."""
    problem: PinwardenError | None
    """Why the message is not strict JSON; then ``result`` and ``params`` are bytes."""

    @property
    def is_call(self) -> bool:
        """Whether it is a request or notification, not a response."""
        return isinstance(self.members.get("method"), str)


class ListPage(Record):
    """One page of a list. An empty string is a cursor; only its absence ends the list."""

    items: list[Item]
    cursor: str | None


def parse_message(text: bytes, limits: Limits) -> Message:
    """Parse a message. Raises if its envelope is ambiguous."""
    try:
        members = strict_json.parse_json(text, limits)
    except PinwardenError as err:
        return Message(members=_split_members(text, limits, err), problem=err)
    if not isinstance(members, dict):
        raise probe_error("protocol", "the server sent JSON that is not a message")
    return Message(members=members, problem=None)


def parse_result(message: Message) -> dict[str, Any]:
    """The result of a response that must be strict JSON."""
    if message.problem is not None:
        raise probe_error(
            "protocol", f"the server's response is not strict JSON: {message.problem}"
        ) from message.problem
    return _result_object(message.members.get("result"))


def parse_page(message: Message, kind: ItemKind, limits: Limits, max_items: int | None = None) -> ListPage:
    """The items of one list response. Raises for more than ``max_items``; invalid items are kept as undigestable."""
    if message.problem is None:
        result = _result_object(message.members.get("result"))
        values = _list_member(result, kind)
        if not isinstance(values, list):
            raise probe_error("protocol", f"the server's response to {kind.method} has no list of {kind.member}")
        _check_count(values, kind, max_items)
        return ListPage(items=[Item.from_value(kind, value) for value in values], cursor=_next_cursor(result, kind))
    texts = _split_members(message.members.get("result", b""), limits, message.problem, raw_member=kind.member)
    values = _list_member(texts, kind)
    elements = _split_elements(values, message.problem)
    _check_count(elements, kind, max_items)
    items = [Item.from_json_text(kind, element, limits) for element in elements]
    return ListPage(items=items, cursor=_next_cursor(texts, kind))


def _check_count(items: list[Any], kind: ItemKind, max_items: int | None) -> None:
    if max_items is not None and len(items) > max_items:
        raise PinwardenError(
            "PROBE_LIMIT",
            f"the server's response to {kind.method} has {len(items)} items; at most {max_items} are read",
        )


def _split_members(
    text: bytes, limits: Limits, problem: PinwardenError, raw_member: str | None = None
) -> dict[str, Any]:
    """The members of an object that has a member which is not strict JSON. Raises if a member name is repeated."""
    try:
        texts_by_name = split_object(text)
    except PinwardenError as err:
        raise probe_error("protocol", f"the server sent text that is not a message: {problem}") from err
    members: dict[str, Any] = {}
    for name, part in texts_by_name:
        if name in members:
            raise probe_error(
                "protocol", f"the server's response has the member {name[:80]!a} more than once"
            ) from problem
        members[name] = (
            part if name == raw_member or (raw_member is None and name in _RAW_MEMBERS) else _parse_member(part, limits)
        )
    return members


def _parse_member(part: bytes, limits: Limits) -> Any:
    try:
        return strict_json.parse_json(part, limits)
    except PinwardenError as err:
        raise probe_error("protocol", f"the server's response is not strict JSON: {err}") from err


def _split_elements(text: Any, problem: PinwardenError) -> list[bytes]:
    try:
        return split_array(text)
    except PinwardenError as err:
        raise probe_error("protocol", f"the server sent a list that cannot be split into items: {problem}") from err


def _result_object(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise probe_error("protocol", "the server's response has no result object")
    return result


def _list_member(result: dict[str, Any], kind: ItemKind) -> Any:
    if result.get("resultType", "complete") != "complete":
        raise probe_error("protocol", f"the server requests input before it responds to {kind.method}")
    if kind.member not in result:
        raise probe_error("protocol", f"the server's response to {kind.method} has no member {kind.member}")
    return result[kind.member]


def _next_cursor(result: dict[str, Any], kind: ItemKind) -> str | None:
    cursor = result.get("nextCursor")
    if cursor is not None and not isinstance(cursor, str):
        raise probe_error("protocol", f"the server's response to {kind.method} has a nextCursor that is not a string")
    return cursor


class NoMessage(Record):
    """No message was received. The reason decides whether another protocol era or transport is tried."""

    reason: Literal["quiet", "refused", "ended"]
    """No message within the wait, an HTTP error status, or the end of the stream."""
    detail: str
    status: int | None = None


class ProbeTransport(Protocol):
    """One connection to one server."""

    name: str
    line_based: bool
    """Whether messages are lines: other lines may occur between them, and requests can overlap."""

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Send one message. Only HTTP uses the headers."""

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """The text of the next message. Waits ``wait`` seconds, or until the end of the probe."""

    def restart(self) -> None:
        """Start again after the server ended."""

    def close(self) -> None:
        """End the session and release all resources."""

    def abort(self) -> None:
        """Release all resources immediately, from any thread."""
