"""Make clients start locked servers through ``pinwarden run``, by rewriting their configuration and the lock.

`plan_enforcement` computes the edits of all scopes and writes nothing. `apply_enforcement` makes all of them or none.
``enforced_entry.py`` plans one entry, ``undo_edits.py`` takes the edits back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.command_line import PROGRAM
from pinwarden.clients.files import edit_entry, read_server_file
from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row, get_error_row_code, hints_for_failures, row_to_json
from pinwarden.core.text import plural
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import Entry, find_client
from pinwarden.lock.locked_config import read_config_origin
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.client_edits import diff_edits, list_entry_edits, write_edits
from pinwarden.project.edit_backups import BackupServer, EditSet, LockEdit
from pinwarden.project.enforced_entry import FILLED_BY_CLIENT, EntryPlan, describe_unfound_program, plan_entry
from pinwarden.project.last_checked import record_entries_checked
from pinwarden.project.locked_servers import not_locked_error
from pinwarden.project.scopes import combine_reports
from pinwarden.project.server_start import prepare_run_probe, probe_server
from pinwarden.project.server_target import with_store_variables
from pinwarden.project.undo_edits import recover_interrupted
from pinwarden.system import clock
from pinwarden.system.bounded_task import describe_failure
from pinwarden.system.target import PROJECT_FOLDER, StdioTarget

if TYPE_CHECKING:
    from pinwarden.project.config_diff import FileEdit
    from pinwarden.project.project import Project
    from pinwarden.surface.probe.probe import ProbeOptions


class ScopePlan(Record):
    """The entries of one scope, and the edit of its lock."""

    project: Project
    entries: tuple[EntryPlan, ...]
    refused: tuple[tuple[Entry, PinwardenError], ...]
    """Entries that stay as they are, and why."""
    lock: LockEdit
    now: str


class EnforcementPlan(Record):
    """All edits of all scopes, computed but not made."""

    scopes: tuple[ScopePlan, ...]
    files: tuple[FileEdit, ...]
    """The clients' files that change, each with the servers of all scopes in it."""
    notes: tuple[str, ...] = ()

    @property
    def changes_anything(self) -> bool:
        """Whether applying the plan edits a file."""
        return bool(self.files) or any(scope.lock.before != scope.lock.after for scope in self.scopes)

    @property
    def diffs(self) -> tuple[tuple[str, str], ...]:
        """The edit of each client's file as a unified diff, by the file's path for display."""
        return diff_edits(self.scopes[0].project, self.files)

    @property
    def refused(self) -> tuple[tuple[Entry, PinwardenError], ...]:
        """Entries that stay as they are, and why."""
        return tuple(refusal for scope in self.scopes for refusal in scope.refused)


def plan_enforcement(scopes: Sequence[tuple[Project, Sequence[str]]], *, recover: bool = True) -> EnforcementPlan:
    """Plan how clients will start locked servers through ``pinwarden run``. No names for a scope mean all its servers.

    An entry is rewritten only if ``pinwarden run`` resolves the new command to the same server. With ``recover``, an
    earlier edit that was interrupted is rolled back first. An error about a missing lock or server in one scope is
    raised only if no other scope has a plan.
    """
    notes = recover_interrupted([project for project, _ in scopes]) if recover else ()
    plans: list[ScopePlan] = []
    errors: list[PinwardenError] = []
    for project, names in scopes:
        try:
            plans.append(_plan_scope(project, names))
        except PinwardenError as err:
            if err.code not in ("LOCK_MISSING", "SERVER_NOT_LOCKED"):
                raise
            errors.append(err)
    if not plans:
        raise errors[0]
    return EnforcementPlan(scopes=tuple(plans), files=_list_file_edits(plans), notes=notes)


