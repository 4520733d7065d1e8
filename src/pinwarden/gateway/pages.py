"""Reading one list answer: its items, whatever one of them is, and the edits that leave some of them out."""

from __future__ import annotations

from collections.abc import Container, Sequence
from json import dumps
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import object_members
from pinwarden.core.record import Record
from pinwarden.gateway import splice
from pinwarden.gateway.ambiguity import is_ambiguous_answer, is_ambiguous_result
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.messages import WARNINGS, verdict_data
from pinwarden.surface.probe.message import Message, parse_message, parse_page
from pinwarden.surface.surface import Item, ItemKind


class ListPage(Record):
    """One page as it was answered. An empty string is a cursor; only its absence ends the list."""

    items: tuple[Item, ...]
    cursor: str | None


def read_page(frame: bytes, message: Any, kind: ItemKind, guard: Guard) -> ListPage:
    """The items of a list answer. ``message`` is None if the frame as a whole cannot be read strictly."""
    body = _body(frame, message)
    known = guard.recall(kind, body)
    if known is not None:
        return ListPage(items=known[0], cursor=known[1])
    limits = guard.limits
    envelope = _taken_apart(frame, guard) if message is None else Message(members=message, problem=None)
    if is_ambiguous_answer(envelope.members):
        raise PinwardenError("JSON_CANONICALIZATION_ERROR", "two readers may differ on what the list holds")
    if _asks(envelope.members.get("result")):
        raise PinwardenError("PROBE_FAILED", "the server asks for something instead of listing")
    page = parse_page(envelope, kind, limits.json, limits.max_items)
    items = tuple(page.items)
    guard.remember(kind, body, items, page.cursor)
    return ListPage(items=items, cursor=page.cursor)


def _taken_apart(frame: bytes, guard: Guard) -> Message:
    """An answer that cannot be read as a whole: its members, with the result as text."""
    if len(frame) > guard.limits.max_unread:
        raise PinwardenError("PROBE_LIMIT", "it cannot be read as a whole, and is too long to be taken apart")
    message = parse_message(frame, guard.limits.json)
    result = message.members.get("result")
    if isinstance(result, bytes) and is_ambiguous_result(dict(object_members(result))):
        raise PinwardenError("JSON_CANONICALIZATION_ERROR", "two readers may differ on what the list holds")
    return message


def _asks(result: Any) -> bool:
    """Whether a result says that it is no complete list: who reads it might do what it asks for."""
    if isinstance(result, bytes):
        found = dict(object_members(result))
        return "inputRequests" in found or found.get("resultType", b'"complete"') != b'"complete"'
    if type(result) is not dict:
        return False
    return "inputRequests" in result or result.get("resultType", "complete") != "complete"


def _body(frame: bytes, message: Any) -> bytes:
    """The part of an answer that does not change with the request's id, where it is easily found; else all of it."""
    if message is None:
        return frame
    number = dumps(message.get("id")).encode()
    before = b'{"jsonrpc":"2.0","id":' + number + b',"result":'
    if frame.startswith(before):
        return frame[len(before) :]
    after = b',"jsonrpc":"2.0","id":' + number + b"}"
    return frame.removesuffix(after)


def filtered(frame: bytes, kind: ItemKind, gone: Container[int], *, ttl: int, warnings: Sequence[Verdict]) -> bytes:
    """The answer without some of its items, with cache hints that cannot hide a change, and with warnings."""
    text = frame.decode()
    result = splice.member(text, 0, "result")
    if result is None:
        return frame
    edits: list[splice.Edit] = []
    listed = splice.member(text, result.start, kind.member)
    if listed is not None:
        edits += splice.without_elements(text, listed, gone)
    edits += cache_edits(text, result.start, ttl)
    if warnings:
        edits.append(warning_edit(text, result.start, warnings))
    return splice.edited(text, edits).encode() if edits else frame


def cache_edits(text: str, result: int, ttl: int) -> list[splice.Edit]:
    """A list may be kept by the client alone, and no longer than until we look again (SEP-2549 hints)."""
    edits: list[splice.Edit] = []
    hint = splice.member(text, result, "ttlMs")
    if hint is not None and not _is_at_most(text[hint.start : hint.end], ttl):
        edits.append((hint.start, hint.end, str(ttl)))
    scope = splice.member(text, result, "cacheScope")
    if scope is not None and text[scope.start : scope.end] != '"private"':
        edits.append((scope.start, scope.end, '"private"'))
    return edits


def warning_edit(text: str, result: int, warnings: Sequence[Verdict]) -> splice.Edit:
    """What it takes to put warnings into the ``_meta`` of a result."""
    value = dumps([verdict_data(verdict) for verdict in warnings], separators=(",", ":"))
    meta = splice.member(text, result, "_meta")
    if meta is None:
        return splice.with_member(text, result, "_meta", f'{{"{WARNINGS}":{value}}}')
    if text[meta.start] != "{" or splice.member(text, meta.start, WARNINGS) is not None:
        return meta.start, meta.end, f'{{"{WARNINGS}":{value}}}'  # a server that speaks in our name loses its say
    return splice.with_member(text, meta.start, WARNINGS, value)


def _is_at_most(text: str, most: int) -> bool:
    return text.isdigit() and len(text) < len(str(most)) + 1 and int(text) <= most
