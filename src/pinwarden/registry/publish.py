"""Publish a version: verify the bundle, probe its server in a sandbox, and store it in one transaction."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore
from typing import Any

from pinwarden.bundle import attestation as attestation_document
from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.bundle.acceptance import check_documents
from pinwarden.bundle.bundle_archive import FileContents, check_archive
from pinwarden.bundle.bundle_documents import SKILLS_RUNTIME, BundleDescriptor, BundleLimits, Manifest
from pinwarden.bundle.bundle_files import unpack
from pinwarden.bundle.document import BLOB_CID, DocumentReader, encode_document, read_json
from pinwarden.bundle.platforms import refuse_other_platform
from pinwarden.core.digest import Digest, blob_cid, document_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, is_document_signature_valid
from pinwarden.core.record import Record, field, replace
from pinwarden.core.versions import refuse_older
from pinwarden.registry.access import Caller, authorize_namespace, mark_statement_used, record_success, verify_statement
from pinwarden.registry.checkpoint_file import open_append_transaction
from pinwarden.registry.log_writer import PointerChange, append_pointer_changes
from pinwarden.registry.names import check_channel, check_tool, check_version
from pinwarden.registry.registry import NEVER, REQUIRED, Registry
from pinwarden.registry.registry_documents import PUBLISH, PublishedVersion, PublisherStatement
from pinwarden.registry.search import update_package
from pinwarden.registry.store import catalog, pointer_log, publications
from pinwarden.registry.store.catalog import Readme
from pinwarden.registry.takedowns import refuse_taken_down
from pinwarden.surface.interop import compute_api_surface_hash
from pinwarden.surface.surface import TOOL, Surface, encode_surface
from pinwarden.system.database import Transaction
from pinwarden.system.target import StdioTarget

_MANIFEST_MEMBERS = ("schema_version", "cid_profile", "entries", "descriptor_cid", "root_cid")
_PROBE_SECONDS = 20.0
README_NAMES = ("readme.md", "readme.markdown", "readme.txt", "readme")
"""The names of the file that a bundle's page shows, in lower case, the preferred one first."""
MAX_README_BYTES = 256 * 1024
_OUTPUT_LINES = 20
_PROGRAMS = {"node": ("node",), "deno": ("deno", "run"), "native": ()}
_PROBE_SLOTS = BoundedSemaphore(2)  # concurrent probes; more of them would slow down downloads


class PublishResult(Record):
    """The outcome of a publish request."""

    version: PublishedVersion
    channel: str
    seq: int
    """The log index of the channel's event."""
    previous_version: str | None
    """The channel's previous version; None if it had none."""
    changed: bool
    """Whether the channel moved; false if it already pointed to this version."""
    probe_output: tuple[str, ...] = ()
    """The last lines that the server wrote to stderr, if its probe failed. Only the publisher sees them."""

    def to_json(self) -> dict[str, Any]:
        """Convert the result to the ``event`` member of the HTTP response."""
        return {
            "channel": self.channel,
            "log_index": self.seq,
            "previous": self.previous_version,
            "changed": self.changed,
        }


class Submission(Record):
    """A parsed publish request whose documents are consistent with each other."""

    statement: PublisherStatement
    channel: str
    archive_cid: str
    allow_older: bool
    """Whether the channel may move from a newer version to this one."""
    descriptor: BundleDescriptor
    descriptor_cid: str
    manifest: Manifest
    attestations: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def subject(self) -> str:
        """Bundle and version, for the audit log."""
        return f"{self.descriptor.name} {self.descriptor.version}"


class ExaminedBundle(Record):
    """The content hash and the surface of a bundle, computed by the registry."""

    content_hash: Digest
    api_surface: str | None
    surface_cid: str | None
    surface: bytes | None = field(repr=False)
    problem: str | None
    """The reason why there is no surface; None if there is one."""
    readme: Readme | None = None
    probe_output: tuple[str, ...] = field(default=(), repr=False)
    """The last lines that the server wrote to stderr, if its probe failed."""


