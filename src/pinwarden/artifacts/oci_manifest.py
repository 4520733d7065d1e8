"""What a container image consists of: an index of platforms, and for each a manifest of a config and layers.

Both the OCI and the docker spelling are read. A document says what it is in three places (the header it came with, its
own ``mediaType``, its members), and all of them have to say the same: clients differ in which one they believe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.artifacts.oci_reference import parse_digest
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record, field

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
ACCEPTED = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))
"""A registry that is not offered all four may say that there is no such image."""

IMAGE_CONFIGS = frozenset(
    {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
)
SOURCE_LABEL = "org.opencontainers.image.source"

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_MAX_SIZE = 2**53 - 1
_DEFAULT_VARIANTS = {"arm64": "v8", "arm": "v7", "amd64": "v1"}
"""What a client takes the architecture alone to mean."""


class ImageLimits(Record):
    """Bounds on one image, with the reason beside each."""

    document_bytes: int = 4 * 1024 * 1024
    """Registries and clients take no larger manifests."""
    config_bytes: int = 8 * 1024 * 1024
    """The config holds the history of a build; real ones have some kilobytes."""
    layer_bytes: int = 32 * 1024 * 1024 * 1024
    """Layers with machine-learning models reach some gigabytes."""
    image_bytes: int = 128 * 1024 * 1024 * 1024
    """All configs and layers that one look at an image may cost."""
    platforms: int = 512
    layers: int = 512
    """Storage drivers stop at 127 or 500."""
    referrers: int = 256
    referrer_pages: int = 16
    attestation_bytes: int = 16 * 1024 * 1024
    """Attestations with a bill of materials reach some megabytes."""


IMAGE_LIMITS = ImageLimits()
_JSON_LIMITS = Limits(max_bytes=IMAGE_LIMITS.config_bytes, max_depth=32)


class Platform(Record):
    """What an image runs on."""

    os: str
    architecture: str
    variant: str = ""
    os_version: str = ""
    """Windows images of one architecture differ in it."""

    @property
    def is_unknown(self) -> bool:
        """Build tools put attestations into an index under this platform, where no client looks for an image."""
        return self.os == "unknown" and self.architecture == "unknown"

    def answers(self, asked: str) -> bool:
        """Whether a client that asks for this platform may get it."""
        default = _DEFAULT_VARIANTS.get(self.architecture, "")
        same = f"{self.os}/{self.architecture}"
        full = f"{same}/{self.variant or default}" if self.variant or default else same
        return asked in (str(self), full) or (asked == same and self.variant in ("", default))

    def __str__(self) -> str:
        version = f"({self.os_version})" if self.os_version else ""
        return f"{self.os}{version}/{self.architecture}" + (f"/{self.variant}" if self.variant else "")


class Descriptor(Record):
    """A document or blob, by digest."""

    media_type: str
    digest: Digest
    size: int
    artifact_type: str = ""
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


class ImageIndex(Record):
    """One name for several manifests."""

    media_type: str
    manifests: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)


class ImageManifest(Record):
    """An image for one platform, or something else that was put into a registry."""

    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str = ""
    subject: Descriptor | None = None
    """The image that this one is about."""
    annotations: Mapping[str, str] = field(default_factory=dict)


class ImageConfig(Record):
    """What is read of a config."""

    platform: Platform
    labels: Mapping[str, str]


def parse_document(data: bytes, content_type: str) -> ImageIndex | ImageManifest:
    """Read an index or a manifest that was served, or is described, as ``content_type``."""
    declared = content_type.partition(";")[0].strip().lower()
    if declared not in INDEXES | MANIFESTS:
        _refuse(f"{declared[:80]!a} is not a kind of image index or manifest that is read here")
    if len(data) > IMAGE_LIMITS.document_bytes:
        _refuse(f"it has more than {IMAGE_LIMITS.document_bytes} bytes")
    value = _object(strict_json.parse(data, _JSON_LIMITS), "the document")
    if value.get("schemaVersion") != 2 or isinstance(value["schemaVersion"], bool):
        _refuse("schemaVersion is not 2")
    inner = value.get("mediaType", declared if declared in (OCI_INDEX, OCI_MANIFEST) else None)
    if inner != declared:
        _refuse(f"it was given out as {declared}, and calls itself {str(inner)[:80]!a}")
    foreign = ("config", "layers", "fsLayers") if declared in INDEXES else ("manifests", "fsLayers")
    for member in foreign:
        if member in value:
            _refuse(f"a document of the kind {declared} has no member {member}")
    return _index(value, declared) if declared in INDEXES else _manifest(value, declared)


def parse_config(data: bytes) -> ImageConfig:
    """Read the config of an image."""
    value = _object(strict_json.parse(data, _JSON_LIMITS), "config")
    inner = value.get("config")
    labels = _object(inner, "config").get("Labels") if inner is not None else None
    return ImageConfig(platform=_platform(value, "config"), labels=_texts(labels, "config/Labels"))


def _index(value: dict[str, Any], media_type: str) -> ImageIndex:
    listed = _list(value.get("manifests"), "manifests", IMAGE_LIMITS.platforms)
    manifests = tuple(_descriptor(each, f"manifests/{place}") for place, each in enumerate(listed))
    return ImageIndex(
        media_type=media_type,
        manifests=manifests,
        annotations=_texts(value.get("annotations"), "annotations"),
    )


def _manifest(value: dict[str, Any], media_type: str) -> ImageManifest:
    layers = _list(value.get("layers"), "layers", IMAGE_LIMITS.layers)
    subject = value.get("subject")
    return ImageManifest(
        media_type=media_type,
        config=_descriptor(value.get("config"), "config"),
        layers=tuple(_descriptor(each, f"layers/{place}") for place, each in enumerate(layers)),
        artifact_type=_media_type(value.get("artifactType", ""), "artifactType", optional=True),
        subject=None if subject is None else _descriptor(subject, "subject"),
        annotations=_texts(value.get("annotations"), "annotations"),
    )


def _descriptor(value: object, where: str) -> Descriptor:
    members = _object(value, where)
    size = members.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
        _refuse(f"{where}/size is not a number of bytes")
    platform = members.get("platform")
    return Descriptor(
        media_type=_media_type(members.get("mediaType"), f"{where}/mediaType"),
        digest=parse_digest(members.get("digest")),  # type: ignore[arg-type]  # it refuses what is not text
        size=size,
        artifact_type=_media_type(members.get("artifactType", ""), f"{where}/artifactType", optional=True),
        platform=None if platform is None else _platform(_object(platform, f"{where}/platform"), f"{where}/platform"),
        annotations=_texts(members.get("annotations"), f"{where}/annotations"),
    )


def _platform(members: dict[str, Any], where: str) -> Platform:
    def word(name: str, *, optional: bool = False) -> str:
        text = members.get(name)
        if optional and text in (None, ""):
            return ""
        if not isinstance(text, str) or not _WORD.fullmatch(text):
            _refuse(f"{where}/{name} is not a word")
        return text

    return Platform(
        os=word("os"),
        architecture=word("architecture"),
        variant=word("variant", optional=True),
        os_version=word("os.version", optional=True),
    )


def _media_type(value: object, where: str, *, optional: bool = False) -> str:
    if optional and value in (None, ""):
        return ""
    if not isinstance(value, str) or not _MEDIA_TYPE.fullmatch(value):
        _refuse(f"{where} is not a media type")
    return value


def _texts(value: object, where: str) -> Mapping[str, str]:
    if value is None:
        return {}
    members = _object(value, where)
    if not all(isinstance(text, str) for text in members.values()):
        _refuse(f"{where} holds something that is not text")
    return members


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(f"{where} is not an object")
    return value


def _list(value: object, where: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        _refuse(f"{where} is not a list")
    if len(value) > most:
        _refuse(f"{where} has {len(value)} entries, at most {most} are read")
    return value


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("IMAGE_INVALID", f"an image index or manifest cannot be read: {why}")
