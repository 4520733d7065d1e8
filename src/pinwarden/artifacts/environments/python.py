"""Builds environments of Python packages: unpacks wheels, and compiles and starts them with the current interpreter.

The server cannot import the interpreter's own packages. No code of a package runs while Pinwarden builds its
environment: wheels are only unpacked, and building from source is not supported.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pinwarden.artifacts.environments import get_processor_architecture, unknown_program_error
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import (
    BUILD_OUTPUT,
    TREE,
    audit_tree,
    compute_build_output_digest,
    hash_tree,
    make_build_output_anchor,
    write_file,
    write_manifest,
)
from pinwarden.artifacts.python_package import ChosenWheel, choose_wheels
from pinwarden.core.digest import Digest, TreeFile, hash_file_list
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import lazy_pattern
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.system.files import read_file

BUILDER = "python/1"
COMPILE_SECONDS = 600.0
SITE_FOLDER = "site"
_VENV_FOLDER = "python"
_DATA_FOLDERS = {"purelib": SITE_FOLDER, "platlib": SITE_FOLDER, "scripts": "bin", "data": "data"}
_ENTRY_POINT = lazy_pattern(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[[^\]]*\])?\s*")
_NAME_SEPARATORS = lazy_pattern(r"[-_.]+")


class Interpreter(Record):
    """The interpreter that starts servers."""

    executable: Path
    version: str
    """The version of Python, such as ``3.11``."""
    key: str
    """Identifies the interpreter by path, version and platform, because bytecode and wheels depend on them."""

    @classmethod
    def current(cls) -> Interpreter:
        """Return the interpreter that runs this program; in a virtual environment, its base interpreter."""
        executable = Path(getattr(sys, "_base_executable", "") or sys.executable)
        with suppress(OSError):
            executable = executable.resolve(strict=True)
        build = f"{sys.implementation.cache_tag} {sys.version} {sys.platform} {get_processor_architecture()}"
        return cls(
            executable=executable,
            version=f"{sys.version_info[0]}.{sys.version_info[1]}",
            key=f"{executable}\n{build}",
        )


def choose_packages(closure: Closure) -> tuple[ChosenWheel, ...]:
    """Return the packages this interpreter needs, each with the wheel an installer would choose."""
    from packaging.markers import default_environment
    from packaging.tags import sys_tags

    environment = {name: str(value) for name, value in default_environment().items()}
    return choose_wheels(closure.packages, environment, list(sys_tags()))


def read_wheel_files(archive: Path) -> Iterator[tuple[str, bool, bytes]]:
    """Yield the files of a wheel, with their paths in the environment's tree."""
    from pinwarden.artifacts.archives.zip import read_zip_members

    for member in read_zip_members(archive):
        first, _, inner_path = member.path.partition("/")
        if first.endswith(".data") and inner_path:
            kind, _, inner_path = inner_path.partition("/")
            if kind in _DATA_FOLDERS and inner_path:
                yield f"{_DATA_FOLDERS[kind]}/{inner_path}", member.executable, member.data
        else:
            yield f"{SITE_FOLDER}/{member.path}", member.executable, member.data


def compute_wheel_digest(archive: Path) -> Digest:
    """Return the tree digest of a wheel's content."""
    return hash_file_list(
        (path, executable, hashlib.sha256(data).hexdigest()) for path, executable, data in read_wheel_files(archive)
    )


def compute_environment_key(closure_digest: Digest, interpreter: Interpreter) -> str:
    """Return the environment's name in the store, derived from the closure and the interpreter."""
    return Digest.of_bytes(f"{BUILDER}\n{closure_digest}\n{interpreter.key}".encode()).hex[:40]


def build(folder: Path, final: Path, choices: Sequence[ChosenWheel], interpreter: Interpreter, store: Store) -> None:
    """Unpack verified wheels into a folder that will be renamed to ``final``, and compile them."""
    tree = folder / TREE
    (tree / SITE_FOLDER).mkdir(parents=True)
    sections: dict[str, list[TreeFile]] = {}
    for package, file in choices:
        archive = store.find(file.digest)
        if archive is None:
            raise PinwardenError("ARTIFACT_MISSING", f"{file.name} is not in the store", data={"name": package.name})
        rows = [
            write_file(tree, path, data, executable=executable) for path, executable, data in read_wheel_files(archive)
        ]
        if hash_file_list(rows) != file.tree:
            raise PinwardenError("ARTIFACT_MISMATCH", f"{file.name} unpacks to files that differ from the locked files")
        sections[format_section_name(package)] = rows
    _compile(tree, final / TREE, interpreter)
    unpacked = {path for rows in sections.values() for path, _, _ in rows}
    sections[BUILD_OUTPUT] = [row for path, row in hash_tree(tree).items() if path not in unpacked]
    _make_venv(folder / _VENV_FOLDER, interpreter)
    write_manifest(folder, sections)
    store.record_build_output_digest(final.name, compute_build_output_digest(sections[BUILD_OUTPUT]))


