"""Stands before a server and keeps a copy of every byte that passes: ``python tap.py RECORD COMMAND…``.

What goes to the command is added to the file ``RECORD.up``, what comes from it to ``RECORD.down``. Bytes are copied
before they are passed on, so whoever has got something finds it in the file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import IO


def copy(source: int, record: IO[bytes], sink: int) -> None:
    """Copy until the source ends."""
    while chunk := os.read(source, 1 << 16):
        record.write(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(sink, rest) :]


def main() -> None:
    record, *command = sys.argv[1:]
    up, down = (Path(f"{record}.{way}").open("ab", buffering=0) for way in ("up", "down"))  # noqa: SIM115 - to the end
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def to_server() -> None:
        try:
            copy(0, up, stdin.fileno())
            stdin.close()
        except OSError:
            return  # it is gone already

    Thread(target=to_server, daemon=True).start()
    copy(stdout.fileno(), down, 1)
    os._exit(process.wait())  # the other thread may still wait for its client


if __name__ == "__main__":
    main()
