"""Newer dependencies and moved tags of servers whose bytes are pinned: what would change, side by side.

Nothing here writes. Other bytes under a version that was locked are never offered as something to agree to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinwarden.artifacts.artifact import ArtifactFacts, PackageName
from pinwarden.artifacts.artifact_drift import compare_releases
from pinwarden.artifacts.closure_drift import ClosureChange, compare_closures
from pinwarden.artifacts.evidence import judge_artifact
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.finding_kinds import Kinds, kind_table
from pinwarden.core.record import Record, replace
from pinwarden.core.report import UNCHECKED, Row
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import PUBLISHER
from pinwarden.lock.record import extension_of
from pinwarden.lock.server_entry import ServerEntry
from pinwarden.project.artifact_check import Examined, examine
from pinwarden.project.artifact_facts import declared_package, facts_of, package_of
from pinwarden.project.fetch import chosen_entries
from pinwarden.project.fetch_context import Workshop
from pinwarden.project.gate.artifacts import has_bytes
from pinwarden.project.install_scripts import lost_rows
from pinwarden.project.project import Project
from pinwarden.project.prove import Proof, bundle_proof, closure_for, write_proof
from pinwarden.surface.rows import row_of

MAX_LOOKED_UP = 50
"""Of how many changed packages it is looked up who published them; a review of more begins with the lock's diff."""

DEPENDENCY_KINDS: Kinds = kind_table(
    critical=(("dependency_bytes", "The same version of a dependency now has other bytes."),),
    review=(
        ("dependency_scripts", "A dependency would now run scripts on installation."),
        ("dependency_version", "A dependency has another version."),
        ("dependency_files", "Files were added to or taken from the same version of a dependency."),
        ("dependency_place", "A dependency comes from another host."),
        ("dependency_added", "There is a dependency that was not locked."),
    ),
    info=(("dependency_removed", "A dependency that was locked is not needed any more."),),
)


class Renewal(Record):
    """What would be written for one server if somebody agrees."""

    entry: Entry
    proof: Proof | None
    rows: tuple[Row, ...]

    @property
    def offered(self) -> bool:
        """Whether there is something to agree to, and nothing that must not be agreed to."""
        return self.proof is not None and bool(self.rows) and not any(row.level == "critical" for row in self.rows)


def renewals(
    project: Project, names: Sequence[str], shop: Workshop, now: str, *, without: frozenset[str] = frozenset()
) -> list[Renewal]:
    """For every server whose bytes are pinned, what they would be if it were locked today.

    Those in ``without`` are not looked at: they get another release, so what this one would be is nobody's question.
    """
    entries = [each for each in chosen_entries(project, names) if has_bytes(each) and each.name not in without]
    return [_renewal(project, entry, shop, now) for entry in entries]


def write_renewal(project: Project, renewal: Renewal, now: str) -> None:
    """Write what was agreed to."""
    if renewal.proof is not None:
        write_proof(project, renewal.entry, renewal.proof, now)


def _renewal(project: Project, entry: Entry, shop: Workshop, now: str) -> Renewal:
    try:
        examined = examine(entry, shop, now)
        rows = [row for row in examined.rows if row.level != "info"]
        if any(row.level == "critical" for row in rows):
            return Renewal(entry=entry, proof=None, rows=tuple(rows))
        proof = _fresh(examined, shop)
        before = _pinned_closure(project, entry)
        if before is not None and proof.closure is not None:
            rows += _closure_rows(entry, compare_closures(before, proof.closure), shop, now)
            rows += lost_rows(entry.name, extension_of(entry), proof.closure)
        return Renewal(entry=entry, proof=proof if rows else None, rows=tuple(rows))
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        code, level = (err.code.lower(), "critical") if refused else (UNCHECKED, "review")
        row = Row(code=code, level=level, entity="server", name=entry.name, path="", message=err.message)
        return Renewal(entry=entry, proof=None, rows=(row,))


