"""``pinwarden policy explain``: which rule of the gateway's policy decides on a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report, ReportTable
from pinwarden.core.text import plural
from pinwarden.gateway.approved_sources import LockApprovals
from pinwarden.lock import lock_store
from pinwarden.lock.call_rules import DAY, CallFacts, decide_call, read_hints
from pinwarden.project.project import load_policies
from pinwarden.surface.surface import TOOL

if TYPE_CHECKING:
    from pinwarden.lock.gateway_policy import GatewayPolicy
    from pinwarden.project.project import Project

_PERIODS = {1: "second", 60: "minute", 3600: "hour", DAY: "day"}


def explain_policy(project: Project, tool: str, server: str | None, client: str, teams: tuple[str, ...]) -> Report:
    """Report for each server that has the tool, or for one server, whether a client may call it, and why."""
    policy = load_policies(project).gateway
    known = _find_servers(project, tool)
    if server is None and not known:
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"no locked server has an approved tool {tool[:120]!a}",
            hint="Name a server with --server to see what the policy says about tools that are not approved yet.",
        )
    names = [server] if server is not None else sorted(known)
    calls = [
        CallFacts(server=name, tool=tool, client=client, teams=teams, hints=read_hints(known.get(name)))
        for name in names
    ]
    decisions = [_explain(policy, call, approved=call.server in known) for call in calls]
    denied = sum(not each["allowed"] for each in decisions)
    return Report(
        command="policy explain",
        subject=tool,
        summary=f"{plural(len(decisions) - denied, 'server')} may be called, {denied} denied",
        exit_code=EXIT_CLEAN,
        facts={"client": client, "teams": list(teams), "tool": tool, "decisions": decisions},
        notes=("the rules only restrict approved tools; they approve nothing",),
        table=ReportTable(
            headings=("SERVER", "DECISION", "RULE", "LIMITS", "HINTS"), rows=tuple(map(_row, decisions, calls))
        ),
    )


def _find_servers(project: Project, tool: str) -> dict[str, Any]:
    """Return the approved definition of a tool by server."""
    lock = lock_store.read(project.lock)
    definitions: dict[str, Any] = {}
    for name in () if lock is None else {entry.name for entry in lock.entries}:
        try:
            approved = LockApprovals(project.lock, name).get_current()
        except PinwardenError:
            continue  # nothing is approved, or the surface cannot be read: the gateway blocks everything
        for item in () if approved is None else approved.surface.items_of_kind(TOOL):
            if item.key == tool:
                definitions[name] = item.value
    return definitions


def _explain(policy: GatewayPolicy, call: CallFacts, *, approved: bool) -> dict[str, Any]:
    decision = decide_call(policy, call)
    return {
        "server": call.server,
        "approved": approved,
        **call.hints.to_json(),
        "allowed": decision.allowed,
        "rule": decision.rule or None,
        "limits": [
            {"calls": limit.count, "per": _PERIODS[limit.seconds], "rule": limit.rule} for limit in decision.limits
        ],
    }


def _row(decision: dict[str, Any], call: CallFacts) -> tuple[str, ...]:
    limits = ", ".join(f"{limit['calls']} per {limit['per']} ({limit['rule']})" for limit in decision["limits"])
    return (
        decision["server"],
        "allowed" if decision["allowed"] else "denied",
        decision["rule"] or "no rule",
        limits or "none",
        call.hints.describe(),
    )
