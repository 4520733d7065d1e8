"""Parses ``WWW-Authenticate`` headers (RFC 9110, section 11.6.1). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

_MAX_HEADER = 8192
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 9110, 5.6.2  # noqa: S105 - grammar, not a secret
_SCHEME = re.compile(rf"\s*({_TOKEN})(?=\s|,|$)(?!\s*=)")
_PARAMETER = re.compile(rf'\s*({_TOKEN})\s*=\s*(?:"((?:[^"\\\x00-\x1f]|\\.)*)"|({_TOKEN}))')
_COMMA = re.compile(r"\s*,\s*")


class Challenge(Record):
    """One challenge of a ``WWW-Authenticate`` header."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def parse_challenges(text: str) -> tuple[Challenge, ...]:
    """Parse a ``WWW-Authenticate`` header. Scheme and parameter names are converted to lower case."""
    if len(text) > _MAX_HEADER:
        raise _malformed_header_error()
    challenges: list[Challenge] = []
    parameters: dict[str, str] = {}
    position = 0
    while position < len(text):
        if scheme := _SCHEME.match(text, position):
            parameters = {}
            challenges.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
            position = scheme.end()
        elif (parameter := _PARAMETER.match(text, position)) and challenges:
            name = parameter[1].lower()
            if name in parameters:
                raise _malformed_header_error()
            quoted = parameter[2]
            parameters[name] = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            position = parameter.end()
        elif comma := _COMMA.match(text, position):
            position = comma.end()
        elif not text[position:].strip():
            break
        else:
            raise _malformed_header_error()
    return tuple(challenges)


def _malformed_header_error() -> PinwardenError:
    return PinwardenError(
        "FETCH_FAILED",
        "the server sent a malformed WWW-Authenticate header",
        data={"reason": "protocol"},
    )
