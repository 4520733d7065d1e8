"""Download or copy one artifact to a temporary file, and hash it at the same time."""

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
    """A complete download."""

    stream: IO[bytes]
    """Positioned at the start; open until the ``with`` block ends."""
    result: DownloadResult


@contextmanager
def open_download(
    fetcher: Fetcher, request: FetchRequest, *, algorithms: tuple[str, ...], into: Path | None
) -> Iterator[Download]:
    """Download a file. If the block succeeds, the file is moved to ``into/<sha256 hex>``; otherwise it is deleted."""
    try:
        with NamedTemporaryFile(dir=into, prefix=".download-", delete=False) as temporary:
            path = Path(temporary.name)
            try:
                stream = cast("IO[bytes]", temporary)
                result = fetcher.download(request, stream, algorithms=algorithms)  # type: ignore[arg-type]
                stream.flush()
                stream.seek(0)
                yield Download(stream=stream, result=result)
                if into is not None:
                    sha256 = next(digest.hex for digest in result.digests if digest.algorithm == "sha256")
                    path.replace(into / sha256)
            finally:
                path.unlink(missing_ok=True)
    except OSError as err:
        target = into if into is not None else "a temporary file"
        raise PinwardenError("FILE_UNWRITABLE", f"cannot write a download to {target}: {err.strerror or err}") from err


class StagedFile(Record):
    """A private copy of a file. Readers get exactly the bytes that were hashed, even if the original changes."""

    path: Path
    """Valid until the ``with`` block ends."""
    file: ArtifactFile


@contextmanager
def stage_file(
    package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint | None, *, into: Path | None
) -> Iterator[StagedFile | None]:
    """Download or copy a file named by URL or path; None if it does not exist.

    If the block succeeds and ``into`` is set, the copy is moved to ``into/<sha256 hex>``.
    """
    if not is_url(package.name):
        with _copy_file(Path(package.name), into) as copy:
            yield copy
        return
    address = HttpAddress.parse(package.name)
    request = FetchRequest(endpoint=endpoint or build_parent_endpoint(package.name), url=package.name)
    with ExitStack() as stack:
        try:
            download = stack.enter_context(open_download(fetcher, request, algorithms=("sha256",), into=into))
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
    """Whether a name is an http(s) URL and not a path."""
    return name.lower().startswith(("https://", "http://"))


def build_parent_endpoint(url: str) -> ServiceEndpoint:
    """Return the endpoint for a URL's parent folder. It must be public, because the user's settings do not name it."""
    address = HttpAddress.parse(url)
    folder = address.path.partition("?")[0].rpartition("/")[0]
    return ServiceEndpoint(url=f"{address.scheme}://{address.host_header}{folder}/", configured_by="project")


def format_source(name: str) -> str:
    """Where a file comes from, without credentials, for display."""
    return str(HttpAddress.parse(name)) if is_url(name) else name


@contextmanager
def _copy_file(path: Path, into: Path | None) -> Iterator[StagedFile | None]:
    if not path.exists():
        yield None
        return
    try:
        with NamedTemporaryFile(dir=into, prefix=".copy-", delete=False) as temporary:
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
                if into is not None:
                    copy.replace(into / digest.hex)
            finally:
                copy.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"cannot copy {path}: {err.strerror or err}") from err
