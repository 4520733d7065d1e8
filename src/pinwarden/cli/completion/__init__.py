"""Shell completion scripts. A script contains every command and option; pressing Tab does not start pinwarden."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.cli.grammar import CommandSpec

SHELLS = ("bash", "zsh", "fish")


def render_completion_script(shell: str, commands: tuple[CommandSpec, ...]) -> str:
    """Return the completion script for a shell."""
    function: Callable[[tuple[CommandSpec, ...]], str] = import_module(
        f"pinwarden.cli.completion.{shell}"
    ).render_script
    return function(commands)


def shell_quote(text: str) -> str:
    """Return text in single quotes, for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"
