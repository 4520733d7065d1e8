"""Environments of npm packages: tarballs unpacked into node_modules and started with node.

No script of them is run, but for those that somebody approved.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.machine import has_glibc, machine
from pinwarden.artifacts.environments.no_program import program_unknown
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import (
    MADE_HERE,
    TREE,
    Row,
    made_here_anchor,
    made_here_digest,
    problem_of,
    write_file,
    write_manifest,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import Closure, ClosurePackage, tree_digest
from pinwarden.system.files import open_regular, read_file

if TYPE_CHECKING:
    from pinwarden.artifacts.environments.scripts import Scripting

BUILDER = "node/1"
_PROCESSORS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64", "i686": "ia32", "armv7l": "arm"}
_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}


class NodePlatform(Record):
    """What npm's ``os``, ``cpu`` and ``libc`` speak about."""

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
        """One word for it."""
        return "-".join(part for part in (self.system, self.processor, self.library) if part)

    def takes(self, package: ClosurePackage) -> bool:
        """Whether a package is for this platform."""
        library = not package.libraries or _listed(self.library, package.libraries)
        return _listed(self.system, package.systems) and _listed(self.processor, package.processors) and library


def _listed(name: str, names: Sequence[str]) -> bool:
    """npm's rule: named, or not excluded where only exclusions are named."""
    if not names:
        return True
    if f"!{name}" in names:
        return False
    return name in names or all(each.startswith("!") for each in names)


def chosen(closure: Closure, here: NodePlatform) -> tuple[ClosurePackage, ...]:
    """The packages that are installed on a platform, without those inside a package that is not."""
    left_out = [f"{package.path}/" for package in closure.packages if not here.takes(package)]
    found = [
        package for package in closure.packages if here.takes(package) and not package.path.startswith(tuple(left_out))
    ]
    for package in closure.packages:
        if package not in found and not package.optional:
            raise PinwardenError("NO_USABLE_FILE", f"{package.name}@{package.version} is not for {here.key}")
    return tuple(found)


def content_of(archive: Path) -> Digest:
    """The digest of a package's content, for the closure."""
    import hashlib

    from pinwarden.artifacts.npm_tarball import unpacked

    return tree_digest((path, run, hashlib.sha256(data).hexdigest()) for path, run, data in unpacked(archive))


def declared_scripts(archive: Path) -> dict[str, str]:
    """The scripts that npm would run on installing a package, by event; none of a package that cannot be read."""
    from pinwarden.artifacts.npm_package import read_run_info
    from pinwarden.artifacts.npm_tarball import read_manifest

    try:
        with open_regular(archive) as stream:
            manifest = read_manifest(stream)
        return dict(read_run_info(manifest.document, has_gyp=manifest.has_gyp).scripts)
    except PinwardenError:
        return {}


def environment_key(closure_digest: Digest, here: NodePlatform, scripted: Sequence[ClosurePackage] = ()) -> str:
    """The name of the environment: what it is made from, for what, and which packages ran their scripts in it."""
    ran = "".join(f"\n{package.files[0].digest}" for package in scripted)
    return Digest.of(f"{BUILDER}\n{closure_digest}\n{here.key}{ran}".encode()).hex[:40]


def build(
    folder: Path, key: str, packages: Sequence[ClosurePackage], store: Store, scripting: Scripting | None = None
) -> None:
    """Unpack verified archives into a folder, then run the scripts that were approved. ``key`` is the environment's."""
    from pinwarden.artifacts.npm_tarball import unpacked

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
            write_file(tree, f"{package.path}/{path}", data, executable=run) for path, run, data in unpacked(archive)
        ]
        skip = len(package.path) + 1
        sections[package.path] = [(path[skip:], run, digest) for path, run, digest in rows]
        if tree_digest(sections[package.path]) != _tree_of(package):
            raise PinwardenError("ARTIFACT_MISMATCH", f"{package.name}@{package.version} unpacks to something else")
    made: dict[str, list[Row]] = {}
    if scripting is not None:
        from pinwarden.artifacts.environments.scripts import made_by_scripts, run_scripts

        run_scripts(folder, scripting, packages)
        made = {MADE_HERE: made_by_scripts(tree, sections, scripting)}
        store.note_made_here(key, made_here_digest(made[MADE_HERE]))
    write_manifest(folder, {**sections, **made})


def audit(
    folder: Path, packages: Sequence[ClosurePackage], store: Store, scripted: Sequence[ClosurePackage] = ()
) -> str | None:
    """What is wrong with a built environment, None if nothing is."""
    anchors = {package.path: frozenset([_tree_of(package).raw]) for package in packages}
    if not scripted:
        return problem_of(folder, anchors, anchors)
    anchors[MADE_HERE] = made_here_anchor(store.made_here(folder.name))
    return problem_of(folder, anchors, anchors, rewritten=tuple(each.path for each in scripted))


def start_command(folder: Path, root: ClosurePackage, program: str | None, node: Path) -> list[str]:
    """The command line that starts a package's program, as npx would choose it."""
    place = folder / TREE / root.path
    try:
        about = json.loads(read_file(place / "package.json"))
    except (ValueError, RecursionError) as err:
        raise PinwardenError("PROGRAM_UNKNOWN", f"the package.json of {root.name} cannot be read") from err
    declared = about.get("bin") if isinstance(about, dict) else None
    bare = root.name.rpartition("/")[2]
    programs = {bare: declared} if isinstance(declared, str) else declared if isinstance(declared, dict) else {}
    if program is None:
        program = bare if bare in programs or len(set(map(str, programs.values()))) != 1 else next(iter(programs))
    path = programs.get(program)
    script = (place / path).resolve() if isinstance(path, str) and "\0" not in path else None
    if script is None or not script.is_relative_to(place.resolve()) or not script.is_file():
        raise program_unknown(root.name, program, sorted(map(str, programs)))
    return [str(node), str(script)]


def _tree_of(package: ClosurePackage) -> Digest:
    tree = package.files[0].tree
    if tree is None:
        raise PinwardenError("CLOSURE_INVALID", f"the content of {package.name}@{package.version} was never recorded")
    return tree
