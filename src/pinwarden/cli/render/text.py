"""Text for a terminal: reports, wrapped sentences, tables and lists.

Readable without colour. Text from servers and files is escaped, so that it is safe to print.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pinwarden.cli.render.wrapping import wrap_sentence
from pinwarden.core.record import Record, replace
from pinwarden.core.text import neutralize_log_commands, show_invisible

if TYPE_CHECKING:
    from pinwarden.core.report import Report, Row

_COLOURS = {"critical": "1;31", "review": "33", "warning": "33", "info": "36", "add": "32", "remove": "31"}
_LEVEL_WIDTH = 8
_BELOW_LEVEL = " " * (_LEVEL_WIDTH + 2)
_MAX_CELL = 60
_MAX_LINES_OF_REASONS = 2
Detail = Literal["quiet", "normal", "verbose"]
_CONTEXT = 160  # characters of unchanged text between two changes of a long text


def render_text(report: Report, *, colour: bool = False, detail: Detail = "normal") -> str:
    """Render rows, then notes, then the summary, then the next command.

    ``quiet`` leaves out notes, and rows that do not make the command fail. ``verbose`` prints every row and every note
    in full.
    """
    rows = _choose_rows(report, detail)
    notes = [] if detail == "quiet" else [f"note: {note}" for note in report.notes]
    if detail == "verbose":
        notes += [f"note: {note}" for note in report.details]
    elif report.details and detail == "normal":
        more = "note" if len(report.details) == 1 else "notes"
        notes.append(f"note: {len(report.details)} more {more} about what has not changed (-v shows them)")
    blocks = render_rows(
        rows,
        colour=colour,
        by_cause=detail != "verbose",
        shortens=report.command != "diff",
        rule_texts=report.rule_texts,
    )
    commands = (("Commit", report.commit_command), ("Next", report.next_command))
    shown = "".join(render_command(label, command) for label, command in commands if command)
    rows_of_table = report.table.rows if report.table is not None and detail != "quiet" else ()
    overview = render_table(report.table.headings, rows_of_table) if report.table is not None and rows_of_table else ""
    return "".join((blocks, *map(wrap, notes), overview, wrap(report.summary), shown))


def render_command(label: str, command: str) -> str:
    """Return a line with a command. The line is not wrapped, so that the command can be pasted."""
    return neutralize_log_commands(f"{label}: {show_invisible(command)}\n")


def _choose_rows(report: Report, detail: Detail) -> tuple[Row, ...]:
    """Return the rows to print. With ``quiet``, these are the rows that make the command fail."""
    if detail != "quiet":
        return report.rows
    failing = tuple(row for row in report.rows if row.severity in ("critical", "review"))
    if failing or not report.exit_code:
        return failing
    return tuple(row for row in report.rows if row.severity == "warning")


def render_rows(
    rows: tuple[Row, ...],
    *,
    colour: bool = False,
    by_cause: bool = False,
    shortens: bool = False,
    rule_texts: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Render only rows. ``by_cause`` prints rows about the same kind of problem as one block.

    With ``shortens`` as well, a kind of change that many items have is one block without their values.
    """
    width = get_terminal_width()
    lines: list[str] = []
    for group in group_rows(rows, by_cause=by_cause, shortens=shortens):
        if group.about_text:
            lines += _render_suspicious_text(group, width, colour)
        elif group.is_repeated:
            lines += _render_repeated_change(group, width, colour)
        elif group.same_text:
            names = [row.name for row in group.rows]
            lines += _render_row(group.rows[0], names, width, colour, whole=not by_cause)
        else:
            lines += _render_cause(group, rule_texts, width, colour)
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def _render_suspicious_text(group: RowGroup, width: int, colour: bool) -> list[str]:
    """Return one block for all findings about one text, or about the same text of several items."""
    from pinwarden.cli.render.intent import describe_intent

    first = group.rows[0]
    codes = tuple(dict.fromkeys(row.code for row in group.rows))
    sentence = describe_intent(codes)
    heading = _render_heading(first, [*group.names], width, colour)
    if sentence is None:
        messages = dict.fromkeys(f"{row.message} ({row.code})" for row in group.rows)
        body = [line for message in messages for line in _wrap_lines(show_invisible(message), width)]
    else:
        body = _wrap_lines(f"{sentence} ({', '.join(codes)})", width)
    for excerpt in dict.fromkeys(row.excerpt for row in group.rows if row.excerpt):
        body += _wrap_quoted(f"> {show_invisible(excerpt)}", width)
    return heading + body


