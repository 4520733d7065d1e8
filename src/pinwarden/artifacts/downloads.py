"""Downloaded files on their way: hashed while they come in, and kept under their own digest where that is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, cast

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.net.fetch import Fetcher, Received, Wanted


class Download(Record):
    """A file that was downloaded whole."""

    stream: IO[bytes]
    """Open for reading from its start, as long as the block lasts."""
    received: Received


@contextmanager
def downloaded(
    fetcher: Fetcher, wanted: Wanted, *, algorithms: tuple[str, ...], into: Path | None
) -> Iterator[Download]:
    """Fetch a file. When the block ends well it is in ``into``, named by its sha256 in hex; otherwise it is gone."""
    try:
        with NamedTemporaryFile(dir=into, prefix=".download-", delete=False) as temporary:
            path = Path(temporary.name)
            try:
                stream = cast("IO[bytes]", temporary)
                received = fetcher.download(wanted, stream, algorithms=algorithms)  # type: ignore[arg-type]
                stream.flush()
                stream.seek(0)
                yield Download(stream=stream, received=received)
                if into is not None:
                    named = next(each.hex for each in received.digests if each.algorithm == "sha256")
                    path.replace(into / named)
            finally:
                path.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"a download could not be kept: {err.strerror or err}") from err
