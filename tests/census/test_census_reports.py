"""What a census answers, and hostile texts in everything that shows them: pages, feeds, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.census.recorded import build_finding, build_surface, observe, record_run
from tests.cli.run import pinwarden
from tests.dashboard.world import serving_dashboard
from tests.gateway.review_world import ReviewWorld

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\u200b\x1b[31m\x00 ]]> & \ud800 '\""
FORMULAS = ("=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "\u200b=1")
TEXT = "List the files of a folder that the user has opened in the editor before."


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> ReviewWorld:
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    made.use()
    return made


def check_page(html: str) -> None:
    assert "<script>alert" not in html
    assert "<img" not in html
    assert not set(html) & {"\u202e", "\u200b", "\x1b", "\x00"}


def test_attack_texts_of_servers_are_text_in_pages_feeds_and_exports(world: ReviewWorld, tmp_path: Path) -> None:
    database = tmp_path / "census.sqlite"
    surface = build_surface({"name": HOSTILE, "description": f"{HOSTILE} {TEXT}"})
    facts = dict.fromkeys(("publisher", "provenance", "message", "artifact"), HOSTILE)
    results = {
        f"server{number}": observe(surface, [build_finding(HOSTILE, name=HOSTILE)], version=HOSTILE, **facts)
        for number in range(4)
    }
    results["failed"] = observe(code="PROBE_FAILED", reason=HOSTILE, message=HOSTILE)
    record_run(database, results)
    assert pinwarden("census", "report", "site", "--database", str(database), cwd=tmp_path).code == 0
    for page in (tmp_path / "site").rglob("*.html"):
        check_page(page.read_text())
    atom = ElementTree.parse(tmp_path / "site" / "feed.atom")
    assert len(atom.findall("{http://www.w3.org/2005/Atom}entry")) == 4
    assert len(json.loads((tmp_path / "site" / "feed.json").read_text())["items"]) == 4
    export = pinwarden("census", "export", "x.csv", "--database", str(database), cwd=tmp_path)
    assert export.code == 0, export.err

    from pinwarden.census.census import Census

    census = Census(str(database), create=False)
    with serving_dashboard(world.state, role="viewer", census=census) as served:
        client = served.client()
        for path in ("", "findings/", "questions/", "servers/"):
            answer = client.page(f"census/{path}")
            assert answer.status == 200, answer.text
            check_page(answer.html)
        assert "server3" in client.page("census/servers/?run=1&page=1").text
        assert "No census" not in client.page("census/?run=1").text
        for wrong in ("?run=2", "?run=x", "?run=-1", "?run=%C2%B2", f"?run={'9' * 40}"):
            assert client.page(f"census/{wrong}").status == 404
        assert client.page("census/servers/?page=999999999").status == 200
    census.close()


def test_the_dashboard_says_how_to_run_a_census_if_there_is_none(world: ReviewWorld) -> None:
    with serving_dashboard(world.state) as served:
        page = served.client().page("census/")
    assert page.status == 200
    assert "pinwarden census run fleet --allow-execute" in page.text


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_attack_a_spreadsheet_runs_no_text_of_a_server(kind: str, tmp_path: Path) -> None:
    results = {f"server{number}": observe(build_surface(), version=text) for number, text in enumerate(FORMULAS)}
    record_run(tmp_path / "census.sqlite", results)
    done = pinwarden("census", "export", "x", "--as", kind, "--database", "census.sqlite", cwd=tmp_path)
    assert done.code == 0, done.err
    if kind == "csv":
        versions = [
            row["version"] for row in csv.DictReader(io.StringIO((tmp_path / "x").read_bytes().decode(), newline=""))
        ]
        assert versions == [f"'{text}" for text in FORMULAS]
    else:
        from pyarrow import parquet

        table = parquet.read_table(tmp_path / "x")
        assert table.column("version").to_pylist() == list(FORMULAS)  # typed, so no reader takes it for a formula
        assert table.column("tokens").to_pylist() == [0] * len(FORMULAS)


def test_each_question_has_the_servers_that_it_is_about(tmp_path: Path) -> None:
    database = tmp_path / "census.sqlite"
    plain = {"name": "list_files", "description": TEXT}
    first = {
        **{f"same{number}": observe(build_surface(plain)) for number in range(3)},
        "quiet": observe(build_surface({"name": "quiet", "description": "One."})),
        "built": observe(build_surface(), provenance="github.com/acme/built", publisher="ada"),
        "late": observe(build_surface()),
    }
    record_run(database, first, now="2026-11-18T00:00:00.000Z")
    second = {
        **first,
        "quiet": observe(build_surface({"name": "quiet", "description": "Two."})),
        "built": observe(build_surface(), version="1.1.0", publisher="eve"),
        "late": observe(build_surface({"name": "list_files", "description": "Another."})),
        "copy": observe(build_surface({"name": "ls", "description": TEXT.upper().replace(" ", "\u200b ")})),
    }
    record_run(database, second)
    pinwarden("census", "report", "site", "--database", "census.sqlite", cwd=tmp_path)
    page = (tmp_path / "site" / "questions" / "index.html").read_text()
    sections = {re.sub(r"<[^>]*>", "", part).partition("(")[0].strip(): part for part in page.split("<h2>")[1:]}

    def names(title: str) -> set[str]:
        return {name for name in second if re.search(rf"\b{name}\b", re.sub(r"<[^>]*>", " ", sections[title]))}

    assert names("Drift without a new version") == {"quiet", "late"}
    assert names("Provenance lost or changed") == {"built"}
    assert "ada → eve" in re.sub(r"<[^>]*>", "", sections["Another publisher"])
    assert names("Shared definitions") == {"same0", "same1", "same2"}
    assert names("Near copies") == {"same0", "same1", "same2", "copy"}
    assert "late" in names("New tools with popular names")
