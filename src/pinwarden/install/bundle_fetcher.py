"""Fetch the files of locked bundles that are not on this machine yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.bundle.acceptance import check_permissions
from pinwarden.bundle.document import encode_document, read_json
from pinwarden.core.errors import PinwardenError
from pinwarden.install.registry_log import LogFollower, exclude_revoked_witnesses
from pinwarden.install.sources import OCI, RegistryBundleSource
from pinwarden.install.staging import store_file
from pinwarden.system.clock import wall_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.bundle_pin import BundlePin
    from pinwarden.bundle.trust import InstallerPolicy, TrustStore
    from pinwarden.install.sources import Locations


class RegistryBundleFetcher:
    """Fetches the files of locked bundles. The user or the trust store names the registry, never the lock."""

    def __init__(
        self,
        locations: Locations,
        load_trust_store: Callable[[], TrustStore],
        load_policy: Callable[[], InstallerPolicy],
        registry_option: str | None,
        trust_path: Path,
    ) -> None:
        self._locations, self._registry_option, self._trust_path = locations, registry_option, trust_path
        self._load_trust_store, self._load_policy = load_trust_store, load_policy

    def find_location(self, pin: BundlePin) -> str:
        """Return the location of a bundle's registry: the ``--registry`` option, or the URL in the trust store."""
        urls = (
            registry.url
            for registry in self._load_trust_store().registries
            if registry.log.name == pin.log_id and registry.url
        )
        location = self._registry_option or next(urls, None)
        if location is None:
            raise PinwardenError(
                "ARTIFACT_MISSING",
                f"the address of {pin.tool}'s registry is not known; the lock names {pin.registry[:120]}",
                hint="Name it with --registry, or store its URL: pinwarden trust add KEY --role registry --url URL.",
            )
        return location

    def follow_log(self, pin: BundlePin) -> None:
        """Follow the log of a bundle's registry to its head, and save the state."""
        trusted = self._load_trust_store()
        registry = next((registry for registry in trusted.registries if registry.log.name == pin.log_id), None)
        location = self.find_location(pin)
        if registry is not None and not location.startswith(OCI):  # OCI artifacts have no log
            follower = LogFollower(self._trust_path, wall_clock())
            follower.follow(self._locations.open_registry(location), exclude_revoked_witnesses(registry, trusted))

    def fetch(self, pin: BundlePin, store: Store) -> None:
        """Download the three files of a bundle into the store, each checked against its digest.

        A lock comes with a repository, so it must not decide which permissions are allowed. Pinwarden checks the
        permissions that the bundle requests against the user's policy, as in an install.
        """
        location = self.find_location(pin)
        digest = pin.oci_digest if location.startswith(OCI) else None
        source = self._locations.open_source(location, pin.channel, digest=digest)
        documents = source.get_documents(pin.root_cid, pin.descriptor_cid)
        archive = (
            source.get_blob(pin.archive_cid) if isinstance(source, RegistryBundleSource) else source.get_archive(None)
        )
        check_permissions(read_json(documents.descriptor), self._load_policy(), literal=False)
        store_file(store, pin.archive, archive)
        store_file(store, pin.descriptor, encode_document(read_json(documents.descriptor)))
        store_file(store, pin.manifest, encode_document(read_json(documents.manifest)))
