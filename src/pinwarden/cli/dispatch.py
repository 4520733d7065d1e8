"""From arguments to a command, and from a failure to an exit code, an error message and a hint."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from pinwarden.cli.commands import COMMANDS, Command, load_command
from pinwarden.cli.streams import silence_stdout
from pinwarden.core.errors import CODES, EXIT_CLEAN, EXIT_UNCHECKED, PinwardenError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STDERR_LINES = 10


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and return its exit code."""
    gc.set_threshold(100_000, 20, 20)  # a command is short and creates many values, few of them garbage
    invocation = _Invocation.guess(arguments)
    try:
        invocation.exit_code = _run_and_report(arguments, invocation)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). The exit code stays that of the result, or 3 if there is none yet.
        silence_stdout()
    except OSError as err:
        if err.errno not in _DISK_FULL:
            raise
        silence_stdout()
        _report(PinwardenError("FILE_UNWRITABLE", f"standard output: {err.strerror}"), invocation)
        return EXIT_UNCHECKED
    return invocation.exit_code


def command_parser(name: str) -> tuple[Command, argparse.ArgumentParser]:
    """A command, and the parser of its arguments."""
    command = load_command(name)
    # No abbreviations: --env would mean --environment until a new option changes what a script means.
    # argparse creates a formatter for every argument; only the one that prints has to measure the terminal.
    parser = _Parser(
        prog=f"pinwarden {name}",
        description=command.description,
        formatter_class=_fixed_width_formatter,
        allow_abbrev=False,
    )
    parser.takes_command = command.takes_command
    command.configure(parser)
    return command, parser


class _Parser(argparse.ArgumentParser):
    takes_command = False

    def error(self, message: str) -> NoReturn:
        raise PinwardenError("USAGE", message, hint=f"run: {self.prog} --help")

    def format_help(self) -> str:
        from pinwarden.cli.help import HelpFormatter, usage_line

        self.usage = usage_line(self, takes_command=self.takes_command)
        self.formatter_class = HelpFormatter
        self._positionals.title = "arguments"
        return super().format_help()


def _fixed_width_formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=80)


