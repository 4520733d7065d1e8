"""The archive store of a registry: its interface, and the implementation that uses a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from pinwarden.core.digest import Cid, blob_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import read_file, write_atomically


class ArchiveStore(ABC):
    """Stores archives by CID. `get` verifies the bytes; a file at `find_path` is not verified."""

    def put(self, data: bytes) -> str:
        """Store an archive, and return its CID."""
        cid = str(blob_cid(data))
        if not self._is_intact(cid, len(data)):
            self._put(cid, data)
        return cid

    def _is_intact(self, cid: str, size: int) -> bool:
        """Whether the archive is stored and matches its CID. `put` replaces a damaged archive."""
        try:
            return self.has(cid) and self.get(cid, size) is not None
        except PinwardenError as err:
            if err.code in ("DATABASE_CORRUPT", "FILE_UNREADABLE"):
                return False
            raise

    def get(self, cid: str, max_bytes: int) -> bytes | None:
        """Return the archive with this CID; None if it is not stored. Raises if the stored bytes are damaged."""
        data = self._get(cid, max_bytes)
        if data is not None and str(blob_cid(data)) != cid:
            raise PinwardenError("DATABASE_CORRUPT", f"the stored archive {cid} does not match its CID")
        return data

    def find_path(self, cid: str) -> Path | None:  # noqa: ARG002 - only a folder has files
        """Return the path of an archive's file; None if the archive is not stored in a file."""
        return None

    def close(self) -> None:  # noqa: B027 - a folder has nothing to close
        """Close connections."""

    @abstractmethod
    def has(self, cid: str) -> bool:
        """Whether an archive with this CID is stored. Its bytes are not verified."""

    @abstractmethod
    def _put(self, cid: str, data: bytes) -> None: ...
    @abstractmethod
    def _get(self, cid: str, max_bytes: int) -> bytes | None: ...


class FolderArchiveStore(ArchiveStore):
    """Stores archives in a folder. Several processes may share it, because files are written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, cid: str) -> bool:
        """Whether the folder has the file of this archive."""
        return self._get_path(cid).is_file()

    def find_path(self, cid: str) -> Path | None:
        """Return the path of an archive's file; None if the archive is not stored."""
        return self._get_path(cid) if self.has(cid) else None

    def _put(self, cid: str, data: bytes) -> None:
        path = self._get_path(cid)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{path.parent} cannot be written: {err.strerror or err}") from err
        write_atomically(path, data)

    def _get(self, cid: str, max_bytes: int) -> bytes | None:
        return read_file(self._get_path(cid), max_bytes) if self.has(cid) else None

    def _get_path(self, cid: str) -> Path:
        text = str(Cid.parse(cid))
        return self.folder / text[-2:] / text
