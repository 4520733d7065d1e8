"""``config``: check ``pinwarden.toml``, and show the settings that apply."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_from


def _configure_config(parser: ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", metavar="FILE", help="the file (default: pinwarden.toml in the project)")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_config)
def config_check(args: Namespace) -> int:
    """Check every table of pinwarden.toml: [policy], [identity] and [remotes].

    All mistakes are found in one run, unknown tables and keys among them. Nothing is contacted, and environment
    variables that the file names are not looked up. The exit code is 1 if there is a mistake.

    Examples:
      pinwarden config check
    """
    from pinwarden.project.config_file import check_config

    return emit(check_config(_find_file(args)), args.format)


@command(_configure_config)
def config_explain(args: Namespace) -> int:
    """Show the settings that apply: what the file says, and the defaults of the gateway's policy.

    Without a file, these are the defaults. To see which rule decides about one call, use pinwarden policy explain.

    Examples:
      pinwarden config explain
    """
    from pinwarden.project.config_file import explain_config

    return emit(explain_config(_find_file(args)), args.format)


def _find_file(args: Namespace) -> Path:
    from pinwarden.project.project import OWN_POLICY

    return Path(args.path) if args.path else project_from(args).root / OWN_POLICY
