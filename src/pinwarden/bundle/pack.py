"""Pack a folder into a bundle: archive, manifest and descriptor, with the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.bundle import server_manifest
from pinwarden.bundle.bundle_archive import build_archive, build_manifest_entry
from pinwarden.bundle.bundle_documents import (
    BUNDLE_LIMITS,
    CAR_MEDIA_TYPE,
    BundleDescriptor,
    SupportedRuntimes,
    build_descriptor,
    build_descriptor_extras,
    descriptor_from_json,
    descriptor_to_json,
    to_tool_name,
)
from pinwarden.bundle.bundle_files import SUFFIXES
from pinwarden.bundle.bundled_skills import build_skills_descriptor, group_skills, refuse_undeclared_powers
from pinwarden.bundle.document import encode_document
from pinwarden.bundle.node_modules import FOLDER as NODE_MODULES
from pinwarden.bundle.node_modules import NodeModules, needs_packages, read_node_modules
from pinwarden.bundle.platforms import find_native_platforms
from pinwarden.bundle.server_manifest import MANIFEST_NAME, PLATFORMS, ServerManifest
from pinwarden.bundle.source_tree import SourceFile, SourceTree, compile_glob, read_tree
from pinwarden.core.digest import Digest, document_cid, manifest_root_cid
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.skills.skill import MAIN_FILE, FileBytes
from pinwarden.system.files import write_atomically


class SkillsIdentity(Record):
    """Name and version of a bundle of skills, which has no ``server.json``."""

    name: str
    version: str


class AddedPackages(Record):
    """The packages that are added to a server's own files."""

    files: tuple[SourceFile, ...]
    target: str
    """The file that starts the server with these packages."""
    supported: SupportedRuntimes
    packages: tuple[str, ...]
    """The packages, as ``name==version``."""
    notes: tuple[str, ...] = ()


AddPackages = Callable[[ServerManifest, SourceTree], AddedPackages | None]
"""Collects the packages of a server; None if it needs none. It may download them."""


class PackOptions(Record):
    """The folder to pack, and the options of ``pinwarden bundle pack``."""

    folder: Path
    output: Path
    """The folder for the three files."""
    media_type: str = CAR_MEDIA_TYPE
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Network, filesystem and exec permissions that override those in server.json."""
    compress: bool = False
    skills: SkillsIdentity | None = None
    """Name and version of a bundle of skills; None to pack a server."""
    exclude: Sequence[str] = ()
    """Patterns for paths that are not packed."""
    add_packages: AddPackages = lambda _, __: None


class PackedBundle(Record):
    """A packed bundle in memory, before its files are written."""

    descriptor: Mapping[str, Any]
    manifest: Mapping[str, Any]
    descriptor_cid: str
    root_cid: str
    archive: bytes = field(repr=False)
    excluded: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The common file name of its three files, without suffix."""
        return f"{self.descriptor['tool']['name']}-{self.descriptor['tool']['version']}"


def pack(options: PackOptions) -> Report:
    """Run ``pinwarden bundle pack``: pack a folder, and write the bundle's three files."""
    if options.output.resolve().is_relative_to(options.folder.resolve()):
        raise PinwardenError(
            "USAGE",
            f"{options.output} is inside the packed folder, so the next bundle would contain this one",
            hint="Choose another folder with --output DIR.",
        )
    try:
        packed = pack_folder(options)
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{options.output} cannot be written: {err.strerror or err}") from err
    except PinwardenError as err:
        if err.code not in ("SERVER_ENTRY_INVALID", "DOCUMENT_INVALID") or "Create one" in err.hint:
            raise
        raise PinwardenError(
            err.code, err.message, hint="Correct server.json in the folder, and pack it again.", data=err.data
        ) from err
    documents = {".descriptor.json": packed.descriptor, ".manifest.json": packed.manifest}
    archive = options.output / f"{packed.stem}{SUFFIXES[options.media_type]}"
    write_atomically(archive, packed.archive)
    for suffix, document in documents.items():
        write_atomically(archive.with_name(f"{archive.name}{suffix}"), encode_document(document))
    return _build_report(options, packed, archive)


