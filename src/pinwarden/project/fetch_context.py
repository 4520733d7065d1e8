"""Resolve a package to its dependency closure. Every file is downloaded, hashed and kept in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import unquote

from pinwarden.artifacts.environments import node, python
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.npm_package import ResolvedPackage, parse_npm_lock
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage
from pinwarden.project.project import Project
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest

if TYPE_CHECKING:
    from pinwarden.project.parallel import ProgressCallback
    from pinwarden.system.net.connections import Origin, SettingsSources

MAX_DOWNLOADS = 16
Progress = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


class ResolverCache(Protocol):
    """What several resolutions of a census share."""

    resolver_folder: Path
    """The folder in which npm and uv keep what they requested."""
    user_agent: str

    def count_resolved(self, host: str, packages: Sequence[str]) -> None:
        """Count the packages that a resolver asked a registry for, by its own requests."""


class FetchContext(Record):
    """Everything needed to resolve and download packages: registries, HTTP client and store."""

    project: Project
    sources: PackageSources
    fetcher: Fetcher
    store: Store
    on_progress: Progress | None = None
    """Called with the number of downloaded files of one server, and the number of all its files."""
    on_servers: ProgressCallback | None = None
    """Called with the progress of a command that works on several servers."""
    trust_root: Path | None = None
    """The trust root for attestations, if not sigstore's public one."""
    resolver_cache: ResolverCache | None = None
    """If given, npm and uv share their requests. Without it, each resolution is fresh."""


def resolve_npm_closure(name: str, version: str, context: FetchContext) -> Closure:
    """Return the closure of an npm package: npm resolves it, and every tarball is checked against npm's lock."""
    from pinwarden.artifacts.resolvers import NpmCache, NpmRequirement, resolve_npm

    endpoint = context.sources.find_npm_registry(name)
    # Dependencies without a scope do not come from the registry of the package's scope.
    scope = name.partition("/")[0] if name.startswith("@") else ""
    scopes = ("", scope, *context.sources.list_npm_scopes())
    registries = {
        scope_name: build_resolver_endpoint(context.sources.find_npm_registry(f"{scope_name}/x".strip("/")), context)
        for scope_name in scopes
    }
    plain, variables = context.fetcher.rules.allow_plain_http, context.sources.settings.variables
    wanted = NpmRequirement(name=name, version=version, required_scopes=frozenset({"", scope}))
    shared = context.resolver_cache
    cache = None if shared is None else NpmCache(folder=shared.resolver_folder / "npm", user_agent=shared.user_agent)
    lock, resolver = resolve_npm(wanted, registries, variables, allow_plain_http=plain, cache=cache)
    resolved = parse_npm_lock(lock)
    if shared is not None:
        shared.count_resolved(endpoint.address.host, [row.name for row in resolved])

    def build_package(row: ResolvedPackage) -> ClosurePackage:
        return ClosurePackage(
            name=row.name,
            version=row.version,
            path=row.path,
            files=(_download_npm_file(row, context),),
            os=row.systems,
            cpu=row.processors,
            libc=row.libraries,
            is_optional=row.optional,
            has_install_scripts=row.install_scripts,
        )

    packages = _run_concurrently(build_package, resolved, context.on_progress)
    return Closure(
        ecosystem="npm",
        name=name,
        version=version,
        resolver=resolver,
        registry=endpoint.url,
        packages=tuple(sorted(packages, key=lambda package: package.key)),
    )


def build_resolver_endpoint(endpoint: ServiceEndpoint, context: FetchContext) -> ServiceEndpoint:
    """Return the endpoint for a resolver. Private addresses are allowed if our HTTP client allows them."""
    return replace(endpoint, configured_by="argument") if context.fetcher.rules.allow_private else endpoint


