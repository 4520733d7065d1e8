"""Write a workflow that runs ``pinwarden ci`` on every pull request. Needs a lock; refuses to overwrite."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden import __version__
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
      - uses: actions/checkout@v4
      - run: pipx run pinwarden=={version} ci --format github
"""

_GITLAB = """\
# Include this file from .gitlab-ci.yml.
pinwarden:
  image: python:3.13-slim
  script:
    - pip install pinwarden=={version}
    - pinwarden ci --format junit > pinwarden.xml
  artifacts:
    when: always
    reports:
      junit: pinwarden.xml
"""


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--for", dest="kind", default="github", choices=list(_FILES))
    parser.add_argument("--dry-run", action="store_true", help="only print the file")
    add_project_arguments(parser)


def run(args: Namespace) -> int:
    """Write the workflow."""
    from pinwarden.adapters.files import create_file

    text = (_GITHUB if args.kind == "github" else _GITLAB).replace("{version}", __version__)
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