def format_section_name(package: ClosurePackage) -> str:
    """Return the name of a package's section in the manifest."""
    return f"{package.name}=={package.version}"


def _compile(tree: Path, final: Path, interpreter: Interpreter) -> None:
    """Compile to bytecode that does not depend on timestamps, so that an audit can verify it.

    Files that do not compile are skipped; importing them fails at run time as usual.
    """
    import subprocess

    switches = ["-q", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", str(final)]
    command = [str(interpreter.executable), "-I", "-S", "-m", "compileall", *switches, str(tree / SITE_FOLDER)]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603  the interpreter that runs this program
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS,
            env={"PATH": os.defpath},
        )


def _list_venv_links(interpreter: Interpreter) -> dict[str, str]:
    return {
        "bin/python": str(interpreter.executable),
        f"lib/python{interpreter.version}/site-packages": f"../../../{TREE}/{SITE_FOLDER}",
    }


def _format_venv_settings(interpreter: Interpreter) -> bytes:
    return f"home = {interpreter.executable.parent}\ninclude-system-site-packages = false\n".encode()


def _make_venv(venv: Path, interpreter: Interpreter) -> None:
    """Create a virtual environment whose site-packages folder is the tree."""
    for link, target in _list_venv_links(interpreter).items():
        path = venv / link
        path.parent.mkdir(parents=True)
        path.symlink_to(target)
    (venv / "pyvenv.cfg").write_bytes(_format_venv_settings(interpreter))


def audit(folder: Path, closure: Closure, interpreter: Interpreter, store: Store) -> str | None:
    """Check a built environment. Returns the first problem, or None."""
    venv = folder / _VENV_FOLDER
    try:
        for link, target in _list_venv_links(interpreter).items():
            if str((venv / link).readlink()) != target:
                return f"the link {_VENV_FOLDER}/{link} was changed"
        if (venv / "pyvenv.cfg").read_bytes() != _format_venv_settings(interpreter):
            return f"{_VENV_FOLDER}/pyvenv.cfg was changed"
        actual = {str(path.relative_to(venv)) for path in venv.rglob("*") if path.is_symlink() or path.is_file()}
    except OSError as err:
        return f"it cannot be read: {err.strerror or err}"
    if extra := actual - {*_list_venv_links(interpreter), "pyvenv.cfg"}:
        return f"{_VENV_FOLDER}/{min(extra)} does not belong to it"
    anchors = {
        format_section_name(package): frozenset(file.tree.raw for file in package.files if file.tree is not None)
        for package in closure.packages
    }
    anchors[BUILD_OUTPUT] = make_build_output_anchor(store.read_build_output_digest(folder.name))
    return audit_tree(folder, anchors, [format_section_name(closure.root), BUILD_OUTPUT])


def build_start_command(folder: Path, root: ClosurePackage, program: str | None) -> list[str]:
    """Return the command that starts a package's program, chosen as uvx does: by the package's name."""
    programs = _read_programs(folder / TREE / SITE_FOLDER, root)
    name = program or _find_main_program(programs, root.name)
    target = programs.get(name)
    entry_point = _ENTRY_POINT.fullmatch(target) if target else None
    if entry_point is None:
        raise unknown_program_error(root.name, name, sorted(programs))
    module, attribute = entry_point[1], entry_point[2]
    code = f"import sys; sys.argv[0] = {name!r}; import {module}; sys.exit({module}.{attribute}())"
    return [str(folder / _VENV_FOLDER / "bin" / "python"), "-I", "-c", code]


def _find_main_program(programs: Mapping[str, str], package: str) -> str:
    """Return the program that is named as its package, which the closure has with hyphens instead of dots."""
    same = [name for name in programs if _NAME_SEPARATORS.sub("-", name).lower() == package]
    return package if package in programs or len(same) != 1 else same[0]


def _read_programs(site: Path, root: ClosurePackage) -> dict[str, str]:
    project_name = _NAME_SEPARATORS.sub("-", root.name).lower()
    for dist_info in sorted(site.glob("*.dist-info")):
        name, _, _ = dist_info.name.removesuffix(".dist-info").partition("-")
        if _NAME_SEPARATORS.sub("-", name).lower() == project_name and (dist_info / "entry_points.txt").is_file():
            try:
                text = read_file(dist_info / "entry_points.txt", 1 << 20).decode()
            except UnicodeDecodeError as err:
                raise PinwardenError("PROGRAM_UNKNOWN", f"the entry_points.txt of {root.name} is not UTF-8") from err
            return _parse_console_scripts(text)
    return {}


def _parse_console_scripts(text: str) -> dict[str, str]:
    """Return the console scripts in entry_points.txt. Does not use configparser, which is slow to import."""
    section, scripts = "", {}
    for line in map(str.strip, text.splitlines()):
        name, mark, target = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif mark and section == "console_scripts" and not line.startswith(("#", ";")):
            scripts[name.strip()] = target.strip()
    return scripts
