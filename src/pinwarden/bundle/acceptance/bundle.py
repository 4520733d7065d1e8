"""Whether the documents of a bundle belong together, without a registry that points to it."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import descriptor as descriptor_document
from pinwarden.bundle import manifest as manifest_document
from pinwarden.bundle.acceptance.entries import check_entries
from pinwarden.bundle.acceptance.linkage import check_linkage
from pinwarden.bundle.acceptance.values import member, read_all
from pinwarden.bundle.acceptance.verdict import BundleDocuments
from pinwarden.core.cid import document_cid
from pinwarden.core.errors import PinwardenError


def check_documents(descriptor: bytes, manifest: bytes) -> BundleDocuments:
    """Steps 3 to 5 of the acceptance, without a pointer."""
    read = read_all({"descriptor": descriptor, "manifest": manifest})
    described, listed = read["descriptor"], read["manifest"]
    identity: dict[str, Any] = {
        "cid_profile": member(described, "artifact", "cid_profile"),
        "root_cid": member(described, "artifact", "root_cid"),
        "descriptor_cid": str(document_cid(described)),
    }
    check_linkage(identity, described, listed, literal=False)
    check_entries(listed, literal=False)
    return documents_of(described, listed, identity["descriptor_cid"])


def documents_of(described: Any, listed: Any, descriptor_cid: str) -> BundleDocuments:
    """Both as documents, each member of its kind; and what is started is a file of the bundle."""
    found = BundleDocuments(
        descriptor=descriptor_document.of(described),
        manifest=manifest_document.of(listed),
        descriptor_cid=descriptor_cid,
    )
    if all(entry.path != found.descriptor.entry for entry in found.manifest.entries):
        raise PinwardenError(
            "DOCUMENT_INVALID",
            f"tool.descriptor/entrypoint/target names no file of the bundle: {found.descriptor.entry[:120]!a}",
            data={"path": "tool.descriptor/entrypoint/target"},
        )
    return found
