"""Checks that every file descriptor has one owner: no object closes a descriptor that it does not own any more."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop


class StrictLoop(uvloop.Loop):
    """A uvloop that detects objects that close a pipe again after the loop closed it.

    When the loop has closed a descriptor, this check opens another file under its number, as another thread could.
    Then it closes the pipe object, as the loop does. If that closes the new file, the number had two owners.
    """

    def __init__(self) -> None:
        super().__init__()
        self.other = Path(os.devnull).open("rb")  # noqa: SIM115  closed with the loop
        self.pipes = 0
        self.closes = 0
        self.checked = 0
        """Pipes whose descriptor number this check could reuse in time."""
        self.closed_twice: list[int] = []

    def close(self) -> None:
        super().close()
        self.other.close()

    async def connect_read_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        return await super().connect_read_pipe(protocol_factory, _Checked(self, pipe))

    async def connect_write_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        return await super().connect_write_pipe(protocol_factory, _Checked(self, pipe))


class _Checked:
    """A pipe that the loop reads or writes."""

    def __init__(self, loop: StrictLoop, pipe: Any) -> None:
        loop.pipes += 1
        self._loop = loop
        self._pipe = pipe
        self._number: int = pipe.fileno()

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        self._loop.closes += 1
        taken = fcntl.fcntl(self._loop.other.fileno(), fcntl.F_DUPFD_CLOEXEC, self._number)
        if taken != self._number:  # another thread was faster
            os.close(taken)
            self._pipe.close()
            return
        self._loop.checked += 1
        own = os.fstat(taken)
        self._pipe.close()
        try:
            same = os.path.samestat(own, os.fstat(taken))
        except OSError:
            same = False
        if same:
            os.close(taken)
        else:
            self._loop.closed_twice.append(taken)


def open_descriptors() -> dict[str, str]:
    """Return the open files of this process, by descriptor."""
    descriptors = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            descriptors[entry.name] = str(entry.readlink())
        except OSError:  # the listing itself, or another thread closed it
            continue
    return descriptors


class Churn:
    """Threads that use files and start processes, and notice when another owner disturbs one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self.turns = 0
        self.disturbed: list[str] = []

    def files(self, name: str) -> None:
        """Write and read files; each must stay open until it is closed here, and contain only what was written here."""
        path = self._folder / name
        turn = 0
        while not self._over.wait(0.001):
            turn += 1
            self.turns += 1
            mark = f"{name} {turn}\n".encode()
            try:
                opened = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), *os.pipe()]
                own = [os.fstat(descriptor) for descriptor in opened]
                os.write(opened[0], mark)
                os.write(opened[2], mark)
                read = os.pread(opened[0], 1000, 0), os.read(opened[1], 1000)
                if read != (mark, mark):
                    self.disturbed.append(f"{name}: {read!r} instead of {mark!r}")
                if [(status.st_dev, status.st_ino) for status in own] != [
                    (status.st_dev, status.st_ino) for status in map(os.fstat, opened)
                ]:
                    self.disturbed.append(f"{name}: a descriptor became another file")
                for descriptor in opened:
                    os.close(descriptor)
            except OSError as err:
                self.disturbed.append(f"{name}: {err}")

    def processes(self) -> None:
        """Start programs, and read their output."""
        while not self._over.wait(0.02):
            self.turns += 1
            try:
                done = subprocess.run(["/bin/echo", "here"], stdout=subprocess.PIPE, check=True, timeout=60)
                if done.stdout != b"here\n":
                    self.disturbed.append(f"a process printed {done.stdout!r}")
            except (OSError, subprocess.SubprocessError) as err:
                self.disturbed.append(f"a process: {err}")

    def stop(self) -> None:
        """End the threads."""
        self._over.set()


@contextmanager
def churning(folder: Path) -> Iterator[Churn]:
    """Open files and start processes in other threads until the block ends."""
    churn = Churn(folder)
    work = [threading.Thread(target=churn.files, args=(f"file-{number}",)) for number in range(3)]
    work.append(threading.Thread(target=churn.processes))
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)  # as `pinwarden gateway` sets it
    for thread in work:
        thread.start()
    try:
        yield churn
    finally:
        churn.stop()
        for thread in work:
            thread.join(60)
        sys.setswitchinterval(before)
