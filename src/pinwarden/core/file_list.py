"""The digest of a folder: path, executable bit and SHA-256 of each file, in a form that no other folder has.

The paths must not contain line feeds; `artifacts/archives/rules.py` refuses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pinwarden.core.digest import Digest

TreeFile = tuple[str, bool, str]
"""One file: its path, whether it is executable, and its SHA-256 in hex."""


def hash_file_list(rows: Iterable[TreeFile]) -> Digest:
    """Return the tree digest, which covers the path, the executable bit and the SHA-256 of each file."""
    return Digest(hashlib.sha256(format_file_list(rows)).digest())


def format_file_list(rows: Iterable[TreeFile]) -> bytes:
    """Format a list of files as one line per file, sorted by path. Tree digests are computed from this text."""
    lines = sorted((path, f"{digest} {'x' if executable else '-'} {path}\n") for path, executable, digest in rows)
    return "".join(line for _, line in lines).encode("utf-8", "strict")
