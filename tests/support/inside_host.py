"""Runs in a network namespace: starts a program there, and forwards connections from a listener outside to its port.

Arguments: the descriptor of the listener, the port inside, a file for the program's process id, the program.
"""

from __future__ import annotations

import ctypes
import fcntl
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_PR_SET_PDEATHSIG = 1


def _start_loopback() -> None:
    with socket.socket() as any_socket, suppress(PermissionError):  # bubblewrap started it, and allows no change
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


def _forward(listener: socket.socket, port: int) -> None:
    while True:
        client, _ = listener.accept()
        try:
            program = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            continue
        for source, target in ((client, program), (program, client)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    descriptor, port, pid_file, *words = sys.argv[1:]
    _start_loopback()
    with subprocess.Popen(words, preexec_fn=_end_with_parent) as program:  # noqa: PLW1509 - no thread runs yet
        Path(pid_file).write_text(str(program.pid))
        listener = socket.socket(fileno=int(descriptor))
        threading.Thread(target=_forward, args=(listener, int(port)), daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: program.send_signal(received))
        return program.wait()


if __name__ == "__main__":
    sys.exit(main())
