"""Tampered lockfiles: refused wherever ToolPin refuses, and where it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinwarden import PinwardenError
from pinwarden.documents.lock import lockfile
from pinwarden.documents.lock.lockfile import sealed
from pinwarden.documents.lock.verification import DIFFERENCES, SAME_ANSWER, verify
from tests.conformance.test_toolpin_locks import case, files
from tests.conformance.vectors import vectors_dir

TAMPERED = [*files("tamper"), *files("defects")]
STRICTER = {difference.case: difference for difference in DIFFERENCES}
REFUSED_AT_READING = {"bad_client": "LOCK_INVALID"} | dict.fromkeys(
    ("version_1", "version_3"), "LOCK_VERSION_UNSUPPORTED"
)


def answer(path: Path) -> tuple[str, ...]:
    try:
        return tuple(problem.code for problem in verify(lockfile.parse(path.read_bytes())))
    except PinwardenError as err:
        return (err.code,)


def accepted_by_toolpin(path: Path) -> bool:
    report = path.with_name(case(path) + ".ci.json").read_bytes()
    return bool(report) and bool(json.loads(report)["ok"])


@pytest.mark.parametrize("path", TAMPERED, ids=case)
def test_what_toolpin_refuses_is_refused_and_where_we_differ_the_table_says_so(path: Path) -> None:
    found = answer(path)
    if not accepted_by_toolpin(path):
        assert found
    elif case(path) in STRICTER:
        assert set(STRICTER[case(path)].codes) == set(found)
    else:
        assert (found, case(path) in SAME_ANSWER) == ((), True)


@pytest.mark.parametrize(("name", "code"), REFUSED_AT_READING.items())
def test_a_file_that_cannot_be_read_is_refused_with_a_code_and_a_hint(name: str, code: str) -> None:
    data = (vectors_dir() / f"toolpin/tamper/{name}.mcp-lock.json").read_bytes()
    with pytest.raises(PinwardenError) as caught:
        lockfile.parse(data)
    assert caught.value.code == code
    assert caught.value.hint


@pytest.mark.parametrize("path", [path for path in TAMPERED if case(path) not in REFUSED_AT_READING], ids=case)
def test_a_sealed_file_shows_every_one_of_these_changes(path: Path) -> None:
    """The whole lock, sealed; then the tampered entries and members under the same seal."""
    if path.parent.name != "tamper" or case(path) == "keys_reordered":
        return  # other entries altogether, or the order of members, which means nothing
    whole = sealed(lockfile.parse((vectors_dir() / "toolpin/locks/whole.mcp-lock.json").read_bytes()))
    assert verify(whole) == ()
    document = json.loads(path.read_bytes())
    document["pinwarden"] = whole.seal
    codes = {problem.code for problem in verify(lockfile.parse(json.dumps(document).encode()))}
    assert codes & {"seal_mismatch", "sealed_entry_changed", "sealed_entry_removed", "sealed_entry_added"}
