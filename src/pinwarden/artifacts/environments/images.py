"""Reads and verifies container images in the store, and loads them into a container engine without a network.

Container engines name images by digest: of the index, of the platform's manifest, or of the config. An image with one
of these digests has the locked content.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pinwarden.artifacts.environments import get_processor_architecture
from pinwarden.artifacts.oci_manifest import IMAGE_LIMITS, ImageIndex, ImageManifest, OciDescriptor, parse_document
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.bounded_task import BoundedTask, run_bounded
from pinwarden.system.files import file_digest, read_file

LOAD_SECONDS = 600.0
_INSPECT_SECONDS = 60.0
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm"}


class StoredImage(Record):
    """An image whose blobs were all verified."""

    root: Digest
    manifest: Digest
    """The manifest for this machine's platform. Without an index, it is the root."""
    config: Digest
    layers: tuple[Digest, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that an engine may list the image under."""
        return tuple(dict.fromkeys((str(self.config), str(self.manifest), str(self.root))))


def detect_container_platform() -> str:
    """Return the platform of containers on this machine. The system is always Linux, also on macOS and Windows."""
    processor = get_processor_architecture().lower()
    return f"linux/{_ARCHITECTURES.get(processor, processor)}"


def read_stored_image(folder: Path, root: Digest) -> StoredImage | None:
    """Read an image layout and verify every blob. Returns None if a blob is missing or was changed."""
    try:
        return _read_image(folder, root)
    except (PinwardenError, OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _read_image(folder: Path, root: Digest) -> StoredImage | None:
    entries = json.loads(read_file(folder / "index.json"))["manifests"]
    if [entry["digest"] for entry in entries] != [str(root)]:
        return None
    document = _read_document(folder, root, entries[0]["mediaType"])
    digest = root
    if isinstance(document, ImageIndex):
        entry = next(listed for listed in document.manifests if _is_usable(folder, listed))
        digest, document = entry.digest, _read_document(folder, entry.digest, entry.media_type)
    if not isinstance(document, ImageManifest):
        return None
    layers = tuple(layer.digest for layer in document.layers)
    if any(
        file_digest(_get_blob_path(folder, blob), blob.algorithm) != blob for blob in (document.config.digest, *layers)
    ):
        return None
    return StoredImage(root=root, manifest=digest, config=document.config.digest, layers=layers)


def _is_usable(folder: Path, entry: OciDescriptor) -> bool:
    fits = entry.platform is None or entry.platform.satisfies(detect_container_platform())
    return fits and _get_blob_path(folder, entry.digest).is_file()


def _read_document(folder: Path, digest: Digest, media_type: str) -> ImageIndex | ImageManifest:
    data = read_file(_get_blob_path(folder, digest), IMAGE_LIMITS.document_bytes)
    if Digest.of_bytes(data, digest.algorithm) != digest:
        raise ValueError("a document in the layout was changed")
    return parse_document(data, media_type)


def _get_blob_path(folder: Path, digest: Digest) -> Path:
    return folder / "blobs" / digest.algorithm / digest.hex


class ContainerEngine(Record):
    """docker or podman, with its environment."""

    program: Path
    variables: Mapping[str, str]

    def has_image(self, name: str) -> bool:
        """Whether the engine has an image with this name."""
        try:
            self.run(("image", "inspect", "--format", "{{.Id}}", name), _INSPECT_SECONDS)
        except PinwardenError:
            return False
        return True

    def run(self, arguments: Sequence[str], seconds: float) -> bytes:
        """Run an engine command and return its output."""
        task = BoundedTask(name=self.program.name, error_code="PROGRAM_UNKNOWN", timeout_seconds=seconds)
        return run_bounded((str(self.program), *arguments), Path("/"), self.variables, task)


def ensure_loaded(
    engine: ContainerEngine, folder: Path, image: StoredImage, notify: Callable[[str], None]
) -> str | None:
    """Load the image into the engine if necessary, and return the name to start it by.

    None if loading fails; the engine must then pull the locked digest itself.
    """
    name = next(filter(engine.has_image, image.names), None)
    if name is not None:
        return name
    notify(f"loading the image into {engine.program.name}")
    with TemporaryDirectory(prefix="pinwarden-image-") as temporary:
        archive = Path(temporary) / "image.tar"
        _pack_layout(folder, image, archive)
        try:
            engine.run(("load", "--quiet", "--input", str(archive)), LOAD_SECONDS)
        except PinwardenError as err:
            notify(f"{err.message}; {engine.program.name} will pull the image itself")
            return None
    return next(filter(engine.has_image, image.names), None)


def _pack_layout(folder: Path, image: StoredImage, archive: Path) -> None:
    """Pack the layout into one file, with the manifest.json that older engines need."""
    paths = {digest: f"blobs/{digest.algorithm}/{digest.hex}" for digest in (image.config, *image.layers)}
    manifest = [{"Config": paths[image.config], "RepoTags": None, "Layers": [paths[layer] for layer in image.layers]}]
    (archive.parent / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(archive, "w") as tar:
        tar.add(archive.parent / "manifest.json", "manifest.json")
        for path in _list_files(folder):
            tar.add(path, str(path.relative_to(folder)), recursive=False)


def _list_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
