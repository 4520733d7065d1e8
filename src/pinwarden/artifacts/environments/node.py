"""Builds environments of npm packages: unpacks tarballs into node_modules, and starts programs with node.

Install scripts run only if the user approved them. They run in a sandbox unless the user disabled it.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pinwarden.artifacts.environments import get_processor_architecture, has_glibc, unknown_program_error
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
from pinwarden.core.digest import Digest, TreeFile, hash_file_list
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.system.files import open_regular, read_file

BUILDER = "node/1"
_PROCESSORS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64", "i686": "ia32", "armv7l": "arm"}
_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}


class NodePlatform(Record):
    """A platform, with npm's values for ``os``, ``cpu`` and ``libc``."""

    system: str
    processor: str
    libc: str

    @classmethod
    def current(cls) -> NodePlatform:
        """Return the platform of this machine."""
        processor = get_processor_architecture().lower()
        system = _SYSTEMS.get(sys.platform, sys.platform)
        libc = "" if system != "linux" else "glibc" if has_glibc() else "musl"
        return cls(system=system, processor=_PROCESSORS.get(processor, processor), libc=libc)

    @property
    def key(self) -> str:
        """The platform as one string, such as ``linux-x64-glibc``."""
        return "-".join(part for part in (self.system, self.processor, self.libc) if part)

    def supports(self, package: ClosurePackage) -> bool:
        """Whether a package supports this platform."""
        supports_libc = not package.libc or _is_allowed(self.libc, package.libc)
        return _is_allowed(self.system, package.os) and _is_allowed(self.processor, package.cpu) and supports_libc


def _is_allowed(name: str, names: Sequence[str]) -> bool:
    """Apply npm's rule: a list with names allows only these; a list with only exclusions allows everything else."""
    if not names:
        return True
    if f"!{name}" in names:
        return False
    return name in names or all(listed.startswith("!") for listed in names)


def choose_packages(closure: Closure, platform: NodePlatform) -> tuple[ClosurePackage, ...]:
    """Return the packages to install on a platform.

    Leaves out unsupported optional packages and the packages nested in them. Raises ``NO_USABLE_FILE`` if a required
    package does not support the platform.
    """
    excluded = [f"{package.path}/" for package in closure.packages if not platform.supports(package)]
    packages = [
        package
        for package in closure.packages
        if platform.supports(package) and not package.path.startswith(tuple(excluded))
    ]
    for package in closure.packages:
        if package not in packages and not package.is_optional:
            raise PinwardenError("NO_USABLE_FILE", f"{package.name}@{package.version} does not support {platform.key}")
    return tuple(packages)


def compute_package_digest(archive: Path) -> Digest:
    """Return the tree digest of a package's content."""
    import hashlib

    from pinwarden.artifacts.archives.package_tarball import read_tarball_files

    return hash_file_list(
        (path, executable, hashlib.sha256(data).hexdigest()) for path, executable, data in read_tarball_files(archive)
    )


def read_install_scripts(archive: Path) -> dict[str, str]:
    """Return the scripts that npm would run on installation, by event. Empty if the package cannot be read."""
    from pinwarden.artifacts.archives.package_tarball import read_package_json
    from pinwarden.artifacts.npm_package import parse_install_manifest

    try:
        with open_regular(archive) as stream:
            manifest = read_package_json(stream)
        return dict(parse_install_manifest(manifest.document, has_gyp=manifest.has_gyp).scripts)
    except PinwardenError:
        return {}


def compute_environment_key(
    closure_digest: Digest, platform: NodePlatform, script_packages: Sequence[ClosurePackage] = ()
) -> str:
    """Return the environment's name in the store, derived from closure, platform, and packages whose scripts ran."""
    script_digests = "".join(f"\n{package.files[0].digest}" for package in script_packages)
    return Digest.of_bytes(f"{BUILDER}\n{closure_digest}\n{platform.key}{script_digests}".encode()).hex[:40]


