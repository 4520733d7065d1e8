"""Take down a version or a whole bundle, and reinstate it. The log records both.

A takedown removes every pointer to the version, and the registry no longer serves its archive. Its documents stay, so
that users who locked it can verify what they run.
"""

from __future__ import annotations

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.registry.checkpoint_file import open_append_transaction
from pinwarden.registry.log_writer import PointerChange, append_action, append_pointer_changes
from pinwarden.registry.names import check_tool, check_version
from pinwarden.registry.operator_documents import (
    REINSTATE,
    TAKEDOWN,
    OperatorAction,
    action_to_json,
    check_reason,
)
from pinwarden.registry.registry import Registry
from pinwarden.registry.search import update_package
from pinwarden.registry.store import operators, publications
from pinwarden.registry.store.operators import Takedown
from pinwarden.system.database import Transaction


def take_down(registry: Registry, tool: str, version: str | None, reason: str) -> Report:
    """Take down a version, or with None the whole bundle: its versions of today and later ones.

    1. Append the action to the log.
    2. Remove the pointers of all channels that point to it, each with an event.
    3. Record the takedown, after which publishing and pointing to it are refused and its archive is not served.
    """
    action = _build_action(registry, TAKEDOWN, tool, version, reason)
    with open_append_transaction(registry) as transaction:
        _check_published(transaction, tool, version)
        if operators.find_takedown(transaction, tool, version or "") is not None:
            return _build_report(action, 0, changed=False)
        published = publications.find_version(transaction, tool, version) if version else None
        details = {"root_cid": published.root_cid} if published else {}
        logged = append_action(transaction, registry, replace(action, details=details))
        changes = [
            PointerChange(tool=tool, channel=row.channel, version=None, reason=f"takedown: {reason}"[:500])
            for row in publications.list_channels(transaction, tool)
            if row.pointer is not None and version in (None, row.version)
        ]
        if changes:
            append_pointer_changes(transaction, registry, changes)
        takedown = Takedown(tool=tool, version=version or "", reason=reason, seq=logged.seq)
        operators.add_takedown(transaction, takedown)
        update_package(transaction, tool)
    return _build_report(logged, len(changes), changed=True)


def reinstate(registry: Registry, tool: str, version: str | None, reason: str) -> Report:
    """Undo a takedown. Channels stay empty until the publisher points them to a version."""
    action = _build_action(registry, REINSTATE, tool, version, reason)
    with open_append_transaction(registry) as transaction:
        if not operators.remove_takedown(transaction, tool, version or ""):
            _check_published(transaction, tool, version)
            return _build_report(action, 0, changed=False)
        logged = append_action(transaction, registry, action)
        update_package(transaction, tool)
    return _build_report(logged, 0, changed=True)


def refuse_taken_down(transaction: Transaction, tool: str, version: str) -> None:
    """Raise VERSION_TAKEN_DOWN if the operator took down the version or its bundle."""
    takedown = operators.find_takedown(transaction, tool, version)
    if takedown is not None:
        subject = f"{tool} {takedown.version}" if takedown.version else tool
        raise PinwardenError(
            "VERSION_TAKEN_DOWN",
            f"{subject} was taken down by the registry's operator: {takedown.reason} (event {takedown.seq})",
            data={"tool": tool, "version": takedown.version, "reason": takedown.reason, "index": takedown.seq},
        )


def _build_action(registry: Registry, action: str, tool: str, version: str | None, reason: str) -> OperatorAction:
    return OperatorAction(
        log_id=registry.identity.log_id,
        seq=0,
        action=action,
        name=check_tool(tool),
        version=check_version(version) if version else "",
        reason=check_reason(reason),
        issued_at_utc=registry.now(),
    )


def _check_published(transaction: Transaction, tool: str, version: str | None) -> None:
    known = [row[0] for row in publications.list_releases(transaction, tool)]
    if not known or (version is not None and version not in known):
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool} {version or ''} is not published in this registry")


def _build_report(action: OperatorAction, pointers: int, *, changed: bool) -> Report:
    undone = action.action == REINSTATE
    state = "reinstated" if undone else "taken down"
    notes = ("channels stay empty until the publisher points them to a version",) if undone else ()
    return Report(
        command="registry takedown",
        subject=action.subject,
        summary=f"{action.subject} is {state}, event {action.seq} of the log; {plural(pointers, 'pointer')} removed"
        if changed
        else f"{action.subject}: nothing to change",
        exit_code=EXIT_CLEAN,
        notes=notes if changed else (),
        facts={"changed": changed, "action": action_to_json(action) if changed else None, "pointers": pointers},
    )
