"""From arguments to a command, and from any failure to an exit code, a sentence and a hint."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from pinwarden.cli.streams import silence_stdout
from pinwarden.core.errors import CODES, EXIT_CLEAN, EXIT_UNCHECKED, PinwardenError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PinwardenError("USAGE", message, hint=f"run: {self.prog} --help")


class _Help(argparse.HelpFormatter):
    """Paragraphs as wide as the terminal; lines that are indented stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        return "\n\n".join(part if "\n " in part else _filled(part, width, indent) for part in parts)


def _filled(text: str, width: int, indent: str) -> str:
    import textwrap  # only help needs it

    words = " ".join(text.split())
    return textwrap.fill(words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def dispatch(arguments: Sequence[str], commands: Mapping[str, str]) -> int:
    """Run the command that the arguments name."""
    gc.set_threshold(100_000, 20, 20)  # a command is short and makes many values; few of them are ever garbage
    asked = _Asked.before_parsing(arguments, commands)
    try:
        asked.exit_code = _answer(arguments, commands, asked)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`| head`). What was found still counts, and if it is not known, that does.
        silence_stdout()
    except OSError as err:
        if err.errno not in _FULL:
            raise
        silence_stdout()
        _report(PinwardenError("FILE_UNWRITABLE", f"standard output: {err.strerror}"), asked)
        return EXIT_UNCHECKED
    return asked.exit_code


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _answer(arguments: Sequence[str], commands: Mapping[str, str], asked: _Asked) -> int:
    try:
        return _run(arguments, commands, asked)
    except PinwardenError as err:
        _report(err, asked)
        return err.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as err:
        if isinstance(err, BrokenPipeError) or (isinstance(err, OSError) and err.errno in _FULL):
            raise
        if os.environ.get("PINWARDEN_DEBUG"):
            raise
        _report(PinwardenError("INTERNAL", f"{type(err).__name__}: {err}"), asked)
        return EXIT_UNCHECKED


