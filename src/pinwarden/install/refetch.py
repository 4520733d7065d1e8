"""The files of locked bundles again, from their registry, by what the lock pins. Nothing is resolved anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.bundle.acceptance.permissions import check_permissions
from pinwarden.bundle.shape import read
from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.install.locations import OCI
from pinwarden.install.sources import RegistrySource
from pinwarden.install.staging import keep
from pinwarden.system.clock import present

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.bundle_pin import BundlePin
    from pinwarden.bundle.installer_policy import InstallerPolicy
    from pinwarden.bundle.trust_store import TrustStore
    from pinwarden.install.locations import Places


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
        roots = (each for each in self._trusted().roots if each.log.name == pin.log_id and each.url)
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
        root = next((each for each in trusted.roots if each.log.name == pin.log_id), None)
        place = self.place_of(pin)
        if root is not None and not place.startswith(OCI):  # an artifact has no log beside it
            counted = replace(root, witnesses=trusted.counted(root.witnesses))
            follow_root(self._places.files(place), counted, self._trust, present())

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
        check_permissions(read(papers.descriptor), self._policy(), literal=False)
        keep(store, pin.archive, archive)
        keep(store, pin.descriptor, to_bytes(read(papers.descriptor)))
        keep(store, pin.manifest, to_bytes(read(papers.manifest)))
