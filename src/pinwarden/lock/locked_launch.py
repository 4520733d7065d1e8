"""The command that a lock entry starts: package, program, arguments and environment variables.

If the client starts the server through ``pinwarden run``, the server's own command is in the extension's ``launch``. In
all other entries, the command is in the approved configuration.
"""

from __future__ import annotations

from pinwarden.clients.command_line import is_enforced_start, parse_launch
from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.launchers import Launch
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import LaunchCommand, LockExtension, read_extension
from pinwarden.lock.locked_config import read_locked_config
from pinwarden.system.target import StdioTarget


class LockedLaunch(Record):
    """The command of a lock entry."""

    launch: Launch
    command: tuple[str, ...] = field(repr=False)
    """The approved command line, with placeholders instead of values."""
    variables: tuple[str, ...] = ()
    """Names of the environment variables that the server gets."""
    cwd: str | None = None


def read_locked_launch(entry: Entry) -> LockedLaunch:
    """The command of an entry. Raises NOTHING_TO_RUN if the entry is a URL."""
    extension = read_extension(entry)
    if extension is not None and extension.launch is not None:
        launch = extension.launch
        runs = parse_launch(StdioTarget(command=launch.command, cwd=launch.cwd))
        return LockedLaunch(launch=runs, command=launch.command, variables=launch.variables, cwd=launch.cwd)
    return _read_configured_launch(entry, extension)


def _read_configured_launch(entry: Entry, extension: LockExtension | None) -> LockedLaunch:
    """The command of the approved configuration itself."""
    configured = extension.configured_in if extension is not None else None
    client = get_client(configured.client if configured is not None else entry.client)
    server = parse_configured_server(entry.name, read_locked_config(entry.key, entry.document).entry, client)
    if not isinstance(server.target, StdioTarget):
        raise PinwardenError(
            "NOTHING_TO_RUN", f"{entry.name[:120]!a} is not a command: {server.problem or 'it is a URL'}"
        )
    target = server.target
    return LockedLaunch(
        launch=parse_launch(target), command=target.command, variables=tuple(sorted(target.env)), cwd=target.cwd
    )


def to_launch_command(launch: LockedLaunch) -> LaunchCommand:
    """The command as the extension records it."""
    return LaunchCommand(command=launch.command, variables=launch.variables, cwd=launch.cwd)


def is_same_release(left: Entry, right: Entry) -> bool:
    """Whether two entries start the same release of the same package."""
    try:
        first, second = (_package_url_if_exact(read_locked_launch(entry).launch) for entry in (left, right))
    except PinwardenError:
        return False
    return first is not None and first == second


def is_enforced(entry: Entry) -> bool:
    """Whether the client starts this entry through ``pinwarden run``."""
    extension = read_extension(entry)
    return extension is not None and extension.launch is not None


def describe_launch(entry: Entry) -> str:
    """A label for the launch of an entry: its package URL, program or address."""
    try:
        runs = read_locked_launch(entry).launch
    except PinwardenError:
        return entry.version
    package = runs.via or runs
    return package.purl or package.identity


def find_enforced_launch(before: Entry, entry: Entry) -> LockedLaunch | None:
    """The approved command behind ``pinwarden run``, if the new configuration still starts the entry that way.

    The variables are those of the new configuration.
    """
    extension = read_extension(before)
    if extension is None or extension.launch is None:
        return None
    try:
        approved, fresh = (
            _read_configured_launch(before, extension),
            _read_configured_launch(entry, read_extension(entry)),
        )
    except PinwardenError:
        return None
    if approved.command != fresh.command and not is_enforced_start(fresh.command, entry.name):
        return None
    return replace(read_locked_launch(before), variables=fresh.variables)


def _package_url_if_exact(runs: Launch) -> str | None:
    package = runs.via or runs
    return package.purl if package.pinned or package.kind == "oci" else None
