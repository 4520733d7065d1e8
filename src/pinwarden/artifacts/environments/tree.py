"""The unpacked files of an environment, and the manifest that lists them with their digests.

The manifest has one section per package. The closure's ``tree`` digest covers a section's text, so a manifest that was
edited to match an edited file is detected too. Files that the build creates are in the section `BUILD_OUTPUT`, whose
digest is recorded in the store (`Store.read_build_output_digest`). That section may have only bytecode of locked
sources or, if install scripts were approved, files in the folders of their packages. The paths in a section named
after a folder of node_modules are relative to that folder.

Every start reads and hashes every file: about 4,000 in 30 ms on two processors. There is no shortcut by size and
modification time, because an attacker who can change a file can change those too.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from pinwarden.core.digest import Digest, TreeFile, format_file_list
from pinwarden.core.errors import PinwardenError

MANIFEST = "manifest"
TREE = "tree"
BUILD_OUTPUT = "build-output"
NODE_MODULES = "node_modules/"
_SECTION_MARK = b"# "


def write_file(tree: Path, path: str, data: bytes, *, executable: bool) -> TreeFile:
    """Write a file to the tree. The archive reader has checked its path already."""
    target = tree / path
    if ".." in Path(path).parts or not target.is_relative_to(tree):
        raise PinwardenError("ARCHIVE_UNSAFE", f"{path[:120]!a} leads outside its environment")
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o555 if executable else 0o444)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    return path, executable, hashlib.sha256(data).hexdigest()


def hash_tree(tree: Path) -> dict[str, TreeFile]:
    """Hash every file of a tree. Raises ``OSError`` for anything that is neither a file nor a folder."""
    root = str(tree)
    paths = _list_files(root)
    return _combine_hashes(paths, TreeHasher(root, paths))


def _combine_hashes(paths: Sequence[str], hashing: TreeHasher) -> dict[str, TreeFile]:
    return {path: (path, *file_hashes) for path, file_hashes in zip(paths, hashing.result(), strict=True)}


def _list_files(root: str) -> list[str]:
    """Return the paths below a folder of everything that is not a folder."""
    paths: list[str] = []
    pending = [root]
    skip = len(root) + 1
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    paths.append(entry.path[skip:])
    return paths


def write_manifest(folder: Path, sections: Mapping[str, Iterable[TreeFile]]) -> None:
    """Write the manifest, which lists the files of each section."""
    parts = [_SECTION_MARK + name.encode() + b"\n" + format_file_list(rows) for name, rows in sections.items()]
    (folder / MANIFEST).write_bytes(b"".join(parts))


Anchors = Mapping[str, frozenset[bytes]]
"""For each section of the manifest, the digests that its text may have."""


def audit_tree(
    folder: Path, anchors: Anchors, required: Iterable[str], *, script_folders: tuple[str, ...] = ()
) -> str | None:
    """Check a built tree. Returns the first problem, or None if the tree matches anchors and manifest.

    `make_build_output_anchor` returns the anchors for `BUILD_OUTPUT`. ``script_folders`` are the folders in which
    install scripts may have created or replaced files; without any, the build may have created only bytecode.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        expected, problem = _parse_manifest(
            text, anchors, frozenset(required), tuple(f"{path}/" for path in script_folders)
        )
        return problem or _find_difference(expected, str(folder / TREE))
    except (OSError, ValueError) as err:
        return f"it cannot be read: {getattr(err, 'strerror', None) or err}"


def _parse_manifest(
    text: bytes, anchors: Anchors, required: frozenset[str], script_folders: tuple[str, ...]
) -> tuple[dict[str, TreeFile], str | None]:
    expected: dict[str, TreeFile] = {}
    build_rows: dict[str, TreeFile] = {}
    sections = text.removeprefix(_SECTION_MARK).split(b"\n" + _SECTION_MARK) if text else []
    names: set[str] = set()
    for index, section in enumerate(sections):
        head, _, body = section.partition(b"\n")
        name = head.decode()
        rows = body if index == len(sections) - 1 or not body else body + b"\n"
        anchor = anchors.get(name)
        if name in names or anchor is None:
            return {}, f"its manifest names {name[:120]!a}, which does not belong to it"
        if hashlib.sha256(rows).digest() not in anchor:
            source = "recorded when it was built" if name == BUILD_OUTPUT else "locked"
            return {}, f"its manifest of {name[:120]!a} is not the one {source}"
        names.add(name)
        prefix = f"{name}/" if name.startswith(NODE_MODULES) else ""
        for line in rows.decode().split("\n")[:-1]:
            digest, flag, path = line.split(" ", 2)
            (build_rows if name == BUILD_OUTPUT else expected)[prefix + path] = (prefix + path, flag == "x", digest)
    if missing := required - names:
        return {}, f"its manifest lacks {min(missing)[:120]!a}"
    for row in build_rows.values():
        if not row[0].startswith(script_folders) if script_folders else not _is_bytecode(row, expected):
            return {}, f"{row[0][:120]!a} was not created by its build"
    return {**expected, **build_rows}, None


