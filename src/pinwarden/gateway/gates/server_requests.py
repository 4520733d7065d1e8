"""Decisions about requests from a server to the client: whether a request is allowed, and whether its content is.

Approvals cover the tools in the server's lists. A tool definition inside a server request is allowed only if exactly
that definition is approved. Text cannot be approved in advance, so it is scanned for signs of an attack.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.gateway.gates.lists import choose_change_action, choose_strictest_action
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, Verdict
from pinwarden.lock.gateway_policy import ItemPolicy, ServerRequestPolicy
from pinwarden.lock.policy_table import normalize_host
from pinwarden.surface.drift.changes import CRITICAL, REVIEW, SEVERITIES
from pinwarden.surface.protocol import URL_REQUIRED
from pinwarden.surface.surface import TOOL, Item

SAMPLING = "sampling/createMessage"
ELICITATION = "elicitation/create"
ROOTS = "roots/list"
_HARMLESS = frozenset({"ping", "tasks/get", "tasks/result", "tasks/cancel", "tasks/list"})
SERVER_REQUESTS = frozenset({SAMPLING, ELICITATION, ROOTS, *_HARMLESS})
"""All requests that a server may send to a client, in any revision of MCP."""
_UNSAFE_IN_URLS = frozenset(" \\\t\r\n<>\"'`{}|^")
_MAX_URL_LENGTH = 8192


class Refusal(Record):
    """Why the gateway does not forward a message."""

    code: str
    reason: str
    observed: str = ""
    """The digest of the refused content; empty if it has none."""


EmbeddedRequests = tuple[tuple[str, Any], ...]
"""Method and params of each server request that is part of another message, such as a result."""
_MALFORMED = Refusal(code="request_malformed", reason="The server's request for input is malformed.")


def check_request_policy(method: str, params: Any, policy: ServerRequestPolicy) -> Refusal | None:
    """Return why the policy denies a server request; None if it allows the request."""
    if method in _HARMLESS:
        return None
    if method == SAMPLING:
        return None if policy.sampling else _build_denied_refusal("sampling_denied", "sampling")
    if method == ROOTS:
        return None if policy.roots else _build_denied_refusal("roots_denied", "roots")
    if method != ELICITATION:
        return Refusal(code="request_unknown", reason="No revision of MCP defines this server request.")
    if not policy.elicitation:
        return _build_denied_refusal("elicitation_denied", "elicitation")
    if not isinstance(params, Mapping):
        return _MALFORMED
    if params.get("mode", "form") == "form" and "url" not in params:
        return None
    return _check_url(params.get("url"), policy)


def find_requests_in_result(result: Mapping[str, Any]) -> EmbeddedRequests | Refusal:
    """Return the requests in a result that needs more input before it is complete."""
    requests = result.get("inputRequests")
    if requests is None:
        return ()  # only requestState: the client repeats its request without further input
    if not isinstance(requests, Mapping):
        return _MALFORMED
    for request in requests.values():
        if not isinstance(request, Mapping) or not isinstance(request.get("method"), str):
            return _MALFORMED
    return tuple((request["method"], request.get("params")) for request in requests.values())


def find_requests_in_error(error: Any) -> EmbeddedRequests | Refusal:
    """Return the URL elicitations in an error (2025-11-25), which the user visits before the request is repeated."""
    if not isinstance(error, Mapping) or error.get("code") != URL_REQUIRED:
        return ()
    data = error.get("data")
    elicitations = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(elicitations, list):
        return _MALFORMED
    return tuple((ELICITATION, elicitation) for elicitation in elicitations)


def find_requests_in_task(task: Mapping[str, Any]) -> EmbeddedRequests | Refusal:
    """Return the requests in the state of a task, including those in its result or error."""
    result = task.get("result")
    parts = (
        find_requests_in_result(task),
        find_requests_in_error(task.get("error")),
        find_requests_in_result(result) if isinstance(result, Mapping) else (),
    )
    requests: EmbeddedRequests = ()
    for part in parts:
        if isinstance(part, Refusal):
            return part
        requests += part
    return requests


def build_max_rounds_refusal(policy: ServerRequestPolicy) -> Refusal:
    """Return the refusal for a server that requests input more often than the policy allows."""
    return Refusal(
        code="too_many_rounds",
        reason=f"The server requested more input {policy.max_rounds} times in a row without returning a result.",
    )


def _check_url(url: Any, policy: ServerRequestPolicy) -> Refusal | None:
    refusal = Refusal(
        code="url_host_denied",
        reason="The server sends the user to a URL that the policy does not allow (url-hosts).",
    )
    if not isinstance(url, str) or len(url) > _MAX_URL_LENGTH or not _UNSAFE_IN_URLS.isdisjoint(url):
        return refusal
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return refusal
    if parts.scheme != "https" or "@" in parts.netloc or not host:
        return refusal
    name = normalize_host(host)
    return None if any(pattern.matches(name) for pattern in policy.url_hosts) else refusal


def _build_denied_refusal(code: str, feature: str) -> Refusal:
    return Refusal(code=code, reason=f"The policy for this server denies {feature}.")


TOOLS = "tools"
TOOL_IN_REQUEST = "tool_in_request"
"""A server request contains a tool definition that is not approved."""
TOOL_IN_RESULT = "tool_in_result"
"""A result other than a list of tools contains a tool definition that is not approved."""
HIDDEN_CODES = frozenset({"hidden_characters", "terminal_escape"})
"""Codes of findings to which the policy's ``results.hidden-characters`` applies, unless it is ``relay``."""
_SCAN_BUDGET = 1024 * 1024  # how many characters of one request are scanned, which takes up to a second
_OVERLAP = 1024  # characters that consecutive scanned chunks share; no sign of an attack is longer
_ENTITY = "request"


