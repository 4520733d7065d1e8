"""Pack a folder into a bundle: archive, manifest and descriptor, with the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.bundle import server_manifest
from pinwarden.bundle.bundle_archive import build_archive, build_manifest_entry
from pinwarden.bundle.bundle_documents import (
    BUNDLE_LIMITS,
    CAR_MEDIA_TYPE,
    BundleDescriptor,
    build_descriptor,
    build_descriptor_extras,
    descriptor_from_json,
    descriptor_to_json,
    to_tool_name,
)
from pinwarden.bundle.bundle_files import SUFFIXES
from pinwarden.bundle.bundled_skills import build_skills_descriptor, group_skills, refuse_undeclared_powers
from pinwarden.bundle.document import encode_document
from pinwarden.bundle.server_manifest import MANIFEST_NAME, ServerManifest
from pinwarden.bundle.source_tree import SourceTree, read_tree
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


class PackedBundle(Record):
    """A packed bundle in memory, before its files are written."""

    descriptor: Mapping[str, Any]
    manifest: Mapping[str, Any]
    descriptor_cid: str
    root_cid: str
    archive: bytes = field(repr=False)
    excluded: tuple[str, ...] = ()

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

    1. Read every file, and parse server.json. A bundle of skills has none.
    2. List the files and their CIDs in the bundle manifest. The CID of this list is the root CID.
    3. Write the files into an archive.
    4. Build the descriptor, and add its CID to the bundle manifest.
    """
    tree = read_tree(options.folder)
    if options.skills is None:
        server = _read_server_manifest(tree)
    else:
        tree = _arrange_skills(options, tree)
    unlinked = manifest_document.build_unlinked_manifest(build_manifest_entry(file) for file in tree.files)
    root = manifest_root_cid(unlinked)
    archive = build_archive(options.media_type, unlinked, root, tree.files, compress=options.compress)
    if len(archive) > BUNDLE_LIMITS.archive_bytes:
        most = BUNDLE_LIMITS.archive_bytes
        raise PinwardenError(
            "ARCHIVE_UNSAFE",
            f"the archive has {len(archive)} bytes; the limit is {most}",
            hint="Remove files that the server does not need, and pack the folder again.",
        )
    if options.skills is None:
        described = build_descriptor(server, options.permissions, str(root), options.media_type, len(archive))
    else:
        described = _describe_skills(options, options.skills, tree, str(root), len(archive))
    descriptor = descriptor_to_json(described)
    for member, more in (build_descriptor_extras(server) if options.skills is None else {}).items():
        descriptor[member].update(more)
    descriptor_from_json(descriptor)  # raises if the built descriptor is not valid
    descriptor_cid = str(document_cid(descriptor))
    return PackedBundle(
        descriptor=descriptor,
        manifest=manifest_document.link_manifest(unlinked, descriptor_cid),
        descriptor_cid=descriptor_cid,
        root_cid=str(root),
        archive=archive,
        excluded=tree.excluded,
    )


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
    notes = [f"not packed: {', '.join(packed.excluded)}"] if packed.excluded else []
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
        },
    )
