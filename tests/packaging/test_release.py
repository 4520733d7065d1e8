"""What the release workflow does, as far as it can run here: the build, and what analysers say about the workflow."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from pinwarden import __version__
from tests.packaging.test_packages import copy_source

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOW = REPOSITORY / ".github/workflows/release.yml"
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with what is in this folder now, and the environment of this one."""
    root = tmp_path_factory.mktemp("release") / "source"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(REPOSITORY), str(root)], check=True)
    copy_source(root)
    for name in ("tools/build_release.sh", "tools/release_sbom.py", "requirements/base.txt"):
        (root / name).write_bytes((REPOSITORY / name).read_bytes())
    python = root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return root


def build(source: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "tools/build_release.sh", *map(str, words)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


def test_a_release_has_equal_builds_checksums_and_a_valid_sbom(source: Path, tmp_path: Path) -> None:
    done = build(source, tmp_path / "dist")
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()}
    sums = {line.split()[1]: line.split()[0] for line in files.pop("SHA256SUMS").decode().splitlines()}
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {name.rpartition(".")[2] for name in files} == {"whl", "gz", "json"}
    sbom = files[f"pinwarden-{__version__}.cdx.json"].decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom) is None
    names = {component["name"] for component in json.loads(sbom)["components"]}
    assert {"cryptography", "cffi", "urllib3"} <= names
    assert not names & {"starlette", "pytest", "hatchling"}


@pytest.mark.parametrize(
    ("tag", "problem"),
    [("v99.0.0", "and the version is"), (f"v{__version__}", "CHANGELOG.md has no section")],
)
def test_a_tag_that_is_not_the_version_or_has_no_changelog_is_not_built(
    source: Path, tmp_path: Path, tag: str, problem: str
) -> None:
    changelog = source / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(f"## [{__version__}]", "## [other]"))
    done = build(source, tmp_path / "dist", tag)
    assert (done.returncode, problem in done.stderr, (tmp_path / "dist").exists()) == (1, True, False)


def test_the_workflow_is_valid_and_an_analyser_of_workflows_finds_nothing() -> None:
    schema = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    analysed = [str(WORKFLOW), str(REPOSITORY / "action.yml")]
    analyser = [str(PROGRAMS / "zizmor"), "--offline", "--persona", "auditor", "--quiet", *analysed]
    for command in (schema, analyser):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
