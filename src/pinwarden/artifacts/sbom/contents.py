"""Collects the contents of an SBOM: every locked server, and every package of the closures once.

A server and the root package of its closure are one component. Closures do not record which package needs which, so a
server depends on all other packages of its closure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from packageurl import PackageURL

from pinwarden.clients.launchers import Launch
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock import lockfile
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import LockExtension, read_extension
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.lock.lockfile import Lock

LOCK_REF = "lock"
NO_EDGES = "dependencies between packages of a closure are not recorded; every server depends on its whole closure"
_REGISTRY_TYPES = {"npm": "npm", "pypi": "pypi", "nuget": "nuget", "cargo": "cargo"}

Properties = tuple[tuple[str, str], ...]


class SbomFile(Record):
    """One file of a package."""

    name: str
    digest: Digest
    url: str | None = None
    """The URL from which the resolver would download the file, without credentials."""


class SbomPackage(Record):
    """One package that a server depends on."""

    ref: str
    name: str
    version: str
    purl: str
    archives: tuple[SbomFile, ...]
    optional: bool = False
    """Whether the package is optional in every closure that contains it."""
    properties: Properties = ()


class SbomServer(Record):
    """One locked server, for all clients that have the same entry."""

    ref: str
    name: str
    version: str | None = None
    purl: str | None = None
    is_image: bool = False
    endpoint: str | None = None
    """The address of a remote server."""
    is_installed: bool = True
    """Whether the server has installed files. False for remote servers."""
    archives: tuple[SbomFile, ...] = ()
    properties: Properties = ()
    dependencies: tuple[str, ...] | None = None
    """The ``ref`` of each package that the server depends on; None if the lock has no closure for the server."""


class SbomContents(Record):
    """The servers and packages of a lock, independent of the SBOM format."""

    serial: UUID
    lock_digest: str
    """The digest of the lock file, which contains the digests of all closures."""
    servers: tuple[SbomServer, ...]
    packages: tuple[SbomPackage, ...]


def collect_contents(lock: Lock, closures: Mapping[str, Closure], redact_url: Callable[[str], str]) -> SbomContents:
    """Collect the contents of a lock.

    ``closures`` maps the path of a closure file, as in the lock, to its closure. ``redact_url`` removes secrets.
    """
    digest = str(Digest.of_bytes(lockfile.to_bytes(lock)))
    packages = _collect_packages(closures.values())
    entries_by_server: dict[SbomServer, list[Entry]] = {}
    for entry in sorted(lock.entries, key=lambda entry: entry.key):
        entries_by_server.setdefault(_build_server(entry, closures, packages, redact_url), []).append(entry)
    servers = (
        replace(
            server,
            ref=f"server:{entries[0].key}",
            properties=tuple(sorted({*server.properties, *(("pinwarden:client", entry.client) for entry in entries)})),
        )
        for server, entries in entries_by_server.items()
    )
    return SbomContents(
        serial=uuid5(NAMESPACE_URL, f"urn:pinwarden:lock:{digest}"),
        lock_digest=digest,
        servers=tuple(sorted(servers, key=lambda server: server.ref)),
        packages=tuple(sorted(packages.values(), key=lambda package: package.ref)),
    )


# Servers


def _build_server(
    entry: Entry,
    closures: Mapping[str, Closure],
    packages: Mapping[_PackageKey, SbomPackage],
    redact_url: Callable[[str], str],
) -> SbomServer:
    record = read_extension(entry) or LockExtension()
    closure = closures[record.closure.path] if record.closure else None
    launch = _find_launch(entry)
    package = launch and (launch.via or launch)
    endpoint = launch.identity if launch and launch.kind == "url" else None
    if launch is None and entry.selected_target.get("kind") == "remote":
        endpoint = str(entry.selected_target.get("url"))
    version = package.version if package and package.pinned else None
    return SbomServer(
        ref="",
        name=entry.name,
        version=closure.version if closure else version,
        purl=_find_purl(entry, package, record),
        is_image=package is not None and package.kind == "oci",
        endpoint=None if endpoint is None else redact_url(endpoint),
        is_installed=endpoint is None or (launch is not None and launch.via is not None),
        archives=_list_server_archives(record, closure),
        properties=tuple(_list_server_properties(entry, record, package, closure)),
        dependencies=None if closure is None else _list_dependencies(closure, packages),
    )


def _find_launch(entry: Entry) -> Launch | None:
    try:
        return read_locked_launch(entry).parsed
    except PinwardenError:  # a remote server, or an entry that Pinwarden cannot interpret
        return None


def _find_purl(entry: Entry, package: Launch | None, record: LockExtension) -> str | None:
    if package is not None and package.kind == "oci" and record.image is not None and record.image.index is not None:
        return replace(package, digest=str(record.image.index)).purl
    if package is not None:
        return package.purl
    target = entry.selected_target
    kind, name, version = (str(target.get(member) or "") for member in ("registryType", "identifier", "version"))
    return _build_purl(_REGISTRY_TYPES[kind], name, version) if kind in _REGISTRY_TYPES and name else None


def _list_server_archives(record: LockExtension, closure: Closure | None) -> tuple[SbomFile, ...]:
    """Return the server's own files: the files of the closure's root package, the image, or the locked artifacts."""
    if closure is not None:
        files = [SbomFile(name=file.name, digest=file.digest, url=_redact_url(file.url)) for file in closure.root.files]
    elif record.image is not None and record.image.index is not None:
        files = [SbomFile(name="index", digest=record.image.index)]
    elif record.image is not None and len(record.image.platforms) == 1:
        files = [SbomFile(name=platform, digest=digest) for platform, digest in record.image.platforms.items()]
    else:
        files = [SbomFile(name=file.name, digest=file.digest) for file in record.artifacts]
    return tuple(sorted(files, key=lambda file: (file.name, str(file.digest))))


def _list_server_properties(
    entry: Entry, record: LockExtension, package: Launch | None, closure: Closure | None
) -> Iterable[tuple[str, str]]:
    yield "pinwarden:server", entry.name
    if package is not None:
        yield "pinwarden:kind", package.kind
    if record.surface is not None:
        yield "pinwarden:surface", str(record.surface.digest)
    if record.registry is not None:
        yield "pinwarden:registry", record.registry
    for file in record.artifacts:
        yield "pinwarden:artifact", f"{file.name} {file.digest}"
    if record.image is not None:
        for platform, digest in record.image.platforms.items():
            yield f"pinwarden:image:{platform}", str(digest)
    if closure is not None:
        yield "pinwarden:resolver", closure.resolver
    if record.closure is not None:
        yield "pinwarden:closure", str(record.closure.file_digest)


def _list_dependencies(closure: Closure, packages: Mapping[_PackageKey, SbomPackage]) -> tuple[str, ...]:
    root = closure.root
    return tuple(
        sorted({packages[_build_key(closure, package)].ref for package in closure.packages if package is not root})
    )


# Packages

_PackageKey = tuple[str, str, str, tuple[str, ...]]
"""Ecosystem, name, version, and file digests. The digests matter because registries may serve different bytes."""


def _build_key(closure: Closure, package: ClosurePackage) -> _PackageKey:
    digests = tuple(sorted(str(file.digest) for file in package.files))
    return closure.ecosystem, package.name, package.version, digests


def _collect_packages(closures: Iterable[Closure]) -> dict[_PackageKey, SbomPackage]:
    occurrences_by_key: dict[_PackageKey, list[ClosurePackage]] = {}
    for closure in closures:
        root = closure.root
        for package in closure.packages:
            if package is not root:
                occurrences_by_key.setdefault(_build_key(closure, package), []).append(package)
    purls = {key: _build_purl(*key[:3]) for key in occurrences_by_key}
    count = Counter(purls.values())
    return {
        key: _build_package(key, purls[key], occurrences, has_unique_purl=count[purls[key]] == 1)
        for key, occurrences in occurrences_by_key.items()
    }


def _build_package(
    key: _PackageKey, purl: str, occurrences: list[ClosurePackage], *, has_unique_purl: bool
) -> SbomPackage:
    first = occurrences[0]
    content_digest = Digest.of_bytes("\n".join(key[3]).encode()).hex[:16]
    has_scripts = any(package.has_install_scripts for package in occurrences)
    return SbomPackage(
        ref=purl if has_unique_purl else f"{purl}#{content_digest}",
        name=first.name,
        version=first.version,
        purl=purl,
        archives=tuple(
            SbomFile(name=file.name, digest=file.digest, url=_redact_url(file.url))
            for file in sorted(first.files, key=lambda file: (file.name, str(file.digest)))
        ),
        optional=all(package.is_optional for package in occurrences),
        properties=(("pinwarden:install-scripts", "not run"),) if has_scripts else (),
    )


def _build_purl(kind: str, name: str, version: str) -> str:
    namespace, _, bare = name.rpartition("/")
    try:
        return PackageURL(type=kind, namespace=namespace, name=bare, version=version).to_string()
    except ValueError as err:
        raise PinwardenError("CLOSURE_INVALID", f"{name[:120]!a} is not a valid package name") from err


def _redact_url(url: str | None) -> str | None:
    """Return a URL without user, password and query; None if it is not a web address."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return None
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    public = f"{parts.scheme}://{host}{port}{parts.path}"
    is_web = parts.scheme in ("http", "https") and bool(host)
    return (
        public
        if is_web and public.isascii() and public.isprintable() and not set(public) & set(' "<>\\^`{|}')
        else None
    )
