"""Install scripts of npm packages, run only where somebody approved them for exactly these bytes.

A script is run by a shell, as npm does it: it is a line of shell by definition. It runs in bubblewrap, without network,
with a home of its own, and can write nowhere but in the folder of its package. What it made or changed is noted in the
environment's manifest. Where there is no bubblewrap, no script runs unless somebody said that it may run without.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pinwarden.artifacts.environments.tree import TREE, Row, rows_in
from pinwarden.artifacts.npm_package import INSTALL_SCRIPTS, read_run_info
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import ClosurePackage
from pinwarden.system.bounded_run import Task, run_bounded
from pinwarden.system.files import read_file
from pinwarden.system.sandbox import Sandbox, sandboxed

SCRIPT_SECONDS = 600.0
_PROGRAMS = "programs"
_SYSTEM_FOLDERS = ("/usr", "/bin", "/opt")


class Scripting(Record):
    """Which packages may run their scripts, and how."""

    packages: tuple[ClosurePackage, ...]
    search_path: str
    without_sandbox: bool = False


def run_scripts(folder: Path, scripting: Scripting, everything: Sequence[ClosurePackage]) -> None:
    """Run the scripts of approved packages in an environment that was just unpacked; the deepest packages first."""
    if shutil.which("bwrap") is None and not scripting.without_sandbox:
        first = scripting.packages[0]
        raise PinwardenError(
            "SCRIPT_REFUSED", f"the install script of {first.name}@{first.version} needs bubblewrap to run in"
        )
    programs = folder / _PROGRAMS
    _write_programs(programs, folder / TREE, everything)
    try:
        for package in sorted(scripting.packages, key=lambda each: (-each.path.count("node_modules/"), each.path)):
            _run_package(folder / TREE / package.path, package, programs, scripting)
    finally:
        shutil.rmtree(programs)


def _run_package(place: Path, package: ClosurePackage, programs: Path, scripting: Scripting) -> None:
    scripts = read_run_info(_about(place), has_gyp=(place / "binding.gyp").is_file()).scripts
    for file in _files(place):  # npm's are writable; many scripts replace a file of their own
        file.chmod(file.stat().st_mode | stat.S_IWUSR)
    for event in filter(scripts.__contains__, INSTALL_SCRIPTS):
        environment = {
            "PATH": f"{programs}{os.pathsep}{scripting.search_path}",
            "HOME": str(place),
            "LANG": "C.UTF-8",
            "npm_lifecycle_event": event,
            "npm_package_name": package.name,
            "npm_package_version": package.version,
            "npm_config_offline": "true",
        }
        command: list[str] = ["/bin/sh", "-c", scripts[event]]
        if shutil.which("bwrap") is not None:
            tree = str(programs.parent / TREE)
            readable = (tree, str(programs), *_node_folders(scripting.search_path))
            sandbox = Sandbox(readable=readable, writable=(str(place),))
            command = sandboxed(tuple(command), {**environment, "HOME": "/"}, str(place), sandbox)
        name = f"the {event} script of {package.name}@{package.version}"
        run_bounded(command, place, environment, Task(name=name, failure="SCRIPT_FAILED", seconds=SCRIPT_SECONDS))


def _node_folders(search_path: str) -> list[str]:
    """Where node is, if it is not among the system's programs."""
    found = shutil.which("node", path=search_path)
    place = Path(found).resolve() if found else None
    if place is None or any(place.is_relative_to(each) for each in _SYSTEM_FOLDERS):
        return []
    return [str(place.parent.parent if place.parent.name == "bin" else place.parent)]


def _about(place: Path) -> Any:
    try:
        return json.loads(read_file(place / "package.json"))
    except (ValueError, RecursionError) as err:
        raise PinwardenError("SCRIPT_FAILED", f"the package.json of {place.name} cannot be read") from err


def _write_programs(programs: Path, tree: Path, packages: Iterable[ClosurePackage]) -> None:
    """Programs of the closure by their names, as scripts expect them on the search path."""
    programs.mkdir()
    for package in packages:
        about = _about(tree / package.path)
        declared = about.get("bin") if isinstance(about, dict) else None
        named = {package.name.rpartition("/")[2]: declared} if isinstance(declared, str) else declared
        for name, path in (named if isinstance(named, dict) else {}).items():
            script = tree / package.path / str(path)
            plain = name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")
            if plain and "\0" not in str(path) and _is_node_script(script, tree) and not (programs / name).exists():
                (programs / name).write_text(f"#!/bin/sh\nexec node '{str(script).replace(chr(39), _QUOTE)}' \"$@\"\n")
                (programs / name).chmod(0o755)


_QUOTE = "'\\''"


def _is_node_script(script: Path, tree: Path) -> bool:
    if not script.resolve().is_relative_to(tree.resolve()) or not script.is_file():
        return False
    with script.open("rb") as stream:
        line = stream.readline(200)
    return line.startswith(b"#!") and b"node" in line


def made_by_scripts(tree: Path, sections: dict[str, list[Row]], scripting: Scripting) -> list[Row]:
    """What scripts made or changed, as rows of the whole tree. What they may not touch is an error.

    Links are removed, as npm removes them from archives: an audit could not say what lies behind one.
    """
    for package in scripting.packages:
        _settle(tree / package.path)
    locked = {f"{path}/{row[0]}": row[1:] for path, rows in sections.items() for row in rows}
    found = rows_in(tree)
    if missing := sorted(locked.keys() - found.keys()):
        raise PinwardenError("SCRIPT_FAILED", f"an install script removed {missing[0][:200]}, which was locked")
    made = [row for path, row in sorted(found.items()) if locked.get(path) != row[1:]]
    allowed = {package.path for package in scripting.packages}
    for path, _, _ in made:
        if _owner(path, sections) not in allowed:
            raise PinwardenError("SCRIPT_FAILED", f"an install script changed {path[:200]}, which is not its own")
    return made


def _owner(path: str, sections: Iterable[str]) -> str:
    """The package in whose folder a file lies; of nested ones, the innermost."""
    return max((each for each in sections if path.startswith(f"{each}/")), key=len, default="")


def _settle(place: Path) -> None:
    """Take away what is neither file nor folder, and all rights but those that unpacked files have."""
    for folder, folders, names in os.walk(place):
        for name in (*folders, *names):
            path = Path(folder) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                path.chmod(0o555 if mode & 0o111 else 0o444)
            elif stat.S_ISDIR(mode):
                path.chmod(0o755)
            else:
                path.unlink()


def _files(place: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(place) for name in names]
