"""Workflow files for CI systems: how Pinwarden gets there, and where the files go."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pinwarden.core.errors import PinwardenError

NOT_SET = "note: the file does not say yet where Pinwarden is installed from; see SET THIS in it\n"

_GITHUB_JOB = """\
on:
  pull_request:
  push:
    branches: [main]
permissions:
  contents: read
jobs:
  {job}:
    runs-on: ubuntu-latest
    steps:
      # actions/checkout v4.2.2, by its commit: a tag can be moved.
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683
        with:
          persist-credentials: false
"""
_STEPS = {
    "github": ("      ", "- run: |\n          pipx install {spec}"),
    "gitlab": ("    ", "- |\n      pip install {spec}"),
}
_UNSET = (
    "SET THIS: where Pinwarden is installed from. It is in no package index yet, and whoever takes the name there",
    "could answer for it. Name a source that you trust, by its commit: pinwarden init-ci --install SPEC",
)
_EXAMPLE = "'git+https://git.example.org/you/pinwarden@COMMIT'"
_BARE_NAME = re.compile(r"\s*pinwarden\s*(?:\[[^\]]*\]\s*)?(?:$|[=<>!~,;])", re.IGNORECASE)


def github_job(name: str) -> str:
    """How a workflow of GitHub begins, up to the first step of its own: few rights, and code by its commit."""
    return _GITHUB_JOB.replace("{job}", name)


def write_workflow(root: Path, path: Path, text: str) -> None:
    """Write a new file below the project's folder; what is there is not overwritten."""
    from pinwarden.system.files import create_file

    _make_folder(root, path.parent)
    create_file(path, text.encode())


def install_step(kind: str, spec: str | None) -> str:
    """The step that installs Pinwarden; without a source one that is commented out, so that the job fails until set."""
    indent, step = _STEPS[kind]
    if spec is None:
        lines = (*_UNSET, *step.replace("{spec}", _EXAMPLE).replace("|\n", "").replace("  ", "").splitlines())
        return "\n".join(f"{indent}# {line}" for line in lines)
    if not spec.isprintable() or not spec.strip():
        raise PinwardenError("USAGE", "--install takes one line of text")
    if _BARE_NAME.match(spec):
        raise PinwardenError(
            "USAGE",
            f"{spec[:80]!a} is only a name, and in a package index it is not ours yet",
            hint="Name a source by its commit, or a wheel: git+https://…@COMMIT, ./dist/pinwarden.whl",
        )
    return indent + step.replace("{spec}", shlex.quote(spec))


def _make_folder(root: Path, folder: Path) -> None:
    """The folder of the workflow. A repository's link must not decide where it is written."""
    for step in (folder, *folder.parents):
        if step == root:
            break
        if step.is_symlink():
            raise PinwardenError("CONFIG_UNEDITABLE", f"{step} is a symbolic link", hint="Remove the link.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
