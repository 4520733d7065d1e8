"""Find a registry's files by path, for the HTTP server and the static export."""

from __future__ import annotations

import re
from collections.abc import Callable

from pinwarden.bundle import attestation as attestation_document
from pinwarden.bundle.attestation import list_current_attestations
from pinwarden.bundle.document import add_signature, encode_document
from pinwarden.bundle.log_documents import (
    CHECKPOINT_SIGNED_FIELDS,
    CheckpointDocument,
    build_unsigned_checkpoint,
    key_changes_to_json,
)
from pinwarden.core.digest import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.signed_note import Checkpoint, Note, TlogProof
from pinwarden.core.tlog import TILE_WIDTH
from pinwarden.registry.checkpoint_file import load_key_changes
from pinwarden.registry.registry import Registry, check_current_key
from pinwarden.registry.registry_documents import VERSION_SIGNED_FIELDS, identity_to_json, version_to_json
from pinwarden.registry.store import operators, pointer_log, publications
from pinwarden.registry.store.publications import Channel
from pinwarden.system.database import Transaction

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
FOREVER, BRIEFLY, NEVER = "forever", "briefly", "never"
"""The HTTP cache policy of a file."""
_NAME = r"([a-z0-9._-]{1,214})"
_CID = r"(b[a-z2-7]{58})"
_VERSION = r"([0-9A-Za-z.+-]{1,100})"


class RegistryFile(Record):
    """A file of the registry."""

    body: bytes = field(repr=False)
    media_type: str = JSON
    cache: str = NEVER


def find_file(registry: Registry, path: str) -> RegistryFile | None:
    """Return the file at a path (without a leading slash); None if there is none."""
    with registry.database.transaction() as transaction:
        return find_file_in(registry, transaction, path)


def find_file_in(registry: Registry, transaction: Transaction, path: str) -> RegistryFile | None:
    """Return the file at a path, read in a given transaction; None if there is none."""
    for pattern, handler in _ROUTES:
        match = pattern.fullmatch(path)
        if match is not None:
            return handler(registry, transaction, *match.groups())
    return None


def describe_error(err: PinwardenError, status: int) -> str:
    """Return the message of an error, without details of internal failures."""
    return err.message if status < 500 or err.code == "OVERLOADED" else "the registry failed to process the request"


def _serve_identity(registry: Registry, transaction: Transaction) -> RegistryFile:
    check_current_key(transaction, registry)
    return RegistryFile(body=encode_document(identity_to_json(registry.identity)), cache=BRIEFLY)


def _serve_tools(_registry: Registry, transaction: Transaction) -> RegistryFile:
    return RegistryFile(body=encode_document({"tools": publications.list_tools(transaction)}), cache=BRIEFLY)


def _serve_bundle(_registry: Registry, transaction: Transaction, tool: str) -> RegistryFile | None:
    versions = publications.list_versions(transaction, tool)
    if not versions:
        return None
    channels = [row for row in publications.list_channels(transaction, tool) if row.pointer is not None]
    value = {
        "tool": tool,
        "channels": {row.channel: row.version for row in channels},
        "versions": [version_to_json(version) for version in versions],
    }
    return RegistryFile(body=encode_document(value))


def _serve_version(registry: Registry, transaction: Transaction, tool: str, version: str) -> RegistryFile | None:
    published = publications.find_version(transaction, tool, version)
    if published is None:
        return None
    check_current_key(transaction, registry)
    return RegistryFile(
        body=encode_document(add_signature(version_to_json(published), VERSION_SIGNED_FIELDS, registry.signer))
    )


def _serve_pointer(_registry: Registry, transaction: Transaction, tool: str, channel: str) -> RegistryFile | None:
    row = publications.find_channel(transaction, tool, channel)
    return None if row is None or row.pointer is None else RegistryFile(body=row.pointer)


def _serve_event(_registry: Registry, transaction: Transaction, tool: str, channel: str) -> RegistryFile | None:
    row = _find_pointed_channel(transaction, tool, channel)
    return None if row is None else RegistryFile(body=pointer_log.read_entries(transaction, row.seq, row.seq + 1)[0])


def _serve_proof(registry: Registry, transaction: Transaction, tool: str, channel: str) -> RegistryFile | None:
    row = _find_pointed_channel(transaction, tool, channel)
    if row is None:
        return None
    note = read_head_note(registry, transaction)
    size = Checkpoint.parse(note.text).size
    path = tuple(pointer_log.compute_inclusion_path(transaction, size, row.seq))
    return RegistryFile(body=bytes(TlogProof(index=row.seq, path=path, checkpoint=note)), media_type=TEXT)


def _find_pointed_channel(transaction: Transaction, tool: str, channel: str) -> Channel | None:
    row = publications.find_channel(transaction, tool, channel)
    return None if row is None or row.pointer is None else row


