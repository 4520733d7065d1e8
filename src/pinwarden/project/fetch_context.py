"""Resolving a package to its whole dependency closure, every byte of it hashed here and kept in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pinwarden.artifacts.environments import node, python
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.npm_package import ResolvedPackage, parse_npm_lock
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage
from pinwarden.project.project import Project
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest

if TYPE_CHECKING:
    from pinwarden.system.net.endpoint import Origin, SettingsSources

DOWNLOADS_AT_ONCE = 16
Progress = Callable[[int, int], None]


class Workshop(Record):
    """What it takes to make and use closures."""

    project: Project
    sources: Sources
    fetcher: Fetcher
    store: Store
    on_progress: Progress | None = None
    trust_root: Path | None = None
    """Whom to trust with attestations, if not the public log and authority."""


def npm_closure(name: str, version: str, shop: Workshop) -> Closure:
    """The closure of an npm package: npm resolves it, and every tarball is fetched and held against npm's word."""
    from pinwarden.artifacts.resolvers import WantedPackage, resolve_npm

    endpoint = shop.sources.npm(name)
    # Dependencies without a scope do not come from the registry of the package's scope.
    scope = name.partition("/")[0] if name.startswith("@") else ""
    scopes = ("", scope, *shop.sources.npm_scopes())
    registries = {each: _asked_by_resolver(shop.sources.npm(f"{each}/x".strip("/")), shop) for each in scopes}
    plain, variables = shop.fetcher.rules.allow_plain_http, shop.sources.settings.variables
    wanted = WantedPackage(name=name, version=version, needs=frozenset({"", scope}))
    lock, resolver = resolve_npm(wanted, registries, variables, allow_plain_http=plain)
    resolved = parse_npm_lock(lock)

    def close(row: ResolvedPackage) -> ClosurePackage:
        return ClosurePackage(
            name=row.name,
            version=row.version,
            path=row.path,
            files=(_npm_file(row, shop),),
            systems=row.systems,
            processors=row.processors,
            libraries=row.libraries,
            optional=row.optional,
            install_scripts=row.install_scripts,
        )

    packages = _all_at_once(close, resolved, shop.on_progress)
    return Closure(
        ecosystem="npm",
        name=name,
        version=version,
        resolver=resolver,
        registry=endpoint.url,
        packages=tuple(sorted(packages, key=lambda each: each.key)),
    )


def _asked_by_resolver(endpoint: Endpoint, shop: Workshop) -> Endpoint:
    """The endpoint under the rules that our own client follows: a private one is allowed if that was said here."""
    return replace(endpoint, said_by="argument") if shop.fetcher.rules.allow_private else endpoint


def _npm_file(row: ResolvedPackage, shop: Workshop) -> ClosureFile:
    if not row.url:
        raise PinwardenError("CLOSURE_INVALID", f"npm does not say where {row.name}@{row.version} comes from")
    algorithms = {"sha256", *(each.algorithm for each in row.integrity)}
    endpoint = shop.sources.npm(row.name)
    with shop.store.incoming() as stream:
        got = shop.fetcher.download(
            FetchRequest(endpoint=endpoint, url=row.url), stream, algorithms=tuple(sorted(algorithms))
        )
        if row.integrity and not set(row.integrity) & set(got.digests):
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"{row.name}@{row.version} is not what its registry says it is",
                data={"claimed": row.integrity[0].sri, "found": [each.sri for each in got.digests]},
            )
        digest = next(each for each in got.digests if each.algorithm == "sha256")
        archive = shop.store.keep(stream, digest)
    return ClosureFile(
        name=_file_name(row.url), url=row.url, digest=digest, size=got.size, tree=node.package_tree_digest(archive)
    )


def pypi_closure(name: str, version: str, extras: Sequence[str], shop: Workshop) -> Closure:
    """The closure of a Python package: uv resolves it for every platform; what is for this one is fetched and hashed.

    Of files for other platforms the index's claim is kept, and held against the bytes before anybody uses them.
    """
    from pinwarden.artifacts.pylock import parse_pylock
    from pinwarden.artifacts.python_package import exact_version, normalized_name
    from pinwarden.artifacts.resolvers import find_uv, resolve, uv_version

    name, version = normalized_name(name), str(exact_version(version))
    index = shop.sources.pypi()
    variables = shop.sources.settings.variables
    uv = find_uv(variables)
    text = resolve(
        name,
        version,
        _asked_by_resolver(index, shop),
        uv=uv,
        extras=tuple(extras),
        variables=variables,
        allow_plain_http=shop.fetcher.rules.allow_plain_http,
    )
    rows = parse_pylock(text).packages
    for row in rows:
        if not row.wheels:
            raise PinwardenError(
                "NO_USABLE_FILE", f"{row.name} {row.version} has no wheel; packages are never built from source here"
            )
    packages = tuple(
        ClosurePackage(
            name=row.name,
            version=row.version,
            marker=row.marker,
            files=tuple(
                ClosureFile(
                    name=wheel.name, url=wheel.url, digest=wheel.sha256, size=wheel.size, uploaded_at=wheel.uploaded_at
                )
                for wheel in row.wheels
            ),
        )
        for row in rows
    )
    closure = Closure(
        ecosystem="pypi",
        name=name,
        version=version,
        extras=tuple(extras),
        resolver=uv_version(uv, variables),
        registry=index.url,
        packages=tuple(sorted(packages, key=lambda each: each.key)),
    )
    return with_contents(closure, [file for _, file in python.choose_packages(closure)], shop)


