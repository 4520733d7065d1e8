"""A minimal file server on loopback, so that a benchmark measures the client.

``python -m benchmarks.file_server FOLDER`` prints its port and serves until its input ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from socket import create_server, socket
from threading import Thread


def _serve(connection: socket, folder: Path) -> None:
    with connection, connection.makefile("rb") as lines:
        while request := lines.readline():
            while lines.readline() not in (b"\r\n", b""):
                pass
            file = folder / Path(request.split()[1].decode()).name
            with file.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
                connection.sendfile(stream)


def main(folder: Path) -> None:
    listener = create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            Thread(target=_serve, args=(connection, folder), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
