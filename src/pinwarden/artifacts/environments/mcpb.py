"""Unpacks MCPB bundles from verified bytes, and starts them as the manifest specifies for this platform."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from pinwarden.artifacts.archives.mcpb_archive import (
    open_content,
    read_bundle_manifest,
    read_bundle_members,
    read_bundle_parts,
)
from pinwarden.artifacts.environments.python import Interpreter
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE, audit_tree, write_file, write_manifest
from pinwarden.artifacts.mcpb_manifest import (
    LIMITS,
    MANIFEST_NAME,
    BundleManifest,
    FilledStartCommand,
    SettingValues,
    fill_start_command,
    parse_manifest,
)
from pinwarden.core.digest import Digest, hash_file_list
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.files import read_file

BUILDER = "mcpb/1"
_SECTION = "bundle"
_NODE_NAMES = frozenset({"node", "node.exe"})
_PYTHON_NAMES = frozenset({"python", "python3", "python.exe", "python3.exe", "py"})
_LIBRARY_FOLDERS = ("server/lib", "lib")
_BUNDLE_FOLDER = "${__dirname}"


class BundleStart(Record):
    """The command that starts a bundle's server. Both fields may contain secret settings of the user."""

    command: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)


class Runtimes(Record):
    """The programs on this machine that run servers from bundles."""

    node: Path | None
    python: Interpreter
    platform: str = sys.platform


def read_bundle_files(archive: Path) -> Iterator[tuple[str, bool, bytes]]:
    """Yield the files of a bundle. A program that the manifest starts is executable even without the permission bit."""
    with open_content(archive, read_bundle_parts(archive)) as bundle:
        programs = _list_programs(read_bundle_manifest(bundle))
        for member in read_bundle_members(bundle):
            yield member.path, member.executable or member.path in programs, member.data


def compute_bundle_digest(archive: Path) -> Digest:
    """Return the tree digest of a bundle's content."""
    return hash_file_list(
        (path, executable, hashlib.sha256(data).hexdigest()) for path, executable, data in read_bundle_files(archive)
    )


def compute_environment_key(bundle: Digest) -> str:
    """Return the environment's name in the store."""
    return Digest.of_bytes(f"{BUILDER}\n{bundle}".encode()).hex[:40]


def build(folder: Path, bundle: Digest, tree: Digest, store: Store) -> None:
    """Unpack a verified bundle into a folder."""
    archive = store.find(bundle)
    if archive is None:
        raise PinwardenError("ARTIFACT_MISSING", "the bundle is not in the store", data={"name": str(bundle)})
    tree_folder = folder / TREE
    tree_folder.mkdir()
    rows = [
        write_file(tree_folder, path, data, executable=executable)
        for path, executable, data in read_bundle_files(archive)
    ]
    if hash_file_list(rows) != tree:
        raise PinwardenError("ARTIFACT_MISMATCH", "the bundle unpacks to files that differ from the locked files")
    write_manifest(folder, {_SECTION: rows})


def audit(folder: Path, tree: Digest) -> str | None:
    """Check a built environment. Returns the first problem, or None."""
    return audit_tree(folder, {_SECTION: frozenset([tree.raw])}, [_SECTION])


def read_built_manifest(folder: Path) -> BundleManifest:
    """Return the manifest of a built bundle."""
    return parse_manifest(read_file(folder / TREE / MANIFEST_NAME, LIMITS.max_bytes))


def build_start_command(
    folder: Path, runtimes: Runtimes, settings: SettingValues, *, folders: Mapping[str, str] | None = None
) -> BundleStart:
    """Return the command that starts a bundle's server with the user's settings.

    ``folders`` has the folders that a manifest may refer to: ``HOME``, ``DESKTOP``, ``DOCUMENTS``, ``DOWNLOADS``.
    """
    tree = folder / TREE
    manifest = read_built_manifest(folder)
    if manifest.kind == "uv":
        raise PinwardenError(
            "NOTHING_TO_RUN",
            f"the bundle {manifest.name[:80]!a} is of type uv: it lists dependencies without including them, and "
            "would download them when it starts",
            hint="Ask its author for a bundle of type python, which includes its dependencies.",
        )
    if manifest.platforms and runtimes.platform not in manifest.platforms:
        raise PinwardenError(
            "NO_USABLE_FILE", f"the bundle {manifest.name[:80]!a} does not support {runtimes.platform}"
        )
    builtins = {"pathSeparator": os.sep, "/": os.sep, **(folders or {}), "__dirname": str(tree)}
    filled = fill_start_command(manifest.get_start(runtimes.platform), manifest, settings, builtins)
    program, env = _choose_program(tree, manifest, filled, runtimes)
    return BundleStart(command=(*program, *_build_arguments(tree, manifest, filled)), env=env)


def _choose_program(
    tree: Path, manifest: BundleManifest, filled: FilledStartCommand, runtimes: Runtimes
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    command = filled.command.lower()
    if manifest.kind == "node" and command in _NODE_NAMES:
        if runtimes.node is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "the bundle needs node, which is not installed")
        return (str(runtimes.node),), filled.env
    if manifest.kind == "python" and command in _PYTHON_NAMES:
        libraries = [str(tree / library) for library in _LIBRARY_FOLDERS if (tree / library).is_dir()]
        env = {"PYTHONPATH": os.pathsep.join(libraries)} if libraries else {}
        # -B: write no bytecode next to audited files. -s: import nothing from the user's own packages.
        return (str(runtimes.python.executable), "-B", "-s"), {**env, **filled.env}
    path = _make_relative_to_tree(filled.command, tree)
    if runtimes.platform == "win32" and not (tree / path).is_file():
        path += ".exe"  # the specification allows this on Windows
    return (str(_check_program_file(tree, path, manifest)),), filled.env


def _build_arguments(tree: Path, manifest: BundleManifest, filled: FilledStartCommand) -> tuple[str, ...]:
    """Return the arguments, with an absolute path for the entry point. MCPB does not specify a working directory."""
    entry = str(tree / manifest.entry_point)
    if not filled.args and manifest.kind != "binary":
        return (entry,)
    return tuple(entry if arg.removeprefix("./") == manifest.entry_point else arg for arg in filled.args)


def _list_programs(manifest: BundleManifest) -> frozenset[str]:
    """Return the files a manifest starts directly, on any platform."""
    if manifest.start is None:
        return frozenset()
    commands = [manifest.start.command, *(start.command for start in manifest.overrides.values() if start.command)]
    programs = {path.replace("${/}", "/").removeprefix(f"{_BUNDLE_FOLDER}/").removeprefix("./") for path in commands}
    return frozenset({*programs, manifest.entry_point} if manifest.kind == "binary" else programs)


def _make_relative_to_tree(command: str, tree: Path) -> str:
    return command.removeprefix(f"{tree}{os.sep}").removeprefix("./")


def _check_program_file(tree: Path, path: str, manifest: BundleManifest) -> Path:
    """Return the path of a program in the bundle.

    Refuses programs outside the bundle, because they were not verified.
    """
    file = tree / path
    parts = Path(path)
    if not path or parts.is_absolute() or ".." in parts.parts or not file.is_file() or file.is_symlink():
        _refuse_program(manifest, path)
    return file


def _refuse_program(manifest: BundleManifest, path: str) -> NoReturn:
    message = f"the bundle {manifest.name[:80]!a} does not contain the program it starts: {path[:120]!a}"
    raise PinwardenError("PROGRAM_UNKNOWN", message)
