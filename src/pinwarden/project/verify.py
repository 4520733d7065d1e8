"""``pinwarden verify``: verify the metadata and bytes of a registry entry before it is locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.report import Report, Row, severity_rank
from pinwarden.lock.launch_choice import choose_target
from pinwarden.lock.server_entry import parse_server_entry
from pinwarden.lock.target_verification import SKIPPED, LiveOutcome, verify_target
from pinwarden.lock.trust_explanation import check_metadata, explain_tier
from pinwarden.project.artifact_check import verify_declared_artifact
from pinwarden.project.lock import build_probe_target
from pinwarden.surface.surface import TOOL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.surface.surface import Surface
    from pinwarden.system.target import Target


def verify_server(
    document: dict[str, Any],
    *,
    now: str,
    probe: Callable[[str, Target], Surface] | None = None,
    context: FetchContext | None = None,
) -> Report:
    """Build the report of ``pinwarden verify``.

    With ``probe``, the surface of the live server is read. With ``context``, the bytes are downloaded and hashed.
    """
    entry = parse_server_entry(document)
    live = SKIPPED
    if probe is not None:
        try:
            surface = probe(entry.name, build_probe_target(entry))
            live = LiveOutcome(state="listed", tools=tuple(item.value for item in surface.items_of_kind(TOOL)))
        except PinwardenError as err:
            refused = err.code == "CONSENT_REQUIRED"
            live = LiveOutcome(state="not-executed" if refused else "failed", reason=err.message)
    artifact = verify_declared_artifact(entry.name, choose_target(entry), context, now)
    report = verify_target(entry, now=now, live=live, artifact=artifact)
    explanation = explain_tier(report.trust, now=now)
    rows = [
        Row(code=code, severity=level, entity="server", name=entry.name, path="", message=message)
        for code, level, message in (
            *((issue.code, issue.severity, issue.message) for issue in report.result.issues),
            *((issue.code, "review", issue.message) for issue in check_metadata(entry)),
        )
    ]
    refused = not report.ok or entry.status == "deleted"
    return Report(
        command="verify",
        subject=f"{entry.name} {entry.version}",
        summary=f"{entry.name} {entry.version}: {explanation.meaning}",
        exit_code=EXIT_REFUSED if refused else EXIT_CLEAN,
        rows=tuple(sorted(rows, key=severity_rank)),
        notes=tuple(explanation.reasons),
        facts={
            **report.to_json(),
            "tier": explanation.tier,
            "reasons": list(explanation.reasons),
            "remedies": list(explanation.remedies),
            "findings": [{"code": issue.code, "message": issue.message} for issue in check_metadata(entry)],
        },
    )