def _download_npm_file(row: ResolvedPackage, context: FetchContext) -> ClosureFile:
    if not row.url:
        raise PinwardenError("CLOSURE_INVALID", f"npm does not say where {row.name}@{row.version} comes from")
    algorithms = {"sha256", *(digest.algorithm for digest in row.integrity)}
    endpoint = context.sources.find_npm_registry(row.name)
    with context.store.open_incoming() as stream:
        got = context.fetcher.download(
            FetchRequest(endpoint=endpoint, url=row.url), stream, algorithms=tuple(sorted(algorithms))
        )
        if row.integrity and not set(row.integrity) & set(got.digests):
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"{row.name}@{row.version} does not have the hash that its registry states",
                data={"claimed": row.integrity[0].sri, "found": [digest.sri for digest in got.digests]},
            )
        digest = next(digest for digest in got.digests if digest.algorithm == "sha256")
        archive = context.store.add_file(stream, digest)
    return ClosureFile(
        name=_parse_file_name(row.url),
        url=row.url,
        digest=digest,
        size=got.size,
        tree=_hash_files(row, archive),
    )


def _hash_files(row: ResolvedPackage, archive: Path) -> Digest:
    """Return the tree digest of a package. Errors name the package, which may be a dependency."""
    try:
        return node.compute_package_digest(archive)
    except PinwardenError as err:
        raise PinwardenError(err.code, f"{row.name}@{row.version}: {err.message}", hint=err.hint) from err


def resolve_pypi_closure(name: str, version: str, extras: Sequence[str], context: FetchContext) -> Closure:
    """Resolve the closure of a Python package with uv for every platform; download and hash files for this one.

    For files of other platforms the index's digest is recorded, and checked before they are used.
    """
    from pinwarden.artifacts.pylock import parse_pylock
    from pinwarden.artifacts.python_package import normalize_name, parse_exact_version
    from pinwarden.artifacts.resolvers import find_uv, read_uv_version, resolve_python

    name, version = normalize_name(name), str(parse_exact_version(version))
    index = context.sources.find_pypi_index()
    variables = context.sources.settings.variables
    uv = find_uv(variables)
    text = resolve_python(
        name,
        version,
        build_resolver_endpoint(index, context),
        uv=uv,
        extras=tuple(extras),
        variables=variables,
        allow_plain_http=context.fetcher.rules.allow_plain_http,
        cache=None if context.resolver_cache is None else context.resolver_cache.resolver_folder / "uv",
    )
    rows = parse_pylock(text).packages
    if context.resolver_cache is not None:
        context.resolver_cache.count_resolved(index.address.host, [row.name for row in rows])
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
        resolver=read_uv_version(uv, variables),
        registry=index.url,
        packages=tuple(sorted(packages, key=lambda package: package.key)),
    )
    return add_content_digests(closure, [file for _, file in python.choose_packages(closure)], context)


def add_content_digests(closure: Closure, files: Sequence[ClosureFile], context: FetchContext) -> Closure:
    """Return the closure with the content digests of these files; they are downloaded if they are not in the store."""

    def add_content_digest(file: ClosureFile) -> ClosureFile:
        fetch_file(closure, file, context)
        archive = context.store.find(file.digest)
        if archive is None:
            raise PinwardenError("ARTIFACT_MISSING", f"{file.name} is gone from the store")
        tree = python.compute_wheel_digest(archive)
        context.store.record_tree_digest(file.digest, tree)
        return replace(file, size=archive.stat().st_size, tree=tree)

    known = {file.digest: file for file in _run_concurrently(add_content_digest, files, context.on_progress)}
    return replace(
        closure,
        packages=tuple(
            replace(package, files=tuple(known.get(file.digest, file) for file in package.files))
            for package in closure.packages
        ),
    )


def build_single_server_context(context: FetchContext, servers: int) -> FetchContext:
    """Return a context without file counts if there are several servers, whose counts would overwrite each other."""
    return context if servers == 1 else replace(context, on_progress=None)


def fetch_files(closure: Closure, files: Sequence[ClosureFile], context: FetchContext) -> None:
    """Download files of a closure into the store, several at a time."""
    _run_concurrently(lambda file: fetch_file(closure, file, context), files, context.on_progress)


