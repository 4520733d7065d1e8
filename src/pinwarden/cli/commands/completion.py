"""Print a script that completes pinwarden's commands, options and their values in a shell.

bash: put  source <(pinwarden completion bash)  into ~/.bashrc
zsh:  put  source <(pinwarden completion zsh)  into ~/.zshrc, after compinit
fish: run  pinwarden completion fish > ~/.config/fish/completions/pinwarden.fish

The script holds all it needs: completing starts no pinwarden. Make it anew after an update.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.completion import SHELLS, completion_script
from pinwarden.core.errors import EXIT_CLEAN


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("shell", choices=SHELLS)


def run(args: Namespace) -> int:
    """Write the script to stdout."""
    from pinwarden.cli.grammar import grammar
    from pinwarden.cli.main import COMMANDS

    sys.stdout.write(completion_script(args.shell, grammar(COMMANDS)))
    return EXIT_CLEAN
