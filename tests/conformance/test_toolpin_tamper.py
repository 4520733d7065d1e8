"""Tampered lockfiles: refused wherever ToolPin refuses, and where it should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinwarden import PinwardenError
from pinwarden.lock import lockfile
from pinwarden.lock.lockfile import seal_lock, verify
from tests.conformance.test_toolpin_locks import case, files
from tests.conformance.vectors import REPOSITORY, vectors_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A change to a lockfile that ToolPin 0.5.4 does not see, and what we make of it."""

    case: str
    toolpin: str
    ours: str
    codes: tuple[str, ...]
    reason: str


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        case="key_renamed",
        toolpin="accepts",
        ours="refuses",
        codes=("entry_key_mismatch",),
        reason="ToolPin looks entries up by name and client; one under another key is never compared with anything.",
    ),
    Difference(
        case="forged-entry-under-other-key",
        toolpin="accepts",
        ours="refuses",
        codes=("entry_key_mismatch", "integrity_mismatch", "locked_copy_differs"),
        reason="The same hole used in earnest: another package, another command, and an integrity value of anything.",
    ),
    Difference(
        case="unknown_member_added",
        toolpin="accepts",
        ours="refuses",
        codes=("member_unprotected",),
        reason="No integrity value covers the member. In a sealed file members may be added, and the seal covers them.",
    ),
    Difference(
        case="manifest_generatedAt",
        toolpin="accepts",
        ours="refuses",
        codes=("locked_copy_differs",),
        reason="ToolPin does not hash the time of a manifest; its copy under locked tells. A seal covers both.",
    ),
    Difference(
        case="top_timestamps",
        toolpin="accepts",
        ours="refuses",
        codes=("timestamps_inconsistent",),
        reason="ToolPin does not hash the times of the file; it cannot have been written before its entries were.",
    ),
)
"""Where we refuse and ToolPin does not. Never the other way round."""

SAME_ANSWER: Mapping[str, str] = {
    "keys_reordered": "The order of members means nothing in JSON; both accept. (A DSSE signature covers the bytes.)",
    "scope_removed": "An entry without scope is for the project, and is hashed so; both accept. A seal sees it.",
    "entry_deleted": "A plain v2 file says nowhere how many entries it has; both accept, unless an expected digest or "
    "a signature is given. The seal lists every entry, so a sealed file refuses.",
}
"""Changes that both accept in a plain v2 file, and why."""

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
    findings = answer(path)
    if not accepted_by_toolpin(path):
        assert findings
    elif case(path) in STRICTER:
        assert set(STRICTER[case(path)].codes) == set(findings)
    elif case(path) in SAME_ANSWER:
        assert findings == ()
    else:  # of another collection: only for a reason that the table gives
        assert set(findings) <= {code for difference in DIFFERENCES for code in difference.codes}


@pytest.mark.parametrize(
    ("name", "code"), [row for row in REFUSED_AT_READING.items() if row[0] in set(map(case, TAMPERED))]
)
def test_a_file_that_cannot_be_read_is_refused_with_a_code_and_a_hint(name: str, code: str) -> None:
    data = (vectors_dir() / f"toolpin/tamper/{name}.mcp-lock.json").read_bytes()
    with pytest.raises(PinwardenError) as caught:
        lockfile.parse(data)
    assert caught.value.code == code
    assert caught.value.hint


def is_readable(path: Path) -> bool:
    try:
        lockfile.parse(path.read_bytes())
    except PinwardenError:
        return False
    return True


def test_no_case_of_ours_is_left_out_of_the_tables() -> None:
    if vectors_dir() == REPOSITORY / "tests" / "vectors":
        accepted = {case(path) for path in TAMPERED if accepted_by_toolpin(path)}
        assert accepted == set(STRICTER) | set(SAME_ANSWER)
        assert {case(path) for path in TAMPERED if not is_readable(path)} == set(REFUSED_AT_READING)


@pytest.mark.parametrize("path", [path for path in TAMPERED if is_readable(path)], ids=case)
def test_a_sealed_file_shows_every_one_of_these_changes(path: Path) -> None:
    """The whole lock, sealed; then the tampered entries and members under the same seal."""
    if path.parent.name != "tamper" or case(path) == "keys_reordered":
        return  # other entries altogether, or the order of members, which means nothing
    whole = seal_lock(lockfile.parse((vectors_dir() / "toolpin/locks/whole.mcp-lock.json").read_bytes()))
    assert verify(whole) == ()
    document = json.loads(path.read_bytes())
    document["pinwarden"] = whole.seal
    codes = {problem.code for problem in verify(lockfile.parse(json.dumps(document).encode()))}
    assert codes & {"seal_mismatch", "sealed_entry_changed", "sealed_entry_removed", "sealed_entry_added"}
