"""The options of commands about an author's server: which server, which lock."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.contract.dialect import Dialect
    from pinwarden.contract.observation import Observed

_DIALECTS = ("F1", "F2", "F3", "F4", "F5", "V")


def add_server_arguments(parser: ArgumentParser) -> None:
    """The server: a Python file, a command, or an address."""
    server = parser.add_argument_group("the server, one of")
    server.add_argument("--server", metavar="FILE[:OBJECT]", help="Python file with the server; it is imported")
    server.add_argument("--url", metavar="URL", help="address of a live server")
    server.add_argument("--command", dest="starts", action="store_true", help="start the command that stands after --")
    server.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="${VAR} is filled in")
    server.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the started server")
    source = parser.add_argument_group("reading its source")
    source.add_argument("--python", metavar="PROGRAM", help="the interpreter that has the server's packages")
    source.add_argument("--source", metavar="DIR", help="with --command or --url: the folder of its Python package")
    source.add_argument("--scan-packages", action="store_true", help="look into installed packages that are not known")
    add_probe_arguments(parser)


def add_lockfile_argument(parser: ArgumentParser) -> None:
    """``--lock``."""
    parser.add_argument("--lock", metavar="FILE", help="the lockfile (mcp-fusion.lock or vurb.lock, whichever is here)")


def add_budget_arguments(parser: ArgumentParser) -> None:
    """``--budget`` and ``--tool-budget``."""
    parser.add_argument("--budget", type=int, metavar="TOKENS", help="fail if all tools together cost more")
    parser.add_argument("--tool-budget", type=int, metavar="TOKENS", help="fail if one tool costs more")


def add_dialect_argument(parser: ArgumentParser) -> None:
    """``--dialect``."""
    parser.add_argument("--dialect", choices=_DIALECTS, help="write as these releases did (F5; V for vurb.lock)")


def dialect_of(args: Namespace) -> Dialect | None:
    """The dialect that was named."""
    from pinwarden.contract.dialect import dialect_named

    return None if args.dialect is None else dialect_named(args.dialect)


def observed_by(args: Namespace) -> Observed:
    """The server that the options name, as it is now."""
    from pinwarden.cli.progress import Progress
    from pinwarden.cli.targets import command_target, is_address, options_of, target_of, variables_of
    from pinwarden.contract.observation import observe_live, observe_python
    from pinwarden.core.record import replace

    if sum(map(bool, (args.server, args.url, args.command))) != 1:
        raise PinwardenError(
            "USAGE", "name one server", hint="Use --server FILE, --url URL, or --command -- and the command."
        )
    if args.url and not is_address(args.url):
        raise PinwardenError("USAGE", "--url takes an address", hint="Begin it with https://")
    _refuse_ignored(args)
    options = options_of(args, typed=True)
    if args.server:
        from pinwarden.contract.python_server import interpreter_for, python_server

        server = python_server(args.server)
        python = interpreter_for(server, os.environ, args.python)
        with Progress("importing and asking the server"):
            return observe_python(
                server, python, options, variables=variables_of(args), scan_packages=args.scan_packages
            )
    folder = None if args.source is None else Path(args.source)
    with Progress("asking the server"):
        if args.url:
            return observe_live(target_of(args.url, Namespace(header=args.header, config=None)), options, folder)
        started = replace(options, allow_execute=options.allow_execute or args.starts)
        return observe_live(command_target(args.command, args), started, folder)


def _refuse_ignored(args: Namespace) -> None:
    """An option that would do nothing is a misunderstanding."""
    ignored = (
        ("--header", args.header and not args.url, "--url"),
        ("--env", args.env and args.url, "--server or --command"),
        ("--python", args.python and not args.server, "--server"),
        ("--scan-packages", args.scan_packages and not args.server, "--server"),
        ("--source", args.source and args.server, "--command or --url"),
    )
    for option, given, place in ignored:
        if given:
            raise PinwardenError("USAGE", f"{option} belongs to {place}", hint=f"Leave out {option}.")
