"""Publish a version: everything about it is computed or checked here, then it is there as a whole or not at all."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import attestation as attestation_document
from pinwarden.bundle import manifest as manifest_document
from pinwarden.bundle.acceptance.bundle import check_documents
from pinwarden.bundle.descriptor import Descriptor
from pinwarden.bundle.manifest import Manifest
from pinwarden.bundle.shape import BLOB_CID, Shape, read
from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.cid import blob_cid, document_cid
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, field, replace
from pinwarden.core.signing import document_signature_valid
from pinwarden.core.versions import refuse_older
from pinwarden.registry.authorization import Caller, check_namespace, checked_statement, record, spend
from pinwarden.registry.bundle_facts import Examined, examine
from pinwarden.registry.checkpoint import appending
from pinwarden.registry.events import Change, log_changes
from pinwarden.registry.names import check_channel, check_tool, check_version
from pinwarden.registry.registry import Registry
from pinwarden.registry.statement import PUBLISH, Statement
from pinwarden.registry.store import pointer_log, publications
from pinwarden.registry.version import PublishedVersion
from pinwarden.system.database import Transaction

_MANIFEST_MEMBERS = ("schema_version", "cid_profile", "entries", "descriptor_cid", "root_cid")


class Published(Record):
    """What a request to publish came to."""

    version: PublishedVersion
    channel: str
    seq: int
    """The index of the event that let the channel point to the version."""
    previous: str | None
    """The version that the channel pointed to before; None if it pointed nowhere."""
    changed: bool
    """False if the channel pointed to this version already."""

    def to_json(self) -> dict[str, Any]:
        """The event as a registry answers it."""
        return {"channel": self.channel, "log_index": self.seq, "previous": self.previous, "changed": self.changed}


class Submitted(Record):
    """What a publisher sent, read and found to belong together."""

    statement: Statement
    channel: str
    archive_cid: str
    allow_older: bool
    """Whether the channel may go back from a newer version to this one."""
    descriptor: Descriptor
    descriptor_cid: str
    manifest: Manifest
    attestations: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def subject(self) -> str:
        """What it is about, for the audit log."""
        return f"{self.descriptor.name} {self.descriptor.version}"


def publish(registry: Registry, caller: Caller, request: bytes) -> Published:
    """Carry out a request to publish.

    1. The documents belong together, and the request is signed for them.
    2. Caller and signer belong to the namespace.
    3. The archive holds exactly the files of the manifest; its content hash is computed.
    4. The server is asked for its surface, in a sandbox.
    5. The channel does not go back to an older version, unless the request says so.
    6. Version, event and head of the log are written in one transaction.
    """
    submitted = _read(registry, request)
    with registry.database.transaction() as step:
        check_namespace(step, caller, submitted.statement, submitted.descriptor.name)
        present = publications.version_of(step, submitted.descriptor.name, submitted.descriptor.version)
    if present is not None:
        _refuse_other_content(present, submitted)
        examined = None
    else:
        examined = examine(registry, submitted.descriptor, submitted.manifest, submitted.archive_cid)
    with appending(registry) as step:
        return _write(step, registry, caller, submitted, examined)


def _read(registry: Registry, request: bytes) -> Submitted:
    shape = Shape(read(request), "request")
    statement = checked_statement(registry, shape.value.get("statement"), PUBLISH)
    asked = statement.shape
    # Read again from their one spelling: what is checked is what is kept.
    documents = check_documents(to_bytes(shape.inside("descriptor").value), to_bytes(shape.inside("manifest").value))
    descriptor = documents.descriptor
    if (asked.cid("root_cid"), asked.cid("descriptor_cid")) != (documents.root_cid, documents.descriptor_cid):
        raise PinwardenError("ROOT_CID_MISMATCH", "the request was signed for another bundle than was sent")
    if (asked.text("tool"), asked.text("version")) != (descriptor.name, descriptor.version):
        raise PinwardenError("TOOL_NAME_MISMATCH", "the request is about another tool or version than the descriptor")
    check_tool(descriptor.name)
    check_version(descriptor.version)
    if len(descriptor.description) > registry.limits.description_chars or "\0" in descriptor.description:
        told = f"a description is text of up to {registry.limits.description_chars} characters"
        raise PinwardenError("PUBLISH_LIMIT", told)
    manifest_value = documents.manifest.document
    submitted = Submitted(
        statement=statement,
        channel=check_channel(asked.text("channel")),
        archive_cid=asked.cid("archive_cid", BLOB_CID),
        allow_older=asked.flag("allow_older", default=False),
        descriptor=descriptor,
        descriptor_cid=documents.descriptor_cid,
        manifest=manifest_document.of({member: manifest_value.get(member) for member in _MANIFEST_MEMBERS}),
        attestations=(),
    )
    return _with_attestations(registry, submitted, shape)


def _with_attestations(registry: Registry, submitted: Submitted, shape: Shape) -> Submitted:
    given = shape.value.get("attestations", [])
    if type(given) is not list or len(given) > registry.limits.attestations:
        raise PinwardenError("PUBLISH_LIMIT", f"a bundle has up to {registry.limits.attestations} attestations")
    root, described = submitted.manifest.root_cid, submitted.descriptor_cid
    checked = (checked_attestation(registry, each, root, described) for each in given)
    return replace(submitted, attestations=tuple(checked))


def checked_attestation(registry: Registry, document: Any, root_cid: str, descriptor_cid: str) -> tuple[str, bytes]:
    """The CID and bytes of an attestation that is about this bundle and signed as it says. Whom to trust is for
    whoever installs; that none is too large for them is seen to here."""
    data, most = to_bytes(document), registry.limits.attestation_bytes
    if len(data) > most:
        raise PinwardenError("PUBLISH_LIMIT", f"an attestation has {len(data)} bytes, and at most {most} are taken")
    found = attestation_document.of(document)
    if (found.root_cid, found.descriptor_cid) != (root_cid, descriptor_cid):
        raise PinwardenError("DOCUMENT_INVALID", "an attestation is about another bundle")
    for signature in document["signatures"]:
        key = PublicKey.from_did(signature["key_id"])
        if not document_signature_valid(document, signature, [key]):
            raise PinwardenError("SIGNATURE_INVALID", f"the signature of {key.did} on an attestation does not verify")
    signers = {each.key_id for each in found.signatures}
    for claim in found.claims:
        if claim.issuer_key_id not in signers:
            raise PinwardenError(
                "SIGNATURE_INVALID", f"{claim.issuer_key_id[:80]} did not sign what is claimed in its name"
            )
    return str(document_cid(document)), data


def _refuse_other_content(present: PublishedVersion, submitted: Submitted) -> None:
    wanted = (submitted.manifest.root_cid, submitted.descriptor_cid, submitted.archive_cid)
    if (present.root_cid, present.descriptor_cid, present.archive_cid) != wanted:
        raise PinwardenError(
            "VERSION_EXISTS",
            f"{present.tool} {present.version} is published already, with other content",
            data={"published": present.root_cid, "given": submitted.manifest.root_cid},
        )


def _write(
    step: Transaction, registry: Registry, caller: Caller, submitted: Submitted, examined: Examined | None
) -> Published:
    descriptor = submitted.descriptor
    # Asked again, now that nobody else can change the answer.
    namespace = check_namespace(step, caller, submitted.statement, descriptor.name)
    present = publications.version_of(step, descriptor.name, descriptor.version)
    channel = publications.channel_of(step, descriptor.name, submitted.channel)
    previous = channel.version if channel is not None else None
    if present is not None:
        _refuse_other_content(present, submitted)
        if channel is not None and previous == present.version:
            spend(step, registry, submitted.statement, again=True)  # perhaps after an answer that was lost
            return Published(
                version=present, channel=submitted.channel, seq=channel.seq, previous=previous, changed=False
            )
        if present.yanked is not None:
            raise PinwardenError("VERSION_YANKED", f"{submitted.subject} was yanked: {present.yanked}")
    spend(step, registry, submitted.statement)
    if not submitted.allow_older:
        refuse_older(descriptor.name, descriptor.version, submitted.channel, previous)
    published = present or _new_version(step, registry, submitted, examined, namespace)
    reason = "publish" if present is None else "point"
    change = Change(tool=descriptor.name, channel=submitted.channel, version=published, reason=reason)
    seq = log_changes(step, registry, [change])
    record(step, registry, caller, submitted.statement, submitted.subject)
    written = publications.version_of(step, descriptor.name, descriptor.version) or published
    return Published(version=written, channel=submitted.channel, seq=seq, previous=previous, changed=True)


def _new_version(
    step: Transaction, registry: Registry, submitted: Submitted, examined: Examined | None, namespace: str
) -> PublishedVersion:
    if examined is None:
        raise PinwardenError("DATABASE_CORRUPT", f"{submitted.subject} was published a moment ago and is gone")
    head = pointer_log.head_of(step)
    published = _version(registry, submitted, examined, namespace, head.size if head else 0)
    _keep(step, submitted, examined, published)
    return published


def _keep(step: Transaction, submitted: Submitted, examined: Examined, published: PublishedVersion) -> None:
    root, described = published.root_cid, published.descriptor_cid
    publications.put_document(step, described, to_bytes(submitted.descriptor.document))
    publications.put_manifest(step, root, described, to_bytes(submitted.manifest.document))
    publications.add_attestations(step, root, described, submitted.attestations)
    if examined.surface_cid is not None and examined.surface is not None:
        publications.put_document(step, examined.surface_cid, examined.surface)
    publications.add_version(step, published)


def _version(
    registry: Registry, submitted: Submitted, examined: Examined, namespace: str, seq: int
) -> PublishedVersion:
    descriptor = submitted.descriptor
    return PublishedVersion(
        tool=descriptor.name,
        version=descriptor.version,
        namespace=namespace,
        description=descriptor.description,
        root_cid=submitted.manifest.root_cid,
        descriptor_cid=submitted.descriptor_cid,
        archive_cid=submitted.archive_cid,
        archive_size=descriptor.size_bytes,
        media_type=descriptor.media_type,
        content_hash=str(examined.content_hash),
        api_surface=examined.api_surface,
        surface_cid=examined.surface_cid,
        surface_problem=examined.problem,
        published_at=registry.now(),
        published_by=submitted.statement.key_id,
        seq=seq,
    )


def keep_archive(registry: Registry, data: bytes, cid: str) -> Digest:
    """Take an archive that a publisher sends under its CID, before it is published."""
    if str(blob_cid(data)) != cid:
        raise PinwardenError("ARTIFACT_MISMATCH", f"the bytes that were sent are not {cid[:80]}")
    registry.blobs.put(data)
    return Digest.of_bytes(data)
