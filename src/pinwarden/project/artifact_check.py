"""Holding what a registry has now against what was locked about it."""

from __future__ import annotations

from collections.abc import Iterator

from pinwarden.artifacts.artifact import ArtifactFacts, PackageName
from pinwarden.artifacts.artifact_drift import compare_pins, registry_change
from pinwarden.artifacts.evidence import judge_artifact, unavailable_artifact
from pinwarden.artifacts.provenance import Identity
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import GRAVE, Row, is_grave
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import Extension
from pinwarden.lock.locked_launch import locked_launch
from pinwarden.lock.record import extension_of
from pinwarden.lock.target_verification import ArtifactOutcome
from pinwarden.project.artifact_facts import facts_of, package_of, refuse_other_index, registry_asked
from pinwarden.project.fetch_context import Workshop
from pinwarden.project.provenance import provenance_of
from pinwarden.surface.rows import row_of


class Examined(Record):
    """What was found out about the artifact of one entry."""

    package: PackageName
    facts: ArtifactFacts
    outcome: ArtifactOutcome
    rows: tuple[Row, ...]
    """What somebody must look at: what is wrong with the artifact, and what is not as it was locked."""
    identity: Identity | None = None
    """Who stands behind it, as was verified here."""

    @property
    def refused(self) -> bool:
        """Whether it may not be used as it is."""
        return any(map(is_grave, self.rows))


def examine(entry: Entry, shop: Workshop, now: str) -> Examined:
    """Fetch, hash and judge the artifact of an entry. Another registry than the locked one is not even asked."""
    package, claim = package_of(entry)
    if package.ecosystem not in ("mcpb", "cargo"):
        refuse_other_index(locked_launch(entry))
    pinned = extension_of(entry) or Extension()
    asked = registry_asked(package, shop)
    if pinned.registry is not None and asked is not None and asked != pinned.registry:
        return _elsewhere(entry.name, pinned.registry, package, asked, now)
    facts = facts_of(package, shop, now=now, server=entry.name)
    outcome = judge_artifact(facts, claim=claim)
    provenance = provenance_of(entry.name, pinned, facts, shop, now)
    return Examined(
        package=package,
        facts=facts,
        outcome=replace(outcome, evidence=(*outcome.evidence, *provenance.evidence)),
        rows=(*_rows(entry.name, pinned, facts, outcome, now), *provenance.rows),
        identity=provenance.identity,
    )


def _elsewhere(server: str, locked: str, package: PackageName, asked: str, now: str) -> Examined:
    """What is known without asking: settings that changed since lead to another registry."""
    change = registry_change(server, locked, asked)
    return Examined(
        package=package,
        facts=ArtifactFacts(package=package, registry=asked, checked_at=now),
        outcome=unavailable_artifact(package, asked, change.reason),
        rows=(row_of(change),),
    )


def _rows(server: str, pinned: Extension, facts: ArtifactFacts, outcome: ArtifactOutcome, now: str) -> Iterator[Row]:
    for change in compare_pins(server, pinned, facts):
        yield row_of(change)
    if facts.package.ecosystem == "pypi" and pinned.artifacts and facts.missing is None:
        yield from _release_rows(server, pinned, facts, now)
    for issue in outcome.issues:
        level = "critical" if issue.severity == "critical" else "info"
        yield Row(code=issue.code, level=level, entity="artifact", name=server, path="", message=issue.message)


def _release_rows(server: str, pinned: Extension, facts: ArtifactFacts, now: str) -> Iterator[Row]:
    """Files that were added to a release or not looked at; those that changed or went are among the changes."""
    from packaging.tags import sys_tags

    from pinwarden.artifacts.release_files import compare_release

    locked = {file.name: file.digest for file in pinned.artifacts}
    for finding in compare_release(locked, facts, now=now, tags=tuple(sys_tags())):
        if finding.kind in ("file_added", "file_unchecked"):
            yield Row(
                code=finding.kind,
                level=finding.severity,
                entity="artifact",
                name=server,
                path="",
                message=finding.message,
            )


def first_refusal(examined: Examined) -> PinwardenError | None:
    """The gravest reason not to use an artifact."""
    for level in GRAVE:
        for row in examined.rows:
            if row.level == level:
                return PinwardenError("ARTIFACT_MISMATCH", row.message, data={"code": row.code})
    return None
