"""An unpacked tree and its manifest: which files belong to it, and whether they are what they were.

The manifest has one section per package. A section's text is what the closure's ``tree`` digest covers, so a manifest
that was changed to fit a changed file is found out as well. The section of files that were made here (bytecode) has no
such anchor, is allowed only where something is made, and never speaks for a locked file, but for those of a package
whose install scripts were approved. A section named by a folder of node_modules has its paths below that folder.

Every start reads and hashes every file: about four thousand of them in 50 ms on two processors. There is no quicker
check by size and time, because whoever can change a file can change those too.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.documents.artifacts.closure import tree_text

MANIFEST = "manifest"
TREE = "tree"
MADE_HERE = "made-here"
NODE_MODULES = "node_modules/"
_CHUNK = 1 << 20
_MOST_WORKERS = 4  # more of them wait for the same disk
_WORTH_A_WORKER = 500  # files; starting a process takes as long as hashing a hundred
_MARK = b"# "

Row = tuple[str, bool, str]
"""Path, whether it is executable, SHA-256 in hex."""


def write_file(tree: Path, path: str, data: bytes, *, executable: bool) -> Row:
    """Put a file into the tree. Its path was checked when its archive was read."""
    place = tree / path
    if ".." in Path(path).parts or not place.is_relative_to(tree):
        raise PinwardenError("ARCHIVE_UNSAFE", f"{path[:120]!a} leads out of its environment")
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o555 if executable else 0o444)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    return path, executable, hashlib.sha256(data).hexdigest()


def rows_in(tree: Path) -> dict[str, Row]:
    """Every file of a tree as it is now, by path. Anything that is neither file nor folder is an error."""
    root = str(tree)
    paths = _files_below(root)
    skip = len(root) + 1
    return {path[skip:]: (path[skip:], *found) for path, found in zip(paths, _hash_all(paths), strict=True)}


def _files_below(root: str) -> list[str]:
    found: list[str] = []
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                (pending if entry.is_dir(follow_symlinks=False) else found).append(entry.path)
    return found


Hashed = tuple[bool, str]
"""Whether a file is executable, and the SHA-256 of its bytes in hex."""


def _hash_all(paths: Sequence[str]) -> list[Hashed]:
    """The files in their order, by several processes where there are many files and processors.

    Threads would wait for each other: most of the work is Python's own. Forking a process that has threads is not
    safe, so one that has any does all by itself.
    """
    workers = min(_MOST_WORKERS, os.cpu_count() or 1, len(paths) // _WORTH_A_WORKER)
    if workers < 2 or not hasattr(os, "fork") or threading.active_count() > 1:
        return _hash_some(paths)
    size = -(-len(paths) // workers)
    parts = [paths[place : place + size] for place in range(0, len(paths), size)]
    started = [_start_worker(part) for part in parts[1:]]
    found = _hash_some(parts[0])
    for part, (number, reader) in zip(parts[1:], started, strict=True):
        found += _result_of(number, reader) or _hash_some(part)
    return found


def _start_worker(paths: Sequence[str]) -> tuple[int, int]:
    """Another process that hashes files and writes down what it found, and where to read that."""
    reader, writer = os.pipe()
    number = os.fork()
    if number:
        os.close(writer)
        return number, reader
    try:
        with os.fdopen(writer, "wb") as stream:
            stream.write("\n".join(f"{run:d}{digest}" for run, digest in _hash_some(paths)).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001  whatever it is, the parent meets it too and says so
        os._exit(1)


def _result_of(number: int, reader: int) -> list[Hashed] | None:
    with os.fdopen(reader, "rb") as stream:
        lines = stream.read().decode().split("\n")
    _, status = os.waitpid(number, 0)
    return [(line[0] == "1", line[1:]) for line in lines] if status == 0 else None


def _hash_some(paths: Sequence[str]) -> list[Hashed]:
    buffer = bytearray(_CHUNK)  # one for all files: a fresh one for each takes more time than reading and hashing
    return [_hashed(path, buffer) for path in paths]


def _hashed(path: str, buffer: bytearray) -> Hashed:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a planted pipe would make it wait
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


def write_manifest(folder: Path, sections: Mapping[str, Iterable[Row]]) -> None:
    """Write down what belongs to the tree, by the name of each section."""
    parts = [_MARK + name.encode() + b"\n" + tree_text(rows) for name, rows in sections.items()]
    (folder / MANIFEST).write_bytes(b"".join(parts))


Anchors = Mapping[str, frozenset[bytes]]
"""For each section that a manifest may have, the digests that its text may have."""


def problem_of(folder: Path, anchors: Anchors, needed: Iterable[str], *, rewritten: tuple[str, ...] = ()) -> str | None:
    """What is wrong with a built tree, None if it is exactly what the anchors and its manifest say.

    ``rewritten`` are the folders in which something was made that may stand for what was locked.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        wanted, problem = _read_manifest(text, anchors, frozenset(needed), tuple(f"{each}/" for each in rewritten))
        return problem or _difference(wanted, rows_in(folder / TREE))
    except (OSError, ValueError) as err:
        return f"it cannot be read: {getattr(err, 'strerror', None) or err}"


def _read_manifest(
    text: bytes, anchors: Anchors, needed: frozenset[str], rewritten: tuple[str, ...]
) -> tuple[dict[str, Row], str | None]:
    wanted: dict[str, Row] = {}
    made: dict[str, Row] = {}
    sections = text.removeprefix(_MARK).split(b"\n" + _MARK) if text else []
    names: set[str] = set()
    for index, section in enumerate(sections):
        head, _, body = section.partition(b"\n")
        name = head.decode()
        rows = body if index == len(sections) - 1 or not body else body + b"\n"
        anchor = anchors.get(name)
        if name in names or (anchor is None and (name != MADE_HERE or name not in needed)):
            return {}, f"its manifest names {name[:120]!a}, which does not belong to it"
        if anchor is not None and hashlib.sha256(rows).digest() not in anchor:
            return {}, f"its manifest of {name[:120]!a} is not what was locked"
        names.add(name)
        place = f"{name}/" if name.startswith(NODE_MODULES) else ""
        for line in rows.decode().split("\n")[:-1]:
            digest, mark, path = line.split(" ", 2)
            (wanted if anchor is not None else made)[place + path] = (place + path, mark == "x", digest)
    if missing := needed - names:
        return {}, f"its manifest lacks {min(missing)[:120]!a}"
    for path in made:
        if not path.startswith(rewritten) if rewritten else path in wanted:
            return {}, f"its manifest speaks of {path[:120]!a} where it may not"
    return {**wanted, **made}, None


def _difference(wanted: Mapping[str, Row], found: Mapping[str, Row]) -> str | None:
    if wanted == found:
        return None
    for path in sorted(wanted.keys() | found.keys()):
        if path not in found:
            return f"{path} is missing"
        if path not in wanted:
            return f"{path} does not belong to it"
        if wanted[path] != found[path]:
            return f"{path} was changed"
    return None
