"""OSV records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.artifacts.osv import OsvAffected, OsvEvent, OsvRange, OsvRecord, map_ecosystem, parse_osv
from pinwarden.core.errors import PinwardenError


def parse(**members: Any) -> OsvRecord:
    return parse_osv(json.dumps({"id": "X-1", **members}).encode())


def test_a_record_is_read_with_its_ranges_versions_and_severity() -> None:
    record = parse(
        modified="2026-01-01T00:00:00Z",
        aliases=["CVE-2026-1"],
        summary="Bad.",
        withdrawn="2026-02-02T00:00:00Z",
        severity=[{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N"}],
        affected=[
            {
                "package": {"ecosystem": "PyPI", "name": "Acme"},
                "ranges": [
                    {"type": "GIT", "repo": "https://git.example/x", "events": [{"introduced": "0"}]},
                    {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]},
                ],
                "versions": ["1.0"],
            },
            {"package": {"ecosystem": "Go", "name": "x"}, "ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]},
        ],
    )
    assert record == OsvRecord(
        id="X-1",
        aliases=("CVE-2026-1",),
        summary="Bad.",
        affected=(
            OsvAffected(
                ecosystem="pypi",
                name="Acme",
                ranges=(
                    OsvRange(
                        kind="ECOSYSTEM",
                        events=(OsvEvent(kind="introduced", version="0"), OsvEvent(kind="fixed", version="2.0")),
                    ),
                ),
                versions=("1.0",),
            ),
            OsvAffected(ecosystem="", name="x", only_commits=True),
        ),
        severity="CVSS:3.1/AV:N",
        modified="2026-01-01T00:00:00Z",
        withdrawn="2026-02-02T00:00:00Z",
    )


def test_ecosystems_have_our_names() -> None:
    assert [map_ecosystem(name) for name in ("npm", "PyPI", "NuGet", "crates.x", "Debian:12", "")] == [
        *("npm", "pypi", "nuget", "cargo", "", "")
    ]


@pytest.mark.parametrize(
    "members",
    [
        {"id": 7},
        {"id": "../../x"},
        {"aliases": "CVE"},
        {"affected": [7]},
        {"affected": [{"ranges": [{"type": "VIBES", "events": [{"introduced": "0"}]}]}]},
        {"affected": [{"ranges": [{"type": "SEMVER", "events": [{"fixed": "1.0.0"}]}]}]},
        {"affected": [{"ranges": [{"type": "SEMVER", "events": [{"introduced": "0", "fixed": "1.0.0"}]}]}]},
        {"affected": [{"versions": [1]}]},
    ],
)
def test_an_invalid_record_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse(**members)
    assert caught.value.code == "OSV_INVALID"
