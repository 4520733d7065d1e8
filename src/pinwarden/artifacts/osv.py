"""OSV records: parsing them, and finding the locked packages they affect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cmp_to_key
from typing import Any, NoReturn

from pinwarden.artifacts.artifact import PackageRef
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.versions import are_comparable, compare_versions

LIMITS = Limits(max_bytes=16 * 1024 * 1024)
"""The largest records list every version of an operating system package and have a few megabytes."""

_ECOSYSTEMS = {"npm": "npm", "pypi": "pypi", "nuget": "nuget", "crates": "cargo"}
_EVENTS = ("introduced", "fixed", "last_affected", "limit")
_MAX_TEXT = 500
_MAX_ROWS = 100_000


class OsvEvent(Record):
    """A version at which an affected range begins or ends."""

    kind: str
    """``introduced``, ``fixed``, ``last_affected`` or ``limit``."""
    version: str


class OsvRange(Record):
    """A range of affected versions in one versioning scheme."""

    kind: str
    """``SEMVER`` or ``ECOSYSTEM``. ``GIT`` ranges are omitted, since they have no versions."""
    events: tuple[OsvEvent, ...]


class OsvAffected(Record):
    """One package that a record affects."""

    ecosystem: str
    """As in :data:`pinwarden.artifacts.artifact.Ecosystem`, or empty if it is not supported."""
    name: str
    ranges: tuple[OsvRange, ...] = ()
    versions: tuple[str, ...] = ()
    only_commits: bool = False
    """The record lists affected commits but no versions."""


class OsvRecord(Record):
    """One vulnerability or malicious package."""

    id: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    affected: tuple[OsvAffected, ...] = ()
    severity: str = ""
    """The CVSS vector, or the database's own severity."""
    modified: str = ""
    withdrawn: str | None = None


def parse_osv(data: bytes) -> OsvRecord:
    """Parse one record. Other fields are ignored."""
    document = strict_json.parse_json(data, LIMITS)
    if not isinstance(document, dict):
        _invalid("", "is not an object")
    identifier = document.get("id")
    if not isinstance(identifier, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}", identifier):
        _invalid("", "has no usable id")
    summary = document.get("summary") or document.get("details") or ""
    withdrawn = document.get("withdrawn")
    return OsvRecord(
        id=identifier,
        aliases=tuple(_text(alias, identifier)[:128] for alias in _rows(document.get("aliases"), identifier)),
        summary=_text(summary, identifier).strip().partition("\n")[0][:_MAX_TEXT],
        affected=tuple(_affected(row, identifier) for row in _rows(document.get("affected"), identifier)),
        severity=_severity(document, identifier),
        modified=_text(document.get("modified") or "", identifier)[:64],
        withdrawn=None if withdrawn is None else _text(withdrawn, identifier)[:64],
    )


def ecosystem_of(osv_name: str) -> str:
    """The ecosystem for an OSV ecosystem name, which may have a suffix; empty if it is not supported."""
    return _ECOSYSTEMS.get(re.split(r"[.:]", osv_name.lower(), maxsplit=1)[0], "")


def _affected(value: Any, identifier: str) -> OsvAffected:
    row = _object(value, identifier)
    package = _object(row.get("package") or {}, identifier)
    ranges = [_range(value, identifier) for value in _rows(row.get("ranges"), identifier)]
    versioned = tuple(item for item in ranges if item.kind != "GIT")
    versions = tuple(_text(version, identifier) for version in _rows(row.get("versions"), identifier))
    return OsvAffected(
        ecosystem=ecosystem_of(_text(package.get("ecosystem") or "", identifier)),
        name=_text(package.get("name") or "", identifier),
        ranges=versioned,
        versions=versions,
        only_commits=bool(ranges) and not versioned and not versions,
    )


def _range(value: Any, identifier: str) -> OsvRange:
    row = _object(value, identifier)
    kind = _text(row.get("type"), identifier)
    if kind not in ("SEMVER", "ECOSYSTEM", "GIT"):
        _invalid(identifier, f"has a range of the unknown type {kind[:40]!a}")
    events: list[OsvEvent] = []
    for item in _rows(row.get("events"), identifier):
        event = _object(item, identifier)
        kinds = [(name, event[name]) for name in _EVENTS if name in event]
        if len(kinds) != 1:
            _invalid(identifier, "has an event that is not exactly one of introduced, fixed, last_affected and limit")
        events.append(OsvEvent(kind=kinds[0][0], version=_text(kinds[0][1], identifier)))
    if not any(event.kind == "introduced" for event in events):
        _invalid(identifier, "has a range without introduced")
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
    return value if isinstance(value, dict) else _invalid(identifier, "has a value that is not an object")