def build(
    folder: Path, key: str, packages: Sequence[ClosurePackage], store: Store, approvals: ScriptApprovals | None = None
) -> None:
    """Unpack verified archives into a folder, then run the approved scripts. ``key`` is the environment's key."""
    from pinwarden.artifacts.archives.package_tarball import read_tarball_files

    tree = folder / TREE
    tree.mkdir()
    sections: dict[str, list[TreeFile]] = {}
    for package in packages:
        archive = store.find(package.files[0].digest)
        if archive is None:
            raise PinwardenError(
                "ARTIFACT_MISSING", f"{package.name}@{package.version} is not in the store", data={"name": package.name}
            )
        files = [
            write_file(tree, f"{package.path}/{path}", data, executable=executable)
            for path, executable, data in read_tarball_files(archive)
        ]
        prefix_length = len(package.path) + 1
        sections[package.path] = [(path[prefix_length:], executable, digest) for path, executable, digest in files]
        if hash_file_list(sections[package.path]) != _get_locked_tree(package):
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"the files of {package.name}@{package.version} differ from the locked files"
            )
    extra_sections: dict[str, list[TreeFile]] = {}
    if approvals is not None:
        run_scripts(folder, approvals, packages)
        extra_sections = {BUILD_OUTPUT: find_script_files(tree, sections, approvals)}
        store.record_build_output_digest(key, compute_build_output_digest(extra_sections[BUILD_OUTPUT]))
    write_manifest(folder, {**sections, **extra_sections})


def audit(
    folder: Path, packages: Sequence[ClosurePackage], store: Store, script_packages: Sequence[ClosurePackage] = ()
) -> str | None:
    """Check a built environment. Returns the first problem, or None."""
    anchors = {package.path: frozenset([_get_locked_tree(package).raw]) for package in packages}
    if not script_packages:
        return audit_tree(folder, anchors, anchors)
    anchors[BUILD_OUTPUT] = make_build_output_anchor(store.read_build_output_digest(folder.name))
    return audit_tree(folder, anchors, anchors, script_folders=tuple(package.path for package in script_packages))


def build_start_command(folder: Path, root: ClosurePackage, program: str | None, node: Path) -> list[str]:
    """Return the command that starts a package's program, chosen as npx does."""
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
        raise unknown_program_error(root.name, program, sorted(map(str, programs)))
    return [str(node), str(script)]


def _get_locked_tree(package: ClosurePackage) -> Digest:
    tree = package.files[0].tree
    if tree is None:
        raise PinwardenError("CLOSURE_INVALID", f"the lock has no tree digest for {package.name}@{package.version}")
    return tree


# Install scripts


SCRIPT_SECONDS = 600.0
_PROGRAM_FOLDER = "programs"
_SYSTEM_FOLDERS = ("/usr", "/bin", "/opt")


class ScriptApprovals(Record):
    """Which packages may run their install scripts, and how."""

    packages: tuple[ClosurePackage, ...]
    search_path: str
    without_sandbox: bool = False


def run_scripts(folder: Path, approvals: ScriptApprovals, packages: Sequence[ClosurePackage]) -> None:
    """Run the approved scripts in a newly unpacked environment, deepest packages first."""
    import shutil

    from pinwarden.system.sandbox import find_bubblewrap

    if find_bubblewrap() is None and not approvals.without_sandbox:
        first = approvals.packages[0]
        raise PinwardenError(
            "SCRIPT_REFUSED",
            f"the install script of {first.name}@{first.version} was not run: bubblewrap is not installed",
        )
    programs = folder / _PROGRAM_FOLDER
    _write_program_wrappers(programs, folder / TREE, packages)
    try:
        for package in sorted(approvals.packages, key=_get_depth_order):
            _run_package_scripts(folder / TREE / package.path, package, programs, approvals)
    finally:
        shutil.rmtree(programs)


def _get_depth_order(package: ClosurePackage) -> tuple[int, str]:
    return -package.path.count("node_modules/"), package.path


