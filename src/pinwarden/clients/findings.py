"""Check client configurations for risks, without a comparison with an approved state.

The findings are about unreadable files, symbolic links, entries that run shells, and settings of a repository that
start servers or redirect the assistant without the user's consent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pinwarden.clients.command_line import DANGERS, parse_launch
from pinwarden.clients.config import ConfigFile, ConfiguredServer, DeclaredInput, normalize_entry
from pinwarden.clients.risky_settings import RiskySettings
from pinwarden.clients.table import get_client
from pinwarden.core.json_values import child_pointer
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, build_kind_table
from pinwarden.core.text import lazy_pattern
from pinwarden.surface.drift.changes import INFO
from pinwarden.system.environment_variables import is_redirecting_variable
from pinwarden.system.masking import looks_secret, mask_name, mask_words
from pinwarden.system.redaction import list_command_lines, list_urls

FINDING_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("config_unreadable", "The file could not be read, so it is unknown which servers it starts."),
        ("config_invalid", "The file is not valid, but its client may still read servers from it."),
        ("servers_not_understood", "The file has servers in a member that its client is not known to read."),
        ("shell_command", DANGERS["shell_command"]),
        ("download_and_run", DANGERS["download_and_run"]),
        ("redirecting_variable", "An environment variable changes what the command loads, downloads or trusts."),
        ("all_servers_enabled", "The settings start every server that the repository names, without asking the user."),
        ("assistant_redirected", "The settings send the assistant's conversations to another address."),
        ("permissions_bypassed", "The settings let the assistant act without asking the user."),
    ),
    review=(
        (
            "start_unresolved",
            "The entry starts `pinwarden run`, which would refuse to start this server with the current lock.",
        ),
        ("config_link", "The file is a symbolic link; the permissions of its target decide who can change it."),
        ("entry_unusable", "The entry is not valid, so it cannot be locked."),
        ("inline_code", DANGERS["inline_code"]),
        ("shell_text", DANGERS["shell_text"]),
        ("preload", DANGERS["preload"]),
        ("other_index", DANGERS["other_index"]),
        ("temporary_path", DANGERS["temporary_path"]),
        ("container_privileges", DANGERS["container_privileges"]),
        ("unencrypted_address", DANGERS["unencrypted_address"]),
        ("servers_enabled", "The settings start servers that the repository names, without asking the user."),
        ("hooks", "The settings define hooks: commands that the client runs while the assistant works."),
        ("command_setting", "The settings name a command that the client runs without asking the user."),
        ("variables_set", "The settings set a variable that decides where code, packages or responses come from."),
        ("calls_unasked", "The client calls tools of this server without asking the user."),
        (
            "skill_paths_widened",
            "The settings have the client read skills or instructions from an address, or from outside of the project.",
        ),
        ("plugins_enabled", "The settings enable plugins, which can start servers and commands that are not approved."),
    ),
    info=(
        ("calls_allowed", "The settings allow calls to tools of servers without asking the user."),
        (
            "skill_paths_added",
            "The settings have the client read skills or instructions from more places, which are not locked.",
        ),
        ("relative_path", DANGERS["relative_path"]),
        ("floating", "The entry does not name an exact release, so it can change without notice."),
        ("servers_disabled", "The settings disable servers."),
    ),
)
"""All kinds of finding in a client's configuration, with their severity and reason."""
_FAULT_CODES = {"unreadable": "config_unreadable", "invalid": "config_invalid"}


class ConfigFinding(Record):
    """One finding about a configuration. Values from the file could be secrets and are left out."""

    code: str
    severity: str
    client: str
    scope: str
    file: str
    name: str
    """The name of the server; empty if the finding is about the whole file."""
    pointer: str
    """JSON Pointer to the member of the file that the finding is about."""
    message: str


def check_files(files: Iterable[ConfigFile]) -> tuple[ConfigFinding, ...]:
    """Check these files and the servers in them. Returns all findings."""
    return tuple(finding for file in files for finding in (*check_file(file), *_check_servers(file)))


