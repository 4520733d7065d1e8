"""Environments of MCPB bundles: unpacked from verified bytes, and started as their manifest says for this platform."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from pinwarden.artifacts.archives.mcpb_files import content_of_bundle, manifest_of, members_of, parts_of
from pinwarden.artifacts.environments.python import Interpreter
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE, problem_of, write_file, write_manifest
from pinwarden.artifacts.mcpb_manifest import LIMITS, MANIFEST_NAME, BundleManifest, parse_manifest
from pinwarden.artifacts.mcpb_start import FilledStart, Given, fill
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.lock.closure import tree_digest
from pinwarden.system.files import read_file

BUILDER = "mcpb/1"
_SECTION = "bundle"
_NODE = frozenset({"node", "node.exe"})
_PYTHON = frozenset({"python", "python3", "python.exe", "python3.exe", "py"})
_LIBRARIES = ("server/lib", "lib")
_HERE = "${__dirname}"


class BundleStart(Record):
    """What to start. Both parts may hold the user's settings, which can be secret."""

    command: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)


class Runtimes(Record):
    """The programs of this machine that servers in bundles are run with."""

    node: Path | None
    python: Interpreter
    platform: str = sys.platform


def unpacked(archive: Path) -> Iterator[tuple[str, bool, bytes]]:
    """The files of a bundle. The program of a binary one can be executed, whatever its packer noted."""
    with content_of_bundle(archive, parts_of(archive)) as bundle:
        programs = _programs(manifest_of(bundle))
        for member in members_of(bundle):
            yield member.path, member.executable or member.path in programs, member.data


def content_of(archive: Path) -> Digest:
    """The digest of a bundle's content."""
    return tree_digest((path, run, hashlib.sha256(data).hexdigest()) for path, run, data in unpacked(archive))


def environment_key(bundle: Digest) -> str:
    """The name of the environment: what it is made from."""
    return Digest.of(f"{BUILDER}\n{bundle}".encode()).hex[:40]


def build(folder: Path, bundle: Digest, tree: Digest, store: Store) -> None:
    """Unpack a verified bundle into a folder."""
    archive = store.find(bundle)
    if archive is None:
        raise PinwardenError("ARTIFACT_MISSING", "the bundle is not in the store", data={"name": str(bundle)})
    place = folder / TREE
    place.mkdir()
    rows = [write_file(place, path, data, executable=run) for path, run, data in unpacked(archive)]
    if tree_digest(rows) != tree:
        raise PinwardenError("ARTIFACT_MISMATCH", "the bundle unpacks to something else than was locked")
    write_manifest(folder, {_SECTION: rows})


def audit(folder: Path, tree: Digest) -> str | None:
    """What is wrong with a built environment, None if nothing is."""
    return problem_of(folder, {_SECTION: frozenset([tree.raw])}, [_SECTION])


def manifest_in(folder: Path) -> BundleManifest:
    """What the manifest of a built bundle says."""
    return parse_manifest(read_file(folder / TREE / MANIFEST_NAME, LIMITS.max_bytes))


def start_command(
    folder: Path, runtimes: Runtimes, settings: Given, *, places: Mapping[str, str] | None = None
) -> BundleStart:
    """The command that starts a bundle's server, with the user's settings.

    ``places`` are the folders that a manifest may name: ``HOME``, ``DESKTOP``, ``DOCUMENTS``, ``DOWNLOADS``.
    """
    place = folder / TREE
    manifest = manifest_in(folder)
    if manifest.kind == "uv":
        raise PinwardenError(
            "NOTHING_TO_RUN",
            f"the bundle {manifest.name[:80]!a} is of type uv: it brings a list of dependencies, not their bytes, and "
            "would fetch them when it starts",
            hint="Ask its author for a bundle of type python, which brings its dependencies along.",
        )
    if manifest.platforms and runtimes.platform not in manifest.platforms:
        raise PinwardenError("NO_USABLE_FILE", f"the bundle {manifest.name[:80]!a} is not for {runtimes.platform}")
    known = {"pathSeparator": os.sep, "/": os.sep, **(places or {}), "__dirname": str(place)}
    filled = fill(manifest.start_on(runtimes.platform), manifest, settings, known)
    program, env = _program(place, manifest, filled, runtimes)
    return BundleStart(command=(*program, *_arguments(place, manifest, filled)), env=env)


def _program(
    place: Path, manifest: BundleManifest, filled: FilledStart, runtimes: Runtimes
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    command = filled.command.lower()
    if manifest.kind == "node" and command in _NODE:
        if runtimes.node is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "node is not installed, and the bundle needs it")
        return (str(runtimes.node),), filled.env
    if manifest.kind == "python" and command in _PYTHON:
        libraries = [str(place / each) for each in _LIBRARIES if (place / each).is_dir()]
        env = {"PYTHONPATH": os.pathsep.join(libraries)} if libraries else {}
        # Nothing is written beside the files of the bundle, which are audited, and nothing of the user's is imported.
        return (str(runtimes.python.executable), "-B", "-s"), {**env, **filled.env}
    own = _below(filled.command, place)
    if runtimes.platform == "win32" and not (place / own).is_file():
        own += ".exe"  # as the specification lets clients do
    return (str(_file_in(place, own, manifest)),), filled.env


def _arguments(place: Path, manifest: BundleManifest, filled: FilledStart) -> tuple[str, ...]:
    """The arguments; the entry point by its whole path, because nobody says from which folder a server is started."""
    entry = str(place / manifest.entry_point)
    if not filled.args and manifest.kind != "binary":
        return (entry,)
    return tuple(entry if each.removeprefix("./") == manifest.entry_point else each for each in filled.args)


def _programs(manifest: BundleManifest) -> frozenset[str]:
    """Files that are started themselves, on any platform."""
    if manifest.start is None:
        return frozenset()
    commands = [manifest.start.command, *(each.command for each in manifest.overrides.values() if each.command)]
    named = {each.replace("${/}", "/").removeprefix(f"{_HERE}/").removeprefix("./") for each in commands}
    return frozenset({*named, manifest.entry_point} if manifest.kind == "binary" else named)


def _below(command: str, place: Path) -> str:
    return command.removeprefix(f"{place}{os.sep}").removeprefix("./")


def _file_in(place: Path, path: str, manifest: BundleManifest) -> Path:
    """A file of the bundle; a program of this machine would not be what was verified."""
    found = place / path
    steps = Path(path)
    if not path or steps.is_absolute() or ".." in steps.parts or not found.is_file() or found.is_symlink():
        _unknown(manifest, path)
    return found


def _unknown(manifest: BundleManifest, path: str) -> NoReturn:
    message = f"the bundle {manifest.name[:80]!a} does not hold what it starts: {path[:120]!a}"
    raise PinwardenError("PROGRAM_UNKNOWN", message)
