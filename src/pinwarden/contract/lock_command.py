"""The report of ``contract lock``, and the lockfile on disk. A file that differs only in its time is not rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pinwarden.contract.denials import CONTRACT_KINDS, notices
from pinwarden.contract.dialect import F5, Dialect, V, dialects_of
from pinwarden.contract.digests import LOCKFILE_LIMITS
from pinwarden.contract.extension import with_extension
from pinwarden.contract.lockfile import Lockfile, generate_lockfile, parse_lockfile, serialize_lockfile
from pinwarden.contract.observation import Observed, unanalysed_note
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import Record
from pinwarden.core.report import Report, kind_reasons, plural, row_facts
from pinwarden.system.files import read_file, write_atomically


class Place(Record):
    """A lockfile's path, and what is there. It is read before a server is started: what is corrupt stops at once."""

    path: Path
    present: Lockfile | None


def place_of(given: str | None, dialect: Dialect | None = None) -> Place:
    """The lockfile: the named one, the one that is here, or a new one in the dialect's own name."""
    path = _path_of(given, dialect)
    return Place(path=path, present=read_lockfile(path))


def locked_at(place: Place) -> Lockfile:
    """The lockfile that must be there."""
    if place.present is None:
        hint = "Make one with: pinwarden contract lock --server FILE"
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {place.path}", hint=hint)
    return place.present


def _path_of(given: str | None, dialect: Dialect | None) -> Path:
    if given is not None:
        return Path(given)
    here = [Path(dialect.file_name) for dialect in (F5, V) if Path(dialect.file_name).exists()]
    if len(here) > 1 and dialect is None:
        raise PinwardenError("USAGE", f"both {here[0]} and {here[1]} are here", hint="Name one with --lock FILE.")
    if dialect is None and here:
        return here[0]
    return Path((dialect or F5).file_name)


def fresh_lockfile(observed: Observed, now: str, dialect: Dialect, name: str | None = None) -> Lockfile:
    """The lockfile of a server as it is now."""
    plain = generate_lockfile(
        name or observed.name, observed.contracts, observed.prompts, generated_at=now, dialect=dialect
    )
    return with_extension(plain, observed.extension)


def lock(observed: Observed, place: Place, *, now: str, dialect: Dialect | None, name: str | None) -> Report:
    """Write the lock, unless it says the same already."""
    path, present = place.path, place.present
    spoken = dialect or (_spoken(present) if present is not None else V if path.name == V.file_name else F5)
    made = fresh_lockfile(observed, now, spoken, name)
    rows = notices(observed)
    same = present is not None and _same(present, made)
    if not same:
        write_lockfile(path, made)
    counts = f"{plural(len(observed.contracts), 'tool')}, {plural(len(observed.prompts), 'prompt')}"
    summary = f"{path} is up to date ({counts})" if same else f"{path} written ({counts})"
    return Report(
        command="contract lock",
        subject=observed.name,
        summary=f"{summary}; surface {observed.extension.surface.digest}",
        exit_code=EXIT_CLEAN,
        rows=rows,
        notes=(
            *(("commit the file, and let your builds check it: pinwarden contract init",) if present is None else ()),
            *unanalysed_note(observed),
        ),
        facts={
            **digests_of(made),
            "path": str(path),
            "written": not same,
            "dialect": spoken.name,
            "findings": [row_facts(row) for row in rows],
        },
        rule_texts=kind_reasons(CONTRACT_KINDS),
    )


def sign(path: Path, keys: Iterable[PrivateKey]) -> None:
    """Sign the lockfile that was just written or found up to date."""
    from pinwarden.contract.extension import sign_lockfile

    locked = read_lockfile(path)
    if locked is None:
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {path}")
    write_lockfile(path, sign_lockfile(locked, keys))


def _spoken(present: Lockfile) -> Dialect:
    return dialects_of(present.document)[0]


def _same(present: Lockfile, made: Lockfile) -> bool:
    """Whether two files say the same, but for when they were made, by whom they were signed and what follows of it."""
    return _said(present) == _said(made)


def _said(lockfile: Lockfile) -> dict[str, Any]:
    extension = {
        name: each for name, each in (lockfile.extension or {}).items() if name not in ("bodyDigest", "signature")
    }
    return {**lockfile.document, "generatedAt": "", "pinwarden": extension}


def digests_of(lockfile: Lockfile) -> dict[str, Any]:
    """The digests that identify a lockfile, for a report."""
    extension = lockfile.extension or {}
    names = ("bodyDigest", "surfaceDigest", "normalisedDigest")
    return {
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        **{name: extension[name] for name in names if name in extension},
    }


def read_lockfile(path: Path, *, compat: Dialect | None = None) -> Lockfile | None:
    """The lockfile at a path; None if there is none. One that cannot be read is an error, never "not found".

    With ``compat`` it is read as that dialect reads it, to which whatever it cannot take is "not found".
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
    """Write the lockfile in one step: a reader sees the old one or the new one."""
    write_atomically(path, serialize_lockfile(lockfile))