def check_file(file: ConfigFile) -> Iterator[ConfigFinding]:
    """Check the file itself and its settings."""
    if file.link is not None:
        yield _build_file_finding(file, "config_link", "", file.link or "the links form a loop")
    if file.fault is not None:
        yield _build_file_finding(file, _FAULT_CODES[file.fault], "", file.problem or "")
    if file.code:
        yield _build_file_finding(file, "plugins_enabled", "", file.path.replace("\\", "/").rpartition("/")[2])
    if type(file.document) is not dict:
        return
    for pointer in file.unread:
        yield _build_file_finding(file, "servers_not_understood", pointer, pointer)
    settings = _check_settings(file.document, file.scope) if file.settings else _check_inline_settings(file)
    for code, pointer, detail in settings:
        yield _build_file_finding(file, code, pointer, detail)


def build_start_refused_finding(server: ConfiguredServer, reason: str) -> ConfigFinding:
    """Build the finding that ``pinwarden run`` would refuse to start this server."""
    return _build_server_finding(server, "start_unresolved", reason)


def check_server(server: ConfiguredServer) -> Iterator[ConfigFinding]:
    """Check one configured server."""
    if server.target is None or server.problem:
        yield _build_server_finding(server, "entry_unusable", server.problem or "")
    if server.target is not None:
        launched = parse_launch(server.target)
        for danger in launched.dangers:
            yield _build_server_finding(server, danger)
        package = launched.via or launched
        if package.kind in ("npm", "pypi", "oci", "nuget", "jsr", "source") and not package.pinned:
            yield _build_server_finding(server, "floating", package.identity)
    if type(server.entry) is not dict:
        return
    client = get_client(server.client)
    fields = normalize_entry(server.entry, client)
    for name in sorted(fields["env"]) if type(fields["env"]) is dict else ():
        if is_redirecting_variable(name):
            yield _build_server_finding(server, "redirecting_variable", name)
    for member in client.entry_format.auto_approve_members:
        if server.entry.get(member):
            yield _build_server_finding(server, "calls_unasked", member)


