"""Carry out publishers' requests except publishing: move a channel, yank a version, change a namespace's keys.

This module also stores attestations, and the cosignatures of witnesses.
"""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.bundle.document import DocumentReader, read_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record
from pinwarden.core.signed_note import Note, WitnessKey, verify_cosignatures
from pinwarden.core.versions import refuse_older
from pinwarden.registry.access import Caller, authorize_namespace, mark_statement_used, record_success, verify_statement
from pinwarden.registry.checkpoint_file import open_append_transaction
from pinwarden.registry.log_writer import PointerChange, append_pointer_changes
from pinwarden.registry.names import (
    YANKED_PREFIX,
    check_channel,
    check_tool,
    check_version,
    is_in_namespace,
)
from pinwarden.registry.names import check_namespace as check_namespace_name
from pinwarden.registry.ownership import object_to_recovery
from pinwarden.registry.publish import verify_attestation
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import (
    KEYS,
    OBJECT,
    POINT,
    UNYANK,
    YANK,
    PublishedVersion,
    PublisherStatement,
)
from pinwarden.registry.search import update_package
from pinwarden.registry.store import pointer_log, publications, publishers
from pinwarden.registry.takedowns import refuse_taken_down
from pinwarden.system.database import Transaction

_MAX_REASON = 500


class ChangeResult(Record):
    """The item that a request was about, and whether the request changed it."""

    subject: str
    changed: bool


def apply_change(registry: Registry, caller: Caller, request: bytes) -> ChangeResult:
    """Carry out a signed request in one transaction, at most once."""
    document = DocumentReader(read_json(request), "request").value.get("statement")
    action = document.get("action") if isinstance(document, dict) else None
    run = _ACTIONS.get(action) if isinstance(action, str) else None
    if run is None or not isinstance(action, str):
        raise PinwardenError("DOCUMENT_INVALID", "the request's action is unknown")
    statement = verify_statement(registry, document, action)
    with open_append_transaction(registry) as transaction:
        result = run(transaction, registry, caller, statement)
        # Even a request that changed nothing is recorded as used, so that an attacker cannot replay it later.
        mark_statement_used(transaction, registry, statement, again=not result.changed)
        if result.changed:
            record_success(transaction, registry, caller, statement, result.subject)
    return result


def _move_channel(
    transaction: Transaction, registry: Registry, caller: Caller, statement: PublisherStatement
) -> ChangeResult:
    version = _load_authorized_version(transaction, caller, statement)
    channel = check_channel(statement.reader.text("channel"))
    subject = f"{version.tool} {channel} {version.version}"
    if version.yanked is not None:
        raise PinwardenError("VERSION_YANKED", f"{version.tool} {version.version} was yanked: {version.yanked}")
    refuse_taken_down(transaction, version.tool, version.version)
    present = publications.find_channel(transaction, version.tool, channel)
    if present is not None and present.version == version.version:
        return ChangeResult(subject=subject, changed=False)
    if not statement.reader.boolean("allow_older", default=False):
        refuse_older(version.tool, version.version, channel, present.version if present is not None else None)
    change = PointerChange(tool=version.tool, channel=channel, version=version, reason=_read_reason(statement, "point"))
    append_pointer_changes(transaction, registry, [change])
    return ChangeResult(subject=subject, changed=True)


def _yank(transaction: Transaction, registry: Registry, caller: Caller, statement: PublisherStatement) -> ChangeResult:
    """Record the yank in the log, and remove the pointer of every channel that points to the version."""
    version = _load_authorized_version(transaction, caller, statement)
    subject = f"{version.tool} {version.version}"
    if version.yanked is not None:
        return ChangeResult(subject=subject, changed=False)
    reason = _read_reason(statement, "yank")
    mark = f"{YANKED_PREFIX}{version.version}"
    channels = [
        row.channel
        for row in publications.list_channels(transaction, version.tool)
        if row.version == version.version and row.channel != mark
    ]
    changes = [PointerChange(tool=version.tool, channel=mark, version=version, reason=reason)]
    changes += [PointerChange(tool=version.tool, channel=channel, version=None, reason=reason) for channel in channels]
    append_pointer_changes(transaction, registry, changes)
    publications.set_yanked(transaction, version.tool, version.version, reason)
    update_package(transaction, version.tool)
    return ChangeResult(subject=subject, changed=True)


def _unyank(
    transaction: Transaction, registry: Registry, caller: Caller, statement: PublisherStatement
) -> ChangeResult:
    version = _load_authorized_version(transaction, caller, statement)
    subject = f"{version.tool} {version.version}"
    if version.yanked is None:
        return ChangeResult(subject=subject, changed=False)
    mark = f"{YANKED_PREFIX}{version.version}"
    append_pointer_changes(
        transaction,
        registry,
        [PointerChange(tool=version.tool, channel=mark, version=None, reason=_read_reason(statement, "unyank"))],
    )
    publications.set_yanked(transaction, version.tool, version.version, None)
    update_package(transaction, version.tool)
    return ChangeResult(subject=subject, changed=True)


