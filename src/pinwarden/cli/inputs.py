"""What commands read: a file, or standard input when the name is ``-``."""

from __future__ import annotations

import sys
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import DEFAULT_LIMITS
from pinwarden.system.files import read_file


def read_input(name: str) -> bytes:
    """The bytes of the named file or of standard input."""
    if name != "-":
        return read_file(Path(name))
    data = sys.stdin.buffer.read(DEFAULT_LIMITS.max_bytes + 1)
    if len(data) > DEFAULT_LIMITS.max_bytes:
        raise PinwardenError("FILE_UNREADABLE", f"standard input is larger than {DEFAULT_LIMITS.max_bytes} bytes")
    return data