class _Invocation:
    """Which command runs and how it reports; guessed from the words until the arguments are parsed."""

    def __init__(self, command: str, form: str) -> None:
        self.command = command
        self.form = form
        self.files: Sequence[tuple[str, Path]] = ()
        self.exit_code = EXIT_UNCHECKED

    @classmethod
    def guess(cls, arguments: Sequence[str]) -> _Invocation:
        """From unparsed words, because parsing may be what fails."""
        options, _ = _split_command(arguments)
        named = next((name for count in (2, 1) if (name := " ".join(options[:count])) in COMMANDS), "")
        forms = [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
        forms += [word for option, word in pairwise(options) if option == "--format"]
        printed = [form for form in forms if "=" not in form]
        return cls(named, printed[-1] if printed else "text")


def _run_and_report(arguments: Sequence[str], invocation: _Invocation) -> int:
    try:
        return _run(arguments, invocation)
    except PinwardenError as err:
        _report(err, invocation)
        return err.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as err:
        if isinstance(err, BrokenPipeError) or (isinstance(err, OSError) and err.errno in _DISK_FULL):
            raise
        if os.environ.get("PINWARDEN_DEBUG"):
            raise
        _report(PinwardenError("INTERNAL", f"{type(err).__name__}: {err}"), invocation)
        return EXIT_UNCHECKED


def _run(arguments: Sequence[str], invocation: _Invocation) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    help_text = _overview_or_family(arguments)
    if help_text:
        invocation.exit_code = EXIT_CLEAN  # closing the pager early is not a failure
        sys.stdout.write(help_text)
        return EXIT_CLEAN
    name, rest = _find_command(arguments)
    invocation.command = name
    command, parser = command_parser(name)
    parser.epilog = parser.epilog or _see_also(_subcommands(name))
    options, user_command = _split_command(rest)
    try:
        args = parser.parse_args(options)
    except SystemExit:  # --help
        return EXIT_CLEAN
    invocation.form = getattr(args, "format", "text")
    if user_command and not command.takes_command:
        parser.error("this command takes no command after --")
    args.command = user_command
    if getattr(args, "format_files", ()) or getattr(args, "output", None) not in (None, "-"):
        from pinwarden.cli.output import refuse_project_files

        refuse_project_files(args, command.writes)
    invocation.files = getattr(args, "format_files", ())
    return command.run(args)


def _overview_or_family(arguments: Sequence[str]) -> str:
    """The help of all commands or of one family, if the arguments ask for it."""
    if not arguments or arguments[0] in ("-h", "--help"):
        from pinwarden.cli.help import overview

        return overview(COMMANDS)
    if len(arguments) > 1 and arguments[1] in ("-h", "--help") and arguments[0] not in COMMANDS:
        below = _subcommands(arguments[0])
        if below:
            from pinwarden.cli.help import family_help

            return family_help(arguments[0], below)
    return ""


def _subcommands(name: str) -> dict[str, str]:
    """The commands of two words whose first word is the name."""
    return {command: summary for command, summary in COMMANDS.items() if command.startswith(f"{name} ")}


def _see_also(commands: dict[str, str]) -> str | None:
    return f"See also: {', '.join(f'pinwarden {name}' for name in commands)}" if commands else None


def _find_command(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The command that the first words name, and the other words. ``lock digest`` takes precedence over ``lock``."""
    for count in (2, 1):
        name = " ".join(arguments[:count])
        if len(arguments) >= count and name in COMMANDS:
            return name, arguments[count:]
    group = f"{arguments[0]} " if _subcommands(arguments[0]) else ""
    raise PinwardenError("USAGE", _unknown_command(arguments), hint=f"run: pinwarden {group}--help")


def _split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split at the first ``--``: what follows is the user's command, whose options are not ours."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    separator = words.index("--")
    return words[:separator], words[separator + 1 :]


def _unknown_command(arguments: Sequence[str]) -> str:
    name = arguments[0]
    below = _subcommands(name)
    if below:
        return f"{name} needs one of these commands: {', '.join(command.split()[1] for command in below)}"
    if name.startswith("-"):
        return f"unknown option {name[:80]!a}"
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return f"unknown command {name[:80]!a}" + (f", did you mean {near[0]}?" if near else "")


def _report(err: PinwardenError, invocation: _Invocation) -> None:
    """Print the error to stdout in the chosen format, and for people to stderr."""
    from pinwarden.cli.layout import wrap
    from pinwarden.cli.render import render_error
    from pinwarden.core.text import neutralize_log_commands, show_invisible

    if err.code == "USAGE" and invocation.command and err.hint == CODES["USAGE"].hint:
        err = PinwardenError(err.code, err.message, hint=f"run: pinwarden {invocation.command} --help", data=err.data)
    sys.stdout.write(render_error(err, invocation.command, invocation.form))
    server_stderr = neutralize_log_commands("".join(f"{show_invisible(line)}\n" for line in _stderr_lines(err)))
    error, hint = (wrap(line, to=sys.stderr) for line in (f"error: {err.message} [{err.code}]", f"hint: {err.hint}"))
    sys.stderr.write(f"{error}{server_stderr}{hint}")
    _write_error_files(err, invocation)


def _write_error_files(err: PinwardenError, invocation: _Invocation) -> None:
    """Write the error to every file of ``--format FORMAT=FILE``, so that CI does not show an older report."""
    for form, path in invocation.files:
        from pinwarden.cli.output import write_report_file
        from pinwarden.cli.render import render_error

        plain = f"error: {err.message} [{err.code}]\nhint: {err.hint}\n"
        write_report_file(path, render_error(err, invocation.command, form) or plain)


def _stderr_lines(err: PinwardenError) -> list[str]:
    """The last lines that a started server wrote to stderr, which often explain the failure."""
    written = err.data.get("stderr")
    lines = [line for line in written.splitlines() if line.strip()] if isinstance(written, str) else []
    return [f"  | {line[:200]}" for line in lines[-_STDERR_LINES:]]
