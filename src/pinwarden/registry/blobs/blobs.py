"""Archives by their CID, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from pinwarden.core.cid import blob_cid
from pinwarden.core.errors import PinwardenError


class Blobs(ABC):
    """A store of bytes by their CID. What comes out is checked against the CID, whoever keeps it."""

    def put(self, data: bytes) -> str:
        """Keep bytes, and return their CID."""
        cid = str(blob_cid(data))
        if not self._is_whole(cid, len(data)):
            self._put(cid, data)
        return cid

    def _is_whole(self, cid: str, size: int) -> bool:
        """Whether the bytes are here and undamaged; what is damaged is written anew by whoever sends it again."""
        try:
            return self.has(cid) and self.get(cid, size) is not None
        except PinwardenError as err:
            if err.code in ("DATABASE_CORRUPT", "FILE_UNREADABLE"):
                return False
            raise

    def get(self, cid: str, max_bytes: int) -> bytes | None:
        """The bytes of a CID; None if they are not here."""
        data = self._get(cid, max_bytes)
        if data is not None and str(blob_cid(data)) != cid:
            raise PinwardenError("DATABASE_CORRUPT", f"the store of archives has other bytes under {cid}")
        return data

    def file_of(self, cid: str) -> Path | None:  # noqa: ARG002 - only a folder has one
        """The file that holds the bytes, where they are in one; to be sent without taking them into memory."""
        return None

    def close(self) -> None:  # noqa: B027 - a folder has nothing to close
        """Let go of connections."""

    @abstractmethod
    def has(self, cid: str) -> bool:
        """Whether the bytes are here."""

    @abstractmethod
    def _put(self, cid: str, data: bytes) -> None: ...
    @abstractmethod
    def _get(self, cid: str, max_bytes: int) -> bytes | None: ...
