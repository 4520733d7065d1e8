"""Stage an accepted bundle: store its files by digest, unpack them, and get the server's surface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.bundle import environment as bundle_environment
from pinwarden.bundle.acceptance import check_permissions, provenance_to_json
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.bundle.document import encode_document, read_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.install.decision import AcceptedBundle
from pinwarden.install.sources import OCI, BundleSource, OciSource, RegistryBundleSource, archive_cid
from pinwarden.project.installed_bundles import build_bundle_sandbox, ensure_bundle
from pinwarden.surface import surface as surface_document
from pinwarden.surface.interop import api_surface_hash
from pinwarden.surface.surface import TOOL, Surface
from pinwarden.system.clock import wall_clock
from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinwarden.bundle.trust import InstallerPolicy, TrustStore
    from pinwarden.install.sources import Locations
    from pinwarden.project.project import Project

HERE, REGISTRY = "here", "registry"
_PROBE_SECONDS = 30.0


class StagedBundle(Record):
    """A bundle on this machine, before it is written into the lock."""

    pin: BundlePin
    surface: Surface | None
    problem: str | None
    """Why its surface is not known."""
    published_at: str | None = None
    description: str = ""

    @property
    def api_surface(self) -> str | None:
        """The API surface hash of what will be approved."""
        return None if self.surface is None else api_surface_of(self.surface)


def stage_bundle(  # noqa: PLR0913
    project: Project, accepted: AcceptedBundle, pin: BundlePin, store: Store, source: BundleSource, *, probe: bool
) -> StagedBundle:
    """Store and unpack a bundle. With ``probe`` the server is started once, in its sandbox, to record its surface."""
    store_files(accepted, pin, store)
    published_at = accepted.published.published_at if accepted.published else None
    staged = StagedBundle(
        pin=pin,
        surface=None,
        problem=None,
        published_at=published_at,
        description=accepted.documents.descriptor.description,
    )
    folder = ensure_bundle(pin, store, notify=lambda _: None)
    recorded = _registry_surface(accepted, source)
    if probe:
        surface = _probe(project, pin, folder)
        probed, recorded_hash = api_surface_of(surface), accepted.published.api_surface if accepted.published else None
        if recorded_hash not in (None, probed):
            raise PinwardenError(
                "SURFACE_DIFFERS",
                f"the API surface of {pin.tool} is {probed} here, and {recorded_hash} at its registry",
                data={"here": probed, "registry": recorded_hash},
            )
        return replace(staged, pin=replace(pin, surface_from=HERE), surface=surface)
    if recorded is not None:
        return replace(staged, pin=replace(pin, surface_from=REGISTRY), surface=recorded)
    why = accepted.published.surface_problem if accepted.published else None
    return replace(staged, problem=why or "the registry did not record them")


def bundle_pin(accepted: AcceptedBundle, source: BundleSource, floor: str | None, *, literal: bool) -> BundlePin:
    """Everything the lock records about a bundle."""
    opened, documents, descriptor = accepted.opened, accepted.documents, accepted.documents.descriptor
    position = accepted.log_position
    return BundlePin(
        tool=descriptor.name,
        version=descriptor.version,
        channel=accepted.provenance.channel,
        root_cid=documents.root_cid,
        descriptor_cid=documents.descriptor_cid,
        archive=opened.content_hash,
        archive_cid=archive_cid(opened.archive),
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


def api_surface_of(surface: Surface) -> str:
    """The API surface hash of a surface."""
    return str(api_surface_hash(item.value for item in surface.items_of_kind(TOOL)))


def store_files(accepted: AcceptedBundle, pin: BundlePin, store: Store) -> None:
    """Store archive and documents, each under the digest of its bytes."""
    documents = accepted.documents
    for digest, data in (
        (pin.archive, accepted.opened.archive),
        (pin.descriptor, encode_document(dict(documents.descriptor.document))),
        (pin.manifest, encode_document(dict(documents.manifest.document))),
    ):
        store_file(store, digest, data)


def store_file(store: Store, digest: Digest, data: bytes) -> None:
    """Store bytes that have this digest. Raises ARTIFACT_MISMATCH for others."""
    if Digest.of_bytes(data) != digest:
        raise PinwardenError(
            "ARTIFACT_MISMATCH", "a file of the bundle differs from the locked one", data={"wanted": str(digest)}
        )
    if store.find(digest) is None:
        with store.incoming() as stream:
            stream.write(data)
            store.keep(stream, digest)


def _registry_surface(accepted: AcceptedBundle, source: BundleSource) -> Surface | None:
    """The surface that the registry recorded. Raises SURFACE_DIFFERS if it does not match the registry's own hash."""
    published = accepted.published
    if published is None or published.surface_cid is None:
        return None
    surface = surface_document.parse_surface(source.surface(published.surface_cid))
    if api_surface_of(surface) != published.api_surface:
        raise PinwardenError(
            "SURFACE_DIFFERS",
            f"the surface that the registry keeps for {published.tool} does not match the hash it states",
            data={"registry": published.api_surface},
        )
    return surface


