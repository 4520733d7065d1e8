"""The report of ``--undo``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, is_failing, row_to_json
from pinwarden.core.text import plural
from pinwarden.lock import lockfile
from pinwarden.lock.lockfile import list_file_pins
from pinwarden.project.client_edits import diff_edits
from pinwarden.project.undo_entries import EXACT, IN_PLACE, LOCK_ONLY, NOT_UNDONE, UndoneServer

if TYPE_CHECKING:
    from pinwarden.project.edit_backups import EditCommand, LockEdit
    from pinwarden.project.undo_edits import UndoPlan

UNDO_KINDS: FindingKinds = build_kind_table(
    review=(
        (
            "not_undone",
            "The edit of a server stays, because its command or its lock entry was changed since. Undo the later "
            "change first, or edit the client's file by hand.",
        ),
    ),
    info=(
        (
            "not_restored",
            "A client's file could not be restored byte for byte, because it or the lock changed since the edit.",
        ),
    ),
)
_BY_SUCCESS = (EXACT, LOCK_ONLY, IN_PLACE, NOT_UNDONE)


def build_undo_report(plan: UndoPlan, command: EditCommand, *, written: bool) -> Report:
    """Report what was restored, or what would be."""
    project = plan.project
    servers = _combine_edits(plan.undone)
    rows = [_build_row(plan, server) for server in servers if server.reason]
    entries: list[dict[str, Any]] = [
        {
            "server": server.edited.name,
            "client": server.edited.client,
            "action": server.how,
            **({} if server.edited.path is None else {"file": project.display_path(server.edited.path)}),
        }
        for server in servers
    ]
    undone = [server for server in servers if server.how != NOT_UNDONE]
    files = {server.edited.path for server in undone if server.how == EXACT}
    files -= {server.edited.path for server in servers if server.how != EXACT}
    locks = [_describe_lock_edit(plan, edit) for edit in plan.edits.locks]
    verb = "restored" if written else "would be restored"
    edited = "".join(f"; {lock['file']} {'edited' if written else 'would be edited'}" for lock in locks)
    return Report(
        command=command,
        subject="client configurations",
        summary=f"{plural(len(undone), 'entry', 'entries')} {verb} as before; "
        f"{plural(len(files), 'file')} byte for byte{edited}",
        exit_code=EXIT_REFUSED if any(map(is_failing, rows)) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=(*_list_lock_notes(locks, written=written), *(() if written else ("nothing was written",))),
        facts={
            "undone": entries,
            "files": [{"file": name, "diff": diff} for name, diff in diff_edits(project, plan.edits.files)],
            "locks": locks,
            "written": written,
            "findings": [row_to_json(row) for row in rows],
        },
    )


def _describe_lock_edit(plan: UndoPlan, edit: LockEdit) -> dict[str, Any]:
    """Return which lock is edited, and which files next to it are removed and written."""
    before, after = (
        set() if data is None else {pin.path for _, _, pin in list_file_pins(lockfile.parse(data))}
        for data in (edit.before, edit.after)
    )
    folder = edit.path.parent
    return {
        "file": plan.project.display_path(edit.path),
        "removed": [plan.project.display_path(folder / path) for path in sorted(before - after)],
        "added": [plan.project.display_path(folder / path) for path in sorted(after - before)],
    }


def _list_lock_notes(locks: Sequence[Mapping[str, Any]], *, written: bool) -> Iterator[str]:
    for lock in locks:
        verb = "was" if written else "would be"
        yield f"the lock {lock['file']} {verb} edited too, so that its entries are as before"
        for what, files in (("removed", lock["removed"]), ("written again", lock["added"])):
            if files:
                verb = "would be" if not written else "was" if len(files) == 1 else "were"
                yield f"next to the lock {verb} {what}: {', '.join(files)}"


def build_recovery_report(command: EditCommand, notes: tuple[str, ...]) -> Report:
    """Report that an interrupted edit was rolled back, and that there was nothing else to undo."""
    return Report(
        command=command,
        subject="client configurations",
        summary="the clients' files are as they were before the interrupted edit",
        exit_code=EXIT_CLEAN,
        notes=notes,
        facts={"undone": [], "files": [], "locks": [], "written": True, "findings": []},
    )


def _combine_edits(undone: tuple[UndoneServer, ...]) -> list[UndoneServer]:
    """Return one result for each entry in a client's file: the least successful, if several edits of it are undone."""
    entries: dict[tuple[object, ...], UndoneServer] = {}
    for server in undone:
        key = (server.edited.lock, server.edited.key, server.edited.path, server.edited.pointer)
        known = entries.get(key)
        if known is None or _BY_SUCCESS.index(server.how) > _BY_SUCCESS.index(known.how):
            entries[key] = server
    return list(entries.values())


def _build_row(plan: UndoPlan, server: UndoneServer) -> Row:
    code = "not_undone" if server.how == NOT_UNDONE else "not_restored"
    message = {
        IN_PLACE: f"only the entry of this server is edited: {server.reason}",
        LOCK_ONLY: f"the client's file is left as it is: {server.reason}",
        NOT_UNDONE: f"the edit is not undone: {server.reason}",
    }.get(server.how, server.reason)
    return Row(
        code=code,
        severity=UNDO_KINDS[code].severity,
        entity="config",
        name=server.edited.name,
        path="",
        message=message,
        file=None if server.edited.path is None else plan.project.display_path(server.edited.path),
    )