def _render_repeated_change(group: RowGroup, width: int, colour: bool) -> list[str]:
    """Return one block for a change that several items have: the sentence that they share, or only their names."""
    first = group.rows[0]
    location = {row.path for row in group.rows}
    lines = _render_heading(first if len(location) == 1 else replace(first, path=""), [*group.names], width, colour)
    more = "" if first.excerpt else " -v shows each change."
    lines += _wrap_lines(show_invisible(f"{first.message} ({first.code}){more}"), width)
    return lines + (_wrap_quoted(f"> {show_invisible(first.excerpt)}", width) if first.excerpt else [])


def _render_cause(group: RowGroup, rule_texts: Mapping[str, str], width: int, colour: bool) -> list[str]:
    """Return a block for rows about the same kind of problem."""
    first = group.rows[0]
    names = ", ".join(group.names)
    one_server, more_servers = CAUSES.get(first.code, ("", ""))
    phrase = one_server if len(group.names) == 1 else more_servers
    common, particulars = describe_cause(group, rule_texts)
    heading = f"{group.count} {phrase}: {names} ({first.code})" if phrase else f"{group.count}: {names}"
    lines = _wrap_lines(show_invisible(heading), width)
    level = f"{first.severity:{_LEVEL_WIDTH}}  "
    lines[0] = _paint(level, first.severity, colour) + lines[0][len(level) :]
    if not phrase:
        lines += _wrap_lines(show_invisible(f"{common} ({first.code})".strip()), width)
    for particular in particulars:
        lines += _wrap_lines(show_invisible(particular), width, hanging="  ")
    return lines


def wrap(text: str, label: str = "", *, stream: TextIO | None = None) -> str:
    """Return a sentence wrapped to the terminal; on a single line if the output is not a terminal.

    A ``label`` precedes the first line; the other lines are indented by its width. A command stays on one line, however
    long it is, so that it can be pasted. ``stream`` is where the text will be written (default: stdout).
    """
    displayed = show_invisible(text)
    width = _measure_width(stream)
    if not width:
        return neutralize_log_commands(f"{label}{displayed}\n")
    indent = " " * len(label) or "  "

    lines = wrap_sentence(displayed, max(40, width), indent=label, hanging=indent)
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def truncate(line: str) -> str:
    """Return a line cut to the width of the terminal; unchanged if the output is not a terminal."""
    width = _measure_width()
    return line if not width or len(line) <= width else f"{line[: max(40, width) - 1]}…"


def render_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Long cells are cut, except in the last column.

    On a terminal that is too narrow for the table, each row becomes a block of lines.
    """
    cells = [[_format_cell(text, last=column == len(row) - 1) for column, text in enumerate(row)] for row in rows]
    all_rows = [list(headings), *cells]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(headings))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in all_rows]
    terminal = _measure_width()
    if terminal and sum(widths[:-1]) + 2 * len(widths) > terminal:  # only the last column may exceed the edge
        return "".join(map(_render_row_as_block, repeat(headings), cells))
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def render_definition_list(rows: Mapping[str, str]) -> str:
    """Return names and their meanings in two columns."""
    column = max(map(len, rows)) + 4
    width = max(column + 15, shutil.get_terminal_size((100, 24)).columns)
    lines = (
        textwrap.fill(text, width, initial_indent=f"  {name:{column - 2}}", subsequent_indent=" " * column)
        for name, text in rows.items()
    )
    return "".join(f"{line}\n" for line in lines)


def sections(parts: Iterable[Mapping[str, Any]]) -> str:
    """Return headings with their lines below them, indented and wrapped."""
    width = get_terminal_width()
    lines: list[str] = []
    for part in parts:
        lines.append(show_invisible(part["heading"]))
        for line in part["lines"]:
            lines += wrap_sentence(show_invisible(line), width, indent="  ", hanging="    ")
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def get_terminal_width() -> int:
    """Return the terminal's width, 40 to 120 columns; 100 if there is no terminal."""
    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))


