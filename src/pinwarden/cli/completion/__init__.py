"""Completion scripts for shells. A script holds every command and option, so that no TAB starts pinwarden."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.cli.grammar import Command

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, commands: tuple[Command, ...]) -> str:
    """The script for one of the shells."""
    function: Callable[[tuple[Command, ...]], str] = import_module(f"pinwarden.cli.completion.{shell}").script
    return function(commands)


def quoted(text: str) -> str:
    """Text between single quotes, as bash and zsh read it."""
    return "'" + text.replace("'", "'\\''") + "'"
