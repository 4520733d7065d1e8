"""The install plan of a server: its configuration fragment for each of ToolPin's twelve clients, and its lock entry.

``toolpin`` is the dialect of ToolPin 0.5.4, member by member, because lockfiles hash it. ``modern`` follows today's
documentation of the clients; every difference comes with a sentence that explains it. ``clients/table.py`` has the
member names of each client. ``_TOOLPIN_FORMS`` and ``_MODERN_FORMS`` have what a client's fragment has beyond that; the
first must stay as ToolPin has it, even if a client changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from pinwarden.clients.documents import build_config, wrap_in_path
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.entry import LOCK_CLIENTS, LOCK_INTEGRITY_EVIDENCE, ToolPinScope
from pinwarden.lock.launch_choice import (
    REMOTE_NOTE,
    Dialect,
    InstallCommand,
    LaunchTarget,
    build_modern_command,
    build_toolpin_command,
    fill_template,
    format_value,
    require_target,
    target_to_json,
)
from pinwarden.lock.server_entry import Input, Remote, ServerEntry, build_capability_manifest, find_install_problem
from pinwarden.lock.target_verification import VerificationReport
from pinwarden.lock.trust_tiers import compute_trust_report, with_evidence
from pinwarden.system.environment_variables import to_variable_name

_STREAMABLE = "streamable-http"


class _ToolPinForm(Record):
    """What ToolPin writes for one client, beyond the member names of the client's entries."""

    leading_members: Mapping[str, Any] = MappingProxyType({})
    """The members with which the configuration begins."""
    placeholder: str = "<{}>"
    """A format string: the placeholder for a value that the user must supply."""
    remote_type: str | None = None
    """The ``type`` of every remote server, instead of its transport."""
    streamable_type: str = _STREAMABLE
    """The ``type`` of a remote server with the Streamable HTTP transport."""
    has_type: bool = True
    """Whether a remote server has a ``type``."""
    enables: bool = False
    """Whether the entry says that the server is enabled."""
    approves_nothing: bool = False
    """Whether the entry says that no tool is approved in advance."""


_TOOLPIN_FORMS: dict[str, _ToolPinForm] = {
    "codex": _ToolPinForm(has_type=False),
    "opencode": _ToolPinForm(
        leading_members={"$schema": "https://opencode.ai/config.json"}, remote_type="remote", enables=True
    ),
    "windsurf": _ToolPinForm(placeholder="${{env:{}}}", has_type=False),
    "cline": _ToolPinForm(streamable_type="streamableHttp", enables=True, approves_nothing=True),
    "continue": _ToolPinForm(
        # ToolPin hashes this name, so it must not change.
        leading_members={"name": "ToolPin Config", "version": "1.0.0", "schema": "v1"},
        placeholder="${{{{ secrets.{} }}}}",
    ),
    "gemini": _ToolPinForm(placeholder="${{{}}}", has_type=False),
    "zed": _ToolPinForm(has_type=False),
    "roo": _ToolPinForm(enables=True),
}
"""ToolPin's clients that differ from ``_ToolPinForm()``."""


class _ModernForm(Record):
    """What the documentation of one client says today, where it differs from what ToolPin writes."""

    local_type: str | None = None
    """The ``type`` of a server that the client starts."""
    streamable_type: str | None = None
    """The ``type`` of a remote server with the Streamable HTTP transport."""
    has_remote_type: bool = True


_MODERN_FORMS: dict[str, _ModernForm] = {
    "claude": _ModernForm(streamable_type="http"),
    "cursor": _ModernForm(has_remote_type=False),
    "vscode": _ModernForm(local_type="stdio", streamable_type="http"),
    "generic": _ModernForm(streamable_type="http"),
}
"""The clients that differ from ``_ModernForm()``."""


def _get_toolpin_form(client: str) -> _ToolPinForm:
    return _TOOLPIN_FORMS.get(client, _ToolPinForm())


def _get_modern_form(client: str) -> _ModernForm:
    return _MODERN_FORMS.get(client, _ModernForm())


class ConfigFragment(Record):
    """A configuration with one server in it."""

    client: str
    server_name: str
    config: dict[str, Any]
    notes: tuple[str, ...]
    differences: tuple[str, ...] = ()
    """The differences from ToolPin's fragment, one sentence each; empty in ToolPin's dialect."""


def build_fragment(
    entry: ServerEntry, client: str, *, target: LaunchTarget | None = None, dialect: Dialect = "toolpin"
) -> ConfigFragment:
    """Return the configuration of one client for this server; ``target`` replaces the default target."""
    if client not in LOCK_CLIENTS:
        raise PinwardenError(
            "CLIENT_UNKNOWN", f"{client[:40]!a} is not a supported client; known: {', '.join(LOCK_CLIENTS)}"
        )
    chosen = require_target(entry) if target is None else target
    body = _build_toolpin_config(chosen, client) if dialect == "toolpin" else _build_modern_config(chosen, client)
    return ConfigFragment(
        client=client,
        server_name=entry.name,
        config=_wrap_in_client_config(client, entry.name, body.members),
        notes=(body.note,),
        differences=body.differences,
    )


