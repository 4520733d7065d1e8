"""The servers that ``pinwarden scan`` looks at without a target: every configured server, each once.

Nothing is written. A server is started or contacted only if the caller passes it to ``scan_targets``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.table import CLIENTS
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock import lock_store
from pinwarden.lock.entry import is_for_client
from pinwarden.project.configured_servers import ServerIdentity, identify_target
from pinwarden.project.parallel import RunningServer, ServerProgress
from pinwarden.project.server_start import PreparedProbe, prepare_probe, probe_prepared
from pinwarden.project.server_target import with_store_variables
from pinwarden.project.surface_reports import UnscannedServer, scan_surfaces
from pinwarden.system.masking import mask_name, mask_url, mask_words
from pinwarden.system.target import HttpTarget, Target

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.core.report import Report
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project
    from pinwarden.surface.probe.probe import ProbeOptions, ProbeProgress
    from pinwarden.surface.surface import Surface

_MAX_SHOWN = 120


class ScanTarget(Record):
    """One server, wherever it is configured."""

    name: str
    """Unique among the targets, without secrets."""
    configured_name: str
    """The name in the client's file, which policy rules use."""
    target: Target
    project: Project
    clients: tuple[str, ...] = ()
    """The titles of the clients that have it."""
    entry: Entry | None = None
    """Its lock entry: a locked server is started from its verified bytes."""

    @property
    def is_remote(self) -> bool:
        """Whether the server is contacted at an address rather than started."""
        return isinstance(self.target, HttpTarget)

    @property
    def description(self) -> str:
        """The command or address, without secrets."""
        if isinstance(self.target, HttpTarget):
            return mask_url(self.target.url)[:_MAX_SHOWN]
        return " ".join(mask_words(list(self.target.command)))[:_MAX_SHOWN]


def find_scan_targets(projects: Iterable[Project]) -> tuple[list[ScanTarget], list[UnscannedServer]]:
    """Find every configured server of these projects and scopes, and those that cannot be scanned."""
    found: dict[tuple[str, ServerIdentity], list[tuple[Project, ConfiguredServer]]] = {}
    unscanned: list[UnscannedServer] = []
    for project in projects:
        for file in project.find_configs():
            if file.fault is not None:
                path = project.display_path(file.path)
                unscanned.append(UnscannedServer(name=path, reason=f"could not be read: {file.problem}", failed=True))
            for server in file.servers:
                if server.target is None:
                    reason = f"its entry cannot be used: {server.problem}"
                    unscanned.append(UnscannedServer(name=mask_name(server.name), reason=reason, failed=True))
                elif server.disabled:
                    reason = "it is disabled"
                    unscanned.append(UnscannedServer(name=mask_name(server.name), reason=reason, failed=False))
                else:
                    key = (server.name, identify_target(server.target))
                    found.setdefault(key, []).append((project, server))
    return list(_build_targets(list(found.values()))), unscanned


def build_named_targets(targets: Iterable[tuple[str, Target]], project: Project) -> list[ScanTarget]:
    """Return the servers of one configuration file that the user named."""
    return [
        ScanTarget(name=mask_name(name), configured_name=name, target=target, project=project)
        for name, target in targets
    ]


def scan_targets(
    targets: Sequence[ScanTarget],
    options: ProbeOptions,
    unscanned: Sequence[UnscannedServer] = (),
    on_progress: Callable[[ServerProgress], None] | None = None,
) -> Report:
    """Start or contact these servers, all at once, and scan what they send. Nothing is written."""
    prepared: dict[str, PreparedProbe] = {}
    missing = list(unscanned)
    for target in targets:
        try:
            launch = with_store_variables(target.target)
            prepared[target.name] = prepare_probe(target.project, target.configured_name, launch, options, target.entry)
        except PinwardenError as err:
            missing.append(UnscannedServer(name=target.name, reason=err.message, failed=True))
    surfaces: dict[str, Surface] = {}
    outcomes = probe_prepared(list(prepared.values()), on_progress=_build_probe_observer(list(prepared), on_progress))
    for name, outcome in zip(prepared, outcomes, strict=True):
        if isinstance(outcome, PinwardenError):
            missing.append(UnscannedServer(name=name, reason=f"could not be probed: {outcome.message}", failed=True))
        else:
            surfaces[name] = outcome
    return scan_surfaces(surfaces, missing)


def _build_targets(servers: Sequence[Sequence[tuple[Project, ConfiguredServer]]]) -> Iterator[ScanTarget]:
    """Return one target per server. Different servers of the same name get the names of their clients as well."""
    names = [members[0][1].name for members in servers]
    taken: set[str] = set()
    for members in servers:
        project, server = members[0]
        clients = tuple(dict.fromkeys(CLIENTS[member.client].title for _, member in members))
        name = mask_name(server.name)
        label = f"{name} ({', '.join(clients)})" if names.count(server.name) > 1 else name
        number = 2
        unique = label
        while unique in taken:
            unique, number = f"{label} #{number}", number + 1
        taken.add(unique)
        if server.target is not None:
            yield ScanTarget(
                name=unique,
                configured_name=server.name,
                target=server.target,
                project=project,
                clients=clients,
                entry=_find_entry(project, server),
            )


def _find_entry(project: Project, server: ConfiguredServer) -> Entry | None:
    try:
        lock = lock_store.read(project.lock)
    except PinwardenError:  # ci reports it; a scan needs no lock
        return None
    entries = lock.entries if lock is not None else ()
    return next((entry for entry in entries if entry.name == server.name and is_for_client(entry, server.client)), None)


def _build_probe_observer(
    names: list[str], on_progress: Callable[[ServerProgress], None] | None
) -> Callable[[ProbeProgress], None] | None:
    """Return a function that reports the servers that have not responded yet; None without ``on_progress``."""
    if on_progress is None:
        return None
    started = time.monotonic()
    running = {index: RunningServer(name=name, started=started) for index, name in enumerate(names)}
    on_progress(ServerProgress(running=tuple(running.values()), done=0, total=len(names)))

    def follow(step: ProbeProgress) -> None:
        server = running.pop(step.index)
        on_progress(
            ServerProgress(
                running=tuple(running.values()),
                done=step.done,
                total=step.total,
                finished=(server.name, time.monotonic() - started),
            )
        )

    return follow
