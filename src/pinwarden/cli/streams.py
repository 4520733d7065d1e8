"""The three standard streams, made fit before anything is read or written.

A program may be started without some of them, or with an encoding that cannot hold what a server is called; neither
may stop a gate or change its verdict.
"""

from __future__ import annotations

import io
import os
import sys


def make_fit() -> None:
    """Give every stream a place, and a way to write characters that its encoding does not have."""
    # Lowest first: a descriptor that is left open would be taken by the next file, and output would go into that.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """A sentence for people on standard error, whatever names of servers and files are in it."""
    from contextlib import suppress

    from pinwarden.core.visible import inert_in_log, show_invisible

    line = inert_in_log(f"pinwarden: {show_invisible(text)}\n")
    with suppress(OSError):  # and past Python's buffer, whose lock would hold up our end if nobody reads
        os.write(2, line.encode("utf-8", "backslashreplace"))


def silence_stdout() -> None:
    """Lead stdout to nowhere: writing again at exit would only repeat the failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_left(descriptor: int, seconds: float) -> bool:
    """Wait so long; whether the other end of a pipe was closed meanwhile. Without it a writer learns that too late."""
    try:
        from select import poll
    except ImportError:  # not on Windows
        import time

        time.sleep(seconds)
        return False
    ends = poll()
    ends.register(descriptor, 0)
    return bool(ends.poll(seconds * 1000))
