"""Judging what a server request carries: tool definitions, a system prompt, messages, the text of a form.

The user approved the tools of the server's lists, not these. A definition passes without a word only if the same
definition is approved. Text cannot be approved in advance, so it is scanned for signs of an attack. What happens then
is decided by the policy, as for anything that was not approved.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.gateway.gates.lists import enforced, strictest
from pinwarden.gateway.gates.requests import Refusal
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, Verdict
from pinwarden.lock.gateway_policy import DigestPolicy
from pinwarden.surface.drift.changes import CRITICAL, REVIEW, SEVERITIES
from pinwarden.surface.surface import TOOL, Item

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
