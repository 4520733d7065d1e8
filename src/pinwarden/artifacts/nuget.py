"""NuGet packages: what a source says about one version, and the bytes of the ``.nupkg``."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import quote

from pinwarden.artifacts.artifact import (
    ArtifactFacts,
    ArtifactFile,
    Attestation,
    Missing,
    PackageName,
    Problem,
)
from pinwarden.artifacts.downloads import downloaded
from pinwarden.artifacts.nuget_package import (
    NugetClaims,
    check_name,
    children,
    entry_claims,
    hash_claim,
    normal_version,
    parse_nuspec,
    parse_xml,
    resource,
    signature_kinds,
)
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, Wanted
from pinwarden.system.net.fetch_failures import unfetched
from pinwarden.system.target import Address

MANIFEST_MISMATCH = "nuget_manifest_mismatch"
ARCHIVE_UNSAFE = "nuget_archive_unsafe"

_CONTENT = ("PackageBaseAddress/3.0.0",)
# Later types are sent compressed, whether asked for or not.
_REGISTRATIONS = ("RegistrationsBaseUrl/3.0.0-rc", "RegistrationsBaseUrl/3.0.0-beta", "RegistrationsBaseUrl")
_SIGNATURE = ".signature.p7s"
_SCRIPTS = ("tools/init.ps1", "tools/install.ps1")
_MAX_DOCUMENT = 32 * 1024 * 1024
_MAX_FILE = 4 * 1024 * 1024
_MAX_MEMBERS = 100_000
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


class _Source(Record):
    """One package at one source."""

    name: str
    version: str
    endpoint: Endpoint
    fetcher: Fetcher

    def get(self, url: str, accept: str = "application/json") -> bytes | None:
        self.check(url)
        wanted = Wanted(endpoint=self.endpoint, url=url, accept=accept)
        answer = self.fetcher.get(wanted, max_bytes=_MAX_DOCUMENT)
        return answer.body if answer.found else None

    def json(self, url: str) -> Any:
        body = self.get(url)
        try:
            return None if body is None else strict_json.parse(body)
        except PinwardenError as err:
            raise unfetched("protocol", f"a document of the source cannot be read: {err}") from err

    def check(self, url: str) -> Address:
        """Documents of a source may lead to other hosts. Plain http is for its own host only."""
        try:
            address = Address.parse(url)
        except PinwardenError as err:
            raise unfetched("protocol", "the source names something that is not a web address") from err
        if address.scheme != "https" and address.origin != self.endpoint.address.origin:
            message = f"{address} is not encrypted and not at the source"
            raise PinwardenError("ADDRESS_REFUSED", message, data={"reason": "plain-http"})
        return address


class _Found(Record):
    """Where the bytes are, and what the source says about them."""

    url: str
    claims: NugetClaims


class _Content(Record):
    """What was found in the bytes."""

    repository: str | None = None
    scripts: tuple[str, ...] = ()
    attestations: tuple[Attestation, ...] = ()
    problems: tuple[Problem, ...] = ()


def facts(
    package: PackageName, fetcher: Fetcher, endpoint: Endpoint, *, now: str, into: Path | None = None
) -> ArtifactFacts:
    """What a source says about one version, and what its bytes are. The endpoint is the folder of its service index."""
    source = _Source(
        name=check_name(package.name), version=normal_version(package.version), endpoint=endpoint, fetcher=fetcher
    )
    # 1. What the source says, in its third protocol if it has that, otherwise in its second.
    index = source.json(f"{endpoint.url}index.json")
    found = _second(source) if index is None else _third(source, index)
    if isinstance(found, str):
        return ArtifactFacts(package=package, registry=endpoint.url, checked_at=now, missing=found)
    # 2. What the bytes are.
    address = source.check(found.url)
    wanted = Wanted(endpoint=endpoint, url=found.url)
    with downloaded(fetcher, wanted, algorithms=("sha256", "sha512"), into=into) as download:
        content = _content(download.stream, source)
        received = download.received
    same_host = address.host_header == endpoint.address.host_header
    file = ArtifactFile(
        name=f"{source.name.lower()}.{source.version}.nupkg",
        size=received.size,
        digests=received.digests,
        claims=found.claims.digests,
        uploaded_at=found.claims.published_at,
        host=None if same_host else address.host_header,
    )
    return ArtifactFacts(
        package=package,
        registry=endpoint.url,
        checked_at=now,
        files=(file,),
        published_at=found.claims.published_at,
        repository=content.repository,
        withdrawn=found.claims.withdrawn,
        install_scripts=content.scripts,
        attestations=content.attestations,
        problems=content.problems,
    )


# The third protocol: https://learn.microsoft.com/nuget/api/overview


def _third(source: _Source, index: Any) -> _Found | Missing:
    base = resource(index, _CONTENT)
    if base is None:
        raise unfetched("protocol", "the service index of the source names no place for packages")
    name = source.name.lower()
    listing = source.json(f"{base}{name}/index.json")
    if listing is None:
        return "package"
    versions = listing.get("versions") if isinstance(listing, dict) else None
    if not isinstance(versions, list):
        raise unfetched("protocol", "the source's list of versions is not one")
    if source.version not in [each.lower() for each in versions if isinstance(each, str)]:
        return "version"
    url = f"{base}{name}/{source.version}/{name}.{source.version}.nupkg"
    return _Found(url=url, claims=_registered(source, resource(index, _REGISTRATIONS)))


def _registered(source: _Source, base: str | None) -> NugetClaims:
    """What the registration of a version, and the catalog entry that it leads to, say. Both may be absent."""
    leaf = source.json(f"{base}{source.name.lower()}/{source.version}.json") if base else None
    if not isinstance(leaf, dict):
        return NugetClaims()
    entry = leaf.get("catalogEntry")
    if isinstance(entry, str):
        entry = source.json(entry)
    try:
        return entry_claims({**leaf, **entry} if isinstance(entry, dict) else leaf)
    except PinwardenError as err:
        raise unfetched("protocol", f"the source's entry of {source.name} cannot be read: {err}") from err


# The second protocol: an OData feed


def _second(source: _Source) -> _Found | Missing:
    base = source.endpoint.url
    name, version = quote(source.name), quote(source.version)
    body = source.get(f"{base}Packages(Id='{name}',Version='{version}')", "application/atom+xml")
    if body is None:
        others = source.get(f"{base}FindPackagesById()?id='{name}'", "application/atom+xml")
        root = parse_xml(others) if others is not None else None
        return "version" if root is not None and children(root, "entry") else "package"
    root = parse_xml(body)
    if root is None or root.tag.rpartition("}")[2] != "entry":
        raise unfetched("protocol", "the source's entry is not one")
    values = {each.tag.rpartition("}")[2]: each.text for part in children(root, "properties") for each in part}
    try:
        claimed = hash_claim(values.get("PackageHash"), values.get("PackageHashAlgorithm", "SHA512"))
    except PinwardenError as err:
        raise unfetched("protocol", f"the source's entry of {source.name} cannot be read: {err}") from err
    said = entry_claims({"published": values.get("Published"), "listed": values.get("Listed") != "false"})
    claims = NugetClaims(
        digests=(claimed,) if claimed else (), published_at=said.published_at, withdrawn=said.withdrawn
    )
    return _Found(url=f"{base}package/{name}/{version}", claims=claims)


# The bytes


def _content(stream: IO[bytes], source: _Source) -> _Content:
    try:
        nuspec, signature, scripts = _members(stream)
    except PinwardenError as err:
        return _Content(problems=(Problem(code=ARCHIVE_UNSAFE, message=err.message),))
    except _BROKEN as err:
        message = f"the package is not a whole archive: {type(err).__name__}"
        return _Content(problems=(Problem(code=ARCHIVE_UNSAFE, message=message),))
    attestations: tuple[Attestation, ...] = ()
    if signature is not None:
        attestations = tuple(Attestation(kind=kind, bundle=signature) for kind in signature_kinds(signature))
    manifest = parse_nuspec(nuspec)
    problems: tuple[Problem, ...] = ()
    if manifest is None or not _is_same(manifest.name, manifest.version, source):
        problems = (Problem(code=MANIFEST_MISMATCH, message="the package is another one than the source says"),)
    return _Content(
        repository=manifest.repository if manifest else None,
        scripts=scripts,
        attestations=attestations,
        problems=problems,
    )


def _is_same(name: str, version: str, source: _Source) -> bool:
    try:
        return name.lower() == source.name.lower() and normal_version(version) == source.version
    except PinwardenError:
        return False


def _members(stream: IO[bytes]) -> tuple[bytes, bytes | None, tuple[str, ...]]:
    """The ``.nuspec``, the signature, and the scripts of older clients. A name twice makes the package unusable."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            _refuse(f"has more than {_MAX_MEMBERS} members")
        by_name: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            name = member.orig_filename.replace("\\", "/").lower()
            if name in by_name:
                _refuse(f"has {name[:120]!a} twice")
            if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                _refuse(f"has a path that leads elsewhere: {name[:120]!a}")
            by_name[name] = member
        manifests = [name for name in by_name if name.endswith(".nuspec") and "/" not in name]
        if len(manifests) != 1:
            _refuse("has no .nuspec, or more than one")
        signature = _read(archive, by_name[_SIGNATURE]) if _SIGNATURE in by_name else None
        scripts = tuple(name for name in _SCRIPTS if name in by_name)
        return _read(archive, by_name[manifests[0]]), signature, scripts


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as content:
        data = content.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        _refuse(f"has a file {member.filename[:120]!a} of more than {_MAX_FILE} bytes")
    return data


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the package {why}")
