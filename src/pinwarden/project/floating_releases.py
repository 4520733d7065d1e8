"""Servers whose configuration names no exact release, and the release to write for each package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.command_line import parse_launch
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock import lock_store
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_launch import LockedLaunch, read_locked_launch
from pinwarden.project.artifact_check import refuse_other_index, resolve_floating_release
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.artifacts.newest_release import NewestRelease
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.clients.launchers import Launch
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.project import Project

_RESOLVED_KINDS = ("npm", "pypi", "oci")

_PackageKey = tuple[str, str]


class _KnownRelease(Record):
    """A release that a lock or another client's file names for a package."""

    package: _PackageKey
    version: str
    was_probed: bool


class ReleaseResolver:
    """Chooses one release for each package, so that a server has the same release in every client and scope.

    1. The release that responded when the server was probed for its approval.
    2. The exact release that locks and clients' files name for the package, if all name the same one.
    3. The newest release that the command allows.

    The first two count only if the registry lists them and the command allows them.
    """

    def __init__(self, projects: Sequence[Project], context: FetchContext) -> None:
        self._context = context
        self._chosen: dict[tuple[_PackageKey, str], NewestRelease] = {}
        known = [release for project in projects for release in _find_known_releases(project)]
        self._probed, self._named = (_group_releases(known, was_probed=was_probed) for was_probed in (True, False))

    def resolve(self, server: ConfiguredServer, package: Launch) -> NewestRelease:
        """Return the release to write for a server. Raises if there is none, or if it must not be looked up."""
        target = server.target
        if package.kind not in _RESOLVED_KINDS or not isinstance(target, StdioTarget):
            raise PinwardenError("NOTHING_TO_RUN", f"releases of {package.kind} packages cannot be looked up")
        refuse_other_index(
            LockedLaunch(parsed=parse_launch(target), command=target.command, variables=tuple(target.env))
        )
        key = (_build_package_key(package), package.version or "")
        if key not in self._chosen:
            named = self._named.get(key[0], ())
            preferred = (*self._probed.get(key[0], ()), *(named if len(named) == 1 else ()))
            release = resolve_floating_release(package, self._context, preferred)
            if release is None:
                raise PinwardenError("FETCH_FAILED", f"its registry lists no release of {package.identity[:120]}")
            self._chosen[key] = release
        return self._chosen[key]


def _find_known_releases(project: Project) -> Iterator[_KnownRelease]:
    lock = lock_store.read(project.lock)
    for entry in lock.entries if lock is not None else ():
        extension = read_extension(entry)
        try:
            runs = read_locked_launch(entry).parsed
        except PinwardenError:
            continue  # an address
        if extension is not None and extension.probed_release is not None:
            key = _build_package_key(runs.via or runs)
            yield _KnownRelease(package=key, version=extension.probed_release, was_probed=True)
        yield from _find_named_release(runs)
    for server in project.find_servers():
        if isinstance(server.target, StdioTarget):
            yield from _find_named_release(parse_launch(server.target))


def _find_named_release(runs: Launch) -> Iterator[_KnownRelease]:
    package = runs.via or runs
    if package.pinned and package.version and package.kind in ("npm", "pypi"):
        version = package.version.removeprefix("v" if package.kind == "npm" else "")
        yield _KnownRelease(package=_build_package_key(package), version=version, was_probed=False)


def _group_releases(releases: Sequence[_KnownRelease], *, was_probed: bool) -> dict[_PackageKey, tuple[str, ...]]:
    grouped: dict[_PackageKey, dict[str, None]] = {}
    for release in releases:
        if release.was_probed == was_probed:
            grouped.setdefault(release.package, {})[release.version] = None
    return {package: tuple(versions) for package, versions in grouped.items()}


def _build_package_key(package: Launch) -> _PackageKey:
    plain = replace(package, version=None, digest=None, pinned=False)
    return package.kind, plain.purl or package.identity
