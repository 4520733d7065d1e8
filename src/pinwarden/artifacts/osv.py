"""Parses OSV records, and finds the locked packages that they affect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cmp_to_key, partial

from pinwarden.artifacts.artifact import PackageRef
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.typed_json import JsonObject
from pinwarden.core.versions import are_comparable, compare_versions

LIMITS = Limits(max_bytes=16 * 1024 * 1024)
"""The largest records, which list every version of an operating system package, have a few megabytes."""

_ECOSYSTEMS = {"npm": "npm", "pypi": "pypi", "nuget": "nuget", "crates": "cargo"}
_EVENTS = ("introduced", "fixed", "last_affected", "limit")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}")
_MAX_TEXT = 500
_MAX_ITEMS = 100_000


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
    """A value of :data:`pinwarden.artifacts.artifact.Ecosystem`; empty if the ecosystem is not supported."""
    name: str
    ranges: tuple[OsvRange, ...] = ()
    versions: tuple[str, ...] = ()
    only_commits: bool = False
    """Whether the record lists affected commits but no versions."""


class OsvRecord(Record):
    """An OSV record about a vulnerability or a malicious package."""

    id: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    affected: tuple[OsvAffected, ...] = ()
    severity: str = ""
    """The database's own severity, such as ``HIGH``, or the CVSS vector."""
    modified: str = ""
    withdrawn: str | None = None


def parse_osv(data: bytes) -> OsvRecord:
    """Parse an OSV record. Raises ``OSV_INVALID`` if a field that Pinwarden uses is malformed."""
    value = strict_json.parse_json(data, LIMITS)
    identifier = value.get("id") if isinstance(value, dict) else None
    document = JsonObject(value, "", partial(_build_error, identifier if isinstance(identifier, str) else ""))
    summary = "summary" if document.value.get("summary") else "details"
    return OsvRecord(
        id=document.string("id", _ID, kind="a usable id"),
        aliases=tuple(alias[:128] for alias in document.strings("aliases", max_items=_MAX_ITEMS, optional=True)),
        summary=_get_text(document, summary).strip().partition("\n")[0][:_MAX_TEXT],
        affected=tuple(map(_parse_affected, document.objects("affected", max_items=_MAX_ITEMS, optional=True))),
        severity=_parse_severity(document),
        modified=_get_text(document, "modified")[:64],
        withdrawn=None if document.value.get("withdrawn") is None else document.string("withdrawn")[:64],
    )


def map_ecosystem(osv_name: str) -> str:
    """Return Pinwarden's name of an OSV ecosystem such as ``PyPI`` or ``npm:1``; empty if it is not supported."""
    return _ECOSYSTEMS.get(re.split(r"[.:]", osv_name.lower(), maxsplit=1)[0], "")


def _parse_affected(affected: JsonObject) -> OsvAffected:
    package = affected.object("package") if affected.value.get("package") else None
    ranges = list(map(_parse_range, affected.objects("ranges", max_items=_MAX_ITEMS, optional=True)))
    version_ranges = tuple(version_range for version_range in ranges if version_range.kind != "GIT")
    versions = affected.strings("versions", max_items=_MAX_ITEMS, optional=True)
    return OsvAffected(
        ecosystem="" if package is None else map_ecosystem(_get_text(package, "ecosystem")),
        name="" if package is None else _get_text(package, "name"),
        ranges=version_ranges,
        versions=versions,
        only_commits=bool(ranges) and not version_ranges and not versions,
    )


def _parse_range(version_range: JsonObject) -> OsvRange:
    kind = version_range.one_of("type", ("SEMVER", "ECOSYSTEM", "GIT"))
    events: list[OsvEvent] = []
    for event in version_range.objects("events", max_items=_MAX_ITEMS, optional=True):
        kinds = [name for name in _EVENTS if name in event]
        if len(kinds) != 1:
            version_range.fail("events", f"has an event without exactly one of {', '.join(_EVENTS)}")
        events.append(OsvEvent(kind=kinds[0], version=event.string(kinds[0])))
    if not any(event.kind == "introduced" for event in events):
        version_range.fail("events", "has no introduced version")
    return OsvRange(kind=kind, events=tuple(events))


def _parse_severity(document: JsonObject) -> str:
    database_fields = document.value.get("database_specific")
    severity = database_fields.get("severity") if isinstance(database_fields, dict) else None
    if isinstance(severity, str) and severity:
        return severity[:40]
    for rating in document.objects("severity", max_items=_MAX_ITEMS, optional=True):
        score = rating.value.get("score")
        if isinstance(score, str) and score:
            return score[:200]
    return ""


def _get_text(record: JsonObject, name: str) -> str:
    """Return the member as a string, which is empty if the member is missing or null."""
    return record.string(name) if record.value.get(name) else ""


def _build_error(identifier: str, path: str, problem: str) -> PinwardenError:
    known = identifier if _ID.fullmatch(identifier) else ""
    return PinwardenError(
        "OSV_INVALID", f"the OSV record {known or 'without an id'}{path and f': {path}'} {problem}", data={"id": known}
    )


VersionComparison = Callable[[str, str], int | None]
"""Compares two versions and returns -1, 0 or 1, or None if they cannot be compared."""


class VulnerablePackage(Record):
    """A locked package and a record that affects it."""

    package: PackageRef
    id: str
    aliases: tuple[str, ...]
    summary: str
    severity: str
    fixed: tuple[str, ...]
    """Versions that fix the vulnerability, if known."""
    certain: bool = True
    """Whether the package is certainly affected. False if its version cannot be compared with those in the record."""