def make_build_output_anchor(digest: Digest | None) -> frozenset[bytes]:
    """Return the anchor for files created by a build, from the store's record."""
    return frozenset() if digest is None else frozenset([digest.raw])


def compute_build_output_digest(rows: Iterable[TreeFile]) -> Digest:
    """Return the digest that the store records for files created by a build."""
    return Digest.of_bytes(format_file_list(rows))


def _is_bytecode(row: TreeFile, locked: Mapping[str, TreeFile]) -> bool:
    """Whether a file is the bytecode of a locked source, at the path where Python looks for it."""
    path, executable, _ = row
    folder, _, name = path.rpartition("/")
    package, _, last = folder.rpartition("/")
    stem = name.removesuffix(f".{sys.implementation.cache_tag}.pyc")
    is_cached = last == "__pycache__" and stem != name and f"{package}/{stem}.py" in locked
    return is_cached and not executable and path not in locked


def _find_difference(expected: Mapping[str, TreeFile], root: str) -> str | None:
    """Return the first difference. Files are hashed in the background while the tree is searched for extra files."""
    paths = list(expected)
    hashing = TreeHasher(root, paths)
    try:
        if problem := _find_path_difference(expected.keys(), frozenset(_list_files(root))):
            return problem
        actual = _combine_hashes(paths, hashing)
        return (
            None
            if expected == actual
            else f"{min(path for path in paths if expected[path] != actual[path])} was changed"
        )
    finally:
        hashing.stop()


def _find_path_difference(expected: Set[str], actual: Set[str]) -> str | None:
    if expected == actual:
        return None
    path = min(expected ^ actual)
    return f"{path} is missing" if path in expected else f"{path} does not belong to it"


FileHash = tuple[bool, str]
"""Whether a file is executable, and its SHA-256 in hex."""
_CHUNK = 1 << 20
_MAX_WORKERS = 4  # more workers would wait for the same disk
_FILES_PER_WORKER = 500  # starting a process takes as long as hashing about 100 files
_FILES_LISTED_PER_HASH = (
    7  # listing this many files takes as long as hashing one, and this process lists while others hash
)


class TreeHasher:
    """Hashes files below a folder, most of them in forked processes that start immediately."""

    def __init__(self, root: str, paths: Sequence[str]) -> None:
        self._root = root
        count, workers = len(paths), 1
        if hasattr(os, "fork") and threading.active_count() == 1:
            workers = max(1, min(_MAX_WORKERS, os.cpu_count() or 1, count // _FILES_PER_WORKER))
        helper_count = workers - 1
        own_count = (count - helper_count * count // _FILES_LISTED_PER_HASH) // workers if helper_count else count
        self._own_paths = paths[:own_count]
        size = -(-(count - own_count) // max(1, helper_count))
        parts = [paths[start : start + size] for start in range(own_count, count, size)] if helper_count else []
        self._workers = [(part, *_start_worker(root, part)) for part in parts]

    def result(self) -> list[FileHash]:
        """Return the hashes, in the order of the paths."""
        try:
            file_hashes = _hash_files(self._root, self._own_paths)
            while self._workers:
                part, pid, reader = self._workers.pop(0)
                file_hashes += _read_worker_result(pid, reader) or _hash_files(self._root, part)
            return file_hashes
        finally:
            self.stop()

    def stop(self) -> None:
        """Kill the processes that are still hashing."""
        while self._workers:
            _, pid, reader = self._workers.pop()
            os.close(reader)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _start_worker(root: str, paths: Sequence[str]) -> tuple[int, int]:
    """Fork a process that hashes files. Returns its pid and the pipe with its results."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        with os.fdopen(writer, "wb") as stream:
            stream.write("\n".join(f"{run:d}{digest}" for run, digest in _hash_files(root, paths)).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001  the parent hashes these files itself and reports the error
        os._exit(1)


def _read_worker_result(pid: int, reader: int) -> list[FileHash] | None:
    with os.fdopen(reader, "rb") as stream:
        lines = stream.read().decode().split("\n")
    _, status = os.waitpid(pid, 0)
    return [(line[0] == "1", line[1:]) for line in lines] if status == 0 else None


def _hash_files(root: str, paths: Sequence[str]) -> list[FileHash]:
    buffer = bytearray(_CHUNK)  # for all files, because allocating it takes longer than hashing a file
    folder = os.open(root, os.O_RDONLY)
    try:
        return [_hash_file(path, folder, buffer) for path in paths]
    finally:
        os.close(folder)


def _hash_file(path: str, folder: int, buffer: bytearray) -> FileHash:
    # O_NONBLOCK: a named pipe must not block. Opening relative to the folder saves path lookups.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        view = memoryview(buffer)
        size = os.readv(descriptor, [buffer])
        hasher = hashlib.sha256(view[:size])
        remaining = status.st_size - size
        while size and remaining > 0:
            size = os.readv(descriptor, [buffer])
            hasher.update(view[:size])
            remaining -= size
        return bool(status.st_mode & 0o111), hasher.hexdigest()
    finally:
        os.close(descriptor)
