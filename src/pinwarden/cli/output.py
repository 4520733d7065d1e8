"""Print a report: one format to stdout, others to files; colour only on a terminal."""

from __future__ import annotations

import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.cli.global_arguments import chosen_detail, colour_wanted, repeat_project_options
from pinwarden.core.errors import EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.project.project import Project

FORMATS = ("text", "json", "sarif", "markdown", "junit", "github")
"""The output formats. Each has a module in ``cli/render``."""
_MARGIN = "    "


def add_format_argument(parser: ArgumentParser) -> None:
    """Add ``--format``."""
    parser.add_argument("--format", default="text", choices=FORMATS, help="output format (default: text)")


def add_report_arguments(parser: ArgumentParser) -> None:
    """Add ``--format`` for checks: repeatable, and ``FORMAT=FILE`` writes a file in addition to stdout."""
    parser.add_argument(
        "--format",
        default="text",
        action=FormatAction,
        choices=_FormatChoices(),
        metavar="FORMAT",
        help=f"output format: {', '.join(FORMATS)} (default: text); FORMAT=FILE also writes that format to a file, "
        "and may be repeated",
    )
    parser.set_defaults(format_files=())


def emit(report: Report, output_format: str) -> int:
    """Print the report and return its exit code."""
    report = complete_next_command(report)
    sys.stdout.write(render(report, output_format, colour=colour_wanted()))
    sys.stdout.flush()  # before anything goes to stderr, so that a log of both keeps the order
    return report.exit_code


def emit_report(report: Report, args: Namespace, *, about: Sequence[str | Path] = ()) -> int:
    """Print the report, write the files of ``--format FORMAT=FILE``, and return the exit code.

    If a file cannot be written, a clean run exits with 3; the findings are on stdout in any case. Findings that
    name no file are attributed to the first existing file in ``about``.
    """
    if report.file is None and (file := next((Path(name) for name in about if Path(name).is_file()), None)):
        report = replace(report, file=_make_repository_path(file))
    report = complete_next_command(report)
    exit_code = emit(report, args.format)
    written = [write_report_file(path, render(report, output_format)) for output_format, path in args.format_files]
    return exit_code if all(written) else exit_code or EXIT_UNCHECKED


def complete_next_command(report: Report) -> Report:
    """Add the project options of this command line to the suggested command."""
    if report.next_command is None:
        return report
    return replace(report, next_command=repeat_project_options(report.next_command))


def render(report: Report, output_format: str, *, colour: bool = False) -> str:
    """Render a report in one of the formats. Only the module of that format is imported."""
    if output_format == "text":
        from pinwarden.cli.render.text import render_text

        return render_text(report, colour=colour, detail=chosen_detail())
    function: Callable[[Report], str] = import_module(f"pinwarden.cli.render.{output_format}").render
    return function(report)


def render_error(err: PinwardenError, command: str, output_format: str) -> str:
    """Render an error as a complete document of the format. Empty for text: stderr shows it."""
    if output_format == "text" or output_format not in FORMATS:
        return ""
    function: Callable[[PinwardenError, str], str] = import_module(f"pinwarden.cli.render.{output_format}").render_error
    return function(err, f"pinwarden {command}".rstrip())


def write_report_file(path: Path, text: str) -> bool:
    """Replace a report file atomically. A failure is printed to stderr."""
    from pinwarden.core.text import show_invisible
    from pinwarden.system.files import write_atomically

    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except PinwardenError as err:
        sys.stderr.write(f"error: {show_invisible(err.message)} [{err.code}]\nhint: {err.hint}\n")
        return False
    return True


class CapturedStdout:
    """Collects what is printed to stdout, for ``--output``."""

    def __init__(self) -> None:
        import io

        self._bytes = io.BytesIO()
        self._stdout = sys.stdout
        sys.stdout = io.TextIOWrapper(self._bytes, encoding="utf-8", errors="backslashreplace", newline="\n")

    def write_to(self, file: str) -> bool:
        """Write the collected text to a file, and restore stdout. Returns whether the file was written."""
        sys.stdout.flush()
        data = self._bytes.getvalue()
        sys.stdout = self._stdout
        return write_report_file(Path(file), data.decode("utf-8", "backslashreplace"))


def format_definition(value: Any) -> str:
    """Return the definition of a tool, prompt or resource as indented JSON, with invisible characters escaped."""
    import json

    from pinwarden.core.text import escape_json_for_log

    text = json.dumps(value, indent=2, ensure_ascii=False)
    return escape_json_for_log("".join(f"{_MARGIN}{line}\n" for line in text.split("\n")))


