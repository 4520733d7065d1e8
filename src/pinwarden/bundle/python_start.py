"""Starts a Python server with the packages in its bundle. `bundle pack` copies this file, unchanged, into the bundle.

``start.json`` next to it names the server's file, and its module if the file belongs to a package.
"""

from __future__ import annotations

import json
import platform
import runpy
import site
import sys
from pathlib import Path

PACKAGES = Path(__file__).resolve().parent
SERVER = PACKAGES.parent


def find_package_folders() -> list[str]:
    """Return the folders of packages for every platform, and for this platform and version of Python."""
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    own = f"{system}-{machine}-py{sys.version_info[0]}.{sys.version_info[1]}"
    special = sorted(path.name for path in PACKAGES.iterdir() if path.is_dir() and path.name != "all")
    if special and own not in special:
        sys.exit(f"this bundle has packages for {', '.join(special)}, and this is {own}")
    return [str(PACKAGES / name) for name in ("all", own) if (PACKAGES / name).is_dir()]


def main() -> None:
    """Put the packages before those of the interpreter, and run the server as the main program."""
    start = json.loads((PACKAGES / "start.json").read_text(encoding="utf-8"))
    others = [path for path in sys.path if path != str(PACKAGES)]
    sys.path[:] = others
    for folder in find_package_folders():
        site.addsitedir(folder)  # as after an installation, .pth files count
    packages = [path for path in sys.path if path not in others]
    sys.path[:] = [str(SERVER / start["root"]), *packages, *others]
    sys.argv[0] = str(SERVER / start["entry"])
    if start["module"]:
        runpy.run_module(start["module"], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