def _render_heading(row: Row, names: list[str], width: int, colour: bool) -> list[str]:
    """Return the severity, the item and its location; several items are listed below it."""
    level = _paint(f"{row.severity:{_LEVEL_WIDTH}}", row.severity, colour)
    path = "".join(f"  {location}" for location in (row.path, _format_file_location(row)) if location)
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        times = f"  ({len(names)} times)" if len(names) > 1 else ""
        return [f"{level}  {show_invisible(f'{row.subject} {row.name}'.strip() + path)}{times}"]
    noun = f"{row.subject[:-1]}ies" if row.subject.endswith("y") else f"{row.subject}s"
    lines = [f"{level}  {len(distinct)} {show_invisible(f'{noun}{path}')}"]
    return lines + _wrap_lines(show_invisible(", ".join(distinct)), width)


def _render_row(row: Row, names: list[str], width: int, colour: bool, *, whole: bool = False) -> list[str]:
    lines = _render_heading(row, names, width, colour)
    if whole:
        lines += _wrap_lines(show_invisible(f"{row.message} ({row.code})"), width)
    else:
        lines += fit_reasons(row.message, row.code, lambda text: _wrap_lines(show_invisible(text), width), "-v")
    if row.before is not None and row.after is not None:
        lines += _wrap_quoted(render_inline_diff(row.before, row.after), width, colour=colour)
    elif row.before is not None:
        lines += _wrap_quoted(_mark_text("delete", show_invisible(row.before)), width, colour=colour)
    elif row.after is not None:
        lines += _wrap_quoted(_mark_text("insert", show_invisible(row.after)), width, colour=colour)
    elif row.excerpt:
        for line in row.excerpt.splitlines():
            lines += _wrap_quoted(f"> {show_invisible(line)}", width)
    return lines


def fit_reasons(message: str, code: str, wrap_text: Callable[[str], list[str]], how: str) -> list[str]:
    """Return the lines of a finding. If it needs more than two, only its first reasons, and the number of others.

    If even the first reason needs more, only its first sentence.

    ``how`` says where the others are shown.
    """
    lines = wrap_text(f"{message} ({code})")
    if len(lines) <= _MAX_LINES_OF_REASONS:
        return lines
    known, rest = _split_reasons(message)
    reasons = [*known, *([rest] if rest else [])]
    for kept in range(len(reasons) - 1, 0, -1):
        left = len(reasons) - kept
        more = f"{left} more {'reason' if left == 1 else 'reasons'}: {how}"
        lines = wrap_text(f"{' '.join(reasons[:kept])} ({code}; {more})")
        if len(lines) <= _MAX_LINES_OF_REASONS:
            return lines
    sentence, _, others = known[0].partition(". ") if known else ("", "", "")
    return wrap_text(f"{sentence}. ({code}; the rest: {how})") if others else lines


def _split_reasons(message: str) -> tuple[list[str], str]:
    """Return the reasons of changes that a message begins with, and the rest of it."""
    from pinwarden.clients.drift import CONFIG_KINDS
    from pinwarden.clients.launchers import DANGERS
    from pinwarden.surface.drift.changes import CHANGE_KINDS

    kinds = (*CHANGE_KINDS.values(), *CONFIG_KINDS.values())
    known = sorted({*(kind.reason for kind in kinds), *DANGERS.values()}, key=len, reverse=True)
    reasons: list[str] = []
    rest = message
    while reason := next((reason for reason in known if f"{rest} ".startswith(f"{reason} ")), ""):
        reasons.append(reason)
        rest = rest[len(reason) + 1 :]
    return reasons, rest


def _format_file_location(row: Row) -> str:
    """Return ``file:line:column`` as far as known, which many terminals can open."""
    known = (row.file, *((row.line, row.column) if row.file else ()))
    return ":".join(str(part) for part in known if part is not None)


def render_inline_diff(before: str, after: str, limit: int | None = None) -> str:
    """Like ``git diff --word-diff``: removed text in [-…-], added text in {+…+}. Invisible characters are escaped.

    Texts longer than ``limit`` are shortened where both are the same.
    """
    from pinwarden.surface.drift.text_diff import diff_texts, shorten_middle

    pieces = diff_texts(before, after)
    if limit is not None and max(len(before), len(after)) > limit:
        pieces = [
            piece._replace(text=shorten_middle(piece.text, _CONTEXT)) if piece.operation == "equal" else piece
            for piece in pieces
        ]
    return "".join(_mark_text(operation, text) for operation, text in pieces)


