"""Sources of bundles: a live registry, a static export at a URL or in a folder, or any OCI registry.

Sources are not trusted. They return unparsed documents, so that the acceptance steps report problems in a fixed order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.bundle import oci_transfer
from pinwarden.bundle.attestation import MAX_ATTESTATION_BYTES
from pinwarden.bundle.bundle_documents import BUNDLE_LIMITS
from pinwarden.bundle.document import DOCUMENT_LIMITS, DocumentReader, read_json
from pinwarden.core.digest import Cid, Digest, blob_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, field, replace
from pinwarden.registry import names
from pinwarden.registry.registry_client import FolderRegistry, HttpRegistry, RegistryReader
from pinwarden.registry.registry_documents import PublishedVersion, parse_signed_version

if TYPE_CHECKING:
    from pinwarden.system.net.connections import SettingsSources
    from pinwarden.system.net.fetch import Fetcher

_MAX_ATTESTATIONS = 100


class RawDocuments(Record):
    """The unparsed documents of one bundle."""

    descriptor: bytes = field(repr=False)
    manifest: bytes = field(repr=False)
    attestations: tuple[bytes, ...] = field(repr=False)


class LoggedEvent(Record):
    """The log event of a pointer, and the proof that it is in the log."""

    event: bytes = field(repr=False)
    proof: bytes = field(repr=False)


class BundleSource(ABC):
    """A source of bundles to install."""

    log: RegistryReader | None
    """The registry's log; None if this source has none."""
    has_proofs = False
    """Whether the source has an inclusion proof for every pointer."""

    @abstractmethod
    def get_pointer(self, tool: str, channel: str) -> bytes:
        """Return the signed pointer of a channel."""

    @abstractmethod
    def get_documents(self, root_cid: str, descriptor_cid: str) -> RawDocuments:
        """Return the documents that a pointer names."""

    @abstractmethod
    def get_logged_event(self, tool: str, channel: str) -> LoggedEvent | None:
        """Return the log event of a channel's pointer, with its inclusion proof; None if the source has no proofs."""

    @abstractmethod
    def get_published_version(self, tool: str, version: str, key: PublicKey) -> PublishedVersion | None:
        """Return the record of a version that the registry signed with this key; None if the source has none."""

    @abstractmethod
    def get_archive(self, published: PublishedVersion | None) -> bytes:
        """Return the archive as downloaded. The caller verifies every file."""

    @abstractmethod
    def get_surface(self, cid: str) -> bytes:
        """Return a surface that the registry recorded, verified against its CID."""


class RegistryBundleSource(BundleSource):
    """A live Pinwarden registry, or a static export of one."""

    has_proofs = True

    def __init__(self, files: RegistryReader, log: RegistryReader | None = None) -> None:
        self._files = files
        self.log = log or files

    def __str__(self) -> str:
        return str(self._files)

    def get_pointer(self, tool: str, channel: str) -> bytes:
        """Return the signed pointer of a channel. Raises POINTER_NOT_FOUND if there is none."""
        data = self._files.find(names.pointer_path(tool, channel), DOCUMENT_LIMITS.max_bytes)
        if data is None:
            raise PinwardenError(
                "POINTER_NOT_FOUND",
                f"the registry {self} has no pointer for {tool} on {channel}",
                data={"tool": tool, "channel": channel},
            )
        return data

    def get_documents(self, root_cid: str, descriptor_cid: str) -> RawDocuments:
        """Return descriptor, manifest, and every attestation that the registry lists."""
        root_cid, descriptor_cid = str(Cid.parse(root_cid)), str(Cid.parse(descriptor_cid))
        return RawDocuments(
            descriptor=self._files.get(names.document_path(descriptor_cid), DOCUMENT_LIMITS.max_bytes),
            manifest=self._files.get(names.manifest_path(root_cid, descriptor_cid), DOCUMENT_LIMITS.max_bytes),
            attestations=tuple(self._download_attestations(root_cid, descriptor_cid)),
        )

    def _download_attestations(self, root_cid: str, descriptor_cid: str) -> list[bytes]:
        cid_list = self._files.find(names.attestations_path(root_cid, descriptor_cid))
        if cid_list is None:
            return []
        cids = DocumentReader(read_json(cid_list), "attestations").strings("attestations", default=[])[
            :_MAX_ATTESTATIONS
        ]
        documents = (self._files.find(names.document_path(str(Cid.parse(cid))), MAX_ATTESTATION_BYTES) for cid in cids)
        return [document for document in documents if document is not None]

    def get_logged_event(self, tool: str, channel: str) -> LoggedEvent | None:
        """Return the log event of a channel's pointer, with its inclusion proof."""
        event = self._files.find(names.event_path(tool, channel), DOCUMENT_LIMITS.max_bytes)
        proof = self._files.find(names.proof_path(tool, channel), DOCUMENT_LIMITS.max_bytes)
        return None if event is None or proof is None else LoggedEvent(event=event, proof=proof)

    def get_published_version(self, tool: str, version: str, key: PublicKey) -> PublishedVersion | None:
        """Return the registry's record of a version. Its signature is verified, because files may be from a mirror."""
        data = self._files.find(names.version_path(tool, version))
        return None if data is None else parse_signed_version(data, key)

    def get_archive(self, published: PublishedVersion | None) -> bytes:
        """Return the archive of a published version."""
        if published is None:
            raise PinwardenError("ARTIFACT_MISSING", f"the registry {self} does not name the archive of this version")
        return self._files.get_blob(str(Cid.parse(published.archive_cid)), BUNDLE_LIMITS.archive_bytes)

    def get_blob(self, cid: str) -> bytes:
        """Return the archive with this CID, verified. Locks pin this CID."""
        return self._files.get_blob(str(Cid.parse(cid)), BUNDLE_LIMITS.archive_bytes)

    def get_surface(self, cid: str) -> bytes:
        """Return a surface that the registry recorded, verified against its CID."""
        return self._files.get_document(str(Cid.parse(cid)))


