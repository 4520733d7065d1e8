"""Fetches Python packages: downloads and hashes the files of a release, and reads the metadata of the index.

Installers use the simple API, so that API determines which files a release has. Pinwarden takes upload times and owners
from the JSON API, and reports a problem if the two APIs state different digests for a file.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NoReturn

from pinwarden.artifacts.artifact import (
    ArtifactAttestation,
    ArtifactFile,
    ArtifactProblem,
    FetchedArtifact,
    ListedFile,
    PackageRef,
    ReleaseFacts,
)
from pinwarden.artifacts.downloads import open_download
from pinwarden.artifacts.endpoints.pypi import get_index_parent, get_json_api_url
from pinwarden.artifacts.newest_release import NewestRelease, choose_python_release
from pinwarden.artifacts.pypi_index import (
    DOCUMENT_LIMITS,
    PROVENANCE_LIMITS,
    SIMPLE_ACCEPT,
    JsonRelease,
    ReleaseFile,
    SimplePage,
    are_digests_conflicting,
    deduplicate_files,
    find_source_repository,
    parse_json_release,
    parse_provenance,
    parse_simple_page,
)
from pinwarden.artifacts.python_package import (
    classify_file,
    is_release_file,
    is_same_version,
    normalize_name,
    parse_exact_version,
    quote_path_segment,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest
from pinwarden.system.target import HttpAddress

_MAX_FILES = 2000  # the largest releases of public packages have about 400
_PARALLEL_DOWNLOADS = 8


def fetch_artifact(  # noqa: PLR0913
    package: PackageRef,
    fetcher: Fetcher,
    index: ServiceEndpoint,
    *,
    now: str,
    save_folder: Path | None = None,
    select: Callable[[str], bool] | None = None,
) -> FetchedArtifact:
    """Fetch and hash the files of one release.

    ``select`` decides by name which files to download. The names of all other files are in ``listed``. If
    ``save_folder`` is given, each file is saved there under its SHA-256 in hex.
    """
    # 1. Normalise name and version.
    name, version = normalize_name(package.name), str(parse_exact_version(package.version))
    empty = FetchedArtifact(package=package, registry=index.url, checked_at=now)
    # 2. List the files.
    page = _fetch_simple_page(fetcher, index, name)
    if page is None:
        return replace(empty, missing="package")
    release, conflicting = deduplicate_files(file for file in page.files if is_release_file(file.name, name, version))
    if not release:
        return replace(empty, missing="version")
    if len(release) > _MAX_FILES:
        raise PinwardenError("FETCH_LIMIT", f"{package} has more than {_MAX_FILES} files", data={"allowed": _MAX_FILES})
    # 3. Compare with the JSON API.
    json_release = _fetch_json_release(fetcher, index, name, version)
    release = tuple(_add_json_fields(file, json_release) for file in release)
    # 4. Download the files and their attestations.
    selected = [file for file in release if select is None or select(file.name)]
    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        downloads = list(
            pool.map(lambda file: _download_file(fetcher, index, file, save_folder, (name, version)), selected)
        )
        attestation_results = list(
            pool.map(lambda file: _fetch_attestations(fetcher, index, file, page, (name, version)), selected)
        )
    problems = [problem for download in downloads for problem in download.problems]
    problems += [problem for _, file_problems in attestation_results for problem in file_problems]
    selected_names = {file.name for file in selected}
    upload_times = sorted(file.uploaded_at for file in release if file.uploaded_at)
    return replace(
        empty,
        files=tuple(download.file for download in downloads),
        listed=tuple(_to_listed_file(file) for file in release if file.name not in selected_names),
        facts=ReleaseFacts(
            published_at=upload_times[0] if upload_times else None,
            publisher=json_release.publisher if json_release else None,
            repository=_find_repository(downloads, json_release),
            yanked=next((file.yanked for file in release if file.yanked), None),
        ),
        attestations=tuple(attestation for attestations, _ in attestation_results for attestation in attestations),
        problems=(*_find_index_problems(release, conflicting, json_release), *problems),
    )


def find_newest_release(
    package: PackageRef,
    fetcher: Fetcher,
    index: ServiceEndpoint,
    constraint: str = "",
    preferred: Sequence[str] = (),
) -> NewestRelease | None:
    """Return the release that installers would choose today; None if the index lists none.

    See `choose_python_release` for ``constraint`` and ``preferred``.
    """
    name = normalize_name(package.name)
    page = _fetch_simple_page(fetcher, index, name)
    if page is None:
        return None
    release = choose_python_release(page.files, name, package.version, constraint, preferred)
    if release is None or is_same_version(release.version, package.version):
        return release
    json_release = _fetch_json_release(fetcher, index, name, release.version)
    if json_release is None:
        return release
    uploaded = min((file.uploaded_at for file in json_release.files if file.uploaded_at), default=None)
    published_at = release.facts.published_at or uploaded
    return replace(release, facts=ReleaseFacts(published_at=published_at, publisher=json_release.publisher))


# The index


def _fetch_simple_page(fetcher: Fetcher, index: ServiceEndpoint, name: str) -> SimplePage | None:
    url = f"{index.url}{quote_path_segment(name)}/"
    response = fetcher.get(
        FetchRequest(endpoint=index, url=url, accept=SIMPLE_ACCEPT), max_bytes=DOCUMENT_LIMITS.max_bytes
    )
    if not response.found:
        return None
    # Links are relative to the URL after redirects.
    page_url = f"{response.address.scheme}://{response.address.host_header}{response.address.path}"
    return parse_simple_page(response.body, response.headers.get("content-type", ""), page_url)


def _fetch_json_release(fetcher: Fetcher, index: ServiceEndpoint, name: str, version: str) -> JsonRelease | None:
    """Fetch the release from the JSON API. Returns None if the index does not have this non-standard API."""
    base = get_json_api_url(index)
    if base is None:
        return None
    for path in (f"{quote_path_segment(name)}/{quote_path_segment(version)}/json", f"{quote_path_segment(name)}/json"):
        request = FetchRequest(endpoint=get_index_parent(index), url=base + path, accept="application/json")
        try:
            response = fetcher.get(request, max_bytes=DOCUMENT_LIMITS.max_bytes)
        except PinwardenError as err:
            if err.data.get("status") in (400, 401, 403, 405, 406):
                return None  # the index has only the standard API
            raise
        is_json = response.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
        if response.found and is_json:
            release = parse_json_release(response.body, request.url, version)
            if release is not None:
                return release
    return None


def _add_json_fields(file: ReleaseFile, json_release: JsonRelease | None) -> ReleaseFile:
    """Fill in upload time, size and yanked status from the JSON API if the simple API does not state them."""
    json_files = json_release.files if json_release else ()
    json_file = next((json_file for json_file in json_files if json_file.name == file.name), None)
    if json_file is None:
        return file
    return replace(
        file,
        size=json_file.size if file.size is None else file.size,
        uploaded_at=file.uploaded_at or json_file.uploaded_at,
        yanked=file.yanked or json_file.yanked,
    )


def _find_index_problems(
    release: Sequence[ReleaseFile], conflicting: Sequence[str], json_release: JsonRelease | None
) -> Iterator[ArtifactProblem]:
    for name in conflicting:
        yield ArtifactProblem(
            code="pypi_index_disagrees", message=f"the index lists {name} twice with different digests"
        )
    by_name = {file.name: file for file in release}
    for json_file in json_release.files if json_release else ():
        file = by_name.get(json_file.name)
        # The file lists may differ for minutes after an upload; the digests of a file may not.
        if file is not None and are_digests_conflicting(file.claims, json_file.claims):
            yield ArtifactProblem(
                code="pypi_index_disagrees",
                message=f"the simple API and the JSON API state different digests for {file.name}",
            )


# Files


class _DownloadedFile(Record):
    file: ArtifactFile
    metadata: WheelMetadata | None
    problems: tuple[ArtifactProblem, ...]


def _download_file(
    fetcher: Fetcher,
    index: ServiceEndpoint,
    file: ReleaseFile,
    save_folder: Path | None,
    name_and_version: tuple[str, str],
) -> _DownloadedFile:
    algorithms = tuple({"sha256": None, **{claim.algorithm: None for claim in file.claims}})
    request = FetchRequest(endpoint=get_index_parent(index), url=file.url)
    host = HttpAddress.parse(file.url).host_header
    with open_download(fetcher, request, algorithms=algorithms, save_folder=save_folder) as download:
        metadata: WheelMetadata | None = None
        problems: tuple[ArtifactProblem, ...] = ()
        if classify_file(file.name) == "wheel":
            try:
                metadata = read_wheel_metadata(download.stream)
                problems = tuple(_check_metadata(file.name, metadata, name_and_version))
            except PinwardenError as err:
                problems = (ArtifactProblem(code="pypi_unsafe_archive", message=f"{file.name}: {err.message}"),)
        artifact = ArtifactFile(
            name=file.name,
            size=download.result.size,
            digests=download.result.digests,
            claims=file.claims,
            uploaded_at=file.uploaded_at,
            host=None if host == index.address.host_header else host,
        )
    return _DownloadedFile(file=artifact, metadata=metadata, problems=problems)


def _check_metadata(
    file_name: str, metadata: WheelMetadata, name_and_version: tuple[str, str]
) -> Iterator[ArtifactProblem]:
    name, version = name_and_version
    try:
        matches = normalize_name(metadata.name) == name and is_same_version(metadata.version, version)
    except PinwardenError:
        matches = False
    if not matches:
        actual = f"{metadata.name[:120]!a} {metadata.version[:120]!a}"
        yield ArtifactProblem(
            code="pypi_metadata_mismatch", message=f"the METADATA in {file_name} is for {actual}, not {name} {version}"
        )


def _to_listed_file(file: ReleaseFile) -> ListedFile:
    return ListedFile(name=file.name, claims=file.claims, size=file.size, uploaded_at=file.uploaded_at)


def _find_repository(downloads: Sequence[_DownloadedFile], json_release: JsonRelease | None) -> str | None:
    """Return the source repository in the METADATA of a wheel or, if there is none, in the JSON API."""
    for download in downloads:
        if download.metadata is not None and (url := find_source_repository(download.metadata.project_urls)):
            return url
    return find_source_repository(json_release.project_urls) if json_release else None


# Attestations


def _fetch_attestations(
    fetcher: Fetcher, index: ServiceEndpoint, file: ReleaseFile, page: SimplePage, name_and_version: tuple[str, str]
) -> tuple[tuple[ArtifactAttestation, ...], tuple[ArtifactProblem, ...]]:
    url = file.provenance or _build_provenance_url(index, page, file, name_and_version)
    if url is None:
        return (), ()
    request = FetchRequest(
        endpoint=get_index_parent(index), url=url, accept="application/vnd.pypi.integrity.v1+json, application/json"
    )
    try:
        response = fetcher.get(request, max_bytes=PROVENANCE_LIMITS.max_bytes)
    except PinwardenError as err:
        if file.provenance is None and err.data.get("status") in (400, 401, 403, 405, 406):
            return (), ()  # the index did not announce provenance
        raise
    if not response.found:
        if file.provenance is None:
            return (), ()
        message = f"the index announces provenance for {file.name} but does not have it"
        return (), (ArtifactProblem(code="pypi_provenance_invalid", message=message),)
    try:
        pypi_attestations = parse_provenance(response.body)
    except PinwardenError as err:
        if file.provenance is None and "json" not in response.headers.get("content-type", ""):
            return (), ()  # an HTML page: this index does not serve provenance at the conventional URL
        return (), (ArtifactProblem(code="pypi_provenance_invalid", message=f"{file.name}: {err.message}"),)
    attestations = tuple(
        ArtifactAttestation(
            kind=attestation.predicate_type, bundle=attestation.bundle, file=file.name, source=response.body
        )
        for attestation in pypi_attestations
    )
    return attestations, ()


def _build_provenance_url(
    index: ServiceEndpoint, page: SimplePage, file: ReleaseFile, name_and_version: tuple[str, str]
) -> str | None:
    """Return the conventional URL of a provenance document (PEP 740), for mirrors whose pages do not link to it."""
    if page.announces_provenance or get_json_api_url(index) is None:
        return None
    path = "/".join(quote_path_segment(part) for part in (*name_and_version, file.name))
    return f"{get_index_parent(index).url}integrity/{path}/provenance"


# METADATA of wheels

_MAX_DIRECTORY = 64 * 1024 * 1024  # read into memory at once; 100,000 members have about 10 MB
_MAX_MEMBERS = 200_000
_MAX_METADATA = 8 * 1024 * 1024  # includes the README
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_DIST_INFO = re.compile(r"[^/]+\.dist-info/METADATA")
_UNSAFE_NAME = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{1,2}(?:/|$)|^/|//|^[A-Za-z]:")


class WheelMetadata(Record):
    """Name, version and URLs in a wheel's METADATA."""

    name: str
    version: str
    project_urls: Mapping[str, str] = field(default_factory=dict)


