"""The report of ``pinwarden contract explain``: the facts about a server, and how each is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.contract.entitlement_findings import CONTRACT_KINDS, check_annotations
from pinwarden.contract.entitlements.values import Entitlements
from pinwarden.contract.observation import ObservedServer, describe_location
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report, collect_kind_reasons, row_to_json
from pinwarden.core.text import plural
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE


def explain(observed: ObservedServer, only: tuple[str, ...] = ()) -> Report:
    """Report every fact about every tool, and how it is known."""
    unknown = [name for name in only if name not in observed.contracts]
    if unknown:
        raise PinwardenError("USAGE", f"the server has no tool {unknown[0][:120]!a}")
    findings = tuple(row for row in check_annotations(observed) if not only or row.name in only)
    names = [name for name in observed.contracts if not only or name in only]
    return Report(
        command="contract explain",
        subject=observed.name,
        summary=f"{plural(len(names), 'tool')}; known from: {observed.extension.evidence}",
        exit_code=EXIT_CLEAN,
        rows=findings,
        facts={
            "evidence": observed.extension.evidence,
            "versions": dict(observed.extension.versions),
            "tools": {name: _tool_to_json(observed, name) for name in names},
            "prompts": {} if only else _reach_to_json(observed, "prompts"),
            "resources": {} if only else _reach_to_json(observed, "resources"),
            "startup": _entitlements_to_json(observed.analysis.startup) if observed.analysis is not None else None,
            "findings": [row_to_json(row) for row in findings],
        },
        rule_texts=collect_kind_reasons(CONTRACT_KINDS),
    )


def _tool_to_json(observed: ObservedServer, name: str) -> dict[str, Any]:
    facts = observed.extension.tools[name]
    entitlements = observed.analysis.handlers.get(name) if observed.analysis is not None else None
    return {
        "evidence": dict(facts.evidence),
        "entitlements": None if entitlements is None else _entitlements_to_json(entitlements),
        "details": dict(facts.details),
    }


def _reach_to_json(observed: ObservedServer, member: str) -> dict[str, Any]:
    """Return the entitlements of each prompt or resource; None for those whose source was not analysed."""
    kinds = (PROMPT,) if member == "prompts" else (RESOURCE, TEMPLATE)
    reached = getattr(observed.analysis, member) if observed.analysis is not None else {}
    names = [item.key for kind in kinds for item in observed.extension.surface.items_of_kind(kind)]
    return {name: _entitlements_to_json(reached[name]) if name in reached else None for name in names}


def _entitlements_to_json(entitlements: Entitlements) -> dict[str, Any]:
    return {
        "kinds": list(entitlements.kinds),
        "findings": [{"kind": finding.kind, "where": describe_location(finding)} for finding in entitlements.findings],
        "unknown": [{"reason": reason.reason, "where": describe_location(reason)} for reason in entitlements.unknown],
    }


def render_lines(report: Report) -> Iterator[str]:
    """Yield the lines of the text output, tool by tool."""
    for name, tool in report.facts["tools"].items():
        yield name
        by_source: dict[str, list[str]] = {}
        for fact, source in tool["evidence"].items():
            by_source.setdefault(source, []).append(fact)
        for source, facts in by_source.items():
            yield f"  {source + ':':11}{', '.join(facts)}"
        yield from _render_reach(tool["entitlements"])
    for member in ("prompts", "resources"):
        for name, described in report.facts[member].items():
            yield f"{member.removesuffix('s')} {name}"
            yield from _render_reach(described)


def _render_reach(described: dict[str, Any] | None) -> Iterator[str]:
    if described is None:
        yield "  reaches:   unknown, its source was not analysed"
        return
    yield f"  reaches:   {', '.join(described['kinds']) or 'nothing outside its own process'}"
    for kind in described["kinds"]:
        locations = [finding["where"] for finding in described["findings"] if finding["kind"] == kind]
        yield f"    {kind}: {min(locations, key=len)}{_count_more(locations)}"
    for reason in dict.fromkeys(reason["reason"] for reason in described["unknown"]):
        locations = [item["where"] for item in described["unknown"] if item["reason"] == reason]
        yield f"    unknown reach ({reason}): {min(locations, key=len)}{_count_more(locations)}"


def _count_more(locations: list[str]) -> str:
    """Say how many further locations there are. The text output shows only one location, the JSON output all."""
    return f" (and {len(locations) - 1} more)" if len(locations) > 1 else ""
