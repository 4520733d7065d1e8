"""A local export of vulnerability records: read completely, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinwarden.artifacts.osv_export import ExportLimits, read_osv_export
from pinwarden.core.errors import PinwardenError
from tests.support.wheels import make_zip


def record(name: str) -> bytes:
    return json.dumps({"id": name, "modified": "2026-01-01T00:00:00Z"}).encode()


def test_a_folder_and_a_zip_file_give_the_same_records(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    (folder / "npm").mkdir(parents=True)
    (folder / "npm" / "A-1.json").write_bytes(record("A-1"))
    (folder / "npm" / "B-1.json").write_bytes(record("B-1"))
    (folder / "README.md").write_text("not a record")
    archive = tmp_path / "all.zip"
    archive.write_bytes(make_zip({"A-1.json": record("A-1"), "B-1.json": record("B-1"), "README": b""}))
    assert list(read_osv_export(folder)) == list(read_osv_export(archive))
    assert [each.id for each in read_osv_export(folder)] == ["A-1", "B-1"]


def refuse(path: Path, **limits: int) -> str:
    with pytest.raises(PinwardenError) as caught:
        list(read_osv_export(path, limits=ExportLimits(**limits)))
    return caught.value.code


def test_one_broken_record_fails_the_whole_export(tmp_path: Path) -> None:
    (tmp_path / "A-1.json").write_bytes(record("A-1"))
    (tmp_path / "B-1.json").write_bytes(b"{")
    assert refuse(tmp_path) == "OSV_INVALID"


def test_an_empty_or_missing_export_is_not_an_all_clear(tmp_path: Path) -> None:
    assert refuse(tmp_path) == "OSV_INVALID"
    assert refuse(tmp_path / "nothing") == "FILE_UNREADABLE"


def test_attack_bombs_and_floods_are_cut_off(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    bomb.write_bytes(make_zip({"A-1.json": b" " * 20_000_000 + record("A-1")}))
    assert refuse(bomb) == "OSV_INVALID"
    many = tmp_path / "many.zip"
    many.write_bytes(make_zip({f"A-{count}.json": record(f"A-{count}") for count in range(5)}))
    assert refuse(many, records=4) == "OSV_INVALID"
    assert refuse(many, total_bytes=100) == "OSV_INVALID"
    torn = tmp_path / "torn.zip"
    torn.write_bytes(many.read_bytes()[:-30])
    assert refuse(torn) == "OSV_INVALID"