def _run_package_scripts(
    package_folder: Path, package: ClosurePackage, programs: Path, approvals: ScriptApprovals
) -> None:
    from pinwarden.artifacts.npm_package import INSTALL_SCRIPTS, parse_install_manifest
    from pinwarden.system.bounded_task import BoundedTask, run_bounded
    from pinwarden.system.sandbox import Sandbox, build_sandbox_command, find_bubblewrap

    scripts = parse_install_manifest(
        _read_package_json(package_folder), has_gyp=(package_folder / "binding.gyp").is_file()
    ).scripts
    for file in _list_files(package_folder):  # many scripts replace files of their package
        file.chmod(file.stat().st_mode | stat.S_IWUSR)
    for event in filter(scripts.__contains__, INSTALL_SCRIPTS):
        environment = {
            "PATH": f"{programs}{os.pathsep}{approvals.search_path}",
            "HOME": str(package_folder),
            "LANG": "C.UTF-8",
            "npm_lifecycle_event": event,
            "npm_package_name": package.name,
            "npm_package_version": package.version,
            "npm_config_offline": "true",
        }
        command: list[str] = ["/bin/sh", "-c", scripts[event]]
        if find_bubblewrap() is not None:
            tree = str(programs.parent / TREE)
            readable = (tree, str(programs), *_find_node_folders(approvals.search_path))
            sandbox = Sandbox(readable=readable, writable=(str(package_folder),))
            command = build_sandbox_command(tuple(command), {**environment, "HOME": "/"}, str(package_folder), sandbox)
        name = f"the {event} script of {package.name}@{package.version}"
        run_bounded(
            command,
            package_folder,
            environment,
            BoundedTask(name=name, error_code="SCRIPT_FAILED", timeout_seconds=SCRIPT_SECONDS),
        )


def _find_node_folders(search_path: str) -> list[str]:
    """Return the folder that ``node`` is installed in. Empty if ``node`` is missing or in a system folder."""
    import shutil

    program = shutil.which("node", path=search_path)
    node = Path(program).resolve() if program else None
    if node is None or any(node.is_relative_to(folder) for folder in _SYSTEM_FOLDERS):
        return []
    return [str(node.parent.parent if node.parent.name == "bin" else node.parent)]


def _read_package_json(package_folder: Path) -> Any:
    try:
        return json.loads(read_file(package_folder / "package.json"))
    except (ValueError, RecursionError) as err:
        raise PinwardenError("SCRIPT_FAILED", f"the package.json of {package_folder.name} is not valid JSON") from err


def _write_program_wrappers(programs: Path, tree: Path, packages: Iterable[ClosurePackage]) -> None:
    """Write a wrapper for each program of the closure, because scripts expect to find these programs in PATH."""
    programs.mkdir()
    for package in packages:
        manifest = _read_package_json(tree / package.path)
        declared = manifest.get("bin") if isinstance(manifest, dict) else None
        programs_by_name = {package.name.rpartition("/")[2]: declared} if isinstance(declared, str) else declared
        for name, path in (programs_by_name if isinstance(programs_by_name, dict) else {}).items():
            script = tree / package.path / str(path)
            is_plain_name = name not in ("", ".", "..") and not any(character in name for character in "/\\\0")
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


def find_script_files(tree: Path, sections: dict[str, list[TreeFile]], approvals: ScriptApprovals) -> list[TreeFile]:
    """Return the files that scripts created or changed, with paths relative to the tree.

    Removes links that scripts created, because an audit cannot cover their targets. Raises ``SCRIPT_FAILED`` if a
    script removed a locked file or changed another package.
    """
    for package in approvals.packages:
        _reset_permissions(tree / package.path)
    locked = {f"{section}/{file[0]}": file[1:] for section, files in sections.items() for file in files}
    current = hash_tree(tree)
    if missing := sorted(locked.keys() - current.keys()):
        raise PinwardenError("SCRIPT_FAILED", f"an install script removed the locked file {missing[0][:200]}")
    changed = [file for path, file in sorted(current.items()) if locked.get(path) != file[1:]]
    allowed = {package.path for package in approvals.packages}
    for path, _, _ in changed:
        if _find_owning_package(path, sections) not in allowed:
            raise PinwardenError("SCRIPT_FAILED", f"an install script changed {path[:200]}, a file of another package")
    return changed


def _find_owning_package(path: str, sections: Iterable[str]) -> str:
    """Return the path of the innermost package whose folder contains the file; empty if there is none."""
    return max((section for section in sections if path.startswith(f"{section}/")), key=len, default="")


def _reset_permissions(package_folder: Path) -> None:
    """Delete links and special files, and give files and folders the permissions of unpacked ones."""
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


def _list_files(folder_path: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(folder_path) for name in names]
