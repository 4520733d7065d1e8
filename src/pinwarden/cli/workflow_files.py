"""Parts of CI workflow files that ``init-ci`` and ``contract init`` share, and how such a file is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pinwarden.core.errors import PinwardenError

INSTALL_SOURCE_MISSING = "note: set where Pinwarden is installed from; see SET THIS in the file\n"

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
    "SET THIS: where Pinwarden is installed from. It is not in a package index yet, so anyone could register its name",
    "there. Use a source that you trust, pinned to a commit: pinwarden init-ci --install SPEC",
)
_EXAMPLE = "'git+https://git.example.org/you/pinwarden@COMMIT'"
_BARE_NAME = re.compile(r"\s*pinwarden\s*(?:\[[^\]]*\]\s*)?(?:$|[=<>!~,;])", re.IGNORECASE)


def github_job(name: str) -> str:
    """The beginning of a GitHub workflow, up to the checkout: read-only, with actions pinned to commits."""
    return _GITHUB_JOB.replace("{job}", name)


def write_workflow(root: Path, path: Path, text: str) -> None:
    """Write a new file below the root folder. An existing file is not overwritten."""
    from pinwarden.system.files import create_file

    _make_folder(root, path.parent)
    create_file(path, text.encode())


def install_step(kind: str, spec: str | None) -> str:
    """The step that installs Pinwarden. Without a source it is commented out, so the job fails until it is set."""
    indent, step = _STEPS[kind]
    if spec is None:
        lines = (*_UNSET, *step.replace("{spec}", _EXAMPLE).replace("|\n", "").replace("  ", "").splitlines())
        return "\n".join(f"{indent}# {line}" for line in lines)
    if not spec.isprintable() or not spec.strip():
        raise PinwardenError("USAGE", "--install takes one line of text")
    if _BARE_NAME.match(spec):
        raise PinwardenError(
            "USAGE",
            f"--install: {spec[:80]!a} is only a name, and Pinwarden is not in a package index yet",
            hint="Use a git URL with a commit, or a wheel: git+https://…@COMMIT, ./dist/pinwarden.whl",
        )
    return indent + step.replace("{spec}", shlex.quote(spec))


def _make_folder(root: Path, folder: Path) -> None:
    """Create the folder. A symbolic link in the repository must not decide where the file is written."""
    for parent in (folder, *folder.parents):
        if parent == root:
            break
        if parent.is_symlink():
            raise PinwardenError("CONFIG_UNEDITABLE", f"{parent} is a symbolic link", hint="Remove the link.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
