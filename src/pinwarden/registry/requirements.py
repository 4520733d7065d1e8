"""What the operator requires of attestations: pointers say it, and installers check it in acceptance step 7.

Requirements are for a namespace or a bundle, on all channels or on one. The most specific ones count: the longest name,
and then the named channel. Every change is a log entry, and signs the affected pointers again.
"""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.log_documents import Constraints
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.registry.checkpoint_file import open_append_transaction
from pinwarden.registry.log_writer import append_action, resign_tool_pointers
from pinwarden.registry.names import check_channel, check_tool, is_in_namespace
from pinwarden.registry.operator_documents import (
    REQUIRE,
    OperatorAction,
    action_to_json,
    check_reason,
    constraints_to_json,
)
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import operators, publications, publishers
from pinwarden.registry.store.operators import Requirements
from pinwarden.system.database import Transaction

_MAX_ATTESTATIONS = 20
_MAX_SIGNERS = 50


def set_requirements(
    registry: Registry, name: str, channel: str | None, constraints: Constraints | None, reason: str
) -> Report:
    """Set what the pointers of a namespace or bundle require; None removes the requirements.

    1. Append the action to the log.
    2. Record the requirements.
    3. Sign the pointers of all bundles that they are about again.
    """
    required = constraints or Constraints()
    _check_constraints(required)
    action = OperatorAction(
        log_id=registry.identity.log_id,
        seq=0,
        action=REQUIRE,
        name=check_tool(name),
        channel=check_channel(channel) if channel else "",
        details=constraints_to_json(required) if constraints else {},
        reason=check_reason(reason),
        issued_at_utc=registry.now(),
    )
    with open_append_transaction(registry) as transaction:
        _check_known(transaction, name)
        logged = append_action(transaction, registry, action)
        if constraints is None:
            operators.remove_requirements(transaction, name, action.channel)
        else:
            operators.set_requirements(
                transaction,
                Requirements(name=name, channel=action.channel, constraints=required, seq=logged.seq),
            )
        tools = [tool for tool in publications.list_tools(transaction) if is_in_namespace(tool, name)]
        now = registry.now()
        count = sum(resign_tool_pointers(transaction, registry, tool, now) for tool in tools)
    state = "set" if constraints else "removed"
    summary = (
        f"the requirements of {action.subject} are {state}, event {logged.seq} of the log; "
        f"{plural(count, 'pointer')} signed again"
    )
    return Report(
        command="registry require",
        subject=action.subject,
        summary=summary,
        exit_code=EXIT_CLEAN,
        facts={"action": action_to_json(logged), "pointers": count},
    )


def list_requirements(registry: Registry) -> Report:
    """List all requirements."""
    with registry.database.transaction() as transaction:
        found = operators.list_requirements(transaction)
    rows = [_requirements_to_json(required) for required in found]
    return Report(
        command="registry require",
        subject="",
        summary=plural(len(rows), "requirement"),
        exit_code=EXIT_CLEAN,
        notes=tuple(_describe(required) for required in found),
        facts={"requirements": rows},
    )


def _requirements_to_json(required: Requirements) -> dict[str, Any]:
    return {
        "name": required.name,
        "channel": required.channel,
        "index": required.seq,
        **constraints_to_json(required.constraints),
    }


def _describe(required: Requirements) -> str:
    constraints = required.constraints
    parts = [f"at least {plural(constraints.min_attestations, 'attestation')}"]
    if constraints.require_verifier_attestation:
        parts.append("one by a verifier")
    if constraints.require_signers:
        parts.append(f"one by {' or '.join(constraints.require_signers)}")
    subject = f"{required.name}@{required.channel}" if required.channel else required.name
    return f"{subject}: {', '.join(parts)}"


def _check_constraints(constraints: Constraints) -> None:
    if not 1 <= constraints.min_attestations <= _MAX_ATTESTATIONS:
        raise PinwardenError("USAGE", f"the number of attestations must be from 1 to {_MAX_ATTESTATIONS}")
    if len(constraints.require_signers) > _MAX_SIGNERS:
        raise PinwardenError("USAGE", f"at most {_MAX_SIGNERS} signers can be required")
    for key_id in constraints.require_signers:
        PublicKey.from_did(key_id)


def _check_known(transaction: Transaction, name: str) -> None:
    """Raise unless the name is a namespace, or a bundle that is published or could be."""
    if publishers.find_namespace(transaction, name) is None:
        raise PinwardenError("NAMESPACE_REFUSED", f"no namespace of this registry contains {name[:80]!a}")
