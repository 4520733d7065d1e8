"""Whether this machine has the files that locked servers start from. In a fresh clone it has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.extension import read_extension
from pinwarden.project.project import locate_store

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.extension import LockExtension
    from pinwarden.project.project import Project


def lacks_files(project: Project, entries: Sequence[Entry]) -> bool:
    """Whether the store lacks a file that a start of one of these entries needs. ``pinwarden fetch`` downloads it.

    Files are only looked up by name, and not at all if the environment of a package is built. A container image is not
    looked up, because the container engine downloads it by its digest.
    """
    store = Store(locate_store(project))
    return any(_lacks_files(project, entry, store) for entry in entries)


def _lacks_files(project: Project, entry: Entry, store: Store) -> bool:
    extension = read_extension(entry)
    if extension is None:
        return False
    try:
        if extension.bundle is not None:
            return _lacks_bundle(entry, store)
        # A Python package has a file for each platform, and only one of them is downloaded.
        if extension.artifacts and not any(store.has(artifact.digest) for artifact in extension.artifacts):
            return True
        return _lacks_dependencies(project, extension, store)
    except (PinwardenError, OSError):  # a digest that is not sha256, or a store or closure that cannot be read
        return False


def _lacks_bundle(entry: Entry, store: Store) -> bool:
    from pinwarden.bundle.bundle_pin import find_bundle_pin
    from pinwarden.bundle.environment import find_missing_files

    pin = find_bundle_pin(entry)
    return pin is not None and bool(find_missing_files(pin, store))


def _lacks_dependencies(project: Project, extension: LockExtension, store: Store) -> bool:
    from pinwarden.lock import closure as closure_document
    from pinwarden.lock import lock_store
    from pinwarden.lock.closure import list_approved_digests
    from pinwarden.project.server_environments import ScriptPermissions, plan_environment

    pin = extension.closure
    data = lock_store.read_pinned_file(project.lock, pin) if pin is not None else None
    if pin is None or data is None or Digest.of_bytes(data) != pin.file_digest:
        return False
    scripts = ScriptPermissions(approved=list_approved_digests(extension))
    search_path = project.variables.get("PATH", "")
    environment = plan_environment(closure_document.parse(data), pin.file_digest, store, search_path, scripts)
    if store.get_environment_folder(environment.key).is_dir():
        return False
    return not all(store.has(file.digest) for file in environment.list_files())