def _rows(value: Any, identifier: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MAX_ROWS:
        _invalid(identifier, "has a value that is not a list, or is too long")
    return value


def _text(value: Any, identifier: str) -> str:
    return value if isinstance(value, str) else _invalid(identifier, "has a value that is not a string")


def _invalid(identifier: str, problem: str) -> NoReturn:
    raise PinwardenError(
        "OSV_INVALID", f"the record {identifier or 'without an id'} {problem}", data={"id": identifier}
    )


Compare = Callable[[str, str], int | None]
"""-1, 0 or 1; None if two versions cannot be compared."""


class VulnerablePackage(Record):
    """A locked package and a record that affects it."""

    package: PackageRef
    id: str
    aliases: tuple[str, ...]
    summary: str
    severity: str
    fixed: tuple[str, ...]
    """Versions that fix it, if known."""
    certain: bool = True
    """False if its version cannot be compared with the record's, so it may or may not be affected."""


def vulnerable_packages(records: Iterable[OsvRecord], packages: Iterable[PackageRef]) -> tuple[VulnerablePackage, ...]:
    """Every pair of a locked package and a record that affects it, in the order of the packages.

    Withdrawn records are ignored.
    """
    packages_by_key: dict[tuple[str, str], list[PackageRef]] = {}
    order: dict[PackageRef, int] = {}
    for package in packages:
        if package not in order:
            order[package] = len(order)
            packages_by_key.setdefault(_key(package.ecosystem, package.name), []).append(package)
    matches: list[VulnerablePackage] = []
    for record in records:
        if record.withdrawn is None:
            matches += _of_record(record, packages_by_key)
    return tuple(sorted(matches, key=lambda match: (order[match.package], match.id)))


def _of_record(
    record: OsvRecord, packages_by_key: dict[tuple[str, str], list[PackageRef]]
) -> Iterable[VulnerablePackage]:
    about: dict[PackageRef, list[OsvAffected]] = {}
    for affected in record.affected:
        for package in packages_by_key.get(_key(affected.ecosystem, affected.name), ()):
            about.setdefault(package, []).append(affected)
    for package, rows in about.items():
        answers = [_is_affected(package, row) for row in rows]
        if all(answer is False for answer, _ in answers):
            continue
        yield VulnerablePackage(
            package=package,
            id=record.id,
            aliases=record.aliases,
            summary=record.summary,
            severity=record.severity,
            fixed=tuple(dict.fromkeys(version for answer, ends in answers if answer is not False for version in ends)),
            certain=any(answer is True for answer, _ in answers),
        )


def _is_affected(package: PackageRef, affected: OsvAffected) -> tuple[bool | None, tuple[str, ...]]:
    """Whether a package is affected (None if unknown), and the versions that fix it."""
    compare = _COMPARE.get(package.ecosystem, _semver)
    if any(package.version == listed or compare(package.version, listed) == 0 for listed in affected.versions):
        return True, _fixes(affected.ranges)
    answers = [(_in_range(package.version, item, compare), item) for item in affected.ranges]
    hits = [item for answer, item in answers if answer is True]
    if hits:
        return True, _fixes(hits)
    says_nothing = not affected.ranges and not affected.versions
    if affected.only_commits or says_nothing or any(answer is None for answer, _ in answers):
        return None, _fixes(affected.ranges)
    return False, ()


def _fixes(ranges: Iterable[OsvRange]) -> tuple[str, ...]:
    return tuple(event.version for item in ranges for event in item.events if event.kind == "fixed")


def _in_range(version: str, affected: OsvRange, compare: Compare) -> bool | None:
    """OSV's evaluation algorithm: the last event at or below the version decides."""
    limits = [event.version for event in affected.events if event.kind == "limit" and event.version != "*"]
    compared = [(_compare_with(version, event, compare), event) for event in affected.events if event.kind != "limit"]
    outside = [compare(version, limit) for limit in limits]
    if any(order is None for order, _ in compared) or None in outside:
        return None
    if limits and not any(order == -1 for order in outside):
        return False
    reached = [event for order, event in compared if order is not None and _is_reached(order, event)]
    # If one version ends a range and begins another, the beginning comes last.
    reached.sort(key=lambda event: event.kind == "introduced")
    reached.sort(key=cmp_to_key(lambda left, right: _order(left.version, right.version, compare)))
    return bool(reached) and reached[-1].kind == "introduced"


def _compare_with(version: str, event: OsvEvent, compare: Compare) -> int | None:
    return 1 if event.version == "0" else compare(version, event.version)


def _is_reached(order: int, event: OsvEvent) -> bool:
    """A version is affected at ``last_affected`` and no longer at ``fixed``."""
    return order > 0 if event.kind == "last_affected" else order >= 0


def _order(left: str, right: str, compare: Compare) -> int:
    """Order two versions that are both comparable with a third one."""
    if "0" in (left, right):
        return (left != "0") - (right != "0")
    return compare(left, right) or 0


# Versions and names


_LONGEST = 256  # no registry has longer versions, and converting digits takes quadratic time


def _semver(left: str, right: str) -> int | None:
    if max(len(left), len(right)) > _LONGEST or not are_comparable(left, right):
        return None
    return compare_versions(left, right)


def _pep440(left: str, right: str) -> int | None:
    from packaging.version import InvalidVersion, Version

    if max(len(left), len(right)) > _LONGEST:
        return None
    try:
        first, second = Version(left), Version(right)
    except InvalidVersion:
        return None
    return (first > second) - (first < second)


_COMPARE: dict[str, Compare] = {"npm": _semver, "cargo": _semver, "nuget": _semver, "pypi": _pep440}


def _key(ecosystem: str, name: str) -> tuple[str, str]:
    """A key that is equal for all spellings that a registry treats as the same package."""
    if ecosystem == "pypi":
        return ecosystem, re.sub(r"[-_.]+", "-", name).lower()
    return ecosystem, name.replace("_", "-") if ecosystem == "cargo" else name.lower()
