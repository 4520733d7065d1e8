"""Fetches crates: the entry in the registry's sparse index, and the ``.crate`` file."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from pinwarden.artifacts.archives.package_tarball import read_named_files
from pinwarden.artifacts.artifact import ArtifactFile, ArtifactProblem, FetchedArtifact, PackageRef
from pinwarden.artifacts.cargo_package import (
    build_download_url,
    build_index_path,
    check_name,
    check_version,
    parse_index,
    parse_manifest,
)
from pinwarden.artifacts.downloads import open_download
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest
from pinwarden.system.net.network_errors import fetch_error
from pinwarden.system.target import HttpAddress

MANIFEST_MISMATCH = "cargo_manifest_mismatch"
ARCHIVE_UNSAFE = "cargo_archive_unsafe"
_MAX_CONFIG_BYTES = 64 * 1024
_MAX_INDEX_BYTES = 32 * 1024 * 1024
_CRATE_FILES = frozenset({"Cargo.toml", "build.rs"})


def fetch_artifact(
    package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint, *, now: str, save_folder: Path | None = None
) -> FetchedArtifact:
    """Fetch the index entry and the crate of one version, and hash the crate.

    1. Fetch the registry's template for download URLs.
    2. Fetch the index entry.
    3. Fetch and check the crate.
    """
    name, version = check_name(package.name), check_version(package.version)
    template = _fetch_download_template(fetcher, endpoint)
    response = fetcher.get(
        FetchRequest(endpoint=endpoint, url=f"{endpoint.url}{build_index_path(name)}"), max_bytes=_MAX_INDEX_BYTES
    )
    if not response.found:
        return FetchedArtifact(package=package, registry=endpoint.url, checked_at=now, missing="package")
    try:
        entry = parse_index(response.body, name, version)
    except PinwardenError as err:
        raise fetch_error("protocol", f"the index entry of {name} is invalid: {err}") from err
    if entry is None:
        return FetchedArtifact(package=package, registry=endpoint.url, checked_at=now, missing="version")
    url = build_download_url(template, name, version, entry.checksum)
    host = _check_download_host(url, endpoint)
    with open_download(
        fetcher, FetchRequest(endpoint=endpoint, url=url), algorithms=("sha256",), save_folder=save_folder
    ) as download:
        content = _read_crate(download.stream, name, version)
        result = download.result
    file = ArtifactFile(
        name=f"{name}-{version}.crate",
        size=result.size,
        digests=result.digests,
        claims=(entry.checksum,),
        uploaded_at=entry.facts.published_at,
        host=host,
    )
    return FetchedArtifact(
        package=package,
        registry=endpoint.url,
        checked_at=now,
        files=(file,),
        facts=replace(entry.facts, repository=content.repository),
        install_scripts=content.scripts,
        problems=content.problems,
    )


class _CrateContent(Record):
    repository: str | None = None
    scripts: tuple[str, ...] = ()
    """The build script, if the crate has one."""
    problems: tuple[ArtifactProblem, ...] = ()


def _fetch_download_template(fetcher: Fetcher, endpoint: ServiceEndpoint) -> str:
    response = fetcher.get(
        FetchRequest(endpoint=endpoint, url=f"{endpoint.url}config.json"), max_bytes=_MAX_CONFIG_BYTES
    )
    config: Any = None
    if response.found:
        try:
            config = strict_json.parse_json(response.body)
        except PinwardenError as err:
            raise fetch_error("protocol", f"{response.address} is not valid JSON: {err}") from err
    template = config.get("dl") if isinstance(config, dict) else None
    if not isinstance(template, str):
        raise fetch_error("protocol", f"{endpoint.address} is not a sparse Cargo index: its config.json has no dl URL")
    return template


def _check_download_host(url: str, endpoint: ServiceEndpoint) -> str | None:
    """Return the download host; None if it is the registry's own host.

    Raises if a host other than the registry's would be contacted with plain HTTP.
    """
    try:
        address = HttpAddress.parse(url)
    except PinwardenError as err:
        raise fetch_error("protocol", "the dl URL in the registry's config.json is invalid") from err
    registry = endpoint.address
    if address.scheme != "https" and address.origin != registry.origin:
        message = f"{address} uses plain HTTP and is not on the registry's host"
        raise PinwardenError("ADDRESS_REFUSED", message, data={"reason": "plain-http"})
    return None if address.host_header == registry.host_header else address.host_header


def _read_crate(stream: IO[bytes], name: str, version: str) -> _CrateContent:
    try:
        files = read_named_files(stream, _CRATE_FILES)
        manifest = parse_manifest(files.get("Cargo.toml", b""))
    except PinwardenError as err:
        return _CrateContent(problems=(ArtifactProblem(code=ARCHIVE_UNSAFE, message=err.message),))
    problems: tuple[ArtifactProblem, ...] = ()
    if (manifest.name, manifest.version) != (name, version):
        problems = (
            ArtifactProblem(code=MANIFEST_MISMATCH, message="the crate's Cargo.toml names another crate or version"),
        )
    has_build_script = "build.rs" in files if manifest.build is None else manifest.build
    scripts = ("build.rs",) if has_build_script else ()
    return _CrateContent(repository=manifest.repository, scripts=scripts, problems=problems)
