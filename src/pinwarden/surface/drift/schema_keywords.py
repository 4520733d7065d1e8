"""Changes of one schema keyword that contains no schema: bounds, types, values, texts.

Each rule knows which direction accepts more values. For the arguments of a call, both directions need review:
a wider schema accepts values that were not approved, and a narrower one makes a choice that was the model's or the
user's (one value left of an enum, a higher minimum, null no longer accepted). Two kinds of narrowing leave the choice
of the value as it was and are information: a maximum size of free text or of a list (``size_limited``), and the
refusal of members that the schema does not name (``additional_properties_closed``).

A narrower schema of a result promises more and demands nothing, so it is information (``result_narrowed``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pinwarden.core.canonical import is_number
from pinwarden.core.json_values import is_json_equal, json_identity
from pinwarden.core.record import Record, replace
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.location import ChangeLocation, is_known_dialect, is_remote, text_changes, value_changes

Schema = dict[str, Any]
_ALL_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_TYPE_NAMES = {type(None): "null", bool: "boolean", dict: "object", list: "array", str: "string", int: "integer"}
_MINIMUM_SIZES = frozenset({"minLength", "minItems", "minProperties"})
_MINIMUM_OF_MAXIMUM = {"maxLength": "minLength", "maxItems": "minItems", "maxProperties": "minProperties"}
"""Keywords for a maximum size, and the keyword for the minimum size of the same thing."""
_FREE_TEXT_OR_LIST = frozenset({"type", "title", "description", "$comment", "default", "examples", "example", "items"})
"""If a schema has only these keywords, a maximum size does not select values by their content."""
_MAX_EXACT_INTEGER = 2**53 - 1  # RFC 8259, section 6; generators state it as the bound of every integer
_NARROWING = frozenset(
    {
        "alternative_removed",
        "bound_added",
        "bound_tightened",
        "enum_shrunk",
        "more_demanded",
        "schema_tightened",
        "size_limited",
        "type_narrowed",
    }
)
"""Kinds of change that only exclude values; for a result, each of them is ``result_narrowed``."""
_DESTINATION = frozenset({"destination"})
# Keywords that only limit values. Minimum sizes are not included, because they demand something.
_SILENT_BOUNDS = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "maxLength",
        "maxItems",
        "maxProperties",
        "maxContains",
    }
)
_SILENT_SCHEMAS = frozenset(
    {
        "additionalProperties",
        "unevaluatedProperties",
        "items",
        "additionalItems",
        "unevaluatedItems",
        "not",
    }
)


class SchemaPosition(Record):
    """A location in a schema, and which direction accepts more values there."""

    location: ChangeLocation
    sense: int = 1
    """1: more values here are more values in total. -1: under 'not', the reverse. 0: in a condition, unknown."""
    inputs: bool
    """Whether it is the schema of a call's arguments, not of a result."""
    unstated_everywhere: bool = False
    """All closed input schemas of the server lost ``additionalProperties`` together."""

    def child(self, token: str | int) -> SchemaPosition:
        """The position one level deeper."""
        return replace(self, location=self.location.child(token))

    def with_sense(self, by: int) -> SchemaPosition:
        """The same location with the directions reversed (-1) or unknown (0)."""
        return replace(self, sense=self.sense * by)

    def neutral(self, kind: str, before: Any, after: Any) -> Change:
        """A change whose kind does not depend on the direction."""
        return self.location.change(kind, before, after)

    def wider(self, kind: str, before: Any, after: Any, *, silent: bool = False) -> Change:
        """A change after which this part of the schema accepts more values.

        ``silent``: the added part has no text that a model could follow; numbers, booleans and removals never have.
        Under 'not', only a silent change is information, because text there is read like any other.
        """
        silent = silent or after is ABSENT or type(after) is bool or is_number(after)
        kind_under_not = "negation_tightened" if self.inputs else "result_narrowed"
        kinds = {1: kind, -1: kind_under_not if silent else "subschema_added", 0: "condition_changed"}
        return self.location.change(kinds[self.sense], before, after)

    def narrower(self, kind: str, before: Any, after: Any) -> Change:
        """A change after which this part of the schema accepts fewer values."""
        if not self.inputs and kind in _NARROWING:
            kind = "result_narrowed"
        kinds = {1: kind, -1: "negation_loosened", 0: "condition_changed"}
        return self.location.change(kinds[self.sense], before, after)


