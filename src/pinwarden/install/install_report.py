"""The reports of ``pinwarden install``: what the reports of servers and skills share, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinwarden.bundle.acceptance import ACCEPT, REJECT, Rejection, provenance_to_json
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.core.errors import EXIT_REFUSED
from pinwarden.core.report import Report, Row
from pinwarden.install.decision import AcceptedBundle, InstallDecision, InstallRequest

LITERAL_NOTE = (
    "--literal skips checks, for example that the pointer is fresh, that attesters have the required roles, and that "
    "the pointer names this manifest"
)


def build_acceptance_facts(
    request: InstallRequest, decision: InstallDecision, accepted: AcceptedBundle, pin: BundlePin
) -> dict[str, Any]:
    """Return the facts that the reports of all installed bundles have: provenance, checks, permissions, log."""
    position = accepted.log_position
    return {
        "result": ACCEPT,
        "provenance": provenance_to_json(accepted.provenance),
        "plan": [check.to_json() for check in decision.checks],
        "literal": request.literal,
        "version": pin.version,
        "registry": pin.registry,
        "content_hash": str(pin.archive),
        "policy": {"network": pin.policy.network, "filesystem": pin.policy.filesystem, "exec": pin.policy.exec},
        "log": {"id": position.log_id, "index": position.index, "size": position.size} if position else None,
    }


def build_refusal_report(request: InstallRequest, decision: InstallDecision, warnings: Sequence[Row] = ()) -> Report:
    """Build the report of a refused install: code, problem, reason and fix of the refusal, then the scan warnings."""
    refusal = decision.refusal
    if refusal is None:
        raise TypeError("the decision has no refusal")
    row = Row(
        code=refusal.code,
        severity="critical" if decision.exit_code == EXIT_REFUSED else "review",
        entity="bundle",
        name=request.tool,
        path="",
        message=refusal.what,
    )
    return Report(
        command="install",
        subject=request.tool,
        summary=f"REJECT {refusal.code}: {refusal.fix}",
        exit_code=decision.exit_code,
        rows=(row, *warnings),
        notes=list_check_notes(request, decision),
        facts={
            "result": REJECT,
            "error": refusal_to_json(refusal),
            "plan": [check.to_json() for check in decision.checks],
            "literal": request.literal,
        },
        rule_texts={refusal.code: refusal.fix},
    )


def refusal_to_json(refusal: Rejection) -> dict[str, Any]:
    """Return a refusal as a member of the JSON output."""
    return {"code": refusal.code, "what": refusal.what, "why": dict(refusal.why), "fix": refusal.fix}


def list_check_notes(request: InstallRequest, decision: InstallDecision) -> tuple[str, ...]:
    """Return the result of every check as a note."""
    lines = tuple(str(check) for check in decision.checks)
    return (*lines, LITERAL_NOTE) if request.literal else lines
