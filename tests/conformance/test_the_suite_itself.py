"""The conformance suite must be able to fail: one changed character in an expected value, and it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.vectors import REPOSITORY, vectors_dir

MUTATIONS = [
    ("rulebook/generated/canonical_json.json", "canonical", "test_rulebook_core.py"),
    ("rulebook/generated/cid.json", "cid", "test_rulebook_core.py"),
    ("rulebook/generated/preimage_signature.json", "sha256", "test_rulebook_core.py"),
    ("toolpin/micro/canonical-json.json", "canonical", "test_foreign_canonical_forms.py"),
    ("fusion/canonical.json", "sha256", "test_foreign_canonical_forms.py"),
]


def copy_vectors(place: Path) -> None:
    for folder in ("rulebook", "toolpin/micro"):
        shutil.copytree(vectors_dir() / folder, place / folder)
    (place / "fusion").mkdir()
    shutil.copy(vectors_dir() / "fusion/canonical.json", place / "fusion/canonical.json")


def test_the_suites_pass_with_an_honest_copy_of_the_vectors(tmp_path: Path) -> None:
    copy_vectors(tmp_path)
    assert outcome(tmp_path, *sorted({suite for _, _, suite in MUTATIONS})) == 0


@pytest.mark.parametrize(("file", "member", "suite"), MUTATIONS, ids=[file for file, _, _ in MUTATIONS])
def test_one_changed_character_makes_the_suite_fail(tmp_path: Path, file: str, member: str, suite: str) -> None:
    copy_vectors(tmp_path)
    text = json.loads((tmp_path / file).read_bytes())
    assert spoil(text, member)
    (tmp_path / file).write_text(json.dumps(text))
    assert outcome(tmp_path, suite) == 1


def spoil(value: object, member: str) -> bool:
    """Change the last character of the first expected value of that name."""
    if isinstance(value, dict):
        expected = value.get(member)
        if isinstance(expected, str):
            value[member] = expected[:-1] + ("0" if expected[-1] != "0" else "1")
            return True
        return any(spoil(inner, member) for inner in value.values())
    return isinstance(value, list) and any(spoil(inner, member) for inner in value)


def outcome(folder: Path, *suites: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider"]
        + [f"tests/conformance/{suite}" for suite in suites],
        cwd=REPOSITORY,
        env={**os.environ, "PINWARDEN_VECTORS": str(folder)},
        capture_output=True,
        check=False,
    )
    return done.returncode