class CheckedRequest(Record):
    """The verdicts about one server request."""

    verdict: Verdict
    """The verdict about the whole request, with the strictest action for its tool definitions and its text."""
    definitions: tuple[Verdict, ...] = ()
    """Verdicts about the unapproved tool definitions in the request."""


def find_definitions(params: Any, max_count: int) -> tuple[Item, ...] | Refusal:
    """Return the tool definitions in params or in a result, or a refusal if there are too many."""
    tools = params.get(TOOLS) if isinstance(params, Mapping) else None
    if tools is None:
        return ()
    if not isinstance(tools, list):
        return Refusal(code="request_malformed", reason="The server sends malformed tool definitions.")
    if len(tools) > max_count:
        reason = f"The server sends {len(tools)} tool definitions in one message; the limit is {max_count}."
        return Refusal(code="request_too_many_tools", reason=reason)
    return tuple(Item.from_value(TOOL, tool) for tool in tools)


def check_request_content(
    method: str, params: Any, definitions: Sequence[Verdict], policy: ItemPolicy, ignored: frozenset[str]
) -> CheckedRequest:
    """Decide on the content of a request that the policy allows. ``definitions`` are the verdicts about its tools.

    Signs of an attack whose code is in ``ignored`` do not count, because another rule covers them.
    """
    unapproved = _select_unapproved(definitions)
    parts = [_summarize_tools(TOOL_IN_REQUEST, unapproved)] if unapproved else []
    code = _find_most_severe_sign(params, ignored)
    if code:
        level = REVIEW if code == "oversized_text" else CRITICAL
        parts.append(
            (
                choose_change_action(policy, level),
                level,
                code,
                f"The text of the server request {_describe_sign(code)}.",
            )
        )
    action = choose_strictest_action(ALLOW, *(part[0] for part in parts))
    _, level, code, reason = next((part for part in parts if part[0] == action), (ALLOW, "", "", ""))
    verdict = Verdict(
        entity=_ENTITY,
        key=method,
        value=None,
        digest=_compute_digest(params),
        action=action,
        level=level,
        code=code,
        reason=reason,
    )
    return CheckedRequest(verdict=verdict, definitions=unapproved)


