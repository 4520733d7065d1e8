"""Write a workflow that runs ``pinwarden ci`` on every pull request. Needs a lock; refuses to overwrite."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.cli.workflow_files import NOT_SET, github_job, install_step, write_workflow
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError

_FILES = {"github": ".github/workflows/pinwarden.yml", "gitlab": ".gitlab/pinwarden.gitlab-ci.yml"}

_GITHUB = (
    """\
# Fails when an MCP server, its configuration or its approved text is not what mcp-lock.json says.
name: pinwarden
"""
    + github_job("pinwarden")
    + """\
{install}
      - run: pinwarden ci --format github
"""
)

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


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--for", dest="kind", default="github", choices=list(_FILES))
    parser.add_argument("--install", metavar="SPEC", help="what the job installs Pinwarden from: a source, a wheel")
    parser.add_argument("--dry-run", action="store_true", help="only print the file")
    add_project_arguments(parser)


def run(args: Namespace) -> int:
    """Write the workflow."""
    text = (_GITHUB if args.kind == "github" else _GITLAB).replace("{install}", install_step(args.kind, args.install))
    if not args.install:
        sys.stderr.write(NOT_SET)
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    project = project_of(args)
    if not project.lock.is_file():
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} for a workflow to check")
    path = project.root / Path(_FILES[args.kind])
    write_workflow(project.root, path, text)
    sys.stdout.write(f"wrote {_FILES[args.kind]}\n")
    return EXIT_CLEAN