def publish(registry: Registry, caller: Caller, request: bytes) -> PublishResult:
    """Publish a version.

    1. Check that the documents are consistent and that the request is signed for them.
    2. Check that caller and signer belong to the namespace.
    3. Verify the archive against the bundle manifest, and hash it.
    4. Probe the server for its surface, in a sandbox.
    5. Refuse to move the channel to an older version, unless the request allows it.
    6. Write version, log event and head in one transaction.

    For a version that is already published, steps 3 and 4 are skipped. Its new attestations are stored, and the channel
    moves.
    """
    submitted = _parse_request(registry, request)
    with registry.database.transaction() as transaction:
        authorize_namespace(transaction, caller, submitted.statement, submitted.descriptor.name)
        refuse_taken_down(transaction, submitted.descriptor.name, submitted.descriptor.version)
        present = publications.find_version(transaction, submitted.descriptor.name, submitted.descriptor.version)
    if present is not None:
        _refuse_other_content(present, submitted)
        examined = None
    else:
        examined = examine_bundle(registry, submitted.descriptor, submitted.manifest, submitted.archive_cid)
    with open_append_transaction(registry) as transaction:
        result = _write_publication(transaction, registry, caller, submitted, examined)
    return result if examined is None else replace(result, probe_output=examined.probe_output)


def store_archive(registry: Registry, data: bytes, cid: str) -> Digest:
    """Store an uploaded archive, and return its digest. Raises if its CID is not ``cid``."""
    if str(blob_cid(data)) != cid:
        raise PinwardenError("ARTIFACT_MISMATCH", f"the uploaded bytes do not match {cid[:80]}")
    registry.blobs.put(data)
    return Digest.of_bytes(data)


# The request


def _parse_request(registry: Registry, request: bytes) -> Submission:
    reader = DocumentReader(read_json(request), "request")
    statement = verify_statement(registry, reader.value.get("statement"), PUBLISH)
    body = statement.reader
    # The documents are parsed from their canonical bytes, because the registry stores those bytes.
    documents = check_documents(
        encode_document(reader.object("descriptor").value), encode_document(reader.object("manifest").value)
    )
    descriptor = documents.descriptor
    if (body.cid("root_cid"), body.cid("descriptor_cid")) != (documents.root_cid, documents.descriptor_cid):
        raise PinwardenError("ROOT_CID_MISMATCH", "the request is signed for another bundle than the submitted one")
    if (body.text("tool"), body.text("version")) != (descriptor.name, descriptor.version):
        raise PinwardenError("TOOL_NAME_MISMATCH", "the request names another tool or version than the descriptor")
    check_tool(descriptor.name)
    check_version(descriptor.version)
    if len(descriptor.description) > registry.limits.description_chars or "\0" in descriptor.description:
        limit = registry.limits.description_chars
        raise PinwardenError("PUBLISH_LIMIT", f"a description must be text of at most {limit} characters")
    manifest_value = documents.manifest.document
    submitted = Submission(
        statement=statement,
        channel=check_channel(body.text("channel")),
        archive_cid=body.cid("archive_cid", BLOB_CID),
        allow_older=body.boolean("allow_older", default=False),
        descriptor=descriptor,
        descriptor_cid=documents.descriptor_cid,
        manifest=manifest_document.manifest_from_json(
            {member: manifest_value.get(member) for member in _MANIFEST_MEMBERS}
        ),
        attestations=(),
    )
    return _add_attestations(registry, submitted, reader)


def _add_attestations(registry: Registry, submitted: Submission, reader: DocumentReader) -> Submission:
    documents = reader.value.get("attestations", [])
    if type(documents) is not list or len(documents) > registry.limits.attestations:
        raise PinwardenError("PUBLISH_LIMIT", f"a bundle can have at most {registry.limits.attestations} attestations")
    root, described = submitted.manifest.root_cid, submitted.descriptor_cid
    checked = (verify_attestation(registry, document, root, described) for document in documents)
    return replace(submitted, attestations=tuple(checked))


def verify_attestation(registry: Registry, document: Any, root_cid: str, descriptor_cid: str) -> tuple[str, bytes]:
    """Verify an attestation of this bundle, and return its CID and bytes.

    Raises if it is about another bundle, is too large, or has an invalid signature. The registry accepts every issuer:
    each installer decides which issuers to trust.
    """
    data, limit = encode_document(document), registry.limits.attestation_bytes
    if len(data) > limit:
        raise PinwardenError("PUBLISH_LIMIT", f"an attestation has {len(data)} bytes; the limit is {limit}")
    attestation = attestation_document.attestation_from_json(document)
    if (attestation.root_cid, attestation.descriptor_cid) != (root_cid, descriptor_cid):
        raise PinwardenError("DOCUMENT_INVALID", "an attestation names another bundle")
    for signature in document["signatures"]:
        key = PublicKey.from_did(signature["key_id"])
        if not is_document_signature_valid(document, signature, [key]):
            raise PinwardenError("SIGNATURE_INVALID", f"an attestation has an invalid signature by {key.did}")
    signers = {item.key_id for item in attestation.signatures}
    for claim in attestation.claims:
        if claim.issuer_key_id not in signers:
            raise PinwardenError("SIGNATURE_INVALID", f"a claim is not signed by its issuer {claim.issuer_key_id[:80]}")
    return str(document_cid(document)), data