Rule = Callable[[SchemaPosition, Schema, Schema], Iterator[Change]]
"""Compares one keyword of two schemas. The position is that of the keyword, whose values differ."""


def keyword_values(position: SchemaPosition, before: Schema, after: Schema) -> tuple[Any, Any]:
    """The two values of the keyword at the position."""
    return before.get(position.location.member, ABSENT), after.get(position.location.member, ABSENT)


def is_silent(schema: Any) -> bool:
    """Whether a schema, or each of a list, only limits values, without a name, text or value that a model could follow.

    A value of the wrong type for its keyword is not silent: a model reads text even if it is in place of a number.
    """
    if isinstance(schema, dict):
        return all(_is_silent_keyword(keyword, value) for keyword, value in schema.items())
    if isinstance(schema, list):
        return all(map(is_silent, schema))
    return type(schema) is bool


def _is_silent_keyword(keyword: str, value: Any) -> bool:
    if keyword == "type":
        return _type_set(value) is not None
    if keyword == "uniqueItems":
        return type(value) is bool
    if keyword in _SILENT_BOUNDS:
        return is_number(value)
    return keyword in _SILENT_SCHEMAS and is_silent(value)


def text(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Text for the model: title, description, $comment."""
    yield from text_changes(position.location, *keyword_values(position, before, after))


def unknown_keyword(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """A keyword with an unknown effect."""
    yield from value_changes(position.location, *keyword_values(position, before, after), "keyword_changed")


def default(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """The default for a missing value."""
    yield from value_changes(position.location, *keyword_values(position, before, after), "default_changed")


def examples(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Values that a model imitates."""
    yield from value_changes(position.location, *keyword_values(position, before, after), "examples_changed")


def dialect(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """``$schema``: which published rules a schema follows."""
    old, new = keyword_values(position, before, after)
    known = all(side is ABSENT or is_known_dialect(side) for side in (old, new))
    yield position.location.change("dialect_changed" if known else "dialect_unknown", old, new, ignored=_DESTINATION)


def identifier(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """``$id``: a name in the form of an address that is not contacted."""
    yield position.location.change("keyword_changed", *keyword_values(position, before, after), ignored=_DESTINATION)


def reference(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """``$ref``: inside or outside the document."""
    old, new = keyword_values(position, before, after)
    if is_remote(new) and new not in position.location.approved.references:
        yield position.location.change("remote_reference", old, new, ignored=_DESTINATION)
    else:
        yield position.neutral("reference_changed", old, new)


def header(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """``x-mcp-header``: the argument is also sent as a header."""
    old, new = keyword_values(position, before, after)
    yield position.neutral("keyword_changed" if new is ABSENT else "header_exposed", old, new)


def upper_bound(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """A maximum value or size."""
    yield _bound(position, before, after, sign=1)


def lower_bound(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """A minimum value or size."""
    yield _bound(position, before, after, sign=-1)


def _bound(position: SchemaPosition, before: Schema, after: Schema, sign: int) -> Change:
    old, new = keyword_values(position, before, after)
    if not all(side is ABSENT or is_number(side) for side in (old, new)):
        return position.neutral("keyword_changed", old, new)
    is_minimum_size = position.location.member in _MINIMUM_SIZES
    if is_minimum_size and (old is ABSENT or old <= 0) and (new is ABSENT or new <= 0):
        return position.neutral("same_meaning", old, new)
    if new is ABSENT:
        return position.wider("bound_removed", old, new)
    if old is not ABSENT and (new - old) * sign > 0:
        return position.wider("bound_loosened", old, new)
    if is_minimum_size:
        return position.narrower("more_demanded", old, new)
    if _keeps_choice(position.location.member, after, new * sign):
        return position.narrower("size_limited", old, new)
    return position.narrower("bound_added" if old is ABSENT else "bound_tightened", old, new)


def _keeps_choice(keyword: str, schema: Schema, limit: Any) -> bool:
    """Whether a limit leaves the choice of the value: it excludes only large sizes, or integers beyond 2**53.

    Together with an enum, a pattern or a format, a maximum size can select one value. So can a maximum that allows
    only the smallest size.
    """
    minimum_keyword = _MINIMUM_OF_MAXIMUM.get(keyword)
    if minimum_keyword is None:
        return bool(limit >= _MAX_EXACT_INTEGER)
    free = schema.keys() <= _FREE_TEXT_OR_LIST | _MINIMUM_OF_MAXIMUM.keys() | _MINIMUM_SIZES
    smallest = schema.get(minimum_keyword, 0)
    return free and is_number(smallest) and bool(limit > max(1, smallest))


def multiple_of(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """The step between accepted numbers. A multiple of the old step is tighter."""
    old, new = keyword_values(position, before, after)
    if not all(side is ABSENT or is_number(side) for side in (old, new)):
        yield position.neutral("keyword_changed", old, new)
    elif old is ABSENT:
        yield position.narrower("bound_added", old, new)
    elif new is ABSENT:
        yield position.wider("bound_removed", old, new)
    elif type(old) is int and type(new) is int and old > 0 and new % old == 0:
        yield position.narrower("bound_tightened", old, new)
    else:
        yield position.wider("bound_loosened", old, new)


def unique_items(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Whether an element may occur twice."""
    old, new = keyword_values(position, before, after)
    was_unique, is_unique = old is True, new is True
    if not all(side is ABSENT or type(side) is bool for side in (old, new)):
        yield position.neutral("keyword_changed", old, new)
    elif was_unique == is_unique:
        yield position.neutral("same_meaning", old, new)
    elif is_unique:
        # If several elements are required and must differ, only one set of them may be left.
        yield position.narrower("bound_added" if _requires_several(after) else "size_limited", old, new)
    else:
        yield position.wider("bound_removed", old, new)


def _requires_several(schema: Schema) -> bool:
    min_items = schema.get("minItems", 0)
    return not is_number(min_items) or bool(min_items > 1)


def enum(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """The list of accepted values."""
    old, new = keyword_values(position, before, after)
    if old is ABSENT and isinstance(new, list):
        yield position.narrower("values_prescribed", old, new)
    elif new is ABSENT:
        yield position.wider("enum_removed", old, new)
    elif not isinstance(old, list) or not isinstance(new, list):
        yield position.neutral("keyword_changed", old, new)
    else:
        approved, offered = set(map(json_identity, old)), set(map(json_identity, new))
        if offered == approved:
            yield position.neutral("order_changed", old, new)
        elif offered < approved:
            yield position.narrower("enum_shrunk", old, new)
        else:
            added = [value for value in new if json_identity(value) not in approved]
            yield position.wider("enum_grown", old, new, silent=all(map(_is_silent_value, added)))


def _is_silent_value(value: Any) -> bool:
    return value is None or type(value) is bool or is_number(value)


def constant(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """The one accepted value."""
    old, new = keyword_values(position, before, after)
    if new is ABSENT:
        yield position.wider("constant_removed", old, new)
    elif old is not ABSENT:
        yield position.neutral("constant_changed", old, new)
    elif _was_in_enum(before, new):
        yield position.narrower("enum_shrunk", old, new)
    else:
        yield position.narrower("values_prescribed", old, new)


def _was_in_enum(before: Schema, value: Any) -> bool:
    choices = before.get("enum")
    return isinstance(choices, list) and any(is_json_equal(choice, value) for choice in choices)


def pattern(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """The format of a string: pattern, format, encoding, media type."""
    old, new = keyword_values(position, before, after)
    if old is ABSENT:
        yield position.narrower("values_prescribed", old, new)
    elif new is ABSENT:
        yield position.wider("pattern_removed", old, new)
    else:
        yield position.neutral("pattern_changed", old, new)


def types(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """The types of accepted values. An integer is a number."""
    old, new = keyword_values(position, before, after)
    old_types, new_types = _type_set(old), _type_set(new)
    if old_types is None or new_types is None:
        yield position.neutral("keyword_changed", old, new)
    elif old_types == new_types:
        yield position.neutral(
            "order_changed" if isinstance(old, list) and isinstance(new, list) else "same_meaning", old, new
        )
    elif new_types < old_types and _all_of_types(before, new_types):
        yield position.neutral("same_meaning", old, new)
    elif new_types < old_types:
        yield position.narrower("type_narrowed", old, new)
    elif new is ABSENT:
        yield position.wider("type_removed", old, new)
    elif old_types < new_types:
        yield position.wider("type_grown", old, new, silent=True)
    else:
        yield position.neutral("type_changed", old, new)


def _all_of_types(schema: Schema, names: frozenset[str]) -> bool:
    """Whether a schema lists its values and all of them have these types, so that the types exclude none."""
    values = schema.get("enum")
    return isinstance(values, list) and bool(values) and all(_TYPE_NAMES.get(type(value)) in names for value in values)


def _type_set(value: Any) -> frozenset[str] | None:
    if value is ABSENT:
        return _ALL_TYPES
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not _ALL_TYPES.issuperset(name for name in names if isinstance(name, str)):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names) | ({"integer"} if "number" in names else set())


def required(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Required members. If a property was removed, its requirement is not reported separately."""
    old, new = keyword_values(position, before, after)
    old_names, new_names = _name_set(old), _name_set(new)
    if old_names is None or new_names is None:
        yield position.neutral("keyword_changed", old, new)
        return
    gained, lost = new_names - old_names, old_names - new_names
    if not gained and not lost:
        yield position.neutral("order_changed" if old_names else "same_meaning", old, new)
        return
    lost -= _property_names(before) - _property_names(after)
    if gained and lost:
        yield position.neutral("required_changed", old, new)
    elif lost:
        yield position.wider("parameter_optional" if position.inputs else "promise_dropped", old, new, silent=True)
    elif gained and position.inputs:
        yield position.narrower("parameter_required", old, new)
    elif gained:
        # A name without a property is text, not a promise.
        yield position.narrower("result_promised" if gained <= _property_names(after) else "required_changed", old, new)


def _name_set(value: Any) -> frozenset[str] | None:
    names = [] if value is ABSENT else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names)


def _property_names(schema: Schema) -> set[str]:
    properties = schema.get("properties")
    return set(properties) if isinstance(properties, dict) else set()


KEYWORD_RULES: dict[str, Rule] = {
    "$schema": dialect,
    "$id": identifier,
    "$ref": reference,
    "$dynamicRef": reference,
    "$recursiveRef": reference,
    "x-mcp-header": header,
    "title": text,
    "description": text,
    "$comment": text,
    "default": default,
    "examples": examples,
    "example": examples,
    "maximum": upper_bound,
    "exclusiveMaximum": upper_bound,
    "maxLength": upper_bound,
    "maxItems": upper_bound,
    "maxProperties": upper_bound,
    "maxContains": upper_bound,
    "minimum": lower_bound,
    "exclusiveMinimum": lower_bound,
    "minLength": lower_bound,
    "minItems": lower_bound,
    "minProperties": lower_bound,
    "minContains": lower_bound,
    "multipleOf": multiple_of,
    "uniqueItems": unique_items,
    "enum": enum,
    "const": constant,
    "pattern": pattern,
    "format": pattern,
    "contentEncoding": pattern,
    "contentMediaType": pattern,
    "type": types,
    "required": required,
}
"""Rules for keywords without schemas in them; all others use ``unknown_keyword``."""
