"""Show how clients' files would look once their servers are pinned and enforced, before anything is locked or verified.

``setup`` shows these edits with its plan. The step that makes them compares its own edits with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import ConfiguredServer, parse_configured_server
from pinwarden.clients.enforceable import (
    find_enforcement_obstacle,
    list_server_arguments,
    read_remote_entry,
    starts_through_pinwarden,
)
from pinwarden.clients.entry_edit import replace_command, to_command_entry
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.lock.entry import to_toolpin_scope
from pinwarden.project.client_edits import diff_edits, list_entry_edits
from pinwarden.project.enforced_entry import build_entry_command
from pinwarden.project.pin import list_file_edits
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import HttpTarget, StdioTarget

if TYPE_CHECKING:
    from pinwarden.project.enforce import EnforcementPlan
    from pinwarden.project.pin import PinPlan
    from pinwarden.project.project import Project

Place = tuple[str, str]
"""Where an entry is: the path of the client's file, and the pointer to the entry in it."""


class EnforcementPreview(Record):
    """The edits that enforcing would make if every server were approved."""

    entries: Mapping[Place, dict[str, Any]] = field(default_factory=dict, repr=False)
    """The entries that enforcement would write, by place."""
    diffs: tuple[tuple[str, str], ...] = ()
    """The edit of each client's file as a unified diff, by the file's path for display."""

    def covers(self, plan: EnforcementPlan) -> bool:
        """Whether every edit of a plan is one of these."""
        return all(
            self.entries.get((entry.server.path, entry.server.pointer)) == entry.configured
            for scope in plan.scopes
            for entry in scope.entries
            if entry.server is not None and entry.action == "updated"
        )


def preview_enforcement(
    projects: Sequence[Project], pins: Sequence[PinPlan], is_included: Callable[[Project, ConfiguredServer], bool]
) -> EnforcementPreview:
    """Return the edits of all servers that are included and that ``pinwarden run`` can start. Nothing is written.

    The edits come after those of ``pins``.
    """
    pinned = {_locate(pin.server): pin.changed for plan in pins for pin in plan.pins}
    contents = {edit.path: edit.after or b"" for edit in list_file_edits(pins)}
    found = [
        (server, entry)
        for project in projects
        for server in project.find_servers()
        if is_included(project, server)
        for entry in _preview_entry(project, pinned.get(_locate(server), server))
    ]
    return EnforcementPreview(
        entries={_locate(server): entry for server, entry in found},
        diffs=diff_edits(projects[0], list_entry_edits(_without_uneditable(found, contents), contents)),
    )


def _preview_entry(project: Project, server: ConfiguredServer) -> Iterator[dict[str, Any]]:
    """Yield the entry of a server as it would be; nothing if ``pinwarden run`` cannot start it."""
    if server.target is None or starts_through_pinwarden(server) or find_enforcement_obstacle(server) is not None:
        return
    client = get_client(server.client)
    approved = parse_configured_server(server.name, redact_entry(server.entry), client)
    arguments = list_server_arguments(approved.target.command) if isinstance(approved.target, StdioTarget) else ()
    scope = to_toolpin_scope(server.scope)
    words = build_entry_command(project, server.name, client, scope, arguments, approved=True)
    try:
        if isinstance(server.target, HttpTarget):
            yield to_command_entry(server.entry, client, read_remote_entry(server.entry, client), words)
        else:
            yield replace_command(server.entry, client, words)
    except PinwardenError:
        return  # the step itself reports it


def _without_uneditable(
    entries: Iterable[tuple[ConfiguredServer, dict[str, Any]]], contents: Mapping[Path, bytes]
) -> Iterator[tuple[ConfiguredServer, dict[str, Any]]]:
    """Yield the edits of entries that can be edited. The step itself reports the others."""
    for server, entry in entries:
        try:
            list_entry_edits([(server, entry)], contents)
        except PinwardenError:
            continue
        yield server, entry


def _locate(server: ConfiguredServer) -> Place:
    return server.path, server.pointer
