"""Judging what a server asks of the client: samples of its model, input of its user, its folders.

The handshake revisions send these as requests of their own. 2026-07-28 puts them into results that say
``input_required``. Both are held against the same policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pinwarden.core.record import Record
from pinwarden.documents.digest_policy import RequestPolicy
from pinwarden.documents.policy_table import plain_host
from pinwarden.documents.protocol import URL_REQUIRED

SAMPLING = "sampling/createMessage"
ELICITATION = "elicitation/create"
ROOTS = "roots/list"
_HARMLESS = frozenset({"ping", "tasks/get", "tasks/result", "tasks/cancel", "tasks/list"})
_UNSAFE_IN_ADDRESSES = frozenset(" \\\t\r\n<>\"'`{}|^")
_MAX_ADDRESS = 8192


class Refusal(Record):
    """Why something may not pass."""

    code: str
    reason: str


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
        return Refusal(code="request_malformed", reason="The server asks for input in a form that cannot be read.")
    if params.get("mode", "form") == "form" and "url" not in params:
        return None
    return _judge_address(params.get("url"), policy)


def judge_input_required(result: Mapping[str, Any], policy: RequestPolicy) -> Refusal | None:
    """The same for a result that asks for more input before it is complete."""
    requests = result.get("inputRequests")
    if requests is None:
        return None  # only requestState: the client repeats its request, and nobody is asked
    if not isinstance(requests, Mapping):
        return Refusal(code="request_malformed", reason="The server asks for input in a form that cannot be read.")
    for request in requests.values():
        method = request.get("method") if isinstance(request, Mapping) else None
        if not isinstance(method, str):
            return Refusal(code="request_malformed", reason="The server asks for input in a form that cannot be read.")
        refusal = judge_request(method, request.get("params"), policy)
        if refusal is not None:
            return refusal
    return None


def judge_error(error: Any, policy: RequestPolicy) -> Refusal | None:
    """The same for an error that sends the user to addresses before the request is repeated (2025-11-25)."""
    if not isinstance(error, Mapping) or error.get("code") != URL_REQUIRED:
        return None
    data = error.get("data")
    elicitations = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(elicitations, list):
        return Refusal(code="request_malformed", reason="The server asks for input in a form that cannot be read.")
    refusals = (judge_request(ELICITATION, each, policy) for each in elicitations)
    return next((refusal for refusal in refusals if refusal is not None), None)


def judge_task(task: Mapping[str, Any], policy: RequestPolicy) -> Refusal | None:
    """The same for what a server tells of a task: what it asks for, and the result or the error that it holds."""
    refusal = judge_input_required(task, policy) or judge_error(task.get("error"), policy)
    result = task.get("result")
    if refusal is None and isinstance(result, Mapping):
        refusal = judge_input_required(result, policy)
    return refusal


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