def fetch_file(closure: Closure, file: ClosureFile, context: FetchContext) -> None:
    """Download a file of a closure into the store, unless it is there. Refuses other bytes than the locked ones."""
    if context.store.find(file.digest) is not None:  # a damaged file does not count, and is downloaded again
        return
    endpoint = _find_endpoint(closure, file, context)
    with context.store.open_incoming() as stream:
        got = context.fetcher.download(FetchRequest(endpoint=endpoint, url=file.url), stream)
        if got.digests[0] != file.digest:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"{file.name} differs from the locked file",
                data={"locked": str(file.digest), "found": str(got.digests[0])},
            )
        context.store.add_file(stream, file.digest)


def _find_endpoint(closure: Closure, file: ClosureFile, context: FetchContext) -> ServiceEndpoint:
    """Return the registry, with credentials, that today's settings name for the package that a file belongs to.

    This may not be the registry of the root package: a dependency of another scope may come from another registry.
    """
    if closure.ecosystem != "npm":
        return context.sources.find_pypi_file_server()
    owner = next((package for package in closure.packages if file in package.files), closure.root)
    return context.sources.find_npm_registry(owner.name)


def _run_concurrently(do: Callable[[Item], Result], rows: Iterable[Item], on_progress: Progress | None) -> list[Result]:
    """Call ``do`` for all rows, several at a time, and return the results in order. Raises the first failure."""
    todo = list(rows)
    done: list[Result] = []
    with ThreadPoolExecutor(MAX_DOWNLOADS) as pool:
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


def _parse_file_name(url: str) -> str:
    return unquote(url.partition("?")[0].rpartition("/")[2]).replace("/", "_").replace("\\", "_") or "package.tgz"


class PackageSources:
    """The registries that this user's package clients are configured with."""

    def __init__(self, settings: SettingsSources) -> None:
        self.settings = settings
        self._npm: dict[str, ServiceEndpoint] = {}
        self._pypi: ServiceEndpoint | None = None

    @classmethod
    def from_project(cls, project: Project) -> PackageSources:
        """Read the settings of the user's package clients in a project."""
        from pinwarden.system.net.connections import SettingsSources

        return cls(settings=SettingsSources(home=project.home, project=project.root, variables=project.variables))

    def find_npm_registry(self, name: str) -> ServiceEndpoint:
        """Return the registry where npm would look for a package."""
        from pinwarden.artifacts.endpoints.npm import find_registry

        scope = name.partition("/")[0] if name.startswith("@") else ""
        if scope not in self._npm:
            self._npm[scope] = find_registry(name, self.settings).endpoint
        return self._npm[scope]

    def list_npm_scopes(self) -> tuple[str, ...]:
        """Return the scopes for which the project names a registry."""
        from pinwarden.artifacts.endpoints.npm import list_project_scopes

        return list_project_scopes(self.settings)

    def find_pypi_index(self) -> ServiceEndpoint:
        """Return the index for Python packages. Extra indexes are never used: they could serve any name."""
        from pinwarden.artifacts.endpoints.pypi import find_indexes

        if self._pypi is None:
            self._pypi = find_indexes(self.settings).main
        return self._pypi

    def find_pypi_file_server(self) -> ServiceEndpoint:
        """Return the file server of the Python index. Package clients send the index's credential to it as well."""
        from pinwarden.artifacts.endpoints.pypi import get_index_parent

        return get_index_parent(self.find_pypi_index())

    def find_image_registry(self, reference: str, *, by_project: bool) -> ServiceEndpoint:
        """Return the registry of a container image. Set ``by_project`` if a project, not the user, names the image."""
        from pinwarden.artifacts.endpoints.docker import find_registry_endpoint
        from pinwarden.artifacts.oci_reference import parse_reference

        configured_by: Origin = "project" if by_project else "user"
        return find_registry_endpoint(parse_reference(reference), self.settings, configured_by=configured_by)

    def find_nuget_source(self) -> ServiceEndpoint:
        """Return the NuGet source that packages come from."""
        from pinwarden.artifacts.endpoints.nuget import find_sources

        return find_sources(self.settings).main

    def find_cargo_index(self) -> ServiceEndpoint:
        """Return the index that crates come from."""
        from pinwarden.artifacts.endpoints.cargo import find_registry

        return find_registry(self.settings)
