"""When each locked server was last probed or verified, and what the last probe saw changed: a file in the state folder.

The record is only information. A failure to write it never stops a command, and a damaged file counts as empty.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import parse_timestamp
from pinwarden.lock.extension import read_extension
from pinwarden.system.state_folder import find_state_folder, prepare_state_folder

if TYPE_CHECKING:
    from pinwarden.core.report import Row
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project

FILE_NAME = "last-checked.json"
FORMAT = "pinwarden-last-checked/1"
MAX_SERVERS = 2000
"""The maximum number of servers to remember. The one that was checked longest ago is dropped first."""
_MAX_BYTES = 2 * 1024 * 1024
_MAX_KEY = 500  # characters of a path or name; longer ones are not recorded
_LOCK_SECONDS = 1.0

_MAX_ITEMS = 20  # changed items to record for one server
_MAX_ITEM = 200  # characters of the name of an item

_Times = dict[str, dict[str, str]]
_Drift = dict[str, dict[str, dict[str, Any]]]
"""For each path of a lock and key of an entry: the digest of the approved surface, and the items that differed."""


class LastChecked(Record):
    """The times of all locks on this machine."""

    times: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each path of a lock, the times of its servers, by server name or by key of the lock entry."""
    drift: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """For each path of a lock and key of an entry, the approved surface and the items that differed from it."""
    problem: str | None = None
    """Why the file could not be read; None if it could, or if there is none."""

    def find(self, lock: Path, entries: Iterable[Entry]) -> str | None:
        """Return when one of these entries was last checked; None if that is not known."""
        known = self.times.get(_build_lock_key(lock), {})
        times = (known.get(key, "") for entry in entries for key in (entry.key, entry.name))
        return max(times, default="") or None

    def find_drift(self, lock: Path, entries: Iterable[Entry]) -> tuple[str, ...]:
        """Return the items that the last probe of these entries saw changed, unless another surface was approved."""
        known = self.drift.get(_build_lock_key(lock), {})
        rows = ((known.get(entry.key, {}), _get_surface_digest(entry)) for entry in entries)
        return tuple(
            dict.fromkeys(item for row, digest in rows if row.get("surface") == digest for item in row["items"])
        )


def read_last_checked(project: Project) -> LastChecked:
    """Read the times. Never raises; a file that cannot be used is described in ``problem``."""
    path = find_state_folder(project.variables, project.home) / FILE_NAME
    try:
        times, drift = _read(path)
        return LastChecked(times=times, drift=drift)
    except PinwardenError as err:
        return LastChecked(problem=f"{path} cannot be used, so it is unknown when servers were checked: {err.message}")


def record_entries_checked(project: Project, entries: Iterable[Entry]) -> None:
    """Record that these entries of the project's lock were probed or verified now. Never raises."""
    folder = find_state_folder(project.variables, project.home)
    record_checked(folder, project.lock, tuple(entry.key for entry in entries))


def record_entries_compared(project: Project, compared: Iterable[tuple[Entry, Iterable[Row]]]) -> None:
    """Record which items of these entries a probe saw changed since they were approved. Never raises.

    The record of an entry without changes is removed. Changes with the severity ``info`` do not count.
    """
    drift: dict[str, dict[str, Any] | None] = {}
    for entry, rows in compared:
        items = dict.fromkeys(_describe_item(row) for row in rows if row.severity != "info")
        digest = _get_surface_digest(entry)
        drift[entry.key] = {"surface": digest, "items": list(items)[:_MAX_ITEMS]} if items and digest else None
    record_checked(find_state_folder(project.variables, project.home), project.lock, tuple(drift), drift)


def _describe_item(row: Row) -> str:
    from pinwarden.system.masking import mask_item_key

    return f"{row.entity} {mask_item_key(row.entity, row.name)}".strip()[:_MAX_ITEM]


def _get_surface_digest(entry: Entry) -> str:
    extension = read_extension(entry)
    return "" if extension is None or extension.surface is None else str(extension.surface.digest)


def record_checked(
    folder: Path, lock: Path, keys: Iterable[str], drift: Mapping[str, dict[str, Any] | None] | None = None
) -> None:
    """Record that servers of a lock were checked now, by name or by key of the lock entry. Never raises.

    ``drift`` has what changed, by key; None removes what is recorded for the key.
    """
    from pinwarden.system.clock import wall_clock

    place = _build_lock_key(lock)
    names = [key for key in keys if len(key) <= _MAX_KEY]
    if not names or len(place) > _MAX_KEY:
        return
    with suppress(PinwardenError, OSError, ValueError):
        prepare_state_folder(folder)
        path = folder / FILE_NAME
        with _exclude_other_writers(folder):
            try:
                times, known = _read(path)
            except PinwardenError:
                times, known = {}, {}
            times.setdefault(place, {}).update(dict.fromkeys(names, wall_clock()))
            rows = {**known.get(place, {}), **(drift or {})}
            known[place] = {key: row for key, row in rows.items() if row is not None}
            _write(path, _forget_oldest(times), known)


def _build_lock_key(lock: Path) -> str:
    return str(lock.resolve())


def _read(path: Path) -> tuple[_Times, _Drift]:
    from pinwarden.core.strict_json import parse_json
    from pinwarden.system.files import read_file

    if not path.exists():
        return {}, {}
    document = parse_json(read_file(path, _MAX_BYTES))
    locks = document.get("locks") if isinstance(document, dict) and document.get("format") == FORMAT else None
    if not isinstance(locks, dict):
        raise PinwardenError("FILE_UNREADABLE", f"it is not a {FORMAT} document")
    drift = document.get("drift")
    return (
        {place: times for place, rows in locks.items() if (times := _parse_times(rows))},
        {place: _parse_drift(rows) for place, rows in drift.items()} if isinstance(drift, dict) else {},
    )


def _parse_times(rows: Any) -> dict[str, str]:
    if not isinstance(rows, dict):
        return {}
    return {name: at for name, at in rows.items() if isinstance(at, str) and parse_timestamp(at) is not None}


def _parse_drift(rows: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(rows, dict):
        return {}
    return {
        key: {"surface": row.get("surface"), "items": [item for item in row["items"] if isinstance(item, str)]}
        for key, row in rows.items()
        if isinstance(row, dict) and isinstance(row.get("items"), list)
    }


def _forget_oldest(times: _Times) -> _Times:
    listed = [(at, place, name) for place, rows in times.items() for name, at in rows.items()]
    for _, place, name in sorted(listed)[: max(0, len(listed) - MAX_SERVERS)]:
        del times[place][name]
    return {place: rows for place, rows in times.items() if rows}


def _write(path: Path, times: _Times, drift: _Drift) -> None:
    from pinwarden.core.strict_json import encode_json_file
    from pinwarden.system.files import write_atomically

    kept = {
        place: rows
        for place, known in drift.items()
        if (rows := {key: row for key, row in known.items() if key in times.get(place, {})})
    }
    data = encode_json_file({"format": FORMAT, "locks": times, **({"drift": kept} if kept else {})})
    if len(data) <= _MAX_BYTES:
        write_atomically(path, data)


@contextmanager
def _exclude_other_writers(folder: Path) -> Iterator[None]:
    """Wait for other processes that write the file, so that clients that start many servers lose no times."""
    from pinwarden.system.files import try_lock_file

    descriptor = os.open(folder / f"{FILE_NAME}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not try_lock_file(descriptor):
            if time.monotonic() > deadline:
                raise PinwardenError("LOCK_BUSY", f"{folder / FILE_NAME} is in use")
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
