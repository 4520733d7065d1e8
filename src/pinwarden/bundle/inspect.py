"""Looking into a bundle: what it says of itself, and whether all of it is true."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.acceptance.verdict import BundleDocuments
from pinwarden.bundle.bundle_files import BundleFiles, open_files, read_documents
from pinwarden.bundle.descriptor import Descriptor
from pinwarden.core.errors import EXIT_CLEAN
from pinwarden.core.report import Report, plural


def inspect_bundle(files: BundleFiles) -> Report:
    """The report of ``pinwarden bundle inspect``: what the documents say. The archive is not opened."""
    documents = read_documents(files)
    listed = [
        {
            "path": entry.path,
            "size_bytes": entry.size_bytes,
            "executable": entry.executable,
            "blob_cid": entry.blob_cid,
        }
        for entry in documents.manifest.entries
    ]
    descriptor = documents.descriptor
    asks = ", ".join(f"{name} {value}" for name, value in _policy(descriptor).items())
    return Report(
        command="bundle inspect",
        subject=files.archive.name,
        summary=f"{descriptor.name} {descriptor.version}: {plural(len(listed), 'file')}, {documents.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=(
            f"started with {descriptor.runtime}: {descriptor.target}; asks for {asks}",
            *(f"{row['path']}  {row['size_bytes']} bytes" for row in listed[:_SHOWN]),
            *([f"and {len(listed) - _SHOWN} more; --format json lists all"] if len(listed) > _SHOWN else []),
        ),
        facts={**_identity(documents), "entries": listed},
    )


_SHOWN = 20


def verify_bundle(files: BundleFiles) -> Report:
    """The report of ``pinwarden bundle verify``: every file is hashed. Who vouches for it is not asked."""
    opened = open_files(files)
    documents = opened.documents
    descriptor = documents.descriptor
    size = sum(entry.size_bytes for entry in documents.manifest.entries)
    files_told = plural(len(opened.contents), "file")
    return Report(
        command="bundle verify",
        subject=files.archive.name,
        summary=f"{descriptor.name} {descriptor.version} is whole: {files_told}, {size} bytes",
        exit_code=EXIT_CLEAN,
        notes=("whole does not mean trusted: pinwarden bundle accept tells who vouches for it",),
        facts={
            **_identity(documents),
            "content_hash": str(opened.content_hash),
            "files": len(opened.contents),
            "unpacked_bytes": size,
        },
    )


def _identity(documents: BundleDocuments) -> dict[str, Any]:
    descriptor = documents.descriptor
    return {
        "tool": descriptor.name,
        "version": descriptor.version,
        "root_cid": documents.root_cid,
        "descriptor_cid": documents.descriptor_cid,
        "media_type": descriptor.media_type,
        "size_bytes": descriptor.size_bytes,
        "runtime": descriptor.runtime,
        "target": descriptor.target,
        "policy": _policy(descriptor),
    }


def _policy(descriptor: Descriptor) -> dict[str, str]:
    policy = descriptor.policy
    return {"network": policy.network, "filesystem": policy.filesystem, "exec": policy.exec}