def pack_folder(options: PackOptions) -> PackedBundle:
    """Pack a folder in memory.

    1. Read every file that is not left out, and parse server.json. A bundle of skills has none.
    2. Add the packages that the server needs.
    3. List the files and their CIDs in the bundle manifest. The CID of this list is the root CID.
    4. Write the files into an archive.
    5. Build the descriptor, and add its CID to the bundle manifest.
    """
    contents = _read_skills(options) if options.skills is not None else _read_server(options)
    tree = contents.tree
    unlinked = manifest_document.build_unlinked_manifest(build_manifest_entry(file) for file in tree.files)
    root = manifest_root_cid(unlinked)
    archive = build_archive(options.media_type, unlinked, root, tree.files, compress=options.compress)
    if len(archive) > BUNDLE_LIMITS.archive_bytes:
        most = BUNDLE_LIMITS.archive_bytes
        raise PinwardenError(
            "ARCHIVE_UNSAFE",
            f"the archive has {len(archive)} bytes; the limit is {most}",
            hint="Leave out files that the server does not need: --exclude GLOB",
        )
    descriptor = contents.describe(str(root), len(archive))
    descriptor_from_json(descriptor)  # raises if the built descriptor is not valid
    descriptor_cid = str(document_cid(descriptor))
    return PackedBundle(
        descriptor=descriptor,
        manifest=manifest_document.link_manifest(unlinked, descriptor_cid),
        descriptor_cid=descriptor_cid,
        root_cid=str(root),
        archive=archive,
        excluded=tree.excluded,
        packages=contents.packages,
        notes=contents.notes,
    )


class _Contents(Record):
    """The files of a bundle, and the function that describes it."""

    tree: SourceTree
    describe: Callable[[str, int], dict[str, Any]]
    """Builds the descriptor from root CID and size of the archive."""
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _read_server(options: PackOptions) -> _Contents:
    exclusion = _Exclusion(options.exclude)
    modules = None if exclusion.matches(NODE_MODULES) else read_node_modules(options.folder)
    tree = read_tree(
        options.folder,
        is_excluded=lambda path: exclusion.matches(path) or (modules is not None and modules.is_excluded(path)),
    )
    server = _read_server_manifest(tree)
    added = options.add_packages(server, tree)
    target, supported = server.entry, SupportedRuntimes(platforms=server.platforms, python=server.python)
    if added is not None:
        target, supported = added.target, added.supported
        more = (file for file in added.files if file.path == target or not exclusion.matches_inside(file.path))
        files = {file.path: file for file in (*tree.files, *more)}
        tree = replace(tree, files=tuple(files[path] for path in sorted(files)))
    exclusion.refuse_unused(options.folder)
    _refuse_undeclared_platforms(tree, supported)

    def describe(root: str, size: int) -> dict[str, Any]:
        described = build_descriptor(
            server,
            options.permissions,
            target=target,
            supported=supported,
            root_cid=root,
            media_type=options.media_type,
            size=size,
        )
        descriptor = descriptor_to_json(described)
        for member, more in build_descriptor_extras(server).items():
            descriptor[member].update(more)
        return descriptor

    return _Contents(
        tree=tree,
        describe=describe,
        packages=() if added is None else added.packages,
        notes=(*(() if added is None else added.notes), *_describe_node_modules(tree, modules)),
    )


def _read_skills(options: PackOptions) -> _Contents:
    exclusion = _Exclusion(options.exclude)
    tree = _arrange_skills(options, read_tree(options.folder, is_excluded=exclusion.matches))
    exclusion.refuse_unused(options.folder)
    identity = options.skills
    if identity is None:
        raise TypeError("the caller checks this")
    return _Contents(
        tree=tree,
        describe=lambda root, size: descriptor_to_json(_describe_skills(options, identity, tree, root, size)),
    )


