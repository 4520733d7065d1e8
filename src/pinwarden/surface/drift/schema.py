"""Changes of a JSON Schema by their effect: which values it newly accepts or refuses, and which text is new.

Both schemas are walked together; equal parts are skipped. Under ``not``, the directions are reversed. A completely new
part is one change, and all its text is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pinwarden.core.json_values import is_json_equal, json_identity
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.location import ChangeLocation, value_changes
from pinwarden.surface.drift.schema_keywords import (
    KEYWORD_RULES,
    Rule,
    Schema,
    SchemaPosition,
    is_silent,
    keyword_values,
    unknown_keyword,
)


def schema_changes(
    location: ChangeLocation, before: Any, after: Any, *, inputs: bool, unstated_everywhere: bool = False
) -> Iterator[Change]:
    """Every change between two schemas. ``inputs``: they describe the arguments of a call, not its result."""
    if is_json_equal(before, after):
        return
    if before is ABSENT or after is ABSENT:
        yield location.change("schema_added" if before is ABSENT else "schema_removed", before, after)
        return
    yield from _compare_schemas(
        SchemaPosition(location=location, inputs=inputs, unstated_everywhere=inputs and unstated_everywhere),
        before,
        after,
    )


def is_closed(schema: Any) -> bool:
    """Whether a schema refuses members that it does not name."""
    return isinstance(schema, dict) and schema.get("additionalProperties") is False


def _compare_schemas(position: SchemaPosition, before: Any, after: Any) -> Iterator[Change]:
    """Two schemas at the same location, both present."""
    if is_json_equal(before, after):
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield _compare_boolean_schemas(position, before, after)
        return
    for keyword in before | after:
        if not is_json_equal(before.get(keyword, ABSENT), after.get(keyword, ABSENT)):
            yield from _RULES.get(keyword, unknown_keyword)(position.child(keyword), before, after)


def _compare_boolean_schemas(position: SchemaPosition, before: Any, after: Any) -> Change:
    if not isinstance(before, dict | bool) or not isinstance(after, dict | bool):
        return position.neutral("keyword_changed", before, after)
    if _accepts_all(before) and _accepts_all(after):
        return position.neutral("same_meaning", before, after)
    if after is False:
        return position.narrower("schema_tightened", before, after)
    if _accepts_all(before):
        return position.narrower("schema_tightened" if is_silent(after) else "subschema_added", before, after)
    return position.wider("schema_loosened", before, after, silent=is_silent(after))


def _accepts_all(schema: Any) -> bool:
    return schema is ABSENT or schema is True or schema == {}


# Keywords that contain schemas


def _properties(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = keyword_values(position, before, after)
    kinds = ("parameter_added", "parameter_removed") if position.inputs else ("result_added", "result_removed")
    yield from _compare_named(position, old, new, kinds)


def _named_schemas(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = keyword_values(position, before, after)
    yield from _compare_named(position, old, new, ("subschema_added", "subschema_removed"))


def _compare_named(position: SchemaPosition, old: Any, new: Any, kinds: tuple[str, str]) -> Iterator[Change]:
    if not all(side is ABSENT or isinstance(side, dict) for side in (old, new)):
        yield position.neutral("keyword_changed", old, new)
        return
    old_schemas = old if isinstance(old, dict) else {}
    new_schemas = new if isinstance(new, dict) else {}
    if not old_schemas and not new_schemas:
        yield position.neutral("same_meaning", old, new)
    for name in old_schemas | new_schemas:
        inner = position.child(name)
        if name not in old_schemas:
            yield inner.neutral(kinds[0], ABSENT, new_schemas[name])
        elif name not in new_schemas:
            yield inner.neutral(kinds[1], old_schemas[name], ABSENT)
        else:
            yield from _compare_schemas(inner, old_schemas[name], new_schemas[name])


def _one_schema(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """A keyword with one schema. Without it, every value is accepted."""
    old, new = keyword_values(position, before, after)
    if old is not ABSENT and new is not ABSENT:
        yield from _items_as_list(position, old, new) if isinstance(old, list) else _compare_schemas(position, old, new)
    elif new is ABSENT:
        kind = "same_meaning" if _accepts_all(old) else "subschema_removed"
        yield position.neutral(kind, old, new) if _accepts_all(old) else position.wider(kind, old, new)
    elif _accepts_all(new):
        yield position.neutral("same_meaning", old, new)
    else:
        yield position.narrower("schema_tightened" if is_silent(new) else "subschema_added", old, new)


def _items_as_list(position: SchemaPosition, old: list[Any], new: Any) -> Iterator[Change]:
    """``items`` with a list, which is ``prefixItems`` in older dialects."""
    if isinstance(new, list):
        yield from _compare_positions(position, old, new)
    else:
        yield position.neutral("keyword_changed", old, new)


def _prefix_items(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = keyword_values(position, before, after)
    if all(side is ABSENT or isinstance(side, list) for side in (old, new)):
        yield from _compare_positions(position, [] if old is ABSENT else old, [] if new is ABSENT else new)
    else:
        yield position.neutral("keyword_changed", old, new)


def _compare_positions(position: SchemaPosition, old: list[Any], new: list[Any]) -> Iterator[Change]:
    if not old and not new:
        yield position.neutral("same_meaning", old, new)
    for index in range(max(len(old), len(new))):
        inner = position.child(index)
        if index >= len(old):
            yield inner.neutral("subschema_added", ABSENT, new[index])
        elif index >= len(new):
            yield inner.neutral("subschema_removed", old[index], ABSENT)
        else:
            yield from _compare_schemas(inner, old[index], new[index])


def _unnamed_members(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Keywords for members or elements that the schema does not name; if absent, all are accepted."""
    old, new = keyword_values(position, before, after)
    if _accepts_all(old) and _accepts_all(new):
        yield position.neutral("same_meaning", old, new)
    elif new is False and (_accepts_all(old) or isinstance(old, dict)):
        yield position.narrower(_kind_of_closing(position, old, after), old, new)
    elif _accepts_all(old) and isinstance(new, dict):
        yield position.narrower("schema_tightened" if is_silent(new) else "subschema_added", old, new)
    elif old is False and new is ABSENT and position.unstated_everywhere:
        yield position.wider("additional_properties_unstated", old, new)
    elif isinstance(old, dict) and isinstance(new, dict) and new:
        yield from _compare_schemas(position, old, new)
    else:
        yield position.wider("additional_properties_opened", old, new, silent=is_silent(new))


