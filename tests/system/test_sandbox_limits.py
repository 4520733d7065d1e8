"""How much a sandboxed server may use: memory, processes, files, time. Every attack here is small enough to survive."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.system import exec_guard, sandbox
from pinwarden.system.sandbox import Sandbox, SandboxLimits, build_sandbox_command
from tests.support.needs import needs

pytestmark = needs("bwrap", install="apt-get install bubblewrap")

SMALL = SandboxLimits(
    memory_bytes=256 * 1024**2,
    processes=24,
    file_bytes=8 * 1024**2,
    open_files=64,
    scratch_bytes=16 * 1024**2,
    cpu_seconds=1,
    nice=3,
)
NOBODY = 65534
GREEDY = """
import json, os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def refused(act):
    try:
        act()
    except (OSError, MemoryError) as err:
        return type(err).__name__ if isinstance(err, MemoryError) else os.strerror(err.errno)
    return None
def fill(folder):
    for number in range(8):
        with open(f"{folder}/{number}", "wb") as file:
            file.write(bytes(4 << 20))
def raised():
    resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
print(json.dumps({
    "memory": refused(lambda: bytearray(1 << 30)),
    "file": refused(lambda: open("/tmp/large", "wb").write(bytes(9 << 20))),
    "tmp": refused(lambda: (os.unlink("/tmp/large"), fill("/tmp"))),
    "shm": refused(lambda: fill("/dev/shm")),
    "home": refused(lambda: fill(os.environ["HOME"])),
    "dev": refused(lambda: open("/dev/more", "wb")),
    "null": refused(lambda: open("/dev/null", "wb").write(b"x")),
    "open": refused(lambda: [os.open("/dev/null", 0) for _ in range(80)]),
    "nice": os.nice(0) - int(os.environ["NICE"]),
    "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
}))
"""
RAISING = """
import resource, sys
try:
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))
except (ValueError, OSError):
    sys.exit(7)
"""
BOMB = """
import os, sys, time
children = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        children += 1
except OSError as err:
    print(children, os.strerror(err.errno), flush=True)
"""


STEERING = """
import ctypes, errno, json, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *given):
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, given or (0,) * 6))
    return "done" if done >= 0 else errno.errorcode[ctypes.get_errno()]
def opened(path, how):
    try:
        open(path, how).close()
    except OSError as err:
        return errno.errorcode[err.errno]
    return "done"
refused, absent, (clone, unshare) = json.loads(sys.argv[1])
try:
    program = subprocess.run(["true"]).returncode
except PermissionError:
    program = "EPERM"
print(json.dumps({
    "refused": sorted({call(number) for number in refused}),
    "absent": sorted({call(number) for number in absent}),
    "a user namespace": [call(unshare, 0x10000000), call(clone, 0x10000000 | 17)],
    "files of its own": call(unshare, 0x400),
    "memory of the first process": [opened("/proc/1/mem", "r+b"), opened("/proc/1/task/1/mem", "r+b")],
    "memory of its own": opened("/proc/self/mem", "rb"),
    "beside the folders": [opened(path, "w") for path in ("/more", "/home/more", "/etc/more")],
    "another program": program,
}))
"""


def started(
    program: str, limits: SandboxLimits, *given: str, programs: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.defpath, "NICE": str(os.nice(0))}
    command = (sys.executable, "-c", program, *given)
    line = build_sandbox_command(command, environment, "/", Sandbox(limits=limits, allow_programs=programs))
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("programs", [True, False])
def test_attack_a_greedy_server_gets_no_more_than_its_bounds(programs: bool) -> None:
    outcome = started(GREEDY, SMALL, programs=programs)
    report: dict[str, Any] = json.loads(outcome.stdout)
    assert report == {
        "memory": "MemoryError",
        "file": "File too large",
        "tmp": "No space left on device",
        "shm": "No space left on device",
        "home": "No space left on device",
        "dev": "Read-only file system",
        "null": None,
        "open": "Too many open files",
        "nice": 3,
        "core": 0,
    }


@pytest.mark.skipif(os.uname().machine not in exec_guard._ARCHITECTURES, reason="no filter is known for this machine")
@pytest.mark.parametrize("programs", [True, False])
def test_attack_a_server_reaches_no_keys_of_the_session_no_namespace_and_not_the_first_process(programs: bool) -> None:
    """The first process is bubblewrap's and has no filter: a server that controls it could start programs."""
    machine = os.uname().machine
    numbers = [
        (*exec_guard._DENIED_CALLS[machine], *exec_guard._DENIED_ON_ALL),
        exec_guard._HIDDEN_CALLS,
        exec_guard._NAMESPACE_CALLS[machine],
    ]
    outcome = started(STEERING, SandboxLimits(), json.dumps(numbers), programs=programs)
    assert json.loads(outcome.stdout) == {
        "refused": ["EPERM"],
        "absent": ["ENOSYS"],
        "a user namespace": ["EPERM", "EPERM"],
        "files of its own": "done",
        "memory of the first process": ["ENOENT", "ENOENT"],
        "memory of its own": "done",
        "beside the folders": ["EROFS", "EROFS", "EROFS"],
        "another program": 0 if programs else "EPERM",
    }


