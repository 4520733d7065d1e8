"""The whole registry as files that any web server can serve, and that the installer takes for a registry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report, plural
from pinwarden.core.tlog import entries_path, list_tiles, tile_path
from pinwarden.registry import layout
from pinwarden.registry.official_api import entry_of, latest_of, official_name
from pinwarden.registry.read_api import find_in
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import pointer_log, publications
from pinwarden.registry.version import PublishedVersion
from pinwarden.system.database import Transaction


def export(registry: Registry, folder: Path, base_url: str | None = None) -> Report:
    """The report of ``pinwarden registry export``.

    Nobody publishes while the files are written, so all of them are about one head of the log. What a CID names is
    written once; the rest is replaced file by file, what others refer to first, so that a web server may go on serving
    the folder meanwhile.
    """
    written = 0
    with registry.database.transaction(exclusive=pointer_log.ALONE) as step:
        head = pointer_log.head_of(step)
        size = head.size if head else 0
        for path in _paths(step, size):
            written += _write(registry, step, folder, path)
        if base_url is not None:
            written += _write_official(step, folder, base_url)
    return Report(
        command="registry export",
        subject=str(folder),
        summary=f"{plural(written, 'file')} written to {folder}; the log has {plural(size, 'event')}",
        exit_code=EXIT_CLEAN,
        notes=() if base_url else ("without --base-url the official registry API is not part of it",),
        facts={"folder": str(folder), "written": written, "log_size": size},
    )


def _paths(step: Transaction, size: int) -> Iterator[str]:
    """Every path, in an order in which nothing is named before it is there."""
    tools = publications.every_tool(step)
    versions = [each for tool in tools for each in publications.versions_of(step, tool)]
    for version in versions:
        yield from _parts_of(version)
    for level, index, width in list_tiles(size):
        yield f"{layout.LOG}/{tile_path(level, index, width)}"
        if level == 0:
            yield f"{layout.LOG}/{entries_path(index, width)}"
    yield from (layout.KEY_CHANGES, layout.IDENTITY, layout.CHECKPOINT, layout.SIGNED_CHECKPOINT)
    for version in versions:
        yield layout.version_path(version.tool, version.version)
        yield layout.attestations_path(version.root_cid, version.descriptor_cid)
    for tool in tools:
        for channel in publications.channels_of(step, tool):
            if channel.pointer is not None:
                yield layout.event_path(tool, channel.channel)
                yield layout.proof_path(tool, channel.channel)
                yield layout.pointer_path(tool, channel.channel)
        yield layout.tool_path(tool)
    yield layout.TOOLS


def _parts_of(version: PublishedVersion) -> Iterator[str]:
    yield layout.blob_path(version.archive_cid)
    yield layout.document_path(version.descriptor_cid)
    yield layout.manifest_path(version.root_cid, version.descriptor_cid)
    yield from (layout.document_path(cid) for cid in version.attestations)
    if version.surface_cid:
        yield layout.document_path(version.surface_cid)


def _write(registry: Registry, step: Transaction, folder: Path, path: str) -> int:
    place = folder / path
    if path.startswith(layout.IMMUTABLE) and place.is_file():
        return 0
    found = find_in(registry, step, path)
    if found is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the registry has nothing at {path}")
    _put(place, found.body)
    return 1


def _write_official(step: Transaction, folder: Path, base: str) -> int:
    """One file for each version, as the official API answers. Lists take questions, which files cannot answer."""
    written = 0
    for tool in publications.every_tool(step):
        versions = publications.versions_of(step, tool)
        newest = latest_of(versions)
        for version in versions:
            body = to_bytes(entry_of(version, base, is_latest=version == newest))
            place = folder / "v0.1" / "servers" / official_name(version) / "versions"
            _put(place / version.version, body)
            if version == newest:
                _put(place / "latest", body)
            written += 1 + (version == newest)
    return written


def _put(place: Path, data: bytes) -> None:
    """Every reader sees the old file or the new one. Nothing waits for the disk: an export can be made again."""
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(data)
        fresh.replace(place)
    except OSError as err:
        fresh.unlink(missing_ok=True)
        raise PinwardenError("FILE_UNWRITABLE", f"{place}: {err.strerror}") from err
