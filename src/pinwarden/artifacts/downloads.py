"""Downloads or copies one artifact to a temporary file, and hashes it at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, cast
from urllib.parse import unquote

from pinwarden.artifacts.artifact import ArtifactFile, PackageRef
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import open_regular
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import DownloadResult, Fetcher, FetchLimits, FetchRequest
from pinwarden.system.target import HttpAddress

_MAX_BYTES = FetchLimits().file_bytes
_CHUNK = 1 << 20
_NOT_FOUND = (404, 410)


class Download(Record):
    """A finished download."""

    stream: IO[bytes]
    """The downloaded file, positioned at its start. It is closed when the ``with`` block ends."""
    result: DownloadResult


@contextmanager
def open_download(
    fetcher: Fetcher, request: FetchRequest, *, algorithms: tuple[str, ...], save_folder: Path | None
) -> Iterator[Download]:
    """Download to a temporary file, which is deleted when the block ends.

    If ``save_folder`` is given and the block succeeds, the file is moved to ``save_folder/<sha256 hex>`` instead.
    """
    try:
        with NamedTemporaryFile(dir=save_folder, prefix=".download-", delete=False) as temporary:
            path = Path(temporary.name)
            try:
                stream = cast("IO[bytes]", temporary)
                result = fetcher.download(request, stream, algorithms=algorithms)  # type: ignore[arg-type]
                stream.flush()
                stream.seek(0)
                yield Download(stream=stream, result=result)
                if save_folder is not None:
                    sha256 = next(digest.hex for digest in result.digests if digest.algorithm == "sha256")
                    path.replace(save_folder / sha256)
            finally:
                path.unlink(missing_ok=True)
    except OSError as err:
        target = save_folder if save_folder is not None else "a temporary file"
        raise PinwardenError("FILE_UNWRITABLE", f"cannot write a download to {target}: {err.strerror or err}") from err


class StagedFile(Record):
    """A private copy of a file. It has exactly the bytes that were hashed, even if the original changes."""

    path: Path
    """The copy, which is deleted when the ``with`` block ends."""
    file: ArtifactFile


@contextmanager
def stage_file(
    package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint | None, *, save_folder: Path | None
) -> Iterator[StagedFile | None]:
    """Download or copy the file that ``package`` names by URL or path. Yields None if it does not exist.

    If ``save_folder`` is given and the block succeeds, the copy is moved to ``save_folder/<sha256 hex>``.
    """
    if not is_url(package.name):
        with _copy_file(Path(package.name), save_folder) as copy:
            yield copy
        return
    address = HttpAddress.parse(package.name)
    request = FetchRequest(endpoint=endpoint or build_parent_endpoint(package.name), url=package.name)
    with ExitStack() as stack:
        try:
            download = stack.enter_context(
                open_download(fetcher, request, algorithms=("sha256",), save_folder=save_folder)
            )
        except PinwardenError as err:
            if err.code != "FETCH_FAILED" or err.data.get("status") not in _NOT_FOUND:
                raise
            download = None
        if download is None:
            yield None
            return
        result = download.result
        host = None if result.address.host == address.host else result.address.host_header
        name = unquote(address.path.partition("?")[0]).rpartition("/")[2] or "file"
        file = ArtifactFile(name=name, size=result.size, digests=result.digests, host=host)
        yield StagedFile(path=Path(download.stream.name), file=file)


def is_url(name: str) -> bool:
    """Whether the name of an artifact is an http(s) URL. Otherwise it is a path."""
    return name.lower().startswith(("https://", "http://"))


def build_parent_endpoint(url: str) -> ServiceEndpoint:
    """Return the endpoint for a URL's parent folder, as if a project had configured it.

    Pinwarden contacts such an endpoint only at public addresses, because the user's settings do not name it.
    """
    address = HttpAddress.parse(url)
    folder = address.path.partition("?")[0].rpartition("/")[0]
    return ServiceEndpoint(url=f"{address.scheme}://{address.host_header}{folder}/", configured_by="project")


def format_source(name: str) -> str:
    """Return the URL or path of a file without credentials, for messages."""
    return str(HttpAddress.parse(name)) if is_url(name) else name


@contextmanager
def _copy_file(path: Path, save_folder: Path | None) -> Iterator[StagedFile | None]:
    if not path.exists():
        yield None
        return
    try:
        with NamedTemporaryFile(dir=save_folder, prefix=".copy-", delete=False) as temporary:
            copy = Path(temporary.name)
            try:
                hasher, size = hashlib.sha256(), 0
                with open_regular(path) as stream:
                    while data := stream.read(_CHUNK):
                        size += len(data)
                        if size > _MAX_BYTES:
                            raise PinwardenError("FILE_UNREADABLE", f"{path} is larger than {_MAX_BYTES} bytes")
                        hasher.update(data)
                        temporary.write(data)
                temporary.flush()
                digest = Digest(hasher.digest())
                yield StagedFile(path=copy, file=ArtifactFile(name=path.name, size=size, digests=(digest,)))
                if save_folder is not None:
                    copy.replace(save_folder / digest.hex)
            finally:
                copy.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"cannot copy {path}: {err.strerror or err}") from err