def test_the_filter_of_another_machine_has_an_end_for_every_jump() -> None:
    """The one of this machine is tried above; a jump beyond its end would be refused by the kernel."""
    for machine in exec_guard._ARCHITECTURES:
        for address in (None, 0x7F00_1234_5678):
            code = exec_guard.build_filter(machine, address)
            lines = [struct.unpack("HBBI", code[at : at + 8]) for at in range(0, len(code), 8)]
            assert lines[-1][0] == exec_guard._RETURN
            assert all(at + 1 + max(yes, no) < len(lines) for at, (_, yes, no, _) in enumerate(lines[:-1]))


def test_attack_a_server_that_loops_for_ever_is_ended() -> None:
    outcome = started("while True: pass", SMALL)
    assert outcome.returncode != 0


def test_attack_a_server_does_not_raise_its_bounds() -> None:
    assert started(RAISING, SMALL).returncode == 7


def test_a_server_within_its_bounds_does_not_notice_them() -> None:
    work = (
        "import threading; t=[threading.Thread(target=bytes, args=(1<<20,)) for _ in range(32)]; [x.start() for x in t]"
    )
    outcome = started(f"{work}; print(len(bytearray(1<<28)))", SandboxLimits())
    assert (outcome.returncode, outcome.stdout) == (0, f"{1 << 28}\n")


@pytest.fixture
def plain_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """How to start a sandbox as a user other than root, because the kernel does not count processes of root."""
    if os.geteuid() != 0:
        yield {}
        return
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("as root this takes a Python that other users can start")
    folder = Path(tempfile.mkdtemp(prefix="pinwarden-plain-user-"))
    folder.chmod(0o755)
    guard = folder / "exec_guard.py"
    shutil.copy(exec_guard.__file__, guard)
    guard.chmod(0o644)
    monkeypatch.setattr(sandbox, "_build_guard_command", lambda name: (python, "-I", "-S", str(folder / name)))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    yield {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    shutil.rmtree(folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")
def test_attack_a_fork_bomb_ends_at_its_bound(plain_user: dict[str, Any]) -> None:
    """A bomb of a hundred at most; the sandbox ends with its first process, and all of it with the sandbox."""
    program = "/usr/bin/python3" if plain_user else sys.executable
    line = build_sandbox_command((program, "-c", BOMB), {"PATH": os.defpath}, "/", Sandbox(limits=SMALL))
    outcome = subprocess.run(
        line, env={"PATH": os.defpath}, cwd="/", capture_output=True, text=True, timeout=240, check=False, **plain_user
    )
    if "bwrap:" in outcome.stderr:
        pytest.skip(f"this user may not make a sandbox here: {outcome.stderr.strip()[:80]}")
    count, why = outcome.stdout.strip().split(" ", 1)
    assert why == "Resource temporarily unavailable"
    assert int(count) < SMALL.processes