def _fresh(examined: Examined, shop: Workshop) -> Proof:
    if examined.package.ecosystem == "mcpb":
        return bundle_proof(examined, shop)
    if examined.package.ecosystem not in ("npm", "pypi"):
        return Proof(examined=examined, closure=None)
    closure = closure_for(examined.package, shop)
    return Proof(examined=examined, closure=closure, data=closure_document.to_bytes(closure))


def _pinned_closure(project: Project, entry: Entry) -> Closure | None:
    extension = extension_of(entry)
    if extension is None or extension.closure is None:
        return None
    data = lock_store.read_pinned(project.lock, extension.closure)
    if data is None or Digest.of(data) != extension.closure.file_digest:
        raise PinwardenError("LOCK_TAMPERED", f"{extension.closure.path} is not the file that the lock pins")
    return closure_document.parse(data)


def _closure_rows(entry: Entry, changes: Sequence[ClosureChange], shop: Workshop, now: str) -> Iterator[Row]:
    ecosystem = "npm" if any(change.place.startswith("node_modules/") for change in changes) else "pypi"
    for number, change in enumerate(changes):
        told = change.message
        if change.after is not None and number < MAX_LOOKED_UP:
            told += _who_and_when(ecosystem, change, shop, now)
        kind = DEPENDENCY_KINDS[f"dependency_{change.kind}"]
        yield Row(
            code=kind.kind,
            level=kind.severity,
            entity="closure",
            name=entry.name,
            path="",
            message=told,
            before=change.before.version if change.before else None,
            after=change.after.version if change.after else None,
        )


def release_rows(entry: Entry, latest: ServerEntry, shop: Workshop, now: str) -> Iterator[Row]:
    """Who stands behind a newer release, and what is wrong with its bytes, held against the locked release."""
    kind = str(entry.selected_target.get("registryType") or "")
    target = next((each for each in latest.packages if each.registry_type == kind), None)
    wanted = declared_package(target) if target is not None else None
    if wanted is not None:
        yield from package_rows(entry, wanted, shop, now)


def package_rows(entry: Entry, wanted: PackageName, shop: Workshop, now: str) -> Iterator[Row]:
    """The same for a release that is named."""
    try:
        before = _as_pinned(entry, facts_of(package_of(entry)[0], shop, now=now, server=entry.name))
        after = facts_of(wanted, shop, now=now, server=entry.name)
    except PinwardenError as err:
        yield Row(code=UNCHECKED, level="review", entity="server", name=entry.name, path="", message=err.message)
        return
    for change in compare_releases(entry.name, before, after):
        yield row_of(change)
    for issue in judge_artifact(after).issues:
        if issue.severity == "critical":
            yield Row(
                code=issue.code, level="critical", entity="artifact", name=entry.name, path="", message=issue.message
            )


def _as_pinned(entry: Entry, facts: ArtifactFacts) -> ArtifactFacts:
    """The facts with the publisher that was pinned: what the registry says of an old release today may be rewritten."""
    extension = extension_of(entry)
    known = extension.others.get(PUBLISHER) if extension is not None else None
    return replace(facts, publisher=known) if isinstance(known, str) else facts


def _who_and_when(ecosystem: str, change: ClosureChange, shop: Workshop, now: str) -> str:
    """Who published a package and when, as its registry says."""
    if change.after is None:
        return ""
    uploaded = max((file.uploaded_at for file in change.after.files if file.uploaded_at), default=None)
    if ecosystem == "pypi":
        return f", uploaded {uploaded[:10]}" if uploaded else ""
    try:
        package = PackageName(ecosystem="npm", name=change.after.name, version=change.after.version)
        facts = facts_of(package, shop, now=now)
    except PinwardenError as err:
        return f" (who published it could not be looked up: {err.message})"
    when = f", published {facts.published_at[:10]}" if facts.published_at else ""
    return when + (f" by {facts.publisher}" if facts.publisher else "")
