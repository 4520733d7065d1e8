"""Rows of a report, grouped for people: one block for each cause, not one for each server.

A row about changed text always stays a block of its own, unless another row shows exactly the same change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.record import Record

if TYPE_CHECKING:
    from pinwarden.core.report import Row

CAUSES: Mapping[str, str] = {
    "floating": "use a floating version",
    "text_not_pinned": "have no approved tools",
    "text_of_another_release": "changed version or configuration since their approval",
    "plaintext_secret": "have a secret in plain text",
}
"""By code: what several servers have in common. Without one, the rule of the code is printed below the names."""

_SERVER_ENTITIES = ("config", "server", "artifact", "registry", "policy")
"""Entities whose name is the name of a server."""


class RowGroup(Record):
    """Rows that are printed as one block."""

    rows: tuple[Row, ...]
    same_text: bool
    """Whether the rows differ only in their name."""
    about_text: bool = False
    """Whether the rows are all warnings about one text, or about the same text of several items."""

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct names, in order."""
        return tuple(dict.fromkeys(row.name for row in self.rows))

    @property
    def count(self) -> str:
        """How many things the block is about: ``3 tools``, ``6 servers (7 entries)``."""
        names = self.names
        entity = self.rows[0].entity
        noun = "servers" if entity in _SERVER_ENTITIES and not self.same_text else _plural(entity)
        entries = f" ({len(self.rows)} entries)" if len(self.rows) > len(names) and not self.same_text else ""
        return f"{len(names)} {noun}{entries}"


def group_rows(rows: Sequence[Row], *, by_cause: bool) -> list[RowGroup]:
    """Group rows that differ only in their name, and with ``by_cause`` also those that report the same kind of problem.

    Groups are in the order of their first row.
    """
    same: dict[tuple[object, ...], list[Row]] = {}
    if not by_cause:
        for row in rows:
            same.setdefault(_text_key(row), []).append(row)
        return [RowGroup(rows=tuple(members), same_text=True) for members in same.values()]
    warnings = _group_warnings(rows)
    grouped = {id(row) for group in warnings for row in group.rows}
    for row in rows:
        if id(row) not in grouped:
            same.setdefault(_text_key(row), []).append(row)
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
            by_text.setdefault((row.entity, row.name, row.path, row.file), []).append(row)
    alike: dict[tuple[object, ...], list[Row]] = {}
    for (entity, _, path, file), members in by_text.items():
        signs = tuple((row.code, row.message, row.excerpt) for row in members)
        alike.setdefault((entity, path, file, signs), []).extend(members)
    return [RowGroup(rows=tuple(members), same_text=False, about_text=True) for members in alike.values()]


def describe_cause(group: RowGroup, rule_texts: Mapping[str, str]) -> tuple[str, list[str]]:
    """What the rows of a group have in common, and for each row what is special about it.

    Particulars of rows that are only informative are left out.
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


def _text_key(row: Row) -> tuple[object, ...]:
    location, texts = (row.path, row.file, row.line), (row.message, row.before, row.after, row.excerpt)
    return (row.severity, row.entity, row.code, *location, *texts)


def _plural(entity: str) -> str:
    return f"{entity[:-1]}ies" if entity.endswith("y") else f"{entity}s"