def _probe(project: Project, pin: BundlePin, folder: Path) -> Surface:
    from pinwarden.project.server_start import prepare_probe, probe_server
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import StdioTarget

    command = bundle_environment.build_start_command(folder, pin, project.variables.get("PATH", ""))
    sandbox, cwd = build_bundle_sandbox(project, pin, folder)
    bounded = replace(sandbox, limits=PROBE_SANDBOX_LIMITS)
    options = ProbeOptions(allow_execute=True, sandbox=bounded, timeout=_PROBE_SECONDS)
    return probe_server(prepare_probe(project, pin.tool, StdioTarget(command=command, cwd=cwd), options))


class RegistryBundleFetcher:
    """Fetches the files of locked bundles from a registry that the user or the trust store names, never the lock."""

    def __init__(
        self,
        locations: Locations,
        trusted: Callable[[], TrustStore],
        policy: Callable[[], InstallerPolicy],
        named: str | None,
        trust: Path,
    ) -> None:
        self._locations, self._trusted, self._policy, self._named = locations, trusted, policy, named
        self._trust = trust

    def location_of(self, pin: BundlePin) -> str:
        """Where a bundle's registry is: as named by the user, or as stored in the trust store."""
        roots = (
            registry for registry in self._trusted().registries if registry.log.name == pin.log_id and registry.url
        )
        known = self._named or next((registry.url for registry in roots), None)
        if known is None:
            raise PinwardenError(
                "ARTIFACT_MISSING",
                f"the address of {pin.tool}'s registry is not known; the lock names {pin.registry[:120]}",
                hint="Name it with --registry, or store it: pinwarden trust add … --url URL.",
            )
        return known

    def follow_log(self, pin: BundlePin) -> None:
        """Follow the log of a bundle's registry to its head, and save the state."""
        from pinwarden.install.decision import follow_registry_log

        trusted = self._trusted()
        registry = next((registry for registry in trusted.registries if registry.log.name == pin.log_id), None)
        location = self.location_of(pin)
        if registry is not None and not location.startswith(OCI):  # OCI artifacts have no log
            active = replace(registry, witnesses=trusted.without_revoked(registry.witnesses))
            follow_registry_log(self._locations.files(location), active, self._trust, wall_clock())

    def fetch(self, pin: BundlePin, store: Store) -> None:
        """Download the three files of a bundle into the store, each checked against its digest.

        A repository's lock must not decide what its users allow. So on a machine that does not have the bundle yet, the
        permissions it requests are checked against the user's policy, as in an install.
        """
        location = self.location_of(pin)
        digest = pin.oci_digest if location.startswith(OCI) else None
        source = self._locations.open_source(location, pin.channel, digest=digest)
        documents = source.documents(pin.root_cid, pin.descriptor_cid)
        archive = source.blob(pin.archive_cid) if isinstance(source, RegistryBundleSource) else source.archive(None)
        check_permissions(read_json(documents.descriptor), self._policy(), literal=False)
        store_file(store, pin.archive, archive)
        store_file(store, pin.descriptor, encode_document(read_json(documents.descriptor)))
        store_file(store, pin.manifest, encode_document(read_json(documents.manifest)))