def get_toolpin_placeholder(client: str) -> Callable[[str], str]:
    """Return a function that formats the placeholder for a value that the user must supply, as ToolPin writes it."""
    return _get_toolpin_form(client).placeholder.format


class _ServerConfig(Record):
    members: dict[str, Any]
    note: str
    differences: tuple[str, ...] = ()


def _wrap_in_client_config(client: str, name: str, members: dict[str, Any]) -> dict[str, Any]:
    return {**_get_toolpin_form(client).leading_members, **build_config(get_client(client), name, members)}


# ToolPin's dialect


def _build_toolpin_config(target: LaunchTarget, client: str) -> _ServerConfig:
    placeholder = get_toolpin_placeholder(client)
    if isinstance(target, Remote):
        headers = {header.name: placeholder(header.name) for header in target.headers}
        return _ServerConfig(members=_build_remote_members(target, client, headers), note=REMOTE_NOTE)
    command = build_toolpin_command(target)
    env = {
        variable.name: placeholder(variable.name) if variable.default is None else variable.default
        for variable in target.environment_variables
    }
    return _ServerConfig(members=_build_local_members(command, client, env), note=command.note)


def _build_local_members(command: InstallCommand, client: str, env: dict[str, Any]) -> dict[str, Any]:
    entry_format = get_client(client).entry_format
    if entry_format.command_list:
        words = [command.program, *command.arguments]
        return {
            "type": entry_format.local_type,
            "command": words,
            **_build_switches(client),
            entry_format.env_member: env,
        }
    members: dict[str, Any] = {
        "command": command.program,
        "args": list(command.arguments),
        entry_format.env_member: env,
    }
    return members | _build_switches(client)


def _build_remote_members(remote: Remote, client: str, headers: dict[str, str]) -> dict[str, Any]:
    entry_format = get_client(client).entry_format
    # A client whose plain URL member means SSE has another member for Streamable HTTP.
    member = (
        entry_format.url_members[-1]
        if entry_format.url_transport == "sse" and remote.type != _STREAMABLE
        else entry_format.url_members[0]
    )
    address = {member: remote.url}
    with_headers = wrap_in_path(entry_format.headers_path, headers) if headers else {}
    form = _get_toolpin_form(client)
    if not form.has_type:
        return {**address, **with_headers}
    if form.remote_type is not None:
        return {"type": form.remote_type, **address, **_build_switches(client), **with_headers}
    kind = form.streamable_type if remote.type == _STREAMABLE else remote.type
    return {"type": kind, **address, **with_headers, **_build_switches(client)}


def _build_switches(client: str) -> dict[str, Any]:
    """Return members that enable the server and pre-approve no tool, for clients that need them."""
    entry_format, form = get_client(client).entry_format, _get_toolpin_form(client)
    member, off = entry_format.disabling_member
    on = {member: not off} if form.enables else {}
    return {**on, entry_format.auto_approve_members[0]: []} if form.approves_nothing else on


# The modern dialect

_PLACEHOLDER_DIFFERENCE = (
    "Values to supply are written as {example}, which this client replaces with the variable; "
    "ToolPin writes <NAME>, which the client sends literally."
)


def _get_modern_placeholder(client: str) -> Callable[[str], str]:
    placeholder_format = get_client(client).entry_format.variable_reference
    if placeholder_format is None:
        return lambda name: f"<{name}>"
    return lambda name: placeholder_format.format(to_variable_name(name))


def _build_modern_config(target: LaunchTarget, client: str) -> _ServerConfig:
    placeholder = _get_modern_placeholder(client)
    if isinstance(target, Remote):
        return _build_modern_remote(target, client, placeholder)
    command = build_modern_command(target, placeholder)
    differences = list(command.differences)
    env, forwarded = _build_modern_env(target.environment_variables, client, placeholder)
    members = _build_local_members(command, client, env)
    reader = get_client(client)
    if (local_type := _get_modern_form(client).local_type) is not None:
        members = {"type": local_type, **members}
        differences.append(f'{reader.title} documents type "{local_type}" for a command; ToolPin leaves it out.')
    if forwarded:
        member = str(reader.entry_format.passed_variables_member)
        members[member] = forwarded
        differences.append(
            f"{reader.title} does not expand variables; {member} names the variables that it passes on from its own "
            "environment."
        )
    if any(variable.value is None and variable.default is None for variable in target.environment_variables):
        differences += _describe_expansion(client)
    return _ServerConfig(members=members, note=command.note, differences=tuple(differences))


