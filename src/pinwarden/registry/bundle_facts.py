"""What a registry finds out by itself about a bundle: its content hash, and what its server tells the model.

The server is started, so this happens in a sandbox without network, or not at all.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore

from pinwarden.bundle.archive.bundle_archive import Contents, check_archive
from pinwarden.bundle.archive.limits import BundleLimits
from pinwarden.bundle.archive.unpack import unpack
from pinwarden.bundle.descriptor import Descriptor
from pinwarden.bundle.manifest import Manifest
from pinwarden.core.cid import document_cid
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.registry.registry import Registry
from pinwarden.surface.foreign_digests import api_surface_hash
from pinwarden.surface.surface import TOOL, Surface, encode_surface
from pinwarden.system.target import StdioTarget

AUTO, REQUIRED, NEVER = "auto", "required", "never"
_SECONDS = 20.0
_STARTED = {"node": ("node",), "deno": ("deno", "run"), "native": ()}
_AT_ONCE = BoundedSemaphore(2)  # strangers' servers must not take the machine from those who read


class Examined(Record):
    """What was found out."""

    content_hash: Digest
    api_surface: str | None
    surface_cid: str | None
    surface: bytes | None = field(repr=False)
    problem: str | None
    """Why the surface is not known."""


def examine(registry: Registry, descriptor: Descriptor, manifest: Manifest, archive_cid: str) -> Examined:
    """Check the archive byte for byte, and ask the server in it."""
    archive = registry.blobs.get(archive_cid, registry.limits.archive_bytes)
    if archive is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the archive {archive_cid} was not sent")
    bounds = BundleLimits(archive_bytes=registry.limits.archive_bytes, total_bytes=registry.limits.unpacked_bytes)
    contents = check_archive(descriptor, manifest, archive, bounds)
    content_hash = Digest.of_bytes(archive)
    try:
        surface = _asked_surface(registry.probing, descriptor, manifest, contents)
        api_surface = str(api_surface_hash(item.value for item in surface.items_of_kind(TOOL)))
    except PinwardenError as err:
        if registry.probing == REQUIRED:
            raise
        return Examined(content_hash=content_hash, api_surface=None, surface_cid=None, surface=None, problem=_told(err))
    body = encode_surface(surface)
    return Examined(
        content_hash=content_hash,
        api_surface=api_surface,
        surface_cid=str(document_cid(body)),
        surface=body,
        problem=None,
    )


def _asked_surface(probing: str, descriptor: Descriptor, manifest: Manifest, contents: Contents) -> Surface:
    if probing == NEVER or shutil.which("bwrap") is None:
        why = "this registry does not start servers" if probing == NEVER else "bubblewrap is not installed"
        raise PinwardenError("PROBE_FAILED", f"the server was not asked: {why}")
    with TemporaryDirectory(prefix="pinwarden-registry-") as above:
        folder = Path(above) / "bundle"
        unpack(manifest.entries, contents, folder)
        return _surface(descriptor, folder)


def _surface(descriptor: Descriptor, folder: Path) -> Surface:
    from pinwarden.surface.probe.probe import ProbeOptions, probe
    from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS, Sandbox

    entry = folder / descriptor.entry
    if "$" in descriptor.entry or not entry.resolve().is_relative_to(folder.resolve()) or not entry.is_file():
        raise PinwardenError("PROBE_FAILED", "the entry point is not a file of the bundle")
    program, shown = _program(descriptor.runtime)
    target = StdioTarget(command=(*program, str(entry)), cwd=str(folder))
    # Publishing in this registry is the consent to being started in its sandbox; nobody else's files are in there.
    sandbox = Sandbox(readable=(str(folder), *shown), limits=PROBE_SANDBOX_LIMITS)
    options = ProbeOptions(allow_execute=True, sandbox=sandbox, timeout=_SECONDS)
    with _AT_ONCE:
        return probe(target, options)


def _program(runtime: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a server is started with, and what else the sandbox must show for that."""
    if runtime != "python":
        return _STARTED[runtime], ()
    # The interpreter that runs the registry, without the packages that the registry has.
    own = Path(sys.base_prefix) / "bin" / "python3"
    return (str(own) if own.is_file() else "python3",), (sys.base_prefix,)


def _told(err: PinwardenError) -> str:
    """A reason for everybody to read: without what the server wrote."""
    return f"{err.code}: {err.message}"[:300]
