"""Running a server inside bubblewrap: the system read-only, private home and temporary folders, no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.probe_budget import probe_failed

# Programs and libraries. Of /etc only what programs need to start; the rest holds keys and passwords.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_SETTINGS = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("mime.types", "nsswitch.conf", "passwd", "pki", "ssl/certs", "ssl/openssl.cnf", "timezone"),
)
_HOME = "/home/sandbox"
_SCRATCH = ("/tmp", "/dev/shm", _HOME)  # noqa: S108  private ones
# Where root runs this, bubblewrap would leave every capability to the server, which could then mount the read-only
# folders anew and write to them; and the kernel lets root set it from within /proc, whatever capabilities it has.
_NO_PRIVILEGES = ("--cap-drop", "ALL")
_KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "scsi", "acpi", "fs")


class SandboxLimits(Record):
    """How much a sandboxed server may use, with the reason beside each. The kernel refuses what goes beyond."""

    memory_bytes: int = 4 * 1024**3
    """Of one process. As much as node's largest heap on most machines; address space that is only reserved is free."""
    processes: int = 512
    """With their threads. A browser with a dozen tabs stays below; a fork bomb does not. For root the kernel counts
    none, and before Linux 5.14 it would count everything that the user runs."""
    file_bytes: int = 4 * 1024**3
    """One file: a model, or a dump of a database."""
    open_files: int = 4096
    scratch_bytes: int = 1024**3
    """The private home, temporary folder and shared memory, each of which lies in memory."""
    cpu_seconds: int | None = None
    """Of one process. A server that runs for weeks may use hours."""
    nice: int = 0

    def to_argument(self) -> str:
        """As ``exec_guard.py`` reads them."""
        bounds = {
            "DATA": self.memory_bytes,
            "NPROC": self.processes,
            "FSIZE": self.file_bytes,
            "NOFILE": self.open_files,
            "CORE": 0,
            "CPU": self.cpu_seconds,
            "nice": self.nice,
        }
        return ",".join(f"{name}={most}" for name, most in bounds.items() if most is not None)


PROBE_SANDBOX_LIMITS = SandboxLimits(cpu_seconds=60, nice=5)
"""For a server that is only asked what it tells the model, which takes seconds."""


class Sandbox(Record):
    """What a sandboxed server may see besides the system: its program, its working folder, and these paths."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    """What stays read-only although it lies below something writable."""
    forbidden_names: tuple[str, ...] = ()
    """Names that must not appear anywhere below something writable (``write_guard.py``)."""
    allow_network: bool = False
    allow_programs: bool = True
    """Whether it may start programs. If not, the kernel refuses every one but the server itself (``exec_guard.py``)."""
    limits: SandboxLimits = SandboxLimits()


def sandboxed(command: tuple[str, ...], environment: dict[str, str], cwd: str | None, sandbox: Sandbox) -> list[str]:
    """The command line that runs the command in a sandbox. Its environment is given to bubblewrap as it is."""
    wrapper = shutil.which("bwrap")
    if wrapper is None:
        raise PinwardenError(
            "PROBE_FAILED",
            "the sandbox needs bubblewrap, which is not installed",
            hint="Run: apt-get install bubblewrap",
            data={"reason": "start"},
        )
    folder = str(Path(cwd or ".").resolve())
    line = [wrapper, "--die-with-parent", "--new-session", "--unshare-all", *_NO_PRIVILEGES]
    if sandbox.allow_network:
        line += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS)):
        line += ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path in _SCRATCH:
        line += [*_size(wrapper, sandbox.limits.scratch_bytes), "--tmpfs", path]
    line += ["--remount-ro", "/dev"]  # it lies in memory, too
    for name in _KERNEL:
        line += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    # The first process is bubblewrap's own, without the filter of the server, which could write to its memory.
    line += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    guard = _program("exec_guard.py")
    shown = [*_program_folders(command[0], environment, folder), *sandbox.readable]
    shown += [*_program_folders(guard[0], environment, folder), sys.base_prefix, guard[-1]]
    command = (*guard, sandbox.limits.to_argument(), "open" if sandbox.allow_programs else "filtered", *command)
    if folder in ("/", str(Path(environment.get("HOME", "/")).resolve())):
        folder = _HOME  # to show this one would be to show everything
    else:
        shown.append(folder)
    for path in shown:
        if not Path(path).exists():
            raise probe_failed("start", f"{path} is not there and cannot be shown to the sandbox")
        line += ["--ro-bind", path, path]
    for path in sandbox.writable:
        if not Path(path).exists():
            raise probe_failed("start", f"{path} is not there and cannot be shown to the sandbox")
        line += ["--bind", path, path]
    for path in _parents_of_read_only(sandbox.read_only, sandbox.writable):
        line += ["--bind", path, path]
    for path in sandbox.read_only:
        line += ["--ro-bind-try", path, path]
    line += ["--remount-ro", "/"]  # what holds all of these folders lies in memory, too, and has no bound
    line += ["--setenv", "HOME", _HOME, "--setenv", "TMPDIR", "/tmp", "--chdir", folder]  # noqa: S108
    line = [*line, "--", *command]
    if sandbox.writable and sandbox.forbidden_names:
        return [*_program("write_guard.py"), "/".join(sandbox.forbidden_names), *sandbox.writable, "--", *line]
    return line


def _parents_of_read_only(kept: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """The folders between what is writable and what is kept. Each is mounted by itself, because a folder can be renamed
    though something in it is mounted, and another put in its place; one that is a mount cannot."""
    between = {
        str(folder)
        for path in kept
        for folder in Path(path).parents
        if str(folder) not in writable and any(folder.is_relative_to(each) for each in writable)
    }
    return sorted(between)


@cache
def _size(wrapper: str, most: int) -> tuple[str, ...]:
    """How large a folder in memory may become; bubblewrap before 0.7 gives each half of the memory."""
    told = subprocess.run([wrapper, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout  # noqa: S603
    version = re.search(r"(\d+)\.(\d+)", told)
    known = version is not None and tuple(map(int, version.groups())) >= (0, 7)
    return ("--size", str(most)) if known else ()


def _program(name: str) -> tuple[str, ...]:
    """The command of one of the programs beside this file, which use nothing but the standard library."""
    own = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    return str(own), "-I", "-S", str(Path(__file__).with_name(name).resolve())


def _program_folders(program: str, environment: dict[str, str], folder: str) -> list[str]:
    """Where the program lies; for one of a Python virtual environment, all of that."""
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    path = Path(found) if found else Path(folder) / program
    if not path.exists():
        raise probe_failed("start", f"{program} could not be started: no such program")
    folders: list[str] = []
    for place in (path.absolute(), path.resolve()):
        if place.is_relative_to("/usr") or place.is_relative_to("/bin"):
            continue
        home = place.parent.parent
        folders.append(str(home if (home / "pyvenv.cfg").is_file() else place.parent))
    return folders