def check_tools_of_result(method: str, definitions: Sequence[Verdict]) -> CheckedRequest | None:
    """Return the verdicts about a result that is not a list but contains tool definitions; None if all are approved."""
    unapproved = _select_unapproved(definitions)
    if not unapproved:
        return None
    action, level, code, reason = _summarize_tools(TOOL_IN_RESULT, unapproved)
    verdict = Verdict(
        entity="result", key=method, value=None, digest=None, action=action, level=level, code=code, reason=reason
    )
    return CheckedRequest(verdict=verdict, definitions=unapproved)


def _select_unapproved(definitions: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return the verdicts about definitions that are not approved, with at least the action ``audit``."""
    return tuple(
        replace(verdict, action=choose_strictest_action(AUDIT, verdict.action))
        for verdict in definitions
        if verdict.code
    )


def _summarize_tools(code: str, unapproved: Sequence[Verdict]) -> tuple[str, str, str, str]:
    """Return the action, level, code and reason for a message with these tool definitions."""
    action = choose_strictest_action(*(verdict.action for verdict in unapproved))
    level = min((verdict.level or REVIEW for verdict in unapproved), key=SEVERITIES.index)
    container = "server request" if code == TOOL_IN_REQUEST else "result"
    return action, level, code, f"The {container} contains a tool definition that is not approved."


def _find_most_severe_sign(params: Any, ignored: frozenset[str]) -> str:
    """Return the code of the most severe sign of an attack in a request's texts; empty if there is none."""
    if not isinstance(params, Mapping):
        return ""
    from pinwarden.surface.drift.changes import CUE_ORDER
    from pinwarden.surface.scan.cues import ATTACK_CODES, MAX_TEXT, find_cues

    budget = _SCAN_BUDGET
    codes: set[str] = set()
    for text in _iterate_texts({name: value for name, value in params.items() if name != TOOLS}):
        if len(text) > budget:
            codes.add("oversized_text")
            break
        budget -= len(text)
        for start in range(0, max(len(text) - _OVERLAP, 1), MAX_TEXT - _OVERLAP):
            cues = find_cues(text[start : start + MAX_TEXT])
            codes.update(cue.code for cue in cues if not cue.is_quoted)
    # The classifier knows definitions of tools. Prompts give a model orders by nature, so it does not judge them.
    serious = (codes & ATTACK_CODES) - ignored - {"steering"}
    return next((code for code in CUE_ORDER if code in serious), "")


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield all strings of a value, including member names. Of images, audio and files, yield only readable text."""
    pending = [value]
    while pending:
        part = pending.pop()
        if type(part) is str:
            yield part
        elif type(part) is list:
            pending += part
        elif type(part) is dict:
            media = "mimeType" in part
            for name, member in part.items():
                pending.append(name)
                if media and name in ("data", "blob") and type(member) is str:
                    yield _decode_text(member, is_file=part.get("type") not in ("image", "audio"))
                else:
                    pending.append(member)


def _decode_text(data: str, *, is_file: bool) -> str:
    """Return the text that a client could display: the decoded text of a file, or ``data`` if it is not base64."""
    try:
        padded = data.replace("-", "+").replace("_", "/") + "=" * (-len(data) % 4)
        decoded = a2b_base64(padded, strict_mode=True)
        return decoded.decode() if is_file else ""
    except UnicodeDecodeError:  # binary, such as an archive or a picture
        return ""
    except ValueError:
        return data


def _describe_sign(code: str) -> str:
    from pinwarden.surface.scan.scan import MESSAGES

    return MESSAGES[code]


def _compute_digest(params: Any) -> Digest | None:
    try:
        return Digest.of_bytes(canonicalize(params if params is not None else {}))
    except PinwardenError:
        return None
