"""The board of ``pinwarden status``: one row per server, as a table or, on a narrow terminal, as cards.

Every state is a symbol and a word, so that nothing depends on colour. If the output cannot encode the symbols, only the
words are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

from pinwarden.cli.render.text import get_terminal_width
from pinwarden.cli.render.wrapping import wrap_sentence
from pinwarden.clients.table import CLIENTS
from pinwarden.core.text import neutralize_log_commands, parse_timestamp, show_invisible
from pinwarden.project.scopes import SCOPE_LABELS

if TYPE_CHECKING:
    from pinwarden.project.project import LockScope
    from pinwarden.project.status import PlainSecret, ServerStatus

_SYMBOLS = {"yes": "✓", "no": "✗", "partly": "~", "n/a": "-"}
_COLOURS = {"yes": "32", "no": "31", "partly": "33", "n/a": "2"}
_STATES = ("pinned", "approved", "verified", "enforced")
_WIDE = 110  # a terminal with at least this many columns shows each server on one line
_TABLE = 76  # a terminal with fewer columns shows cards instead of a table
_MAX_VERSION = 14
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
        self._wide = width >= _WIDE
        clients = ("CLIENTS",) if self._wide else ()
        headings = ("SERVER", "VERSION", *clients, *map(str.upper, _STATES), "CHECKED", "NEXT")
        rows = [self._build_cells(server) for server in servers]
        self._widths = [
            max(measure_width(heading), *(measure_width(row[column][0]) for row in rows))
            for column, heading in enumerate(headings)
        ]
        self._shrink(width - len(_GAP) * (len(headings) - 1))
        sized = zip(headings, self._widths, strict=True)
        self.heading = _GAP.join(_fit_to_width(heading, size) for heading, size in sized).rstrip()

    def render(self, servers: Iterable[ServerStatus]) -> Iterator[str]:
        """Yield the lines of these servers."""
        for server in servers:
            cells = zip(self._build_cells(server), self._widths, strict=True)
            yield _GAP.join(
                self._painter.paint(_fit_to_width(text, size), state) for (text, state), size in cells
            ).rstrip()
            name, clients = show_invisible(server.name), _list_clients(server)
            is_cut = measure_width(name) > self._widths[0]
            if is_cut or not self._wide or measure_width(clients) > self._widths[2]:
                yield from _wrap(f"{name}: {clients}" if is_cut else clients, self._width)

    def _build_cells(self, server: ServerStatus) -> list[Cell]:
        states = (str(getattr(server, member)) for member in _STATES)
        clients: list[Cell] = [(_list_clients(server), None)] if self._wide else []
        return [
            (show_invisible(server.name), None),
            (_describe_version(server), None),
            *clients,
            *((self._painter.add_symbol(state, state), state) for state in states),
            (describe_age(server.last_checked, self._now), None),
            (server.next_step or "-", None),
        ]

    def _shrink(self, available: int) -> None:
        """Cut columns until the table fits: long versions first, then the widest column that may be cut."""
        self._widths[1] = min(self._widths[1], _MAX_VERSION)
        for _ in range(sum(self._widths) - available):
            column = max((0, 2) if self._wide else (0, 1), key=lambda index: self._widths[index])
            self._widths[column] -= 1


def _render_cards(servers: Iterable[ServerStatus], now: str, width: int, painter: _Painter) -> Iterator[str]:
    for server in servers:
        yield from _wrap(f"{show_invisible(server.name)} {_describe_version(server)}", width, indent="")
        states = [
            (painter.add_symbol(state, _describe_state(member, state)), state)
            for member in _STATES
            if (state := str(getattr(server, member)))
        ]
        yield from _flow_words(states, width, painter)
        checked = describe_age(server.last_checked, now)
        yield from _wrap(f"{_list_clients(server)}; last checked: {checked}; next: {server.next_step or '-'}", width)


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