def _kind_of_closing(position: SchemaPosition, old: Any, after: Schema) -> str:
    """The kind of the change if a schema now refuses members that it does not name.

    A tool without parameters accepts no arguments either way. Any other object or list without named members can now
    only be empty, so the model no longer chooses its content. The same holds if unnamed members had a schema before.
    """
    is_call_schema = position.location.path == "/inputSchema/additionalProperties"
    has_named_members = position.location.member.endswith("Properties") and bool(after.get("properties"))
    mechanical = _accepts_all(old) and (is_call_schema or has_named_members)
    return "additional_properties_closed" if mechanical or not position.inputs else "schema_tightened"


def _negation(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = keyword_values(position, before, after)
    if old is ABSENT:
        yield position.narrower("schema_tightened" if is_silent(new) else "subschema_added", old, new)
    elif new is ABSENT:
        yield position.wider("subschema_removed", old, new)
    else:
        yield from _compare_schemas(position.with_sense(-1), old, new)


def _condition(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = keyword_values(position, before, after)
    if old is ABSENT or new is ABSENT:
        yield position.neutral("condition_changed", old, new)
    else:
        yield from _compare_schemas(position.with_sense(0), old, new)


def _any_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from _branches(position, before, after, ("alternative_added", "alternative_removed"))


def _one_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    # A value that two branches accept is refused; without one of them it is accepted.
    yield from _branches(position, before, after, ("alternative_added", "subschema_removed"))


def _all_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from _branches(position, before, after, ("subschema_added", "subschema_removed"))


def _branches(position: SchemaPosition, before: Schema, after: Schema, kinds: tuple[str, str]) -> Iterator[Change]:
    old, new = keyword_values(position, before, after)
    if not all(side is ABSENT or isinstance(side, list) for side in (old, new)):
        yield position.neutral("keyword_changed", old, new)
    elif old is ABSENT:
        yield position.narrower("schema_tightened" if is_silent(new) else "subschema_added", old, new)
    elif new is ABSENT:
        yield position.wider("subschema_removed", old, new)
    else:
        yield from _branch_changes(position, old, new, kinds)


def _branch_changes(
    position: SchemaPosition, old: list[Any], new: list[Any], kinds: tuple[str, str]
) -> Iterator[Change]:
    removed, added = _unmatched_indexes(old, new), _unmatched_indexes(new, old)
    if not removed and not added:
        yield position.neutral("order_changed", old, new)
    pairs = min(len(removed), len(added))
    for old_index, new_index in zip(removed[:pairs], added[:pairs], strict=True):
        yield from _compare_schemas(position.child(new_index), old[old_index], new[new_index])
    for index in added[pairs:]:
        yield position.child(index).wider(kinds[0], ABSENT, new[index], silent=is_silent(new[index]))
    for index in removed[pairs:]:
        inner = position.child(index)
        make_change = inner.narrower if kinds[1] == "alternative_removed" else inner.wider
        yield make_change(kinds[1], old[index], ABSENT)


def _unmatched_indexes(entries: list[Any], others: list[Any]) -> list[int]:
    """The indexes of the entries that have no equal on the other side."""
    equals = Counter(map(json_identity, others))
    unmatched: list[int] = []
    for index, key in enumerate(map(json_identity, entries)):
        if equals[key]:
            equals[key] -= 1
        else:
            unmatched.append(index)
    return unmatched


def _dependent_required(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from value_changes(position.location, *keyword_values(position, before, after), "required_changed")


_RULES: dict[str, Rule] = {
    **KEYWORD_RULES,
    "properties": _properties,
    "patternProperties": _named_schemas,
    "$defs": _named_schemas,
    "definitions": _named_schemas,
    "dependentSchemas": _named_schemas,
    "dependentRequired": _dependent_required,
    "items": _one_schema,
    "contains": _one_schema,
    "propertyNames": _one_schema,
    "contentSchema": _one_schema,
    "prefixItems": _prefix_items,
    "additionalProperties": _unnamed_members,
    "unevaluatedProperties": _unnamed_members,
    "additionalItems": _unnamed_members,
    "unevaluatedItems": _unnamed_members,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "not": _negation,
    "if": _condition,
    "then": _one_schema,
    "else": _one_schema,
}