def with_contents(closure: Closure, files: Sequence[ClosureFile], shop: Workshop) -> Closure:
    """The closure with the content of these files in it; their bytes are fetched if they are not in the store."""

    def content(file: ClosureFile) -> ClosureFile:
        fetch_file(closure, file, shop)
        archive = shop.store.find(file.digest)
        if archive is None:
            raise PinwardenError("ARTIFACT_MISSING", f"{file.name} is gone from the store")
        tree = python.wheel_tree_digest(archive)
        shop.store.note_content(file.digest, tree)
        return replace(file, size=archive.stat().st_size, tree=tree)

    known = {file.digest: file for file in _all_at_once(content, files, shop.on_progress)}
    return replace(
        closure,
        packages=tuple(
            replace(package, files=tuple(known.get(file.digest, file) for file in package.files))
            for package in closure.packages
        ),
    )


def fetch_files(closure: Closure, files: Sequence[ClosureFile], shop: Workshop) -> None:
    """Put files of a closure into the store, several at a time."""
    _all_at_once(lambda file: fetch_file(closure, file, shop), files, shop.on_progress)


def fetch_file(closure: Closure, file: ClosureFile, shop: Workshop) -> None:
    """Put a file of a closure into the store, unless it is there. Other bytes than the locked ones are refused."""
    if shop.store.find(file.digest) is not None:  # a damaged one is not there, and is fetched again
        return
    endpoint = _endpoint_of(closure, file, shop)
    with shop.store.incoming() as stream:
        got = shop.fetcher.download(FetchRequest(endpoint=endpoint, url=file.url), stream)
        if got.digests[0] != file.digest:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"{file.name} is not the file that was locked",
                data={"locked": str(file.digest), "found": str(got.digests[0])},
            )
        shop.store.keep(stream, file.digest)


def _endpoint_of(closure: Closure, file: ClosureFile, shop: Workshop) -> Endpoint:
    """The registry that the settings of today name for the package that a file belongs to, and its credential.

    Not that of the package at the root: a dependency of another scope comes from elsewhere.
    """
    if closure.ecosystem != "npm":
        return shop.sources.pypi_files()
    owner = next((each for each in closure.packages if file in each.files), closure.root)
    return shop.sources.npm(owner.name)


def _all_at_once(do: Callable[..., object], rows: Iterable[object], on_progress: Progress | None) -> list:  # type: ignore[type-arg]
    """Each row done, several at a time, in their order. The first failure ends it."""
    todo = list(rows)
    done: list[object] = []
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        waiting = [pool.submit(do, row) for row in todo]
        try:
            for future in waiting:
                done.append(future.result())
                if on_progress:
                    on_progress(len(done), len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def _file_name(url: str) -> str:
    return unquote(url.partition("?")[0].rpartition("/")[2]).replace("/", "_").replace("\\", "_") or "package.tgz"


class Sources:
    """Endpoints by name of package."""

    def __init__(self, settings: SettingsSources) -> None:
        self.settings = settings
        self._npm: dict[str, Endpoint] = {}
        self._pypi: Endpoint | None = None

    @classmethod
    def of(cls, project: Project) -> Sources:
        """Those of the project at hand."""
        from pinwarden.system.net.endpoint import SettingsSources

        return cls(settings=SettingsSources(home=project.home, project=project.root, variables=project.variables))

    def npm(self, name: str) -> Endpoint:
        """Where npm would look for a package."""
        from pinwarden.artifacts.endpoints.npm import registry_for

        scope = name.partition("/")[0] if name.startswith("@") else ""
        if scope not in self._npm:
            self._npm[scope] = registry_for(name, self.settings).endpoint
        return self._npm[scope]

    def npm_scopes(self) -> tuple[str, ...]:
        """The scopes for which the project names a registry."""
        from pinwarden.artifacts.endpoints.npm import project_scopes

        return project_scopes(self.settings)

    def pypi(self) -> Endpoint:
        """The index that Python packages come from. Extra indexes are never asked: they could serve any name."""
        from pinwarden.artifacts.endpoints.pypi import indexes

        if self._pypi is None:
            self._pypi = indexes(self.settings).main
        return self._pypi

    def pypi_files(self) -> Endpoint:
        """Where that index has its files, which clients send the same credential to."""
        from pinwarden.artifacts.endpoints.pypi import above_simple

        return above_simple(self.pypi())

    def image(self, reference: str, *, by_project: bool) -> Endpoint:
        """The registry of a container image; ``by_project`` says that a repository names the image."""
        from pinwarden.artifacts.endpoints.docker import registry_endpoint
        from pinwarden.artifacts.oci_reference import parse_reference

        said_by: Origin = "project" if by_project else "user"
        return registry_endpoint(parse_reference(reference), self.settings, said_by=said_by)

    def nuget(self) -> Endpoint:
        """The NuGet source that packages come from."""
        from pinwarden.artifacts.endpoints.nuget import sources

        return sources(self.settings).main

    def cargo(self) -> Endpoint:
        """The index that crates come from."""
        from pinwarden.artifacts.endpoints.cargo import registry_for

        return registry_for(self.settings)
