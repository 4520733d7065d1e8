"""Fetches container images from a registry, and hashes every document and blob.

Start with :func:`fetch_artifact`. Pinwarden does not rely on the digest in the registry's response, even for requests
by digest, because registries do not verify the blobs on their disks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from tempfile import NamedTemporaryFile, mkdtemp
from typing import IO, BinaryIO, cast

from pinwarden.artifacts.artifact import (
    ArtifactFile,
    ArtifactProblem,
    FetchedArtifact,
    FetchedImage,
    Missing,
    PackageRef,
    ReleaseFacts,
)
from pinwarden.artifacts.newest_release import NewestRelease, choose_release_tag, choose_tag
from pinwarden.artifacts.oci_manifest import (
    IMAGE_CONFIGS,
    IMAGE_LIMITS,
    INDEXES,
    MANIFESTS,
    OCI_INDEX,
    SOURCE_LABEL,
    ImageConfig,
    ImageIndex,
    ImageManifest,
    OciDescriptor,
    Platform,
    parse_config,
    parse_document,
)
from pinwarden.artifacts.oci_reference import ImageReference, parse_reference
from pinwarden.artifacts.oci_referrers import ReferrerAttestations, fetch_attestations
from pinwarden.artifacts.oci_registry import FetchedDocument, OciRegistry
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher
from pinwarden.system.net.network_errors import fetch_error

CONTENT_MISSING = "oci_content_missing"
PLATFORM_MISSING = "oci_platform_missing"
_MAX_SOURCE = 2048  # no working URL is longer
_NO_ATTESTATIONS = ReferrerAttestations(attestations=(), mismatches=())


class ImageOptions(Record):
    """Which parts of an image to fetch."""

    platforms: tuple[str, ...] = ()
    """Platforms such as ``linux/arm64/v8``. Empty for all platforms."""
    layers: bool = False
    attestations: bool = True


def fetch_artifact(
    package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint, *, now: str, save_folder: Path | None = None
) -> FetchedArtifact:
    """Fetch an image's index, its attestations, and the manifest and config of every platform."""
    registry = OciRegistry(parse_reference(package.name), fetcher, endpoint)
    return fetch_image(package, registry, ImageOptions(), now=now, save_folder=save_folder)


def find_newest_release(package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint) -> NewestRelease | None:
    """Return the highest tag of the same form as the package's own tag.

    The result has the digest that a newer tag points to now. For the package's own tag it has no digest.
    """
    registry = OciRegistry(parse_reference(package.name), fetcher, endpoint)
    tag = choose_tag(registry.list_tags(), registry.reference.tag or "")
    if tag is None:
        return None
    if tag == registry.reference.tag:
        return NewestRelease(version=tag)
    document = registry.fetch_document(tag)
    if document is None or not document.is_verified:
        raise fetch_error("protocol", f"the registry lists the tag {tag} but does not serve a valid image for it")
    return NewestRelease(version=tag, digest=document.digest)


def find_tagged_image(package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint) -> NewestRelease | None:
    """Return the digest that a tag points to now; None if there is no such image.

    For ``latest`` or no tag, the version is the highest release tag if that points to the same image, and otherwise
    ``latest``.
    """
    registry = OciRegistry(parse_reference(package.name), fetcher, endpoint)
    tag = registry.reference.tag or "latest"
    document = registry.fetch_document(tag)
    if document is None:
        return None
    if not document.is_verified:
        raise fetch_error("protocol", f"the registry serves an image for the tag {tag} that does not match its digest")
    if tag == "latest" and (release := choose_release_tag(registry.list_tags())) is not None:
        released = registry.fetch_document(release)
        if released is not None and released.is_verified and released.digest == document.digest:
            tag = release
    return NewestRelease(version=tag, digest=document.digest)


