"""Stage an accepted bundle: store its files by digest, unpack them, and read the surface of its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.bundle import environment as bundle_environment
from pinwarden.bundle.acceptance import provenance_to_json
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.bundle.document import encode_document
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.install.decision import AcceptedBundle
from pinwarden.install.sources import BundleSource, OciSource, compute_archive_cid
from pinwarden.project.api_surfaces import NOT_STARTED
from pinwarden.project.installed_bundles import build_bundle_sandbox, ensure_bundle
from pinwarden.surface import surface as surface_document
from pinwarden.surface.interop import compute_api_surface_hash
from pinwarden.surface.surface import TOOL, Surface
from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS, find_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.project.project import Project

HERE, REGISTRY = "here", "registry"
"""The origin of a locked surface: a probe on this machine, or the registry's record."""
_PROBE_SECONDS = 30.0


class StagedBundle(Record):
    """A bundle whose files are on this machine, before it is locked."""

    pin: BundlePin
    surface: Surface | None
    surface_problem: str | None
    """The reason why the surface is unknown; None if it is known."""
    published_at: str | None = None
    description: str = ""

    @property
    def api_surface_hash(self) -> str | None:
        """The API surface hash of `surface`; None if the surface is unknown."""
        return None if self.surface is None else compute_api_surface(self.surface)


def stage_bundle(  # noqa: PLR0913
    project: Project,
    accepted: AcceptedBundle,
    pin: BundlePin,
    store: Store,
    source: BundleSource,
    *,
    probe: bool | None,
) -> StagedBundle:
    """Store an accepted bundle on this machine, and read the surface of its server.

    1. Store the archive and the documents.
    2. Unpack the archive.
    3. Download the surface that the registry recorded.
    4. With ``probe``, start the server once in its sandbox and read its surface, which must match the recorded one.
       None starts it only if the registry recorded no surface and this machine has a sandbox; a failure is then the
       reason why the surface is unknown.
    """
    store_files(accepted, pin, store)
    folder = ensure_bundle(pin, store, notify=lambda _: None)
    recorded = _download_recorded_surface(accepted, source)
    published, problem = accepted.published, published_problem(accepted)
    probed: Surface | None = None
    if probe:
        probed = _probe_matching_surface(project, pin, folder, accepted)
    elif probe is None and recorded is None:
        probed, problem = _probe_or_reason(project, pin, folder, accepted)
    elif recorded is None:
        problem = f"{problem}; {NOT_STARTED}"
    staged = StagedBundle(
        pin=pin,
        surface=recorded if probed is None else probed,
        surface_problem=None,
        published_at=published.published_at if published else None,
        description=accepted.documents.descriptor.description,
    )
    if staged.surface is not None:
        return replace(staged, pin=replace(pin, surface_from=REGISTRY if probed is None else HERE))
    return replace(staged, surface_problem=problem)


def published_problem(accepted: AcceptedBundle) -> str:
    """Return why the registry recorded no surface."""
    published = accepted.published
    return (published.surface_problem if published else None) or "the registry recorded no tools of this version"


def _probe_or_reason(
    project: Project, pin: BundlePin, folder: Path, accepted: AcceptedBundle
) -> tuple[Surface | None, str]:
    """Probe the server in its sandbox. Returns the reason instead if there is no sandbox, or if the probe fails."""
    if find_bubblewrap() is None:
        return None, f"{published_problem(accepted)}, and there is no sandbox on this machine (bubblewrap)"
    try:
        return _probe_matching_surface(project, pin, folder, accepted), ""
    except PinwardenError as err:
        if err.code == "SURFACE_DIFFERS":
            raise
        return None, f"{err.code}: {err.message}"


