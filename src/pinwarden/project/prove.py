"""``pinwarden prove``: download and hash the bytes of locked servers and their dependencies, and pin them.

Existing pins are never replaced: Pinwarden refuses different bytes under the same name and version. To pin a new
release or newer dependencies, use ``pinwarden update``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.artifacts.artifact import FetchedArtifact, PackageRef
from pinwarden.artifacts.provenance import identity_to_json
from pinwarden.artifacts.resolvers import list_reasons
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import (
    COULD_NOT_CHECK,
    Report,
    Row,
    get_error_row_code,
    hints_for_failures,
    is_failing,
    row_to_json,
)
from pinwarden.core.text import plural
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import (
    Closure,
    format_closure_path,
    keep_current_approvals,
    list_approved_digests,
    list_unapproved_packages,
)
from pinwarden.lock.entry import Entry, find_client
from pinwarden.lock.extension import (
    RELEASE_FIELDS,
    Artifact,
    ClosurePin,
    ImagePin,
    LockExtension,
    ScriptApproval,
    format_surface_path,
    read_extension,
    with_extension,
)
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.artifact_check import ArtifactCheck, check_artifact
from pinwarden.project.fetch import select_entries
from pinwarden.project.fetch_context import (
    FetchContext,
    build_single_server_context,
    resolve_npm_closure,
    resolve_pypi_closure,
)
from pinwarden.project.install_scripts import (
    AllowedScripts,
    add_approvals,
    report_skipped_scripts,
    report_unknown_scripts,
)
from pinwarden.project.last_checked import record_entries_checked
from pinwarden.project.next_step import choose_after_proof
from pinwarden.project.parallel import ProgressCallback, run_for_servers
from pinwarden.project.project import Project


class VerifiedArtifact(Record):
    """The verified artifact of a server, with its dependencies and the approved install scripts."""

    artifact_check: ArtifactCheck
    closure: Closure | None
    closure_data: bytes = b""
    """The content of the closure file."""
    scripts: tuple[ScriptApproval, ...] = ()
    """The install scripts to approve together with the pins."""
    tree: Digest | None = None
    """The digest of the files in an MCPB bundle."""


def prove_servers(  # noqa: PLR0913  what to verify, how, and who approves scripts
    project: Project,
    names: Sequence[str],
    context: FetchContext,
    now: str,
    allowed: AllowedScripts = AllowedScripts(),  # noqa: B008  a frozen value
    *,
    on_progress: ProgressCallback | None = None,
) -> Report:
    """Pin the bytes of the named servers, or of all servers, and build the report of ``pinwarden prove``.

    For every server, several at once:

    1. Download its artifact, hash it, and compare it with the lock.
    2. Resolve its dependencies, or read the pinned dependencies from the closure file.

    Then, one after the other in the order of the lock:

    3. Write the pins into the lock, with the install scripts that the user approves now.
    4. Report install scripts that are not approved.

    If the user interrupts it, the servers that are verified by then are pinned.
    """
    entries = select_entries(project, names)
    proof = _Proof(project, now)
    each = build_single_server_context(context, len(entries))

    def verify(index: int) -> _Verification:
        artifact_check = check_artifact(entries[index], each, now)
        if artifact_check.refused:
            return _Verification(rows=artifact_check.rows)
        try:
            verified = _verify_closure(project, entries[index], artifact_check, each)
        except PinwardenError as err:
            return _Verification(rows=artifact_check.rows, error=err)
        if verified.closure is not None:
            verified = replace(verified, scripts=allowed.build_approvals(verified.closure, now))
        return _Verification(rows=artifact_check.rows, verified=verified)

    def finish(index: int, result: _Verification | PinwardenError) -> None:
        proof.add(entries[index], result, context)

    run_for_servers(
        [entry.name for entry in entries],
        verify,
        finish,
        context=context,
        on_progress=on_progress or context.on_servers,
    )
    return proof.build_report(allowed, is_named=bool(names))


class _Verification(Record):
    """What a thread found out about one server: verified bytes, an error, or refused bytes, which the rows explain."""

    rows: tuple[Row, ...]
    verified: VerifiedArtifact | None = None
    error: PinwardenError | None = None


class _Proof:
    """Pins what was verified, one server after the other in the order of the lock, and collects the report."""

    def __init__(self, project: Project, now: str) -> None:
        self._project = project
        self._now = now
        self._rows: list[Row] = []
        self._pinned: list[dict[str, Any]] = []
        self._closures: list[Closure] = []
        self._failures: list[tuple[str, PinwardenError]] = []

    def add(self, entry: Entry, result: _Verification | PinwardenError, context: FetchContext) -> None:
        """Write the pins of a server, unless its verification failed or its bytes were refused."""
        if isinstance(result, PinwardenError):
            result = _Verification(rows=(), error=result)
        rows, error, verified = list(result.rows), result.error, result.verified
        if verified is not None:
            try:
                approved = write_pins(self._project, entry, verified, self._now)
            except PinwardenError as err:
                error = err
            else:
                if verified.closure is not None:
                    self._closures.append(verified.closure)
                    rows += report_skipped_scripts(entry.name, verified.closure, approved, context.store)
                self._pinned.append(_server_to_json(entry, verified, approved))
        if error is not None:
            rows.append(_build_failure_row(entry, error))
            self._failures.append((entry.name, error))
        self._rows += rows

    def build_report(self, allowed: AllowedScripts, *, is_named: bool) -> Report:
        """Build the report over all servers. That a server has no package is only worth a row if it was named."""
        rows = [*self._rows, *report_unknown_scripts(allowed, self._closures)]
        open_rows = [row for row in rows if is_failing(row)]
        exit_code = EXIT_CLEAN
        if open_rows:
            exit_code = EXIT_UNCHECKED if all(row.code == COULD_NOT_CHECK for row in open_rows) else EXIT_REFUSED
        return Report(
            command="prove",
            subject=self._project.lock.name,
            summary=_summarize(self._pinned, open_rows, self._failures),
            exit_code=exit_code,
            rows=tuple(row for row in rows if is_named or row.code != "nothing_to_run"),
            notes=hints_for_failures(self._failures),
            next_command=_choose_next_command(self._project, open_rows),
            facts={"servers": self._pinned, "findings": [row_to_json(row) for row in rows]},
        )


def pin_entry(project: Project, key: str, context: FetchContext, now: str) -> None:
    """Pin the bytes of one entry, for every client that has the same server. Raises if the bytes are refused."""
    lock = lock_store.read(project.lock)
    entry = next((entry for entry in (lock.entries if lock is not None else ()) if entry.key == key), None)
    if entry is None:
        raise PinwardenError("SERVER_NOT_LOCKED", f"{key[:120]!a} is not locked")
    artifact_check = check_artifact(entry, context, now)
    if artifact_check.refused:
        reason = next(row.message for row in artifact_check.rows if is_failing(row))
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of its new release were refused: {reason}")
    pin_artifact(project, entry, artifact_check, context, now)


def pin_artifact(
    project: Project, entry: Entry, artifact_check: ArtifactCheck, context: FetchContext, now: str
) -> None:
    """Pin a checked artifact, with its dependencies, for every client that has the same server."""
    write_pins(project, entry, _verify_closure(project, entry, artifact_check, context), now)


def verify_bundle(artifact_check: ArtifactCheck, context: FetchContext) -> VerifiedArtifact:
    """Compute the digest of the files in a checked MCPB bundle. The bundle is kept in the store."""
    from pinwarden.project.server_environments import compute_bundle_tree

    tree = compute_bundle_tree(artifact_check.package.name, artifact_check.artifact.files[0].sha256, context)
    return VerifiedArtifact(artifact_check=artifact_check, closure=None, tree=tree)


def resolve_closure(package: PackageRef, context: FetchContext) -> Closure:
    """Resolve the dependencies of an npm or PyPI package."""
    if package.ecosystem == "npm":
        return resolve_npm_closure(package.name, package.version, context)
    return resolve_pypi_closure(package.name, package.version, (), context)


def write_pins(project: Project, entry: Entry, verified: VerifiedArtifact, now: str) -> frozenset[Digest]:
    """Pin verified bytes in the lock, for every client that has the same server.

    Returns the digests of packages whose install scripts are approved.
    """
    approved: frozenset[Digest] = frozenset()
    pinned: list[Entry] = []

    def change_lock(old: Any) -> lock_store.LockWrite:
        nonlocal approved
        same = [other for other in old.entries if _is_same_server(other, entry)]
        path = _choose_closure_path(project, entry, [other for other in old.entries if other not in same])
        pinned[:] = made = [add_pins(other, verified, path, now) for other in same]
        approved = frozenset().union(*(list_approved_digests(read_extension(changed)) for changed in made))
        return lock_store.LockWrite(
            lock=put_entries(old, made, now), files={path: verified.closure_data} if verified.closure_data else {}
        )

    lock_store.update(project.lock, change_lock)
    record_entries_checked(project, pinned)
    return approved


def add_pins(entry: Entry, verified: VerifiedArtifact, path: str, now: str) -> Entry:
    """Add the pins of verified bytes to the extension fields of an entry."""
    known, artifact = read_extension(entry) or LockExtension(), verified.artifact_check.artifact
    pin = None
    if verified.closure is not None:
        pin = ClosurePin(
            packages=len(verified.closure.packages), path=path, file_digest=Digest.of_bytes(verified.closure_data)
        )
    scripts = (
        keep_current_approvals(add_approvals(known, verified.scripts), verified.closure)
        if verified.closure is not None
        else ()
    )
    artifacts = tuple(Artifact(name=file.name, digest=file.sha256, size=file.size) for file in artifact.files)
    fresh = replace(
        _record_release_facts(known, artifact),
        artifacts=() if artifact.image is not None else artifacts,
        image=_build_image_pin(artifact),
        closure=pin,
        registry=artifact.registry,
        provenance=identity_to_json(verified.artifact_check.identity) if verified.artifact_check.identity else None,
        install_scripts=tuple(scripts),
        bundle_tree=verified.tree if verified.tree is not None else known.bundle_tree,
        evidence=_choose_evidence(known, verified.artifact_check, now),
    )
    return with_extension(entry, fresh)


def _summarize(
    pinned: Sequence[Mapping[str, Any]], open_rows: Sequence[Row], failures: Sequence[tuple[str, PinwardenError]]
) -> str:
    """Count the servers that were verified, refused, or could not be downloaded."""
    failed = {row.name for row in open_rows if row.code == COULD_NOT_CHECK}
    refused = {row.name for row in open_rows} - failed
    names = {server["server"] for server in pinned}
    entries = f" ({plural(len(pinned), 'entry', 'entries')})" if len(pinned) > len(names) else ""
    parts = [f"{plural(len(names), 'server')}{entries} verified"] if pinned or not failed else []
    if refused:
        parts.append(f"the bytes of {plural(len(refused), 'server')} were refused")
    if failed:
        hosts = dict.fromkeys(str(err.data["host"]) for _, err in failures if "host" in err.data)
        why = f" ({', '.join(hosts)} not reached)" if hosts else ""
        subject = f"the bytes of {plural(len(failed), 'server')}"
        parts.append(f"{subject} could not be downloaded{why}, and their lock entries are unchanged")
    return "; ".join(parts)


def _choose_next_command(project: Project, open_rows: Sequence[Row]) -> str | None:
    from pinwarden.project.status_report import choose_command_in_scope

    failed = list(dict.fromkeys(row.name for row in open_rows if row.code == COULD_NOT_CHECK))
    refused = [row.name for row in open_rows if row.code != COULD_NOT_CHECK and row.name]
    return choose_after_proof(refused=refused, failed=failed) or choose_command_in_scope(project)


def _build_failure_row(entry: Entry, err: PinwardenError) -> Row:
    code, level = get_error_row_code(err), "info" if err.code == "NOTHING_TO_RUN" else "critical"
    if level == "critical" and err.exit_code != EXIT_REFUSED:
        code, level = COULD_NOT_CHECK, "review"
    return Row(
        code=code,
        severity=level,
        entity="server",
        name=entry.name,
        path="",
        message=err.message,
        excerpt="\n".join(list_reasons(err)) or None,
    )


def _verify_closure(
    project: Project, entry: Entry, artifact_check: ArtifactCheck, context: FetchContext
) -> VerifiedArtifact:
    """Resolve the closure of the artifact, or read the closure that the lock pins already."""
    known = read_extension(entry)
    if artifact_check.package.ecosystem == "mcpb":
        return verify_bundle(artifact_check, context)
    if artifact_check.package.ecosystem not in ("npm", "pypi"):
        return VerifiedArtifact(artifact_check=artifact_check, closure=None)
    if known is not None and known.closure is not None:
        data = lock_store.read_pinned_file(project.lock, known.closure)
        if data is None or Digest.of_bytes(data) != known.closure.file_digest:
            raise PinwardenError("LOCK_TAMPERED", f"{known.closure.path} is not the file that the lock pins")
        return VerifiedArtifact(artifact_check=artifact_check, closure=closure_document.parse(data), closure_data=data)
    closure = resolve_closure(artifact_check.package, context)
    _refuse_other_bytes(closure, artifact_check.artifact)
    return VerifiedArtifact(
        artifact_check=artifact_check, closure=closure, closure_data=closure_document.to_bytes(closure)
    )


def _refuse_other_bytes(closure: Closure, artifact: FetchedArtifact) -> None:
    """Raise ARTIFACT_MISMATCH if the resolver got other bytes than Pinwarden downloaded from the registry."""
    hashed = {digest for file in artifact.files for digest in file.digests}
    for file in closure.root.files:
        if file.digest not in hashed:
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"{file.name} differs from the file that the registry served before"
            )


def _choose_closure_path(project: Project, entry: Entry, others: Sequence[Entry]) -> str:
    """Choose the path of the closure file. Different servers of the same name get different files."""
    taken = {known.closure.path for entry in others if (known := read_extension(entry)) is not None and known.closure}
    path = format_closure_path(project.lock.stem, format_surface_path(entry.name))
    return (
        path
        if path not in taken
        else format_closure_path(project.lock.stem, format_surface_path(entry.name, find_client(entry)))
    )


def _is_same_server(entry: Entry, other: Entry) -> bool:
    """Whether two entries are the same server. An entry that cannot be parsed is equal only to itself."""
    from pinwarden.project.configured_servers import identify_entry

    identity = identify_entry(entry)
    return entry.name == other.name and (entry.key == other.key or identity == identify_entry(other) is not None)


def _record_release_facts(known: LockExtension, artifact: FetchedArtifact) -> LockExtension:
    """Return the extension with the facts about the release that the lock keeps.

    The first publisher is kept: a registry could rewrite what it says about an old release. Only npm says who published
    a release; other registries name the current owner of the project.
    """
    facts = artifact.facts if artifact.package.ecosystem == "npm" else replace(artifact.facts, publisher=None)
    stated = {name: getattr(facts, name) or getattr(known, name) for name in RELEASE_FIELDS}
    return replace(known, **{**stated, "publisher": known.publisher or facts.publisher or None})


def _build_image_pin(artifact: FetchedArtifact) -> ImagePin | None:
    if artifact.image is None:
        return None
    return ImagePin(
        index=artifact.image.index.digest if artifact.image.index is not None else None,
        platforms={platform: manifest.digest for platform, manifest in sorted(artifact.image.platforms.items())},
    )


def _choose_evidence(known: LockExtension, artifact_check: ArtifactCheck, now: str) -> tuple[Mapping[str, Any], ...]:
    """Choose the evidence to record. Unchanged evidence keeps its timestamp until the end of the day.

    A second ``pinwarden prove`` on the same day therefore leaves the lock unchanged, and its signatures valid.
    """
    before = known.evidence
    rows = [dict(row) for row in artifact_check.outcome.evidence]
    if before is not None and len(before) == len(rows):
        timeless = [{**row, "verifiedAt": None} for row in rows]
        if [{**row, "verifiedAt": None} for row in before] == timeless:
            times = [str(row.get("verifiedAt", "")) for row in before if "verifiedAt" in row]
            if all(time[:10] == now[:10] for time in times):
                return before
    return tuple(rows)


def _server_to_json(entry: Entry, verified: VerifiedArtifact, approved: frozenset[Digest]) -> dict[str, Any]:
    artifact, closure = verified.artifact_check.artifact, verified.closure
    server: dict[str, Any] = {
        "server": entry.name,
        "package": str(verified.artifact_check.package),
        "registry": artifact.registry,
        "files": [{"name": file.name, "digest": str(file.sha256), "size": file.size} for file in artifact.files],
        "evidence": [dict(row) for row in verified.artifact_check.outcome.evidence],
        "packages": len(closure.packages) if closure else 0,
        "scripts": [package.name for package in list_unapproved_packages(closure, approved)] if closure else [],
    }
    if artifact.image is not None:
        server["image"] = {
            "reference": artifact.image.reference,
            "digest": str(artifact.image.root),
            "platforms": {name: str(manifest.digest) for name, manifest in sorted(artifact.image.platforms.items())},
        }
    return server
