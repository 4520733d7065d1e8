"""Prepare the start of a server: policy, then command, then sandbox. Every start goes through this module.

1. Read the policy. If it cannot be read or parsed, nothing is started.
2. Find the command: the verified bytes in the lock, or a configured or typed command.
3. Choose the sandbox: the sandbox of an accepted bundle, a rule in ``[[policy.sandbox]]``, or the user's option.

``pinwarden run`` and the HTTP gateway use ``prepare_start`` and ``start_server``. Commands that read a server's surface
use ``prepare_probe``. tests/test_structure.py checks this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.project.project import load_policies
from pinwarden.project.remote_access import authorize_probe
from pinwarden.project.server_target import find_probe_target
from pinwarden.system.target import PROJECT_FOLDER

if TYPE_CHECKING:
    import subprocess

    from pinwarden.clients.config import ConfigFile
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.policy import Policy
    from pinwarden.project.project import Project
    from pinwarden.project.run import ServerLaunch
    from pinwarden.surface.probe.probe import ProbeOptions, ProbeProgress
    from pinwarden.surface.surface import Surface
    from pinwarden.system.sandbox import Sandbox
    from pinwarden.system.target import StdioTarget, Target

_PIPE_BYTES = 1 << 20  # capacity requested from the kernel for the server's pipes
# Errors for a server without locked bytes: no package, bytes not locked, or bytes not in the store.
_NO_BYTES_CODES = ("NOTHING_TO_RUN", "BYTES_NOT_LOCKED", "ARTIFACT_MISSING")


class ServerCommand(Record):
    """A server's command line, with its complete environment. Only `prepare_start` makes one."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None = None


class PreparedProbe(Record):
    """A server to probe, and the options of the probe."""

    target: Target
    options: ProbeOptions
    is_from_bytes: bool = False
    """Whether the server is started from its verified bytes."""


def prepare_start(
    project: Project, name: str, find: Callable[[], ServerLaunch], *, sandbox: bool = False, confine: bool = True
) -> ServerCommand:
    """Prepare the start of a server. ``find`` returns the command to start, and is called after the policy was read.

    ``sandbox`` requires a sandbox even if no policy does. Without ``confine``, a bundle starts without the sandbox that
    it was accepted with.
    """
    policy = load_policies(project).own
    started = find()
    chosen = _choose_sandbox(project, policy, name, started, requested=sandbox)
    if chosen is not None and (confine or started.sandbox is None):
        from pinwarden.system.sandbox import build_sandbox_command

        words = tuple(build_sandbox_command(started.command, dict(started.environment), started.cwd, chosen))
    else:
        words = started.command
    return ServerCommand(words=words, environment=started.environment, cwd=started.cwd)