def build_bundle_pin(accepted: AcceptedBundle, source: BundleSource, floor: str | None, *, literal: bool) -> BundlePin:
    """Build the pin for the lock: version, digests, permissions and provenance of the bundle."""
    opened, documents, descriptor = accepted.opened, accepted.documents, accepted.documents.descriptor
    position = accepted.log_position
    return BundlePin(
        tool=descriptor.name,
        version=descriptor.version,
        channel=accepted.provenance.channel,
        root_cid=documents.root_cid,
        descriptor_cid=documents.descriptor_cid,
        archive=opened.content_hash,
        archive_cid=compute_archive_cid(opened.archive),
        size=len(opened.archive),
        descriptor=Digest.of_bytes(encode_document(dict(descriptor.document))),
        manifest=Digest.of_bytes(encode_document(dict(documents.manifest.document))),
        tree=bundle_environment.compute_tree_digest(documents.manifest.entries),
        runtime=descriptor.runtime,
        target=descriptor.target,
        policy=descriptor.policy,
        registry=str(source),
        log_id=position.log_id if position else None,
        log_index=position.index if position else None,
        floor=floor,
        oci_digest=source.digest if isinstance(source, OciSource) else None,
        literal=literal,
        provenance=provenance_to_json(accepted.provenance),
    )


def compute_api_surface(surface: Surface) -> str:
    """Compute the API surface hash: one hash over the names and schemas of all tools."""
    return str(compute_api_surface_hash(item.value for item in surface.items_of_kind(TOOL)))


def store_files(accepted: AcceptedBundle, pin: BundlePin, store: Store) -> None:
    """Store the archive, the descriptor and the manifest, each under the digest of its bytes."""
    documents = accepted.documents
    for digest, data in (
        (pin.archive, accepted.opened.archive),
        (pin.descriptor, encode_document(dict(documents.descriptor.document))),
        (pin.manifest, encode_document(dict(documents.manifest.document))),
    ):
        store_file(store, digest, data)


def store_file(store: Store, digest: Digest, data: bytes) -> None:
    """Store a file of a bundle. Raises ARTIFACT_MISMATCH if its bytes do not have this digest."""
    if Digest.of_bytes(data) != digest:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"a file of the bundle differs from the locked file with the digest {digest}",
            data={"wanted": str(digest)},
        )
    if store.find(digest) is None:
        with store.open_incoming() as stream:
            stream.write(data)
            store.add_file(stream, digest)


def _download_recorded_surface(accepted: AcceptedBundle, source: BundleSource) -> Surface | None:
    """Download the surface that the registry recorded. Raises SURFACE_DIFFERS if it does not match the signed hash."""
    published = accepted.published
    if published is None or published.surface_cid is None:
        return None
    surface = surface_document.parse_surface(source.get_surface(published.surface_cid))
    if compute_api_surface(surface) != published.api_surface:
        raise PinwardenError(
            "SURFACE_DIFFERS",
            f"the registry's copy of the surface of {published.tool} does not match the hash that the registry signed",
            data={"registry": published.api_surface},
        )
    return surface


def _probe_matching_surface(project: Project, pin: BundlePin, folder: Path, accepted: AcceptedBundle) -> Surface:
    """Start the server and read its surface. Raises SURFACE_DIFFERS if the registry recorded a different one."""
    surface = _probe(project, pin, folder)
    probed_hash = compute_api_surface(surface)
    recorded_hash = accepted.published.api_surface if accepted.published else None
    if recorded_hash not in (None, probed_hash):
        raise PinwardenError(
            "SURFACE_DIFFERS",
            f"the API surface of {pin.tool} is {probed_hash} here, and {recorded_hash} at its registry",
            data={"here": probed_hash, "registry": recorded_hash},
        )
    return surface


def _probe(project: Project, pin: BundlePin, folder: Path) -> Surface:
    from pinwarden.project.server_start import prepare_probe, probe_server
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import StdioTarget

    command = bundle_environment.build_start_command(folder, pin, project.variables.get("PATH", ""))
    sandbox, cwd = build_bundle_sandbox(project, pin, folder)
    limited_sandbox = replace(sandbox, limits=PROBE_SANDBOX_LIMITS)
    options = ProbeOptions(allow_execute=True, sandbox=limited_sandbox, timeout=_PROBE_SECONDS)
    return probe_server(prepare_probe(project, pin.tool, StdioTarget(command=command, cwd=cwd), options))
