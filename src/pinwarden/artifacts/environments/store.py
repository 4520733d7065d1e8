"""A content-addressed store of verified files and built environments, shared by all projects of a user.

``files/<sha256>`` contains archives, hashed on arrival and again before every use. ``environments/<key>`` contains the
trees unpacked from them, ``images/<digest>`` image layouts. An environment is built under a temporary name
and renamed when it is complete; an exclusive lock keeps other processes from building the same one.
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
from pinwarden.system.files import file_digest, hold_write_lock, read_file, write_atomically

BUILD_SECONDS = 900.0
"""How long to wait for another process that builds the same environment."""


class Store:
    """The store in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, digest: Digest) -> Path | None:
        """Return the file with this digest after hashing it again. Deletes a damaged file and returns None."""
        path = self._get_file_path(digest)
        if not path.is_file() or path.is_symlink():
            return None
        if file_digest(path) == digest:
            return path
        with suppress(OSError):
            path.unlink()
        return None

    def has(self, digest: Digest) -> bool:
        """Whether the store has a file for this digest. Its bytes are verified when it is used."""
        return self._get_file_path(digest).is_file()

    @contextmanager
    def open_incoming(self) -> Iterator[BinaryIO]:
        """Create a temporary file, which is deleted when the block ends unless ``add_file`` moved it into the store."""
        from secrets import token_hex

        path = self._prepare_folder("files") / f".incoming-{token_hex(16)}"
        try:
            with path.open("x+b") as stream:
                yield stream
        finally:
            path.unlink(missing_ok=True)

    def add_file(self, stream: BinaryIO, digest: Digest) -> Path:
        """Move a complete file into the store under the digest that was computed from its bytes."""
        stream.flush()  # no fsync: damage after a power failure is detected before use
        os.fchmod(stream.fileno(), 0o444)
        path = self._get_file_path(digest)
        try:
            Path(stream.name).replace(path)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"cannot write {path}: {err.strerror or err}") from err
        return path

    def add_copy(self, file: Path, digest: Digest) -> Path:
        """Copy a file into the store. Raises ``ARTIFACT_MISMATCH`` if it does not have the digest."""
        from shutil import copyfileobj

        with self.open_incoming() as stream:
            try:
                with file.open("rb") as source:
                    copyfileobj(source, stream)
            except OSError as err:
                raise PinwardenError("FILE_UNREADABLE", f"cannot copy {file}: {err.strerror or err}") from err
            self.add_file(stream, digest)
        stored = self.find(digest)
        if stored is None:
            raise PinwardenError("ARTIFACT_MISMATCH", f"{file.name} changed while it was copied")
        return stored

    def record_tree_digest(self, digest: Digest, tree: Digest) -> None:
        """Record the tree digest of an archive, for platforms that were unknown when it was locked."""
        write_atomically(self._prepare_folder("contents") / digest.hex, f"{tree}\n".encode())

    def read_tree_digest(self, digest: Digest) -> Digest | None:
        """Return the recorded tree digest of an archive, if any."""
        path = self.root / "contents" / digest.hex
        return Digest.parse(read_file(path, 1000).decode("ascii", "replace").strip()) if path.is_file() else None

    def record_build_output_digest(self, key: str, digest: Digest) -> None:
        """Record the digest of the files that a build created, which the lock does not pin.

        These are bytecode and the output of install scripts.
        """
        write_atomically(self._prepare_folder("build-output") / key, f"{digest}\n".encode())

    def read_build_output_digest(self, key: str) -> Digest | None:
        """Return the recorded digest of files that a build created; None if there is no valid record."""
        try:
            return Digest.parse(read_file(self.root / "build-output" / key, 1000).decode("ascii", "replace").strip())
        except PinwardenError:
            return None  # the environment will be rebuilt

    def get_environment_folder(self, key: str) -> Path:
        """Return the folder of an environment, which may not exist yet."""
        return self.root / "environments" / key

    def get_image_folder(self, digest: Digest) -> Path:
        """Return the folder of an image layout, which may not exist yet."""
        return self.root / "images" / f"{digest.algorithm}-{digest.hex}"

    @contextmanager
    def lock_image_folder(self, digest: Digest) -> Iterator[Path]:
        """Lock the folder of an image layout against other processes until the block ends. Yields the folder."""
        folder = self._prepare_folder("images")
        with hold_write_lock(folder / f"{digest.hex}.build", BUILD_SECONDS):
            yield self.get_image_folder(digest)

    def build_environment(
        self, key: str, build_into: Callable[[Path], None], *, is_intact: Callable[[Path], bool]
    ) -> Path:
        """Return the environment with this key. If it is missing or damaged, build it with ``build_into``.

        If several processes need it, one builds it and the others wait.
        """
        from tempfile import mkdtemp

        environment = self.get_environment_folder(key)
        folder = self._prepare_folder("environments")
        with hold_write_lock(folder / f"{key}.build", BUILD_SECONDS):
            for leftover in folder.glob(f".building-{key}-*"):  # from a builder that was killed
                remove_tree(leftover)
            if environment.exists() and is_intact(environment):
                return environment
            building = Path(mkdtemp(dir=folder, prefix=f".building-{key}-"))
            try:
                build_into(building)
                if environment.exists():
                    old = folder / f".building-{key}-old"
                    environment.rename(old)
                    building.rename(environment)
                    remove_tree(old)
                else:
                    building.rename(environment)
            except OSError as err:
                raise PinwardenError("FILE_UNWRITABLE", f"cannot write {environment}: {err.strerror or err}") from err
            finally:
                remove_tree(building)
        return environment

    def _get_file_path(self, digest: Digest) -> Path:
        if digest.algorithm != "sha256":
            raise PinwardenError("DIGEST_INVALID", f"the store identifies files by sha256, not {digest.algorithm}")
        return self.root / "files" / digest.hex

    def _prepare_folder(self, name: str) -> Path:
        folder = self.root / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"cannot create {folder}: {err.strerror or err}") from err
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise PinwardenError(
                "STORE_UNSAFE",
                f"{folder} belongs to another user or is writable by others",
                data={"path": str(folder)},
            )
        return folder


def remove_tree(folder: Path) -> None:
    """Delete a folder, even if parts of it are read-only."""
    import shutil

    def retry(function: Callable[[str], object], path: str, _: object) -> None:
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            function(path)

    if folder.is_symlink() or folder.is_file():
        folder.unlink(missing_ok=True)
    elif folder.exists():
        shutil.rmtree(folder, onerror=retry)
