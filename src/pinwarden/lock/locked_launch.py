"""The command or address that a lock entry starts or contacts.

If the client starts the server through ``pinwarden run``, the server's own command or address is in the extension's
``launch``. In all other entries, it is in the approved configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.clients.command_line import PROGRAM, is_enforced_start, parse_launch
from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.launchers import Launch, build_url_launch
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import LaunchCommand, LockExtension, RemoteLaunch, read_extension
from pinwarden.lock.locked_config import read_config_origin, read_locked_config
from pinwarden.system.target import HttpTarget, StdioTarget, Target, Transport, is_absolute, program_name


class LockedLaunch(Record):
    """The command of a lock entry."""

    parsed: Launch
    command: tuple[str, ...] = field(repr=False)
    """The approved command line, with placeholders instead of values."""
    variables: tuple[str, ...] = ()
    """Names of the environment variables that the server gets."""
    cwd: str | None = None


def read_locked_launch(entry: Entry) -> LockedLaunch:
    """Return the command of an entry. Raises NOTHING_TO_RUN if the entry is a URL."""
    extension = read_extension(entry)
    if extension is not None and extension.launch is not None:
        launch = extension.launch
        if isinstance(launch, RemoteLaunch):
            raise PinwardenError("NOTHING_TO_RUN", f"{entry.name[:120]!a} is not a command: it is a URL")
        runs = parse_launch(StdioTarget(command=launch.command, cwd=launch.cwd))
        return LockedLaunch(parsed=runs, command=launch.command, variables=launch.variables, cwd=launch.cwd)
    return _read_configured_launch(entry, extension)


def _read_configured_launch(entry: Entry, extension: LockExtension | None) -> LockedLaunch:
    """Return the command of the approved configuration itself."""
    configured = extension.configured_in if extension is not None else None
    client = get_client(configured.client if configured is not None else entry.client)
    server = parse_configured_server(entry.name, read_locked_config(entry.key, entry.document).approved, client)
    if not isinstance(server.target, StdioTarget):
        raise PinwardenError(
            "NOTHING_TO_RUN", f"{entry.name[:120]!a} is not a command: {server.problem or 'it is a URL'}"
        )
    target = server.target
    return LockedLaunch(
        parsed=parse_launch(target), command=target.command, variables=tuple(sorted(target.env)), cwd=target.cwd
    )


def to_launch_command(launch: LockedLaunch) -> LaunchCommand:
    """Return the command as the extension records it."""
    return LaunchCommand(command=launch.command, variables=launch.variables, cwd=launch.cwd)


def find_wrappers(entry: Entry) -> tuple[str, ...]:
    """Return the programs that start the package of an entry, such as ``env`` or ``op``; empty if there is none."""
    extension = read_extension(entry)
    if is_remote(entry) or (extension is not None and extension.bundle is not None):
        return ()
    try:
        return read_locked_launch(entry).parsed.wrappers
    except PinwardenError:
        return ()


def starts_local_command(entry: Entry) -> bool:
    """Whether an entry starts a command without bytes to verify, such as a script or a program of this machine.

    An entry that records a package but starts something else is inconsistent, and is not such an entry.
    """
    extension = read_extension(entry)
    if is_remote(entry) or (extension is not None and extension.bundle is not None):
        return False
    try:
        launch = read_locked_launch(entry).parsed
    except PinwardenError:
        return False
    return launch.is_local_command and entry.selected_target.get("registryType") == (launch.via or launch).kind


def is_remote(entry: Entry) -> bool:
    """Whether the server of an entry is a remote address."""
    return entry.selected_target.get("kind") == "remote"


def find_remote_launch(entry: Entry) -> RemoteLaunch | None:
    """Return the address of an entry whose client starts it through ``pinwarden run``; None for all other entries."""
    extension = read_extension(entry)
    launch = extension.launch if extension is not None else None
    return launch if isinstance(launch, RemoteLaunch) else None


def with_locked_launch(target: StdioTarget, entry: Entry) -> Target:
    """Return the target that ``pinwarden run`` starts or contacts, with the variables of the client's own entry."""
    remote = find_remote_launch(entry)
    if remote is not None:
        return build_remote_target(remote, target.env)
    launch = read_locked_launch(entry)
    return replace(target, command=launch.command, cwd=launch.cwd)


def build_remote_target(launch: RemoteLaunch, variables: Mapping[str, str]) -> HttpTarget:
    """Return the address with the headers whose values are in these variables. A missing value stays a reference."""
    url = variables.get(launch.url_variable or "", launch.url)
    if f"<{launch.url_variable}>" in url:  # a lock has this instead of a secret, perhaps after the origin of the URL
        url = launch.url
    headers = {
        name: variables.get(variable, f"${{{variable}}}").replace(f"<{variable}>", f"<{name}>")
        for name, variable in launch.headers.items()
    }
    return HttpTarget(url=url, headers=headers, transport=_as_transport(launch.transport))


def find_approved_program(entry: Entry) -> str:
    """Return the program of the approved ``pinwarden run`` command: a path if the lock has one, or else the plain name.

    Only the lock of a user may have a path: a file in a repository must not decide which program counts as Pinwarden.
    """
    where = read_config_origin(entry)
    if where is None or where.scope == "project":
        return PROGRAM
    try:
        server = parse_configured_server(
            entry.name, read_locked_config(entry.key, entry.document).approved, get_client(where.client)
        )
    except PinwardenError:
        return PROGRAM
    program = server.target.command[0] if isinstance(server.target, StdioTarget) else ""
    return program if is_absolute(program) and program_name(program) == PROGRAM else PROGRAM


def is_approved_run_command(entry: Entry, target: Target | None) -> bool:
    """Whether a target is the ``pinwarden run`` command that was approved for this entry."""
    return isinstance(target, StdioTarget) and is_enforced_start(
        target.command, entry.name, find_approved_program(entry)
    )


def _as_transport(text: str) -> Transport:
    return "sse" if text == "sse" else "streamable-http" if text == "streamable-http" else "auto"


def is_same_release(left: Entry, right: Entry) -> bool:
    """Whether two entries start the same release of the same package."""
    try:
        first, second = (_get_exact_package_url(read_locked_launch(entry).parsed) for entry in (left, right))
    except PinwardenError:
        return False
    return first is not None and first == second


def describe_launch(entry: Entry) -> str:
    """Return a label for the launch of an entry: its package URL, program or address."""
    remote = find_remote_launch(entry)
    if remote is not None:
        return build_url_launch(remote.url, "http").identity
    try:
        runs = read_locked_launch(entry).parsed
    except PinwardenError:
        return entry.version
    package = runs.via or runs
    return package.purl or package.identity


def find_enforced_launch(before: Entry, entry: Entry) -> LaunchCommand | RemoteLaunch | None:
    """Return the approved launch behind ``pinwarden run``, if the new configuration still starts the entry that way.

    The variables of a command are those of the new configuration.
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
    if approved.command != fresh.command and not is_enforced_start(
        fresh.command, entry.name, find_approved_program(before)
    ):
        return None
    if isinstance(extension.launch, RemoteLaunch):
        return extension.launch
    return replace(extension.launch, variables=fresh.variables)


def _get_exact_package_url(runs: Launch) -> str | None:
    package = runs.via or runs
    return package.purl if package.pinned or package.kind == "oci" else None
