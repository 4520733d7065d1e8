"""Files that are named by an address or by a path of this machine, taken in whole and hashed on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import unquote

from pinwarden.artifacts.artifact import ArtifactFile, PackageName
from pinwarden.artifacts.downloads import downloaded
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import open_regular
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, Wanted
from pinwarden.system.target import Address

MAX_BYTES = FetchLimits().file_bytes
_CHUNK = 1 << 20
_GONE = (404, 410)


class TakenIn(Record):
    """A private copy of a file, which nobody changes between the moment it is hashed and the moment it is read."""

    path: Path
    """It is there as long as the block lasts."""
    file: ArtifactFile


@contextmanager
def taken_in(
    package: PackageName, fetcher: Fetcher, endpoint: Endpoint | None, *, into: Path | None
) -> Iterator[TakenIn | None]:
    """The file that a package is; None if there is none. When the block ends well, it is in ``into``."""
    if not is_address(package.name):
        with _copied(Path(package.name), into) as copy:
            yield copy
        return
    address = Address.parse(package.name)
    wanted = Wanted(endpoint=endpoint or endpoint_of(package.name), url=package.name)
    with ExitStack() as stack:
        try:
            download = stack.enter_context(downloaded(fetcher, wanted, algorithms=("sha256",), into=into))
        except PinwardenError as err:
            if err.code != "FETCH_FAILED" or err.data.get("status") not in _GONE:
                raise
            download = None
        if download is None:
            yield None
            return
        received = download.received
        host = None if received.address.host == address.host else received.address.host_header
        name = unquote(address.path.partition("?")[0]).rpartition("/")[2] or "file"
        file = ArtifactFile(name=name, size=received.size, digests=received.digests, host=host)
        yield TakenIn(path=Path(download.stream.name), file=file)


def is_address(name: str) -> bool:
    """Whether a name is an address and not a path."""
    return name.lower().startswith(("https://", "http://"))


def endpoint_of(url: str) -> Endpoint:
    """The folder that a file's address lies in. Whoever wrote the address is not the user, so it must be public."""
    address = Address.parse(url)
    folder = address.path.partition("?")[0].rpartition("/")[0]
    return Endpoint(url=f"{address.scheme}://{address.host_header}{folder}/", said_by="project")


def registry_of(name: str) -> str:
    """Where a file was taken from, for people and without keys."""
    return str(Address.parse(name)) if is_address(name) else name


@contextmanager
def _copied(path: Path, into: Path | None) -> Iterator[TakenIn | None]:
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
                        if size > MAX_BYTES:
                            raise PinwardenError("FILE_UNREADABLE", f"{path} is larger than {MAX_BYTES} bytes")
                        hasher.update(data)
                        temporary.write(data)
                temporary.flush()
                digest = Digest(hasher.digest())
                yield TakenIn(path=copy, file=ArtifactFile(name=path.name, size=size, digests=(digest,)))
                if into is not None:
                    copy.replace(into / digest.hex)
            finally:
                copy.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"a copy of {path} could not be kept: {err.strerror or err}") from err
