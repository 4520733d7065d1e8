"""Entry point: find the command, run it, and turn a failure into an error message, a hint and an exit code.

Imports as little as possible, so that ``--version`` starts at once. The module of a command is imported when that
command runs.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pinwarden.cli.output import CapturedStdout
    from pinwarden.core.errors import PinwardenError

_STDERR_LINES = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _configure_streams()
    if arguments in (["--version"], ["-V"]):
        from pinwarden.core.version import __version__

        sys.stdout.write(f"pinwarden {__version__}\n")
        return 0
    return _dispatch(arguments)


def _configure_streams() -> None:
    """Open missing streams on the null device, and escape characters that an encoding does not have.

    A process may be started without some of the streams, or with an encoding that cannot represent a server's name.
    Neither may stop a check or change its result.
    """
    # In ascending order: otherwise the next opened file would get the missing descriptor, and output would go into it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _dispatch(arguments: Sequence[str]) -> int:
    import gc

    from pinwarden.core.errors import EXIT_UNCHECKED, PinwardenError

    gc.set_threshold(100_000, 20, 20)  # a command runs briefly and creates many objects, few of them garbage
    invocation = _Invocation(arguments, EXIT_UNCHECKED)
    try:
        invocation.exit_code = _run_and_report(arguments, invocation)
        sys.stdout.flush()
        if invocation.captured is not None and invocation.report_file is not None:
            written = invocation.captured.write_to(invocation.report_file)
            return invocation.exit_code if written else invocation.exit_code or EXIT_UNCHECKED
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). The exit code stays that of the result, or 3 if there is none yet.
        _silence_stdout()
    except OSError as err:
        if not _is_disk_full(err):
            raise
        _silence_stdout()
        _report_error(PinwardenError("FILE_UNWRITABLE", f"standard output: {err.strerror}"), invocation)
        return EXIT_UNCHECKED
    return invocation.exit_code


class _Invocation:
    """Which command runs, and in which formats it reports.

    Until the arguments are parsed, both are guessed from the command line, because parsing may fail.
    """

    def __init__(self, arguments: Sequence[str], exit_code: int) -> None:
        from itertools import pairwise

        from pinwarden.cli.commands import COMMANDS

        options, _ = _split_command(arguments)
        formats = ["json"] if "--json" in options else []
        formats += [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
        formats += [word for option, word in pairwise(options) if option == "--format"]
        self.command = next((name for count in (2, 1) if (name := " ".join(options[:count])) in COMMANDS), "")
        self.output_format = next(
            (output_format for output_format in reversed(formats) if "=" not in output_format), "text"
        )
        self.files: Sequence[tuple[str, Path]] = ()
        self.report_file: str | None = None
        """The file of ``--output``, which gets what the command prints to stdout."""
        self.captured: CapturedStdout | None = None
        self.exit_code = exit_code


def _run_and_report(arguments: Sequence[str], invocation: _Invocation) -> int:
    from pinwarden.core.errors import EXIT_UNCHECKED, PinwardenError

    try:
        return _run(arguments, invocation)
    except PinwardenError as err:
        _report_error(err, invocation)
        return err.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as err:
        if isinstance(err, BrokenPipeError) or (isinstance(err, OSError) and _is_disk_full(err)):
            raise
        if isinstance(err, ModuleNotFoundError) and err.name in _EXTRAS:
            missing = _describe_missing_package(err.name)
            _report_error(missing, invocation)
            return missing.exit_code
        if os.environ.get("PINWARDEN_DEBUG"):
            raise
        _report_error(PinwardenError("INTERNAL", f"{type(err).__name__}: {err}"), invocation)
        return EXIT_UNCHECKED


_EXTRAS = {"jwt": "identity", "psycopg": "postgres", "procrastinate": "census", "httptools": "gateway"} | dict.fromkeys(
    ("starlette", "uvicorn", "jinja2"), "registry"
)
"""The extra of Pinwarden that installs an optional package."""


def _describe_missing_package(name: str) -> PinwardenError:
    from pinwarden.core.errors import PinwardenError

    return PinwardenError(
        "USAGE",
        f"this needs the package {name}, which is not installed",
        hint=f'Install it from a checkout of Pinwarden: pip install ".[{_EXTRAS[name]}]"',
    )


def _run(arguments: Sequence[str], invocation: _Invocation) -> int:
    """Run the command that the arguments name.

    1. Print the overview or the help of a family, if that is requested.
    2. Find the command, and parse its options.
    3. Refuse to overwrite files of the project with a report.
    4. Call the command.
    """
    from pinwarden.cli.commands import COMMANDS, create_command_parser, find_command, list_subcommands
    from pinwarden.cli.global_arguments import move_to_command
    from pinwarden.core.errors import EXIT_CLEAN

    arguments = move_to_command(arguments, COMMANDS)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    help_text = _find_requested_help(arguments)
    if help_text:
        invocation.exit_code = EXIT_CLEAN  # closing the pager early is not a failure
        sys.stdout.write(help_text)
        return EXIT_CLEAN
    invocation.command, rest = find_command(arguments)
    command, parser = create_command_parser(invocation.command)
    family = ", ".join(f"pinwarden {name}" for name in list_subcommands(invocation.command))
    parser.epilog = parser.epilog or (f"See also: {family}" if family else None)
    options, user_command = _split_command(rest)
    try:
        args = parser.parse_args(options)
    except SystemExit:  # --help
        return EXIT_CLEAN
    invocation.output_format = getattr(args, "format", "text")
    if user_command and not command.takes_command:
        parser.error("this command takes no command after --")
    args.command = user_command
    from pinwarden.cli.global_arguments import remember_options

    remember_options(args)
    report_file = getattr(args, "report_output", None)
    if report_file or getattr(args, "format_files", ()) or getattr(args, "output", None) not in (None, "-"):
        from pinwarden.cli.output import refuse_overwriting_project_files

        refuse_overwriting_project_files(args, command.writes)
    invocation.files = getattr(args, "format_files", ())
    invocation.report_file = None if report_file in (None, "-") else report_file
    if invocation.report_file is not None:
        from pinwarden.cli.output import CapturedStdout

        invocation.captured = CapturedStdout()
    return command.run(args)


def _find_requested_help(arguments: Sequence[str]) -> str:
    """Return the help of all commands or of one family, if the arguments ask for it."""
    from pinwarden.cli.commands import COMMANDS, FAMILIES, TASKS, list_subcommands

    if not arguments or arguments[0] in ("-h", "--help"):
        from pinwarden.cli.help import render_overview

        return render_overview(COMMANDS, TASKS, FAMILIES)
    if len(arguments) > 1 and arguments[1] in ("-h", "--help") and arguments[0] not in COMMANDS:
        family = list_subcommands(arguments[0])
        if family:
            from pinwarden.cli.help import render_family_help

            return render_family_help(arguments[0], FAMILIES.get(arguments[0], ""), family)
    return ""


def _split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split at the first ``--``. The words after it are a command to start, whose options are not ours."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    separator = words.index("--")
    return words[:separator], words[separator + 1 :]


def _report_error(err: PinwardenError, invocation: _Invocation) -> None:
    """Print the error to stdout in the chosen format, and for people to stderr."""
    from pinwarden.cli.output import render_error
    from pinwarden.cli.render.text import wrap
    from pinwarden.core.errors import CODES, PinwardenError
    from pinwarden.core.text import neutralize_log_commands, show_invisible

    if err.code == "USAGE" and invocation.command and err.hint == CODES["USAGE"].hint:
        err = PinwardenError(err.code, err.message, hint=f"run: pinwarden {invocation.command} --help", data=err.data)
    sys.stdout.write(render_error(err, invocation.command, invocation.output_format))
    server_stderr = neutralize_log_commands("".join(f"{show_invisible(line)}\n" for line in _format_stderr_lines(err)))
    error, hint = (
        wrap(line, stream=sys.stderr) for line in (f"error: {err.message} [{err.code}]", f"hint: {err.hint}")
    )
    sys.stderr.write(f"{error}{server_stderr}{hint}")
    _write_error_files(err, invocation)


def _write_error_files(err: PinwardenError, invocation: _Invocation) -> None:
    """Write the error to every file of ``--format FORMAT=FILE``, so that CI does not show an older report."""
    for output_format, path in invocation.files:
        from pinwarden.cli.output import render_error, write_report_file

        text_report = f"error: {err.message} [{err.code}]\nhint: {err.hint}\n"
        write_report_file(path, render_error(err, invocation.command, output_format) or text_report)


def _format_stderr_lines(err: PinwardenError) -> list[str]:
    """Return the last lines that a started server wrote to stderr, which often explain the failure."""
    stderr = err.data.get("stderr")
    lines = [line for line in stderr.splitlines() if line.strip()] if isinstance(stderr, str) else []
    return [f"  | {line[:200]}" for line in lines[-_STDERR_LINES:]]


def _silence_stdout() -> None:
    """Redirect stdout to the null device: flushing at exit would repeat the failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_disk_full(err: OSError) -> bool:
    import errno

    return err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
