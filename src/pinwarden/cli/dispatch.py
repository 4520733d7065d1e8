"""From arguments to a command, and from any failure to an exit code, a sentence and a hint."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import NoReturn

from pinwarden.core.errors import EXIT_CLEAN, EXIT_UNCHECKED, PinwardenError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PinwardenError("USAGE", message, hint=f"run: {self.prog} --help")


def dispatch(arguments: Sequence[str], commands: Mapping[str, str]) -> int:
    """Run the command that the arguments name."""
    gc.set_threshold(100_000, 20, 20)  # a command is short and makes many values; few of them are ever garbage
    wants_json = _wants_json(arguments)
    try:
        return _run(arguments, commands)
    except PinwardenError as err:
        _report(err, wants_json)
        return err.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`| head`); writing again at exit would only repeat the failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLEAN
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as err:
        if os.environ.get("PINWARDEN_DEBUG"):
            raise
        _report(PinwardenError("INTERNAL", f"{type(err).__name__}: {err}"), wants_json)
        return EXIT_UNCHECKED


def _run(arguments: Sequence[str], commands: Mapping[str, str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview(commands))
        return EXIT_CLEAN
    name, rest = _named(arguments, commands)
    module, parser = command_parser(name)
    options, command = _split_command(rest)
    args = parser.parse_args(options)
    if command and not getattr(module, "TAKES_COMMAND", False):
        parser.error("no command is expected after --")
    args.command = command
    exit_code: int = module.run(args)
    sys.stdout.flush()
    return exit_code


def command_parser(name: str) -> tuple[ModuleType, argparse.ArgumentParser]:
    """The module of a command, and the parser of its arguments."""
    module = import_module(f"pinwarden.cli.commands.{name.replace(' ', '_').replace('-', '_')}")
    parser = _Parser(
        prog=f"pinwarden {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.configure(parser)
    return module, parser


def _named(arguments: Sequence[str], commands: Mapping[str, str]) -> tuple[str, Sequence[str]]:
    """The command that the first words name, and the words after it: ``lock digest`` goes before ``lock``."""
    for count in (2, 1):
        name = " ".join(arguments[:count])
        if len(arguments) >= count and name in commands:
            return name, arguments[count:]
    raise PinwardenError("USAGE", _unknown(arguments, commands), hint="run: pinwarden --help")


def _split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Everything after the first ``--`` is a command with its own options, which are not ours to read."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _overview(commands: Mapping[str, str]) -> str:
    width = max(map(len, commands))
    rows = "".join(f"  {name:{width}}  {summary}\n" for name, summary in commands.items())
    return (
        "usage: pinwarden COMMAND [arguments]\n\n"
        f"commands:\n{rows}\n"
        "pinwarden COMMAND --help tells about one command; pinwarden --version prints the version.\n"
        "exit codes: 0 clean, 1 drift or refusal, 2 usage, 3 could not check\n"
    )


def _unknown(arguments: Sequence[str], commands: Mapping[str, str]) -> str:
    name = arguments[0]
    below = [command for command in commands if command.startswith(f"{name} ")]
    if below:
        return f"{name} is followed by one of: {', '.join(command.split()[1] for command in below)}"
    if name.startswith("-"):
        return f"unknown option {name[:80]!a}"
    from difflib import get_close_matches

    near = get_close_matches(name, commands, n=1)
    return f"unknown command {name[:80]!a}" + (f", did you mean {near[0]}?" if near else "")


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether to answer in JSON, decided before parsing because parsing may be what fails."""
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _report(err: PinwardenError, wants_json: bool) -> None:
    if wants_json:
        import json

        report = {"error": {"code": err.code, "message": err.message, "hint": err.hint, "data": dict(err.data)}}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    sys.stderr.write(f"error: {err.message} [{err.code}]\nhint: {err.hint}\n")
