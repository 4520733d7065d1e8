"""The board of ``pinwarden status``: one row per server, as a table or, on a narrow terminal, as cards.

Every state is a symbol and a word, so that nothing depends on colour. If the output cannot encode the symbols, only the
words are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

from pinwarden.cli.render.text import get_terminal_width
from pinwarden.cli.render.wrapping import wrap_sentence
from pinwarden.clients.table import CLIENTS
from pinwarden.core.record import Record
from pinwarden.core.text import neutralize_log_commands, parse_timestamp, show_invisible
from pinwarden.project.scopes import SCOPE_LABELS

if TYPE_CHECKING:
    from pinwarden.project.project import LockScope
    from pinwarden.project.status import PlainSecret, ServerStatus

_SYMBOLS = {"yes": "✓", "no": "✗", "partly": "~", "n/a": "-"}
_COLOURS = {"yes": "32", "no": "31", "partly": "33", "n/a": "2"}
_WIDE = 110  # a terminal with at least this many columns shows each server on one line
_TABLE = 76  # a terminal with fewer columns shows cards instead of a table
_GAP = "  "
_ITEMS_SHOWN = 3

Cell = tuple[str, str | None]
"""The text of a cell, and the state that colours it."""


def render_board(servers: Sequence[ServerStatus], now: str, *, colour: bool = False) -> str:
    """Return the servers by scope, in the form that fits the width of the terminal."""
    width, painter = get_terminal_width(), _Painter(colour)
    table = _Table(servers, now, width, painter) if width >= _TABLE and servers else None
    lines: list[str] = [] if table is None else [table.heading]
    for index, (scope, group) in enumerate(groupby(servers, key=lambda server: server.scope)):
        rows = tuple(group)
        lines += ["", _describe_scope(scope)] if index else [_describe_scope(scope)]
        lines += _render_cards(rows, now, width, painter) if table is None else table.render(rows)
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def render_attention(servers: Sequence[ServerStatus], secrets: Iterable[PlainSecret]) -> str:
    """Return the lines below the board: changes of tools, changed configurations, and secrets with their fixes."""
    width = get_terminal_width()
    lines: list[str] = []
    for heading, member in (
        ("Blocked by the gateway, pending review:", "blocked"),
        ("Changed since the approval, as the last probe saw:", "drift"),
    ):
        listed_items = [(server.name, items) for server in servers if (items := getattr(server, member))]
        lines += [heading] if listed_items else []
        for name, items in listed_items:
            more = len(items) - _ITEMS_SHOWN
            shown = f"{', '.join(items[:_ITEMS_SHOWN])}{f' and {more} more' if more > 0 else ''}"
            lines += _wrap(f"{name}: {shown}", width)
    changed = [server.name for server in servers if server.changed]
    if changed:
        lines += _wrap(f"Configured differently than locked: {', '.join(changed)}", width, indent="")
    listed = tuple(secrets)
    if listed:
        lines.append("Secrets in plain text:")
        for secret in listed:
            where = f"{secret.server}: " if secret.server else ""
            lines += _wrap(f"{where}{secret.name} in {secret.file}. {secret.fix}", width)
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def describe_age(then: str | None, now: str) -> str:
    """Return how long ago a time was, in at most seven characters: ``5m ago``, ``3h ago``, ``12d ago``."""
    start, end = parse_timestamp(then), parse_timestamp(now)
    if start is None or end is None:
        return "never"
    seconds = int((end - start).total_seconds())
    if seconds < 60:  # a clock that was set back must not show a negative age
        return "now"
    if seconds < 3600:
        return f"{seconds // 60}m ago"
    if seconds < 2 * 86400:
        return f"{seconds // 3600}h ago"
    days = seconds // 86400
    return f"{days}d ago" if days < 365 else f"{days // 365}y ago"


class _Painter:
    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._symbols: Mapping[str, str] = _SYMBOLS if _can_encode("".join(_SYMBOLS.values())) else {}

    def add_symbol(self, state: str, words: str) -> str:
        """Return the words, after the symbol of the state if the output can encode symbols."""
        symbol = self._symbols.get(state)
        return f"{symbol} {words}" if symbol else words

    def paint(self, text: str, state: str | None) -> str:
        return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if self._colour and state is not None else text


class _Table:
    """A table with the same columns in every scope. On a narrow terminal, the clients are on a second line."""

    def __init__(self, servers: Sequence[ServerStatus], now: str, width: int, painter: _Painter) -> None:
        self._now, self._width, self._painter = now, width, painter
        self._columns = [column for column in _COLUMNS if width >= _WIDE or not column.is_wide_only]
        self._widths = {column.heading: self._measure(column, servers) for column in self._columns}
        self._shrink(width - len(_GAP) * (len(self._columns) - 1))
        sized = (_fit_to_width(heading, size) for heading, size in self._widths.items())
        self.heading = _GAP.join(sized).rstrip()

    def render(self, servers: Iterable[ServerStatus]) -> Iterator[str]:
        """Yield the lines of these servers."""
        for server in servers:
            yield _GAP.join(self._fit(column, server) for column in self._columns).rstrip()
            name, clients = show_invisible(server.name), _list_clients(server)
            is_cut = measure_width(name) > self._widths[_SERVER]
            if is_cut or measure_width(clients) > self._widths.get(_CLIENTS, 0):
                yield from _wrap(f"{name}: {clients}" if is_cut else clients, self._width)

    def _measure(self, column: _Column, servers: Sequence[ServerStatus]) -> int:
        texts = (column.heading, *(self._write(column, server)[0] for server in servers))
        return min(max(map(measure_width, texts)), column.max_width)

    def _fit(self, column: _Column, server: ServerStatus) -> str:
        text, state = self._write(column, server)
        return self._painter.paint(_fit_to_width(text, self._widths[column.heading]), state)

    def _write(self, column: _Column, server: ServerStatus) -> Cell:
        text, state = column.write(server, self._now)
        return (text if state is None else self._painter.add_symbol(state, text)), state

    def _shrink(self, available: int) -> None:
        """Cut the widest column that may be cut until the table fits."""
        cut = [column.heading for column in self._columns if column.may_shrink]
        for _ in range(sum(self._widths.values()) - available):
            self._widths[max(cut, key=lambda heading: self._widths[heading])] -= 1


def _render_cards(servers: Iterable[ServerStatus], now: str, width: int, painter: _Painter) -> Iterator[str]:
    for server in servers:
        title: list[str] = []
        states: list[Cell] = []
        details: list[str] = []
        for column in _COLUMNS:
            text, state = column.write(server, now)
            if state is not None:
                words = _describe_state(column.heading.lower(), state)
                states.append((painter.add_symbol(state, words), state))
            else:
                (title if column.is_title else details).append(f"{column.card_label}{text}")
        yield from _wrap(" ".join(title), width, indent="")
        yield from _flow_words(states, width, painter)
        yield from _wrap("; ".join(details), width)


class _Column(Record):
    """A column of the table, and the same text on a card."""

    heading: str
    write: Callable[[ServerStatus, str], Cell]
    """Returns the cell of a server. The second argument is the present time."""
    max_width: int = sys.maxsize
    may_shrink: bool = False
    """Whether the column is cut if the terminal is too narrow."""
    is_wide_only: bool = False
    is_title: bool = False
    """Whether the text is on the first line of a card."""
    card_label: str = ""
    """What precedes the text on a card."""


def _build_state_column(member: str) -> _Column:
    def write(server: ServerStatus, _: str) -> Cell:
        state = str(getattr(server, member))
        return state, state

    return _Column(heading=member.upper(), write=write)


def _describe_state(member: str, state: str) -> str:
    return {"yes": member, "no": f"not {member}", "partly": f"partly {member}", "n/a": f"{member}: n/a"}[state]


def _flow_words(parts: Iterable[Cell], width: int, painter: _Painter) -> Iterator[str]:
    """Yield lines with as many cells as fit into the width. Colours do not count as width."""
    line, used = "", 0
    for text, state in parts:
        size = measure_width(text)
        if used and used + len(_GAP) + size > width:
            yield line
            line, used = "", 0
        line, used = f"{line}{_GAP}{painter.paint(text, state)}", used + len(_GAP) + size
    yield line


def _describe_scope(scope: LockScope) -> str:
    label = SCOPE_LABELS[scope]
    return f"{label[0].upper()}{label[1:]}"


def _describe_version(server: ServerStatus) -> str:
    if server.version is None:
        return "floating" if server.pinned == "no" else "-"
    return show_invisible(server.version)


def _list_clients(server: ServerStatus) -> str:
    titles = ", ".join(CLIENTS[client].title if client in CLIENTS else client for client in server.clients)
    return show_invisible(f"{titles} (disabled)" if server.disabled else titles) or "not configured"


def _fit_to_width(text: str, width: int) -> str:
    """Return a text in exactly this many columns: padded, or cut with an ellipsis."""
    size = measure_width(text)
    if size <= width:
        return text + " " * (width - size)
    kept = ""
    for char in text:
        if measure_width(kept) + measure_width(char) > width - 1:
            break
        kept += char
    return f"{kept}…" + " " * (width - 1 - measure_width(kept))


def measure_width(text: str) -> int:
    """Return how many columns a text takes on a terminal: none for combining characters, two for wide ones."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    return wrap_sentence(show_invisible(text), width, indent=indent, hanging=indent + "  ")


def _can_encode(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


_SERVER, _CLIENTS = "SERVER", "CLIENTS"
_COLUMNS = (
    _Column(
        heading=_SERVER, write=lambda server, _: (show_invisible(server.name), None), may_shrink=True, is_title=True
    ),
    _Column(
        heading="VERSION",
        write=lambda server, _: (_describe_version(server), None),
        max_width=14,
        may_shrink=True,
        is_title=True,
    ),
    _Column(
        heading=_CLIENTS, write=lambda server, _: (_list_clients(server), None), may_shrink=True, is_wide_only=True
    ),
    *map(_build_state_column, ("pinned", "approved", "verified", "enforced")),
    _Column(
        heading="CHECKED",
        write=lambda server, now: (describe_age(server.last_checked, now), None),
        card_label="last checked: ",
    ),
    _Column(heading="NEXT", write=lambda server, _: (server.next_step or "-", None), card_label="next: "),
)
"""All columns of the board, from left to right."""
