"""Start one program with resource limits and a seccomp filter (Linux).

The filter refuses what no server needs: access to the session's keyrings, new namespaces and mounts, and, if requested,
starting any other program.

This file is a stand-alone program that runs inside the sandbox and uses only the standard library. Limits are set here
because the kernel counts the sandbox's processes separately only inside it. The filter must allow the one exec that
starts the server and none later. Filters cannot read paths, only addresses, so the path is stored at a random address,
and only an exec with this address is allowed. The mapping is gone when the program starts, and unprivileged processes
cannot read the filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import secrets
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's number for each architecture."""
_DENIED_CALLS = {
    "x86_64": (101, 310, 311, 250, 248, 249, 308, 165, 166, 155, 321, 298, 323),
    "aarch64": (117, 270, 271, 219, 217, 218, 268, 40, 39, 41, 280, 241, 282),
}
"""ptrace, process_vm_readv and process_vm_writev: the first process of the sandbox has no filter and must not be
controlled. keyctl, add_key and request_key: keyrings are not namespaced. setns, mount, umount2 and pivot_root; bpf,
perf_event_open and userfaultfd: no server needs them, and many sandbox escapes do."""
_DENIED_ON_ALL = (428, 429, 430, 431, 432, 433, 438, 442)
"""open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, pidfd_getfd and mount_setattr."""
_HIDDEN_CALLS = (425, 426, 427, 435)
"""io_uring_setup, io_uring_enter and io_uring_register; and clone3, whose flags a filter cannot read. Programs fall
back if the kernel says that these do not exist."""
_NAMESPACE_CALLS = {"x86_64": (56, 272), "aarch64": (220, 97)}
"""clone and unshare must not create a user namespace, where a process has every capability and could mount memory."""
_EXEC_CALLS = {"x86_64": (59, 322), "aarch64": (221, 281)}
"""execve and execveat."""
_NEW_USER_NAMESPACE = 0x10000000
_X32_BIT = 0x40000000  # the other numbering of x86_64, which has an execve of its own
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NO_SUCH_CALL = 0x00050000 | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_LOW, _FIRST_HIGH = 0, 4, 16, 20
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER_MODE = 38, 22, 2
_PAGE = 4096
_FILTER_RESULTS = {"allow": _ALLOW, "deny": _DENY, "absent": _NO_SUCH_CALL, "kill": _KILL}


def build_filter(machine: str, address: int | None) -> bytes:
    """Return the BPF program. With an address, only an exec whose path is at this address is allowed."""
    execve, execveat = _EXEC_CALLS[machine]
    # Operation, operand, and the labels to jump to if true and if false; an empty label is the next instruction.
    program: list[tuple[int, int, str, str]] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, _ARCHITECTURES[machine], "", "kill"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, _X32_BIT, "deny", ""),
    ]
    program += [(_EQUAL, number, "deny", "") for number in (*_DENIED_CALLS[machine], *_DENIED_ON_ALL)]
    program += [(_EQUAL, number, "absent", "") for number in _HIDDEN_CALLS]
    program += [(_EQUAL, number, "flags", "") for number in _NAMESPACE_CALLS[machine]]
    if address is not None:
        program += [
            (_EQUAL, execveat, "deny", ""),
            (_EQUAL, execve, "", "allow"),
            (_LOAD, _FIRST_LOW, "", ""),
            (_EQUAL, address & 0xFFFFFFFF, "", "deny"),
            (_LOAD, _FIRST_HIGH, "", ""),
            (_EQUAL, address >> 32, "", "deny"),
        ]
    labels = {"flags": len(program) + 1}
    program += [(_RETURN, _ALLOW, "", ""), (_LOAD, _FIRST_LOW, "", ""), (_HAS, _NEW_USER_NAMESPACE, "deny", "allow")]
    for name, result in _FILTER_RESULTS.items():
        labels[name] = len(program)
        program.append((_RETURN, result, "", ""))
    return b"".join(
        struct.pack("HBBI", code, *(labels[name] - at - 1 if name else 0 for name in (yes, no)), number)
        for at, (code, number, yes, no) in enumerate(program)
    )


def _store_path(libc: ctypes.CDLL, path: bytes) -> int:
    """Store the path at a random address, and return the address."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = 2 * _PAGE + len(path)
    read_write, private_anonymous_new = 3, 0x02 | 0x20 | 0x100000
    for _ in range(100):
        hint = (secrets.randbits(34) + 0x1000) * _PAGE
        base = libc.mmap(hint, size, read_write, private_anonymous_new, -1, 0)
        if base == hint:
            address = hint + secrets.randbelow(_PAGE)
            ctypes.memmove(address, path + b"\0", len(path) + 1)
            return address
    sys.exit("pinwarden: could not map memory to start the server")


def set_limits(limits: str) -> None:
    """Set the resource limits, given as ``NAME=NUMBER,NAME=NUMBER``. The server cannot raise them again."""
    for name, _, text in (limit.partition("=") for limit in limits.split(",") if limit):
        most = int(text)
        if name == "nice":
            os.nice(most)
        elif name != "NPROC" or has_own_process_count():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
    # If the machine runs out of memory, the kernel should kill this server first.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def has_own_process_count() -> bool:
    """Whether the kernel counts the processes of this sandbox alone: in a user namespace, since Linux 5.14.

    Otherwise the limit would include all processes of the user, and the server might not start.
    """
    whole = Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2:3] == ["4294967295"]
    return not whole and tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (5, 14)


def main(limits: str, filtered: str, command: list[str]) -> None:
    """Exec the command with the limits. With ``filtered``, it cannot start other programs."""
    set_limits(limits)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both signals, and the command would inherit this
        signal.signal(number, signal.SIG_DFL)
    if filtered == "filtered":
        exec_single_program(command)
    if os.uname().machine in _ARCHITECTURES:
        install_filter(ctypes.CDLL(None, use_errno=True), None)
    try:
        os.execvp(command[0], command)  # noqa: S606  no shell
    except OSError as err:
        sys.exit(f"pinwarden: {command[0]} could not be started: {err.strerror}")


def install_filter(libc: ctypes.CDLL, address: int | None) -> None:
    """Install the seccomp filter for this process and every program it starts."""
    code = build_filter(os.uname().machine, address)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(program, len(program))
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(
        _SET_FILTER, _FILTER_MODE, ctypes.addressof(pointer), 0, 0
    ):
        sys.exit(f"pinwarden: the kernel refused the seccomp filter: {os.strerror(ctypes.get_errno())}")


def exec_single_program(command: list[str]) -> None:
    """Exec the command, which then cannot start other programs."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or not command:
        sys.exit(f"pinwarden: the sandbox cannot stop a server from starting programs on {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(command[0])
    address = _store_path(libc, path)
    words = (ctypes.c_char_p * (len(command) + 1))(*map(os.fsencode, command), None)
    variables = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
    environment = (ctypes.c_char_p * (len(variables) + 1))(*variables, None)
    install_filter(libc, address)
    libc.execve.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    libc.execve(address, ctypes.addressof(words), ctypes.addressof(environment))
    sys.exit(f"pinwarden: {command[0]} could not be started: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
