"""Locked versions against known vulnerabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.artifacts.artifact import PackageRef
from pinwarden.artifacts.osv import OsvRecord, VulnerablePackage, find_vulnerable_packages, parse_osv

# Written by hand from the advisory: command injection through a server's authorization_endpoint.
MCP_REMOTE = {
    "id": "GHSA-6xpm-ggf7-wc3p",
    "modified": "2025-07-09T00:00:00Z",
    "aliases": ["CVE-2025-6514"],
    "summary": "mcp-remote runs commands that a server it connects to chooses",
    "database_specific": {"severity": "CRITICAL"},
    "affected": [
        {
            "package": {"ecosystem": "npm", "name": "mcp-remote"},
            "ranges": [{"type": "SEMVER", "events": [{"introduced": "0.0.5"}, {"fixed": "0.1.16"}]}],
        }
    ],
}


def record(**members: Any) -> OsvRecord:
    return parse_osv(json.dumps({**MCP_REMOTE, **members}).encode())


def npm(version: str, name: str = "mcp-remote") -> PackageRef:
    return PackageRef(ecosystem="npm", name=name, version=version)


def pypi(version: str, name: str = "acme-notes") -> PackageRef:
    return PackageRef(ecosystem="pypi", name=name, version=version)


def about(ecosystem: str, name: str, *events: dict[str, str], versions: tuple[str, ...] = ()) -> OsvRecord:
    kind = "SEMVER" if ecosystem == "npm" else "ECOSYSTEM"
    ranges = [{"type": kind, "events": list(events)}] if events else []
    package = {"ecosystem": ecosystem, "name": name}
    return record(id="X-1", affected=[{"package": package, "ranges": ranges, "versions": list(versions)}])


def answer(known: OsvRecord, package: PackageRef) -> bool | None:
    """Yes, no, or None for cannot tell."""
    found = find_vulnerable_packages([known], [package])
    return found[0].certain or None if found else False


def test_attack_mcp_remote_is_found_by_its_locked_version() -> None:
    """CVE-2025-6514: from 0.0.5 on, until 0.1.16."""
    packages = [npm("0.1.15"), npm("0.1.16"), npm("0.1.15", "mcp-remote-2")]
    assert find_vulnerable_packages([record()], packages) == (
        VulnerablePackage(
            package=npm("0.1.15"),
            id="GHSA-6xpm-ggf7-wc3p",
            aliases=("CVE-2025-6514",),
            summary="mcp-remote runs commands that a server it connects to chooses",
            severity="CRITICAL",
            fixed=("0.1.16",),
        ),
    )


@pytest.mark.parametrize(
    ("version", "affected"),
    [("0.0.4", False), ("0.0.5", True), ("0.1.0", True), ("0.1.16-rc.1", True), ("0.1.16", False), ("1.0.0", False)],
)
def test_the_borders_of_a_range_are_exact(version: str, *, affected: bool) -> None:
    assert answer(record(), npm(version)) is affected


@pytest.mark.parametrize("version", ["latest", "", "^0.1.0", "0.1", "1" * 5000 + ".0.0"])
def test_a_version_that_cannot_be_compared_is_not_an_all_clear(version: str) -> None:
    assert answer(record(), npm(version)) is None


def test_a_withdrawn_record_does_not_count() -> None:
    assert answer(record(withdrawn="2026-01-01T00:00:00Z"), npm("0.1.15")) is False


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("1.0rc1", True),
        ("1.0", True),
        ("1.5.post1", True),
        ("2.0.dev1", True),
        ("2.0", False),
        ("2.5", True),
        ("3.1", False),
    ],
)
def test_python_versions_are_compared_as_python_does(version: str, *, affected: bool) -> None:
    known = about(
        "PyPI", "Acme_Notes", {"introduced": "2.5"}, {"last_affected": "3.0"}, {"introduced": "0"}, {"fixed": "2.0"}
    )
    assert answer(known, pypi(version, "acme.notes")) is affected


def test_the_last_affected_version_is_affected() -> None:
    known = about("PyPI", "acme-notes", {"introduced": "0"}, {"last_affected": "3.0"})
    assert (answer(known, pypi("3.0.0")), answer(known, pypi("3.0.1"))) == (True, False)


def test_listed_versions_count_beside_ranges() -> None:
    known = about("npm", "evil", versions=("1.0.16",))
    assert (answer(known, npm("1.0.16", "evil")), answer(known, npm("1.0.15", "evil"))) == (True, False)
    assert answer(about("PyPI", "acme-notes", versions=("1.0",)), pypi("1.0.0")) is True


def test_a_record_that_names_neither_versions_nor_ranges_is_not_an_all_clear() -> None:
    assert answer(about("npm", "evil"), npm("1.0.0", "evil")) is None


def test_one_name_in_two_ecosystems_is_two_packages() -> None:
    assert answer(about("PyPI", "mcp-remote", {"introduced": "0"}), npm("0.1.15")) is False


def test_a_limit_event_ends_the_affected_range() -> None:
    known = about("npm", "x", {"introduced": "1.0.0"}, {"limit": "2.0.0"})
    assert (answer(known, npm("1.5.0", "x")), answer(known, npm("2.0.0", "x"))) == (True, False)
