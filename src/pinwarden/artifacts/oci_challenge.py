"""How a registry asks who is there (``WWW-Authenticate``), and to whom the answer may go."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.target import Address

_MAX_TEXT = 8192
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 9110, 5.6.2  # noqa: S105 - a part of the grammar, not a secret
_SCHEME = re.compile(rf"\s*({_TOKEN})(?=\s|,|$)(?!\s*=)")
_PARAMETER = re.compile(rf'\s*({_TOKEN})\s*=\s*(?:"((?:[^"\\\x00-\x1f]|\\.)*)"|({_TOKEN}))')
_COMMA = re.compile(r"\s*,\s*")


class Challenge(Record):
    """One way in which a registry lets itself be answered."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def parse_challenges(text: str) -> tuple[Challenge, ...]:
    """All challenges of a header, with lower-case scheme and parameter names."""
    if len(text) > _MAX_TEXT:
        raise _malformed()
    found: list[Challenge] = []
    parameters: dict[str, str] = {}
    place = 0
    while place < len(text):
        if scheme := _SCHEME.match(text, place):
            parameters = {}
            found.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
            place = scheme.end()
        elif (parameter := _PARAMETER.match(text, place)) and found:
            name = parameter[1].lower()
            if name in parameters:
                raise _malformed()
            quoted = parameter[2]
            parameters[name] = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            place = parameter.end()
        elif comma := _COMMA.match(text, place):
            place = comma.end()
        elif not text[place:].strip():
            break
        else:
            raise _malformed()
    return tuple(found)


def may_answer_to(registry: Address, realm: Address) -> bool:
    """Whether the registry's credential may go to where it asks for it: itself, or a sister under its own domain."""
    if realm.host == registry.host:
        return realm.scheme == "https" or registry.scheme == "http"
    mine = _own_domain(registry.host)
    return realm.scheme == "https" and mine is not None and mine == _own_domain(realm.host)


def _own_domain(host: str) -> str | None:
    """The part of a name that one owner registers. Where that is in doubt, the longer one."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.rstrip(".").split(".")
    else:
        return None
    # example.co.uk: short second-level names below a country are open to everyone.
    shared = len(labels) >= 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    needed = 3 if shared else 2
    return ".".join(labels[-needed:]) if len(labels) >= needed else None


def _malformed() -> PinwardenError:
    return PinwardenError(
        "FETCH_FAILED",
        "the registry asks for a credential in a way that is not understood",
        data={"reason": "protocol"},
    )
