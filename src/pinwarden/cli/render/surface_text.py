"""Text for people who approve a server: its surface, and the changes since the approved one.

Fits 80 columns without a pager. Everything that a server wrote is escaped. Where text is shortened, the
number of omitted characters is shown; see ``Detail``.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pinwarden.cli.output import format_definition
from pinwarden.cli.render.schema_text import describe_parameters, describe_schema, quote_name
from pinwarden.cli.render.text import fit_reasons, render_inline_diff
from pinwarden.core.json_values import is_json_equal
from pinwarden.core.text import neutralize_log_commands, plural, show_invisible
from pinwarden.surface.drift.changes import ABSENT, CRITICAL, Change, parse_change
from pinwarden.surface.drift.summary import (
    ChangeGroup,
    find_required_parameters,
    group_changes,
    group_decisions,
    is_without_effect,
    summarize_changes,
)
from pinwarden.surface.drift.text_diff import shorten_middle
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, TOOL, Item, Surface

if TYPE_CHECKING:
    from pinwarden.core.report import Report, Row
    from pinwarden.surface.scan.scan import BorderlineSentence

__all__ = [
    "Detail",
    "read_report_changes",
    "render_changes",
    "render_surface",
    "render_warnings",
    "shows_borderline_sentences",
    "summarize_changes",
]

Detail = Literal["short", "text", "full"] | int
"""How much is shown: long texts shortened, texts complete, or complete definitions as well.