def start_server(command: ServerCommand, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """Start a server for a gateway. It inherits the gateway's stderr unless ``stderr`` is set."""
    import subprocess

    try:
        process = subprocess.Popen(  # noqa: S603  the user runs this command; there is no shell
            list(command.words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=dict(command.environment),
            cwd=command.cwd,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise PinwardenError("PROGRAM_UNKNOWN", f"{command.words[0][:200]} could not be started: {reason}") from err
    for stream in (process.stdin, process.stdout):
        with suppress(OSError, AttributeError, ImportError):
            import fcntl

            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[union-attr]
    return process


def prepare_probe(  # noqa: PLR0913 - what is probed, and how
    project: Project,
    name: str,
    target: Target,
    options: ProbeOptions,
    entry: Entry | None = None,
    *,
    anonymous: bool = False,
) -> PreparedProbe:
    """Prepare the probe of a server. With its lock entry, the server is started from the locked bytes.

    A remote server that the user connected gets the user's token, unless the probe is ``anonymous``. A command without
    ``options.allow_execute`` is returned unchanged, and the probe then refuses to start it.
    """
    from pinwarden.lock.locked_launch import starts_local_command
    from pinwarden.project.run import ServerLaunch
    from pinwarden.system.target import StdioTarget

    policy = load_policies(project).own
    if not isinstance(target, StdioTarget) and not anonymous:
        target = authorize_probe(project, name, target)
    if not isinstance(target, StdioTarget) or not options.allow_execute:
        return PreparedProbe(target=target, options=options)
    started = None if entry is None else _prepare_locked_command(project, entry, target)
    is_from_bytes = started is not None and entry is not None and not starts_local_command(entry)
    target = _fill_in_project_folder(project, target)
    if started is None:
        started = ServerLaunch(command=target.command, environment={}, cwd=target.cwd)
    else:
        target = replace(target, command=started.command, cwd=started.cwd or target.cwd)
    if options.sandbox is not None:  # the sandbox of the options is stricter than any policy
        chosen: Sandbox | None = replace(options.sandbox, readable=(*options.sandbox.readable, *started.readable))
    else:
        chosen = _choose_sandbox(project, policy, name, started, requested=False)
    return PreparedProbe(target=target, options=replace(options, sandbox=chosen), is_from_bytes=is_from_bytes)


def prepare_locked_probe(
    project: Project, entry: Entry, files: Sequence[ConfigFile], options: ProbeOptions
) -> PreparedProbe:
    """Prepare the probe of a locked server: the approved command, with the values in the client's file."""
    return prepare_probe(project, entry.name, find_probe_target(entry, files), options, entry)


def prepare_run_probe(project: Project, target: Target, options: ProbeOptions) -> PreparedProbe:
    """Prepare the probe of a ``pinwarden run`` command. No sandbox is added: ``pinwarden run`` chooses it."""
    load_policies(project)
    return PreparedProbe(target=target, options=options)


def probe_server(prepared: PreparedProbe) -> Surface:
    """Start or contact the server and read its surface."""
    from pinwarden.surface.probe.probe import probe

    return probe(prepared.target, prepared.options)


def probe_prepared(
    prepared: Sequence[PreparedProbe], on_progress: Callable[[ProbeProgress], None] | None = None
) -> list[Surface | PinwardenError]:
    """Probe many servers at once. Returns a surface or an error for each, in the same order."""
    from pinwarden.surface.probe.probe import probe_all

    targets = [probe.target for probe in prepared]
    return probe_all(targets, [probe.options for probe in prepared], on_progress=on_progress)


def _choose_sandbox(
    project: Project, policy: Policy | None, name: str, started: ServerLaunch, *, requested: bool
) -> Sandbox | None:
    if started.sandbox is not None:
        return started.sandbox
    rule = None if policy is None else policy.find_sandbox_rule(name)
    if rule is None and not requested:
        return None
    from pinwarden.project.writable_folders import check_writable_folders
    from pinwarden.system.sandbox import Sandbox

    if rule is None:
        return Sandbox(readable=started.readable)
    writable = check_writable_folders(project, tuple(_resolve_folder(project, path) for path in rule.write))
    return Sandbox(
        readable=(*started.readable, *(_resolve_folder(project, path) for path in rule.read)),
        writable=writable.folders,
        read_only=writable.protected,
        forbidden_names=writable.forbidden,
        allow_network=rule.network,
    )


def _resolve_folder(project: Project, path: str) -> str:
    named = project.home / path[2:] if path.startswith("~/") else project.root / path
    return str(named.resolve())


def _fill_in_project_folder(project: Project, target: StdioTarget) -> StdioTarget:
    """Replace the placeholder for the project's folder, which is not a variable of the environment."""
    if project.scope == "user":
        return target
    folder = str(project.root.resolve())
    return replace(
        target,
        command=tuple(word.replace(PROJECT_FOLDER, folder) for word in target.command),
        env={name: value.replace(PROJECT_FOLDER, folder) for name, value in target.env.items()},
        cwd=None if target.cwd is None else target.cwd.replace(PROJECT_FOLDER, folder),
    )


def _prepare_locked_command(project: Project, entry: Entry, target: StdioTarget) -> ServerLaunch | None:
    """Prepare the start of the locked bytes. Returns None if the client starts another command or no bytes are locked.

    A probe starts the locked bytes because the registry may serve different bytes today. It bypasses the gateway,
    which would block the changes that the probe is meant to show.
    """
    from pinwarden.lock import lock_store
    from pinwarden.project.run import prepare_locked_launch

    through_run = _is_started_through_run(entry, target)
    if not through_run and not _is_locked_command(entry, target):
        return None
    try:
        lock_store.find_verified(project.lock)  # raises if the lock was tampered with
        return prepare_locked_launch(project, entry, arguments_given=(), notify=lambda _: None)
    except PinwardenError as err:
        if err.code in _NO_BYTES_CODES and not through_run:
            return None
        raise


def _is_started_through_run(entry: Entry, target: StdioTarget) -> bool:
    """Whether the client starts the entry with ``pinwarden run NAME``."""
    from pinwarden.lock.extension import read_extension
    from pinwarden.lock.locked_launch import is_approved_run_command

    extension = read_extension(entry)
    ours = extension is not None and (extension.launch is not None or extension.bundle is not None)
    return ours and is_approved_run_command(entry, target)


def _is_locked_command(entry: Entry, target: StdioTarget) -> bool:
    from pinwarden.lock.extension import read_extension
    from pinwarden.lock.locked_launch import read_locked_launch

    extension = read_extension(entry)
    if extension is None or not extension.has_pinned_bytes:
        return False
    try:
        return read_locked_launch(entry).command == target.command
    except PinwardenError:
        return False
