"""Compare two JSON Schemas by effect: which values are newly accepted or refused, and which text is new.

Both schemas are walked together, and equal parts are skipped. A completely new part is one change, and all its text is
checked. This module has the rules for keywords that contain schemas; the others are in ``schema_keywords.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pinwarden.core.json_values import is_json_equal, json_identity
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.location import ChangeLocation, compare_values
from pinwarden.surface.drift.schema_keywords import (
    KEYWORD_RULES,
    KeywordRule,
    Schema,
    SchemaPosition,
    compare_unknown_keyword,
    get_keyword_values,
    is_textless,
)
from pinwarden.surface.drift.schema_signals import is_wordless


def compare_schemas(
    location: ChangeLocation, before: Any, after: Any, *, is_input: bool, new_schema_generator: bool = False
) -> Iterator[Change]:
    """Compare two schemas. ``is_input`` says that they describe the arguments of a call, not its result."""
    if is_json_equal(before, after):
        return
    if before is ABSENT or after is ABSENT:
        kind = "schema_added" if before is ABSENT else "schema_removed"
        if not is_input and is_wordless(before if after is ABSENT else after, location.name):
            kind = "result_schema_added" if before is ABSENT else "result_changed"
        yield location.build_change(kind, before, after)
        return
    yield from _compare_present_schemas(
        SchemaPosition(location=location, is_input=is_input, new_schema_generator=is_input and new_schema_generator),
        before,
        after,
    )


def is_closed(schema: Any) -> bool:
    """Whether a schema refuses members that it does not name (``additionalProperties: false``)."""
    return isinstance(schema, dict) and schema.get("additionalProperties") is False


def _compare_present_schemas(position: SchemaPosition, before: Any, after: Any) -> Iterator[Change]:
    """Compare two schemas that are both present."""
    if is_json_equal(before, after):
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield _compare_boolean_schemas(position, before, after)
        return
    for keyword in before | after:
        if not is_json_equal(before.get(keyword, ABSENT), after.get(keyword, ABSENT)):
            yield from _RULES.get(keyword, compare_unknown_keyword)(position.child(keyword), before, after)


def _compare_boolean_schemas(position: SchemaPosition, before: Any, after: Any) -> Change:
    if not isinstance(before, dict | bool) or not isinstance(after, dict | bool):
        return position.build_neutral_change("keyword_changed", before, after)
    if _accepts_everything(before) and _accepts_everything(after):
        return position.build_neutral_change("same_meaning", before, after)
    if after is False:
        return position.build_narrowing_change("schema_tightened", before, after)
    if _accepts_everything(before):
        return position.build_narrowing_change(
            "schema_tightened" if is_textless(after) else "subschema_added", before, after
        )
    return position.build_widening_change("schema_loosened", before, after, textless=is_textless(after))


def _accepts_everything(schema: Any) -> bool:
    return schema is ABSENT or schema is True or schema == {}


# Keywords that contain schemas


def _compare_properties(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    kinds = ("parameter_added", "parameter_removed") if position.is_input else ("result_added", "result_removed")
    yield from _compare_schemas_by_name(position, old, new, kinds)


def _compare_named_schemas(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    yield from _compare_schemas_by_name(position, old, new, ("subschema_added", "subschema_removed"))


def _compare_schemas_by_name(position: SchemaPosition, old: Any, new: Any, kinds: tuple[str, str]) -> Iterator[Change]:
    if not all(side is ABSENT or isinstance(side, dict) for side in (old, new)):
        yield position.build_neutral_change("keyword_changed", old, new)
        return
    old_schemas = old if isinstance(old, dict) else {}
    new_schemas = new if isinstance(new, dict) else {}
    if not old_schemas and not new_schemas:
        yield position.build_neutral_change("same_meaning", old, new)
    for name in old_schemas | new_schemas:
        inner = position.child(name)
        if name not in old_schemas:
            asks = kinds[0] == "parameter_added" and inner.asks_for_conversation(name, new_schemas[name])
            yield inner.build_neutral_change("conversation_requested" if asks else kinds[0], ABSENT, new_schemas[name])
        elif name not in new_schemas:
            yield inner.build_neutral_change(kinds[1], old_schemas[name], ABSENT)
        else:
            yield from _compare_present_schemas(inner, old_schemas[name], new_schemas[name])


def _compare_single_schema(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare a keyword whose value is one schema. Without the keyword, every value is accepted."""
    old, new = get_keyword_values(position, before, after)
    if old is not ABSENT and new is not ABSENT:
        yield from (
            _compare_item_lists(position, old, new)
            if isinstance(old, list)
            else _compare_present_schemas(position, old, new)
        )
    elif new is ABSENT:
        kind = "same_meaning" if _accepts_everything(old) else "subschema_removed"
        yield (
            position.build_neutral_change(kind, old, new)
            if _accepts_everything(old)
            else position.build_widening_change(kind, old, new)
        )
    elif _accepts_everything(new):
        yield position.build_neutral_change("same_meaning", old, new)
    else:
        yield position.build_narrowing_change("schema_tightened" if is_textless(new) else "subschema_added", old, new)