def read_wheel_metadata(stream: IO[bytes]) -> WheelMetadata:
    """Read METADATA without unpacking other files. Raises ``ARCHIVE_UNSAFE`` unless there is exactly one METADATA."""
    try:
        _check_zip_directory(stream)
        with zipfile.ZipFile(stream) as archive:
            return _parse_metadata(_read_metadata(archive))
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OSError,  # seeking outside the file
    ) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the wheel is a damaged ZIP file: {type(err).__name__}") from err


def _check_zip_directory(stream: IO[bytes]) -> None:
    """Refuse an oversized directory before zipfile reads it."""
    size = stream.seek(0, 2)
    start = max(0, size - _END.size - 0xFFFF)
    stream.seek(start)
    tail = stream.read(size - start)
    position = tail.rfind(b"PK\x05\x06")
    if position < 0:
        _refuse_wheel("has no directory")
    members, length = _END.unpack_from(tail, position)[4:6]
    locator = start + position - _LOCATOR_64.size
    if locator >= 0:
        stream.seek(locator)
        magic, _, record, _ = _LOCATOR_64.unpack(stream.read(_LOCATOR_64.size))
        if magic == b"PK\x06\x07" and record < size:
            stream.seek(record)
            members, length = _END_64.unpack(stream.read(_END_64.size))[7:9]
    if length > _MAX_DIRECTORY or members > _MAX_MEMBERS:
        _refuse_wheel("has a directory that is too large")
    stream.seek(0)


