"""Files of a project that decide what is started next: a server that may write the project finds them read-only.

Otherwise it could approve itself, plant a server in the file of a client, or leave a command for the next `git commit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.adapters.lock_store import closures_folder, surfaces_folder
from pinwarden.documents.clients.table import CLIENTS
from pinwarden.flows.project import OWN_POLICY, TOOLPIN_POLICY

if TYPE_CHECKING:
    from pinwarden.flows.project import Project

_PROJECT = "{project}/"
_OBEYED = (".git/config", ".git/hooks", ".envrc", ".husky", ".pre-commit-config.yaml")
"""What git and shells act on without being asked."""


def kept_files(project: Project, writable: Sequence[str]) -> tuple[str, ...]:
    """Those that are there and lie below something writable. A client's folder is kept as a whole: what is not in it
    yet cannot be put there."""
    found = (path.resolve() for path in _deciding(project) if path.exists())
    below = (path for path in found if any(path.is_relative_to(each) for each in writable))
    return tuple(dict.fromkeys(str(path) for path in below if str(path) not in writable))


def _deciding(project: Project) -> Iterator[Path]:
    lock = project.lock
    yield from (lock, lock.with_name(surfaces_folder(lock)), lock.with_name(closures_folder(lock)))
    yield from (project.root / path for path in (OWN_POLICY, TOOLPIN_POLICY.parent, *_OBEYED))
    for name in _client_names():
        yield from project.root.glob(name)


def _client_names() -> list[str]:
    """The first part of every path below a project at which a client looks for servers."""
    paths = (place.path for client in CLIENTS.values() for place in client.places)
    return sorted({path.removeprefix(_PROJECT).partition("/")[0] for path in paths if path.startswith(_PROJECT)})
