"""Decisions about requests of a server to the client: the request itself, and the content that it carries.

The user approved the tools of the server's lists, not the definitions inside such a request. A definition passes only
if the same definition is approved. Text cannot be approved in advance, so it is scanned for signs of an attack.
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
from pinwarden.gateway.gates.lists import enforced, strictest
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, Verdict
from pinwarden.lock.gateway_policy import DigestPolicy, RequestPolicy
from pinwarden.lock.policy_table import plain_host
from pinwarden.surface.drift.changes import CRITICAL, REVIEW, SEVERITIES
from pinwarden.surface.protocol import URL_REQUIRED
from pinwarden.surface.surface import TOOL, Item

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


TOOLS = "tools"
TOOL_IN_REQUEST = "tool_in_request"
"""A server request carries a tool definition that is not approved."""
TOOL_IN_RESULT = "tool_in_result"
"""The same for a result that is no list of tools."""
HIDDEN_CODES = frozenset({"hidden_characters", "terminal_escape"})
"""Codes that ``results.hidden-characters`` decides about, if the policy sets it."""
_EXAMINED = 1024 * 1024  # characters of all texts of one request; scanning so many takes up to a second
_OVERLAP = 1024  # characters that two examined parts of a long text share; no sign of an attack is longer
_ENTITY = "request"


class JudgedRequest(Record):
    """What was decided about one server request."""

    verdict: Verdict
    """About the whole request: its method, the digest of its params, and the strictest action of its parts."""
    definitions: tuple[Verdict, ...] = ()
    """The tool definitions in it that are not approved."""


def definitions_in(params: Any, most: int) -> tuple[Item, ...] | Refusal:
    """The tool definitions in the params of a request, or in a result; at most so many."""
    tools = params.get(TOOLS) if isinstance(params, Mapping) else None
    if tools is None:
        return ()
    if not isinstance(tools, list):
        return Refusal(code="request_malformed", reason="The server sends tool definitions that cannot be read.")
    if len(tools) > most:
        reason = f"The server sends {len(tools)} tool definitions in one message; the limit is {most}."
        return Refusal(code="request_too_many_tools", reason=reason)
    return tuple(Item.from_value(TOOL, tool) for tool in tools)


def judge_content(
    method: str, params: Any, definitions: Sequence[Verdict], policy: DigestPolicy, ignored: frozenset[str]
) -> JudgedRequest:
    """Judge a request that the server may make. ``definitions`` are the verdicts about the tools in it.

    Signs of an attack with a code in ``ignored`` are left to another rule.
    """
    unapproved = _unapproved(definitions)
    parts = [_tools_verdict(TOOL_IN_REQUEST, unapproved)] if unapproved else []
    code = _worst_sign(params, ignored)
    if code:
        level = REVIEW if code == "oversized_text" else CRITICAL
        parts.append((enforced(policy, level), level, code, f"The text of the server request {_message(code)}."))
    action = strictest(ALLOW, *(part[0] for part in parts))
    _, level, code, reason = next((part for part in parts if part[0] == action), (ALLOW, "", "", ""))
    verdict = Verdict(
        entity=_ENTITY,
        key=method,
        value=None,
        digest=_digest(params),
        action=action,
        level=level,
        code=code,
        reason=reason,
    )
    return JudgedRequest(verdict=verdict, definitions=unapproved)


def judge_definitions_of_result(method: str, definitions: Sequence[Verdict]) -> JudgedRequest | None:
    """Judge a result that carries tool definitions although it is no list; None if all of them are approved."""
    unapproved = _unapproved(definitions)
    if not unapproved:
        return None
    action, level, code, reason = _tools_verdict(TOOL_IN_RESULT, unapproved)
    verdict = Verdict(
        entity="result", key=method, value=None, digest=None, action=action, level=level, code=code, reason=reason
    )
    return JudgedRequest(verdict=verdict, definitions=unapproved)


def _unapproved(definitions: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The definitions that are not exactly what was approved. Whatever the policy, these are worth a record."""
    return tuple(replace(each, action=strictest(AUDIT, each.action)) for each in definitions if each.code)


def _tools_verdict(code: str, unapproved: Sequence[Verdict]) -> tuple[str, str, str, str]:
    action = strictest(*(each.action for each in unapproved))
    level = min((each.level or REVIEW for each in unapproved), key=SEVERITIES.index)
    where = "server request" if code == TOOL_IN_REQUEST else "result"
    return action, level, code, f"The {where} carries a tool definition that is not approved."


def _worst_sign(params: Any, ignored: frozenset[str]) -> str:
    """The code of the worst sign of an attack in the texts of a request; empty if there is none."""
    if not isinstance(params, Mapping):
        return ""
    from pinwarden.surface.drift.changes import CUE_ORDER
    from pinwarden.surface.scan.cues import ATTACK_CODES, MAX_TEXT, find_cues

    left = _EXAMINED
    found: set[str] = set()
    for text in _texts({name: value for name, value in params.items() if name != TOOLS}):
        if len(text) > left:
            found.add("oversized_text")
            break
        left -= len(text)
        for start in range(0, max(len(text) - _OVERLAP, 1), MAX_TEXT - _OVERLAP):
            cues = find_cues(text[start : start + MAX_TEXT])
            found.update(cue.code for cue in cues if not cue.mentioned)
    serious = (found & ATTACK_CODES) - ignored
    return next((code for code in CUE_ORDER if code in serious), "")


def _texts(value: Any) -> Iterator[str]:
    """Every string in a value; of images, sound and files only what is text, encoded or not."""
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
                    yield _text_of_data(member, is_file=part.get("type") not in ("image", "audio"))
                else:
                    pending.append(member)


def _text_of_data(data: str, *, is_file: bool) -> str:
    """The text that a host may find in encoded bytes: the text of a file, and all that is not encoded after all."""
    try:
        padded = data.replace("-", "+").replace("_", "/") + "=" * (-len(data) % 4)
        decoded = a2b_base64(padded, strict_mode=True)
        return decoded.decode() if is_file else ""
    except UnicodeDecodeError:  # an archive, a picture
        return ""
    except ValueError:
        return data


def _message(code: str) -> str:
    from pinwarden.surface.scan.scan import MESSAGES

    return MESSAGES[code]


def _digest(params: Any) -> Digest | None:
    try:
        return Digest.of_bytes(canonicalize(params if params is not None else {}))
    except PinwardenError:
        return None
