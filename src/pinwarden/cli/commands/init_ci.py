"""``init-ci``, which writes the pipeline that runs ``ci``."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.project_arguments import add_repeatable_project_arguments, find_projects
from pinwarden.cli.workflow_files import add_install_argument
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.project.project import Project

_EXPRESSION = re.compile(r"\$[\[({]")
"""What GitHub or Azure would evaluate, also inside the quotes of the shell."""
_WORKFLOW_FILES = {
    "github": ".github/workflows/pinwarden.yml",
    "gitlab": ".gitlab/pinwarden.gitlab-ci.yml",
    "azure": ".azure-pipelines/pinwarden.yml",
    "jenkins": ".jenkins/pinwarden.Jenkinsfile",
}

_GITHUB = """\
# {mark}
# Fails when a client's configuration is not as approved in mcp-lock.json, when the lock or an approved surface next to
# it was edited, or when the policy is violated. No server is started: pinwarden ci --live also compares their tools.
name: pinwarden
{job}{install}
      - run: |
          pinwarden ci{project} --format github
"""

_GITLAB = """\
# {mark}
# Include this file from .gitlab-ci.yml.
pinwarden:
  image: {image}
  script:
{install}
    - |
      pinwarden ci{project} --format junit=pinwarden.xml
  artifacts:
    when: always
    reports:
      junit: pinwarden.xml
"""

_AZURE = """\
# {mark}
# Create a pipeline from this file. In Azure Repos, a branch policy (build validation) runs it for pull requests.
{trigger}pool:
  vmImage: ubuntu-latest
steps:
  - checkout: self
    persistCredentials: "false"
  - bash: |
      pipx install {spec}
  - bash: |
      pinwarden ci{project} --format junit=pinwarden.xml
  - task: PublishTestResults@2
    condition: succeededOrFailed()
    inputs:
      testResultsFormat: JUnit
      testResultsFiles: pinwarden.xml
      failTaskOnMissingResultsFile: true
"""

_JENKINS = """\
// {mark}
// Create a multibranch pipeline with this file as its script path. It needs the plugins Docker Pipeline and JUnit.
pipeline {
  agent { docker { image '{image}' } }
  stages {
    stage('pinwarden') {
      steps {
        sh '''
          python3 -m venv "$WORKSPACE_TMP/pinwarden"
          "$WORKSPACE_TMP/pinwarden/bin/pip" install {spec}
          "$WORKSPACE_TMP/pinwarden/bin/pinwarden" ci{project} --format junit=pinwarden.xml
        '''
      }
    }
  }
  post {
    always {
      junit 'pinwarden.xml'
    }
  }
}
"""


def _configure_init_ci(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="kind", default="github", choices=list(_WORKFLOW_FILES), help="CI system (default: github)"
    )
    add_install_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the file instead of writing it")
    parser.add_argument("--force", action="store_true", help="replace an existing file, after showing the change")
    add_repeatable_project_arguments(parser)


@command(_configure_init_ci)
def init_ci(args: Namespace) -> int:
    """Write a CI workflow that runs pinwarden ci on every pull request and on pushes to the default branch.

    The file goes into the root of the repository, and the project needs a lock. The job installs Pinwarden from where
    it was installed here, in exactly this version; if that is a folder of this machine, you are asked, and without a
    terminal --install is needed. A file that init-ci wrote earlier is updated: the change is shown, then you are asked.

    Examples:
      pinwarden init-ci --install git+https://git.example.org/you/pinwarden@COMMIT
      pinwarden init-ci --install git+https://git.example.org/you/pinwarden@COMMIT --for gitlab --dry-run
      pinwarden init-ci --install git+https://git.example.org/you/pinwarden@COMMIT --for jenkins --dry-run
    """
    import os
    import sys

    from pinwarden.cli.commit_line import build_commit_command
    from pinwarden.cli.render.text import render_command
    from pinwarden.cli.workflow_files import choose_install_source, update_workflow
    from pinwarden.system.repository import find_repository_root

    projects = find_projects(args)
    root = find_repository_root(projects[0].root) or projects[0].root.resolve()
    options = "".join(_project_option(project, root) for project in projects)
    command = _repeat_command(args)
    if not args.dry_run:
        _refuse_missing_locks(projects)
    spec = choose_install_source(args.install, root, command)
    text = _render_workflow(args.kind, spec, root, options)
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    path = root / _WORKFLOW_FILES[args.kind]
    done = update_workflow(root, path, text, force=args.force, command=[*command, "--install", spec])
    sys.stdout.write(f"{done} {os.path.relpath(path)}\n")
    commit = build_commit_command(projects, (path, *_find_wheel(spec, root)))
    sys.stdout.write(render_command("Commit", commit) if commit else "")
    return EXIT_CLEAN


def _find_wheel(spec: str, root: Path) -> tuple[Path, ...]:
    """Return the wheel in the repository that the job installs Pinwarden from; empty if it installs from a URL."""
    return () if "://" in spec else (root / spec,)


def _render_workflow(kind: str, spec: str, root: Path, options: str) -> str:
    import shlex

    from pinwarden.cli.workflow_files import (
        MARK,
        find_simple_branch,
        github_job,
        render_gitlab_image,
        render_install_step,
    )

    words = {"mark": MARK, "image": render_gitlab_image(spec), "project": options, "spec": shlex.quote(spec)}
    if kind == "azure":
        branch = find_simple_branch(root)
        words["trigger"] = f"trigger: [{branch}]\n" if branch else ""
        return _fill_in(_AZURE, words)
    if kind == "jenkins":  # in the strings of Groovy, backslashes and quotes are escaped
        return _fill_in(_JENKINS, {name: re.sub(r"(['\\])", r"\\\1", word) for name, word in words.items()})
    words |= {"install": render_install_step(kind, spec), "job": github_job("pinwarden", root)}
    return _fill_in(_GITHUB if kind == "github" else _GITLAB, words)


def _fill_in(text: str, words: Mapping[str, str]) -> str:
    """Replace ``{name}`` by its word, in one pass, so that no word is searched for others."""
    return re.sub("{(" + "|".join(words) + ")}", lambda found: words[found[1]], text)


def _refuse_missing_locks(projects: Sequence[Project]) -> None:
    for project in projects:
        if not project.lock.is_file():
            raise PinwardenError(
                "LOCK_MISSING", f"there is no {project.display_path(project.lock)} for the workflow to check"
            )


def _repeat_command(args: Namespace) -> list[str]:
    """Return the words of this command line, for a hint that adds ``--install`` or other options."""
    options = [word for folder in args.project or () for word in ("--project", folder)]
    options += ["--file", args.file] if args.file else []
    return ["pinwarden", "init-ci", *(["--for", args.kind] if args.kind != "github" else []), *options]


def _project_option(project: Project, root: Path) -> str:
    """Return the options with which the workflow, in the repository's root, names this project."""
    import shlex

    folder = _relative_path(project.root, root)
    option = "" if folder == "." else f" --project {shlex.quote(folder)}"
    if project.lock.resolve() != (project.root / "mcp-lock.json").resolve():
        option += f" --file {shlex.quote(_relative_path(project.lock, root))}"
    return option


def _relative_path(path: Path, root: Path) -> str:
    try:
        relative = path.resolve().relative_to(root).as_posix()
    except ValueError:
        raise PinwardenError("USAGE", f"{path} is not in the repository {root}") from None
    if not relative.isprintable() or _EXPRESSION.search(relative):
        raise PinwardenError("USAGE", f"{relative!a} has characters that are not allowed in a workflow file")
    return relative
