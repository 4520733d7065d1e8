"""Settings beside servers that let an assistant act without asking, or run commands.

What each client calls such a setting is data in ``_SWITCHES``. A name with dots may stand in the file as one member or
as members inside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_Test = Callable[[Any], bool]
_ASKED_ABOUT = ("*", "bash", "edit", "write", "webfetch", "external_directory")
"""What opencode asks about, of which an ``allow`` lets the assistant act."""


def _is(*values: Any) -> _Test:
    return lambda value: type(value) in (str, bool) and value in values


def _something(value: Any) -> bool:
    return bool(value)


def _allows_all(value: Any) -> bool:
    """Rules of Amp or Crush that allow every tool."""
    rules = value if type(value) is list else []
    return any(
        rule == "*" or (type(rule) is dict and rule.get("action") == "allow" and rule.get("tool") in (None, "*"))
        for rule in rules
    )


def _allows_some(value: Any) -> bool:
    return type(value) is list and bool(value) and not _allows_all(value)


def _lets_act(value: Any) -> bool:
    """A permission of opencode that lets the assistant act: a word for everything, or one of what it asks about."""
    if type(value) is not dict:
        return bool(value == "allow")
    return any(_is_allow(value.get(name)) for name in _ASKED_ABOUT)


def _is_allow(value: Any) -> bool:
    return value == "allow" or (type(value) is dict and value.get("*") == "allow")


_BYPASSED, _HOOKS, _PLUGINS, _ALLOWED, _COMMAND = (
    "permissions_bypassed",
    "hooks",
    "plugins_enabled",
    "calls_allowed",
    "command_setting",
)
_GEMINI: tuple[tuple[str, str, _Test], ...] = (
    (_HOOKS, "hooks", _something),
    (_BYPASSED, "general.defaultApprovalMode", _is("yolo", "auto_edit")),
    (_BYPASSED, "tools.approvalMode", _is("yolo", "auto-edit", "auto_edit")),
    (_ALLOWED, "tools.autoAccept", _is(True)),
    (_ALLOWED, "autoAccept", _is(True)),
)
_CODEX: tuple[tuple[str, str, _Test], ...] = (
    (_BYPASSED, "approval_policy", _is("never")),
    (_BYPASSED, "sandbox_mode", _is("danger-full-access")),
    (_COMMAND, "notify", _something),
    (_HOOKS, "hooks", _something),
)
_SWITCHES: Mapping[str, tuple[tuple[str, str, _Test], ...]] = {
    "gemini": _GEMINI,
    "qwen": _GEMINI,
    "codex": _CODEX,
    "opencode": (
        (_PLUGINS, "plugin", _something),
        (_BYPASSED, "permission", _lets_act),
        (_HOOKS, "experimental.hook", _something),
    ),
    "zed": (
        (_BYPASSED, "agent.always_allow_tool_actions", _is(True)),
        (_BYPASSED, "assistant.always_allow_tool_actions", _is(True)),
        (_BYPASSED, "agent.tool_permissions.default", _is("allow")),
        (_BYPASSED, "agent.tool_permissions.default_mode", _is("allow")),
    ),
    "crush": (
        (_BYPASSED, "permissions.skip_requests", _is(True)),
        (_BYPASSED, "permissions.allowed_tools", _allows_all),
        (_ALLOWED, "permissions.allowed_tools", _allows_some),
        (_HOOKS, "hooks", _something),
    ),
    "amp": (
        (_BYPASSED, "amp.dangerouslyAllowAll", _is(True)),
        (_BYPASSED, "amp.permissions", _allows_all),
        (_ALLOWED, "amp.permissions", _allows_some),
        (_ALLOWED, "amp.mcpPermissions", _something),
        (_HOOKS, "amp.hooks", _something),
        (_COMMAND, "amp.toolbox.path", _something),
    ),
    "goose": ((_BYPASSED, "GOOSE_MODE", _is("auto")),),
}
"""By client: what is found, the setting, and which values matter."""


def switches_in(client: str, document: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Code and path of each such setting in a client's file; those of profiles and agents inside it as well."""
    rules = _SWITCHES.get("amp" if client == "vscode" else client, ())
    holders: list[tuple[Any, tuple[str, ...]]] = [(document, ())]
    for member in ("profiles", "agent") if client in ("codex", "opencode") else ():
        inner = document.get(member) if type(document) is dict else None
        holders += [(value, (member, name)) for name, value in inner.items()] if type(inner) is dict else []
    for holder, before in holders:
        for code, name, matters in rules:
            for value, path in _at(holder, tuple(name.split("."))):
                if matters(value):
                    yield code, (*before, *path)


def _at(value: Any, steps: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    if not steps:
        yield value, ()
        return
    if type(value) is not dict:
        return
    for count in range(1, len(steps) + 1):
        member = ".".join(steps[:count])
        if member in value:
            yield from ((found, (member, *rest)) for found, rest in _at(value[member], steps[count:]))
