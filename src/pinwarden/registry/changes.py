"""Signed requests besides publishing: move a channel, take a version back, change the keys of a namespace."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.bundle.shape import Shape, read
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record
from pinwarden.registry.authorization import Caller, check_namespace, checked_statement, record, spend
from pinwarden.registry.checkpoint import appending
from pinwarden.registry.events import Change, log_changes
from pinwarden.registry.names import (
    YANKED_PREFIX,
    check_channel,
    check_tool,
    check_version,
    is_inside,
)
from pinwarden.registry.names import check_namespace as check_namespace_name
from pinwarden.registry.publish import checked_attestation
from pinwarden.registry.registry import Registry
from pinwarden.registry.statement import KEYS, POINT, UNYANK, YANK, Statement
from pinwarden.registry.store import pointer_log, publications, publishers
from pinwarden.registry.version import PublishedVersion
from pinwarden.system.database import Transaction

_MAX_REASON = 500


class Done(Record):
    """What a request came to."""

    subject: str
    changed: bool


def carry_out(registry: Registry, caller: Caller, request: bytes) -> Done:
    """Do what a signed request asks for, in one transaction, once."""
    document = Shape(read(request), "request").value.get("statement")
    action = document.get("action") if isinstance(document, dict) else None
    run = _ACTIONS.get(action) if isinstance(action, str) else None
    if run is None or not isinstance(action, str):
        raise PinwardenError("DOCUMENT_INVALID", "the request names no action that is known")
    statement = checked_statement(registry, document, action)
    with appending(registry) as step:
        done = run(step, registry, caller, statement)
        # One that changed nothing is spent too, or it could be shown again once it would; to ask again for what is so
        # already is no harm.
        spend(step, registry, statement, again=not done.changed)
        if done.changed:
            record(step, registry, caller, statement, done.subject)
    return done


def _point(step: Transaction, registry: Registry, caller: Caller, statement: Statement) -> Done:
    version = _version(step, caller, statement)
    channel = check_channel(statement.shape.text("channel"))
    subject = f"{version.tool} {channel} {version.version}"
    if version.yanked is not None:
        raise PinwardenError("VERSION_YANKED", f"{version.tool} {version.version} was taken back: {version.yanked}")
    present = publications.channel_of(step, version.tool, channel)
    if present is not None and present.version == version.version:
        return Done(subject=subject, changed=False)
    change = Change(tool=version.tool, channel=channel, version=version, reason=_reason(statement, "point"))
    log_changes(step, registry, [change])
    return Done(subject=subject, changed=True)


def _yank(step: Transaction, registry: Registry, caller: Caller, statement: Statement) -> Done:
    """A version that is taken back is logged as such, and no channel points to it any more."""
    version = _version(step, caller, statement)
    subject = f"{version.tool} {version.version}"
    if version.yanked is not None:
        return Done(subject=subject, changed=False)
    reason = _reason(statement, "yank")
    mark = f"{YANKED_PREFIX}{version.version}"
    left = [
        each.channel
        for each in publications.channels_of(step, version.tool)
        if each.version == version.version and each.channel != mark
    ]
    changes = [Change(tool=version.tool, channel=mark, version=version, reason=reason)]
    changes += [Change(tool=version.tool, channel=each, version=None, reason=reason) for each in left]
    log_changes(step, registry, changes)
    publications.set_yanked(step, version.tool, version.version, reason)
    return Done(subject=subject, changed=True)


def _unyank(step: Transaction, registry: Registry, caller: Caller, statement: Statement) -> Done:
    version = _version(step, caller, statement)
    subject = f"{version.tool} {version.version}"
    if version.yanked is None:
        return Done(subject=subject, changed=False)
    mark = f"{YANKED_PREFIX}{version.version}"
    log_changes(
        step, registry, [Change(tool=version.tool, channel=mark, version=None, reason=_reason(statement, "unyank"))]
    )
    publications.set_yanked(step, version.tool, version.version, None)
    return Done(subject=subject, changed=True)


def _keys(step: Transaction, registry: Registry, caller: Caller, statement: Statement) -> Done:
    """Add and remove keys, or give a part of the namespace away. The last owner stays."""
    shape = statement.shape
    namespace = check_namespace_name(shape.text("namespace"))
    mine = caller.token.namespace
    if not is_inside(namespace, mine) or publishers.keys_of(step, mine).get(statement.key_id) != publishers.OWNER:
        raise PinwardenError("NAMESPACE_REFUSED", f"only an owner of {mine} may change keys, and only there")
    now = registry.now()
    present = publishers.namespaces(step)
    if namespace not in present:
        holder = publishers.namespace_holding(step, namespace)
        if holder != mine:
            raise PinwardenError("NAMESPACE_REFUSED", f"{namespace} is not a part of {mine}")
        publishers.add_namespace(step, namespace, statement.key_id, now)
    elif namespace != mine:
        raise PinwardenError("NAMESPACE_REFUSED", f"{namespace} was given away")
    added, removed, most = (
        shape.each("add") if "add" in shape.value else [],
        shape.texts("remove"),
        registry.limits.keys,
    )
    if len(added) + len(publishers.keys_of(step, namespace)) > most or len(removed) > most:
        raise PinwardenError("PUBLISH_LIMIT", f"a namespace has up to {most} keys, with those that are added")
    for each in added:
        key = PublicKey.from_did(each.text("key_id"))
        publishers.set_key(step, namespace, key.did, each.one_of("role", publishers.ROLES), now)
    for key_id in removed:
        publishers.remove_key(step, namespace, key_id)
    if publishers.OWNER not in publishers.keys_of(step, namespace).values():
        raise PinwardenError("NAMESPACE_REFUSED", f"{namespace} would be left without an owner")
    return Done(subject=namespace, changed=True)


_ACTIONS: dict[str, Callable[[Transaction, Registry, Caller, Statement], Done]] = {
    POINT: _point,
    YANK: _yank,
    UNYANK: _unyank,
    KEYS: _keys,
}


def add_attestation(registry: Registry, caller: Caller, request: bytes) -> Done:
    """Put an attestation beside a version that is published. It is signed itself; the token is against floods."""
    document = read(request)
    subject = Shape(document, "attestation").inside("subject")
    root_cid, descriptor_cid = subject.cid("root_cid"), subject.cid("descriptor_cid")
    found = checked_attestation(registry, document, root_cid, descriptor_cid)
    with registry.database.transaction(exclusive=pointer_log.ALONE) as step:
        if publications.manifest(step, root_cid, descriptor_cid) is None:
            raise PinwardenError("SERVER_NOT_FOUND", "the attestation is about a bundle that is not published here")
        present = publications.attestations_of(step, root_cid, descriptor_cid)
        most = registry.limits.attestations
        if not publications.is_published_in(step, caller.token.namespace, root_cid, descriptor_cid):
            most //= 2  # strangers must not take every place, or the publisher could bring nobody's any more
        if found[0] not in present and len(present) >= most:
            raise PinwardenError("PUBLISH_LIMIT", f"a bundle has up to {most} attestations by this way")
        publications.add_attestations(step, root_cid, descriptor_cid, [found])
    return Done(subject=f"{caller.token.namespace} {found[0]}", changed=found[0] not in present)


def _version(step: Transaction, caller: Caller, statement: Statement) -> PublishedVersion:
    shape = statement.shape
    tool, version = check_tool(shape.text("tool")), check_version(shape.text("version"))
    check_namespace(step, caller, statement, tool)
    found = publications.version_of(step, tool, version)
    if found is None:
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool} {version} is not published here")
    return found


def _reason(statement: Statement, default: str) -> str:
    reason = statement.body.get("reason", default)
    if type(reason) is not str or not reason or len(reason) > _MAX_REASON or "\0" in reason:
        raise PinwardenError("DOCUMENT_INVALID", f"a reason is text of up to {_MAX_REASON} characters")
    return reason