# Verification and probe of the bundle


def examine_bundle(
    registry: Registry, descriptor: BundleDescriptor, manifest: Manifest, archive_cid: str
) -> ExaminedBundle:
    """Verify the archive and probe its server in a sandbox without network."""
    archive = registry.blobs.get(archive_cid, registry.limits.archive_bytes)
    if archive is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the archive {archive_cid} was not uploaded")
    limits = BundleLimits(archive_bytes=registry.limits.archive_bytes, total_bytes=registry.limits.unpacked_bytes)
    contents = check_archive(descriptor, manifest, archive, limits)
    content_hash, readme = Digest.of_bytes(archive), find_readme(contents)
    if descriptor.runtime == SKILLS_RUNTIME:
        return ExaminedBundle(
            content_hash=content_hash,
            api_surface=None,
            surface_cid=None,
            surface=None,
            problem="it has skills, and no server",
            readme=readme,
        )
    try:
        surface = _probe_surface(registry.probing, descriptor, manifest, contents)
        api_surface = str(compute_api_surface_hash(item.value for item in surface.items_of_kind(TOOL)))
    except PinwardenError as err:
        if registry.probing == REQUIRED:
            raise
        return ExaminedBundle(
            content_hash=content_hash,
            api_surface=None,
            surface_cid=None,
            surface=None,
            problem=_format_public_problem(err),
            readme=readme,
            probe_output=tuple(str(err.data.get("stderr", "")).splitlines()[-_OUTPUT_LINES:]),
        )
    body = encode_surface(surface)
    return ExaminedBundle(
        content_hash=content_hash,
        api_surface=api_surface,
        surface_cid=str(document_cid(body)),
        surface=body,
        problem=None,
        readme=readme,
    )


def find_readme(contents: FileContents) -> Readme | None:
    """Return the README in the bundle's top folder; None if there is none, or if it is too large for a page."""
    paths = {path.lower(): path for path in sorted(contents, reverse=True)}
    path = next((paths[name] for name in README_NAMES if name in paths), None)
    if path is None or len(contents[path]) > MAX_README_BYTES:
        return None
    return Readme(path=path, body=bytes(contents[path]))


def _probe_surface(probing: str, descriptor: BundleDescriptor, manifest: Manifest, contents: FileContents) -> Surface:
    from pinwarden.system.sandbox import find_bubblewrap

    if probing == NEVER or find_bubblewrap() is None:
        why = "this registry does not start servers" if probing == NEVER else "bubblewrap is not installed"
        raise PinwardenError("PROBE_FAILED", f"the server was not probed: {why}")
    with TemporaryDirectory(prefix="pinwarden-registry-") as above:
        folder = Path(above) / "bundle"
        unpack(manifest.entries, contents, folder)
        return _probe_unpacked(descriptor, folder)


def _probe_unpacked(descriptor: BundleDescriptor, folder: Path) -> Surface:
    from pinwarden.surface.probe.probe import ProbeOptions, probe
    from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS, Sandbox

    refuse_other_platform("the bundle", descriptor.supported)
    entry = folder / descriptor.entry_path
    if "$" in descriptor.entry_path or not entry.resolve().is_relative_to(folder.resolve()) or not entry.is_file():
        raise PinwardenError("PROBE_FAILED", "the entry point is not a file of the bundle")
    program, readable = _choose_program(descriptor.runtime)
    target = StdioTarget(command=(*program, str(entry)), cwd=str(folder))
    # By publishing a server, its publisher agrees that the registry starts it in a sandbox.
    sandbox = Sandbox(readable=(str(folder), *readable), limits=PROBE_SANDBOX_LIMITS)
    options = ProbeOptions(allow_execute=True, sandbox=sandbox, timeout=_PROBE_SECONDS)
    with _PROBE_SLOTS:
        return probe(target, options)