def fetch_image(
    package: PackageRef, registry: OciRegistry, options: ImageOptions, *, now: str, save_folder: Path | None = None
) -> FetchedArtifact:
    """Fetch an image with options, and with a registry client whose tokens several images can share.

    1. Fetch the index or manifest for the reference.
    2. Fetch its manifests, configs and layers. A document that does not match its digest is added to
       ``image.mismatches`` and is not parsed.
    3. If the reference has both a tag and a digest, fetch the digest that the tag points to now.
    4. Fetch the attestations.
    """
    reference = registry.reference
    root = registry.fetch_document(reference.digest if reference.digest is not None else reference.tag_or_digest)
    if root is None:
        missing: Missing = "version" if registry.has_repository() else "package"
        return FetchedArtifact(package=package, registry=registry.url, checked_at=now, missing=missing)
    reader = _ImageReader(
        registry=registry, blobs=_BlobFolder(save_folder), requested=options.platforms, layers=options.layers
    )
    reader.read(root)
    tag_digest = root.digest if reference.digest is None else _fetch_tag_digest(registry, reader)
    attestations = (
        fetch_attestations(registry, root.digest) if options.attestations and root.is_verified else _NO_ATTESTATIONS
    )
    image = FetchedImage(
        reference=str(reference),
        root=root.digest,
        index=reader.index,
        platforms=reader.platforms,
        tag_digest=tag_digest,
        mismatches=tuple(dict.fromkeys((*reader.mismatches, *attestations.mismatches))),
    )
    return FetchedArtifact(
        package=package,
        registry=registry.url,
        checked_at=now,
        files=tuple(reader.files.values()),
        image=image,
        facts=ReleaseFacts(repository=reader.source),
        attestations=attestations.attestations,
        problems=tuple(reader.problems),
    )


def save_layout(registry: OciRegistry, digest: Digest, folder: Path, *, platforms: tuple[str, ...] = ()) -> None:
    """Save the image with this digest as an OCI image layout, in a new folder.

    The folder is created only after all bytes are verified. With ``platforms``, saves only these platforms, although
    the index still lists all of them.
    """
    if folder.exists() or folder.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{folder} exists already")
    reference = registry.reference
    root = registry.fetch_document(digest)
    if root is None:
        raise fetch_error("status", f"the registry has no image {reference.with_digest(digest)}", 404)
    with _create_folder(folder) as building:
        blobs = building / "blobs"
        blobs.mkdir()
        blob_folder = _BlobFolder(blobs, by_algorithm=True)
        reader = _ImageReader(
            registry=registry, blobs=blob_folder, requested=platforms, layers=True, include_unknown=not platforms
        )
        reader.read(root)
        if reader.mismatches or reader.problems:
            differences = (*reader.mismatches, *(problem.message for problem in reader.problems))
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"the image {reference.with_digest(digest)} is incomplete or was changed: {differences[0]}",
                data={
                    "mismatches": list(reader.mismatches),
                    "problems": [problem.message for problem in reader.problems],
                },
            )
        _write_layout(building, reference, root)


