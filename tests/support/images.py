"""Container images built by hand: a few bytes each, the same on every run."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinwarden.artifacts.oci_reference import ImageReference
from pinwarden.artifacts.oci_registry import OciRegistry, RegistryTokens
from pinwarden.core.digest import Digest
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher
from pinwarden.system.net.network_errors import fetch_error
from tests.support.registries import DockerRegistry

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes with a kind."""

    data: bytes
    media_type: str
    algorithm: str = "sha256"

    @property
    def digest(self) -> Digest:
        return Digest.of_bytes(self.data, self.algorithm)

    def described(self, **more: Any) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": str(self.digest), "size": len(self.data), **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """A manifest with its blobs."""

    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]

    @property
    def digest(self) -> Digest:
        return self.manifest.digest

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return self.config, *self.layers


def text_of(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def layer(content: str, media_type: str = OCI_LAYER) -> Blob:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("server")
        entry.size = len(content.encode())
        tar.addfile(entry, io.BytesIO(content.encode()))
    return Blob(data=gzip.compress(archive.getvalue(), mtime=0), media_type=media_type)


def image(
    content: str,
    *,
    platform: str = "linux/amd64",
    docker: bool = False,
    labels: Mapping[str, str] | None = None,
    algorithm: str = "sha256",
) -> BuiltImage:
    """An image with one layer that holds one file."""
    system, architecture, *_ = platform.split("/")
    only = layer(content, DOCKER_LAYER if docker else OCI_LAYER)
    only = Blob(data=only.data, media_type=only.media_type, algorithm=algorithm)
    unpacked = "sha256:" + hashlib.sha256(gzip.decompress(only.data)).hexdigest()
    config = Blob(
        data=text_of(
            {
                "architecture": architecture,
                "os": system,
                "config": {"Entrypoint": ["/server"], "Labels": dict(labels or {})},
                "rootfs": {"type": "layers", "diff_ids": [unpacked]},
            }
        ),
        media_type=DOCKER_CONFIG if docker else OCI_CONFIG,
        algorithm=algorithm,
    )
    media_type = DOCKER_MANIFEST if docker else OCI_MANIFEST
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": config.described(),
        "layers": [only.described()],
    }
    whole = Blob(data=text_of(manifest), media_type=media_type, algorithm=algorithm)
    return BuiltImage(manifest=whole, config=config, layers=(only,))


def index(images: Mapping[str, BuiltImage], *, docker: bool = False, extra: tuple[dict[str, Any], ...] = ()) -> Blob:
    """An index of images by platform."""
    media_type = DOCKER_LIST if docker else OCI_INDEX
    listed = [built.manifest.described(platform=platform_members(name)) for name, built in images.items()]
    value = {"schemaVersion": 2, "mediaType": media_type, "manifests": [*listed, *extra]}
    return Blob(data=text_of(value), media_type=media_type)


def platform_members(platform: str) -> dict[str, str]:
    return dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))


def push(registry: DockerRegistry, name: str, tag: str, built: BuiltImage) -> None:
    for blob in built.blobs:
        registry.put_blob(name, blob.data, str(blob.digest))
    registry.put_manifest(name, tag, built.manifest.data, built.manifest.media_type)


def push_index(registry: DockerRegistry, name: str, tag: str, images: Mapping[str, BuiltImage], whole: Blob) -> None:
    for built in images.values():
        push(registry, name, str(built.digest), built)
    registry.put_manifest(name, tag, whole.data, whole.media_type)


def write_layout(folder: Path, built: BuiltImage, tag: str) -> None:
    """An image layout, for skopeo to push."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in (built.manifest, *built.blobs):
        (blobs / blob.digest.hex).write_bytes(blob.data)
    entry = built.manifest.described(annotations={"org.opencontainers.image.ref.name": tag})
    (folder / "index.json").write_bytes(text_of({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_bytes(text_of({"imageLayoutVersion": "1.0.0"}))


def resolve(
    reference: ImageReference, fetcher: Fetcher, endpoint: ServiceEndpoint, *, tokens: RegistryTokens | None = None
) -> Digest:
    """The digest that a registry gives out for a reference now."""
    registry = OciRegistry(reference, fetcher, endpoint, tokens)
    document = registry.fetch_document(reference.digest if reference.digest is not None else reference.tag_or_digest)
    if document is None:
        raise fetch_error("status", f"the registry has no image {reference}", 404)
    return document.digest
