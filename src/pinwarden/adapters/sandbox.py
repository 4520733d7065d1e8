"""Running a server inside bubblewrap: the system read-only, private home and temporary folders, no network."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from pinwarden.adapters.allowance import failed
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

# Programs and libraries. Of /etc only what programs need to start; the rest holds keys and passwords.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_SETTINGS = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("mime.types", "nsswitch.conf", "passwd", "pki", "ssl/certs", "ssl/openssl.cnf", "timezone"),
)
_HOME = "/home/sandbox"
# Where root runs this, bubblewrap would leave every capability to the server, which could then mount the read-only
# folders anew and write to them; and the kernel lets root set it from within /proc, whatever capabilities it has.
_NO_PRIVILEGES = ("--cap-drop", "ALL")
_KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "scsi", "acpi", "fs")


class Sandbox(Record):
    """What a sandboxed server may see besides the system: its program, its working folder, and these paths."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What stays read-only although it lies below something writable."""
    network: bool = False
    programs: bool = True
    """Whether it may start programs. If not, the kernel refuses every one but the server itself (``exec_guard.py``)."""


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
    if sandbox.network:
        line += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS)):
        line += ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", _HOME]  # noqa: S108  a private one
    for name in _KERNEL:
        line += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    shown = [*_program_folders(command[0], environment, folder), *sandbox.readable]
    if not sandbox.programs:
        guard = _guarded()
        shown += [*_program_folders(guard[0], environment, folder), sys.base_prefix, guard[-1]]
        command = (*guard, *command)
    if folder in ("/", str(Path(environment.get("HOME", "/")).resolve())):
        folder = _HOME  # to show this one would be to show everything
    else:
        shown.append(folder)
    for path in shown:
        if not Path(path).exists():
            raise failed("start", f"{path} is not there and cannot be shown to the sandbox")
        line += ["--ro-bind", path, path]
    for path in sandbox.writable:
        if not Path(path).exists():
            raise failed("start", f"{path} is not there and cannot be shown to the sandbox")
        line += ["--bind", path, path]
    for path in _above(sandbox.kept, sandbox.writable):
        line += ["--bind", path, path]
    for path in sandbox.kept:
        line += ["--ro-bind-try", path, path]
    line += ["--setenv", "HOME", _HOME, "--setenv", "TMPDIR", "/tmp", "--chdir", folder]  # noqa: S108
    return [*line, "--", *command]


def _above(kept: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """The folders between what is writable and what is kept. Each is mounted by itself, because a folder can be renamed
    though something in it is mounted, and another put in its place; one that is a mount cannot."""
    between = {
        str(folder)
        for path in kept
        for folder in Path(path).parents
        if str(folder) not in writable and any(folder.is_relative_to(each) for each in writable)
    }
    return sorted(between)


def _guarded() -> tuple[str, ...]:
    """What starts a command so that nothing else can be started after it."""
    own = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    return str(own), "-I", "-S", str(Path(__file__).with_name("exec_guard.py").resolve())


def _program_folders(program: str, environment: dict[str, str], folder: str) -> list[str]:
    """Where the program lies; for one of a Python virtual environment, all of that."""
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    path = Path(found) if found else Path(folder) / program
    if not path.exists():
        raise failed("start", f"{program} could not be started: no such program")
    folders: list[str] = []
    for place in (path.absolute(), path.resolve()):
        if place.is_relative_to("/usr") or place.is_relative_to("/bin"):
            continue
        home = place.parent.parent
        folders.append(str(home if (home / "pyvenv.cfg").is_file() else place.parent))
    return folders
