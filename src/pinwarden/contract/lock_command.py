"""``contract lock``: generate, read and write lockfiles.

A lockfile is rewritten only if something other than its generation time and signature changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pinwarden.contract.dialect import F5, Dialect, V, detect_dialects
from pinwarden.contract.digests import LOCKFILE_LIMITS
from pinwarden.contract.entitlement_findings import CONTRACT_KINDS, check_annotations
from pinwarden.contract.extension import with_extension
from pinwarden.contract.lockfile import Lockfile, generate_lockfile, parse_lockfile, serialize_lockfile
from pinwarden.contract.observation import ObservedServer, note_unanalysed_tools
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import Record
from pinwarden.core.report import Report, collect_kind_reasons, row_to_json
from pinwarden.core.text import plural
from pinwarden.system.files import read_file, write_atomically


class StoredLockfile(Record):
    """A lockfile's path, and its content if it exists."""

    path: Path
    lockfile: Lockfile | None


def load_lockfile(name: str | None, dialect: Dialect | None = None) -> StoredLockfile:
    """Read the lockfile at the path ``name``, or the lockfile in the current folder.

    If no lockfile exists, the path is the dialect's default. Call this before starting the server, so that a corrupt
    lockfile is reported early.
    """
    path = _choose_path(name, dialect)
    return StoredLockfile(path=path, lockfile=read_lockfile(path))


def require_lockfile(stored: StoredLockfile) -> Lockfile:
    """Return the content of the lockfile. Raises ``LOCK_MISSING`` if the file does not exist."""
    if stored.lockfile is None:
        hint = "Create one with: pinwarden contract lock --server FILE"
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {stored.path}", hint=hint)
    return stored.lockfile


def _choose_path(name: str | None, dialect: Dialect | None) -> Path:
    if name is not None:
        return Path(name)
    existing = [Path(dialect.file_name) for dialect in (F5, V) if Path(dialect.file_name).exists()]
    if len(existing) > 1 and dialect is None:
        message = f"both {existing[0]} and {existing[1]} exist"
        raise PinwardenError("USAGE", message, hint="Choose one with --lock FILE.")
    if dialect is None and existing:
        return existing[0]
    return Path((dialect or F5).file_name)


def build_lockfile(observed: ObservedServer, now: str, dialect: Dialect, name: str | None = None) -> Lockfile:
    """Generate the lockfile of a server, with Pinwarden's extension."""
    plain = generate_lockfile(
        name or observed.name, observed.contracts, observed.prompts, generated_at=now, dialect=dialect
    )
    return with_extension(plain, observed.extension)


def lock(
    observed: ObservedServer, stored: StoredLockfile, *, now: str, dialect: Dialect | None, name: str | None
) -> Report:
    """Write the lockfile if its content changes, and return the report of ``pinwarden contract lock``."""
    path, old = stored.path, stored.lockfile
    default_dialect = V if path.name == V.file_name else F5
    used_dialect = dialect or (default_dialect if old is None else detect_dialects(old.document)[0])
    new = build_lockfile(observed, now, used_dialect, name)
    rows = check_annotations(observed)
    same = old is not None and _has_same_content(old, new)
    if not same:
        write_lockfile(path, new)
    counts = f"{plural(len(observed.contracts), 'tool')}, {plural(len(observed.prompts), 'prompt')}"
    summary = f"{path} is up to date ({counts})" if same else f"{path} written ({counts})"
    return Report(
        command="contract lock",
        subject=observed.name,
        summary=f"{summary}; surface {observed.extension.surface.digest}",
        exit_code=EXIT_CLEAN,
        rows=rows,
        notes=tuple(note_unanalysed_tools(observed)),
        facts={
            **digests_to_json(new),
            "path": str(path),
            "written": not same,
            "dialect": used_dialect.name,
            "findings": [row_to_json(row) for row in rows],
        },
        rule_texts=collect_kind_reasons(CONTRACT_KINDS),
    )


def sign(path: Path, keys: Iterable[PrivateKey]) -> None:
    """Sign a lockfile in place. Raises ``LOCK_MISSING`` if it does not exist."""
    from pinwarden.contract.extension import sign_lockfile

    locked = read_lockfile(path)
    if locked is None:
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {path}")
    write_lockfile(path, sign_lockfile(locked, keys))


def _has_same_content(old: Lockfile, new: Lockfile) -> bool:
    """Whether two lockfiles differ at most in their generation time and signature."""
    return _drop_time_and_signature(old) == _drop_time_and_signature(new)


def _drop_time_and_signature(lockfile: Lockfile) -> dict[str, Any]:
    extension = {
        name: value for name, value in (lockfile.extension or {}).items() if name not in ("bodyDigest", "signature")
    }
    return {**lockfile.document, "generatedAt": "", "pinwarden": extension}


def digests_to_json(lockfile: Lockfile) -> dict[str, Any]:
    """Return the server's name and the digests that identify a lockfile, for the JSON output."""
    extension = lockfile.extension or {}
    names = ("bodyDigest", "surfaceDigest", "normalisedDigest")
    return {
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        **{name: extension[name] for name in names if name in extension},
    }


def read_lockfile(path: Path, *, compat: Dialect | None = None) -> Lockfile | None:
    """Return the lockfile at a path; None if it does not exist.

    Raises ``LOCK_INVALID`` if the file cannot be parsed. With ``compat`` such a file gives None, as in MCP Fusion.
    """
    if not path.exists() and not path.is_symlink():
        return None
    data = read_file(path, LOCKFILE_LIMITS.max_bytes)
    try:
        return parse_lockfile(data, compat=compat)
    except PinwardenError as err:
        if compat is not None:
            return None
        raise PinwardenError(err.code, f"{path}: {err.message}", hint=err.hint, data=err.data) from err


def write_lockfile(path: Path, lockfile: Lockfile) -> None:
    """Write a lockfile atomically."""
    write_atomically(path, serialize_lockfile(lockfile))
