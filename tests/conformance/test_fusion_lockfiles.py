"""Contracts, digests and lockfiles of MCP Fusion and Vurb, byte for byte as the originals made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pinwarden.contract.check import check_lockfile
from pinwarden.contract.contract import contracts_from_json
from pinwarden.contract.dialect import DIALECTS, F1, Dialect, V, detect_dialects
from pinwarden.contract.digests import compute_server_digest
from pinwarden.contract.lockfile import generate_lockfile, parse_lockfile, serialize_lockfile
from pinwarden.core.errors import PinwardenError
from tests.conformance.fusion_world import FOLDER, MADE_AT, dialect_of, prompts_of, rows, server_files

EVERY_SERVER = pytest.mark.parametrize(
    "path", [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in server_files()]
)


@EVERY_SERVER
def test_digests_of_sections_tools_and_server_are_the_originals(path: Path) -> None:
    case, dialect = json.loads(path.read_text()), dialect_of(path.stem)
    digests = compute_server_digest(contracts_from_json(case["contracts"]), dialect)
    assert {
        "server": digests.digest,
        "tools": {
            name: {"digest": each.digest, "components": each.components()} for name, each in digests.tools.items()
        },
    } == case["digests"]


@EVERY_SERVER
def test_a_lockfile_has_the_originals_bytes_and_is_read_back_up_to_date(path: Path) -> None:
    case, dialect = json.loads(path.read_text()), dialect_of(path.stem)
    contracts, prompts = contracts_from_json(case["contracts"]), prompts_of(case.get("prompts"))
    made = generate_lockfile(
        case["serverName"],
        contracts,
        prompts,
        generated_at=MADE_AT,
        dialect=dialect,
        framework_version=case["version"],
    )
    original = path.with_suffix(".lock").read_bytes()
    assert serialize_lockfile(made) == original
    read = parse_lockfile(original)
    assert serialize_lockfile(read) == original
    assert dialect in detect_dialects(read.document) or not case["contracts"]
    assert check_lockfile(read, contracts, prompts, dialect=dialect).ok


def test_the_dialect_of_a_file_is_detected_if_possible() -> None:
    def detected(label: str) -> list[str]:
        path = next(each for each in server_files() if each.parent.name.startswith("02") and each.stem == label)
        return [each.name for each in detect_dialects(parse_lockfile(path.with_suffix(".lock").read_bytes()).document)]

    assert detected("fusion-2.8.0") == ["F1"]
    assert detected("fusion-2.8.1") == ["F5", "F4", "F3", "F2"]
    assert detected("vurb-3.17.2") == ["V"]
    assert set(DIALECTS) == {"F1", "F2", "F3", "F4", "F5", "V"}


@pytest.mark.parametrize(("dialect", "case"), rows("parse"))
def test_a_reader_in_compatibility_mode_takes_what_the_original_takes(dialect: Dialect, case: dict[str, Any]) -> None:
    if case["accepted"]:
        parse_lockfile(case["text"].encode(), compat=dialect)
    else:
        with pytest.raises(PinwardenError) as caught:
            parse_lockfile(case["text"].encode(), compat=dialect)
        assert caught.value.exit_code == 3


DEFAULT_READING = {
    "version-2": "LOCK_VERSION_UNSUPPORTED",
    "version-string": "LOCK_INVALID",
    "duplicate-key": "JSON_CANONICALIZATION_ERROR",  # two readers could understand it differently
    "not-json": "JSON_PARSE_ERROR",
    "empty": "JSON_PARSE_ERROR",
    "json-array": "LOCK_INVALID",
    "tools-missing": "LOCK_INVALID",
}
UNREADABLE = {*DEFAULT_READING.values()}


def reads(text: str, dialect: Dialect) -> bool:
    """Whether the original of that dialect takes the text."""
    try:
        parse_lockfile(text.encode(), compat=dialect)
    except PinwardenError:
        return False
    return True


@pytest.mark.parametrize(("dialect", "case"), rows("parse"))
def test_the_default_reader_names_what_is_wrong_and_never_says_not_found(
    dialect: Dialect, case: dict[str, Any]
) -> None:
    try:
        parse_lockfile(case["text"].encode())
    except PinwardenError as err:
        assert (err.exit_code, err.code) == (3, DEFAULT_READING.get(case["id"], err.code))
        assert err.code in UNREADABLE
        assert err.hint
        return
    assert case["id"] not in DEFAULT_READING
    assert case["accepted"] or reads(case["text"], F1) or reads(case["text"], V), "we read both names"


@pytest.mark.parametrize(("dialect", "case"), rows("check"))
def test_a_check_in_compatibility_mode_gives_the_originals_answer(dialect: Dialect, case: dict[str, Any]) -> None:
    lockfile = parse_lockfile(case["lockfileText"].encode(), compat=dialect)
    assert case["parsed"] is True
    prompts = None if case["prompts"] is None else prompts_of(case["prompts"])
    result = check_lockfile(lockfile, contracts_from_json(case["contracts"]), prompts, dialect=dialect, compat=True)
    assert result.to_json() == case["result"]


def was_edited(case: dict[str, Any]) -> bool:
    """Whether the vectors changed the lockfile itself where its digests should hold it, and not the server."""
    return str(case["id"]).startswith(("locked-", "server-digest-"))


@pytest.mark.parametrize(("dialect", "case"), rows("check"))
def test_the_default_check_agrees_unless_the_file_was_edited(dialect: Dialect, case: dict[str, Any]) -> None:
    prompts = None if case["prompts"] is None else prompts_of(case["prompts"])
    contracts, data = contracts_from_json(case["contracts"]), case["lockfileText"].encode()
    if was_edited(case):
        with pytest.raises(PinwardenError) as caught:
            check_lockfile(parse_lockfile(data), contracts, prompts)
        assert caught.value.code in ("LOCK_TAMPERED", "LOCK_INVALID")
        return
    result = check_lockfile(parse_lockfile(data), contracts, prompts).to_json()
    message = case["result"]["message"].replace("fusion lock", "pinwarden contract lock")
    assert result == {**case["result"], "message": message.replace("vurb lock", "pinwarden contract lock")}


def test_every_vector_of_fusion_is_read_by_some_suite() -> None:
    """The suites take whole folders, so a file is unread only if it lies in another, or is of another kind."""
    alone = {"README.md", "canonical.json"}
    folders = {"check", "diff", "parse", "servers", "tokens"}
    assert {path.name for path in FOLDER.iterdir()} | {"README.md"} == alone | folders
    found = [path for folder in folders for path in (FOLDER / folder).rglob("*") if path.is_file()]
    locks = {path.with_suffix(".lock") for path in server_files()}
    assert {path for path in found if path.suffix != ".json"} == locks
    assert {path.parent.parent for path in server_files()} == {FOLDER / "servers"}


def test_only_the_first_dialect_lacks_the_fifth_entitlement() -> None:
    assert [each.name for each in DIALECTS.values() if not each.code_evaluation] == [F1.name]
    assert V.version_key == "vurbVersion"