def find_vulnerable_packages(
    records: Iterable[OsvRecord], packages: Iterable[PackageRef]
) -> tuple[VulnerablePackage, ...]:
    """Return every pair of a locked package and a record that affects it, in the order of the packages.

    Withdrawn records are ignored.
    """
    packages_by_key: dict[tuple[str, str], list[PackageRef]] = {}
    order: dict[PackageRef, int] = {}
    for package in packages:
        if package not in order:
            order[package] = len(order)
            packages_by_key.setdefault(_build_package_key(package.ecosystem, package.name), []).append(package)
    matches: list[VulnerablePackage] = []
    for record in records:
        if record.withdrawn is None:
            matches += _match_record(record, packages_by_key)
    return tuple(sorted(matches, key=lambda match: (order[match.package], match.id)))


def _match_record(
    record: OsvRecord, packages_by_key: dict[tuple[str, str], list[PackageRef]]
) -> Iterable[VulnerablePackage]:
    affected_by_package: dict[PackageRef, list[OsvAffected]] = {}
    for affected in record.affected:
        for package in packages_by_key.get(_build_package_key(affected.ecosystem, affected.name), ()):
            affected_by_package.setdefault(package, []).append(affected)
    for package, statements in affected_by_package.items():
        results = [_check_affected(package, affected) for affected in statements]
        if all(is_affected is False for is_affected, _ in results):
            continue
        yield VulnerablePackage(
            package=package,
            id=record.id,
            aliases=record.aliases,
            summary=record.summary,
            severity=record.severity,
            fixed=tuple(
                dict.fromkeys(
                    version for is_affected, fixes in results if is_affected is not False for version in fixes
                )
            ),
            certain=any(is_affected is True for is_affected, _ in results),
        )


def _check_affected(package: PackageRef, affected: OsvAffected) -> tuple[bool | None, tuple[str, ...]]:
    """Return whether a package is affected (None if unknown), and the versions that fix the vulnerability."""
    compare = _COMPARE_FUNCTIONS.get(package.ecosystem, _compare_semver)
    if any(package.version == listed or compare(package.version, listed) == 0 for listed in affected.versions):
        return True, _list_fixes(affected.ranges)
    results = [(_is_in_range(package.version, osv_range, compare), osv_range) for osv_range in affected.ranges]
    matching_ranges = [osv_range for is_inside, osv_range in results if is_inside is True]
    if matching_ranges:
        return True, _list_fixes(matching_ranges)
    has_no_versions = not affected.ranges and not affected.versions
    if affected.only_commits or has_no_versions or any(is_inside is None for is_inside, _ in results):
        return None, _list_fixes(affected.ranges)
    return False, ()


def _list_fixes(ranges: Iterable[OsvRange]) -> tuple[str, ...]:
    return tuple(event.version for osv_range in ranges for event in osv_range.events if event.kind == "fixed")


def _is_in_range(version: str, affected: OsvRange, compare: VersionComparison) -> bool | None:
    """Whether a version is in a range; None if unknown. As OSV specifies, the last event up to the version decides."""
    limits = [event.version for event in affected.events if event.kind == "limit" and event.version != "*"]
    compared = [
        (_compare_with_event(version, event, compare), event) for event in affected.events if event.kind != "limit"
    ]
    limit_orders = [compare(version, limit) for limit in limits]
    if any(order is None for order, _ in compared) or None in limit_orders:
        return None
    if limits and not any(order == -1 for order in limit_orders):
        return False
    reached = [event for order, event in compared if order is not None and _is_reached(order, event)]
    # If a version both ends one range and begins another, the second range counts.
    reached.sort(key=lambda event: event.kind == "introduced")
    reached.sort(key=cmp_to_key(lambda left, right: _compare_event_versions(left.version, right.version, compare)))
    return bool(reached) and reached[-1].kind == "introduced"


def _compare_with_event(version: str, event: OsvEvent, compare: VersionComparison) -> int | None:
    return 1 if event.version == "0" else compare(version, event.version)


def _is_reached(order: int, event: OsvEvent) -> bool:
    """Whether an event applies to a version. ``order`` is 1, 0 or -1: the version is after, at or before the event.

    A version equal to ``last_affected`` is still affected, so that event applies only to later versions.
    """
    return order > 0 if event.kind == "last_affected" else order >= 0


def _compare_event_versions(left: str, right: str, compare: VersionComparison) -> int:
    """Compare the versions of two events, which the caller has found to be comparable."""
    if "0" in (left, right):
        return (left != "0") - (right != "0")
    return compare(left, right) or 0


# Versions and names


_MAX_VERSION = 256  # longer versions are not valid in any registry, and would be slow to compare


def _compare_semver(left: str, right: str) -> int | None:
    if max(len(left), len(right)) > _MAX_VERSION or not are_comparable(left, right):
        return None
    return compare_versions(left, right)


def _compare_pep440(left: str, right: str) -> int | None:
    from packaging.version import InvalidVersion, Version

    if max(len(left), len(right)) > _MAX_VERSION:
        return None
    try:
        first, second = Version(left), Version(right)
    except InvalidVersion:
        return None
    return (first > second) - (first < second)


_COMPARE_FUNCTIONS: dict[str, VersionComparison] = {
    "npm": _compare_semver,
    "cargo": _compare_semver,
    "nuget": _compare_semver,
    "pypi": _compare_pep440,
}


def _build_package_key(ecosystem: str, name: str) -> tuple[str, str]:
    """Return a key that is equal for all spellings that a registry treats as the same package."""
    if ecosystem == "pypi":
        return ecosystem, re.sub(r"[-_.]+", "-", name).lower()
    return ecosystem, name.replace("_", "-") if ecosystem == "cargo" else name.lower()
