"""The CI workflows of ``init-ci`` and ``contract init``: their common parts, and how the files are written."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from pinwarden.system.install_source import InstallSource

MARK = "Written by pinwarden init-ci, which also updates it."
"""What the first line, a comment, says in a workflow that ``init-ci`` may replace."""
_GITHUB_JOB = """\
on:
  pull_request:
  push:{branches}
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
    "github": "      - run: |\n          pipx install {spec}",
    "gitlab": "    - |\n      pip install {spec}",
}
_EXAMPLE = "git+https://git.example.org/you/pinwarden@COMMIT"
_WHEEL_FOLDER = ".pinwarden"
_BARE_NAME = re.compile(r"\s*pinwarden\s*(?:\[[^\]]*\]\s*)?(?:$|[=<>!~,;])", re.IGNORECASE)
_SIMPLE_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\Z")
"""A branch whose name has no special meaning in YAML or in GitHub's filter patterns."""


def add_install_argument(parser: ArgumentParser) -> None:
    """Add ``--install``: the source of Pinwarden in the job."""
    parser.add_argument(
        "--install",
        metavar="SPEC",
        help="what the job installs Pinwarden from: a git URL with a commit, or a wheel in the repository "
        "(default: what Pinwarden was installed from here)",
    )


def github_job(name: str, root: Path) -> str:
    """Return the beginning of a GitHub workflow, up to the checkout: read-only, with actions pinned to commits.

    It runs for pull requests and for pushes to the default branch of the repository; if git does not know which branch
    that is, for all pushes.
    """
    branch = find_simple_branch(root)
    branches = f'\n    branches: ["{branch}"]' if branch else ""
    return _GITHUB_JOB.replace("{job}", name).replace("{branches}", branches)


def find_simple_branch(root: Path) -> str | None:
    """Return the default branch of the repository, if git knows it and its name needs no quoting."""
    from pinwarden.system.repository import find_default_branch

    branch = find_default_branch(root, os.environ)
    return branch if branch and _SIMPLE_BRANCH.match(branch) else None


def render_gitlab_image(spec: str) -> str:
    """Return the container image of a GitLab job. The slim one has no git, which pip needs for a git URL."""
    return "python:3.13" if spec.startswith("git+") else "python:3.13-slim"


def render_install_step(kind: str, spec: str) -> str:
    """Return the step that installs Pinwarden."""
    return _STEPS[kind].replace("{spec}", shlex.quote(spec))


def with_extra(spec: str, extra: str, wanted: bool = True) -> str:
    """Return the source of Pinwarden with an optional extra, if it is wanted."""
    if not wanted:
        return spec
    return f"pinwarden[{extra}] @ {spec}" if "://" in spec else f"{spec}[{extra}]"


def choose_install_source(given: str | None, root: Path, command: Sequence[str]) -> str:
    """Return what the job installs Pinwarden from: what the option says, or what it was installed from here.

    A source that was derived from a checkout is used only after a question, and so is a wheel that is built from a
    checkout without a remote. ``command`` is the current command line, which the hint extends. Raises USAGE if there is
    no source that works on another machine.
    """
    if given is not None:
        _check_install_source(given, root)
        return given
    from pinwarden.cli.questions import ask, can_ask
    from pinwarden.system.install_source import find_install_source

    source = find_install_source(os.environ)
    if source.spec is not None and source.is_recorded:
        return source.spec
    question = f"Let the job install Pinwarden from {source.spec}?"
    if source.spec is not None and can_ask() and ask(question, ("yes", "no"), "yes") == "yes":
        return source.spec
    if source.spec is None and source.checkout is not None and source.checkout.is_dir() and can_ask():
        problem = f"Pinwarden was installed from {source.checkout}, which has no commit at a remote repository."
        question = (
            f"{problem} Build a wheel of it into {os.path.relpath(root / _WHEEL_FOLDER)}, for the job to install?"
        )
        if ask(question, ("yes", "no"), "yes") == "yes":
            try:
                return _build_wheel(source.checkout, root)
            except PinwardenError as err:
                hint = _suggest_install_source(source, root, command)
                raise PinwardenError(err.code, err.message, hint=hint) from err
    raise PinwardenError("USAGE", _describe_unknown_source(source), hint=_suggest_install_source(source, root, command))


def write_workflow(root: Path, path: Path, text: str) -> None:
    """Write a new file below the root folder. An existing file is not overwritten."""
    from pinwarden.system.files import create_file

    _make_folder(root, path.parent)
    create_file(path, text.encode())