def _serve_document(_registry: Registry, transaction: Transaction, cid: str) -> RegistryFile | None:
    body = publications.find_document(transaction, cid)
    return None if body is None else RegistryFile(body=body, cache=FOREVER)


def _serve_manifest(
    _registry: Registry, transaction: Transaction, root_cid: str, descriptor_cid: str
) -> RegistryFile | None:
    body = publications.find_manifest(transaction, root_cid, descriptor_cid)
    return None if body is None else RegistryFile(body=body, cache=FOREVER)


def _serve_attestations(
    _registry: Registry, transaction: Transaction, root_cid: str, descriptor_cid: str
) -> RegistryFile | None:
    if publications.find_manifest(transaction, root_cid, descriptor_cid) is None:
        return None
    attestations = {
        cid: attestation_document.parse_attestation(body)
        for cid in publications.list_attestations(transaction, root_cid, descriptor_cid)
        if (body := publications.find_document(transaction, cid)) is not None
    }
    return RegistryFile(body=encode_document({"attestations": list_current_attestations(attestations)}))


def _serve_blob(registry: Registry, transaction: Transaction, cid: str) -> RegistryFile | None:
    try:
        Cid.parse(cid)
    except PinwardenError:
        return None
    if operators.is_archive_taken_down(transaction, cid):
        return None
    data = registry.blobs.get(cid, registry.limits.archive_bytes)
    return None if data is None else RegistryFile(body=data, media_type=BYTES, cache=FOREVER)


# The log


def read_head_note(registry: Registry, transaction: Transaction) -> Note:
    """Return the log's head with the cosignatures of witnesses."""
    head = pointer_log.load_head(transaction)
    if head is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the log {registry.identity.log_id} has no head")
    lines = "".join(pointer_log.list_cosignatures(transaction, head.size))
    return Note.parse(head.note + lines.encode())


def _serve_checkpoint(registry: Registry, transaction: Transaction) -> RegistryFile:
    return RegistryFile(body=bytes(read_head_note(registry, transaction)), media_type=TEXT)


def _serve_signed_checkpoint(registry: Registry, transaction: Transaction) -> RegistryFile:
    """Sign the head on every request, because the timestamp shows that it is still the current head."""
    check_current_key(transaction, registry)
    head = Checkpoint.parse(read_head_note(registry, transaction).text)
    view = CheckpointDocument(log_id=head.origin, size=head.size, root=head.root, issued_at_utc=registry.now())
    value = add_signature(build_unsigned_checkpoint(view), CHECKPOINT_SIGNED_FIELDS, registry.signer)
    return RegistryFile(body=encode_document(value))


def _serve_key_changes(registry: Registry, transaction: Transaction) -> RegistryFile:
    return RegistryFile(
        body=encode_document(key_changes_to_json(registry.identity.log_id, load_key_changes(transaction)))
    )


def _serve_tile(
    _registry: Registry, transaction: Transaction, kind: str, path: str, partial: str | None
) -> RegistryFile | None:
    index = int(path.replace("/", "").replace("x", ""))
    width = int(partial) if partial else TILE_WIDTH
    head = pointer_log.load_head(transaction)
    size = head.size if head else 0
    if kind == "entries":
        body = pointer_log.read_entry_bundle(transaction, size, index, width)
    else:
        body = pointer_log.read_tile(transaction, size, int(kind), index, width)
    return None if body is None else RegistryFile(body=body, media_type=BYTES, cache=FOREVER)


_Handler = Callable[..., RegistryFile | None]
_ROUTES: tuple[tuple[re.Pattern[str], _Handler], ...] = tuple(
    (re.compile(pattern, re.ASCII), handler)
    for pattern, handler in (
        (rf"pointers/{_NAME}/{_NAME}\.json", _serve_pointer),
        (rf"pointers/{_NAME}/{_NAME}\.tlog-proof", _serve_proof),
        (rf"pointers/{_NAME}/{_NAME}\.event", _serve_event),
        (rf"documents/{_CID}\.json", _serve_document),
        (rf"manifests/{_CID}/{_CID}\.json", _serve_manifest),
        (rf"attestations/{_CID}/{_CID}\.json", _serve_attestations),
        (rf"blobs/{_CID}", _serve_blob),
        (r"log/checkpoint", _serve_checkpoint),
        (r"log/checkpoint\.json", _serve_signed_checkpoint),
        (r"log/keys\.json", _serve_key_changes),
        (
            r"log/tile/([0-9]|[1-5][0-9]|6[0-3]|entries)/((?:x[0-9]{3}/){0,5}[0-9]{3})"
            r"(?:\.p/([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5]))?",
            _serve_tile,
        ),
        (rf"versions/{_NAME}/{_VERSION}\.json", _serve_version),
        (rf"tools/{_NAME}\.json", _serve_bundle),
        (r"tools\.json", _serve_tools),
        (r"registry\.json", _serve_identity),
    )
)
