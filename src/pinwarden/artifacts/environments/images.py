"""Container images in the store: OCI layouts by digest, audited blob by blob, loaded into an engine without a network.

Engines identify images by content: by the locked digest, or by the digest of the platform's manifest or config. An
image under one of these names is the locked one.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pinwarden.artifacts.environments import machine
from pinwarden.artifacts.oci_manifest import IMAGE_LIMITS, ImageIndex, ImageManifest, OciDescriptor, parse_document
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import file_digest, read_file
from pinwarden.system.processes import BoundedTask, run_bounded

LOAD_SECONDS = 600.0
_ASK_SECONDS = 60.0
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm"}


class StoredImage(Record):
    """An image whose blobs were all verified."""

    root: Digest
    manifest: Digest
    """For this machine's platform; equal to the root if there is no index."""
    config: Digest
    layers: tuple[Digest, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which an engine may have it."""
        return tuple(dict.fromkeys((str(self.config), str(self.manifest), str(self.root))))


def platform_here() -> str:
    """The platform that engines on this machine run. Containers are Linux everywhere."""
    processor = machine().lower()
    return f"linux/{_ARCHITECTURES.get(processor, processor)}"


def stored_image(folder: Path, root: Digest) -> StoredImage | None:
    """Verify every blob of an image layout. None if anything is missing or changed."""
    try:
        return _read(folder, root)
    except (PinwardenError, OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _read(folder: Path, root: Digest) -> StoredImage | None:
    entries = json.loads(read_file(folder / "index.json"))["manifests"]
    if [entry["digest"] for entry in entries] != [str(root)]:
        return None
    document = _document(folder, root, entries[0]["mediaType"])
    digest = root
    if isinstance(document, ImageIndex):
        entry = next(listed for listed in document.manifests if _has_blob(folder, listed))
        digest, document = entry.digest, _document(folder, entry.digest, entry.media_type)
    if not isinstance(document, ImageManifest):
        return None
    layers = tuple(layer.digest for layer in document.layers)
    if any(file_digest(_blob(folder, blob), blob.algorithm) != blob for blob in (document.config.digest, *layers)):
        return None
    return StoredImage(root=root, manifest=digest, config=document.config.digest, layers=layers)


def _has_blob(folder: Path, entry: OciDescriptor) -> bool:
    right = entry.platform is None or entry.platform.answers(platform_here())
    return right and _blob(folder, entry.digest).is_file()


def _document(folder: Path, digest: Digest, media_type: str) -> ImageIndex | ImageManifest:
    data = read_file(_blob(folder, digest), IMAGE_LIMITS.document_bytes)
    if Digest.of_bytes(data, digest.algorithm) != digest:
        raise ValueError("a document of the layout was changed")
    return parse_document(data, media_type)


def _blob(folder: Path, digest: Digest) -> Path:
    return folder / "blobs" / digest.algorithm / digest.hex


class ContainerEngine(Record):
    """docker or podman, with its environment."""

    program: Path
    variables: Mapping[str, str]

    def has_image(self, name: str) -> bool:
        """Whether it has an image with this name."""
        try:
            self.run(("image", "inspect", "--format", "{{.Id}}", name), _ASK_SECONDS)
        except PinwardenError:
            return False
        return True

    def run(self, words: Sequence[str], seconds: float) -> bytes:
        """Run one of its commands and return the output."""
        task = BoundedTask(name=self.program.name, error_code="PROGRAM_UNKNOWN", timeout_seconds=seconds)
        return run_bounded((str(self.program), *words), Path("/"), self.variables, task)


def ensure_loaded(engine: ContainerEngine, folder: Path, image: StoredImage, say: Callable[[str], None]) -> str | None:
    """The name under which the engine can start the image. Loads the image if necessary.

    None if loading fails; then the engine has to pull the locked digest itself.
    """
    known = next(filter(engine.has_image, image.names), None)
    if known is not None:
        return known
    say(f"loading the image into {engine.program.name}")
    with TemporaryDirectory(prefix="pinwarden-image-") as temporary:
        archive = Path(temporary) / "image.tar"
        _pack(folder, image, archive)
        try:
            engine.run(("load", "--quiet", "--input", str(archive)), LOAD_SECONDS)
        except PinwardenError as err:
            say(f"{err.message}; it will pull the image itself")
            return None
    return next(filter(engine.has_image, image.names), None)


def _pack(folder: Path, image: StoredImage, archive: Path) -> None:
    """Pack the layout into one file, with the manifest.json that older engines need."""
    blob = {digest: f"blobs/{digest.algorithm}/{digest.hex}" for digest in (image.config, *image.layers)}
    about = [{"Config": blob[image.config], "RepoTags": None, "Layers": [blob[layer] for layer in image.layers]}]
    (archive.parent / "manifest.json").write_text(json.dumps(about))
    with tarfile.open(archive, "w") as tar:
        tar.add(archive.parent / "manifest.json", "manifest.json")
        for path in _files(folder):
            tar.add(path, str(path.relative_to(folder)), recursive=False)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
