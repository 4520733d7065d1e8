"""An unpacked tree and its manifest: which files belong to it, and whether they are what they were.

The manifest has one section per package. A section's text is what the closure's ``tree`` digest covers, so a manifest
that was changed to fit a changed file is found out as well. The digest of the section of files that were made here is
in a record of the store (`Store.made_here`). That section may hold only bytecode whose source is locked, or, where
install scripts were approved, files of the packages that they belong to. A section named by a folder of node_modules
has its paths below that folder.

Every start reads and hashes every file: about four thousand of them in 30 ms on two processors. There is no quicker
check by size and time, because whoever can change a file can change those too.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from pinwarden.artifacts.environments.many_hashes import Hashing
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.closure import tree_text

MANIFEST = "manifest"
TREE = "tree"
MADE_HERE = "made-here"
NODE_MODULES = "node_modules/"
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
    return _rows(paths, Hashing(root, paths))


def _rows(paths: Sequence[str], hashing: Hashing) -> dict[str, Row]:
    return {path: (path, *found) for path, found in zip(paths, hashing.result(), strict=True)}


def _files_below(root: str) -> list[str]:
    """The paths below a folder of all that is no folder itself."""
    found: list[str] = []
    pending = [root]
    skip = len(root) + 1
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    found.append(entry.path[skip:])
    return found


def write_manifest(folder: Path, sections: Mapping[str, Iterable[Row]]) -> None:
    """Write down what belongs to the tree, by the name of each section."""
    parts = [_MARK + name.encode() + b"\n" + tree_text(rows) for name, rows in sections.items()]
    (folder / MANIFEST).write_bytes(b"".join(parts))


Anchors = Mapping[str, frozenset[bytes]]
"""For each section that a manifest may have, the digests that its text may have."""


def problem_of(folder: Path, anchors: Anchors, needed: Iterable[str], *, rewritten: tuple[str, ...] = ()) -> str | None:
    """What is wrong with a built tree, None if it is exactly what the anchors and its manifest say.

    The anchors of `MADE_HERE` are those of `made_here_anchor`. ``rewritten`` are the folders in which install scripts
    may have made or replaced files; without any, only bytecode may have been made.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        wanted, problem = _read_manifest(text, anchors, frozenset(needed), tuple(f"{each}/" for each in rewritten))
        return problem or _difference(wanted, str(folder / TREE))
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
        if name in names or anchor is None:
            return {}, f"its manifest names {name[:120]!a}, which does not belong to it"
        if hashlib.sha256(rows).digest() not in anchor:
            why = "what was recorded when it was built" if name == MADE_HERE else "what was locked"
            return {}, f"its manifest of {name[:120]!a} is not {why}"
        names.add(name)
        place = f"{name}/" if name.startswith(NODE_MODULES) else ""
        for line in rows.decode().split("\n")[:-1]:
            digest, mark, path = line.split(" ", 2)
            (made if name == MADE_HERE else wanted)[place + path] = (place + path, mark == "x", digest)
    if missing := needed - names:
        return {}, f"its manifest lacks {min(missing)[:120]!a}"
    for row in made.values():
        if not row[0].startswith(rewritten) if rewritten else not _is_bytecode(row, wanted):
            return {}, f"{row[0][:120]!a} was not made when it was built"
    return {**wanted, **made}, None


def made_here_anchor(recorded: Digest | None) -> frozenset[bytes]:
    """What the section of files that were made here may be, by the store's record."""
    return frozenset() if recorded is None else frozenset([recorded.raw])


def made_here_digest(rows: Iterable[Row]) -> Digest:
    """What the store records of files that were made here."""
    return Digest.of(tree_text(rows))


def _is_bytecode(row: Row, locked: Mapping[str, Row]) -> bool:
    """Whether a file is bytecode where Python looks for that of a locked source, and nowhere else."""
    path, executable, _ = row
    folder, _, name = path.rpartition("/")
    package, _, last = folder.rpartition("/")
    stem = name.removesuffix(f".{sys.implementation.cache_tag}.pyc")
    is_cached = last == "__pycache__" and stem != name and f"{package}/{stem}.py" in locked
    return is_cached and not executable and path not in locked


def _difference(wanted: Mapping[str, Row], root: str) -> str | None:
    """How a tree differs from what is wanted, which is hashed while we look whether anything else is there."""
    paths = list(wanted)
    hashing = Hashing(root, paths)
    try:
        if problem := _other_files(wanted.keys(), frozenset(_files_below(root))):
            return problem
        found = _rows(paths, hashing)
        return None if wanted == found else f"{min(path for path in paths if wanted[path] != found[path])} was changed"
    finally:
        hashing.stop()


def _other_files(wanted: Set[str], found: Set[str]) -> str | None:
    if wanted == found:
        return None
    path = min(wanted ^ found)
    return f"{path} is missing" if path in wanted else f"{path} does not belong to it"
