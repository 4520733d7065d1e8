"""Run a server in a bubblewrap sandbox: read-only system, private home and temporary folders, no network."""

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
from pinwarden.system.probe_budget import probe_error

# Programs and libraries, and those files in /etc that programs need to start. Other files there are secrets.
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_ETC_NAMES = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("mime.types", "nsswitch.conf", "passwd", "pki", "ssl/certs", "ssl/openssl.cnf", "timezone"),
)
_HOME = "/home/sandbox"
_PRIVATE_FOLDERS = ("/tmp", "/dev/shm", _HOME)  # noqa: S108  private ones
# As root, bubblewrap would leave all capabilities to the server, which could then remount the read-only folders. Root
# can also change kernel settings in /proc without any capability.
_NO_PRIVILEGES = ("--cap-drop", "ALL")
_PROC_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "scsi", "acpi", "fs")


class SandboxLimits(Record):
    """Resource limits of a sandboxed server, each with its reason. The kernel enforces them."""

    memory_bytes: int = 4 * 1024**3
    """Per process. As much as node's largest heap on most machines. Reserved address space does not count."""
    processes: int = 512
    """Including threads. A browser with a dozen tabs stays below. The kernel does not count processes of root, and
    before Linux 5.14 it would count all processes of the user."""
    file_bytes: int = 4 * 1024**3
    """Per file, such as a model or a database dump."""
    open_files: int = 4096
    scratch_bytes: int = 1024**3
    """For each of the private home, temporary folder and shared memory, which are in memory."""
    cpu_seconds: int | None = None
    """Per process. None by default: a server that runs for weeks can use hours."""
    nice: int = 0

    def to_argument(self) -> str:
        """Return the limits as an argument of ``exec_guard.py``."""
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
"""For a probe, which takes seconds."""


class Sandbox(Record):
    """What a sandboxed server may access besides the system, its program and its working folder."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    """Paths that stay read-only inside writable folders."""
    forbidden_names: tuple[str, ...] = ()
    """Names that the server must not create in writable folders (``write_guard.py``)."""
    allow_network: bool = False
    allow_programs: bool = True
    """Whether the server may start other programs (``exec_guard.py``)."""
    limits: SandboxLimits = SandboxLimits()


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, without which nothing can be started in a sandbox; None if it is not installed."""
    return shutil.which("bwrap")


def build_sandbox_command(
    command: tuple[str, ...], environment: dict[str, str], cwd: str | None, sandbox: Sandbox
) -> list[str]:
    """Return the command line that runs a command in a sandbox. The caller starts it with ``environment``."""
    wrapper = find_bubblewrap()
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
    for path in (*_SYSTEM_FOLDERS, *(f"/etc/{name}" for name in _ETC_NAMES)):
        line += ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path in _PRIVATE_FOLDERS:
        line += [*_build_size_option(wrapper, sandbox.limits.scratch_bytes), "--tmpfs", path]
    line += ["--remount-ro", "/dev"]  # /dev is a tmpfs without a size limit
    for name in _PROC_SETTINGS:
        line += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    # Process 1 is bubblewrap's own and has no filter. The server must not write to its memory.
    line += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    guard = _build_guard_command("exec_guard.py")
    readable = [*_find_program_folders(command[0], environment, folder), *sandbox.readable]
    readable += [*_find_program_folders(guard[0], environment, folder), sys.base_prefix, guard[-1]]
    command = (*guard, sandbox.limits.to_argument(), "open" if sandbox.allow_programs else "filtered", *command)
    if folder in ("/", str(Path(environment.get("HOME", "/")).resolve())):
        folder = _HOME  # the sandbox must not contain all files, or the whole home folder
    else:
        readable.append(folder)
    for path in readable:
        if not Path(path).exists():
            raise probe_error("start", f"{path} does not exist, so the sandbox cannot contain it")
        line += ["--ro-bind", path, path]
    for path in sandbox.writable:
        if not Path(path).exists():
            raise probe_error("start", f"{path} does not exist, so the sandbox cannot contain it")
        line += ["--bind", path, path]
    for path in _find_parents_of_read_only(sandbox.read_only, sandbox.writable):
        line += ["--bind", path, path]
    for path in sandbox.read_only:
        line += ["--ro-bind-try", path, path]
    line += ["--remount-ro", "/"]  # the root is a folder in memory without a size limit
    line += ["--setenv", "HOME", _HOME, "--setenv", "TMPDIR", "/tmp", "--chdir", folder]  # noqa: S108
    line = [*line, "--", *command]
    if sandbox.writable and sandbox.forbidden_names:
        return [
            *_build_guard_command("write_guard.py"),
            "/".join(sandbox.forbidden_names),
            *sandbox.writable,
            "--",
            *line,
        ]
    return line


def _find_parents_of_read_only(kept: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """Return the folders between a writable folder and its read-only paths.

    Each gets its own mount. Otherwise the server could rename such a folder, although something in it is mounted, and
    create another folder in its place. A mount point cannot be renamed.
    """
    between = {
        str(folder)
        for path in kept
        for folder in Path(path).parents
        if str(folder) not in writable and any(folder.is_relative_to(parent) for parent in writable)
    }
    return sorted(between)


@cache
def _build_size_option(wrapper: str, most: int) -> tuple[str, ...]:
    """Return bubblewrap's option that limits the size of the next tmpfs; empty before 0.7, which lacks it."""
    command = [wrapper, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout  # noqa: S603
    version = re.search(r"(\d+)\.(\d+)", output)
    known = version is not None and tuple(map(int, version.groups())) >= (0, 7)
    return ("--size", str(most)) if known else ()


def _build_guard_command(name: str) -> tuple[str, ...]:
    """Return the command line of one of the stand-alone programs next to this file."""
    own = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    return str(own), "-I", "-S", str(Path(__file__).with_name(name).resolve())


def _find_program_folders(program: str, environment: dict[str, str], folder: str) -> list[str]:
    """Return the folders of a program; for one in a Python virtual environment, the whole environment."""
    resolved = shutil.which(program, path=environment.get("PATH", os.defpath))
    path = Path(resolved) if resolved else Path(folder) / program
    if not path.exists():
        raise probe_error("start", f"{program} could not be started: no such program")
    folders: list[str] = []
    for location in (path.absolute(), path.resolve()):
        if location.is_relative_to("/usr") or location.is_relative_to("/bin"):
            continue
        home = location.parent.parent
        folders.append(str(home if (home / "pyvenv.cfg").is_file() else location.parent))
    return folders
