"""Environments of npm packages: tarballs unpacked into node_modules, started with node.

Only install scripts that the user approved are run, in a sandbox.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pinwarden.artifacts.environments import has_glibc, machine, program_unknown
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import (
    MADE_HERE,
    TREE,
    Row,
    audit_tree,
    hash_tree,
    made_here_anchor,
    made_here_digest,
    tree_digest,
    write_file,
    write_manifest,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.system.files import open_regular, read_file

BUILDER = "node/1"
_PROCESSORS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64", "i686": "ia32", "armv7l": "arm"}
_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}


class NodePlatform(Record):
    """A platform in terms of npm's ``os``, ``cpu`` and ``libc``."""

    system: str
    processor: str
    library: str

    @classmethod
    def here(cls) -> NodePlatform:
        """This machine."""
        processor = machine().lower()
        system = _SYSTEMS.get(sys.platform, sys.platform)
        library = "" if system != "linux" else "glibc" if has_glibc() else "musl"
        return cls(system=system, processor=_PROCESSORS.get(processor, processor), library=library)

    @property
    def key(self) -> str:
        """The platform in one word."""
        return "-".join(part for part in (self.system, self.processor, self.library) if part)

    def takes(self, package: ClosurePackage) -> bool:
        """Whether a package supports this platform."""
        library = not package.libraries or _listed(self.library, package.libraries)
        return _listed(self.system, package.systems) and _listed(self.processor, package.processors) and library


def _listed(name: str, names: Sequence[str]) -> bool:
    """npm's rule: listed, or not excluded if the list has only exclusions."""
    if not names:
        return True
    if f"!{name}" in names:
        return False
    return name in names or all(entry.startswith("!") for entry in names)


def choose_packages(closure: Closure, platform: NodePlatform) -> tuple[ClosurePackage, ...]:
    """The packages to install on a platform. A package inside one that is left out is left out too."""
    left_out = [f"{package.path}/" for package in closure.packages if not platform.takes(package)]
    packages = [
        package
        for package in closure.packages
        if platform.takes(package) and not package.path.startswith(tuple(left_out))
    ]
    for package in closure.packages:
        if package not in packages and not package.optional:
            raise PinwardenError("NO_USABLE_FILE", f"{package.name}@{package.version} does not support {platform.key}")
    return tuple(packages)


def package_tree_digest(archive: Path) -> Digest:
    """The tree digest of a package's content."""
    import hashlib

    from pinwarden.artifacts.archives.package_tarball import tarball_files

    return tree_digest((path, run, hashlib.sha256(data).hexdigest()) for path, run, data in tarball_files(archive))


def declared_scripts(archive: Path) -> dict[str, str]:
    """The scripts npm would run on installation, by event; empty if the package cannot be read."""
    from pinwarden.artifacts.archives.package_tarball import read_manifest
    from pinwarden.artifacts.npm_package import read_run_info

    try:
        with open_regular(archive) as stream:
            manifest = read_manifest(stream)
        return dict(read_run_info(manifest.document, has_gyp=manifest.has_gyp).scripts)
    except PinwardenError:
        return {}


def environment_key(closure_digest: Digest, platform: NodePlatform, scripted: Sequence[ClosurePackage] = ()) -> str:
    """The environment's name in the store: what it is built from, for which platform, and whose scripts were run."""
    ran = "".join(f"\n{package.files[0].digest}" for package in scripted)
    return Digest.of_bytes(f"{BUILDER}\n{closure_digest}\n{platform.key}{ran}".encode()).hex[:40]


def build(
    folder: Path, key: str, packages: Sequence[ClosurePackage], store: Store, scripting: ScriptApprovals | None = None
) -> None:
    """Unpack verified archives into a folder, then run the approved scripts. ``key`` is the environment's."""
    from pinwarden.artifacts.archives.package_tarball import tarball_files

    tree = folder / TREE
    tree.mkdir()
    sections: dict[str, list[Row]] = {}
    for package in packages:
        archive = store.find(package.files[0].digest)
        if archive is None:
            raise PinwardenError(
                "ARTIFACT_MISSING", f"{package.name}@{package.version} is not in the store", data={"name": package.name}
            )
        rows = [
            write_file(tree, f"{package.path}/{path}", data, executable=run)
            for path, run, data in tarball_files(archive)
        ]
        skip = len(package.path) + 1
        sections[package.path] = [(path[skip:], run, digest) for path, run, digest in rows]
        if tree_digest(sections[package.path]) != _tree_of(package):
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"{package.name}@{package.version} unpacks to other files than the locked ones"
            )
    extra_sections: dict[str, list[Row]] = {}
    if scripting is not None:
        run_scripts(folder, scripting, packages)
        extra_sections = {MADE_HERE: files_made_by_scripts(tree, sections, scripting)}
        store.note_made_here(key, made_here_digest(extra_sections[MADE_HERE]))
    write_manifest(folder, {**sections, **extra_sections})


