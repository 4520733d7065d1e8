"""Environments of Python packages: wheels unpacked here, compiled by the interpreter that runs them, started with it.

The interpreter's own packages are not visible to the server. Nothing of a package runs while its environment is built:
wheels are only unpacked, and there is no way to build from source.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pinwarden.artifacts.closure_choice import Choice, choose_wheels
from pinwarden.artifacts.environments.machine import machine
from pinwarden.artifacts.environments.no_program import program_unknown
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import (
    MADE_HERE,
    TREE,
    Row,
    made_here_anchor,
    made_here_digest,
    problem_of,
    rows_in,
    write_file,
    write_manifest,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.patterns import pattern
from pinwarden.core.record import Record
from pinwarden.lock.closure import Closure, ClosurePackage, tree_digest
from pinwarden.system.files import read_file

BUILDER = "python/1"
COMPILE_SECONDS = 600.0
SITE = "site"
_SHELL = "python"
_DATA_KINDS = {"purelib": SITE, "platlib": SITE, "scripts": "bin", "data": "data"}
_ENTRY_POINT = pattern(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[[^\]]*\])?\s*")
_NAME_MARKS = pattern(r"[-_.]+")


class Interpreter(Record):
    """The interpreter that servers are started with."""

    executable: Path
    version: str
    """``3.11``."""
    key: str
    """What bytecode and wheels depend on."""

    @classmethod
    def here(cls) -> Interpreter:
        """The interpreter that runs this program, outside any virtual environment."""
        executable = Path(getattr(sys, "_base_executable", "") or sys.executable)
        with suppress(OSError):
            executable = executable.resolve(strict=True)
        build = f"{sys.implementation.cache_tag} {sys.version} {sys.platform} {machine()}"
        return cls(
            executable=executable,
            version=f"{sys.version_info[0]}.{sys.version_info[1]}",
            key=f"{executable}\n{build}",
        )


def chosen(closure: Closure) -> tuple[Choice, ...]:
    """The packages that this interpreter needs, each with the wheel that an installer would take."""
    from packaging.markers import default_environment
    from packaging.tags import sys_tags

    environment = {name: str(value) for name, value in default_environment().items()}
    return choose_wheels(closure.packages, environment, list(sys_tags()))


def unpacked(archive: Path) -> Iterator[tuple[str, bool, bytes]]:
    """The files of a wheel, each with its path below the environment's tree."""
    from pinwarden.artifacts.archives.members import zip_members

    for member in zip_members(archive):
        first, _, rest = member.path.partition("/")
        if first.endswith(".data") and rest:
            kind, _, rest = rest.partition("/")
            if kind in _DATA_KINDS and rest:
                yield f"{_DATA_KINDS[kind]}/{rest}", member.executable, member.data
        else:
            yield f"{SITE}/{member.path}", member.executable, member.data


def content_of(archive: Path) -> Digest:
    """The digest of a wheel's content, for the closure."""
    return tree_digest((path, run, hashlib.sha256(data).hexdigest()) for path, run, data in unpacked(archive))


def environment_key(closure_digest: Digest, here: Interpreter) -> str:
    """The name of the environment: what it is made from, and for what."""
    return Digest.of(f"{BUILDER}\n{closure_digest}\n{here.key}".encode()).hex[:40]


def build(folder: Path, final: Path, choices: Sequence[Choice], here: Interpreter, store: Store) -> None:
    """Unpack verified wheels into a folder that will have the name ``final``, and compile them."""
    tree = folder / TREE
    (tree / SITE).mkdir(parents=True)
    sections: dict[str, list[Row]] = {}
    for package, file in choices:
        archive = store.find(file.digest)
        if archive is None:
            raise PinwardenError("ARTIFACT_MISSING", f"{file.name} is not in the store", data={"name": package.name})
        rows = [write_file(tree, path, data, executable=run) for path, run, data in unpacked(archive)]
        if tree_digest(rows) != file.tree:
            raise PinwardenError("ARTIFACT_MISMATCH", f"{file.name} unpacks to something else than was locked")
        sections[section_name(package)] = rows
    _compile(tree, final / TREE, here)
    known = {path for rows in sections.values() for path, _, _ in rows}
    sections[MADE_HERE] = [row for path, row in rows_in(tree).items() if path not in known]
    _make_shell(folder / _SHELL, here)
    write_manifest(folder, sections)
    store.note_made_here(final.name, made_here_digest(sections[MADE_HERE]))