_MARKS = {"equal": ("", ""), "delete": ("[-", "-]"), "insert": ("{+", "+}")}
_MARK_IN_TEXT = re.compile(r"(?<=\[)-|-(?=\])|(?<=\{)\+|\+(?=\})|^[\]}]")


def _mark_text(operation: str, text: str) -> str:
    """Return a text between its marks. Marks inside it are escaped, or they could make new text look unchanged."""
    return _MARK_IN_TEXT.sub(lambda match: f"<U+{ord(match[0]):04X}>", text).join(_MARKS[operation])


def _wrap_lines(text: str, width: int, *, hanging: str = "") -> list[str]:
    """Wrap a sentence of Pinwarden's below the severity of its row."""
    return wrap_sentence(text, width, indent=_BELOW_LEVEL, hanging=_BELOW_LEVEL + hanging)


def _wrap_quoted(text: str, width: int, *, colour: bool = False) -> list[str]:
    """Wrap a text of a server or a file below the severity of its row."""
    indent = _BELOW_LEVEL
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if not colour:
        return lines
    # Coloured after wrapping, so that escape codes do not count as width. A mark may span lines.
    painted, open_mark = [], ""
    for line in lines:
        displayed = open_mark + line[len(indent) :]
        for start, end, name in (("[-", "-]", "remove"), ("{+", "+}", "add")):
            displayed = displayed.replace(start, f"\x1b[{_COLOURS[name]}m{start}").replace(end, f"{end}\x1b[0m")
            if line.rfind(start) > line.rfind(end):
                open_mark = f"\x1b[{_COLOURS[name]}m"
            elif end in line:
                open_mark = ""
        painted.append(indent + displayed + "\x1b[0m")
    return painted


