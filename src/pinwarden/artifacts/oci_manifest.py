"""Parses image indexes, manifests and configs in the OCI and Docker formats.

The ``Content-Type`` header, the member ``mediaType`` and the other members of a document each imply a type. Clients
differ in which of them they use, so Pinwarden refuses a document for which they disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinwarden.artifacts.oci_reference import parse_digest
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.core.typed_json import JsonObject

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
ACCEPT_HEADER = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))
"""Lists all four types, because a registry may otherwise respond that the image does not exist."""

IMAGE_CONFIGS = frozenset(
    {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
)
SOURCE_LABEL = "org.opencontainers.image.source"

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_PLATFORM_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_MAX_SIZE = 2**53 - 1
_DEFAULT_VARIANTS = {"arm64": "v8", "arm": "v7", "amd64": "v1"}
"""The variant that clients assume for an architecture without a variant."""


class ImageLimits(Record):
    """Limits for one image."""

    document_bytes: int = 4 * 1024 * 1024
    """Per index or manifest. Registries and clients do not accept larger manifests."""
    config_bytes: int = 8 * 1024 * 1024
    """A config includes the build history. Most configs have a few kilobytes."""
    layer_bytes: int = 32 * 1024 * 1024 * 1024
    """Layers with machine-learning models can have several gigabytes."""
    image_bytes: int = 128 * 1024 * 1024 * 1024
    """For all configs and layers of one image together."""
    platforms: int = 512
    layers: int = 512
    """Storage drivers support at most 127 or 500 layers."""
    referrers: int = 256
    referrer_pages: int = 16
    attestation_bytes: int = 16 * 1024 * 1024
    """Attestations with an SBOM can have several megabytes."""


IMAGE_LIMITS = ImageLimits()
_JSON_LIMITS = Limits(max_bytes=IMAGE_LIMITS.config_bytes, max_depth=32)


class Platform(Record):
    """A platform that an image runs on."""

    os: str
    architecture: str
    variant: str = ""
    os_version: str = ""
    """The version of Windows that a Windows image is for."""

    @property
    def is_unknown(self) -> bool:
        """Whether this is ``unknown/unknown``, which build tools use for attestations in an index."""
        return self.os == "unknown" and self.architecture == "unknown"

    def satisfies(self, requested: str) -> bool:
        """Whether a client that requests the platform ``requested`` accepts an image for this platform."""
        default = _DEFAULT_VARIANTS.get(self.architecture, "")
        base = f"{self.os}/{self.architecture}"
        full = f"{base}/{self.variant or default}" if self.variant or default else base
        return requested in (str(self), full) or (requested == base and self.variant in ("", default))

    def __str__(self) -> str:
        version = f"({self.os_version})" if self.os_version else ""
        return f"{self.os}{version}/{self.architecture}" + (f"/{self.variant}" if self.variant else "")


class OciDescriptor(Record):
    """A reference to a document or blob by digest."""

    media_type: str
    digest: Digest
    size: int
    artifact_type: str = ""
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


class ImageIndex(Record):
    """An image index, which lists one manifest per platform."""

    media_type: str
    manifests: tuple[OciDescriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)


class ImageManifest(Record):
    """The manifest of an image for one platform, or of another artifact such as a signature."""

    media_type: str
    config: OciDescriptor
    layers: tuple[OciDescriptor, ...]
    artifact_type: str = ""
    subject: OciDescriptor | None = None
    """The image that this artifact refers to."""
    annotations: Mapping[str, str] = field(default_factory=dict)


class ImageConfig(Record):
    """The fields of an image config that Pinwarden uses."""

    platform: Platform
    labels: Mapping[str, str]


def parse_document(data: bytes, content_type: str) -> ImageIndex | ImageManifest:
    """Parse an index or a manifest. ``content_type`` is its ``Content-Type`` or the media type in its descriptor."""
    declared = content_type.partition(";")[0].strip().lower()
    if declared not in INDEXES | MANIFESTS:
        raise _image_error("", f"its Content-Type {declared[:80]!a} is not supported")
    if len(data) > IMAGE_LIMITS.document_bytes:
        raise _image_error("", f"it has more than {IMAGE_LIMITS.document_bytes} bytes")
    document = JsonObject(strict_json.parse_json(data, _JSON_LIMITS), "", _image_error)
    if document.value.get("schemaVersion") != 2 or isinstance(document.value["schemaVersion"], bool):
        document.fail("schemaVersion", "is not 2")
    stated = document.value.get("mediaType", declared if declared in (OCI_INDEX, OCI_MANIFEST) else None)
    if stated != declared:
        raise _image_error("", f"its Content-Type is {declared}, but its mediaType is {str(stated)[:80]!a}")
    forbidden_members = ("config", "layers", "fsLayers") if declared in INDEXES else ("manifests", "fsLayers")
    for member in forbidden_members:
        if member in document:
            document.fail(member, f"does not belong in a document of type {declared}")
    return _parse_index(document, declared) if declared in INDEXES else _parse_manifest(document, declared)


def parse_config(data: bytes) -> ImageConfig:
    """Parse the config of an image."""
    document = JsonObject(strict_json.parse_json(data, _JSON_LIMITS), "config", _image_error)
    defaults = document.optional_object("config")  # how to run the image
    return ImageConfig(
        platform=_parse_platform(document), labels=defaults.string_map("Labels") if defaults is not None else {}
    )


def _parse_index(document: JsonObject, media_type: str) -> ImageIndex:
    return ImageIndex(
        media_type=media_type,
        manifests=tuple(map(_parse_descriptor, document.objects("manifests", max_items=IMAGE_LIMITS.platforms))),
        annotations=document.string_map("annotations"),
    )


def _parse_manifest(document: JsonObject, media_type: str) -> ImageManifest:
    subject = document.optional_object("subject")
    return ImageManifest(
        media_type=media_type,
        config=_parse_descriptor(document.object("config")),
        layers=tuple(map(_parse_descriptor, document.objects("layers", max_items=IMAGE_LIMITS.layers))),
        artifact_type=_parse_artifact_type(document),
        subject=None if subject is None else _parse_descriptor(subject),
        annotations=document.string_map("annotations"),
    )


def _parse_descriptor(descriptor: JsonObject) -> OciDescriptor:
    platform = descriptor.optional_object("platform")
    return OciDescriptor(
        media_type=descriptor.string("mediaType", _MEDIA_TYPE, kind="a media type"),
        digest=parse_digest(descriptor.value.get("digest")),
        size=descriptor.integer("size", maximum=_MAX_SIZE),
        artifact_type=_parse_artifact_type(descriptor),
        platform=None if platform is None else _parse_platform(platform),
        annotations=descriptor.string_map("annotations"),
    )


def _parse_platform(platform: JsonObject) -> Platform:
    def get_word(name: str, *, optional: bool = False) -> str:
        if optional and platform.value.get(name) in (None, ""):
            return ""
        return platform.string(name, _PLATFORM_WORD, kind="a plain word")

    return Platform(
        os=get_word("os"),
        architecture=get_word("architecture"),
        variant=get_word("variant", optional=True),
        os_version=get_word("os.version", optional=True),
    )


def _parse_artifact_type(document: JsonObject) -> str:
    if document.value.get("artifactType") in (None, ""):
        return ""
    return document.string("artifactType", _MEDIA_TYPE, kind="a media type")


def _image_error(path: str, problem: str) -> PinwardenError:
    text = f"{path or 'the document'} {problem}" if problem.startswith(("is ", "has ", "does ")) else problem
    return PinwardenError("IMAGE_INVALID", f"an image index, manifest or config is invalid: {text}")
