"""Decide whether ``pinwarden run`` can start or contact a server, and from what.

- A package or image is started from its verified bytes. Wrappers such as ``op run --`` stay in front of it.
- A remote address is contacted, unless the client itself signs in to it.
- Any other command has no bytes to verify. It is started as it was approved, word by word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.clients.command_line import parse_launch, parse_run_command, split_command
from pinwarden.clients.config import ConfiguredServer, parse_target, unwrap_entry
from pinwarden.clients.table import Client, get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import HttpTarget, StdioTarget

HEADER_VARIABLE = "PINWARDEN_HEADER_"
"""The prefix of environment variables that have the value of a header."""
ADDRESS_VARIABLE = "PINWARDEN_ADDRESS"

_REFERENCE = lazy_pattern(r"[$%{<]")
_SIGN_IN_MEMBERS = ("oauth", "auth", "authProviderType", "headersHelper", "targetAudience", "oauth_resource", "scopes")
"""Members that make the client itself sign in to the server. A command cannot use this sign-in."""
_FILLED_BY_RUN = lazy_pattern(r"\$\{(?:env:)?[A-Za-z_]\w*(?::-[^}]*)?\}")
_PLACEHOLDER = lazy_pattern(r"\$\{|%[A-Za-z_]+%|\{env:")


class RemoteEntry(Record):
    """The URL of a client's entry, and the environment variables that a command needs to contact it."""

    target: HttpTarget
    url: str
    """The URL in the form in which a lock stores it."""
    headers: Mapping[str, str]
    """The name of the environment variable for each header."""
    url_variable: str | None
    variables: Mapping[str, str] = field(repr=False)
    """The values of the environment variables, as written in the client's file."""


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


def read_remote_entry(entry: Any, client: Client) -> RemoteEntry:
    """Parse the URL and headers of an entry. Raises NOTHING_TO_RUN if a command cannot contact the server."""
    target, problem = parse_target(entry, client)
    if not isinstance(target, HttpTarget) or problem is not None:
        raise PinwardenError("NOTHING_TO_RUN", problem or "it is not a remote address")
    sign_in = next((name for name in _SIGN_IN_MEMBERS if unwrap_entry(entry, client).get(name)), None)
    if sign_in is not None:
        raise PinwardenError("NOTHING_TO_RUN", f"{client.title} signs in to it ({sign_in}), which a command cannot use")
    headers = {name: name_header_variable(name) for name in target.headers}
    if len(set(headers.values())) != len(headers):
        raise PinwardenError("NOTHING_TO_RUN", "two of its headers differ only in punctuation")
    values = {headers[name]: value for name, value in target.headers.items()}
    url = redact_entry({"url": target.url})["url"]
    # The lock does not store secrets, and only the client fills in its placeholders.
    hidden = url != target.url or _REFERENCE.search(target.url) is not None
    if hidden:
        values[ADDRESS_VARIABLE] = target.url
    return RemoteEntry(
        target=target,
        url=url,
        headers=headers,
        url_variable=ADDRESS_VARIABLE if hidden else None,
        variables=values,
    )


def name_header_variable(name: str) -> str:
    """Return the name of the environment variable for a header."""
    return HEADER_VARIABLE + re.sub(r"[^A-Z0-9]", "_", name.upper())


def list_server_arguments(command: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments in which the client may replace placeholders: of the server, or of a local command."""
    launch = parse_launch(StdioTarget(command=tuple(command)))
    return tuple(split_command(command)[1:]) if launch.is_local_command else launch.arguments


def starts_through_pinwarden(server: ConfiguredServer) -> bool:
    """Whether the client starts this server with ``pinwarden run NAME`` or ``pinwarden run --name NAME -- COMMAND``."""
    start = parse_run_command(server.target.command) if isinstance(server.target, StdioTarget) else None
    return start is not None and start.name is not None
