"""Crates: the line of the registry's sparse index, and the bytes that it speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from pinwarden.artifacts.artifact import ArtifactFacts, ArtifactFile, PackageName, Problem
from pinwarden.artifacts.cargo_package import (
    check_name,
    check_version,
    download_url,
    index_path,
    parse_index,
    parse_manifest,
)
from pinwarden.artifacts.downloads import downloaded
from pinwarden.artifacts.tarball_files import read_files
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, Wanted
from pinwarden.system.net.fetch_failures import unfetched
from pinwarden.system.target import Address

MANIFEST_MISMATCH = "cargo_manifest_mismatch"
ARCHIVE_UNSAFE = "cargo_archive_unsafe"
_MAX_CONFIG = 64 * 1024
_MAX_INDEX = 32 * 1024 * 1024
_FILES = frozenset({"Cargo.toml", "build.rs"})


class _Content(Record):
    """What was found in the bytes."""

    repository: str | None = None
    scripts: tuple[str, ...] = ()
    """The program that is run before the crate is built."""
    problems: tuple[Problem, ...] = ()


def facts(
    package: PackageName, fetcher: Fetcher, endpoint: Endpoint, *, now: str, into: Path | None = None
) -> ArtifactFacts:
    """What the index says about one version, and what its bytes are."""
    name, version = check_name(package.name), check_version(package.version)
    # 1. Where the registry has its crates.
    template = _template(fetcher, endpoint)
    # 2. What the index says.
    answer = fetcher.get(Wanted(endpoint=endpoint, url=f"{endpoint.url}{index_path(name)}"), max_bytes=_MAX_INDEX)
    if not answer.found:
        return ArtifactFacts(package=package, registry=endpoint.url, checked_at=now, missing="package")
    try:
        line = parse_index(answer.body, name, version)
    except PinwardenError as err:
        raise unfetched("protocol", f"the index of {name} cannot be read: {err}") from err
    if line is None:
        return ArtifactFacts(package=package, registry=endpoint.url, checked_at=now, missing="version")
    # 3. What the bytes are.
    url = download_url(template, name, version, line.checksum)
    host = _checked_host(url, endpoint)
    with downloaded(fetcher, Wanted(endpoint=endpoint, url=url), algorithms=("sha256",), into=into) as download:
        content = _content(download.stream, name, version)
        received = download.received
    file = ArtifactFile(
        name=f"{name}-{version}.crate",
        size=received.size,
        digests=received.digests,
        claims=(line.checksum,),
        uploaded_at=line.published_at,
        host=host,
    )
    return ArtifactFacts(
        package=package,
        registry=endpoint.url,
        checked_at=now,
        files=(file,),
        published_at=line.published_at,
        repository=content.repository,
        withdrawn="yanked" if line.yanked else None,
        install_scripts=content.scripts,
        problems=content.problems,
    )


def _template(fetcher: Fetcher, endpoint: Endpoint) -> str:
    answer = fetcher.get(Wanted(endpoint=endpoint, url=f"{endpoint.url}config.json"), max_bytes=_MAX_CONFIG)
    config: Any = None
    if answer.found:
        try:
            config = strict_json.parse(answer.body)
        except PinwardenError as err:
            raise unfetched("protocol", f"{answer.address} cannot be read: {err}") from err
    template = config.get("dl") if isinstance(config, dict) else None
    if not isinstance(template, str):
        raise unfetched("protocol", f"{endpoint.address} is not the sparse index of a Cargo registry")
    return template


def _checked_host(url: str, endpoint: Endpoint) -> str | None:
    """The host of a download, if it is another than the registry's. Plain http is for the registry's own host only."""
    try:
        address = Address.parse(url)
    except PinwardenError as err:
        raise unfetched("protocol", "the registry's configuration names no web address for downloads") from err
    base = endpoint.address
    if address.scheme != "https" and address.origin != base.origin:
        message = f"{address} is not encrypted and not at the registry"
        raise PinwardenError("ADDRESS_REFUSED", message, data={"reason": "plain-http"})
    return None if address.host_header == base.host_header else address.host_header


def _content(stream: IO[bytes], name: str, version: str) -> _Content:
    try:
        files = read_files(stream, _FILES)
        manifest = parse_manifest(files.get("Cargo.toml", b""))
    except PinwardenError as err:
        return _Content(problems=(Problem(code=ARCHIVE_UNSAFE, message=err.message),))
    problems: tuple[Problem, ...] = ()
    if (manifest.name, manifest.version) != (name, version):
        problems = (Problem(code=MANIFEST_MISMATCH, message="the crate is another one than the index says"),)
    builds = "build.rs" in files if manifest.build is None else manifest.build
    scripts = ("build.rs",) if builds else ()
    return _Content(repository=manifest.repository, scripts=scripts, problems=problems)
