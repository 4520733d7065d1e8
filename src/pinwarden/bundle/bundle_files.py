"""A bundle as three files beside each other: its archive, its descriptor and its manifest."""

from __future__ import annotations

from pathlib import Path

from pinwarden.bundle.acceptance.bundle import check_documents
from pinwarden.bundle.acceptance.verdict import BundleDocuments
from pinwarden.bundle.archive.bundle_archive import Contents, check_archive
from pinwarden.bundle.archive.limits import DEFAULT_LIMITS
from pinwarden.bundle.descriptor import CAR, TAR_ZSTD
from pinwarden.bundle.shape import LIMITS
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.files import open_regular, read_file

SUFFIXES = {CAR: ".car", TAR_ZSTD: ".tar.zst"}


class BundleFiles(Record):
    """Where the parts of a bundle are."""

    archive: Path
    descriptor: Path
    manifest: Path


class OpenedBundle(Record):
    """A bundle in which every byte was checked against its documents."""

    documents: BundleDocuments
    contents: Contents = field(repr=False)
    archive: bytes = field(repr=False)

    @property
    def content_hash(self) -> Digest:
        """Of the archive's bytes."""
        return Digest.of_bytes(self.archive)


def bundle_files(archive: Path, descriptor: str | None = None, manifest: str | None = None) -> BundleFiles:
    """The parts of a bundle: the documents are beside the archive unless they are named."""
    return BundleFiles(
        archive=archive,
        descriptor=Path(descriptor) if descriptor else _beside(archive, ".descriptor.json"),
        manifest=Path(manifest) if manifest else _beside(archive, ".manifest.json"),
    )


def _beside(archive: Path, suffix: str) -> Path:
    """``x.car.manifest.json``, as it is packed here; or ``x.manifest.json``, as others do, if only that is there."""
    ours = archive.with_name(f"{archive.name}{suffix}")
    kind = next((each for each in SUFFIXES.values() if archive.name.endswith(each)), "")
    others = archive.with_name(f"{archive.name.removesuffix(kind)}{suffix}")
    return others if others.is_file() and not ours.exists() else ours


def read_documents(files: BundleFiles) -> BundleDocuments:
    """The descriptor and the manifest, which belong together; the archive is not looked at."""
    for path, option in ((files.descriptor, "--descriptor"), (files.manifest, "--manifest")):
        if not path.exists():
            raise PinwardenError(
                "FILE_UNREADABLE",
                f"{path}: No such file or directory",
                hint=f"pinwarden bundle pack writes it beside the archive; if it is elsewhere, name it with {option}.",
            )
    return check_documents(read_file(files.descriptor, LIMITS.max_bytes), read_file(files.manifest, LIMITS.max_bytes))


def open_files(files: BundleFiles) -> OpenedBundle:
    """All of a bundle, checked."""
    with open_regular(files.archive):  # first, as an error should be about the name that was given
        pass
    return open_bundle(read_documents(files), read_file(files.archive, DEFAULT_LIMITS.archive_bytes))


def open_bundle(documents: BundleDocuments, archive: bytes) -> OpenedBundle:
    """The files of a bundle out of its archive; ``adapters.bundles.unpack`` writes them."""
    contents = check_archive(documents.descriptor, documents.manifest, archive)
    return OpenedBundle(documents=documents, contents=contents, archive=archive)