class OciSource(BundleSource):
    """A bundle that was pulled from an OCI registry. Such a registry has no transparency log of its own."""

    def __init__(self, pulled: oci_transfer.PulledBundle, name: str, log: RegistryReader | None) -> None:
        self._parts = pulled.parts
        self._name = name
        self.digest: Digest = pulled.digest
        self.log = log

    def __str__(self) -> str:
        return self._name

    def get_pointer(self, tool: str, channel: str) -> bytes:
        """Return the pointer layer. Raises POINTER_NOT_FOUND if the artifact has none."""
        if self._parts.pointer is None:
            raise PinwardenError(
                "POINTER_NOT_FOUND",
                f"{self._name} has no signed pointer",
                hint="Push it with the pointer: pinwarden bundle push --pointer FILE.",
                data={"tool": tool, "channel": channel},
            )
        return self._parts.pointer

    def get_documents(self, root_cid: str, descriptor_cid: str) -> RawDocuments:  # noqa: ARG002 - the artifact has one bundle
        """Return the document layers. The acceptance steps compare them with the pointer."""
        parts = self._parts
        return RawDocuments(descriptor=parts.descriptor, manifest=parts.manifest, attestations=parts.attestations)

    def get_logged_event(self, tool: str, channel: str) -> LoggedEvent | None:  # noqa: ARG002
        """Return None, because an OCI artifact has no inclusion proof."""
        return None

    def get_published_version(self, tool: str, version: str, key: PublicKey) -> PublishedVersion | None:  # noqa: ARG002
        """Return None, because an OCI registry does not sign versions."""
        return None

    def get_archive(self, published: PublishedVersion | None) -> bytes:  # noqa: ARG002
        """Return the archive layer."""
        return self._parts.archive

    def get_surface(self, cid: str) -> bytes:
        """Raise ARTIFACT_MISSING, because an OCI artifact has no recorded surface."""
        raise PinwardenError("ARTIFACT_MISSING", f"{self._name} has no surface {cid[:80]}")


def compute_archive_cid(archive: bytes) -> str:
    """Return the CID under which a registry stores an archive."""
    return str(blob_cid(archive))


OCI = "oci://"


class Locations:
    """Opens registries and bundle sources by location. Locations come from the user, never from the project."""

    def __init__(self, fetcher: Fetcher, settings: SettingsSources) -> None:
        self._fetcher, self._settings = fetcher, settings

    def open_registry(self, location: str) -> RegistryReader:
        """Open a Pinwarden registry at a URL, or a static export of one in a folder."""
        if "://" in location:
            if location.startswith(OCI):
                raise PinwardenError(
                    "USAGE",
                    f"{location[:120]} is an OCI registry, which has no transparency log",
                    hint="Give the URL or folder of the Pinwarden registry that published the bundle.",
                )
            return HttpRegistry(location, self._fetcher)
        if not Path(location).is_dir():
            raise PinwardenError("FILE_UNREADABLE", f"{location[:200]} is neither a URL nor a folder")
        return FolderRegistry(Path(location))

    def open_source(
        self, location: str, channel: str, log: str | None = None, digest: Digest | None = None
    ) -> BundleSource:
        """Open a bundle source. ``log`` is the location of the registry's log, if it is elsewhere.

        In an OCI registry the channel is the tag, unless the location has a tag or ``digest`` is given.
        """
        if not location.startswith(OCI):
            return RegistryBundleSource(self.open_registry(location), self.open_registry(log) if log else None)
        from pinwarden.artifacts.endpoints.docker import find_registry_endpoint
        from pinwarden.artifacts.oci_reference import parse_reference
        from pinwarden.artifacts.oci_registry import OciRegistry

        reference = parse_reference(location.removeprefix(OCI))
        if digest is not None:
            reference = reference.with_digest(digest)
        elif not {":", "@"} & set(location.rpartition("/")[2]):
            reference = replace(reference, tag=channel)
        endpoint = find_registry_endpoint(reference, self._settings, configured_by="argument")
        pulled = oci_transfer.pull_parts(OciRegistry(reference, self._fetcher, endpoint))
        return OciSource(pulled, f"{OCI}{reference}", self.open_registry(log) if log else None)
