"""Programs that run as on hosts of their own: each in its own network namespace, reached through one forwarded port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.needs import missing

_INSIDE = Path(__file__).with_name("inside_host.py")


class NetworkHost:
    """A network namespace for one program, which listens on ``inner_port`` of the namespace's own loopback."""

    inner_port = 8642

    def __init__(self, launcher: Sequence[str], listener: socket.socket, folder: Path) -> None:
        self._launcher = tuple(launcher)
        self._listener = listener
        self._pid_file = folder / "pid"
        self.port: int = listener.getsockname()[1]
        """The port of the test's own loopback that reaches the program."""
        self.descriptors = (listener.fileno(),)

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that starts the program in the namespace. Its process must inherit ``descriptors``."""
        inside = (sys.executable, str(_INSIDE), str(self._listener.fileno()), str(self.inner_port), str(self._pid_file))
        return [*self._launcher, *inside, *words]

    def kill(self) -> None:
        """Kill the program with SIGKILL; what forwards to it goes on until the program's parent ends."""
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)


@contextmanager
def network_host() -> Iterator[NetworkHost]:
    """A host without any network but its own loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener, TemporaryDirectory() as folder:
        yield NetworkHost(_launcher(), listener, Path(folder))


def _launcher() -> tuple[str, ...]:
    for words in (("unshare", "-rn"), ("bwrap", "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent")):
        if (
            shutil.which(words[0])
            and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
        ):
            return words
    missing("a way to start a program in its own network namespace", "apt-get install bubblewrap")
