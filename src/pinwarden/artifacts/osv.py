"""Vulnerability records in the OSV format, from a local export."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record

LIMITS = Limits(max_bytes=16 * 1024 * 1024)
"""The largest records list every version of an operating system's package; they have a few megabytes."""

_ECOSYSTEMS = {"npm": "npm", "pypi": "pypi", "nuget": "nuget", "crates": "cargo"}
_EVENTS = ("introduced", "fixed", "last_affected", "limit")
_MAX_TEXT = 500
_MAX_ROWS = 100_000


class OsvEvent(Record):
    """A version at which something begins or ends."""

    kind: str
    """``introduced``, ``fixed``, ``last_affected`` or ``limit``."""
    version: str


class OsvRange(Record):
    """Affected versions between events, in the order of one scheme of versions."""

    kind: str
    """``SEMVER`` or ``ECOSYSTEM``. Ranges of commits say nothing about releases and are left out."""
    events: tuple[OsvEvent, ...]


class OsvAffected(Record):
    """One package that a record is about."""

    ecosystem: str
    """As in :data:`pinwarden.artifacts.artifact.Ecosystem`, or empty for one that is not handled here."""
    name: str
    ranges: tuple[OsvRange, ...] = ()
    versions: tuple[str, ...] = ()
    only_commits: bool = False
    """The record says which commits are affected and not which releases."""


class OsvRecord(Record):
    """One vulnerability, or one malicious package."""

    id: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    affected: tuple[OsvAffected, ...] = ()
    severity: str = ""
    """The CVSS vector or the database's own word, as given."""
    modified: str = ""
    withdrawn: str | None = None


def parse_osv(data: bytes) -> OsvRecord:
    """One record. What it adds beyond the fields used here is not looked at."""
    document = strict_json.parse(data, LIMITS)
    if not isinstance(document, dict):
        _invalid("", "is not an object")
    identifier = document.get("id")
    if not isinstance(identifier, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}", identifier):
        _invalid("", "has no usable id")
    summary = document.get("summary") or document.get("details") or ""
    withdrawn = document.get("withdrawn")
    return OsvRecord(
        id=identifier,
        aliases=tuple(_text(each, identifier)[:128] for each in _rows(document.get("aliases"), identifier)),
        summary=_text(summary, identifier).strip().partition("\n")[0][:_MAX_TEXT],
        affected=tuple(_affected(each, identifier) for each in _rows(document.get("affected"), identifier)),
        severity=_severity(document, identifier),
        modified=_text(document.get("modified") or "", identifier)[:64],
        withdrawn=None if withdrawn is None else _text(withdrawn, identifier)[:64],
    )


def ecosystem_of(osv_name: str) -> str:
    """Our name for an OSV ecosystem, which may have a suffix; empty for those that are not handled here."""
    return _ECOSYSTEMS.get(re.split(r"[.:]", osv_name.lower(), maxsplit=1)[0], "")


def _affected(value: Any, identifier: str) -> OsvAffected:
    row = _object(value, identifier)
    package = _object(row.get("package") or {}, identifier)
    ranges = [_range(each, identifier) for each in _rows(row.get("ranges"), identifier)]
    kept = tuple(each for each in ranges if each.kind != "GIT")
    versions = tuple(_text(each, identifier) for each in _rows(row.get("versions"), identifier))
    return OsvAffected(
        ecosystem=ecosystem_of(_text(package.get("ecosystem") or "", identifier)),
        name=_text(package.get("name") or "", identifier),
        ranges=kept,
        versions=versions,
        only_commits=bool(ranges) and not kept and not versions,
    )


def _range(value: Any, identifier: str) -> OsvRange:
    row = _object(value, identifier)
    kind = _text(row.get("type"), identifier)
    if kind not in ("SEMVER", "ECOSYSTEM", "GIT"):
        _invalid(identifier, f"has a range of the kind {kind[:40]!a}")
    events: list[OsvEvent] = []
    for each in _rows(row.get("events"), identifier):
        event = _object(each, identifier)
        found = [(name, event[name]) for name in _EVENTS if name in event]
        if len(found) != 1:
            _invalid(identifier, "has an event that is not exactly one")
        events.append(OsvEvent(kind=found[0][0], version=_text(found[0][1], identifier)))
    if not any(event.kind == "introduced" for event in events):
        _invalid(identifier, "has a range that begins nowhere")
    return OsvRange(kind=kind, events=tuple(events))


def _severity(document: Mapping[str, Any], identifier: str) -> str:
    own = document.get("database_specific")
    word = own.get("severity") if isinstance(own, dict) else None
    if isinstance(word, str) and word:
        return word[:40]
    for row in _rows(document.get("severity"), identifier):
        score = _object(row, identifier).get("score")
        if isinstance(score, str) and score:
            return score[:200]
    return ""


def _object(value: Any, identifier: str) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _invalid(identifier, "lacks an object")


def _rows(value: Any, identifier: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MAX_ROWS:
        _invalid(identifier, "lacks a list, or has one that is too long")
    return value


def _text(value: Any, identifier: str) -> str:
    return value if isinstance(value, str) else _invalid(identifier, "lacks a text")


def _invalid(identifier: str, why: str) -> NoReturn:
    raise PinwardenError("OSV_INVALID", f"the record {identifier or 'without an id'} {why}", data={"id": identifier})