def _write_layout(folder: Path, reference: ImageReference, root: FetchedDocument) -> None:
    # Container engines show these names after loading the layout.
    annotations = {"io.containerd.image.name": str(reference)}
    if reference.tag:
        annotations = {
            "io.containerd.image.name": str(replace(reference, digest=None)),
            "org.opencontainers.image.ref.name": reference.tag,
        }
    entry = {
        "mediaType": root.content_type.partition(";")[0].strip().lower(),
        "digest": str(root.digest),
        "size": len(root.body),
        "annotations": annotations,
    }
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    (folder / "index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}) + "\n")


def _fetch_tag_digest(registry: OciRegistry, reader: _ImageReader) -> Digest | None:
    if registry.reference.tag is None:
        return None
    document = registry.fetch_document(registry.reference.tag)
    if document is None:
        return None
    reader.add_mismatches(*document.mismatches)
    return document.digest


@dataclass(kw_only=True)
class _ImageReader:
    """Reads an image: its index, manifests, configs and layers. Does not parse documents with a wrong digest."""

    registry: OciRegistry
    blobs: _BlobFolder
    requested: tuple[str, ...]
    layers: bool
    include_unknown: bool = False
    """Whether to include manifests with the platform ``unknown/unknown``, which a complete copy has."""
    index: OciDescriptor | None = None
    platforms: dict[str, OciDescriptor] = field(default_factory=dict)
    files: dict[Digest, ArtifactFile] = field(default_factory=dict)
    mismatches: dict[str, None] = field(default_factory=dict)
    problems: list[ArtifactProblem] = field(default_factory=list)
    source: str | None = None
    listed: list[Platform] = field(default_factory=list)
    """The platforms that the index or the config lists."""
    requested_bytes: int = 0
    """The total size of all blobs requested so far."""

    def read(self, document: FetchedDocument) -> None:
        """Read the image whose index or only manifest is ``document``."""
        self.add_mismatches(*document.mismatches)
        if not document.is_verified:
            return
        parsed = parse_document(document.body, document.content_type)
        self.blobs.write(document.digest, document.body)
        descriptor = OciDescriptor(media_type=parsed.media_type, digest=document.digest, size=len(document.body))
        if isinstance(parsed, ImageManifest):
            config = self._read_contents(parsed)
            if config is not None:
                self._add_platform(config.platform, descriptor)
        else:
            self.index = descriptor
            self._set_source(parsed.annotations)
            self._read_index(parsed)
        self._check_requested()

    def add_mismatches(self, *digests: str) -> None:
        """Record digests whose bytes did not match."""
        self.mismatches.update(dict.fromkeys(digests))

    def _read_index(self, index: ImageIndex) -> None:
        for entry in index.manifests:
            if entry.media_type in INDEXES:
                raise PinwardenError(
                    "IMAGE_INVALID", "the image index lists another index, which clients interpret differently"
                )
            if entry.media_type not in MANIFESTS or not self._is_wanted(entry.platform):
                continue
            if entry.platform is not None:
                self.listed.append(entry.platform)
            manifest = self._fetch_manifest(entry)
            if manifest is None:
                continue
            config = self._read_contents(manifest)
            # If the index states no platform, clients use the platform in the config.
            platform = entry.platform or (config.platform if config is not None else None)
            if platform is not None and not platform.is_unknown:
                self._add_platform(
                    platform, OciDescriptor(media_type=entry.media_type, digest=entry.digest, size=entry.size)
                )

    def _is_wanted(self, platform: Platform | None) -> bool:
        if platform is None:
            return True
        if platform.is_unknown:
            return self.include_unknown
        return not self.requested or any(platform.satisfies(name) for name in self.requested)

    def _add_platform(self, platform: Platform, manifest: OciDescriptor) -> None:
        self.listed.append(platform)
        if not self._is_wanted(platform):
            return
        known = self.platforms.setdefault(str(platform), manifest)
        if known != manifest:
            raise PinwardenError(
                "IMAGE_INVALID", f"the image index lists {platform} twice, and clients differ in which one they use"
            )

    def _check_requested(self) -> None:
        """Report requested platforms that the image does not list."""
        for name in self.requested:
            if not any(platform.satisfies(name) for platform in self.listed):
                message = f"the image does not support the platform {name[:80]!a}"
                self.problems.append(ArtifactProblem(code=PLATFORM_MISSING, message=message))

    def _fetch_manifest(self, entry: OciDescriptor) -> ImageManifest | None:
        document = self.registry.fetch_document(entry.digest)
        if document is None:
            self._report_missing(entry, f"the manifest for {entry.platform or 'an unnamed platform'}")
            return None
        self.add_mismatches(*document.mismatches)
        if not document.is_verified or len(document.body) != entry.size:
            self.add_mismatches(str(entry.digest))
            return None
        if document.content_type.partition(";")[0].strip().lower() != entry.media_type:
            raise PinwardenError(
                "IMAGE_INVALID",
                f"{entry.digest} is listed as {entry.media_type} and served as {document.content_type[:80]!a}",
            )
        parsed = parse_document(document.body, entry.media_type)
        self.blobs.write(entry.digest, document.body)
        return cast("ImageManifest", parsed)  # the media type is that of a manifest

    def _read_contents(self, manifest: ImageManifest) -> ImageConfig | None:
        """Fetch the config, and the layers if requested. Returns the parsed config of an image."""
        self._set_source(manifest.annotations)
        data = self._fetch_config(manifest.config)
        if self.layers:
            for layer in manifest.layers:
                self._fetch_layer(layer)
        if data is None or manifest.config.media_type not in IMAGE_CONFIGS:
            return None
        config = parse_config(data)
        self._set_source(config.labels)
        return config

    def _set_source(self, labels: Mapping[str, str]) -> None:
        """Set the source repository from labels, unless it is already set."""
        claim = labels.get(SOURCE_LABEL, "")
        if self.source is None and claim and len(claim) <= _MAX_SOURCE and claim.isprintable():
            self.source = claim

    def _fetch_config(self, descriptor: OciDescriptor) -> bytes | None:
        stream = BytesIO()
        if not self._fetch_blob(descriptor, stream, IMAGE_LIMITS.config_bytes):
            return None
        self.blobs.write(descriptor.digest, stream.getvalue())
        return stream.getvalue()

    def _fetch_layer(self, descriptor: OciDescriptor) -> None:
        if descriptor.digest in self.files:
            return
        with self.blobs.open_temporary_file() as stream:
            if self._fetch_blob(descriptor, stream, IMAGE_LIMITS.layer_bytes) and stream is not None:
                self.blobs.accept(descriptor.digest, self.files[descriptor.digest].sha256, stream)

    def _fetch_blob(self, descriptor: OciDescriptor, stream: BinaryIO | None, max_bytes: int) -> bool:
        """Fetch a blob. Returns False if the registry does not have it or its bytes do not match the digest."""
        self.requested_bytes += descriptor.size
        if self.requested_bytes > IMAGE_LIMITS.image_bytes:
            raise PinwardenError(
                "FETCH_LIMIT", f"the image {self.registry.reference} is larger than {IMAGE_LIMITS.image_bytes} bytes"
            )
        try:
            result = self.registry.fetch_blob(descriptor, stream, max_bytes)
        except PinwardenError as err:
            if err.code != "FETCH_LIMIT" or descriptor.size > max_bytes:
                raise
            self.add_mismatches(str(descriptor.digest))  # the blob is larger than the manifest states
            return False
        if result is None:
            self._report_missing(descriptor, "a config or layer")
            return False
        self.files[descriptor.digest] = ArtifactFile(
            name=str(descriptor.digest), size=result.size, digests=result.digests, claims=(descriptor.digest,)
        )
        matches = descriptor.digest in result.digests and result.size == descriptor.size
        if not matches:
            self.add_mismatches(str(descriptor.digest))
        return matches

    def _report_missing(self, descriptor: OciDescriptor, description: str) -> None:
        message = f"the registry does not have {description} of the image: {descriptor.digest}"
        self.problems.append(ArtifactProblem(code=CONTENT_MISSING, message=message))


@dataclass(frozen=True, slots=True)
class _BlobFolder:
    """Writes verified bytes to a folder. If the folder is None, nothing is written."""

    folder: Path | None
    by_algorithm: bool = False
    """Whether to write to ``<algorithm>/<hex>``, as in an image layout, instead of ``<sha256 hex>``."""

    def write(self, digest: Digest, data: bytes) -> None:
        """Write a file with verified bytes."""
        with self.open_temporary_file() as stream:
            if stream is not None:
                stream.write(data)
                self.accept(digest, Digest.of_bytes(data), stream)

    @contextmanager
    def open_temporary_file(self) -> Iterator[BinaryIO | None]:
        """Create a temporary file, which is deleted when the block ends unless ``accept`` moved it."""
        if self.folder is None:
            yield None
            return
        try:
            with NamedTemporaryFile(dir=self.folder, prefix=".incoming-", delete=False) as stream:
                try:
                    yield cast("BinaryIO", stream)
                finally:
                    Path(stream.name).unlink(missing_ok=True)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"cannot write to {self.folder}: {err.strerror or err}") from err

    def accept(self, digest: Digest, sha256: Digest, stream: IO[bytes]) -> None:
        """Move a file with verified bytes to its final name."""
        assert self.folder is not None  # noqa: S101 - open_temporary_file() created the file in this folder
        stream.flush()
        path = self.folder / sha256.hex
        if self.by_algorithm:
            path = self.folder / digest.algorithm / digest.hex
            path.parent.mkdir(exist_ok=True)
        Path(stream.name).replace(path)


@contextmanager
def _create_folder(folder: Path) -> Iterator[Path]:
    """Create a folder under a temporary name, and rename it to ``folder`` when the block succeeds."""
    try:
        building = Path(mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            yield building
            building.rename(folder)
        finally:
            rmtree(building, ignore_errors=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"cannot write {folder}: {err.strerror or err}") from err
