"""Whether given documents would be accepted for an install, without a registry and without installing anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinwarden.bundle import installer_policy, trust
from pinwarden.bundle.acceptance.plan import accept
from pinwarden.bundle.acceptance.verdict import Submission, Verdict, to_value
from pinwarden.bundle.shape import LIMITS
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row
from pinwarden.core.timestamps import parse_timestamp
from pinwarden.system.files import read_file


class AcceptanceFiles(Record):
    """The files that an install is decided by."""

    pointer: Path
    descriptor: Path
    manifest: Path
    attestations: Sequence[Path]
    policy: Path
    trust: Path


def judge(files: AcceptanceFiles, now: str, *, tool: str | None, channel: str | None, literal: bool) -> Report:
    """The report of ``pinwarden bundle accept``."""
    if parse_timestamp(now) is None:
        raise PinwardenError("USAGE", f"{now[:80]!a} is not a moment with its time zone, such as 2026-01-31T00:00:00Z")
    submission = Submission(
        pointer=_read(files.pointer),
        descriptor=_read(files.descriptor),
        manifest=_read(files.manifest),
        attestations=tuple(_read(path) for path in files.attestations),
        policy=installer_policy.parse(_read(files.policy)),
        trust=trust.parse(_read(files.trust)),
        now=now,
        tool=tool,
        channel=channel,
        literal=literal,
    )
    return verdict_report("bundle accept", files.pointer.name, accept(submission), literal=literal)


def verdict_report(command: str, subject: str, verdict: Verdict, *, literal: bool = False) -> Report:
    """A verdict as a report: the JSON of the rulebook, and a sentence for people."""
    notes = ("by the letter of the rulebook, which leaves holes open; do not install by it",) if literal else ()
    refusal, provenance = verdict.refusal, verdict.provenance
    if refusal is not None:
        row = Row(code=refusal.code, severity="critical", entity="bundle", name=subject, path="", message=refusal.what)
        return Report(
            command=command,
            subject=subject,
            summary=f"REJECT {refusal.code}: {refusal.fix}",
            exit_code=EXIT_REFUSED,
            rows=(row,),
            notes=notes,
            facts=to_value(verdict),
            rule_texts={refusal.code: refusal.fix},
        )
    told = "" if provenance is None else f" {provenance.tool} on {provenance.channel}: {provenance.root_cid}"
    return Report(
        command=command,
        subject=subject,
        summary=f"ACCEPT{told}",
        exit_code=EXIT_CLEAN,
        notes=notes,
        facts=to_value(verdict),
    )


def _read(path: Path) -> bytes:
    return read_file(path, LIMITS.max_bytes)