def _read_metadata(archive: zipfile.ZipFile) -> bytes:
    names = [member.orig_filename for member in archive.infolist()]
    if len(names) > _MAX_MEMBERS or len(set(names)) != len(names):
        _refuse_wheel("has a duplicate name, or too many members")
    for name in names:
        if _UNSAFE_NAME.search(name):
            _refuse_wheel(f"has a path that leaves the target folder: {name[:120]!a}")
    metadata_files = [member for member in archive.infolist() if _DIST_INFO.fullmatch(member.filename)]
    if len(metadata_files) != 1:
        _refuse_wheel(f"has {len(metadata_files)} METADATA files instead of one")
    if metadata_files[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # With other methods, the archive determines how much memory decompression needs.
        _refuse_wheel("has a METADATA file with an unsupported compression method")
    with archive.open(metadata_files[0]) as stream:
        data = stream.read(_MAX_METADATA + 1)
    if len(data) > _MAX_METADATA:
        _refuse_wheel("has a METADATA file that is too large")
    return data


def _parse_metadata(data: bytes) -> WheelMetadata:
    from packaging.metadata import parse_email

    raw, _ = parse_email(data)
    urls = dict(raw.get("project_urls", {}))
    if raw.get("home_page"):
        urls.setdefault("Homepage", raw["home_page"])
    # If a field is missing or duplicate, it is not in ``raw`` and becomes empty, which matches no package.
    return WheelMetadata(name=raw.get("name", ""), version=raw.get("version", ""), project_urls=urls)


def _refuse_wheel(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the wheel {problem}")