A number is that of the lines that a surface should fit: the form that shows most of it is chosen.
"""

_MIN_WIDTH, _MAX_WIDTH = 50, 100
# Longer descriptions, values in a list of changes and changed texts are cut to this many characters in ``short``.
_MAX_DESCRIPTION = 600
_MAX_VALUE = 300
_MAX_TEXT = 1200
_MAX_NAMES = 6  # further items with the same change are only counted
_MAX_SENTENCES, _MAX_SENTENCE = 4, 240  # of those that come close to a warning
_MAX_SUMMARY = 160
_MAX_NAME = 60
_KIND_BY_ENTITY = {kind.entity: kind for kind in ITEM_KINDS}
_NO_HINTS = "[no hints]"
_SHORTENED = "Shortened to fit; the answer show prints every text and parameter."
_LEGEND = "? marks optional parameters. [Hints] are what the server says about itself."
_LEGEND_WITHOUT_HINTS = "? marks optional parameters. No tool has hints (read-only, destructive)."


def render_surface(
    surface: Surface,
    *,
    name: str = "",
    warnings: Sequence[Row] = (),
    detail: Detail = "short",
    width: int | None = None,
) -> str:
    """Return a surface for its first approval: scan warnings, tools with parameters and hints, costs."""
    from pinwarden.surface.scan.scan import find_borderline_sentences

    forms: Sequence[Callable[[_Page, Surface], None]] = (_add_items,)
    if isinstance(detail, int):
        groups = ((True, 4), (None, 4), (False, 8), (False, 4), (False, 2), (False, 1))
        forms = (*forms, _add_summaries, *(partial(_add_groups, texts=texts, lines=lines) for texts, lines in groups))
    heading = f"{_describe_server(surface, name)}: {_count_items(surface)}; {_describe_costs(surface)}."
    sentences = find_borderline_sentences(surface)
    for add_form in forms:
        items = _Page(width, detail)
        add_form(items, surface)
        page = _Page(width, detail)
        page.add(heading)
        page.add_block(render_warnings(warnings, width=page.width))
        _add_sentences(page, [sentence for sentence in sentences if not items.shows(sentence.text)])
        page.add_block(items.text())
        if isinstance(detail, int) and page.count_lines() <= detail:
            break
    return page.text()


def shows_borderline_sentences(surface: Surface) -> bool:
    """Whether every form of a surface shows all sentences that come close to a warning, and completely."""
    from pinwarden.surface.scan.scan import find_borderline_sentences

    sentences = find_borderline_sentences(surface)
    return len(sentences) <= _MAX_SENTENCES and all(len(sentence.text) <= _MAX_SENTENCE for sentence in sentences)


def _add_sentences(page: _Page, sentences: Sequence[BorderlineSentence]) -> None:
    """Add the sentences that come close to a warning, but are not shown elsewhere."""
    if sentences:
        page.add("Read this first, because it comes close:")
    for sentence in sentences[:_MAX_SENTENCES]:
        place = f"{sentence.entity} {quote_name(sentence.name)[:_MAX_NAME]}" if sentence.name else sentence.entity
        page.add(f"{place}: {_flow_text(sentence.text, whole=page.whole_text, limit=_MAX_SENTENCE)}", indent=2)
    if len(sentences) > _MAX_SENTENCES:
        page.add(f"and {plural(len(sentences) - _MAX_SENTENCES, 'more sentence')}", indent=2)


def _add_items(page: _Page, surface: Surface) -> None:
    """Add every item with its description, a tool with parameters and types."""
    if instructions := _get_instructions(surface):
        page.add("Instructions for the model:")
        page.add_text(instructions, indent=4)
    has_hints = _has_hints(surface)
    for item in _list_items(surface):
        _add_item(page, item, show_hints=has_hints)
    _add_legend(page, surface)


def _add_summaries(page: _Page, surface: Surface) -> None:
    """Add every item as ``_add_items`` does, but of each description the beginning."""
    page.limit = _MAX_SUMMARY
    _add_items(page, surface)
    page.add(_SHORTENED)


def _add_groups(page: _Page, surface: Surface, *, texts: bool | None, lines: int) -> None:
    """Add the items in groups by kind and hints, what can do harm first, with at most so many lines of names.

    ``texts`` says whether each tool has a line with its description. With None, those that only read have none.
    """
    if instructions := _get_instructions(surface):
        page.add_cut(f"Instructions for the model: {_flow_text(instructions, whole=True)}", lines=2)
    groups: dict[tuple[str, str], list[Item]] = {}
    has_hints = _has_hints(surface)
    for item in _list_items(surface):
        hints = f" {_describe_hints(item.value)}" if has_hints and item.kind is TOOL else ""
        groups.setdefault((_name_kind(item), hints), []).append(item)
    kinds = [_name_kind(item) for item in _list_items(surface)]
    for kind, hints in sorted(groups, key=lambda group: (kinds.index(group[0]), "read-only" in group[1], group[1])):
        items = groups[kind, hints]
        heading = f"{plural(len(items), kind)}{hints}:"
        has_texts = "read-only" not in hints if texts is None else texts
        if has_texts and kind == TOOL.entity:
            page.add(heading)
            for item in items:
                page.add_cut(f"{_shorten_name(item)}: {_get_description(item)}", indent=2)
        else:
            page.add_names(heading, list(map(_shorten_name, items)), lines)
    if has_hints:
        page.add("[Hints] are what the server says about itself.")
    page.add(_SHORTENED)


def _get_instructions(surface: Surface) -> str:
    return _string_or_empty((surface.server or {}).get("instructions"))


def _has_hints(surface: Surface) -> bool:
    return any(_describe_hints(tool.value) != _NO_HINTS for tool in surface.items_of_kind(TOOL))


def _list_items(surface: Surface) -> Iterator[Item]:
    for kind in ITEM_KINDS:
        yield from sorted(surface.items_of_kind(kind), key=lambda item: item.key)


def _add_legend(page: _Page, surface: Surface) -> None:
    if surface.items_of_kind(TOOL):
        page.add(_LEGEND if _has_hints(surface) else _LEGEND_WITHOUT_HINTS)


def _shorten_name(item: Item) -> str:
    return quote_name(item.key)[:_MAX_NAME]


def render_warnings(warnings: Sequence[Row], *, width: int | None = None) -> str:
    """Render the findings in text that is not approved yet, or say that there are none."""
    page = _Page(width)
    if not warnings:
        return page.with_line("The scan found no text that looks like an attack.").text()
    texts: dict[str, list[Row]] = {}
    for row in warnings:
        texts.setdefault(f"{row.entity} {row.name}".strip() + f" {row.path}", []).append(row)
    page.add(f"{len(texts)} {'text looks' if len(texts) == 1 else 'texts look'} like an attack:")
    for text, rows in texts.items():
        page.add(f"{text}:", indent=2)
        for row in rows:
            page.add(f"{row.message} ({row.code})", indent=4)
            if row.excerpt:
                page.add(f"> {row.excerpt}", indent=6)
            elif row.after is not None:
                page.add(f"> {shorten_middle(row.after, _MAX_VALUE)}", indent=6)
    return page.text()


def render_changes(changes: Sequence[Change], *, detail: Detail = "short", width: int | None = None) -> str:
    """Return the verdict, then the changes, grouped by what happened."""
    page = _Page(width, detail)
    page.add(summarize_changes(changes))
    topics = [decision.topic for decision in group_decisions(changes) if decision.changes[0].severity != CRITICAL]
    if len(topics) > 1:
        page.add(f"You decide on: {', '.join(topics)}.")
    for change in changes:
        if change.severity == CRITICAL:
            _add_reasoned_change(page, change)
    required = find_required_parameters(changes)
    for group in group_changes(changes):
        _add_group(page, group, required)
    harmless = [change for change in changes if is_without_effect(change)]
    if harmless:
        _add_harmless_changes(page, harmless)
    return page.text()


def read_report_changes(report: Report) -> tuple[Change, ...]:
    """Return the changes in the facts of a report."""
    return tuple(parse_change(change) for change in report.facts.get("changes", ()))


class _Page:
    """Lines of a fixed width. Text from servers is escaped when it is added."""

    def __init__(self, width: int | None, detail: Detail = "short") -> None:
        columns = shutil.get_terminal_size((80, 24)).columns
        self.width = width or max(_MIN_WIDTH, min(_MAX_WIDTH, columns))
        self.full = detail == "full"
        self.whole_text = detail in ("text", "full")
        self.limit = _MAX_DESCRIPTION
        self._lines: list[str] = []

    def add(self, line: str, *, indent: int = 0, hanging: int = 2) -> None:
        """Add a line and wrap it."""
        self._wrap(show_invisible(line), indent, hanging)

    def add_reasons(self, label: str, reasons: str, code: str) -> None:
        """Add what a change looks like: its first reasons on two lines, unless whole texts are shown."""
        wrap_text = partial(self._wrap_label, label)
        whole = wrap_text(f"{reasons} ({code})")
        self._lines += whole if self.whole_text else fit_reasons(reasons, code, wrap_text, "show")

    def _wrap_label(self, label: str, text: str) -> list[str]:
        return self._wrap_lines(show_invisible(f"{label}{text}"), 2, 2)

    def add_escaped(self, line: str, *, indent: int) -> None:
        """Add a text that is escaped already and may have several lines."""
        for part in line.split("\n"):
            self._wrap(part, indent, 0)

    def add_text(self, text: str, *, indent: int) -> None:
        """Add the text of a description: its lines flow together, so that long lists stay short."""
        flowed = _flow_text(text, whole=self.whole_text, limit=self.limit)
        self.add(flowed or "(no description)", indent=indent, hanging=0)

    def add_item(self, heading: str, description: str) -> None:
        """Add an item with its description: on one line if that is wide enough, else below it."""
        text = _flow_text(description, whole=self.whole_text, limit=self.limit) or "(no description)"
        together = f"{heading}: {text}"
        if len(show_invisible(together)) + 2 <= max(_MIN_WIDTH, self.width):
            self.add(together, indent=2)
        else:
            self.add(heading, indent=2, hanging=4)
            self.add_text(description, indent=6)

    def add_cut(self, line: str, *, lines: int = 1, indent: int = 0) -> None:
        """Add a line, wrapped to at most so many lines; what is left is cut."""
        width = max(_MIN_WIDTH, self.width)
        wrapped = self._wrap_lines(show_invisible(line[: width * (lines + 1)]), indent, 2)
        if len(wrapped) > lines:
            wrapped[lines - 1] = f"{wrapped[lines - 1][: width - 2]} …"
        self._lines += wrapped[:lines]

    def add_names(self, heading: str, names: Sequence[str], lines: int) -> None:
        """Add a heading and as many of the names as fit in so many lines."""
        kept = len(names)
        while True:
            left = f" and {len(names) - kept} more" if kept < len(names) else ""
            wrapped = self._wrap_lines(show_invisible(f"{heading} {', '.join(names[:kept])}{left}"), 0, 2)
            if len(wrapped) <= lines or kept == 1:
                self._lines += wrapped
                return
            kept = max(1, kept * lines // len(wrapped) if len(wrapped) > 2 * lines else kept - 1)

    def shows(self, text: str) -> bool:
        """Whether a text was added completely, wherever its lines are broken."""
        return " ".join(show_invisible(text).split()) in " ".join(" ".join(self._lines).split())

    def count_lines(self) -> int:
        """Return how many lines were added."""
        return len(self._lines)

    def add_block(self, block: str) -> None:
        """Add rendered lines."""
        self._lines += block.splitlines()

    def with_line(self, line: str) -> _Page:
        """Add a line and return the page."""
        self.add(line)
        return self

    def text(self) -> str:
        """Return all lines."""
        return neutralize_log_commands("".join(f"{line}\n" for line in self._lines))

    def _wrap(self, line: str, indent: int, hanging: int) -> None:
        self._lines += self._wrap_lines(line, indent, hanging)

    def _wrap_lines(self, line: str, indent: int, hanging: int) -> list[str]:
        return textwrap.wrap(
            line,
            max(_MIN_WIDTH, self.width),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hanging),
            break_on_hyphens=False,
        ) or [""]


def _describe_server(surface: Surface, name: str) -> str:
    info = (surface.server or {}).get("serverInfo")
    stated = [info.get(member) for member in ("name", "version")] if isinstance(info, dict) else []
    words = " ".join(word[:80] for word in stated if isinstance(word, str) and word)
    if not name:
        return words or "this server"
    return f"{name} ({words})" if words else name


def _name_kind(item: Item) -> str:
    return "resource template" if item.kind.entity == "resourceTemplate" else item.kind.entity


def _count_items(surface: Surface) -> str:
    lists = [surface.items_of_kind(kind) for kind in ITEM_KINDS]
    counts = [plural(len(items), _name_kind(items[0])) for items in lists if items]
    return ", ".join(counts) or "no tools, prompts or resources"


def _describe_costs(surface: Surface) -> str:
    from pinwarden.contract.costs import compute_costs

    return f"about {compute_costs(surface).total:,} tokens in every conversation"


def _add_item(page: _Page, item: Item, *, show_hints: bool = True) -> None:
    value = item.value if isinstance(item.value, dict) else {}
    if item.digest is None:
        page.add(f"{item.kind.entity} {item.name}: cannot be approved: {item.problem}", indent=2, hanging=4)
        return
    if item.kind is TOOL:
        hints = f" {_describe_hints(value)}" if show_hints else ""
        heading = f"{quote_name(item.name)}({describe_parameters(value)}){hints}"
    elif item.kind is PROMPT:
        heading = f"prompt {quote_name(item.name)}({', '.join(_list_arguments(value))})"
    else:
        heading = f"{_name_kind(item)} {item.key} {_string_or_empty(value.get('mimeType'))}".rstrip()
    page.add_item(heading, _get_description(item))
    if page.full:
        page.add_block(format_definition(value))


def _get_description(item: Item) -> str:
    value = item.value if isinstance(item.value, dict) else {}
    description = value.get("description")
    return description if isinstance(description, str) else _string_or_empty(value.get("title"))


def _string_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list_arguments(prompt: dict[str, Any]) -> Iterator[str]:
    arguments = prompt.get("arguments")
    for argument in arguments if isinstance(arguments, list) else ():
        if isinstance(argument, dict):
            yield f"{quote_name(argument.get('name'))}{'' if argument.get('required') is True else '?'}"


def _describe_hints(tool: Any) -> str:
    hints = tool.get("annotations") if isinstance(tool, dict) else None
    if not isinstance(hints, dict):
        return _NO_HINTS
    words = []
    if hints.get("readOnlyHint") is True:
        words.append("read-only")
    elif "destructiveHint" in hints:
        words.append("destructive" if hints["destructiveHint"] is not False else "writes, not destructive")
    elif "readOnlyHint" in hints:
        words.append("writes")
    if hints.get("openWorldHint") is True:
        words.append("reaches other systems")
    return f"[{', '.join(words)}]" if words else _NO_HINTS


def _add_group(page: _Page, group: ChangeGroup, required: set[tuple[str, str, str]]) -> None:
    """Add one heading with its changes. The same change of several items is one entry."""
    entries: dict[tuple[str, ...], list[Change]] = {}
    for change in group.changes:
        is_required = (change.entity, change.name, change.path) in required
        key = (_locate(change), *_describe_change(change, page, is_required=is_required))
        entries.setdefault(key, []).append(change)
    page.add(f"{group.heading[:1].upper()}{group.heading[1:]}:", indent=2)
    for (location, *texts), changes in entries.items():
        name = "" if _is_new_item(changes[0]) else f"{_join_names(changes, whole=page.whole_text)}{location}"
        _add_entry(page, name, texts, indent=4)


def _add_harmless_changes(page: _Page, changes: Sequence[Change]) -> None:
    if page.full:
        for change in changes:
            _add_reasoned_change(page, change)
        return
    reasons = dict.fromkeys(change.reason for change in changes)
    heading = plural(len(changes), "change without effect", "changes without effect")
    page.add(f"{heading}: {' '.join(reasons)}", indent=2)


def _add_reasoned_change(page: _Page, change: Change) -> None:
    page.add_reasons(f"{_name_item(change)}{_locate(change)}: ", change.reason, change.kind)
    _add_entry(page, "", _describe_change(change, page, is_required=False), indent=4)


def _add_entry(page: _Page, name: str, lines: Sequence[str], indent: int) -> None:
    """Add a name and its change, on one line if it fits. The lines are escaped already."""
    escaped = show_invisible(name)
    if name and len(lines) == 1 and indent + len(escaped) + 2 + len(lines[0]) <= page.width and "\n" not in lines[0]:
        page.add_escaped(f"{escaped}: {lines[0]}", indent=indent)
        return
    if name:
        page.add(name, indent=indent)
    for line in lines:
        page.add_escaped(line, indent=indent + 2 if name else indent)


def _name_item(change: Change) -> str:
    entity = "resource template" if change.entity == "resourceTemplate" else change.entity
    return f"{entity} {quote_name(change.name)}" if change.name else entity


def _locate(change: Change) -> str:
    """Return where in the item the change is; empty if the text of the change says it already."""
    path = change.path.removeprefix("/inputSchema")
    if path.count("/") <= 1 or change.kind.startswith("annotation_"):
        return ""
    if path == change.path:
        return f", {path}"
    names = path.split("/")
    if names[1] == "properties":
        if change.kind == "parameter_added":
            return f", in {'/'.join(names[2:-2])}" if len(names) > 3 else ""
        rest = [name for name in names[3:] if name not in ("description", "title")]
        return f", parameter {names[2]}{''.join(f'/{name}' for name in rest)}"
    return f", {change.path}"


def _join_names(changes: Sequence[Change], *, whole: bool) -> str:
    names = list(dict.fromkeys(quote_name(change.name) for change in changes))
    if len(names) == 1:
        return _name_item(changes[0])
    shown = len(names) if whole else _MAX_NAMES
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{len(names)} {changes[0].entity}s ({', '.join(names[:shown])}{more})"


def _is_new_item(change: Change) -> bool:
    is_item = change.field == "added" and change.entity in _KIND_BY_ENTITY
    return is_item and isinstance(change.after, dict) and change.before is ABSENT


def _describe_change(change: Change, page: _Page, *, is_required: bool) -> list[str]:
    """Return the values of a change as escaped lines."""
    before, after, member = change.before, change.after, change.path.rpartition("/")[2]
    if _is_new_item(change):
        item = _Page(10**6, "text" if page.whole_text else "short")
        _add_item(item, Item.from_value(_KIND_BY_ENTITY[change.entity], after))
        lines = [line.strip() for line in item.text().splitlines()]
    elif change.kind == "item_removed":
        return []
    elif change.kind == "parameter_added" and isinstance(after, dict | bool):
        described = after.get("description") if isinstance(after, dict) else None
        lines = [f"{quote_name(member)}{'' if is_required else '?'}: {describe_schema(after)}"]
        lines += [_flow_text(described, whole=page.whole_text)] if isinstance(described, str) else []
        lines = [show_invisible(line) for line in lines]
    elif change.kind in ("schema_added", "schema_removed"):
        lines = [show_invisible(describe_schema(after if before is ABSENT else before))]
    elif change.field == "added" and isinstance(before, dict) and isinstance(after, dict):
        lines = _describe_renamed(before, after, page)
    elif isinstance(before, str) and isinstance(after, str):
        return [render_inline_diff(before, after, None if page.whole_text else _MAX_TEXT)]
    else:
        is_text = isinstance(before, str) or isinstance(after, str)
        label = "" if is_text and change.kind.startswith("text_") else f"{member}: " if member else ""
        lines = [show_invisible(label + _describe_sides(before, after, whole=page.whole_text))]
    if page.full and isinstance(after, dict | list):
        lines += format_definition(after).splitlines()
    return lines


def _describe_renamed(before: dict[str, Any], after: dict[str, Any], page: _Page) -> list[str]:
    """Return the earlier name of an item, and how else it differs, as escaped lines."""
    lines = [show_invisible(f"was {quote_name(before.get('name'))}")]
    for member in sorted({*before, *after} - {"name"}):
        old, new = before.get(member, ABSENT), after.get(member, ABSENT)
        if is_json_equal(old, new):
            continue
        if member == "inputSchema" and not page.whole_text:
            old, new = describe_parameters(before), describe_parameters(after)
            if old == new:
                old, new = ABSENT, "same parameters, other details"
        if isinstance(old, str) and isinstance(new, str):
            lines.append(f"{member}: {render_inline_diff(old, new, None if page.whole_text else _MAX_TEXT)}")
        else:
            lines.append(show_invisible(f"{member}: {_describe_sides(old, new, whole=page.whole_text)}"))
    return lines


def _flow_text(text: str, *, whole: bool, limit: int = _MAX_DESCRIPTION) -> str:
    """Return the words of a text without its line breaks, so that long lists stay short."""
    words = " ".join(text.split())
    if whole or len(words) <= limit:
        return words
    end = words.rfind(" ", limit // 2, limit + 1)
    kept = words[: end if end > 0 else limit]
    return f"{kept} … ({len(words) - len(kept)} more characters)"


def _describe_sides(before: Any, after: Any, *, whole: bool) -> str:
    sides = [_format_value(side, whole=whole) for side in (before, after) if side is not ABSENT]
    if len(sides) == 2:
        return " → ".join(sides)
    return f"was {sides[0]}" if after is ABSENT else "".join(sides)


def _format_value(value: Any, *, whole: bool) -> str:
    if isinstance(value, str):
        text = value
    else:
        from json import dumps

        text = dumps(value, ensure_ascii=False)
    return text if whole else shorten_middle(text, _MAX_VALUE)