def refuse_overwriting_project_files(args: Namespace, writes: str = "") -> None:
    """Refuse to overwrite the lock, a policy or a client configuration with a report or an output.

    ``writes`` is the kind of project file that the command is meant to write.
    """
    outputs = [("--format", path) for _, path in getattr(args, "format_files", ())]
    named = (getattr(args, "output", None), getattr(args, "report_output", None))
    outputs += [("--output", Path(output)) for output in named if output not in (None, "-")]
    if not outputs:
        return
    project_files = [
        (path, kind)
        for project in _find_projects(args)
        for path, kind in _list_project_files(project, args)
        if kind != writes
    ]
    for option, path in outputs:
        kind = next((kind for project_file, kind in project_files if _is_same_or_inside(path, project_file)), None)
        if kind is not None:
            raise PinwardenError(
                "USAGE",
                f"{option}: {str(path)[:200]!a} is the project's {kind} and would be overwritten",
                hint="Choose another file name.",
            )


def _find_projects(args: Namespace) -> Iterator[Project]:
    from pinwarden.cli.project_arguments import find_current_project
    from pinwarden.project.project import SCOPES, project_in_scope

    folders = getattr(args, "project", None) or [None]
    lock = Path(args.file) if hasattr(args, "project") and args.file else None
    for folder in [folders] if isinstance(folders, str) else folders:
        project = find_current_project(None if folder is None else Path(folder), lock)
        yield from (project_in_scope(project, scope) for scope in SCOPES)


def _list_project_files(project: Project, args: Namespace) -> Iterator[tuple[Path, str]]:
    """Yield the files and folders of a project, each with its kind."""
    from pinwarden.cli.key_arguments import SIGNATURE_FILE
    from pinwarden.contract.dialect import DIALECTS
    from pinwarden.lock.lock_store import closures_folder_name, surfaces_folder_name
    from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY

    yield project.lock, "lockfile"
    yield project.lock.with_name(surfaces_folder_name(project.lock)), "folder of approved surfaces"
    yield project.lock.with_name(closures_folder_name(project.lock)), "folder of dependency lists"
    yield project.root / SIGNATURE_FILE, "signature"
    yield project.root / OWN_POLICY, "policy"
    yield project.root / TOOLPIN_POLICY, "policy"
    for dialect in DIALECTS.values():
        yield project.root / dialect.file_name, "contract"
    if isinstance(getattr(args, "lock", None), str):
        yield Path(args.lock), "contract"
    for path in project.find_install_paths().values():
        yield Path(path), "client configuration"
    for config in project.find_all_configs():
        yield Path(config.path), "client configuration"


def _is_same_or_inside(path: Path, project_file: Path) -> bool:
    try:
        resolved, protected = path.resolve(), project_file.resolve()
        return resolved.is_relative_to(protected) or (
            path.exists() and project_file.exists() and path.samefile(project_file)
        )
    except (OSError, RuntimeError):  # a loop of links: writing there fails as well
        return False


class _FormatChoices:
    """Every format, alone or followed by ``=FILE``."""

    def __contains__(self, text: str) -> bool:
        return text.partition("=")[0] in FORMATS

    def __iter__(self) -> Iterator[str]:
        return iter(FORMATS)


class FormatAction(Action):
    """Stores the format of stdout in ``format`` and the files to write in ``format_files``."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        """Store one ``--format``."""
        del parser, option
        output_format, separator, path = str(values).partition("=")
        if not separator:
            if getattr(namespace, "_stdout_format", output_format) != output_format:
                raise ArgumentError(self, "only one format can go to stdout; write the others with FORMAT=FILE")
            namespace.format = namespace._stdout_format = output_format
        elif not path:
            raise ArgumentError(self, f"{output_format}= needs a file name")
        elif any(earlier_path == Path(path) for _, earlier_path in namespace.format_files):
            raise ArgumentError(self, f"two formats cannot go to the same file: {path[:200]!a}")
        else:
            namespace.format_files = (*namespace.format_files, (output_format, Path(path)))


def _make_repository_path(file: Path) -> str:
    """Return a path relative to the root of the repository, as viewers of reports expect."""
    from pinwarden.system.repository import find_repository_root

    root = find_repository_root(file.parent)
    return file.resolve().relative_to(root).as_posix() if root is not None else file.as_posix()
