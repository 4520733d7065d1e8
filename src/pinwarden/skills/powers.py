"""What a skill does without being asked: hooks, commands that run on loading, tools that need no permission, servers.

Clients read the front matter of ``SKILL.md`` more or less strictly: some skip a broken one, some read it line by line.
So it is read here line by line, as the most lenient client does, and a line that only a YAML parser would understand is
a power itself. Nothing that some client acts on can then be added without being reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pinwarden.core.record import Record
from pinwarden.skills.front_matter import FrontMatter, read_front_matter
from pinwarden.skills.skill import Skill, SkillFile, is_plugin_manifest

_INERT_MEMBERS = frozenset(
    [
        "name",
        "description",
        "license",
        "compatibility",
        "metadata",
        "version",
        "author",
        "when_to_use",
        "when-to-use",
        "argument-hint",
        "tags",
        "title",
        "keywords",
        "category",
        "homepage",
        "repository",
        "disable-model-invocation",
        "user-invocable",
    ]
)
"""Members of the front matter that are text for the model or for people."""
_ALLOWED, _DENIED = "allowed-tools", "disallowed-tools"
_WORDS = re.compile(r"[^\s,\[\]\"'()]+(?:\([^)]*\)?)?")
_INLINE_COMMAND = re.compile(r"(?<![^\s(\[*_>\"'|:-])!`([^`\n]+)`")
_COMMAND_BLOCK = re.compile(
    r"^[ \t]*(?:```+|~~~+)[ \t]*![^\n]*\n(.*?)(?:^[ \t]*(?:```+|~~~+)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_SERVER = re.compile(
    r"(?:\btype\b[\"']?\s*:\s*[\"']?mcp\b|\bmcpServers\b|\bmcp_servers\b|\bcommand[\"']?\s*:|\burl[\"']?\s*:)"
)
_TOML_COMMAND = re.compile(r"!\{([^}\n]+)\}")
_OUTSIDE_IMPORT = re.compile(r"(?:^|(?<=\s))@(~/[^\s`]+)", re.MULTILINE)
_MAX_SHOWN = 200


class Power(Record):
    """One thing that a client does because of a skill."""

    kind: str
    """``hooks``, ``command``, ``tool``, ``restriction``, ``server``, ``plugin``, ``setting`` or ``import``."""
    value: str

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= _MAX_SHOWN else f"{self.value[:_MAX_SHOWN]}…"
        return _DESCRIPTIONS[self.kind].format(shown)


_DESCRIPTIONS: Mapping[str, str] = {
    "hooks": "registers hooks: {}",
    "command": "runs a command when it is loaded: {}",
    "tool": "uses a tool without asking: {}",
    "restriction": "no longer forbids a tool: {}",
    "server": "brings a server: {}",
    "plugin": "is a plugin: {}",
    "setting": "changes how the client works: {}",
    "import": "has a client read a file of the user: {}",
}


def find_powers(skill: Skill) -> tuple[Power, ...]:
    """Return everything that some client does because of the skill, sorted and without repetitions."""
    find = _find_in_file if skill.kind == "skill" else _find_in_instructions
    powers = {(power.kind, power.value): power for file in skill.files for power in find(file)}
    return tuple(powers[key] for key in sorted(powers))


def find_widened_powers(approved: Skill, present: Skill) -> tuple[Power, ...]:
    """Return the powers that the approved skill does not have, and the tools that it forbids and this one does not."""
    known = set(find_powers(approved))
    gained = [power for power in find_powers(present) if power not in known]
    allowed_again = sorted(_list_denied(approved) - _list_denied(present))
    return (*gained, *(Power(kind="restriction", value=tool) for tool in allowed_again))


def _find_in_file(file: SkillFile) -> Iterator[Power]:
    if file.text is None:
        return
    if file.is_main:
        yield from _find_in_front_matter(read_front_matter(file.text))
        yield from (Power(kind="command", value=match[1].strip()) for match in _INLINE_COMMAND.finditer(file.text))
        yield from (Power(kind="command", value=match[1].strip()) for match in _COMMAND_BLOCK.finditer(file.text))
    if file.kind != "power":
        return
    if is_plugin_manifest(file.path):
        yield Power(kind="plugin", value=file.path)
    elif file.path.lower().endswith("hooks.json"):
        yield Power(kind="hooks", value=file.path)
    elif not file.path.lower().endswith((".yaml", ".yml")) or _SERVER.search(file.text):
        yield Power(kind="server", value=file.path)


def _find_in_instructions(file: SkillFile) -> Iterator[Power]:
    """Find what a client does because of a memory file, a rule, an agent or a command."""
    if file.text is None:
        return
    yield from _find_in_front_matter(read_front_matter(file.text))
    if "/commands/" in f"/{file.path}":
        patterns = (_TOML_COMMAND,) if file.path.endswith(".toml") else (_INLINE_COMMAND, _COMMAND_BLOCK)
        for pattern in patterns:
            yield from (Power(kind="command", value=match[1].strip()) for match in pattern.finditer(file.text))
    yield from (Power(kind="import", value=f"@{match[1]}") for match in _OUTSIDE_IMPORT.finditer(file.text))


def _find_in_front_matter(front: FrontMatter) -> Iterator[Power]:
    for member, value in front.members.items():
        if member == _ALLOWED:
            yield from (Power(kind="tool", value=tool) for tool in _WORDS.findall(_drop_list_marks(value)))
        elif member == "hooks":
            yield Power(kind="hooks", value=" ".join(value.split()))
        elif member not in _INERT_MEMBERS and member != _DENIED:
            yield Power(kind="setting", value=f"{member}: {' '.join(value.split())}")
    yield from (Power(kind="setting", value=line) for line in front.unusual)


def _list_denied(skill: Skill) -> set[str]:
    main = [read_front_matter(file.text or "") for file in skill.files if file.is_main or skill.kind == "instructions"]
    return {tool for front in main for tool in _WORDS.findall(_drop_list_marks(front.members.get(_DENIED, "")))}


def _drop_list_marks(value: str) -> str:
    return re.sub(r"^\s*-\s+", "", value, flags=re.MULTILINE)
