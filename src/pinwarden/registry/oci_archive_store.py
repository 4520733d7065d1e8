"""An archive store in an OCI registry. Each archive has a tag with its CID, so that garbage collection keeps it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from pinwarden.artifacts.endpoints.docker import find_registry_endpoint
from pinwarden.artifacts.oci_manifest import ImageManifest, parse_document
from pinwarden.artifacts.oci_reference import parse_reference
from pinwarden.artifacts.oci_registry import OciPushRegistry
from pinwarden.core.digest import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.registry.archive_store import ArchiveStore
from pinwarden.system.net.connections import SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchRules

ARTIFACT_TYPE = "application/vnd.pinwarden.archive.v1"
_LAYER_TYPE = "application/octet-stream"


class OciArchiveStore(ArchiveStore):
    """Stores archives in one OCI repository, with the credentials of docker or podman."""

    def __init__(self, registry: OciPushRegistry, fetcher: Fetcher) -> None:
        self._registry = registry
        self._fetcher = fetcher

    @classmethod
    def open_at(cls, url: str) -> OciArchiveStore:
        """Open the archive store in the OCI repository at ``oci://host/name``."""
        reference = parse_reference(url.removeprefix("oci://"))
        settings = SettingsSources(home=Path.home(), project=None, variables=os.environ)
        endpoint = find_registry_endpoint(reference, settings, configured_by="argument")
        fetcher = Fetcher(FetchRules(), os.environ)
        return cls(OciPushRegistry(reference, fetcher, endpoint), fetcher)

    def close(self) -> None:
        """Close connections."""
        self._fetcher.close()

    def has(self, cid: str) -> bool:
        """Whether the repository has an artifact that is tagged with this CID."""
        return self._registry.fetch_document(str(Cid.parse(cid))) is not None

    def _put(self, cid: str, data: bytes) -> None:
        self._registry.put_artifact(str(Cid.parse(cid)), ARTIFACT_TYPE, [(_LAYER_TYPE, data)])

    def _get(self, cid: str, max_bytes: int) -> bytes | None:
        document = self._registry.fetch_document(str(Cid.parse(cid)))
        if document is None:
            return None
        manifest = parse_document(document.body, document.content_type)
        if not isinstance(manifest, ImageManifest) or len(manifest.layers) != 1:
            raise PinwardenError("IMAGE_INVALID", f"{self._registry.reference.name} has no archive under {cid}")
        to = io.BytesIO()
        received = self._registry.fetch_blob(manifest.layers[0], to, max_bytes)
        return None if received is None else to.getvalue()
