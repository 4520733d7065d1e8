"""Compare the current dependencies and newer releases of locked servers with the pins in the lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pinwarden.artifacts.artifact import FetchedArtifact, PackageRef
from pinwarden.artifacts.artifact_drift import ClosureChange, ClosureChangeKind, compare_closures, compare_releases
from pinwarden.artifacts.evidence import collect_evidence
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Row, build_kind_table, get_error_row_code
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension
from pinwarden.lock.server_entry import ServerEntry
from pinwarden.project.artifact_check import (
    ArtifactCheck,
    check_artifact,
    fetch_artifact,
    find_entry_package,
    parse_declared_package,
)
from pinwarden.project.fetch import select_entries
from pinwarden.project.fetch_context import FetchContext
from pinwarden.project.install_scripts import report_lost_approvals
from pinwarden.project.locked_servers import has_pinned_bytes
from pinwarden.project.project import Project
from pinwarden.project.prove import VerifiedArtifact, resolve_closure, verify_bundle, write_pins
from pinwarden.surface.drift.changes import build_change_row

_MAX_PUBLISHER_LOOKUPS = 50
"""For how many changed packages the publisher is looked up. More changes are reviewed in the diff of the lock."""

DEPENDENCY_KINDS: FindingKinds = build_kind_table(
    critical=(("dependency_bytes", "The same version of a dependency now has other bytes."),),
    review=(
        ("dependency_scripts", "A dependency would now run scripts on installation."),
        ("dependency_version", "A dependency has another version."),
        ("dependency_files", "Files were added to or removed from the same version of a dependency."),
        ("dependency_place", "A dependency comes from another host."),
        ("dependency_added", "A new dependency was added."),
    ),
    info=(("dependency_removed", "A dependency that was locked is no longer needed."),),
)
_CODES: Mapping[ClosureChangeKind, str] = {
    "bytes": "dependency_bytes",
    "scripts": "dependency_scripts",
    "version": "dependency_version",
    "files": "dependency_files",
    "place": "dependency_place",
    "added": "dependency_added",
    "removed": "dependency_removed",
}


class DependencyUpdate(Record):
    """The current dependencies of a server, and their differences from the pinned ones."""

    entry: Entry
    verified: VerifiedArtifact | None
    rows: tuple[Row, ...]

    @property
    def is_offered(self) -> bool:
        """Whether there are changes to write, and none of them is critical."""
        return (
            self.verified is not None and bool(self.rows) and not any(row.severity == "critical" for row in self.rows)
        )


def find_dependency_updates(
    project: Project, names: Sequence[str], context: FetchContext, now: str, *, without: frozenset[str] = frozenset()
) -> list[DependencyUpdate]:
    """Resolve the dependencies of every server with pinned bytes again, and compare them with the lock.

    ``without`` are the names of servers to skip, because they get a newer release anyway.
    """
    entries = [
        entry for entry in select_entries(project, names) if has_pinned_bytes(entry) and entry.name not in without
    ]
    return [_find_dependency_update(project, entry, context, now) for entry in entries]


def write_dependency_update(project: Project, update: DependencyUpdate, now: str) -> None:
    """Pin the current dependencies in the lock."""
    if update.verified is not None:
        write_pins(project, update.entry, update.verified, now)


def compare_listed_release(entry: Entry, latest: ServerEntry, context: FetchContext, now: str) -> Iterator[Row]:
    """Compare publisher and bytes of a newer release with those of the locked one."""
    kind = str(entry.selected_target.get("registryType") or "")
    target = next((declared for declared in latest.packages if declared.registry_type == kind), None)
    package = parse_declared_package(target) if target is not None else None
    if package is not None:
        yield from compare_package_release(entry, package, context, now)


def compare_package_release(entry: Entry, package: PackageRef, context: FetchContext, now: str) -> Iterator[Row]:
    """Compare publisher and bytes of a package at its newer release with those of the locked one."""
    try:
        before = _with_pinned_publisher(
            entry, fetch_artifact(find_entry_package(entry)[0], context, now=now, server=entry.name)
        )
        after = fetch_artifact(package, context, now=now, server=entry.name)
    except PinwardenError as err:
        yield Row(
            code=COULD_NOT_CHECK, severity="review", entity="server", name=entry.name, path="", message=err.message
        )
        return
    for change in compare_releases(entry.name, before, after):
        yield build_change_row(change)
    for issue in collect_evidence(after).issues:
        if issue.severity == "critical":
            yield Row(
                code=issue.code, severity="critical", entity="artifact", name=entry.name, path="", message=issue.message
            )


def _find_dependency_update(project: Project, entry: Entry, context: FetchContext, now: str) -> DependencyUpdate:
    try:
        check = check_artifact(entry, context, now)
        rows = [row for row in check.rows if row.severity != "info"]
        if any(row.severity == "critical" for row in rows):
            return DependencyUpdate(entry=entry, verified=None, rows=tuple(rows))
        verified = _verify_current(check, context)
        before = read_pinned_closure(project, entry)
        if before is not None and verified.closure is not None:
            rows += _report_closure_changes(entry, compare_closures(before, verified.closure), context, now)
            rows += report_lost_approvals(entry.name, read_extension(entry), verified.closure)
        return DependencyUpdate(entry=entry, verified=verified if rows else None, rows=tuple(rows))
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        code, level = (get_error_row_code(err), "critical") if refused else (COULD_NOT_CHECK, "review")
        row = Row(code=code, severity=level, entity="server", name=entry.name, path="", message=err.message)
        return DependencyUpdate(entry=entry, verified=None, rows=(row,))


def _verify_current(check: ArtifactCheck, context: FetchContext) -> VerifiedArtifact:
    if check.package.ecosystem == "mcpb":
        return verify_bundle(check, context)
    if check.package.ecosystem not in ("npm", "pypi"):
        return VerifiedArtifact(artifact_check=check, closure=None)
    closure = resolve_closure(check.package, context)
    return VerifiedArtifact(artifact_check=check, closure=closure, closure_data=closure_document.to_bytes(closure))


def read_pinned_closure(project: Project, entry: Entry) -> Closure | None:
    """Read the pinned dependencies of an entry; None if it has none. Raises if the file is not the pinned one."""
    extension = read_extension(entry)
    if extension is None or extension.closure is None:
        return None
    data = lock_store.read_pinned_file(project.lock, extension.closure)
    if data is None or Digest.of_bytes(data) != extension.closure.file_digest:
        raise PinwardenError("LOCK_TAMPERED", f"{extension.closure.path} is not the file that the lock pins")
    return closure_document.parse(data)


def _report_closure_changes(
    entry: Entry, changes: Sequence[ClosureChange], context: FetchContext, now: str
) -> Iterator[Row]:
    ecosystem = "npm" if any(change.path.startswith("node_modules/") for change in changes) else "pypi"
    for index, change in enumerate(changes):
        message = change.message
        if change.after is not None and index < _MAX_PUBLISHER_LOOKUPS:
            message += _describe_publication(ecosystem, change, context, now)
        kind = DEPENDENCY_KINDS[_CODES[change.kind]]
        yield Row(
            code=kind.kind,
            severity=kind.severity,
            entity="closure",
            name=entry.name,
            path="",
            message=message,
            before=change.before.version if change.before else None,
            after=change.after.version if change.after else None,
        )


def _with_pinned_publisher(entry: Entry, artifact: FetchedArtifact) -> FetchedArtifact:
    """Return the artifact with the pinned publisher: the registry could rewrite what it says about an old release."""
    extension = read_extension(entry)
    known = extension.publisher if extension is not None else None
    return replace(artifact, facts=replace(artifact.facts, publisher=known)) if known is not None else artifact


def _describe_publication(ecosystem: str, change: ClosureChange, context: FetchContext, now: str) -> str:
    """Say who published a package and when, according to its registry."""
    if change.after is None:
        return ""
    uploaded = max((file.uploaded_at for file in change.after.files if file.uploaded_at), default=None)
    if ecosystem == "pypi":
        return f", uploaded {uploaded[:10]}" if uploaded else ""
    try:
        package = PackageRef(ecosystem="npm", name=change.after.name, version=change.after.version)
        artifact = fetch_artifact(package, context, now=now)
    except PinwardenError as err:
        return f" (its publisher could not be looked up: {err.message})"
    facts = artifact.facts
    when = f", published {facts.published_at[:10]}" if facts.published_at else ""
    return when + (f" by {facts.publisher}" if facts.publisher else "")
