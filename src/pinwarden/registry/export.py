"""Export a registry as static files. Any web server can serve them, and installers use them like a registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pinwarden.bundle.document import encode_document
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.core.tlog import entries_path, list_tiles, tile_path
from pinwarden.registry import names
from pinwarden.registry.export_pages import export_pages, replace_file
from pinwarden.registry.official_api import build_server_entry, choose_latest_version, format_official_name
from pinwarden.registry.read_api import find_file_in
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.search import build_search_index
from pinwarden.registry.store import operators, pointer_log, publications
from pinwarden.system.database import Transaction


def export_registry(registry: Registry, folder: Path, base_url: str | None = None) -> Report:
    """Write the registry's files to a folder, and report how many were written.

    Pages are written first, because they take longer; the files contain everything that the pages refer to. Publishing
    waits while the files are written, so all files belong to one head of the log. Content under a CID is
    not written again. Other files are replaced one by one. A file is written after the files that it refers to, so that
    a web server can keep serving the folder.
    """
    written = export_pages(registry, folder, base_url)
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        head = pointer_log.load_head(transaction)
        size = head.size if head else 0
        for path in _list_paths(transaction, size):
            written += _write_file(registry, transaction, folder, path)
        replace_file(folder / names.SEARCH_INDEX, encode_document(build_search_index(transaction)))
        written += 1
        if base_url is not None:
            written += _write_official_entries(transaction, folder, base_url)
    return Report(
        command="registry export",
        subject=str(folder),
        summary=f"{plural(written, 'file')} written to {folder}; the log has {plural(size, 'event')}",
        exit_code=EXIT_CLEAN,
        notes=() if base_url else ("the official registry API is not included; add --base-url URL",),
        facts={"folder": str(folder), "written": written, "log_size": size},
    )


def _list_paths(transaction: Transaction, size: int) -> Iterator[str]:
    """Yield all paths of the registry. A file comes after the files that it refers to."""
    tools = publications.list_tools(transaction)
    versions = [version for tool in tools for version in publications.list_versions(transaction, tool)]
    for version in versions:
        yield from _list_version_paths(version)
    for level, index, width in list_tiles(size):
        yield f"{names.LOG}/{tile_path(level, index, width)}"
        if level == 0:
            yield f"{names.LOG}/{entries_path(index, width)}"
    yield from (names.KEY_CHANGES, names.IDENTITY, names.CHECKPOINT, names.SIGNED_CHECKPOINT)
    for version in versions:
        yield names.version_path(version.tool, version.version)
        yield names.attestations_path(version.root_cid, version.descriptor_cid)
    for tool in tools:
        for channel in publications.list_channels(transaction, tool):
            if channel.pointer is not None:
                yield names.event_path(tool, channel.channel)
                yield names.proof_path(tool, channel.channel)
                yield names.pointer_path(tool, channel.channel)
        yield names.tool_path(tool)
    yield names.TOOLS


def _list_version_paths(version: PublishedVersion) -> Iterator[str]:
    yield names.blob_path(version.archive_cid)
    yield names.document_path(version.descriptor_cid)
    yield names.manifest_path(version.root_cid, version.descriptor_cid)
    yield from (names.document_path(cid) for cid in version.attestations)
    if version.surface_cid:
        yield names.document_path(version.surface_cid)


def _write_file(registry: Registry, transaction: Transaction, folder: Path, path: str) -> int:
    target = folder / path
    if path.startswith("blobs/") and operators.is_archive_taken_down(transaction, path.removeprefix("blobs/")):
        target.unlink(missing_ok=True)
        return 0
    if path.startswith(names.IMMUTABLE) and target.is_file():
        return 0
    file = find_file_in(registry, transaction, path)
    if file is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the registry has no file at {path}")
    replace_file(target, file.body)
    return 1


def _write_official_entries(transaction: Transaction, folder: Path, base: str) -> int:
    """Write each version and each ``latest`` at its path in the official API. Search needs a live server."""
    written = 0
    for tool in publications.list_tools(transaction):
        versions = publications.list_versions(transaction, tool)
        newest = choose_latest_version(versions)
        for version in versions:
            body = encode_document(build_server_entry(version, base, is_latest=version == newest))
            folder_of_server = folder / "v0.1" / "servers" / format_official_name(version) / "versions"
            replace_file(folder_of_server / version.version, body)
            if version == newest:
                replace_file(folder_of_server / "latest", body)
            written += 1 + (version == newest)
    return written
