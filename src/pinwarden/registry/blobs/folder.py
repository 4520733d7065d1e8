"""Archives as files of a folder, each named by its CID."""

from __future__ import annotations

from pathlib import Path

from pinwarden.core.cid import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.registry.blobs.blobs import Blobs
from pinwarden.system.files import read_file, write_atomically


class FolderBlobs(Blobs):
    """A folder of archives. Several processes may share it: a file appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, cid: str) -> bool:
        """Whether the file is there."""
        return self._path(cid).is_file()

    def file_of(self, cid: str) -> Path | None:
        """The file, if it is there."""
        return self._path(cid) if self.has(cid) else None

    def _put(self, cid: str, data: bytes) -> None:
        path = self._path(cid)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror}") from err
        write_atomically(path, data)

    def _get(self, cid: str, max_bytes: int) -> bytes | None:
        return read_file(self._path(cid), max_bytes) if self.has(cid) else None

    def _path(self, cid: str) -> Path:
        text = str(Cid.parse(cid))
        return self._folder / text[-2:] / text