def audit(
    folder: Path, packages: Sequence[ClosurePackage], store: Store, scripted: Sequence[ClosurePackage] = ()
) -> str | None:
    """Check a built environment. Returns the first problem, or None."""
    anchors = {package.path: frozenset([_tree_of(package).raw]) for package in packages}
    if not scripted:
        return audit_tree(folder, anchors, anchors)
    anchors[MADE_HERE] = made_here_anchor(store.made_here(folder.name))
    return audit_tree(folder, anchors, anchors, rewritten=tuple(package.path for package in scripted))


def start_command(folder: Path, root: ClosurePackage, program: str | None, node: Path) -> list[str]:
    """The command that starts a package's program, chosen as npx does."""
    package_folder = folder / TREE / root.path
    try:
        manifest = json.loads(read_file(package_folder / "package.json"))
    except (ValueError, RecursionError) as err:
        raise PinwardenError("PROGRAM_UNKNOWN", f"the package.json of {root.name} is not valid JSON") from err
    declared = manifest.get("bin") if isinstance(manifest, dict) else None
    bare = root.name.rpartition("/")[2]
    programs = {bare: declared} if isinstance(declared, str) else declared if isinstance(declared, dict) else {}
    if program is None:
        program = bare if bare in programs or len(set(map(str, programs.values()))) != 1 else next(iter(programs))
    path = programs.get(program)
    script = (package_folder / path).resolve() if isinstance(path, str) and "\0" not in path else None
    if script is None or not script.is_relative_to(package_folder.resolve()) or not script.is_file():
        raise program_unknown(root.name, program, sorted(map(str, programs)))
    return [str(node), str(script)]


def _tree_of(package: ClosurePackage) -> Digest:
    tree = package.files[0].tree
    if tree is None:
        raise PinwardenError("CLOSURE_INVALID", f"the lock has no tree digest for {package.name}@{package.version}")
    return tree


# Install scripts


SCRIPT_SECONDS = 600.0
_PROGRAMS = "programs"
_SYSTEM_FOLDERS = ("/usr", "/bin", "/opt")


class ScriptApprovals(Record):
    """Which packages may run their install scripts, and how."""

    packages: tuple[ClosurePackage, ...]
    search_path: str
    without_sandbox: bool = False


def run_scripts(folder: Path, scripting: ScriptApprovals, packages: Sequence[ClosurePackage]) -> None:
    """Run the approved scripts in a newly unpacked environment, deepest packages first."""
    import shutil

    if shutil.which("bwrap") is None and not scripting.without_sandbox:
        first = scripting.packages[0]
        raise PinwardenError(
            "SCRIPT_REFUSED",
            f"the install script of {first.name}@{first.version} was not run: bubblewrap is not installed",
        )
    programs = folder / _PROGRAMS
    _write_programs(programs, folder / TREE, packages)
    try:
        for package in sorted(
            scripting.packages, key=lambda package: (-package.path.count("node_modules/"), package.path)
        ):
            _run_package(folder / TREE / package.path, package, programs, scripting)
    finally:
        shutil.rmtree(programs)


def _depth_first(package: ClosurePackage) -> tuple[int, str]:
    return -package.path.count("node_modules/"), package.path


