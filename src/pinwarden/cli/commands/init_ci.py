"""Write a workflow that runs ``pinwarden ci`` on every pull request. Needs a lock; refuses to overwrite."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError

_FILES = {"github": ".github/workflows/pinwarden.yml", "gitlab": ".gitlab/pinwarden.gitlab-ci.yml"}

_GITHUB = """\
# Fails when an MCP server, its configuration or its approved text is not what mcp-lock.json says.
name: pinwarden
on:
  pull_request:
  push:
    branches: [main]
permissions:
  contents: read
jobs:
  pinwarden:
    runs-on: ubuntu-latest
    steps:
      # actions/checkout v4.2.2, by its commit: a tag can be moved.
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683
        with:
          persist-credentials: false
{install}
      - run: pinwarden ci --format github
"""

_GITLAB = """\
# Include this file from .gitlab-ci.yml.
pinwarden:
  image: python:3.13-slim
  script:
{install}
    - pinwarden ci --format junit > pinwarden.xml
  artifacts:
    when: always
    reports:
      junit: pinwarden.xml
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


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--for", dest="kind", default="github", choices=list(_FILES))
    parser.add_argument("--install", metavar="SPEC", help="what the job installs Pinwarden from: a source, a wheel")
    parser.add_argument("--dry-run", action="store_true", help="only print the file")
    add_project_arguments(parser)


def run(args: Namespace) -> int:
    """Write the workflow."""
    from pinwarden.adapters.files import create_file

    text = (_GITHUB if args.kind == "github" else _GITLAB).replace("{install}", _install_step(args.kind, args.install))
    if not args.install:
        sys.stderr.write("note: the file does not say yet where Pinwarden is installed from; see SET THIS in it\n")
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    project = project_of(args)
    if not project.lock.is_file():
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} for a workflow to check")
    path = project.root / Path(_FILES[args.kind])
    _make_folder(project.root, path.parent)
    create_file(path, text.encode())
    sys.stdout.write(f"wrote {_FILES[args.kind]}\n")
    return EXIT_CLEAN


def _install_step(kind: str, spec: str | None) -> str:
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
