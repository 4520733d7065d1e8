"""Parses pages of list responses, and removes items from them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from json import dumps
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_object
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session import splice
from pinwarden.gateway.session.messages import WARNINGS, is_ambiguous_response, is_ambiguous_result, verdict_to_json
from pinwarden.surface.probe.message import ListPage, Message, parse_message, parse_page
from pinwarden.surface.surface import ItemKind


def parse_list_response(data: bytes, message: Any, kind: ItemKind, guard: Guard) -> ListPage:
    """Parse a list response. ``message`` is None if the response as a whole is not strict JSON."""
    body = _strip_id(data, message)
    cached = guard.find_cached_page(kind, body)
    if cached is not None:
        return ListPage(items=list(cached[0]), cursor=cached[1])
    limits = guard.limits
    envelope = _parse_envelope(data, guard) if message is None else Message(members=message, problem=None)
    if is_ambiguous_response(envelope.members):
        raise _build_ambiguous_error()
    if _requests_input(envelope.members.get("result")):
        raise PinwardenError("PROBE_FAILED", "the server requests input instead of returning the list")
    page = parse_page(envelope, kind, limits.json_limits, limits.max_items)
    guard.cache_page(kind, body, tuple(page.items), page.cursor)
    return page


def _parse_envelope(data: bytes, guard: Guard) -> Message:
    """Parse a list response that is not strict JSON. The result stays unparsed: its items are parsed one by one."""
    if len(data) > guard.limits.max_unparsable_bytes:
        raise PinwardenError("PROBE_LIMIT", "the response is malformed and too long to be parsed item by item")
    message = parse_message(data, guard.limits.json_limits)
    result = message.members.get("result")
    if isinstance(result, bytes) and is_ambiguous_result(dict(split_object(result))):
        raise _build_ambiguous_error()
    return message


def _build_ambiguous_error() -> PinwardenError:
    return PinwardenError("JSON_CANONICALIZATION_ERROR", "two JSON parsers could read the list differently")


def _requests_input(result: Any) -> bool:
    """Whether a client could interpret the result as a request for input instead of a complete list."""
    if isinstance(result, bytes):
        members = dict(split_object(result))
        return "inputRequests" in members or members.get("resultType", b'"complete"') != b'"complete"'
    if type(result) is not dict:
        return False
    return "inputRequests" in result or result.get("resultType", "complete") != "complete"


def _strip_id(data: bytes, message: Any) -> bytes:
    """Return the response without its id, if the id is at a usual position, so that equal pages share a cache entry."""
    if message is None:
        return data
    request_id = dumps(message.get("id")).encode()
    before = b'{"jsonrpc":"2.0","id":' + request_id + b',"result":'
    if data.startswith(before):
        return data[len(before) :]
    after = b',"jsonrpc":"2.0","id":' + request_id + b"}"
    return data.removesuffix(after)


def filter_page(
    data: bytes, kind: ItemKind, removed: Container[int], *, ttl: int, warnings: Sequence[Verdict]
) -> bytes:
    """Return a list response without the items at these indexes, with limited cache hints and with warnings."""
    text = data.decode()
    result = splice.find_member(text, 0, "result")
    if result is None:
        return data
    edits: list[splice.Edit] = []
    array = splice.find_member(text, result.start, kind.member)
    if array is not None:
        edits += splice.build_element_removals(text, array, removed)
    edits += build_cache_edits(text, result.start, ttl)
    if warnings:
        edits.append(build_warning_edit(text, result.start, warnings))
    return splice.apply_edits(text, edits).encode() if edits else data


def build_cache_edits(text: str, result: int, ttl: int) -> list[splice.Edit]:
    """Return edits that limit a list's cache hints (SEP-2549): private, and at most ``ttl`` milliseconds."""
    edits: list[splice.Edit] = []
    hint = splice.find_member(text, result, "ttlMs")
    if hint is not None and not _is_within_limit(text[hint.start : hint.end], ttl):
        edits.append((hint.start, hint.end, str(ttl)))
    scope = splice.find_member(text, result, "cacheScope")
    if scope is not None and text[scope.start : scope.end] != '"private"':
        edits.append((scope.start, scope.end, '"private"'))
    return edits


def build_warning_edit(text: str, result: int, warnings: Sequence[Verdict]) -> splice.Edit:
    """Return the edit that puts warnings into a result's ``_meta``."""
    value = dumps([verdict_to_json(verdict) for verdict in warnings], separators=(",", ":"))
    meta = splice.find_member(text, result, "_meta")
    if meta is None:
        return splice.build_member_insertion(text, result, "_meta", f'{{"{WARNINGS}":{value}}}')
    if text[meta.start] != "{" or splice.find_member(text, meta.start, WARNINGS) is not None:
        return meta.start, meta.end, f'{{"{WARNINGS}":{value}}}'  # drops warnings forged by the server
    return splice.build_member_insertion(text, meta.start, WARNINGS, value)


def _is_within_limit(text: str, limit: int) -> bool:
    return text.isdigit() and len(text) < len(str(limit)) + 1 and int(text) <= limit
