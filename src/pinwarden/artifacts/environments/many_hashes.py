"""The SHA-256 of thousands of small files, by several processes where there are many files and processors.

Threads would wait for each other: most of the work is Python's own. Forking a process that has threads is not safe, so
one that has any does all by itself.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Sequence

Hashed = tuple[bool, str]
"""Whether a file is executable, and the SHA-256 of its bytes in hex."""

_CHUNK = 1 << 20
_MOST_WORKERS = 4  # more of them wait for the same disk
_WORTH_A_WORKER = 500  # files; starting a process takes as long as hashing a hundred
_OWN_WORK = 7  # finding so many files takes as long as hashing one, which is what is done while others hash already


class Hashing:
    """Files below a folder, most of which other processes begin to hash at once."""

    def __init__(self, root: str, paths: Sequence[str]) -> None:
        self._root = root
        count, workers = len(paths), 1
        if hasattr(os, "fork") and threading.active_count() == 1:
            workers = max(1, min(_MOST_WORKERS, os.cpu_count() or 1, count // _WORTH_A_WORKER))
        others = workers - 1
        own = (count - others * count // _OWN_WORK) // workers if others else count
        self._own = paths[:own]
        size = -(-(count - own) // max(1, others))
        parts = [paths[place : place + size] for place in range(own, count, size)] if others else []
        self._others = [(part, *_start_worker(root, part)) for part in parts]

    def result(self) -> list[Hashed]:
        """What was found, in the order of the files."""
        try:
            found = _hash_some(self._root, self._own)
            while self._others:
                part, number, reader = self._others.pop(0)
                found += _result_of(number, reader) or _hash_some(self._root, part)
            return found
        finally:
            self.stop()

    def stop(self) -> None:
        """Nobody wants to know any more."""
        while self._others:
            _, number, reader = self._others.pop()
            os.close(reader)
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


def _start_worker(root: str, paths: Sequence[str]) -> tuple[int, int]:
    """Another process that hashes files and writes down what it found, and where to read that."""
    reader, writer = os.pipe()
    number = os.fork()
    if number:
        os.close(writer)
        return number, reader
    try:
        with os.fdopen(writer, "wb") as stream:
            stream.write("\n".join(f"{run:d}{digest}" for run, digest in _hash_some(root, paths)).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001  whatever it is, the parent meets it too and says so
        os._exit(1)


def _result_of(number: int, reader: int) -> list[Hashed] | None:
    with os.fdopen(reader, "rb") as stream:
        lines = stream.read().decode().split("\n")
    _, status = os.waitpid(number, 0)
    return [(line[0] == "1", line[1:]) for line in lines] if status == 0 else None


def _hash_some(root: str, paths: Sequence[str]) -> list[Hashed]:
    buffer = bytearray(_CHUNK)  # one for all files: a fresh one for each takes more time than reading and hashing
    folder = os.open(root, os.O_RDONLY)
    try:
        return [_hashed(path, folder, buffer) for path in paths]
    finally:
        os.close(folder)


def _hashed(path: str, folder: int, buffer: bytearray) -> Hashed:
    # A planted pipe would make it wait. From the folder on, there is less of a path to look up.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        about = os.fstat(descriptor)
        view = memoryview(buffer)
        size = os.readv(descriptor, [buffer])
        hasher = hashlib.sha256(view[:size])
        left = about.st_size - size
        while size and left > 0:
            size = os.readv(descriptor, [buffer])
            hasher.update(view[:size])
            left -= size
        return bool(about.st_mode & 0o111), hasher.hexdigest()
    finally:
        os.close(descriptor)