def update_workflow(root: Path, path: Path, text: str, *, force: bool, command: Sequence[str]) -> str:
    """Write a workflow, or change the one that is there, and return what was done.

    A change is shown as a diff. Without ``force``, only a file that ``init-ci`` wrote is changed, after a question.
    ``command`` is the current command line, which the hint extends.
    """
    from pinwarden.system.files import read_file, write_atomically

    if not path.exists() and not path.is_symlink():
        write_workflow(root, path, text)
        return "wrote"
    _make_folder(root, path.parent)
    if path.is_symlink():
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path} is a symbolic link", hint="Remove the link.")
    before = read_file(path)
    if before == text.encode():
        return "already up to date:"
    from pinwarden.cli.questions import ask, can_ask
    from pinwarden.project.config_diff import diff_config

    name = os.path.relpath(path)
    sys.stdout.write(f"{diff_config(name, before, text.encode())}\n")
    is_own = MARK in before.decode("utf-8", "replace").partition("\n")[0]
    if not force and not (is_own and can_ask() and ask(f"Change {name} as shown?", ("yes", "no"), "yes") == "yes"):
        reason = "differs from the new workflow" if is_own else "was not written by pinwarden init-ci"
        raise PinwardenError(
            "FILE_EXISTS",
            f"{name} exists and {reason}; it was not changed",
            hint=f"To replace it: {shlex.join([*command, '--force'])}",
        )
    write_atomically(path, text.encode())
    return "changed"


def _check_install_source(spec: str, root: Path) -> None:
    if not spec.isprintable() or not spec.strip():
        raise PinwardenError("USAGE", "--install takes one line of text")
    if _BARE_NAME.match(spec):
        raise PinwardenError(
            "USAGE",
            f"--install: {spec[:80]!a} is only a name, and Pinwarden is not in a package index yet",
            hint=f"Use a git URL with a commit, or a wheel in the repository: --install {_EXAMPLE}",
        )
    if "://" in spec:
        return
    wheel = root / spec
    if Path(spec).is_absolute() or not wheel.resolve().is_relative_to(root.resolve()) or not wheel.exists():
        raise PinwardenError(
            "USAGE",
            f"--install: there is no {spec[:200]!a} in the repository, where the job looks for it",
            hint="Name a wheel by its path from the repository's root, or a git URL with a commit.",
        )


def _describe_unknown_source(source: InstallSource) -> str:
    if source.checkout is None:
        installed = "how Pinwarden was installed here is not known"
    elif source.spec is None:
        installed = f"Pinwarden was installed from {source.checkout}, which has no commit at a remote repository"
    else:
        installed = f"Pinwarden was installed from the checkout {source.checkout}"
    return f"{installed}, so say what the CI job installs it from"


def _build_wheel(checkout: Path, root: Path) -> str:
    """Build a wheel in the repository and return how the job names it."""
    from pinwarden.cli.streams import Progress
    from pinwarden.system.bounded_task import BoundedTask, run_bounded

    _make_folder(root, root / _WHEEL_FOLDER)
    task = BoundedTask(name="the build of the wheel", error_code="USAGE", timeout_seconds=600)
    with Progress("building a wheel of Pinwarden"):
        run_bounded([sys.executable, *_list_build_words(checkout, root / _WHEEL_FOLDER)], Path(), os.environ, task)
    _check_install_source(_name_wheel(), root)
    return _name_wheel()


def _list_build_words(checkout: Path, folder: Path) -> list[str]:
    return ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", os.path.relpath(folder), str(checkout)]


def _name_wheel() -> str:
    from pinwarden.core.version import __version__

    return f"./{_WHEEL_FOLDER}/pinwarden-{__version__}-py3-none-any.whl"


def _suggest_install_source(source: InstallSource, root: Path, command: Sequence[str]) -> str:
    """Return a hint with a complete command: with the commit of the checkout, or else with a wheel built from it."""
    if source.spec is not None:
        return shlex.join([*command, "--install", source.spec])
    if source.checkout is not None and source.checkout.is_dir():
        build = ["python3", *_list_build_words(source.checkout, root / _WHEEL_FOLDER)]
        return f"{shlex.join(build)} && {shlex.join([*command, '--install', _name_wheel()])}"
    return f"{shlex.join([*command, '--install'])} {_EXAMPLE}"


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
        raise PinwardenError("FILE_UNWRITABLE", f"{folder} cannot be created: {err.strerror or err}") from err
