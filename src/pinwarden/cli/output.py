"""Printing a report: one format to stdout, others to files; colour only on a terminal."""

from __future__ import annotations

import os
import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.cli.render import FORMATS, render
from pinwarden.core.errors import EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.core.report import Report


def add_format_argument(parser: ArgumentParser) -> None:
    """``--format``."""
    parser.add_argument("--format", default="text", choices=FORMATS)


def add_report_arguments(parser: ArgumentParser) -> None:
    """``--format`` for commands that gate: repeatable, and ``FORMAT=FILE`` writes a file beside what is printed."""
    parser.add_argument(
        "--format",
        default="text",
        action=FormatAction,
        choices=_FormatChoices(),
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)}; FORMAT=FILE writes a file as well, and may be repeated",
    )
    parser.set_defaults(format_files=())


class _FormatChoices:
    """The formats, each alone or followed by ``=FILE``."""

    def __contains__(self, text: str) -> bool:
        return text.partition("=")[0] in FORMATS

    def __iter__(self) -> Iterator[str]:
        return iter(FORMATS)


class FormatAction(Action):
    """Keeps the format of stdout in ``format``, and the files to write in ``format_files``."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        """Take one more ``--format``."""
        del parser, option
        form, mark, path = str(values).partition("=")
        if not mark:
            if getattr(namespace, "_format_given", form) != form:
                raise ArgumentError(self, "only one format can go to stdout; write the others with FORMAT=FILE")
            namespace.format = namespace._format_given = form
        elif not path:
            raise ArgumentError(self, f"{form}= needs a file name")
        elif any(other == Path(path) for _, other in namespace.format_files):
            raise ArgumentError(self, f"two formats cannot go to the same file: {path[:200]!a}")
        else:
            namespace.format_files = (*namespace.format_files, (form, Path(path)))


def colour_wanted() -> bool:
    """Whether stdout is a terminal that shows colours, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def emit(report: Report, form: str) -> int:
    """Print the report and return its exit code."""
    sys.stdout.write(render(report, form, colour=colour_wanted()))
    sys.stdout.flush()  # before anything goes to stderr, so that a log of both keeps the order
    return report.exit_code


def emit_report(report: Report, args: Namespace, *, about: Sequence[str | Path] = ()) -> int:
    """Print the report in the chosen format, write the files that ``--format FORMAT=FILE`` names, return the exit code.

    A file that cannot be written makes a clean run exit with 3; the findings are on stdout in any case. Findings that
    name no file are shown at the first of ``about`` that is one.
    """
    if report.file is None and (file := next((Path(each) for each in about if Path(each).is_file()), None)):
        report = replace(report, file=_in_repository(file))
    exit_code = emit(report, args.format)
    written = [write_report_file(path, render(report, form)) for form, path in args.format_files]
    return exit_code if all(written) else exit_code or EXIT_UNCHECKED


def _in_repository(file: Path) -> str:
    """A path from the root of the repository, which is what viewers of reports resolve."""
    from pinwarden.system.repository import repository_root

    root = repository_root(file.parent)
    return file.resolve().relative_to(root).as_posix() if root is not None else file.as_posix()


def write_report_file(path: Path, text: str) -> bool:
    """Replace a report file in one step; a failure goes to stderr."""
    from pinwarden.core.visible import show_invisible
    from pinwarden.system.files import write_atomically

    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except PinwardenError as err:
        sys.stderr.write(f"error: {show_invisible(err.message)} [{err.code}]\nhint: {err.hint}\n")
        return False
    return True
