"""The files whose text clients pass to the model as instructions: memory files, rules, agents, commands.

Files that are meant for one person and are usually not committed, such as ``CLAUDE.local.md``, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinwarden.core.record import Record

_AGENTS = ("agents.md",)

_MEMORY_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "claude": ("claude.md",),
        "codex": ("agents.override.md", *_AGENTS),
        "gemini": ("gemini.md",),
        "cursor": (".cursorrules", *_AGENTS),
        "vscode": (*_AGENTS, "claude.md"),
        "copilot-cli": (*_AGENTS, "claude.md", "gemini.md"),
        "opencode": (*_AGENTS, "claude.md"),
        "goose": (".goosehints", *_AGENTS),
        "windsurf": (".windsurfrules", *_AGENTS),
        "amp": (*_AGENTS, "agent.md", "claude.md"),
        "crush": (*_AGENTS, "crush.md", "claude.md", "gemini.md", ".cursorrules"),
    }
)
"""Names of files that a client reads in the project and in its subfolders, in lower case."""

_FOLDERS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = MappingProxyType(
    {
        "claude": (
            (".claude/agents", (".md",)),
            (".claude/commands", (".md",)),
            (".claude/rules", (".md",)),
            (".claude/output-styles", (".md",)),
        ),
        "gemini": ((".gemini/commands", (".toml",)), (".gemini/agents", (".md",))),
        "cursor": (
            (".cursor/rules", (".mdc", ".md")),
            (".cursor/commands", (".md",)),
            (".cursor/agents", (".md",)),
            (".claude/agents", (".md",)),
            (".claude/commands", (".md",)),
        ),
        "vscode": (
            (".github/instructions", (".md",)),
            (".github/prompts", (".md",)),
            (".github/agents", (".md",)),
            (".github/chatmodes", (".md",)),
            (".claude/agents", (".md",)),
            (".claude/rules", (".md",)),
        ),
        "copilot-cli": (
            (".github/instructions", (".md",)),
            (".github/agents", (".md",)),
            (".claude/agents", (".md",)),
            (".claude/commands", (".md",)),
        ),
        "opencode": tuple(
            (f".opencode/{name}", (".md",)) for name in ("agent", "agents", "command", "commands", "mode", "modes")
        ),
        "windsurf": ((".windsurf/rules", (".md",)), (".windsurf/workflows", (".md",))),
    }
)
"""Folders of instruction files, with the endings of their names, in lower case."""

_SINGLE_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {".github/copilot-instructions.md": ("vscode", "copilot-cli", "crush")}
)
_IMPORTING = frozenset(("claude.md", "gemini.md", "agents.md"))


class InstructionFile(Record):
    """What a path says about an instruction file."""

    clients: tuple[str, ...]
    """The ids of the clients that read it."""
    imports: bool
    """Whether a client replaces ``@path`` in it by the text of that file."""


def describe_instruction_file(path: str) -> InstructionFile | None:
    """Return which clients read the file at a path relative to the project; None if none does."""
    folded = path.lower()
    folder, _, name = folded.rpartition("/")
    clients = [client for client, names in _MEMORY_FILES.items() if name in names]
    clients += _SINGLE_FILES.get("/".join(folded.split("/")[-2:]), ())
    around = f"/{folder}/"
    for client, folders in _FOLDERS.items():
        if any(f"/{one}/" in around and name.endswith(endings) for one, endings in folders):
            clients.append(client)
    if not clients:
        return None
    return InstructionFile(clients=tuple(dict.fromkeys(clients)), imports=name in _IMPORTING)
