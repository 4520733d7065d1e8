"""Judging what a server asks of the client: samples of its model, input of its user, its folders.

The handshake revisions send these as requests of their own. 2026-07-28 puts them into results that say
``input_required``. Both are held against the same policy. What a request says is judged in
``gateway/gates/request_content.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pinwarden.core.record import Record
from pinwarden.lock.gateway_policy import RequestPolicy
from pinwarden.lock.policy_table import plain_host
from pinwarden.surface.protocol import URL_REQUIRED

SAMPLING = "sampling/createMessage"
ELICITATION = "elicitation/create"
ROOTS = "roots/list"
_HARMLESS = frozenset({"ping", "tasks/get", "tasks/result", "tasks/cancel", "tasks/list"})
SERVER_REQUESTS = frozenset({SAMPLING, ELICITATION, ROOTS, *_HARMLESS})
"""Every request that a server may send to a client, in any revision."""
_UNSAFE_IN_ADDRESSES = frozenset(" \\\t\r\n<>\"'`{}|^")
_MAX_ADDRESS = 8192


class Refusal(Record):
    """Why something may not pass."""

    code: str
    reason: str
    observed: str = ""
    """The digest of what is refused, where it has one."""


Requests = tuple[tuple[str, Any], ...]
"""Methods and params of server requests that are part of another message."""
_MALFORMED = Refusal(code="request_malformed", reason="The server asks for input in a form that cannot be read.")


def judge_request(method: str, params: Any, policy: RequestPolicy) -> Refusal | None:
    """Why a server may not ask this of the client; None if it may."""
    if method in _HARMLESS:
        return None
    if method == SAMPLING:
        return None if policy.sampling else _denied("sampling")
    if method == ROOTS:
        return None if policy.roots else _denied("roots")
    if method != ELICITATION:
        return Refusal(code="request_unknown", reason="The server asks for something that no revision of MCP knows.")
    if not policy.elicitation:
        return _denied("elicitation")
    if not isinstance(params, Mapping):
        return _MALFORMED
    if params.get("mode", "form") == "form" and "url" not in params:
        return None
    return _judge_address(params.get("url"), policy)


def requests_in_result(result: Mapping[str, Any]) -> Requests | Refusal:
    """The requests of a result that asks for more input before it is complete."""
    requests = result.get("inputRequests")
    if requests is None:
        return ()  # only requestState: the client repeats its request, and is asked nothing
    if not isinstance(requests, Mapping):
        return _MALFORMED
    for request in requests.values():
        if not isinstance(request, Mapping) or not isinstance(request.get("method"), str):
            return _MALFORMED
    return tuple((request["method"], request.get("params")) for request in requests.values())


def requests_in_error(error: Any) -> Requests | Refusal:
    """The elicitations of an error that sends the user to addresses before the request is repeated (2025-11-25)."""
    if not isinstance(error, Mapping) or error.get("code") != URL_REQUIRED:
        return ()
    data = error.get("data")
    elicitations = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(elicitations, list):
        return _MALFORMED
    return tuple((ELICITATION, each) for each in elicitations)


def requests_in_task(task: Mapping[str, Any]) -> Requests | Refusal:
    """The requests in what a server reports about a task: its own, and those of the result or the error in it."""
    result = task.get("result")
    parts = (
        requests_in_result(task),
        requests_in_error(task.get("error")),
        requests_in_result(result) if isinstance(result, Mapping) else (),
    )
    found: Requests = ()
    for part in parts:
        if isinstance(part, Refusal):
            return part
        found += part
    return found


def too_many_rounds(policy: RequestPolicy) -> Refusal:
    """The refusal of a server that asks and asks."""
    return Refusal(
        code="too_many_rounds",
        reason=f"The server asked for more input {policy.max_rounds} times in a row without an answer.",
    )


def _judge_address(url: Any, policy: RequestPolicy) -> Refusal | None:
    refusal = Refusal(
        code="url_host_denied",
        reason="The server sends the user to an address that the policy does not allow (url-hosts).",
    )
    if not isinstance(url, str) or len(url) > _MAX_ADDRESS or not _UNSAFE_IN_ADDRESSES.isdisjoint(url):
        return refusal
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return refusal
    if parts.scheme != "https" or "@" in parts.netloc or not host:
        return refusal
    name = plain_host(host)
    return None if any(pattern.matches(name) for pattern in policy.url_hosts) else refusal


def _denied(what: str) -> Refusal:
    return Refusal(code=f"{what}_denied", reason=f"The policy of this server denies {what}.")
