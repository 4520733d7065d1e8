"""An accepted bundle onto this machine: into the store by content, unpacked, and asked what it tells the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.bundle import acceptance_result as provenance_document
from pinwarden.bundle import environment as bundle_environment
from pinwarden.bundle.acceptance import check_permissions
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.bundle.document import document_bytes, read_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.install.decision import Accepted
from pinwarden.install.sources import OCI, BundleSource, OciSource, RegistrySource, archive_cid
from pinwarden.project.installed_bundles import bundle_sandbox, ready_bundle
from pinwarden.surface import surface as surface_document
from pinwarden.surface.foreign_digests import api_surface_hash
from pinwarden.surface.surface import TOOL, Surface
from pinwarden.system.clock import wall_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinwarden.bundle.trust import InstallerPolicy
    from pinwarden.bundle.trust_store import TrustStore
    from pinwarden.install.sources import Places
    from pinwarden.project.project import Project

HERE, REGISTRY = "here", "registry"
_SECONDS = 30.0


class Brought(Record):
    """An installed bundle, before it is written into the lock."""

    pin: BundlePin
    surface: Surface | None
    problem: str | None
    """Why nobody knows what it tells the model."""
    published_at: str | None = None
    description: str = ""

    @property
    def api_surface(self) -> str | None:
        """The API surface hash of what will be approved."""
        return None if self.surface is None else api_surface_of(self.surface)


def api_surface_of(surface: Surface) -> str:
    """The API surface hash of a surface."""
    return str(api_surface_hash(item.value for item in surface.items_of_kind(TOOL)))


def pin_of(accepted: Accepted, source: BundleSource, floor: str | None, *, literal: bool) -> BundlePin:
    """All that the lock will say of a bundle."""
    opened, documents, descriptor = accepted.opened, accepted.documents, accepted.documents.descriptor
    fresh = accepted.fresh
    return BundlePin(
        tool=descriptor.name,
        version=descriptor.version,
        channel=accepted.provenance.channel,
        root_cid=documents.root_cid,
        descriptor_cid=documents.descriptor_cid,
        archive=opened.content_hash,
        archive_cid=archive_cid(opened.archive),
        size=len(opened.archive),
        descriptor=Digest.of_bytes(document_bytes(dict(descriptor.document))),
        manifest=Digest.of_bytes(document_bytes(dict(documents.manifest.document))),
        tree=bundle_environment.bundle_tree_digest(documents.manifest.entries),
        runtime=descriptor.runtime,
        target=descriptor.target,
        policy=descriptor.policy,
        registry=str(source),
        log_id=fresh.log_id if fresh else None,
        log_index=fresh.index if fresh else None,
        floor=floor,
        oci_digest=source.digest if isinstance(source, OciSource) else None,
        literal=literal,
        provenance=provenance_document.provenance_to_json(accepted.provenance),
    )


def keep_files(accepted: Accepted, pin: BundlePin, store: Store) -> None:
    """Archive and documents into the store, each under the digest of its bytes."""
    documents = accepted.documents
    for digest, data in (
        (pin.archive, accepted.opened.archive),
        (pin.descriptor, document_bytes(dict(documents.descriptor.document))),
        (pin.manifest, document_bytes(dict(documents.manifest.document))),
    ):
        keep(store, digest, data)


def keep(store: Store, digest: Digest, data: bytes) -> None:
    """Bytes into the store, if they are those of the digest."""
    if Digest.of_bytes(data) != digest:
        raise PinwardenError(
            "ARTIFACT_MISMATCH", "a file of the bundle is not the one that was locked", data={"wanted": str(digest)}
        )
    if store.find(digest) is None:
        with store.incoming() as stream:
            stream.write(data)
            store.keep(stream, digest)


def bring(  # noqa: PLR0913  what was accepted, from where, and where it goes
    project: Project, accepted: Accepted, pin: BundlePin, store: Store, source: BundleSource, *, ask: bool
) -> Brought:
    """Keep, unpack and ask. ``ask`` is the consent to start the server, in the sandbox that it will always run in."""
    keep_files(accepted, pin, store)
    when = accepted.published.published_at if accepted.published else None
    brought = Brought(
        pin=pin, surface=None, problem=None, published_at=when, description=accepted.documents.descriptor.description
    )
    folder = ready_bundle(pin, store, say=lambda _: None)
    told = _registry_surface(accepted, source)
    if ask:
        seen = _asked(project, pin, folder)
        here, there = api_surface_of(seen), accepted.published.api_surface if accepted.published else None
        if there not in (None, here):
            raise PinwardenError(
                "SURFACE_DIFFERS",
                f"the API surface of {pin.tool} is {here} here, and {there} at its registry",
                data={"here": here, "registry": there},
            )
        return replace(brought, pin=replace(pin, surface_from=HERE), surface=seen)
    if told is not None:
        return replace(brought, pin=replace(pin, surface_from=REGISTRY), surface=told)
    why = accepted.published.surface_problem if accepted.published else None
    return replace(brought, problem=why or "the registry does not say")


def _registry_surface(accepted: Accepted, source: BundleSource) -> Surface | None:
    """What the registry wrote down when it asked the server, if that agrees with itself."""
    published = accepted.published
    if published is None or published.surface_cid is None:
        return None
    found = surface_document.parse_surface(source.surface(published.surface_cid))
    if api_surface_of(found) != published.api_surface:
        raise PinwardenError(
            "SURFACE_DIFFERS",
            f"the surface that the registry keeps of {published.tool} does not have the hash that it states",
            data={"registry": published.api_surface},
        )
    return found


def _asked(project: Project, pin: BundlePin, folder: Path) -> Surface:
    from pinwarden.project.server_start import ask, prepare_probe
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS
    from pinwarden.system.target import StdioTarget

    command = bundle_environment.start_command(folder, pin, project.variables.get("PATH", ""))
    sandbox, cwd = bundle_sandbox(project, pin, folder)
    bounded = replace(sandbox, limits=PROBE_SANDBOX_LIMITS)
    options = ProbeOptions(allow_execute=True, sandbox=bounded, timeout=_SECONDS)
    return ask(prepare_probe(project, pin.tool, StdioTarget(command=command, cwd=cwd), options))


class PinnedBundles:
    """Where the bytes of locked bundles are fetched from: a place that the user names or keeps, never the lock."""

    def __init__(
        self,
        places: Places,
        trusted: Callable[[], TrustStore],
        policy: Callable[[], InstallerPolicy],
        named: str | None,
        trust: Path,
    ) -> None:
        self._places, self._trusted, self._policy, self._named = places, trusted, policy, named
        self._trust = trust

    def place_of(self, pin: BundlePin) -> str:
        """The place of a bundle's registry, as the user says or the trust store knows."""
        roots = (each for each in self._trusted().registries if each.log.name == pin.log_id and each.url)
        known = self._named or next((each.url for each in roots), None)
        if known is None:
            raise PinwardenError(
                "ARTIFACT_MISSING",
                f"nobody says where the registry of {pin.tool} is; the lock names {pin.registry[:120]}",
                hint="Name it with --registry, or keep its address: pinwarden trust add … --url URL.",
            )
        return known

    def follow(self, pin: BundlePin) -> None:
        """Read the log of a bundle's registry up to its head, and keep what was seen of it."""
        from pinwarden.install.freshness import follow_root

        trusted = self._trusted()
        root = next((each for each in trusted.registries if each.log.name == pin.log_id), None)
        place = self.place_of(pin)
        if root is not None and not place.startswith(OCI):  # an artifact has no log beside it
            counted = replace(root, witnesses=trusted.without_revoked(root.witnesses))
            follow_root(self._places.files(place), counted, self._trust, wall_clock())

    def fetch(self, pin: BundlePin, store: Store) -> None:
        """Bring the three files of a bundle into the store, each checked against its digest.

        A lock lies in a repository, which must not decide what its readers allow: on a machine that does not have the
        bundle yet, what it asks for is held against the policy of this user, as at an install.
        """
        place = self.place_of(pin)
        digest = pin.oci_digest if place.startswith(OCI) else None
        source = self._places.source(place, pin.channel, digest=digest)
        papers = source.papers(pin.root_cid, pin.descriptor_cid)
        archive = source.blob(pin.archive_cid) if isinstance(source, RegistrySource) else source.archive(None)
        check_permissions(read_json(papers.descriptor), self._policy(), literal=False)
        keep(store, pin.archive, archive)
        keep(store, pin.descriptor, document_bytes(read_json(papers.descriptor)))
        keep(store, pin.manifest, document_bytes(read_json(papers.manifest)))
