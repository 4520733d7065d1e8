"""Backs up the gateway's database while gateways run, and restores it.

A copy of the SQLite file alone lacks what is still in its write-ahead log, and a copy of both files at different times
is damaged. So the copy is made by SQLite itself, as one consistent file. Both ways end with a verification of the audit
log in the copy; a copy that fails it gets no name. The log does not cover tokens and approvals, so a restore can also
demand the digest of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory

from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.gateway.audit.event import RESTORED, AuditEvent, AuditHead
from pinwarden.gateway.audit.report import verify_log
from pinwarden.gateway.state import GatewayState
from pinwarden.system.database import copy_sqlite_database, find_sqlite_file, is_postgresql
from pinwarden.system.files import file_digest, open_new_file, open_regular
from pinwarden.system.state_folder import prepare_state_folder
from pinwarden.system.transactions import database_missing_error


def back_up(state: GatewayState, file: Path) -> Report:
    """Copy the database into a new file, with the events of gateways that were killed."""
    _refuse_postgresql(state)
    if not find_sqlite_file(state.url).exists() and not state.has_journals():
        raise database_missing_error(state.url)  # the next line would create an empty one
    _ = state.audit_database.rows("SELECT 1")  # imports journals
    with open_new_file(file) as stream:
        copy = Path(stream.name)
        copy_sqlite_database(state.url, copy)
        verified = _verify_copy(copy, ())
        digest = str(file_digest(copy))
    return Report(
        command="gateway backup",
        subject=str(file),
        summary=f"backed up with {verified.facts['entries']} audit events; head {_name_head(verified)}",
        exit_code=EXIT_CLEAN,
        notes=(
            f"digest {digest}",
            "keep head and digest elsewhere, and give them to pinwarden gateway restore --head and --digest",
        ),
        facts={
            "file": str(file),
            "digest": digest,
            "entries": verified.facts["entries"],
            "head": verified.facts["head"],
        },
    )


def restore(
    state: GatewayState, file: Path, heads: Sequence[AuditHead], by: str, digest: Digest | None = None
) -> Report:
    """Create the state's database from a backup. Its audit log must contain ``heads``, and the file have the digest.

    Raises ``FILE_EXISTS`` if there is a database or a journal already.
    """
    _refuse_postgresql(state)
    prepare_state_folder(state.folder)
    if state.has_journals():
        raise PinwardenError(
            "FILE_EXISTS",
            f"{state.journal_folder} has events of a gateway, which do not belong to the backup",
            hint="Stop the gateways, and move the state folder away.",
        )
    with open_new_file(Path(state.url)) as stream:
        copy = Path(stream.name)
        with TemporaryDirectory(dir=state.folder) as folder:
            copy_sqlite_database(str(_copy_alone(file, Path(folder), digest)), copy)
        verified = _verify_copy(copy, heads)
    reason = f"restored from a backup with the head {_name_head(verified)}"
    state.record_events(AuditEvent(kind=RESTORED, call=_name_head(verified), reason=reason, by=by))
    return Report(
        command="gateway restore",
        subject=str(file),
        summary=f"restored with {verified.facts['entries']} audit events; head {_name_head(verified)}",
        exit_code=EXIT_CLEAN,
        notes=(
            "what was revoked or decided after the backup is undone: check pinwarden gateway token list and pinwarden "
            "review list",
            *(() if heads else ("without --head, a backup that is too old cannot be detected",)),
            *(() if digest else ("without --digest, changed tokens and approvals in the backup cannot be detected",)),
        ),
        facts={"file": str(file), "entries": verified.facts["entries"], "head": verified.facts["head"]},
    )


def _copy_alone(file: Path, folder: Path, digest: Digest | None) -> Path:
    """Copy a backup without the files next to it, which SQLite would read too, and check the digest of the copy."""
    if not file.is_file():
        return file  # its absence is an error of the database
    alone = folder / "backup.sqlite"
    with open_regular(file) as source, alone.open("xb") as target:
        copyfileobj(source, target)
    if digest is not None and file_digest(alone, digest.algorithm) != digest:
        raise PinwardenError(
            "AUDIT_TAMPERED",
            f"{file} does not have the digest {digest}",
            hint="Use another backup, or the digest that pinwarden gateway backup printed for this one.",
        )
    return alone


def _refuse_postgresql(state: GatewayState) -> None:
    if is_postgresql(state.url):
        raise PinwardenError(
            "USAGE",
            "the database is PostgreSQL, which has its own tools",
            hint='Run: pg_dump --format=custom --file=gateway.dump "$PINWARDEN_DATABASE"',
        )


def _verify_copy(copy: Path, heads: Sequence[AuditHead]) -> Report:
    """Return the report about the audit log in a copy. Raises ``AUDIT_TAMPERED`` if it is not complete."""
    with TemporaryDirectory() as folder, GatewayState(Path(folder), str(copy), read_only=True) as state:
        verified = verify_log(state, heads)
        _ = state.tokens.list_all(), state.reviews.count_pending()
    if verified.rows:
        raise PinwardenError(
            "AUDIT_TAMPERED",
            f"the audit log in the copy is not complete and unchanged: {verified.rows[0].message}",
            hint="Use another backup, or compare the log with an export: pinwarden audit verify --against FILE",
        )
    return verified


def _name_head(verified: Report) -> str:
    head = verified.facts["head"]
    return f"{head['number']}:{head['hash']}"