def apply_enforcement(
    plan: EnforcementPlan,
    probe: ProbeOptions | None = None,
    on_start: Callable[[str], None] = lambda _: None,
    *,
    in_setup: bool = False,
) -> Report:
    """Back up all files of all scopes and make the edits. If anything fails or is interrupted, everything is restored.

    With ``probe``, Pinwarden starts each server once with its new command before it edits anything. A server that does
    not respond keeps its entry. ``on_start`` is called with the name of each server that is started.
    """
    if probe is not None:
        plan = _try_starts(plan, probe, on_start)
    if plan.changes_anything:
        edits = EditSet(
            command="enforce",
            in_setup=in_setup,
            files=plan.files,
            locks=tuple(scope.lock for scope in plan.scopes if scope.lock.before != scope.lock.after),
            servers=tuple(
                _to_backup_server(scope.project, entry)
                for scope in plan.scopes
                for entry in scope.entries
                if entry.action != "unchanged"
            ),
        )
        write_edits(plan.scopes[0].project, edits)
    report = build_enforcement_report(plan, probe=probe, written=True)
    if in_setup or not plan.changes_anything:  # setup says at its end how to undo all of its edits
        return report
    return replace(report, notes=(*report.notes, "undo with: pinwarden enforce --undo"))


def build_enforcement_report(plan: EnforcementPlan, *, probe: ProbeOptions | None = None, written: bool) -> Report:
    """Report what was written, or what would be."""
    reports = [(scope.project, _report_scope(scope, written=written)) for scope in plan.scopes]
    report = combine_reports(reports)
    facts = {
        **report.facts,
        "files": [{"file": name, "diff": diff} for name, diff in plan.diffs],
        "written": written and plan.changes_anything,
        "started": written and probe is not None,
    }
    notes = (*plan.notes, *report.notes, *_describe_outcome(plan, probe, written=written))
    return replace(report, facts=facts, notes=tuple(dict.fromkeys(notes)))


def _plan_scope(project: Project, names: Sequence[str]) -> ScopePlan:
    lock = lock_store.read_verified(project.lock)
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked_error(lock.entries, unknown[0])
    servers = project.find_servers()
    plans: list[EntryPlan] = []
    refused: list[tuple[Entry, PinwardenError]] = []
    for entry in lock.entries:
        if names and entry.name not in names:
            continue
        try:
            plan = plan_entry(project, lock, entry, servers)
            if plan.server is not None and plan.configured is not None:
                edit_entry(read_server_file(plan.server), plan.server, plan.configured)
            plans.append(plan)
        except PinwardenError as err:
            refused.append((entry, err))
    data, now = lock_store.read_bytes(project.lock), clock.now()
    return ScopePlan(
        project=project,
        entries=tuple(plans),
        refused=tuple(refused),
        lock=_edit_lock(project, data, plans, now),
        now=now,
    )


def _edit_lock(project: Project, data: bytes | None, plans: Sequence[EntryPlan], now: str) -> LockEdit:
    lock = lockfile.parse(data or b"")
    changed = put_entries(lock, [plan.sealed for plan in plans if plan.action != "unchanged"], now)
    after = data if changed is lock else lockfile.to_bytes(changed)
    return LockEdit(path=project.lock, before=data, after=after)


def _list_file_edits(scopes: Sequence[ScopePlan], contents: Mapping[Path, bytes] | None = None) -> tuple[FileEdit, ...]:
    entries = (entry for scope in scopes for entry in scope.entries if entry.action == "updated")
    return list_entry_edits(
        (
            (entry.server, entry.configured)
            for entry in entries
            if entry.server is not None and entry.configured is not None
        ),
        contents,
    )


def _to_backup_server(project: Project, plan: EntryPlan) -> BackupServer:
    where = read_config_origin(plan.entry)
    return BackupServer(
        lock=project.lock.absolute(),
        key=plan.entry.key,
        name=plan.entry.name,
        client=where.client if where else plan.entry.client,
        path=None if plan.server is None else Path(plan.server.path).absolute(),
        pointer="" if plan.server is None else plan.server.pointer,
    )


def _report_scope(scope: ScopePlan, *, written: bool) -> Report:
    rows = [_build_row(entry, err) for entry, err in scope.refused]
    entries = [
        {
            "server": entry_plan.entry.name,
            "client": find_client(entry_plan.entry),
            "action": entry_plan.action,
            **({"file": scope.project.display_path(entry_plan.server.path)} if entry_plan.server else {}),
        }
        for entry_plan in scope.entries
    ]
    verb = "started" if written else "would be started"
    unchanged = f", {len(rows)} unchanged" if rows else ""
    return Report(
        command="enforce",
        subject=scope.project.lock.name,
        summary=f"{plural(len(entries), 'entry', 'entries')} {verb} through pinwarden run{unchanged}",
        exit_code=EXIT_REFUSED if any(row.severity != "info" for row in rows) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=tuple(hints_for_failures([(entry.name, err) for entry, err in scope.refused])),
        facts={"entries": entries, "findings": [row_to_json(row) for row in rows]},
    )


