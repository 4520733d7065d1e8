"""Python packages: every file of a release, hashed here, beside what the index says about it.

The simple API is what installers go by, so it says which files there are. The JSON API is asked as a second witness: it
adds times and owners, and where the two name different bytes for one file somebody is being shown something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pinwarden.artifacts.archives.wheel_metadata import WheelMetadata, read_wheel_metadata
from pinwarden.artifacts.artifact import (
    ArtifactFacts,
    ArtifactFile,
    Attestation,
    ListedFile,
    PackageName,
    Problem,
)
from pinwarden.artifacts.downloads import downloaded
from pinwarden.artifacts.endpoints.pypi import above_simple, json_api
from pinwarden.artifacts.newest import Newest, newest_python
from pinwarden.artifacts.provenance_pep740 import LIMITS as PROVENANCE_LIMITS
from pinwarden.artifacts.provenance_pep740 import parse_provenance
from pinwarden.artifacts.python_index import DOCUMENT_LIMITS, ReleaseFile, disagree, distinct_files
from pinwarden.artifacts.python_json_api import JsonRelease, parse_json_release, source_repository
from pinwarden.artifacts.python_package import (
    belongs_to,
    exact_version,
    file_kind,
    normalized_name,
    path_segment,
    same_version,
)
from pinwarden.artifacts.python_simple_page import SIMPLE_ACCEPT, SimplePage, parse_simple_page
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, Wanted
from pinwarden.system.target import Address

_MAX_FILES = 2000  # the most that a release of a public package has is about four hundred
_AT_ONCE = 8


class _Downloaded(Record):
    file: ArtifactFile
    metadata: WheelMetadata | None
    problems: tuple[Problem, ...]


def facts(  # noqa: PLR0913  the interface of all artifact adapters, and which files
    package: PackageName,
    fetcher: Fetcher,
    index: Endpoint,
    *,
    now: str,
    into: Path | None = None,
    only: Callable[[str], bool] | None = None,
) -> ArtifactFacts:
    """All that an index has and says about one release.

    ``only`` chooses by name which files are downloaded; the others are told as the index lists them. With ``into`` the
    bytes are left in that folder, each file under its SHA-256 in hex.
    """
    # 1. What is asked for, in the spelling of addresses.
    name, version = normalized_name(package.name), str(exact_version(package.version))
    bare = ArtifactFacts(package=package, registry=index.url, checked_at=now)
    # 2. Which files there are.
    page = _simple_page(fetcher, index, name)
    if page is None:
        return replace(bare, missing="package")
    release, torn = distinct_files(file for file in page.files if belongs_to(file.name, name, version))
    if not release:
        return replace(bare, missing="version")
    if len(release) > _MAX_FILES:
        raise PinwardenError("FETCH_LIMIT", f"{package} has more than {_MAX_FILES} files", data={"allowed": _MAX_FILES})
    # 3. What the second witness says.
    witness = _json_release(fetcher, index, name, version)
    release = tuple(_completed(file, witness) for file in release)
    # 4. The bytes, and what is stated about them.
    wanted = [file for file in release if only is None or only(file.name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = list(pool.map(lambda each: _download(fetcher, index, each, into, (name, version)), wanted))
        stated = list(pool.map(lambda each: _attestations(fetcher, index, each, page, (name, version)), wanted))
    of_bytes = [each for one in done for each in one.problems] + [each for _, some in stated for each in some]
    names_wanted = {file.name for file in wanted}
    times = sorted(file.uploaded_at for file in release if file.uploaded_at)
    return replace(
        bare,
        files=tuple(one.file for one in done),
        listed=tuple(_listed(file) for file in release if file.name not in names_wanted),
        published_at=times[0] if times else None,
        publisher=witness.publisher if witness else None,
        repository=_repository(done, witness),
        withdrawn=next((file.yanked for file in release if file.yanked), None),
        attestations=tuple(each for found, _ in stated for each in found),
        problems=(*_index_problems(release, torn, witness), *of_bytes),
    )


def newest(package: PackageName, fetcher: Fetcher, index: Endpoint) -> Newest | None:
    """The release that installers would take today; None if the index has no such package."""
    name = normalized_name(package.name)
    page = _simple_page(fetcher, index, name)
    found = newest_python(page.files, name, package.version) if page is not None else None
    if found is None or same_version(found.version, package.version):
        return found
    witness = _json_release(fetcher, index, name, found.version)
    if witness is None:
        return found
    uploaded = min((file.uploaded_at for file in witness.files if file.uploaded_at), default=None)
    return replace(found, publisher=witness.publisher, published_at=found.published_at or uploaded)


# The two interfaces


def _simple_page(fetcher: Fetcher, index: Endpoint, name: str) -> SimplePage | None:
    url = f"{index.url}{path_segment(name)}/"
    answer = fetcher.get(Wanted(endpoint=index, url=url, accept=SIMPLE_ACCEPT), max_bytes=DOCUMENT_LIMITS.max_bytes)
    if not answer.found:
        return None
    # Links are relative to where the page was in the end, after redirects.
    here = f"{answer.address.scheme}://{answer.address.host_header}{answer.address.path}"
    return parse_simple_page(answer.body, answer.headers.get("content-type", ""), here)


def _json_release(fetcher: Fetcher, index: Endpoint, name: str, version: str) -> JsonRelease | None:
    """What the JSON API says, where there is one: it is no part of any standard."""
    base = json_api(index)
    if base is None:
        return None
    for path in (f"{path_segment(name)}/{path_segment(version)}/json", f"{path_segment(name)}/json"):
        wanted = Wanted(endpoint=above_simple(index), url=base + path, accept="application/json")
        try:
            answer = fetcher.get(wanted, max_bytes=DOCUMENT_LIMITS.max_bytes)
        except PinwardenError as err:
            if err.data.get("status") in (400, 401, 403, 405, 406):
                return None  # an index that keeps only the standard; leaving the witness out shows nothing new
            raise
        is_json = answer.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
        if answer.found and is_json:
            release = parse_json_release(answer.body, wanted.url, version)
            if release is not None:
                return release
    return None


def _completed(file: ReleaseFile, witness: JsonRelease | None) -> ReleaseFile:
    """A file with the time and size that only the witness tells. Its digests stay apart."""
    other = next((each for each in witness.files if each.name == file.name), None) if witness else None
    if other is None:
        return file
    return replace(
        file,
        size=other.size if file.size is None else file.size,
        uploaded_at=file.uploaded_at or other.uploaded_at,
        yanked=file.yanked or other.yanked,
    )


def _index_problems(
    release: Sequence[ReleaseFile], torn: Sequence[str], witness: JsonRelease | None
) -> Iterator[Problem]:
    for name in torn:
        yield Problem(code="pypi_index_disagrees", message=f"the index lists {name} twice, with different bytes")
    by_name = {file.name: file for file in release}
    for other in witness.files if witness else ():
        file = by_name.get(other.name)
        # Which files there are may differ for minutes after an upload; what a file is may not.
        if file is not None and disagree(file.claims, other.claims):
            yield Problem(
                code="pypi_index_disagrees", message=f"the simple API and the JSON API name other bytes for {file.name}"
            )


# The bytes


def _download(
    fetcher: Fetcher, index: Endpoint, file: ReleaseFile, into: Path | None, asked: tuple[str, str]
) -> _Downloaded:
    algorithms = tuple({"sha256": None, **{claim.algorithm: None for claim in file.claims}})
    wanted = Wanted(endpoint=above_simple(index), url=file.url)
    host = Address.parse(file.url).host_header
    with downloaded(fetcher, wanted, algorithms=algorithms, into=into) as got:
        metadata: WheelMetadata | None = None
        problems: tuple[Problem, ...] = ()
        if file_kind(file.name) == "wheel":
            try:
                metadata = read_wheel_metadata(got.stream)
                problems = tuple(_metadata_problems(file.name, metadata, asked))
            except PinwardenError as err:
                problems = (Problem(code="pypi_unsafe_archive", message=f"{file.name}: {err.message}"),)
        found = ArtifactFile(
            name=file.name,
            size=got.received.size,
            digests=got.received.digests,
            claims=file.claims,
            uploaded_at=file.uploaded_at,
            host=None if host == index.address.host_header else host,
        )
    return _Downloaded(file=found, metadata=metadata, problems=problems)


def _metadata_problems(file_name: str, metadata: WheelMetadata, asked: tuple[str, str]) -> Iterator[Problem]:
    name, version = asked
    try:
        right = normalized_name(metadata.name) == name and same_version(metadata.version, version)
    except PinwardenError:
        right = False
    if not right:
        told = f"{metadata.name[:120]!a} {metadata.version[:120]!a}"
        yield Problem(
            code="pypi_metadata_mismatch", message=f"{file_name} says that it is {told}, not {name} {version}"
        )


def _listed(file: ReleaseFile) -> ListedFile:
    return ListedFile(name=file.name, claims=file.claims, size=file.size, uploaded_at=file.uploaded_at)


def _repository(done: Sequence[_Downloaded], witness: JsonRelease | None) -> str | None:
    """From the hashed bytes if they say it, otherwise from the index."""
    for one in done:
        if one.metadata is not None and (found := source_repository(one.metadata.project_urls)):
            return found
    return source_repository(witness.project_urls) if witness else None


# Attestations


def _attestations(
    fetcher: Fetcher, index: Endpoint, file: ReleaseFile, page: SimplePage, asked: tuple[str, str]
) -> tuple[tuple[Attestation, ...], tuple[Problem, ...]]:
    url = file.provenance or _usual_provenance(index, page, file, asked)
    if url is None:
        return (), ()
    wanted = Wanted(
        endpoint=above_simple(index), url=url, accept="application/vnd.pypi.integrity.v1+json, application/json"
    )
    try:
        answer = fetcher.get(wanted, max_bytes=PROVENANCE_LIMITS.max_bytes)
    except PinwardenError as err:
        if file.provenance is None and err.data.get("status") in (400, 401, 403, 405, 406):
            return (), ()  # nobody said that there would be one
        raise
    if not answer.found:
        if file.provenance is None:
            return (), ()
        return (), (_provenance_problem(file.name, "is announced and not there"),)
    try:
        statements = parse_provenance(answer.body)
    except PinwardenError as err:
        if file.provenance is None and "json" not in answer.headers.get("content-type", ""):
            return (), ()  # a page for people at an address that means nothing to this index
        return (), (_provenance_problem(file.name, f"cannot be read: {err.message}"),)
    found = tuple(
        Attestation(kind=each.predicate_type, bundle=each.bundle, file=file.name, source=answer.body)
        for each in statements
    )
    return found, ()


def _usual_provenance(index: Endpoint, page: SimplePage, file: ReleaseFile, asked: tuple[str, str]) -> str | None:
    """Where PEP 740 documents usually are, for mirrors whose pages do not speak of them."""
    if page.says_provenance or json_api(index) is None:
        return None
    steps = "/".join(path_segment(each) for each in (*asked, file.name))
    return f"{above_simple(index).url}integrity/{steps}/provenance"


def _provenance_problem(file_name: str, why: str) -> Problem:
    return Problem(code="pypi_provenance_invalid", message=f"the provenance of {file_name} {why}")