def _change_keys(
    transaction: Transaction, registry: Registry, caller: Caller, statement: PublisherStatement
) -> ChangeResult:
    """Add and remove keys, or delegate a part of the namespace. The last owner cannot be removed."""
    reader = statement.reader
    namespace = check_namespace_name(reader.text("namespace"))
    own = caller.token.namespace
    if (
        not is_in_namespace(namespace, own)
        or publishers.list_namespace_keys(transaction, own).get(statement.key_id) != publishers.OWNER
    ):
        raise PinwardenError("NAMESPACE_REFUSED", f"only an owner of {own} may change its keys")
    now = registry.now()
    present = publishers.list_namespaces(transaction)
    if namespace not in present:
        holder = publishers.find_namespace(transaction, namespace)
        if holder != own:
            raise PinwardenError("NAMESPACE_REFUSED", f"the namespace {namespace} is not inside {own}")
        publishers.add_namespace(transaction, namespace, statement.key_id, now)
    elif namespace != own:
        raise PinwardenError("NAMESPACE_REFUSED", f"{namespace} was delegated to other owners")
    added, removed, limit = (
        reader.objects("add", default=[]),
        reader.strings("remove", default=[]),
        registry.limits.keys,
    )
    if len(added) + len(publishers.list_namespace_keys(transaction, namespace)) > limit or len(removed) > limit:
        raise PinwardenError("PUBLISH_LIMIT", f"a namespace can have at most {limit} keys")
    for row in added:
        key = PublicKey.from_did(row.text("key_id"))
        publishers.set_key(transaction, namespace, key.did, row.one_of("role", publishers.ROLES), now)
    for key_id in removed:
        publishers.remove_key(transaction, namespace, key_id)
    if publishers.OWNER not in publishers.list_namespace_keys(transaction, namespace).values():
        raise PinwardenError("NAMESPACE_REFUSED", f"the change would leave {namespace} without an owner")
    return ChangeResult(subject=namespace, changed=True)


def _object(
    transaction: Transaction, registry: Registry, caller: Caller, statement: PublisherStatement
) -> ChangeResult:
    """End the recovery of a namespace, for a member. Every key of the namespace may object."""
    namespace = check_namespace_name(statement.reader.text("namespace"))
    authorize_namespace(transaction, caller, statement, namespace)
    logged = object_to_recovery(
        transaction, registry, namespace, statement.key_id, _read_reason(statement, "a member objects")
    )
    return ChangeResult(subject=f"{namespace}, event {logged.seq} of the log", changed=True)


_ACTIONS: dict[str, Callable[[Transaction, Registry, Caller, PublisherStatement], ChangeResult]] = {
    POINT: _move_channel,
    YANK: _yank,
    UNYANK: _unyank,
    KEYS: _change_keys,
    OBJECT: _object,
}


def add_attestation(registry: Registry, caller: Caller, request: bytes) -> ChangeResult:
    """Add an attestation to a published version.

    The attestation is signed by its issuer, who need not be the caller. The caller's token only decides which limits
    apply.
    """
    document = read_json(request)
    subject = DocumentReader(document, "attestation").object("subject")
    root_cid, descriptor_cid = subject.cid("root_cid"), subject.cid("descriptor_cid")
    attestation = verify_attestation(registry, document, root_cid, descriptor_cid)
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        if publications.find_manifest(transaction, root_cid, descriptor_cid) is None:
            raise PinwardenError("SERVER_NOT_FOUND", "the attested bundle is not published in this registry")
        present = publications.list_attestations(transaction, root_cid, descriptor_cid)
        limit = registry.limits.attestations
        if not publications.is_published_in(transaction, caller.token.namespace, root_cid, descriptor_cid):
            limit //= 2  # leave half of the limit to the version's own publisher
        if attestation[0] not in present and len(present) >= limit:
            raise PinwardenError(
                "PUBLISH_LIMIT", f"the bundle already has {limit} attestations, the limit for this token"
            )
        publications.add_attestations(transaction, root_cid, descriptor_cid, [attestation])
    return ChangeResult(subject=f"{caller.token.namespace} {attestation[0]}", changed=attestation[0] not in present)


def _load_authorized_version(
    transaction: Transaction, caller: Caller, statement: PublisherStatement
) -> PublishedVersion:
    reader = statement.reader
    tool, version = check_tool(reader.text("tool")), check_version(reader.text("version"))
    authorize_namespace(transaction, caller, statement, tool)
    published = publications.find_version(transaction, tool, version)
    if published is None:
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool} {version} is not published in this registry")
    return published


def _read_reason(statement: PublisherStatement, default: str) -> str:
    reason = statement.body.get("reason", default)
    if type(reason) is not str or not reason or len(reason) > _MAX_REASON or "\0" in reason:
        raise PinwardenError("DOCUMENT_INVALID", f"a reason must be text of at most {_MAX_REASON} characters")
    return reason


def add_cosignatures(registry: Registry, data: bytes) -> int:
    """Store the cosignatures of known witnesses for the current head. Returns their number.

    ``data`` is the complete checkpoint note, with the signature lines of the witnesses.
    """
    witnesses = [WitnessKey.parse(text.partition("@http")[0]) for text in registry.witnesses]
    note = Note.parse(data)
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        head = pointer_log.load_head(transaction)
        if head is None or Note.parse(head.note).text != note.text:
            raise PinwardenError("REQUEST_STALE", "the checkpoint is not the current head of the log")
        cosigned = verify_cosignatures(note, witnesses)
        if not cosigned:
            raise PinwardenError("SIGNATURE_INVALID", "no known witness signed the checkpoint")
        names = {(cosignature.witness.name, cosignature.witness.key_id) for cosignature in cosigned}
        for line in note.signatures:
            if (line.name, line.key_id) in names:
                pointer_log.save_cosignature(transaction, head.size, line.name, line.line())
    return len(cosigned)
