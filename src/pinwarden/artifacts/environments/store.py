"""The store of verified files and built environments, by content.

``files/<sha256>`` holds archives whose bytes were checked when they came in and are checked again before they are used.
``environments/<key>`` holds what was unpacked from them, ``images/<digest>`` layouts of images. An environment
is built under a name of its own and takes its place in one step, while an exclusive lock holds off every other builder
of the same one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.lock_store import exclusive
from pinwarden.system.files import file_digest, read_file, write_atomically

BUILD_SECONDS = 900.0
"""How long another process may take to build what this one waits for."""


class Store:
    """One folder, shared by all projects of a user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, digest: Digest) -> Path | None:
        """The file with these bytes, which are looked at anew; a damaged one is removed and not there."""
        place = self._file(digest)
        if not place.is_file() or place.is_symlink():
            return None
        if file_digest(place) == digest:
            return place
        with suppress(OSError):
            place.unlink()
        return None

    def has(self, digest: Digest) -> bool:
        """Whether a file of that name is there; its bytes are looked at when it is used."""
        return self._file(digest).is_file()

    @contextmanager
    def incoming(self) -> Iterator[BinaryIO]:
        """A new file to download into; ``keep`` puts it into the store, otherwise it is gone afterwards."""
        from secrets import token_hex

        place = self._folder("files") / f".incoming-{token_hex(16)}"
        try:
            with place.open("x+b") as stream:
                yield stream
        finally:
            place.unlink(missing_ok=True)

    def keep(self, stream: BinaryIO, digest: Digest) -> Path:
        """Put a whole file into the store under the digest that its bytes were found to have."""
        stream.flush()  # and no more: what a power failure leaves of it is found out before it is used
        os.fchmod(stream.fileno(), 0o444)
        place = self._file(digest)
        try:
            Path(stream.name).replace(place)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{place}: {err.strerror or err}") from err
        return place

    def keep_copy(self, file: Path, digest: Digest) -> Path:
        """Put a copy of a file into the store, whose bytes must be those of the digest."""
        from shutil import copyfileobj

        with self.incoming() as stream:
            try:
                with file.open("rb") as source:
                    copyfileobj(source, stream)
            except OSError as err:
                raise PinwardenError("FILE_UNREADABLE", f"{file}: {err.strerror or err}") from err
            self.keep(stream, digest)
        found = self.find(digest)
        if found is None:
            raise PinwardenError("ARTIFACT_MISMATCH", f"{file.name} changed while it was copied")
        return found

    def note_content(self, digest: Digest, tree: Digest) -> None:
        """Remember what unpacks from a file, for platforms that were not there when it was locked."""
        write_atomically(self._folder("contents") / digest.hex, f"{tree}\n".encode())

    def content(self, digest: Digest) -> Digest | None:
        """What unpacks from a file, if it was noted."""
        place = self.root / "contents" / digest.hex
        return Digest.parse(read_file(place, 1000).decode("ascii", "replace").strip()) if place.is_file() else None

    def note_made_here(self, key: str, digest: Digest) -> None:
        """Remember the digest of what was made while an environment was built, which no lock has."""
        write_atomically(self._folder("made-here") / key, f"{digest}\n".encode())

    def made_here(self, key: str) -> Digest | None:
        """The digest of what was made while an environment was built; None if there is no valid record."""
        try:
            return Digest.parse(read_file(self.root / "made-here" / key, 1000).decode("ascii", "replace").strip())
        except PinwardenError:
            return None  # the environment is built again

    def environment(self, key: str) -> Path:
        """Where an environment is, or would be."""
        return self.root / "environments" / key

    def image_folder(self, digest: Digest) -> Path:
        """Where the layout of a container image is, or would be."""
        return self.root / "images" / f"{digest.algorithm}-{digest.hex}"

    @contextmanager
    def image(self, digest: Digest) -> Iterator[Path]:
        """The same, while nobody else makes it."""
        folder = self._folder("images")
        with exclusive(folder / f"{digest.hex}.build", BUILD_SECONDS):
            yield self.image_folder(digest)

    def build(self, key: str, make: Callable[[Path], None], *, good: Callable[[Path], bool]) -> Path:
        """The environment of that key; if it is not there or not good any more, it is made.

        Several processes may ask at once: one makes it, the others wait and take what it made.
        """
        from tempfile import mkdtemp

        place = self.environment(key)
        folder = self._folder("environments")
        with exclusive(folder / f"{key}.build", BUILD_SECONDS):
            for left in folder.glob(f".building-{key}-*"):  # of a builder that was killed
                remove_tree(left)
            if place.exists() and good(place):
                return place
            fresh = Path(mkdtemp(dir=folder, prefix=f".building-{key}-"))
            try:
                make(fresh)
                if place.exists():
                    aside = folder / f".building-{key}-old"
                    place.rename(aside)
                    fresh.rename(place)
                    remove_tree(aside)
                else:
                    fresh.rename(place)
            except OSError as err:
                raise PinwardenError("FILE_UNWRITABLE", f"{place}: {err.strerror or err}") from err
            finally:
                remove_tree(fresh)
        return place

    def _file(self, digest: Digest) -> Path:
        if digest.algorithm != "sha256":
            raise PinwardenError("DIGEST_INVALID", f"the store knows files by SHA-256, not by {digest.algorithm}")
        return self.root / "files" / digest.hex

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = folder.stat()
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
        if hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise PinwardenError(
                "STORE_UNSAFE",
                f"{folder} belongs to another user, or others may write to it",
                data={"path": str(folder)},
            )
        return folder


def remove_tree(folder: Path) -> None:
    """Remove a folder of which parts may be read-only."""
    import shutil

    def try_again(function: Callable[[str], object], path: str, _: object) -> None:
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            function(path)

    if folder.is_symlink() or folder.is_file():
        folder.unlink(missing_ok=True)
    elif folder.exists():
        shutil.rmtree(folder, onerror=try_again)