class _Asked:
    """Which command was asked for, and in which format it answers; a guess until the arguments are understood."""

    def __init__(self, command: str, form: str) -> None:
        self.command = command
        self.form = form
        self.files: Sequence[tuple[str, Path]] = ()
        self.exit_code = EXIT_UNCHECKED

    @classmethod
    def before_parsing(cls, arguments: Sequence[str], commands: Mapping[str, str]) -> _Asked:
        """What the words look like, because understanding them may be what fails."""
        options, _ = _split_command(arguments)
        named = next((name for count in (2, 1) if (name := " ".join(options[:count])) in commands), "")
        forms = [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
        forms += [word for option, word in pairwise(options) if option == "--format"]
        printed = [form for form in forms if "=" not in form]
        return cls(named, printed[-1] if printed else "text")


def _run(arguments: Sequence[str], commands: Mapping[str, str], asked: _Asked) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        asked.exit_code = EXIT_CLEAN  # whoever leaves before the end of it has not missed a verdict
        from pinwarden.cli.overview import overview

        sys.stdout.write(overview(commands))
        return EXIT_CLEAN
    if len(arguments) > 1 and arguments[1] in ("-h", "--help") and arguments[0] not in commands:
        below = _below(arguments[0], commands)
        if below:
            asked.exit_code = EXIT_CLEAN
            from pinwarden.cli.overview import family

            sys.stdout.write(family(arguments[0], below))
            return EXIT_CLEAN
    name, rest = _named(arguments, commands)
    asked.command = name
    module, parser = command_parser(name)
    parser.epilog = parser.epilog or _see_also(_below(name, commands))
    options, command = _split_command(rest)
    try:
        args = parser.parse_args(options)
    except SystemExit:  # the help was asked for
        return EXIT_CLEAN
    asked.form = getattr(args, "format", "text")
    asked.files = getattr(args, "format_files", ())
    if command and not getattr(module, "TAKES_COMMAND", False):
        parser.error("no command is expected after --")
    args.command = command
    exit_code: int = module.run(args)
    return exit_code


def _below(name: str, commands: Mapping[str, str]) -> dict[str, str]:
    """The commands whose first word is the name, and that have a second."""
    return {command: summary for command, summary in commands.items() if command.startswith(f"{name} ")}


def _see_also(commands: Mapping[str, str]) -> str | None:
    return f"see also: {', '.join(f'pinwarden {name}' for name in commands)}" if commands else None


def command_parser(name: str) -> tuple[ModuleType, argparse.ArgumentParser]:
    """The module of a command, and the parser of its arguments."""
    module = import_module(f"pinwarden.cli.commands.{name.replace(' ', '_').replace('-', '_')}")
    # Shortened, --env would be --environment, and tomorrow's option could take over what a script means today.
    # argparse makes a formatter to try each argument with; only the one that prints has to measure the screen.
    parser = _Parser(
        prog=f"pinwarden {name}", description=module.__doc__, formatter_class=_unmeasured, allow_abbrev=False
    )
    module.configure(parser)
    parser.formatter_class = _Help
    return module, parser


def _unmeasured(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=80)


def _named(arguments: Sequence[str], commands: Mapping[str, str]) -> tuple[str, Sequence[str]]:
    """The command that the first words name, and the words after it: ``lock digest`` goes before ``lock``."""
    for count in (2, 1):
        name = " ".join(arguments[:count])
        if len(arguments) >= count and name in commands:
            return name, arguments[count:]
    group = f"{arguments[0]} " if _below(arguments[0], commands) else ""
    raise PinwardenError("USAGE", _unknown(arguments, commands), hint=f"run: pinwarden {group}--help")


def _split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Everything after the first ``--`` is a command with its own options, which are not ours to read."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _unknown(arguments: Sequence[str], commands: Mapping[str, str]) -> str:
    name = arguments[0]
    below = _below(name, commands)
    if below:
        return f"{name} is followed by one of: {', '.join(command.split()[1] for command in below)}"
    if name.startswith("-"):
        return f"unknown option {name[:80]!a}"
    from difflib import get_close_matches

    near = get_close_matches(name, commands, n=1)
    return f"unknown command {name[:80]!a}" + (f", did you mean {near[0]}?" if near else "")


def _report(err: PinwardenError, asked: _Asked) -> None:
    """The error as a document of the format that was asked for, and as a sentence for whoever looks on."""
    from pinwarden.cli.layout import told
    from pinwarden.cli.render import render_error
    from pinwarden.core.visible import inert_in_log, show_invisible

    if err.code == "USAGE" and asked.command and err.hint == CODES["USAGE"].hint:
        err = PinwardenError(err.code, err.message, hint=f"run: pinwarden {asked.command} --help", data=err.data)
    sys.stdout.write(render_error(err, asked.command, asked.form))
    wrote = inert_in_log("".join(f"{show_invisible(line)}\n" for line in _last_words(err)))
    error, hint = (told(line, to=sys.stderr) for line in (f"error: {err.message} [{err.code}]", f"hint: {err.hint}"))
    sys.stderr.write(f"{error}{wrote}{hint}")
    _write_error_files(err, asked)


def _write_error_files(err: PinwardenError, asked: _Asked) -> None:
    """The error in every file that ``--format FORMAT=FILE`` names: a build server must not show an older report."""
    for form, path in asked.files:
        from pinwarden.cli.output import write_report_file
        from pinwarden.cli.render import render_error

        plain = f"error: {err.message} [{err.code}]\nhint: {err.hint}\n"
        write_report_file(path, render_error(err, asked.command, form) or plain)


def _last_words(err: PinwardenError) -> list[str]:
    """The last lines that a started program wrote to its stderr, which often say why it failed."""
    wrote = err.data.get("stderr")
    lines = [line for line in wrote.splitlines() if line.strip()] if isinstance(wrote, str) else []
    return [f"  | {line[:200]}" for line in lines[-_LAST_WORDS:]]


_LAST_WORDS = 10
