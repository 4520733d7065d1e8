"""The platforms that a bundle runs on, such as ``linux/amd64``, and the platform that a native file is for.

Names are those of container images: system and architecture. A bundle without native code runs everywhere and declares
none.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable

from pinwarden.artifacts.environments import get_processor_architecture
from pinwarden.bundle.bundle_documents import SupportedRuntimes
from pinwarden.core.errors import PinwardenError

_SYSTEMS = {"win32": "windows"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def detect_platform() -> str:
    """Return the platform of this machine."""
    machine = get_processor_architecture().lower()
    return f"{_SYSTEMS.get(sys.platform, sys.platform)}/{_ARCHITECTURES.get(machine, machine)}"


def detect_python() -> str:
    """Return the version of the Python that starts servers, such as ``3.11``."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def refuse_other_platform(name: str, supported: SupportedRuntimes) -> None:
    """Raise ``NO_USABLE_FILE`` if a bundle does not run on this machine."""
    here = detect_platform()
    if supported.platforms and here not in supported.platforms:
        raise PinwardenError(
            "NO_USABLE_FILE",
            f"{name} is for {', '.join(supported.platforms)}, and this machine is {here}",
            data={"platforms": list(supported.platforms), "here": here},
        )
    python = detect_python()
    if supported.python and python not in supported.python:
        raise PinwardenError(
            "NO_USABLE_FILE",
            f"{name} has packages for Python {', '.join(supported.python)}, and Pinwarden runs with {python}",
            hint="Run Pinwarden with one of these versions of Python, or ask the author to pack for this one.",
            data={"python": list(supported.python), "here": python},
        )


def find_native_platforms(data: bytes) -> frozenset[str]:
    """Return the platforms of a native program or library; empty for another file, or an unknown processor."""
    magic = data[:4]
    if magic == b"\x7fELF":
        return _name_platforms("linux", [_ELF.get(_read(data, 18, "<H" if data[5:6] != b"\x02" else ">H"))])
    if magic in (b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xcf"):
        return _name_platforms("darwin", [_MACH.get(_read(data, 4, "<I" if magic[0] == 0xCF else ">I"))])
    if magic == b"\xca\xfe\xba\xbe":  # also a Java class, whose version is above 44 here
        count = _read(data, 4, ">I")
        return _name_platforms("darwin", [_MACH.get(_read(data, 8 + 20 * n, ">I")) for n in range(min(count, 16))])
    if magic[:2] == b"MZ":
        start = _read(data, 60, "<I")
        if data[start : start + 4] == b"PE\0\0":
            return _name_platforms("windows", [_PE.get(_read(data, start + 4, "<H"))])
    return frozenset()


_ELF = {0x3E: "amd64", 0xB7: "arm64"}
_MACH = {0x01000007: "amd64", 0x0100000C: "arm64"}
_PE = {0x8664: "amd64", 0xAA64: "arm64"}


def _name_platforms(system: str, architectures: Iterable[str | None]) -> frozenset[str]:
    return frozenset(f"{system}/{architecture}" for architecture in architectures if architecture is not None)


def _read(data: bytes, offset: int, kind: str) -> int:
    """Return the number at an offset; 0 beyond the end."""
    size = struct.calcsize(kind)
    part = data[offset : offset + size]
    return int(struct.unpack(kind, part)[0]) if len(part) == size else 0