class _Exclusion:
    """The patterns of ``--exclude``."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._compiled = {pattern: compile_glob(pattern) for pattern in patterns}
        self._used: set[str] = set()

    def matches(self, path: str) -> bool:
        """Whether a pattern names this path."""
        matching = [pattern for pattern, compiled in self._compiled.items() if compiled.fullmatch(path)]
        self._used.update(matching)
        return bool(matching)

    def matches_inside(self, path: str) -> bool:
        """Whether a pattern names this path, or a folder above it."""
        parts = path.split("/")
        return any(self.matches("/".join(parts[:count])) for count in range(1, len(parts) + 1))

    def refuse_unused(self, folder: Path) -> None:
        """Raise ``USAGE`` for a pattern that matched nothing.

        Otherwise a misspelt pattern would publish what its author meant to leave out.
        """
        for pattern in self._compiled.keys() - self._used:
            raise PinwardenError(
                "USAGE",
                f"--exclude {pattern[:120]}: nothing in {folder} has this path",
                hint="Write paths from the packed folder on, such as 'docs/**', or names such as '*.map'.",
            )


def _refuse_undeclared_platforms(tree: SourceTree, supported: SupportedRuntimes) -> None:
    """Raise if the bundle has native code, and its author did not state for which platforms it is."""
    if supported.platforms:
        return
    native: dict[str, str] = {}
    for file in tree.files:
        for platform in find_native_platforms(file.data):
            native.setdefault(platform, file.path)
    if native:
        first = min(native)
        stated = ", ".join(f'"{platform}"' for platform in sorted(native) if platform in PLATFORMS)
        raise PinwardenError(
            "PLATFORMS_NOT_DECLARED",
            f"{native[first][:120]!a} is native code for {first}, and {MANIFEST_NAME} states no platforms",
            hint=f'State the platforms that you tested in {MANIFEST_NAME}, of these: "platforms": [{stated}]',
            data={"found": sorted(native)},
        )


def _describe_node_modules(tree: SourceTree, modules: NodeModules | None) -> Iterator[str]:
    if modules is None:
        if needs_packages(next((file.data for file in tree.files if file.path == "package.json"), b"{}")):
            yield "there is no node_modules: if the server needs its packages, run npm ci, and pack the folder again"
        return
    left_out = f", without {len(modules.development)} for development" if modules.development else ""
    yield f"packed {plural(len(modules.kept), 'package')} of node_modules{left_out}"
    if modules.scripts:
        yield f"packages with install scripts, which are not run on installation: {', '.join(modules.scripts[:5])}"


def _arrange_skills(options: PackOptions, tree: SourceTree) -> SourceTree:
    """Return the files of the skills, each below the folder of its skill."""
    if not any(file.path == MAIN_FILE for file in tree.files):
        return tree
    folder = options.folder.resolve().name
    files = tuple(replace(file, path=f"{folder}/{file.path}") for file in tree.files)
    return SourceTree(files=files, excluded=tree.excluded)


def _describe_skills(
    options: PackOptions, identity: SkillsIdentity, tree: SourceTree, root: str, size: int
) -> BundleDescriptor:
    files = {file.path: FileBytes(data=file.data, executable=file.executable) for file in tree.files}
    skills = group_skills(files)
    name, media_type = to_tool_name(identity.name), options.media_type
    described = build_skills_descriptor(
        name, identity.version, skills, options.permissions, root_cid=root, media_type=media_type, size=size
    )
    refuse_undeclared_powers(described, skills)
    return described


def _read_server_manifest(tree: SourceTree) -> ServerManifest:
    files = {file.path: file.data for file in tree.files}
    if MANIFEST_NAME not in files:
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"the folder has no {MANIFEST_NAME}",
            hint='Create one: {"name": "acme.notes", "version": "1.0.0", "runtime": "python", "entry": "main.py"}',
        )
    server = server_manifest.parse_server_manifest(files[MANIFEST_NAME])
    if server.entry not in files:
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: entry is not a file in the folder: {server.entry[:120]!a}",
            data={"member": "entry"},
        )
    return server


def _build_report(options: PackOptions, packed: PackedBundle, archive: Path) -> Report:
    notes = [_list_excluded(packed.excluded)] if packed.excluded else []
    notes += packed.notes
    if options.compress:
        notes.append(
            "compressed: another version of the zstd library may produce other bytes and another descriptor CID"
        )
    return Report(
        command="bundle pack",
        subject=packed.stem,
        summary=f"{archive} contains {plural(len(packed.manifest['entries']), 'file')}: {packed.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=tuple(notes),
        facts={
            "tool": packed.descriptor["tool"]["name"],
            "version": packed.descriptor["tool"]["version"],
            "root_cid": packed.root_cid,
            "descriptor_cid": packed.descriptor_cid,
            "media_type": options.media_type,
            "content_hash": str(Digest.of_bytes(packed.archive)),
            "size_bytes": len(packed.archive),
            "files": len(packed.manifest["entries"]),
            "archive": str(archive),
            "descriptor": str(archive.with_name(f"{archive.name}.descriptor.json")),
            "manifest": str(archive.with_name(f"{archive.name}.manifest.json")),
            "left_out": list(packed.excluded),
            "packages": list(packed.packages),
            "platforms": packed.descriptor["entrypoint"].get("platforms", []),
            "python": packed.descriptor["entrypoint"].get("python", []),
        },
    )


def _list_excluded(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MAX_LISTED} more" if len(paths) > _MAX_LISTED else ""
    return f"not packed: {', '.join(paths[:_MAX_LISTED])}{more}"


_MAX_LISTED = 12
