"""Find out whether a repository's CI runs Pinwarden already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import read_file

_FILES = (
    ".gitlab-ci.yml",
    ".pre-commit-config.yaml",
    ".circleci/config.yml",
    ".travis.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "Jenkinsfile",
)
_FOLDERS = (".github/workflows", ".gitlab", ".forgejo/workflows", ".gitea/workflows", ".woodpecker", ".buildkite")
_MAX_BYTES = 1_000_000
_MAX_FILES = 200


def is_checked_in_ci(root: Path) -> bool:
    """Whether a CI workflow or commit hook in the repository mentions Pinwarden. Unreadable files count as "no"."""
    return any(_mentions_pinwarden(path) for path in _list_workflows(root))


def _list_workflows(root: Path) -> Iterator[Path]:
    yield from (root / name for name in _FILES)
    for folder in _FOLDERS:
        try:
            listed = sorted((root / folder).iterdir())[:_MAX_FILES]
        except OSError:
            continue
        yield from (path for path in listed if path.suffix in (".yml", ".yaml"))


def _mentions_pinwarden(path: Path) -> bool:
    try:
        return path.is_file() and b"pinwarden" in read_file(path, _MAX_BYTES)
    except (PinwardenError, OSError):
        return False
