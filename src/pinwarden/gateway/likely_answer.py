"""Which request a text seems to answer that cannot be read: whoever waits for it is told, and does not wait for ever.

Nothing of the text is passed on. A server that puts the id of another request there could as well answer that one.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, loads
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits

_ID = rb'"id"[ \t\r]*:[ \t\r]*(-?[0-9]{1,18}|"(?:[^"\\]|\\.){0,1024}")[ \t\r]*'
_JSONRPC = rb'"jsonrpc"[ \t\r]*:[ \t\r]*"2\.0"[ \t\r]*'
_COMMA = rb",[ \t\r]*"
_OPENING = rb"\{[ \t\r]*(?:" + _JSONRPC + _COMMA + rb")?"
_OUTCOME = rb'"(?:result|error)"[ \t\r]*:'
_ID_FIRST = re.compile(_OPENING + _ID + _COMMA + rb"(?:" + _JSONRPC + _COMMA + rb")?" + _OUTCOME)
_ID_LAST = re.compile(_OPENING + _OUTCOME)
_LAST = re.compile(_COMMA + _ID + rb"(?:" + _COMMA + _JSONRPC + rb")?\}\Z")
_BEFORE = b"\xef\xbb\xbf\0 \t\r\n"  # a byte order mark, as some systems write before each text
_TAIL = 1200  # bytes in which an id and what may stand behind it have room


def is_noise(frame: bytes) -> bool:
    """Whether it was never meant to be a message: a log line on the wrong stream, as some servers print."""
    return frame.lstrip(_BEFORE)[:1] not in (b"{", b"[")


def answered_id(frame: bytes, limits: Limits) -> Any:
    """The id that an answer which is no strict JSON has, or seems to have."""
    from pinwarden.surface.probe.message import parse_message

    try:
        return parse_message(frame, limits).members.get("id")
    except PinwardenError:
        return likely_id(frame)


def likely_id(frame: bytes) -> Any:
    """The id of the request that a text seems to answer; None if it does not look like an answer.

    The id is looked for where servers write it: before the result, or at the end. So this takes no longer for a long
    text, and no words inside of a result are taken for it.
    """
    text = frame[: 2 * _TAIL].lstrip(_BEFORE)
    found = _ID_FIRST.match(text)
    if found is None and _ID_LAST.match(text) is not None:
        found = _LAST.search(frame[-_TAIL:].rstrip())
    if found is None:
        return None
    try:
        return loads(found[1])
    except (JSONDecodeError, UnicodeDecodeError):
        return None
