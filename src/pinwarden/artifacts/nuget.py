"""Fetches NuGet packages: the metadata of one version, and its ``.nupkg`` file.

Both protocols are supported: V3 (JSON, found through a service index) and V2 (an OData feed).
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import quote

from pinwarden.artifacts.artifact import (
    ArtifactAttestation,
    ArtifactFile,
    ArtifactProblem,
    FetchedArtifact,
    Missing,
    PackageRef,
)
from pinwarden.artifacts.downloads import open_download
from pinwarden.artifacts.nuget_package import (
    NugetClaims,
    check_name,
    detect_signature_kinds,
    find_children,
    find_resource_url,
    normalize_version,
    parse_catalog_entry,
    parse_nuspec,
    parse_package_hash,
    parse_xml,
)
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest
from pinwarden.system.net.network_errors import fetch_error
from pinwarden.system.target import HttpAddress

MANIFEST_MISMATCH = "nuget_manifest_mismatch"
ARCHIVE_UNSAFE = "nuget_archive_unsafe"

_PACKAGE_BASE_TYPES = ("PackageBaseAddress/3.0.0",)
# Newer types are left out, because sources send them compressed.
_REGISTRATION_TYPES = ("RegistrationsBaseUrl/3.0.0-rc", "RegistrationsBaseUrl/3.0.0-beta", "RegistrationsBaseUrl")
_SIGNATURE_FILE = ".signature.p7s"
_INSTALL_SCRIPTS = ("tools/init.ps1", "tools/install.ps1")
_MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_MEMBERS = 100_000
_DECODE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


def fetch_artifact(
    package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint, *, now: str, save_folder: Path | None = None
) -> FetchedArtifact:
    """Fetch the metadata and the package of one version, and hash the package.

    ``endpoint`` is the URL of the service index without ``index.json``, or the root of a V2 feed.
    """
    source = _SourcePackage(
        name=check_name(package.name), version=normalize_version(package.version), endpoint=endpoint, fetcher=fetcher
    )
    # 1. Fetch the metadata: with protocol V3 if the source has a service index, otherwise with V2.
    index = source.fetch_json(f"{endpoint.url}index.json")
    listing = _find_v2_package(source) if index is None else _find_v3_package(source, index)
    if isinstance(listing, str):
        return FetchedArtifact(package=package, registry=endpoint.url, checked_at=now, missing=listing)
    # 2. Fetch and check the package.
    address = source.check_url(listing.url)
    request = FetchRequest(endpoint=endpoint, url=listing.url)
    with open_download(fetcher, request, algorithms=("sha256", "sha512"), save_folder=save_folder) as download:
        content = _read_package(download.stream, source)
        result = download.result
    same_host = address.host_header == endpoint.address.host_header
    file = ArtifactFile(
        name=f"{source.name.lower()}.{source.version}.nupkg",
        size=result.size,
        digests=result.digests,
        claims=listing.claims.digests,
        uploaded_at=listing.claims.facts.published_at,
        host=None if same_host else address.host_header,
    )
    return FetchedArtifact(
        package=package,
        registry=endpoint.url,
        checked_at=now,
        files=(file,),
        facts=replace(listing.claims.facts, repository=content.repository),
        install_scripts=content.scripts,
        attestations=content.attestations,
        problems=content.problems,
    )


class _SourcePackage(Record):
    """One package at one package source."""

    name: str
    version: str
    endpoint: ServiceEndpoint
    fetcher: Fetcher

    def fetch(self, url: str, accept: str = "application/json") -> bytes | None:
        self.check_url(url)
        request = FetchRequest(endpoint=self.endpoint, url=url, accept=accept)
        response = self.fetcher.get(request, max_bytes=_MAX_DOCUMENT_BYTES)
        return response.body if response.found else None

    def fetch_json(self, url: str) -> Any:
        body = self.fetch(url)
        try:
            return None if body is None else strict_json.parse_json(body)
        except PinwardenError as err:
            raise fetch_error("protocol", f"the package source sent invalid JSON: {err}") from err

    def check_url(self, url: str) -> HttpAddress:
        """Parse a URL. It may be on another host, but plain HTTP is accepted only on the source's own host."""
        try:
            address = HttpAddress.parse(url)
        except PinwardenError as err:
            raise fetch_error("protocol", "the package source names a URL that is not a web address") from err
        if address.scheme != "https" and address.origin != self.endpoint.address.origin:
            message = f"{address} uses plain HTTP and is not on the package source's host"
            raise PinwardenError("ADDRESS_REFUSED", message, data={"reason": "plain-http"})
        return address


class _ListedPackage(Record):
    url: str
    claims: NugetClaims


class _PackageContent(Record):
    repository: str | None = None
    scripts: tuple[str, ...] = ()
    attestations: tuple[ArtifactAttestation, ...] = ()
    problems: tuple[ArtifactProblem, ...] = ()


# Protocol V3: https://learn.microsoft.com/nuget/api/overview