_COMMAND_SETTINGS = ("apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "otelHeadersHelper", "statusLine")
_ANSWERING = ("_BASE_URL", "_API_BASE", "_ENDPOINT")


def _check_settings(document: Mapping[str, Any], scope: str) -> Iterator[tuple[str, str, str]]:
    """Yield the finding code, JSON Pointer and detail of each risky setting in a settings file."""
    if document.get("enableAllProjectMcpServers") is True:
        yield "all_servers_enabled", "/enableAllProjectMcpServers", ""
    for member, code in (("enabledMcpjsonServers", "servers_enabled"), ("disabledMcpjsonServers", "servers_disabled")):
        names = document.get(member)
        if type(names) is list and names:
            yield code, f"/{member}", _join_names(names)
    env = document.get("env")
    for name in sorted(env) if type(env) is dict else ():
        if is_redirecting_variable(name):
            code = "assistant_redirected" if name.upper().endswith(_ANSWERING) else "variables_set"
            yield code, child_pointer("/env", name), name
    if document.get("hooks"):
        hooks = document["hooks"]
        yield "hooks", "/hooks", ", ".join(sorted(hooks)) if type(hooks) is dict else ""
    permissions = document.get("permissions")
    if type(permissions) is dict and permissions.get("defaultMode") == "bypassPermissions":
        yield "permissions_bypassed", "/permissions/defaultMode", ""
    allowed = permissions.get("allow") if type(permissions) is dict else None
    tools = [rule for rule in allowed if str(rule).startswith("mcp__")] if type(allowed) is list else []
    if tools:
        yield "calls_allowed", "/permissions/allow", _join_names(tools)
    for member in ("enabledPlugins", "extraKnownMarketplaces"):
        plugins = document.get(member)
        wanted = [name for name, on in plugins.items() if on is not False] if type(plugins) is dict else plugins
        if wanted:
            yield "plugins_enabled", f"/{member}", _join_names(wanted) if type(wanted) is list else ""
    if scope == "project":
        for member in _COMMAND_SETTINGS:
            if document.get(member):
                yield "command_setting", f"/{member}", member


def _join_names(names: list[Any]) -> str:
    return ", ".join(mask_name(str(name)[:80]) for name in names[:20])


def _check_inline_settings(file: ConfigFile) -> Iterator[tuple[str, str, str]]:
    """Yield the finding code, JSON Pointer and detail of each risky setting in a file that also has servers."""
    for code, path in _find_risky_settings(get_client(file.client).risky_settings, file.document, file.scope):
        yield code, "".join(f"/{step}" for step in path), ".".join(path)


_DECIDED_BY_USER = frozenset(
    {
        *("permissions_bypassed", "hooks", "plugins_enabled", "calls_allowed", "command_setting"),
        *("skill_paths_widened", "skill_paths_added"),
    }
)


def _check_servers(file: ConfigFile) -> Iterator[ConfigFinding]:
    for server in file.servers:
        yield from check_server(server)


def _build_file_finding(file: ConfigFile, code: str, pointer: str, detail: str) -> ConfigFinding:
    kind = FINDING_KINDS[code]
    # Settings in the user's own file are the user's choice. Settings in a repository may come from someone else.
    decided = file.settings or code in _DECIDED_BY_USER
    own = decided and file.scope == "global" and code not in ("config_unreadable", "config_invalid")
    return ConfigFinding(
        code=code,
        severity=INFO if own else kind.severity,
        client=file.client,
        scope=file.scope,
        file=file.path,
        name="",
        pointer=pointer,
        message=_format_message(kind.reason, detail),
    )


def _build_server_finding(server: ConfiguredServer, code: str, detail: str = "") -> ConfigFinding:
    kind = FINDING_KINDS[code]
    return ConfigFinding(
        code=code,
        severity=kind.severity,
        client=server.client,
        scope=server.scope,
        file=server.path,
        name=server.name,
        pointer=server.pointer,
        message=_format_message(kind.reason, detail),
    )


def _format_message(reason: str, detail: str) -> str:
    return f"{reason} ({detail})" if detail else reason


_INPUT_REFERENCE = lazy_pattern(r"\$\{input:([^{}]{1,200})\}")
_MAX_ANSWER = 400


def list_proposed_inputs(server: ConfiguredServer, inputs: Iterable[DeclaredInput]) -> dict[str, list[str]]:
    """Return the values that the file proposes for a server's inputs, by input id, with secrets redacted."""
    if not inputs:
        return {}
    words = [word for words in list_command_lines(server.entry) for word in words]
    texts = (*words, *list_urls(server.entry), *_list_redirecting_values(server.entry))
    referenced = {name for text in texts for name in _INPUT_REFERENCE.findall(text)}
    proposals: dict[str, list[str]] = {}
    for declared in inputs:
        answers = [_redact_answer(declared, text) for text in declared.literals]
        if declared.command is not None:
            answers.append(f"command {declared.command}")
        if declared.id in referenced and answers:
            proposals.setdefault(declared.id, []).extend(answers)
    return proposals


def _list_redirecting_values(entry: Any) -> Iterator[str]:
    """Yield the values of variables that decide which code the server loads."""
    variables = entry.get("env") if type(entry) is dict else None
    for name, value in variables.items() if type(variables) is dict else ():
        if is_redirecting_variable(name) and type(value) is str:
            yield value


def _redact_answer(declared: DeclaredInput, text: str) -> str:
    secret = declared.password or len(text) > _MAX_ANSWER or looks_secret(declared.id, text)
    return f"<{declared.id}>" if secret or mask_words([text]) != [text] else text


def _find_risky_settings(client: RiskySettings, document: Any, scope: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the finding code and member path of each risky setting in a client's file of this scope."""
    holders = [(_get_at(document, path), path) for path in client.holders]
    profiles = _get_at(document, (client.profiles_member,)) if client.profiles_member is not None else None
    if type(profiles) is dict:
        holders += [(value, (str(client.profiles_member), name)) for name, value in profiles.items()]
    for holder, before in holders:
        for setting in client.settings:
            if setting.only_in_projects and scope != "project":
                continue
            for value, path in _resolve_path(holder, tuple(setting.name.split("."))):
                if setting.is_risky(value):
                    yield setting.code, (*before, *path)


def _get_at(value: Any, path: tuple[str, ...]) -> Any:
    for member in path:
        value = value.get(member) if type(value) is dict else None
    return value


def _resolve_path(value: Any, steps: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    if not steps:
        yield value, ()
        return
    if type(value) is not dict:
        return
    for count in range(1, len(steps) + 1):
        member = ".".join(steps[:count])
        if member in value:
            yield from ((inner, (member, *rest)) for inner, rest in _resolve_path(value[member], steps[count:]))
