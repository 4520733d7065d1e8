"""Decide whether ``pinwarden run`` can start or contact a server, and from what.

- A package or image is started from its verified bytes. Wrappers such as ``op run --`` stay in front of it.
- A remote address is contacted, unless the client itself signs in to it.
- Any other command has no bytes to verify. It is started as it was approved, word by word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.clients.command_line import parse_launch, parse_run_command, split_command
from pinwarden.clients.entry_edit import read_remote_entry
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import lazy_pattern
from pinwarden.system.target import HttpTarget, StdioTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.clients.config import ConfiguredServer

_FILLED_BY_RUN = lazy_pattern(r"\$\{(?:env:)?[A-Za-z_]\w*(?::-[^}]*)?\}")
_PLACEHOLDER = lazy_pattern(r"\$\{|%[A-Za-z_]+%|\{env:")


def find_enforcement_obstacle(server: ConfiguredServer) -> str | None:
    """Return why ``pinwarden run`` cannot start or contact a configured server; None if it can."""
    if server.target is None:
        return server.problem or "its entry cannot be read"
    if isinstance(server.target, HttpTarget):
        try:
            read_remote_entry(server.entry, get_client(server.client))
        except PinwardenError as err:
            return err.message
        return None
    return find_command_obstacle(server.target.command)


def find_command_obstacle(command: Sequence[str]) -> str | None:
    """Return why ``pinwarden run`` cannot start a server with this command; None if it can."""
    launch = parse_launch(StdioTarget(command=tuple(command)))
    package = launch.via or launch
    if package.kind == "nuget":
        return "it is a NuGet package, which Pinwarden cannot start from verified bytes"
    if launch.is_local_command:
        program = split_command(command)[0]
        if _PLACEHOLDER.search(_FILLED_BY_RUN.sub("", program)):
            return f"only its client can fill in the path of its program, {program[:120]!a}"
    elif launch.wrapper_words is None:
        return f"it is started by {launch.wrappers[0]} in a form that Pinwarden cannot reproduce"
    return None


def list_server_arguments(command: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments in which the client may replace placeholders: of the server, or of a local command."""
    launch = parse_launch(StdioTarget(command=tuple(command)))
    return tuple(split_command(command)[1:]) if launch.is_local_command else launch.arguments


def starts_through_pinwarden(server: ConfiguredServer) -> bool:
    """Whether the client starts this server with ``pinwarden run NAME`` or ``pinwarden run --name NAME -- COMMAND``."""
    start = parse_run_command(server.target.command) if isinstance(server.target, StdioTarget) else None
    return start is not None and start.name is not None