def _compare_item_lists(position: SchemaPosition, old: list[Any], new: Any) -> Iterator[Change]:
    """Compare ``items`` with a list of schemas, the notation of older dialects for ``prefixItems``."""
    if isinstance(new, list):
        yield from _compare_schemas_by_index(position, old, new)
    else:
        yield position.build_neutral_change("keyword_changed", old, new)


def _compare_prefix_items(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if all(side is ABSENT or isinstance(side, list) for side in (old, new)):
        yield from _compare_schemas_by_index(position, [] if old is ABSENT else old, [] if new is ABSENT else new)
    else:
        yield position.build_neutral_change("keyword_changed", old, new)


def _compare_schemas_by_index(position: SchemaPosition, old: list[Any], new: list[Any]) -> Iterator[Change]:
    if not old and not new:
        yield position.build_neutral_change("same_meaning", old, new)
    for index in range(max(len(old), len(new))):
        inner = position.child(index)
        if index >= len(old):
            yield inner.build_neutral_change("subschema_added", ABSENT, new[index])
        elif index >= len(new):
            yield inner.build_neutral_change("subschema_removed", old[index], ABSENT)
        else:
            yield from _compare_present_schemas(inner, old[index], new[index])


def _compare_unnamed_members(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare keywords such as ``additionalProperties``. Without them, all members and elements are accepted."""
    old, new = get_keyword_values(position, before, after)
    if _accepts_everything(old) and _accepts_everything(new):
        yield position.build_neutral_change("same_meaning", old, new)
    elif new is False and (_accepts_everything(old) or isinstance(old, dict)):
        yield position.build_narrowing_change(_choose_closing_kind(position, old, after), old, new)
    elif _accepts_everything(old) and isinstance(new, dict):
        yield position.build_narrowing_change("schema_tightened" if is_textless(new) else "subschema_added", old, new)
    elif old is False and new is ABSENT and position.new_schema_generator:
        yield position.build_widening_change("additional_properties_unstated", old, new)
    elif isinstance(old, dict) and isinstance(new, dict) and new:
        yield from _compare_present_schemas(position, old, new)
    else:
        yield position.build_widening_change("additional_properties_opened", old, new, textless=is_textless(new))


def _choose_closing_kind(position: SchemaPosition, old: Any, after: Schema) -> str:
    """Choose the kind of change for a schema that now refuses members that it does not name.

    For the arguments of a tool, and for objects with named members, this is information. Any other object or list can
    now only be empty, so the model no longer chooses its content, and the change needs review. The same holds if the
    unnamed members had a schema before.
    """
    is_call_schema = position.location.path == "/inputSchema/additionalProperties"
    has_named_members = position.location.member.endswith("Properties") and bool(after.get("properties"))
    mechanical = _accepts_everything(old) and (is_call_schema or has_named_members)
    return "additional_properties_closed" if mechanical or not position.is_input else "schema_tightened"


def _compare_negations(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if old is ABSENT:
        yield position.build_narrowing_change("schema_tightened" if is_textless(new) else "subschema_added", old, new)
    elif new is ABSENT:
        yield position.build_widening_change("subschema_removed", old, new)
    else:
        yield from _compare_present_schemas(position.with_direction(-1), old, new)


def _compare_conditions(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if old is ABSENT or new is ABSENT:
        yield position.build_neutral_change("condition_changed", old, new)
    else:
        yield from _compare_present_schemas(position.with_direction(0), old, new)


def _compare_any_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from _compare_branches(position, before, after, ("alternative_added", "alternative_removed"))


def _compare_one_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    # ``oneOf`` refuses a value that two branches accept. If one of them is removed, the value becomes valid.
    yield from _compare_branches(position, before, after, ("alternative_added", "subschema_removed"))


def _compare_all_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from _compare_branches(position, before, after, ("subschema_added", "subschema_removed"))


def _compare_branches(
    position: SchemaPosition, before: Schema, after: Schema, kinds: tuple[str, str]
) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if not all(side is ABSENT or isinstance(side, list) for side in (old, new)):
        yield position.build_neutral_change("keyword_changed", old, new)
    elif old is ABSENT:
        yield position.build_narrowing_change("schema_tightened" if is_textless(new) else "subschema_added", old, new)
    elif new is ABSENT:
        yield position.build_widening_change("subschema_removed", old, new)
    else:
        yield from _compare_branch_lists(position, old, new, kinds)


def _compare_branch_lists(
    position: SchemaPosition, old: list[Any], new: list[Any], kinds: tuple[str, str]
) -> Iterator[Change]:
    removed, added = _find_unmatched_indexes(old, new), _find_unmatched_indexes(new, old)
    if not removed and not added:
        yield position.build_neutral_change("order_changed", old, new)
    pairs = min(len(removed), len(added))
    for old_index, new_index in zip(removed[:pairs], added[:pairs], strict=True):
        yield from _compare_present_schemas(position.child(new_index), old[old_index], new[new_index])
    for index in added[pairs:]:
        kind = "null_accepted" if new[index] == {"type": "null"} and kinds[0] == "alternative_added" else kinds[0]
        yield position.child(index).build_widening_change(kind, ABSENT, new[index], textless=is_textless(new[index]))
    for index in removed[pairs:]:
        inner = position.child(index)
        make_change = inner.build_narrowing_change if kinds[1] == "alternative_removed" else inner.build_widening_change
        yield make_change(kinds[1], old[index], ABSENT)


def _find_unmatched_indexes(entries: list[Any], others: list[Any]) -> list[int]:
    """Find the indexes of the values that have no equal in the other list."""
    equals = Counter(map(json_identity, others))
    unmatched: list[int] = []
    for index, key in enumerate(map(json_identity, entries)):
        if equals[key]:
            equals[key] -= 1
        else:
            unmatched.append(index)
    return unmatched


def _compare_dependent_required(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from compare_values(position.location, *get_keyword_values(position, before, after), "required_changed")


_RULES: dict[str, KeywordRule] = {
    **KEYWORD_RULES,
    "properties": _compare_properties,
    "patternProperties": _compare_named_schemas,
    "$defs": _compare_named_schemas,
    "definitions": _compare_named_schemas,
    "dependentSchemas": _compare_named_schemas,
    "dependentRequired": _compare_dependent_required,
    "items": _compare_single_schema,
    "contains": _compare_single_schema,
    "propertyNames": _compare_single_schema,
    "contentSchema": _compare_single_schema,
    "prefixItems": _compare_prefix_items,
    "additionalProperties": _compare_unnamed_members,
    "unevaluatedProperties": _compare_unnamed_members,
    "additionalItems": _compare_unnamed_members,
    "unevaluatedItems": _compare_unnamed_members,
    "anyOf": _compare_any_of,
    "oneOf": _compare_one_of,
    "allOf": _compare_all_of,
    "not": _compare_negations,
    "if": _compare_conditions,
    "then": _compare_single_schema,
    "else": _compare_single_schema,
}
