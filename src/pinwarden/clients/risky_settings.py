"""Settings with which a client lets the assistant act, or runs commands, without asking the user.

They are in the file that also has the client's servers. ``clients/table.py`` says which settings each client reads, and
``clients/findings.py`` looks for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pinwarden.core.record import Record

Predicate = Callable[[Any], bool]


class RiskySetting(Record):
    """A setting, and the values of it that are risky."""

    code: str
    """The code of the finding about it."""
    name: str
    """The members that lead to it, joined by ``.``. A file may write several of them as one member."""
    is_risky: Predicate
    only_in_projects: bool = False
    """Whether the setting is reported only in a project's file, because in the user's own file it is usual."""


class RiskySettings(Record):
    """All risky settings of one client."""

    settings: tuple[RiskySetting, ...] = ()
    holders: tuple[tuple[str, ...], ...] = ((),)
    """The member paths in a file under which the client reads settings."""
    profiles_member: str | None = None
    """A member with further sets of the same settings, by name."""


# Predicates

_OPENCODE_PERMISSIONS = ("*", "bash", "edit", "write", "webfetch", "external_directory")
"""Permissions of opencode. With one of them set to ``allow``, the assistant acts without asking."""


def _equals_any(*values: Any) -> Predicate:
    return lambda value: type(value) in (str, bool) and value in values


def _is_set(value: Any) -> bool:
    return bool(value)


def _allows_all_tools(value: Any) -> bool:
    """Whether a list of rules of Amp or Crush allows every tool."""
    rules = value if type(value) is list else []
    return any(
        rule == "*" or (type(rule) is dict and rule.get("action") == "allow" and rule.get("tool") in (None, "*"))
        for rule in rules
    )


def _allows_some_tools(value: Any) -> bool:
    return type(value) is list and bool(value) and not _allows_all_tools(value)


def _allows_actions(value: Any) -> bool:
    """Whether opencode's ``permission`` setting lets the assistant act without asking.

    The setting is either the word ``allow``, or an object with one member per permission.
    """
    if type(value) is not dict:
        return bool(value == "allow")
    return any(_is_allow(value.get(name)) for name in _OPENCODE_PERMISSIONS)


def _is_allow(value: Any) -> bool:
    return value == "allow" or (type(value) is dict and value.get("*") == "allow")


def _list_paths(value: Any) -> list[str]:
    """Return the paths in a setting: a text, a list, or an object whose members are paths that are switched on."""
    if type(value) is dict:
        return [path for path, is_on in value.items() if is_on is not False]
    return [path for path in (value if type(value) is list else [value]) if type(path) is str and path]


def _leads_outside(value: Any) -> bool:
    """Whether a setting names an address, or a path that is not inside of the project."""
    return any(
        "://" in path or path.startswith(("/", "~", "$", "\\")) or path[1:2] == ":" or ".." in re.split(r"[/\\]", path)
        for path in _list_paths(value)
    )


def _stays_inside(value: Any) -> bool:
    return bool(_list_paths(value)) and not _leads_outside(value)


# The settings of each client


def _list_settings(*rows: tuple[str, str, Predicate]) -> tuple[RiskySetting, ...]:
    return tuple(RiskySetting(code=code, name=name, is_risky=is_risky) for code, name, is_risky in rows)


def _list_reading_settings(*names: str) -> tuple[RiskySetting, ...]:
    """Return the settings that name further places from which a client reads skills or instructions."""
    return _list_settings(
        *(("skill_paths_widened", name, _leads_outside) for name in names),
        *(("skill_paths_added", name, _stays_inside) for name in names),
    )


_GEMINI_COMMANDS = (
    *("tools.discoveryCommand", "tools.callCommand", "mcp.serverCommand"),
    *("toolDiscoveryCommand", "toolCallCommand", "mcpServerCommand"),
)
GEMINI = RiskySettings(
    settings=(
        *_list_settings(
            ("hooks", "hooks", _is_set),
            ("permissions_bypassed", "general.defaultApprovalMode", _equals_any("yolo", "auto_edit")),
            ("permissions_bypassed", "tools.approvalMode", _equals_any("yolo", "auto-edit", "auto_edit")),
            ("calls_allowed", "tools.autoAccept", _equals_any(True)),
            ("calls_allowed", "autoAccept", _equals_any(True)),
        ),
        *(
            RiskySetting(code="command_setting", name=name, is_risky=_is_set, only_in_projects=True)
            for name in _GEMINI_COMMANDS
        ),
        *_list_reading_settings("context.fileName", "contextFileName"),
    )
)
CODEX = RiskySettings(
    settings=(
        *_list_settings(
            ("permissions_bypassed", "approval_policy", _equals_any("never")),
            ("permissions_bypassed", "sandbox_mode", _equals_any("danger-full-access")),
            ("command_setting", "notify", _is_set),
            ("hooks", "hooks", _is_set),
        ),
        *_list_reading_settings(
            "model_instructions_file", "experimental_instructions_file", "project_doc_fallback_filenames"
        ),
    ),
    profiles_member="profiles",
)
OPENCODE = RiskySettings(
    settings=(
        *_list_settings(
            ("plugins_enabled", "plugin", _is_set),
            ("permissions_bypassed", "permission", _allows_actions),
            ("hooks", "experimental.hook", _is_set),
        ),
        *_list_reading_settings("skills.paths", "skills.urls", "instructions"),
    ),
    profiles_member="agent",
)
ZED = RiskySettings(
    settings=_list_settings(
        ("permissions_bypassed", "agent.always_allow_tool_actions", _equals_any(True)),
        ("permissions_bypassed", "assistant.always_allow_tool_actions", _equals_any(True)),
        ("permissions_bypassed", "agent.tool_permissions.default", _equals_any("allow")),
        ("permissions_bypassed", "agent.tool_permissions.default_mode", _equals_any("allow")),
    )
)
CRUSH = RiskySettings(
    settings=(
        *_list_settings(
            ("permissions_bypassed", "permissions.skip_requests", _equals_any(True)),
            ("permissions_bypassed", "permissions.allowed_tools", _allows_all_tools),
            ("calls_allowed", "permissions.allowed_tools", _allows_some_tools),
            ("hooks", "hooks", _is_set),
        ),
        *_list_reading_settings("options.skills_paths", "options.context_paths"),
    )
)
AMP = RiskySettings(
    settings=_list_settings(
        ("permissions_bypassed", "amp.dangerouslyAllowAll", _equals_any(True)),
        ("permissions_bypassed", "amp.permissions", _allows_all_tools),
        ("calls_allowed", "amp.permissions", _allows_some_tools),
        ("calls_allowed", "amp.mcpPermissions", _is_set),
        ("hooks", "amp.hooks", _is_set),
        ("command_setting", "amp.toolbox.path", _is_set),
    )
)
VSCODE = RiskySettings(
    settings=(
        *_list_settings(
            ("permissions_bypassed", "chat.tools.autoApprove", _equals_any(True)),
            ("permissions_bypassed", "chat.tools.global.autoApprove", _equals_any(True)),
        ),
        *_list_reading_settings(
            "chat.agentSkillsLocations",
            "chat.instructionsFilesLocations",
            "chat.promptFilesLocations",
            "chat.modeFilesLocations",
        ),
        *AMP.settings,  # the Amp extension keeps its settings in those of VS Code
    ),
    holders=((), ("settings",), ("customizations", "vscode", "settings")),
)
GOOSE = RiskySettings(settings=_list_settings(("permissions_bypassed", "GOOSE_MODE", _equals_any("auto"))))