def _run_package(package_folder: Path, package: ClosurePackage, programs: Path, scripting: ScriptApprovals) -> None:
    import shutil

    from pinwarden.artifacts.npm_package import INSTALL_SCRIPTS, read_run_info
    from pinwarden.system.processes import BoundedTask, run_bounded
    from pinwarden.system.sandbox import Sandbox, sandboxed

    scripts = read_run_info(_manifest(package_folder), has_gyp=(package_folder / "binding.gyp").is_file()).scripts
    for file in _files(package_folder):  # as with npm: many scripts replace files of their package
        file.chmod(file.stat().st_mode | stat.S_IWUSR)
    for event in filter(scripts.__contains__, INSTALL_SCRIPTS):
        environment = {
            "PATH": f"{programs}{os.pathsep}{scripting.search_path}",
            "HOME": str(package_folder),
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
            sandbox = Sandbox(readable=readable, writable=(str(package_folder),))
            command = sandboxed(tuple(command), {**environment, "HOME": "/"}, str(package_folder), sandbox)
        name = f"the {event} script of {package.name}@{package.version}"
        run_bounded(
            command,
            package_folder,
            environment,
            BoundedTask(name=name, error_code="SCRIPT_FAILED", timeout_seconds=SCRIPT_SECONDS),
        )


def _node_folders(search_path: str) -> list[str]:
    """The folder of node, if it is not one of the system's."""
    import shutil

    program = shutil.which("node", path=search_path)
    node = Path(program).resolve() if program else None
    if node is None or any(node.is_relative_to(folder) for folder in _SYSTEM_FOLDERS):
        return []
    return [str(node.parent.parent if node.parent.name == "bin" else node.parent)]


def _manifest(package_folder: Path) -> Any:
    try:
        return json.loads(read_file(package_folder / "package.json"))
    except (ValueError, RecursionError) as err:
        raise PinwardenError("SCRIPT_FAILED", f"the package.json of {package_folder.name} is not valid JSON") from err


def _write_programs(programs: Path, tree: Path, packages: Iterable[ClosurePackage]) -> None:
    """Write wrappers for the closure's programs, which scripts expect on the search path."""
    programs.mkdir()
    for package in packages:
        manifest = _manifest(tree / package.path)
        declared = manifest.get("bin") if isinstance(manifest, dict) else None
        programs_by_name = {package.name.rpartition("/")[2]: declared} if isinstance(declared, str) else declared
        for name, path in (programs_by_name if isinstance(programs_by_name, dict) else {}).items():
            script = tree / package.path / str(path)
            is_plain_name = name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")
            if (
                is_plain_name
                and "\0" not in str(path)
                and _is_node_script(script, tree)
                and not (programs / name).exists()
            ):
                (programs / name).write_text(f"#!/bin/sh\nexec node '{str(script).replace(chr(39), _QUOTE)}' \"$@\"\n")
                (programs / name).chmod(0o755)


_QUOTE = "'\\''"


def _is_node_script(script: Path, tree: Path) -> bool:
    if not script.resolve().is_relative_to(tree.resolve()) or not script.is_file():
        return False
    with script.open("rb") as stream:
        line = stream.readline(200)
    return line.startswith(b"#!") and b"node" in line


def files_made_by_scripts(tree: Path, sections: dict[str, list[Row]], scripting: ScriptApprovals) -> list[Row]:
    """The files that scripts made or changed, as rows relative to the tree.

    Links are removed, as npm removes them from archives, because an audit cannot cover their targets. Raises
    ``SCRIPT_FAILED`` if a script removed a locked file or changed another package.
    """
    for package in scripting.packages:
        _normalise(tree / package.path)
    locked = {f"{path}/{row[0]}": row[1:] for path, rows in sections.items() for row in rows}
    current = hash_tree(tree)
    if missing := sorted(locked.keys() - current.keys()):
        raise PinwardenError("SCRIPT_FAILED", f"an install script removed the locked file {missing[0][:200]}")
    changed = [row for path, row in sorted(current.items()) if locked.get(path) != row[1:]]
    allowed = {package.path for package in scripting.packages}
    for path, _, _ in changed:
        if _owner(path, sections) not in allowed:
            raise PinwardenError("SCRIPT_FAILED", f"an install script changed {path[:200]}, a file of another package")
    return changed


def _owner(path: str, sections: Iterable[str]) -> str:
    """The package whose folder has the file; the innermost if packages are nested."""
    return max((section for section in sections if path.startswith(f"{section}/")), key=len, default="")


def _normalise(package_folder: Path) -> None:
    """Delete everything that is neither file nor folder, and reset permissions to those of unpacked files."""
    for folder, folders, names in os.walk(package_folder):
        for name in (*folders, *names):
            path = Path(folder) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                path.chmod(0o555 if mode & 0o111 else 0o444)
            elif stat.S_ISDIR(mode):
                path.chmod(0o755)
            else:
                path.unlink()


def _files(folder_path: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(folder_path) for name in names]
