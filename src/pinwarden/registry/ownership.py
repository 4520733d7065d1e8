"""Give a namespace to another key: a transfer that its owner asked for, and the recovery of a lost key.

Both are log entries. A recovery waits, so that the members of the namespace can see it and object: an objection by any
key of the namespace ends it. Followers of the log refuse a recovery that was completed too early.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.registry.checkpoint_file import open_append_transaction
from pinwarden.registry.log_writer import append_action
from pinwarden.registry.names import check_namespace
from pinwarden.registry.operator_documents import (
    RECOVERY_CANCEL,
    RECOVERY_COMPLETE,
    RECOVERY_OBJECTION,
    RECOVERY_START,
    TRANSFER,
    OperatorAction,
    action_to_json,
    check_reason,
)
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import operators, publishers
from pinwarden.registry.store.operators import Recovery
from pinwarden.system.database import Transaction

DEFAULT_WAIT_DAYS = 14
_MAX_WAIT_DAYS = 90
_DAY = 24 * 3_600_000


def transfer_namespace(registry: Registry, namespace: str, new_owner: str, reason: str) -> Report:
    """Give a namespace to another key at once. All its keys and tokens stop working."""
    key = PublicKey.parse(new_owner)
    with open_append_transaction(registry) as transaction:
        _check_exists(transaction, namespace)
        operators.remove_recovery(transaction, namespace)
        details = {"old_key_ids": _list_owners(transaction, namespace), "new_key_id": key.did}
        logged = _append(transaction, registry, TRANSFER, namespace, details, reason)
        revoked = _replace_owner(transaction, registry, namespace, key)
    return _build_report(
        "registry transfer", logged, f"{namespace} belongs to {key.did}; {plural(revoked, 'token')} revoked"
    )


def start_recovery(registry: Registry, namespace: str, new_owner: str, reason: str, wait_days: int) -> Report:
    """Announce in the log that a namespace will get another owner, after a waiting period."""
    key = PublicKey.parse(new_owner)
    if not 1 <= wait_days <= _MAX_WAIT_DAYS:
        raise PinwardenError("USAGE", f"a recovery waits for 1 to {_MAX_WAIT_DAYS} days")
    due = registry.now_ms() + wait_days * _DAY
    with open_append_transaction(registry) as transaction:
        _check_exists(transaction, namespace)
        if operators.find_recovery(transaction, namespace) is not None:
            raise PinwardenError(
                "RECOVERY_WAITING",
                f"a recovery of {namespace} has been announced already",
                hint=f"See it with: pinwarden registry recover list. Or cancel it: pinwarden registry recover cancel "
                f"{namespace} --reason TEXT",
            )
        details = {
            "old_key_ids": _list_owners(transaction, namespace),
            "new_key_id": key.did,
            "due_at_utc": _format_time(due),
        }
        logged = _append(transaction, registry, RECOVERY_START, namespace, details, reason)
        operators.set_recovery(transaction, Recovery(namespace=namespace, key_id=key.did, due=due, seq=logged.seq))
    return _build_report(
        "registry recover", logged, f"{namespace} can be given to {key.did} from {_format_time(due)} on"
    )


def complete_recovery(registry: Registry, namespace: str, reason: str) -> Report:
    """Give the namespace to the announced key, if the waiting period has passed and no member objected."""
    with open_append_transaction(registry) as transaction:
        recovery = _find_recovery(transaction, namespace)
        if registry.now_ms() < recovery.due:
            raise PinwardenError(
                "RECOVERY_WAITING",
                f"the recovery of {namespace} waits until {_format_time(recovery.due)}, so that members can object",
                hint="Repeat the command when the waiting period has passed.",
                data={"due_at_utc": _format_time(recovery.due), "index": recovery.seq},
            )
        key = PublicKey.from_did(recovery.key_id)
        logged = _append(transaction, registry, RECOVERY_COMPLETE, namespace, {"new_key_id": key.did}, reason)
        operators.remove_recovery(transaction, namespace)
        revoked = _replace_owner(transaction, registry, namespace, key)
    return _build_report(
        "registry recover", logged, f"{namespace} belongs to {key.did}; {plural(revoked, 'token')} revoked"
    )


def cancel_recovery(registry: Registry, namespace: str, reason: str) -> Report:
    """End a recovery that waits, as the operator."""
    with open_append_transaction(registry) as transaction:
        recovery = _find_recovery(transaction, namespace)
        details = {"new_key_id": recovery.key_id}
        logged = _append(transaction, registry, RECOVERY_CANCEL, namespace, details, reason)
        operators.remove_recovery(transaction, namespace)
    return _build_report("registry recover", logged, f"the recovery of {namespace} is cancelled")


def object_to_recovery(
    transaction: Transaction, registry: Registry, namespace: str, key_id: str, reason: str
) -> OperatorAction:
    """End a recovery that waits, for a member. The caller has checked that the key belongs to the namespace."""
    recovery = _find_recovery(transaction, namespace)
    details = {"new_key_id": recovery.key_id, "objected_by": key_id}
    logged = _append(transaction, registry, RECOVERY_OBJECTION, namespace, details, reason)
    operators.remove_recovery(transaction, namespace)
    return logged


def list_recoveries(registry: Registry) -> Report:
    """List the recoveries that wait."""
    with registry.database.transaction() as transaction:
        recoveries = operators.list_recoveries(transaction)
    rows = [
        {
            "namespace": recovery.namespace,
            "new_key_id": recovery.key_id,
            "due_at_utc": _format_time(recovery.due),
            "index": recovery.seq,
        }
        for recovery in recoveries
    ]
    count = plural(len(rows), "recovery", "recoveries")
    return Report(
        command="registry recover",
        subject="",
        summary=f"{count} waiting",
        exit_code=EXIT_CLEAN,
        notes=tuple(f"{row['namespace']}: to {row['new_key_id']} from {row['due_at_utc']} on" for row in rows),
        facts={"waiting": rows},
    )


def _check_exists(transaction: Transaction, namespace: str) -> None:
    if check_namespace(namespace) not in publishers.list_namespaces(transaction):
        raise PinwardenError("NAMESPACE_REFUSED", f"there is no namespace {namespace}")


def _find_recovery(transaction: Transaction, namespace: str) -> Recovery:
    recovery = operators.find_recovery(transaction, check_namespace(namespace))
    if recovery is None:
        raise PinwardenError("RECOVERY_UNKNOWN", f"no recovery of {namespace} is waiting")
    return recovery


def _list_owners(transaction: Transaction, namespace: str) -> list[str]:
    keys = publishers.list_namespace_keys(transaction, namespace)
    return [key_id for key_id, role in keys.items() if role == publishers.OWNER]


def _replace_owner(transaction: Transaction, registry: Registry, namespace: str, key: PublicKey) -> int:
    """Make a key the only one of a namespace, and revoke all tokens. Returns the number of tokens."""
    for key_id in publishers.list_namespace_keys(transaction, namespace):
        publishers.remove_key(transaction, namespace, key_id)
    publishers.set_key(transaction, namespace, key.did, publishers.OWNER, registry.now())
    return publishers.revoke_tokens(transaction, namespace, registry.now_ms())


def _append(  # noqa: PLR0913, PLR0917
    transaction: Transaction, registry: Registry, action: str, namespace: str, details: dict[str, Any], reason: str
) -> OperatorAction:
    return append_action(
        transaction,
        registry,
        OperatorAction(
            log_id=registry.identity.log_id,
            seq=0,
            action=action,
            name=check_namespace(namespace),
            details=details,
            reason=check_reason(reason),
            issued_at_utc=registry.now(),
        ),
    )


def _build_report(command: str, logged: OperatorAction, summary: str) -> Report:
    return Report(
        command=command,
        subject=logged.name,
        summary=f"{summary}, event {logged.seq} of the log",
        exit_code=EXIT_CLEAN,
        facts={"action": action_to_json(logged)},
    )


def _format_time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