def _choose_program(runtime: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the program that starts the server, and the folders that the sandbox must expose for it."""
    if runtime != "python":
        return _PROGRAMS[runtime], ()
    # The registry's own interpreter, without its installed packages.
    own = Path(sys.base_prefix) / "bin" / "python3"
    return (str(own) if own.is_file() else "python3",), (sys.base_prefix,)


def _format_public_problem(err: PinwardenError) -> str:
    """Return the reason for a failed probe. The server's output is left out, because the reason is published."""
    return f"{err.code}: {err.message}"[:300]


# Writing


def _write_publication(
    transaction: Transaction, registry: Registry, caller: Caller, submitted: Submission, examined: ExaminedBundle | None
) -> PublishResult:
    descriptor = submitted.descriptor
    # Check the namespace again: it may have changed before this transaction got the write lock.
    namespace = authorize_namespace(transaction, caller, submitted.statement, descriptor.name)
    refuse_taken_down(transaction, descriptor.name, descriptor.version)
    present = publications.find_version(transaction, descriptor.name, descriptor.version)
    channel = publications.find_channel(transaction, descriptor.name, submitted.channel)
    previous = channel.version if channel is not None else None
    if present is not None:
        _refuse_other_content(present, submitted)
        if present.yanked is not None and previous != present.version:
            raise PinwardenError("VERSION_YANKED", f"{submitted.subject} was yanked: {present.yanked}")
        present = _store_new_attestations(transaction, registry, submitted, present)
        if channel is not None and previous == present.version:
            mark_statement_used(transaction, registry, submitted.statement, again=True)  # a retry after a lost response
            return PublishResult(
                version=present, channel=submitted.channel, seq=channel.seq, previous_version=previous, changed=False
            )
    mark_statement_used(transaction, registry, submitted.statement)
    if not submitted.allow_older:
        refuse_older(descriptor.name, descriptor.version, submitted.channel, previous)
    published = present or _add_version(transaction, registry, submitted, examined, namespace)
    reason = "publish" if present is None else "point"
    change = PointerChange(tool=descriptor.name, channel=submitted.channel, version=published, reason=reason)
    seq = append_pointer_changes(transaction, registry, [change])
    record_success(transaction, registry, caller, submitted.statement, submitted.subject)
    written = publications.find_version(transaction, descriptor.name, descriptor.version) or published
    return PublishResult(version=written, channel=submitted.channel, seq=seq, previous_version=previous, changed=True)


def _store_new_attestations(
    transaction: Transaction, registry: Registry, submitted: Submission, present: PublishedVersion
) -> PublishedVersion:
    """Store the attestations that a published version does not have yet. Returns the version with all of them."""
    known = dict.fromkeys((*present.attestations, *(cid for cid, _ in submitted.attestations)))
    if len(known) == len(present.attestations):
        return present
    if len(known) > registry.limits.attestations:
        limit = registry.limits.attestations
        raise PinwardenError("PUBLISH_LIMIT", f"{submitted.subject} would have more than {limit} attestations")
    publications.add_attestations(transaction, present.root_cid, present.descriptor_cid, submitted.attestations)
    return replace(present, attestations=tuple(sorted(known)))


def _refuse_other_content(present: PublishedVersion, submitted: Submission) -> None:
    wanted = (submitted.manifest.root_cid, submitted.descriptor_cid, submitted.archive_cid)
    if (present.root_cid, present.descriptor_cid, present.archive_cid) != wanted:
        raise PinwardenError(
            "VERSION_EXISTS",
            f"{present.tool} {present.version} is already published with other content",
            data={"published": present.root_cid, "given": submitted.manifest.root_cid},
        )


def _add_version(
    transaction: Transaction, registry: Registry, submitted: Submission, examined: ExaminedBundle | None, namespace: str
) -> PublishedVersion:
    if examined is None:
        raise PinwardenError("DATABASE_CORRUPT", f"{submitted.subject} disappeared while it was being published")
    head = pointer_log.load_head(transaction)
    published = _build_version(registry, submitted, examined, namespace, head.size if head else 0)
    _store_version(transaction, submitted, examined, published)
    return published


def _build_version(
    registry: Registry, submitted: Submission, examined: ExaminedBundle, namespace: str, seq: int
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


def _store_version(
    transaction: Transaction, submitted: Submission, examined: ExaminedBundle, published: PublishedVersion
) -> None:
    root, described = published.root_cid, published.descriptor_cid
    publications.put_document(transaction, described, encode_document(submitted.descriptor.document))
    publications.put_manifest(transaction, root, described, encode_document(submitted.manifest.document))
    publications.add_attestations(transaction, root, described, submitted.attestations)
    if examined.surface_cid is not None and examined.surface is not None:
        publications.put_document(transaction, examined.surface_cid, examined.surface)
    if examined.readme is not None:
        catalog.save_readme(transaction, root, examined.readme)
    publications.add_version(transaction, published)
    update_package(transaction, published.tool)