def _paint(text: str, name: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if colour else text


def _measure_width(stream: TextIO | None = None) -> int:
    """Return the width of the terminal behind a stream (stdout by default); 0 if it is not a terminal."""
    if stream is None or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((0, 0)).columns if (stream or sys.stdout).isatty() else 0
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a terminal, or not a file
        return 0


def _render_row_as_block(headings: Sequence[str], cells: Sequence[str]) -> str:
    rows = zip(headings[1:], cells[1:], strict=True)
    return f"{cells[0]}\n" + "".join(wrap(f"  {heading.lower()}: {text}") for heading, text in rows)


def _format_cell(text: str, *, last: bool) -> str:
    displayed = show_invisible(text)
    return displayed if last or len(displayed) <= _MAX_CELL else displayed[: _MAX_CELL - 1] + "…"


# Groups of rows: one block for each cause. A row about changed text stays a block of its own, unless another row
# shows exactly the same change.

CAUSES: Mapping[str, tuple[str, str]] = {
    "floating": ("uses a floating version", "use a floating version"),
    "text_not_pinned": ("has no approved tools", "have no approved tools"),
    "text_of_another_release": (
        "changed version or configuration since its approval",
        "changed version or configuration since their approval",
    ),
    "plaintext_secret": ("has a secret in plain text", "have a secret in plain text"),
}
"""By code, what one server has in several entries, and what several servers have in common.

Other codes are explained by their rule instead.
"""

_SERVER_ENTITIES = ("config", "server", "artifact", "registry", "policy")
"""Entities whose name is the name of a server."""


class RowGroup(Record):
    """Rows that are printed as one block."""

    rows: tuple[Row, ...]
    same_text: bool
    """Whether the rows differ only in their name."""
    about_text: bool = False
    """Whether the rows are all warnings about one text, or about the same text of several items."""
    is_repeated: bool = False
    """Whether the rows are one change of several items: the same alarming sentence, or the same kind of change."""

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct names, in order."""
        return tuple(dict.fromkeys(row.name for row in self.rows))

    @property
    def count(self) -> str:
        """The number of tools, servers or entries that the block is about: ``3 tools``, ``6 servers (7 entries)``."""
        from pinwarden.core.text import plural

        names, entity = self.names, self.rows[0].entity
        noun = "server" if entity in _SERVER_ENTITIES and not self.same_text else entity
        has_more_rows = len(self.rows) > len(names) and not self.same_text
        entries = f" ({plural(len(self.rows), 'entry', 'entries')})" if has_more_rows else ""
        return f"{plural(len(names), noun, _pluralize(noun))}{entries}"


def group_rows(rows: Sequence[Row], *, by_cause: bool, shortens: bool = False) -> list[RowGroup]:
    """Group rows that differ only in their name, and with ``by_cause`` also those that report the same kind of problem.

    ``shortens`` also groups many changes of one kind. Groups are in the order of their first row.
    """
    same: dict[tuple[object, ...], list[Row]] = {}
    if not by_cause:
        for row in rows:
            same.setdefault(_get_text_key(row), []).append(row)
        return [RowGroup(rows=tuple(members), same_text=True) for members in same.values()]
    warnings = [*_group_warnings(rows), *_group_repeated_changes(rows, shortens=shortens)]
    grouped = {id(row) for group in warnings for row in group.rows}
    for row in rows:
        if id(row) not in grouped:
            same.setdefault(_get_text_key(row), []).append(row)
    causes: dict[tuple[object, ...], list[list[Row]]] = {}
    for key, members in same.items():
        first = members[0]
        has_text = first.before is not None or first.after is not None or bool(first.excerpt)
        cause = key if has_text or not first.name else (first.severity, first.entity, first.code)
        causes.setdefault(cause, []).append(members)
    groups = [
        RowGroup(rows=tuple(row for members in blocks for row in members), same_text=len(blocks) == 1)
        for blocks in causes.values()
    ]
    position = {id(row): index for index, row in enumerate(rows)}
    return sorted([*warnings, *groups], key=lambda group: position[id(group.rows[0])])


def _group_warnings(rows: Sequence[Row]) -> list[RowGroup]:
    """Group the warnings about one text, because an attack usually has several signs.

    The same text of several items is one group.
    """
    by_text: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.severity == "warning" and row.excerpt and row.before is None and row.after is None:
            by_text.setdefault((row.subject, row.name, row.path, row.file), []).append(row)
    alike: dict[tuple[object, ...], list[Row]] = {}
    for (entity, _, path, file), members in by_text.items():
        signs = tuple((row.code, row.message, row.excerpt) for row in members)
        alike.setdefault((entity, path, file, signs), []).extend(members)
    return [RowGroup(rows=tuple(members), same_text=False, about_text=True) for members in alike.values()]


_MIN_REPEATED = 4  # changes of one kind that are one block, if their values are not shown


def _group_repeated_changes(rows: Sequence[Row], *, shortens: bool) -> list[RowGroup]:
    """Group the changes that one sentence or host made critical, and many changes of one kind that need review.

    Changes to review that several items share exactly are left out, so that they are shown once with their value.
    """
    alike: dict[tuple[object, ...], list[Row]] = {}
    copies = Counter(map(_get_text_key, rows))
    for row in rows:
        if row.before is None and row.after is None:
            continue
        if row.severity == "critical" and row.excerpt:
            alike.setdefault((row.severity, row.subject, row.code, row.message, row.excerpt), []).append(row)
        elif row.severity == "review" and shortens and copies[_get_text_key(row)] == 1:
            alike.setdefault((row.severity, row.subject, row.code, row.message), []).append(row)
    return [
        RowGroup(rows=tuple(members), same_text=False, is_repeated=True)
        for (severity, *_), members in alike.items()
        if len({row.name for row in members}) >= (2 if severity == "critical" else _MIN_REPEATED)
    ]


def describe_cause(group: RowGroup, rule_texts: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return what the rows of a group have in common, and for each row what is special about it.

    For informative rows and codes in ``CAUSES``, the common rule text is enough: nothing is returned for each row.
    """
    first = group.rows[0]
    messages = [row.message for row in group.rows]
    if len(set(messages)) == 1:
        return messages[0], []
    rule = rule_texts.get(first.code, "")
    common = rule if rule and all(message.startswith(rule) for message in messages) else ""
    if common and (first.severity == "info" or first.code in CAUSES):
        return common, []
    particulars = [
        f"{row.name}{f' ({row.file})' if row.file else ''}: {row.message[len(common) :].strip()}" for row in group.rows
    ]
    return common, list(dict.fromkeys(particulars))


def _get_text_key(row: Row) -> tuple[object, ...]:
    location, texts = (row.path, row.file, row.line), (row.message, row.before, row.after, row.excerpt)
    return (row.severity, row.subject, row.code, *location, *texts)


def _pluralize(entity: str) -> str:
    return f"{entity[:-1]}ies" if entity.endswith("y") else f"{entity}s"
