"""Asking a locked server: from its verified bytes where there are some, and not through the gateway.

What a registry gives out today may be something else than was proved, and a gateway holds back what nobody approved,
which is just what whoever asks wants to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.documents.launch.own_launch import is_enforced_start
from pinwarden.documents.lock.bundle_pin import BUNDLE
from pinwarden.documents.lock.locked_launch import LAUNCH, locked_launch
from pinwarden.documents.lock.record import extension_of
from pinwarden.documents.target import StdioTarget, Target
from pinwarden.flows.live_targets import live_target

if TYPE_CHECKING:
    from pinwarden.adapters.probe.probe import ProbeOptions
    from pinwarden.documents.clients.config import ConfigFile
    from pinwarden.documents.lock.entry import Entry
    from pinwarden.flows.project import Project

# Nothing to be started from: no package, or one whose bytes are not locked or were not brought here.
_NO_BYTES = ("NOTHING_TO_RUN", "BYTES_NOT_LOCKED", "ARTIFACT_MISSING")


class Asked(Record):
    """What is started or contacted, and the folders that a sandbox has to show to it."""

    target: Target
    folders: tuple[str, ...] = ()


def locked_start(project: Project, entry: Entry, files: Sequence[ConfigFile], options: ProbeOptions) -> Asked:
    """What to start or contact for a locked entry."""
    return verified_start(project, entry, live_target(entry, files), options)


def verified_start(project: Project, entry: Entry | None, target: Target, options: ProbeOptions) -> Asked:
    """A configured target, started from the bytes that are locked for it.

    Without consent it stays as it is, for the error that names it: nothing is built before.
    """
    if entry is None or not isinstance(target, StdioTarget) or not options.allow_execute:
        return Asked(target=target)
    through_us = _stands_for_the_lock(entry, target)
    if not through_us and not _is_locked_command(entry, target):
        return Asked(target=target)
    try:
        return _prepared(project, entry, target, options)
    except PinwardenError as err:
        if err.code in _NO_BYTES and not through_us:
            return Asked(target=target)
        raise


def showing(options: ProbeOptions, asked: Iterable[Asked]) -> ProbeOptions:
    """The options with all folders that the servers are started from shown to the sandbox, if there is one."""
    folders = tuple(dict.fromkeys(folder for each in asked for folder in each.folders))
    if options.sandbox is None or not folders:
        return options
    return replace(options, sandbox=replace(options.sandbox, readable=(*options.sandbox.readable, *folders)))


def _prepared(project: Project, entry: Entry, target: StdioTarget, options: ProbeOptions) -> Asked:
    from pinwarden.adapters import lock_store
    from pinwarden.documents.lock.verification import refuse_if_tampered, verify
    from pinwarden.flows.artifacts.running import prepare, sandbox_for

    lock = lock_store.read(project.lock)
    if lock is not None:
        refuse_if_tampered(verify(lock))
    started = prepare(project, entry, given=(), say=lambda _: None)
    command, cwd = started.command, started.cwd or target.cwd
    sandbox = sandbox_for(project, entry.name, started, wanted=False) if options.sandbox is None else None
    if sandbox is not None:
        from pinwarden.adapters.sandbox import sandboxed

        command = tuple(sandboxed(command, dict(started.environment), cwd, sandbox))
    return Asked(target=replace(target, command=command, cwd=cwd), folders=started.folders)


def _stands_for_the_lock(entry: Entry, target: StdioTarget) -> bool:
    """Whether the client starts the entry through us."""
    extension = extension_of(entry)
    ours = extension is not None and (LAUNCH in extension.others or BUNDLE in extension.others)
    return ours and is_enforced_start(target.command, entry.name)


def _is_locked_command(entry: Entry, target: StdioTarget) -> bool:
    extension = extension_of(entry)
    if extension is None or not extension.has_bytes:
        return False
    try:
        return locked_launch(entry).command == target.command
    except PinwardenError:
        return False