def _build_modern_env(
    variables: tuple[Input, ...], client: str, placeholder: Callable[[str], str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the environment to write, and for a client that expands no variables the names to pass on instead."""
    passes = get_client(client).entry_format.names_variables
    env: dict[str, Any] = {}
    forwarded: list[str] = []
    for variable in variables:
        value = variable.value if variable.value is not None else variable.default
        if value is not None:
            env[variable.name] = fill_template(format_value(value), variable.variables, placeholder)
        elif passes:
            forwarded.append(variable.name)
        else:
            env[variable.name] = placeholder(variable.name)
    return env, forwarded


def _build_modern_remote(remote: Remote, client: str, placeholder: Callable[[str], str]) -> _ServerConfig:
    differences: list[str] = []
    reader, form = get_client(client), _get_modern_form(client)
    url = fill_template(remote.url, remote.variables, placeholder)
    if url != remote.url:
        differences.append("The variables of the URL are filled in; ToolPin leaves the braces.")
    headers: dict[str, str] = {}
    from_env: dict[str, str] = {}
    for header in remote.headers:
        value = header.value if header.value is not None else header.default
        if value is not None:
            headers[header.name] = fill_template(format_value(value), header.variables, placeholder)
        elif reader.entry_format.names_variables:
            from_env[header.name] = to_variable_name(header.name)
        else:
            headers[header.name] = placeholder(header.name)
    if any(header.value is not None or header.default is not None for header in remote.headers):
        differences.append("Header values that the entry declares are kept; ToolPin replaces each with a placeholder.")
    filled = Remote(type=remote.type, url=url, headers=remote.headers, variables=(), raw=remote.raw)
    members = _build_remote_members(filled, client, headers)
    if from_env:
        member = str(reader.entry_format.header_variables_member)
        members[member] = from_env
        differences.append(f"{reader.title} does not expand variables; {member} names the variable of each header.")
    if remote.type == _STREAMABLE and form.streamable_type is not None:
        members["type"] = form.streamable_type
        differences.append('The type of a Streamable HTTP server is "http" in this client\'s documentation.')
    if not form.has_remote_type:
        del members["type"]
        differences.append(f"{reader.title} detects the transport of a URL and documents no type for it.")
    if any(header.value is None and header.default is None for header in remote.headers):
        differences += _describe_expansion(client)
        if any(to_variable_name(header.name) != header.name for header in remote.headers):
            differences.append("A header name with - is not a valid variable name; the variable has _ instead.")
    return _ServerConfig(members=members, note=REMOTE_NOTE, differences=tuple(differences))


def _describe_expansion(client: str) -> list[str]:
    if get_client(client).entry_format.variable_reference is None or get_toolpin_placeholder(client)(
        "NAME"
    ) == _get_modern_placeholder(client)("NAME"):
        return []
    return [_PLACEHOLDER_DIFFERENCE.format(example=_get_modern_placeholder(client)("NAME"))]


class PlanOptions(Record):
    """Options of an install plan."""

    scope: ToolPinScope = "project"
    target: LaunchTarget | None = None
    """Replaces the default target."""
    dialect: Dialect = "toolpin"


DEFAULT_OPTIONS = PlanOptions()


def build_install_plan(
    entry: ServerEntry,
    client: str,
    *,
    now: str,
    verification: VerificationReport | None = None,
    options: PlanOptions = DEFAULT_OPTIONS,
) -> dict[str, Any]:
    """Return the lockfile entry of a server in a client, in ToolPin's member order and without ``integrity``.

    ``now`` is when the entry was resolved and locked. With a ``verification``, the entry includes its evidence and, in
    the manifest, the hashes of live tools.
    """
    problem = find_install_problem(entry)
    if problem is not None:
        raise PinwardenError("NO_INSTALL_TARGET", f"cannot install {entry.name[:120]}: {problem}")
    chosen = require_target(entry) if options.target is None else options.target
    client_fragment = build_fragment(entry, client, target=chosen, dialect=options.dialect)
    trust = compute_trust_report(entry, now=now) if verification is None else verification.trust
    manifest = build_capability_manifest(entry, now=now) if verification is None else dict(verification.manifest)
    locked = {
        "selectedTarget": target_to_json(chosen),
        "config": client_fragment.config,
        "capabilityManifest": manifest,
    }
    plan: dict[str, Any] = {
        "name": entry.name,
        "version": entry.version,
        "client": client,
        "scope": options.scope,
        "selectedTarget": target_to_json(chosen),
        # The evidence is added before the digest is computed, so that the digest covers it.
        "trust": with_evidence(trust, LOCK_INTEGRITY_EVIDENCE, now=now).to_json(),
        "config": client_fragment.config,
        "notes": list(client_fragment.notes),
        "capabilityManifest": manifest,
        "resolvedAt": now,
        "lockedAt": now,
        "resolved": {"source": entry.source, "name": entry.name, "version": entry.version},
        "original": {"name": entry.name, "version": entry.version, "client": client},
        "locked": deepcopy(locked),
    }
    return _remove_missing_version(plan)


def _remove_missing_version(plan: dict[str, Any]) -> dict[str, Any]:
    """Remove the member ``version`` from the entry and its copies where it is None."""
    for copy in (plan, plan["resolved"], plan["original"]):
        if copy["version"] is None:
            del copy["version"]
    return plan