def section_name(package: ClosurePackage) -> str:
    """The name of a package's section: Python packages have one place only."""
    return f"{package.name}=={package.version}"


def _compile(tree: Path, final: Path, here: Interpreter) -> None:
    """Bytecode that does not depend on the time, so that an audit can tell it from other bytecode.

    Files that do not compile are left to fail, or not to be used, at run time.
    """
    import subprocess

    switches = ["-q", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", str(final)]
    line = [str(here.executable), "-I", "-S", "-m", "compileall", *switches, str(tree / SITE)]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603  the interpreter that runs this program
            line,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS,
            env={"PATH": os.defpath},
        )


def _shell_links(here: Interpreter) -> dict[str, str]:
    return {
        "bin/python": str(here.executable),
        f"lib/python{here.version}/site-packages": f"../../../{TREE}/{SITE}",
    }


def _settings(here: Interpreter) -> bytes:
    return f"home = {here.executable.parent}\ninclude-system-site-packages = false\n".encode()


def _make_shell(shell: Path, here: Interpreter) -> None:
    """What makes the interpreter take the tree for its packages: the form of a virtual environment."""
    for link, target in _shell_links(here).items():
        place = shell / link
        place.parent.mkdir(parents=True)
        place.symlink_to(target)
    (shell / "pyvenv.cfg").write_bytes(_settings(here))


def audit(folder: Path, closure: Closure, here: Interpreter, store: Store) -> str | None:
    """What is wrong with a built environment, None if nothing is."""
    shell = folder / _SHELL
    try:
        for link, target in _shell_links(here).items():
            if str((shell / link).readlink()) != target:
                return f"{_SHELL}/{link} leads elsewhere"
        if (shell / "pyvenv.cfg").read_bytes() != _settings(here):
            return f"{_SHELL}/pyvenv.cfg was changed"
        made = {str(path.relative_to(shell)) for path in shell.rglob("*") if path.is_symlink() or path.is_file()}
    except OSError as err:
        return f"it cannot be read: {err.strerror or err}"
    if extra := made - {*_shell_links(here), "pyvenv.cfg"}:
        return f"{_SHELL}/{min(extra)} does not belong to it"
    anchors = {
        section_name(package): frozenset(file.tree.raw for file in package.files if file.tree is not None)
        for package in closure.packages
    }
    anchors[MADE_HERE] = made_here_anchor(store.made_here(folder.name))
    return problem_of(folder, anchors, [section_name(closure.root), MADE_HERE])


def start_command(folder: Path, root: ClosurePackage, program: str | None) -> list[str]:
    """The command line that starts a package's program, as uvx would choose it: by the package's name."""
    programs = _programs(folder / TREE / SITE, root)
    name = program or root.name
    target = programs.get(name)
    found = _ENTRY_POINT.fullmatch(target) if target else None
    if found is None:
        raise program_unknown(root.name, name, sorted(programs))
    module, attribute = found[1], found[2]
    text = f"import sys; sys.argv[0] = {name!r}; import {module}; sys.exit({module}.{attribute}())"
    return [str(folder / _SHELL / "bin" / "python"), "-I", "-c", text]


def _programs(site: Path, root: ClosurePackage) -> dict[str, str]:
    wanted = _NAME_MARKS.sub("-", root.name).lower()
    for place in sorted(site.glob("*.dist-info")):
        name, _, _ = place.name.removesuffix(".dist-info").partition("-")
        if _NAME_MARKS.sub("-", name).lower() == wanted and (place / "entry_points.txt").is_file():
            try:
                text = read_file(place / "entry_points.txt", 1 << 20).decode()
            except UnicodeDecodeError as err:
                raise PinwardenError("PROGRAM_UNKNOWN", f"the programs of {root.name} cannot be read") from err
            return _console_scripts(text)
    return {}


def _console_scripts(text: str) -> dict[str, str]:
    """The programs that a file of entry points names. configparser takes as long to load as all else that is needed."""
    section, found = "", {}
    for line in map(str.strip, text.splitlines()):
        name, mark, target = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif mark and section == "console_scripts" and not line.startswith(("#", ";")):
            found[name.strip()] = target.strip()
    return found
