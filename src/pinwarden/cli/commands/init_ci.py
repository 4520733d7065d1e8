"""Write a workflow that runs ``pinwarden ci`` on every pull request, at the root of the repository.

Needs a lock, and does not overwrite a file. In a monorepo, name every project:

  pinwarden init-ci --project services/search --project services/mail
"""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.project_arguments import add_projects_arguments, projects_of
from pinwarden.cli.workflow_files import NOT_SET, github_job, install_step, write_workflow
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.project.project import Project

_FILES = {"github": ".github/workflows/pinwarden.yml", "gitlab": ".gitlab/pinwarden.gitlab-ci.yml"}

_GITHUB = (
    """\
# Fails when an MCP server, its configuration or its approved text is not what mcp-lock.json says.
name: pinwarden
"""
    + github_job("pinwarden")
    + """\
{install}
      - run: |
          pinwarden ci --scope project{project} --format github
"""
)

_GITLAB = """\
# Include this file from .gitlab-ci.yml.
pinwarden:
  image: python:3.13-slim
  script:
{install}
    - |
      pinwarden ci --scope project{project} --format junit=pinwarden.xml
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
    add_projects_arguments(parser)


def run(args: Namespace) -> int:
    """Write the workflow to the root of the repository, where the CI system looks for it."""
    from pinwarden.system.repository import repository_root

    projects = projects_of(args)
    root = repository_root(projects[0].root) or projects[0].root.resolve()
    options = "".join(_project_option(project, root) for project in projects)
    text = (_GITHUB if args.kind == "github" else _GITLAB).replace("{install}", install_step(args.kind, args.install))
    text = text.replace("{project}", options)
    if not args.install:
        sys.stderr.write(NOT_SET)
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    for project in projects:
        if not project.lock.is_file():
            raise PinwardenError("LOCK_MISSING", f"there is no {project.shown(project.lock)} for a workflow to check")
    path = root / Path(_FILES[args.kind])
    write_workflow(root, path, text)
    sys.stdout.write(f"wrote {os.path.relpath(path)}\n")
    return EXIT_CLEAN


def _project_option(project: Project, root: Path) -> str:
    """How the workflow, which runs in the repository's root, names a project and a lock of another name."""
    folder = _below(project.root, root)
    option = "" if folder == "." else f" --project {shlex.quote(folder)}"
    if project.lock.resolve() != (project.root / "mcp-lock.json").resolve():
        option += f" --file {shlex.quote(_below(project.lock, root))}"
    return option


def _below(path: Path, root: Path) -> str:
    try:
        shown = path.resolve().relative_to(root).as_posix()
    except ValueError:
        raise PinwardenError("USAGE", f"{path} is not in the repository {root}") from None
    if not shown.isprintable() or "${{" in shown:  # an expression that GitHub would evaluate
        raise PinwardenError("USAGE", f"{shown!a} has characters that a workflow file cannot hold")
    return shown
