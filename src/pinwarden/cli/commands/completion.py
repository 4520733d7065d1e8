"""``completion``: scripts for bash, zsh and fish."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.commands import COMMANDS, command
from pinwarden.cli.completion import SHELLS, render_completion_script
from pinwarden.core.errors import EXIT_CLEAN


def _configure_completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="your shell")


@command(_configure_completion)
def completion(args: Namespace) -> int:
    """Print a script that completes pinwarden's commands, options and values in your shell.

    For bash, add this line to ~/.bashrc:
      source <(pinwarden completion bash)

    For zsh, add this line to ~/.zshrc, after compinit:
      source <(pinwarden completion zsh)

    For fish, run this once, and again after an update:
      pinwarden completion fish > ~/.config/fish/completions/pinwarden.fish

    The script contains everything it needs, so pressing Tab does not start pinwarden.
    """
    from pinwarden.cli.grammar import read_grammar

    sys.stdout.write(render_completion_script(args.shell, read_grammar(COMMANDS)))
    return EXIT_CLEAN
