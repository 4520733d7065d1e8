"""The report of ``contract explain``: what is known about a server, and from where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.contract.entitlement_findings import CONTRACT_KINDS, contradiction_rows
from pinwarden.contract.entitlements.values import Entitlements
from pinwarden.contract.observation import Observed, located
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report, collect_kind_reasons, plural, row_to_json
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE


def explain(observed: Observed, only: tuple[str, ...] = ()) -> Report:
    """Every fact about every tool, with its source."""
    unknown = [name for name in only if name not in observed.contracts]
    if unknown:
        raise PinwardenError("USAGE", f"the server has no tool {unknown[0][:120]!a}")
    findings = tuple(row for row in contradiction_rows(observed) if not only or row.name in only)
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
            "tools": {name: _tool(observed, name) for name in names},
            "prompts": {} if only else _reached(observed, "prompts"),
            "resources": {} if only else _reached(observed, "resources"),
            "startup": _entitlements(observed.analysis.startup) if observed.analysis is not None else None,
            "findings": [row_to_json(row) for row in findings],
        },
        rule_texts=collect_kind_reasons(CONTRACT_KINDS),
    )


def _tool(observed: Observed, name: str) -> dict[str, Any]:
    facts = observed.extension.tools[name]
    entitlements = observed.analysis.handlers.get(name) if observed.analysis is not None else None
    return {
        "evidence": dict(facts.evidence),
        "entitlements": None if entitlements is None else _entitlements(entitlements),
        "details": dict(facts.details),
    }


def _reached(observed: Observed, member: str) -> dict[str, Any]:
    """What the code of each prompt or resource reaches; None if its source was not analysed."""
    kinds = (PROMPT,) if member == "prompts" else (RESOURCE, TEMPLATE)
    reached = getattr(observed.analysis, member) if observed.analysis is not None else {}
    names = [item.key for kind in kinds for item in observed.extension.surface.items_of_kind(kind)]
    return {name: _entitlements(reached[name]) if name in reached else None for name in names}


def _entitlements(entitlements: Entitlements) -> dict[str, Any]:
    return {
        "kinds": list(entitlements.kinds),
        "findings": [{"kind": finding.kind, "where": located(finding)} for finding in entitlements.findings],
        "unknown": [{"reason": reason.reason, "where": located(reason)} for reason in entitlements.unknown],
    }


def lines_of(report: Report) -> Iterator[str]:
    """The facts as text, tool by tool."""
    for name, tool in report.facts["tools"].items():
        yield name
        by_source: dict[str, list[str]] = {}
        for fact, source in tool["evidence"].items():
            by_source.setdefault(source, []).append(fact)
        for source, facts in by_source.items():
            yield f"  {source + ':':11}{', '.join(facts)}"
        yield from _reach(tool["entitlements"])
    for member in ("prompts", "resources"):
        for name, described in report.facts[member].items():
            yield f"{member.removesuffix('s')} {name}"
            yield from _reach(described)


def _reach(described: dict[str, Any] | None) -> Iterator[str]:
    if described is None:
        yield "  reaches:   unknown, its source was not analysed"
        return
    yield f"  reaches:   {', '.join(described['kinds']) or 'nothing outside its own process'}"
    for kind in described["kinds"]:
        locations = [finding["where"] for finding in described["findings"] if finding["kind"] == kind]
        yield f"    {kind}: {min(locations, key=len)}{_more(locations)}"
    for reason in dict.fromkeys(reason["reason"] for reason in described["unknown"]):
        locations = [item["where"] for item in described["unknown"] if item["reason"] == reason]
        yield f"    unknown reach ({reason}): {min(locations, key=len)}{_more(locations)}"


def _more(locations: list[str]) -> str:
    """The text shows only the shortest call path; the JSON has all of them."""
    return f" (and {len(locations) - 1} more)" if len(locations) > 1 else ""
