"""What a lock entry starts: the package, the program in it, its arguments, and the variables it is given.

An entry whose client starts it through ``pinwarden run`` keeps the command that this stands for in our record, under
``launch``; of any other entry it is the command of its approved configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.clients.config import configured_server
from pinwarden.clients.launch.launch import Launch
from pinwarden.clients.launch.parse import parse_launch
from pinwarden.clients.launch.run_command import is_enforced_start
from pinwarden.clients.table import client_of
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import BUNDLE_TREE, EVIDENCE, PUBLISHED, PUBLISHER, Extension
from pinwarden.lock.locked_config import locked_config
from pinwarden.lock.record import extension_of
from pinwarden.lock.script_approvals import SCRIPTS
from pinwarden.system.target import StdioTarget

LAUNCH = "launch"
"""A member of our record: the command that ``pinwarden run`` stands for."""


class LockedLaunch(Record):
    """What is started for an entry."""

    runs: Launch
    command: tuple[str, ...] = field(repr=False)
    """The words as they were approved; placeholders are still in them."""
    variables: tuple[str, ...] = ()
    """Names of the variables that the server is given."""
    cwd: str | None = None


def locked_launch(entry: Entry) -> LockedLaunch:
    """What an entry starts; an error if it starts nothing, because it is an address."""
    extension = extension_of(entry)
    recorded = extension.others.get(LAUNCH) if extension else None
    if recorded is not None:
        return _recorded(entry, recorded)
    return _configured(entry, extension)


def _configured(entry: Entry, extension: Extension | None) -> LockedLaunch:
    """The command of the approved configuration itself."""
    configured = extension.others.get("configuredIn") if extension else None
    client = client_of(configured["client"] if isinstance(configured, dict) else entry.client)
    server = configured_server(entry.name, locked_config(entry.key, entry.document).entry, client)
    if not isinstance(server.target, StdioTarget):
        raise PinwardenError(
            "NOTHING_TO_RUN", f"{entry.name[:120]!a} is not a command: {server.problem or 'an address'}"
        )
    target = server.target
    return LockedLaunch(
        runs=parse_launch(target), command=target.command, variables=tuple(sorted(target.env)), cwd=target.cwd
    )


def launch_record(launch: LockedLaunch) -> dict[str, Any]:
    """What our record keeps of a command that ``pinwarden run`` stands for."""
    record: dict[str, Any] = {"command": list(launch.command), "variables": list(launch.variables)}
    return record if launch.cwd is None else {**record, "cwd": launch.cwd}


def _recorded(entry: Entry, record: Any) -> LockedLaunch:
    command, variables = (_texts(record, member) for member in ("command", "variables"))
    cwd = record.get("cwd") if isinstance(record, Mapping) else None
    if not command or variables is None or not isinstance(cwd, str | None):
        raise PinwardenError("LOCK_INVALID", f"the record of what {entry.name[:120]!a} starts cannot be read")
    target = StdioTarget(command=tuple(command), cwd=cwd)
    return LockedLaunch(runs=parse_launch(target), command=tuple(command), variables=tuple(variables), cwd=cwd)


def _texts(record: Any, member: str) -> Sequence[str] | None:
    value = record.get(member) if isinstance(record, Mapping) else None
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def same_release(one: Entry, other: Entry) -> bool:
    """Whether two entries take the same release of the same package from a registry."""
    try:
        first, second = (_release(locked_launch(entry).runs) for entry in (one, other))
    except PinwardenError:
        return False
    return first is not None and first == second


def is_enforced(entry: Entry) -> bool:
    """Whether ``pinwarden run`` stands for the command of an entry."""
    extension = extension_of(entry)
    return extension is not None and LAUNCH in extension.others


def started_in_words(entry: Entry) -> str:
    """What an entry starts or contacts, in one word: its package at its release, its program or its address."""
    try:
        runs = locked_launch(entry).runs
    except PinwardenError:
        return entry.version
    package = runs.via or runs
    return package.purl or package.identity


def still_enforced(before: Entry, entry: Entry) -> LockedLaunch | None:
    """What ``pinwarden run`` stands for in an entry whose configuration still is the one that says so.

    The variables are those of the new configuration: what it gives to the server, the server gets.
    """
    extension = extension_of(before)
    if extension is None or LAUNCH not in extension.others:
        return None
    try:
        approved, fresh = _configured(before, extension), _configured(entry, extension_of(entry))
    except PinwardenError:
        return None
    if approved.command != fresh.command and not is_enforced_start(fresh.command, entry.name):
        return None
    return replace(locked_launch(before), variables=fresh.variables)


def _release(runs: Launch) -> str | None:
    package = runs.via or runs
    return package.purl if package.pinned or package.kind == "oci" else None


def with_bytes_of(known: Extension, fresh: Extension, *, same: bool) -> Extension:
    """A record with the bytes that another one pins. ``same`` says that the configuration is the same, too."""
    kept = {EVIDENCE, PUBLISHED, PUBLISHER, SCRIPTS, BUNDLE_TREE, *((LAUNCH,) if same else ())}
    return replace(
        fresh,
        artifacts=known.artifacts,
        image=known.image,
        closure=known.closure,
        provenance=known.provenance,
        registry=known.registry,
        others={**{name: value for name, value in known.others.items() if name in kept}, **fresh.others},
    )