def _describe_outcome(plan: EnforcementPlan, probe: ProbeOptions | None, *, written: bool) -> Iterator[str]:
    if not written:
        yield "nothing was written"
        return
    project = next((scope.project for scope in plan.scopes if _names_program(scope)), None)
    unfound = describe_unfound_program(project) if project is not None else None
    if unfound is not None:
        yield unfound
    has_entries = any(scope.entries for scope in plan.scopes)
    if has_entries and probe is None:
        yield "no server was started; pinwarden enforce --allow-execute starts each once with its new command"
    elif has_entries:
        which = "each of the others" if any(err.code.startswith("PROBE_") for _, err in plan.refused) else "each server"
        yield f"{which} was started once with its new command, and responded"


def _names_program(scope: ScopePlan) -> bool:
    """Whether a client's file of the scope would start ``pinwarden`` by its name, without a path."""
    return any(plan.server is not None and plan.words[:1] == (PROGRAM,) for plan in scope.entries)


def _build_row(entry: Entry, err: PinwardenError) -> Row:
    level = "info" if err.code == "NOTHING_TO_RUN" else "review"
    return Row(
        code=get_error_row_code(err), severity=level, entity="server", name=entry.name, path="", message=err.message
    )


def _try_starts(plan: EnforcementPlan, probe: ProbeOptions, on_start: Callable[[str], None]) -> EnforcementPlan:
    """Start each server with its new command. Returns the plan without the servers that do not respond."""
    scopes = [_try_starts_of_scope(scope, probe, on_start) for scope in plan.scopes]
    contents = {edit.path: edit.before or b"" for edit in plan.files}
    return replace(plan, scopes=tuple(scopes), files=_list_file_edits(scopes, contents))


def _try_starts_of_scope(scope: ScopePlan, probe: ProbeOptions, on_start: Callable[[str], None]) -> ScopePlan:
    kept: list[EntryPlan] = []
    started: list[Entry] = []
    refused = list(scope.refused)
    for entry_plan in scope.entries:
        try:
            if entry_plan.server is not None and entry_plan.words:
                on_start(entry_plan.entry.name)
                if _try_start(scope.project, entry_plan, probe):
                    started.append(entry_plan.entry)
            kept.append(entry_plan)
        except PinwardenError as err:
            refused.append((entry_plan.entry, err))
    record_entries_checked(scope.project, started)
    if len(kept) == len(scope.entries):
        return scope
    lock = _edit_lock(scope.project, scope.lock.before, kept, scope.now)
    return replace(scope, entries=tuple(kept), refused=tuple(refused), lock=lock)


def _try_start(project: Project, plan: EntryPlan, probe: ProbeOptions) -> bool:
    """Start a server with its new command. Returns False if only its client can, and raises if it does not respond."""
    from tempfile import TemporaryDirectory

    from pinwarden.clients.config import parse_target

    where = read_config_origin(plan.entry)
    client = get_client(where.client if where else plan.entry.client)
    target, _ = parse_target(plan.configured, client)
    folder = str(project.root.resolve())
    command = tuple(word.replace(PROJECT_FOLDER, folder) for word in plan.words)
    if any(FILLED_BY_CLIENT.search(word) for word in command):
        return False  # only the client can fill in the placeholders
    env = target.env if isinstance(target, StdioTarget) else {}
    with TemporaryDirectory(prefix="pinwarden-") as state:  # starting it once must not record trust on first use
        started = StdioTarget(command=command, env={**env, "PINWARDEN_STATE": state}, cwd=folder)
        try:
            probe_server(prepare_run_probe(project, with_store_variables(started), probe))
        except PinwardenError as err:
            shown = " ".join(plan.words)[:200]
            message = f"{shown} does not start the server, so its entry was not changed: {describe_failure(err)}"
            raise PinwardenError(err.code, message, hint=err.hint, data=err.data) from err
    return True
