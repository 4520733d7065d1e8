"""What a lock entry starts: the package, the program in it, its arguments, and the variables it is given.

An entry whose client starts it through ``pinwarden run`` keeps the command that this stands for in our record, under
``launch``; of any other entry it is the command of its approved configuration.
"""

from __future__ import annotations

from pinwarden.clients.command_line import is_enforced_start, parse_launch
from pinwarden.clients.config import configured_server
from pinwarden.clients.launchers import Launch
from pinwarden.clients.table import client_of
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import Extension, LaunchCommand, extension_of
from pinwarden.lock.locked_config import locked_config
from pinwarden.system.target import StdioTarget

_ABOUT_THE_BYTES = ("evidence", "publishedAt", "publisher", "installScripts", "bundleTree", "launch")
"""Members of the lock extension that stay with the bytes."""


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
    if extension is not None and extension.launch is not None:
        launch = extension.launch
        runs = parse_launch(StdioTarget(command=launch.command, cwd=launch.cwd))
        return LockedLaunch(runs=runs, command=launch.command, variables=launch.variables, cwd=launch.cwd)
    return _configured(entry, extension)


def _configured(entry: Entry, extension: Extension | None) -> LockedLaunch:
    """The command of the approved configuration itself."""
    configured = extension.configured_in if extension is not None else None
    client = client_of(configured.client if configured is not None else entry.client)
    server = configured_server(entry.name, locked_config(entry.key, entry.document).entry, client)
    if not isinstance(server.target, StdioTarget):
        raise PinwardenError(
            "NOTHING_TO_RUN", f"{entry.name[:120]!a} is not a command: {server.problem or 'an address'}"
        )
    target = server.target
    return LockedLaunch(
        runs=parse_launch(target), command=target.command, variables=tuple(sorted(target.env)), cwd=target.cwd
    )


def launch_command(launch: LockedLaunch) -> LaunchCommand:
    """What the lock records of a command that ``pinwarden run`` starts."""
    return LaunchCommand(command=launch.command, variables=launch.variables, cwd=launch.cwd)


def same_release(entry_a: Entry, other: Entry) -> bool:
    """Whether two entries take the same release of the same package from a registry."""
    try:
        first, second = (_release(locked_launch(entry).runs) for entry in (entry_a, other))
    except PinwardenError:
        return False
    return first is not None and first == second


def is_enforced(entry: Entry) -> bool:
    """Whether ``pinwarden run`` stands for the command of an entry."""
    extension = extension_of(entry)
    return extension is not None and extension.launch is not None


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
    if extension is None or extension.launch is None:
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
    return replace(
        fresh,
        artifacts=known.artifacts,
        image=known.image,
        closure=known.closure,
        provenance=known.provenance,
        registry=known.registry,
        evidence=fresh.evidence or known.evidence,
        published_at=fresh.published_at or known.published_at,
        publisher=fresh.publisher or known.publisher,
        install_scripts=fresh.install_scripts or known.install_scripts,
        bundle_tree=fresh.bundle_tree or known.bundle_tree,
        launch=fresh.launch or (known.launch if same else None),
        member_order=tuple(name for name in known.member_order if name in _ABOUT_THE_BYTES),
    )