def _find_v3_package(source: _SourcePackage, index: Any) -> _ListedPackage | Missing:
    base = find_resource_url(index, _PACKAGE_BASE_TYPES)
    if base is None:
        raise fetch_error("protocol", "the service index has no PackageBaseAddress")
    name = source.name.lower()
    listing = source.fetch_json(f"{base}{name}/index.json")
    if listing is None:
        return "package"
    versions = listing.get("versions") if isinstance(listing, dict) else None
    if not isinstance(versions, list):
        raise fetch_error("protocol", "the package source's version list is not a list")
    if source.version not in [version.lower() for version in versions if isinstance(version, str)]:
        return "version"
    url = f"{base}{name}/{source.version}/{name}.{source.version}.nupkg"
    return _ListedPackage(
        url=url, claims=_fetch_registration_claims(source, find_resource_url(index, _REGISTRATION_TYPES))
    )


def _fetch_registration_claims(source: _SourcePackage, base: str | None) -> NugetClaims:
    """Return the claims in the version's registration and catalog entry. Both documents are optional."""
    leaf = source.fetch_json(f"{base}{source.name.lower()}/{source.version}.json") if base else None
    if not isinstance(leaf, dict):
        return NugetClaims()
    entry = leaf.get("catalogEntry")
    if isinstance(entry, str):
        entry = source.fetch_json(entry)
    try:
        return parse_catalog_entry({**leaf, **entry} if isinstance(entry, dict) else leaf)
    except PinwardenError as err:
        raise fetch_error("protocol", f"the catalog entry of {source.name} is invalid: {err}") from err


# Protocol V2: an OData feed


def _find_v2_package(source: _SourcePackage) -> _ListedPackage | Missing:
    base = source.endpoint.url
    name, version = quote(source.name), quote(source.version)
    body = source.fetch(f"{base}Packages(Id='{name}',Version='{version}')", "application/atom+xml")
    if body is None:
        versions_feed = source.fetch(f"{base}FindPackagesById()?id='{name}'", "application/atom+xml")
        root = parse_xml(versions_feed) if versions_feed is not None else None
        return "version" if root is not None and find_children(root, "entry") else "package"
    root = parse_xml(body)
    if root is None or root.tag.rpartition("}")[2] != "entry":
        raise fetch_error("protocol", "the package source's feed has no entry element")
    values = {field.tag.rpartition("}")[2]: field.text for part in find_children(root, "properties") for field in part}
    try:
        digest = parse_package_hash(values.get("PackageHash"), values.get("PackageHashAlgorithm", "SHA512"))
    except PinwardenError as err:
        raise fetch_error("protocol", f"the feed entry of {source.name} is invalid: {err}") from err
    entry = parse_catalog_entry({"published": values.get("Published"), "listed": values.get("Listed") != "false"})
    claims = NugetClaims(digests=(digest,) if digest else (), facts=entry.facts)
    return _ListedPackage(url=f"{base}package/{name}/{version}", claims=claims)


# The package


def _read_package(stream: IO[bytes], source: _SourcePackage) -> _PackageContent:
    try:
        nuspec, signature, scripts = _read_package_files(stream)
    except PinwardenError as err:
        return _PackageContent(problems=(ArtifactProblem(code=ARCHIVE_UNSAFE, message=err.message),))
    except _DECODE_ERRORS as err:
        message = f"the package is a damaged or incomplete archive: {type(err).__name__}"
        return _PackageContent(problems=(ArtifactProblem(code=ARCHIVE_UNSAFE, message=message),))
    attestations: tuple[ArtifactAttestation, ...] = ()
    if signature is not None:
        attestations = tuple(
            ArtifactAttestation(kind=kind, bundle=signature) for kind in detect_signature_kinds(signature)
        )
    manifest = parse_nuspec(nuspec)
    problems: tuple[ArtifactProblem, ...] = ()
    if manifest is None or not _is_requested_package(manifest.name, manifest.version, source):
        problems = (
            ArtifactProblem(code=MANIFEST_MISMATCH, message="the package's .nuspec names another package or version"),
        )
    return _PackageContent(
        repository=manifest.repository if manifest else None,
        scripts=scripts,
        attestations=attestations,
        problems=problems,
    )


def _is_requested_package(name: str, version: str, source: _SourcePackage) -> bool:
    try:
        return name.lower() == source.name.lower() and normalize_version(version) == source.version
    except PinwardenError:
        return False


def _read_package_files(stream: IO[bytes]) -> tuple[bytes, bytes | None, tuple[str, ...]]:
    """Return the ``.nuspec``, the signature, and the names of scripts that older clients run.

    Raises if two members have the same name.
    """
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            _refuse_package(f"has more than {_MAX_MEMBERS} members")
        by_name: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            name = member.orig_filename.replace("\\", "/").lower()
            if name in by_name:
                _refuse_package(f"has {name[:120]!a} twice")
            if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                _refuse_package(f"has a path that leaves the archive: {name[:120]!a}")
            by_name[name] = member
        manifests = [name for name in by_name if name.endswith(".nuspec") and "/" not in name]
        if len(manifests) != 1:
            _refuse_package("has no .nuspec, or more than one")
        signature = _read_zip_member(archive, by_name[_SIGNATURE_FILE]) if _SIGNATURE_FILE in by_name else None
        scripts = tuple(name for name in _INSTALL_SCRIPTS if name in by_name)
        return _read_zip_member(archive, by_name[manifests[0]]), signature, scripts


def _read_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as content:
        data = content.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        _refuse_package(f"has a {member.filename[:120]!a} of more than {_MAX_FILE_BYTES} bytes")
    return data


def _refuse_package(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the package {problem}")
