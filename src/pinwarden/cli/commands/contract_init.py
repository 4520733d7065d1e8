"""Set a project up: write the lock's check into GitHub or GitLab CI, or as a pre-commit hook. Refuses to overwrite.

pinwarden contract init --server src/server.py --for github
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.workflow_files import NOT_SET, github_job, install_step, write_workflow
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError

_FILES = {
    "github": ".github/workflows/pinwarden-contract.yml",
    "gitlab": ".gitlab/pinwarden-contract.gitlab-ci.yml",
    "pre-commit": ".pre-commit-config.yaml",
}

_GITHUB = (
    """\
# Fails when the server's contract is not the one in its lockfile; what changed is in the job's summary.
name: contract
"""
    + github_job("contract")
    + """\
      # Install the server with its packages here, the way your other jobs do.
      - run: python3 -m pip install .
{install}
      - run: >-
          pinwarden contract check --server {server} --python "$(command -v python3)"
          --format markdown >> "$GITHUB_STEP_SUMMARY"
"""
)

_GITLAB = """\
# Include this file from .gitlab-ci.yml.
contract:
  image: python:3.13-slim
  script:
    # Install the server with its packages here, the way your other jobs do.
    - pip install .
{install}
    - pinwarden contract check --server {server} --format junit > contract.xml
  artifacts:
    when: always
    reports:
      junit: contract.xml
"""

_PRE_COMMIT = """\
repos:
  - repo: local
    hooks:
      - id: pinwarden-contract
        name: the server keeps its contract
        entry: pinwarden contract check --server {server}
        language: system
        types: [python]
        pass_filenames: false
"""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*(?::[A-Za-z0-9_.]+)?\Z")
_TEXTS = {"github": _GITHUB, "gitlab": _GITLAB, "pre-commit": _PRE_COMMIT}


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--server", required=True, metavar="FILE[:OBJECT]", help="Python file with the server")
    parser.add_argument("--for", dest="kind", default="github", choices=list(_FILES))
    parser.add_argument("--install", metavar="SPEC", help="what the job installs Pinwarden from: a source, a wheel")
    parser.add_argument("--dry-run", action="store_true", help="only print the file")


def run(args: Namespace) -> int:
    """Write the file."""
    from pinwarden.contract.python_server import python_server

    python_server(args.server)
    if not _PLAIN.match(args.server) or ".." in Path(args.server).parts:
        raise PinwardenError(
            "USAGE",
            f"{args.server[:200]!a} cannot stand in a workflow, where YAML, a shell and the build server read it",
            hint="Use a path below this folder, of letters, digits and . _ - / only.",
        )
    text = _TEXTS[args.kind].replace("{server}", args.server)
    if args.kind != "pre-commit":
        text = text.replace("{install}", install_step(args.kind, args.install))
        if not args.install:
            sys.stderr.write(NOT_SET)
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    root = Path.cwd()
    write_workflow(root, root / _FILES[args.kind], text)
    sys.stdout.write(f"wrote {_FILES[args.kind]}\n")
    return EXIT_CLEAN
