"""Compare the values of one JSON Schema keyword that contains no schemas: bounds, types, enums, texts.

Each rule knows which direction accepts more values. For the arguments of a call, both directions need review. A wider
schema accepts values that were not approved. A narrower schema takes a choice from the model or the user, for example
if only one value of an enum is left. Two kinds of narrowing are only information, because the choice stays free: a
maximum size of free text or of a list (``size_limited``), and the refusal of members that the schema does not name
(``additional_properties_closed``).

A narrower schema of a result is also information (``result_narrowed``), because it demands nothing from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pinwarden.core.canonical import is_number
from pinwarden.core.json_values import is_json_equal, json_identity, split_pointer
from pinwarden.core.record import Record, replace
from pinwarden.surface.drift.approved_text import is_known_dialect, is_remote
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.location import ChangeLocation, compare_texts, compare_values
from pinwarden.surface.drift.new_cues import is_enough_evidence
from pinwarden.surface.drift.schema_signals import (
    asks_for_conversation,
    forces_choice,
    is_wordless,
    presets_consent,
    presets_text,
)

Schema = dict[str, Any]
_ALL_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_TYPE_NAMES = {type(None): "null", bool: "boolean", dict: "object", list: "array", str: "string", int: "integer"}
_MINIMUM_SIZES = frozenset({"minLength", "minItems", "minProperties"})
_MINIMUM_OF_MAXIMUM = {"maxLength": "minLength", "maxItems": "minItems", "maxProperties": "minProperties"}
"""For each maximum-size keyword, the keyword for the corresponding minimum size."""
_FREE_TEXT_OR_LIST = frozenset({"type", "title", "description", "$comment", "default", "examples", "example", "items"})
"""In a schema with only these keywords, a maximum size cannot select particular values."""
_MAX_EXACT_INTEGER = 2**53 - 1  # RFC 8259, section 6; schema generators add it as a bound to every integer
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
"""Kinds of change that only exclude values. In the schema of a result, they become ``result_narrowed``."""
_MECHANICAL_IN_RESULTS = frozenset(
    {
        "alternative_added",
        "bound_loosened",
        "bound_removed",
        "keyword_changed",
        "promise_dropped",
        "required_changed",
        "result_added",
        "result_removed",
        "schema_loosened",
        "subschema_added",
        "subschema_removed",
        "type_changed",
        "type_grown",
        "type_removed",
    }
)
"""Kinds of change that are only information in the schema of a result, if no text is new."""
_CONVERSATION = 1.0  # the evidence of a parameter that asks for the conversation
_DESTINATION = frozenset({"destination"})
# Keywords that only limit values. Minimum sizes are not among them, because they make the model give more.
_TEXTLESS_BOUNDS = frozenset(
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
_TEXTLESS_SCHEMA_KEYWORDS = frozenset(
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
    """A location in a schema, and the effect of a change there on the complete schema."""

    location: ChangeLocation
    direction: int = 1
    """1: if this part accepts more values, so does the complete schema. -1: the reverse, under ``not``.

    0: unknown, in a condition.
    """
    is_input: bool
    """Whether the schema describes the arguments of a call, not its result."""
    new_schema_generator: bool = False
    """Whether all input schemas with ``additionalProperties: false`` lost it together."""

    @property
    def is_choice(self) -> bool:
        """Whether the model chooses the value. In one of several alternatives, a constant often only names it."""
        keywords = ("anyOf", "oneOf", "if", "then", "else", "$defs")
        in_alternative = any(f"/{keyword}/" in self.location.path for keyword in keywords)
        return self.is_input and self.direction == 1 and not in_alternative

    def child(self, token: str | int) -> SchemaPosition:
        """Return the position of a member or element of the value at this position."""
        return replace(self, location=self.location.child(token))

    def with_direction(self, factor: int) -> SchemaPosition:
        """Return this position with the direction multiplied by ``factor``: -1 reverses it, 0 makes it unknown."""
        return replace(self, direction=self.direction * factor)

    def asks_for_conversation(self, name: str, schema: Any) -> bool:
        """Whether a parameter takes free text about what the model knows."""
        asks = asks_for_conversation(name, schema, self.location.topic)
        return asks and is_enough_evidence(_CONVERSATION, self.location.approved.server)

    def build_neutral_change(self, kind: str, before: Any, after: Any) -> Change:
        """Build a change whose kind does not depend on the direction."""
        return self.location.build_change(self._choose_kind(kind, after), before, after)

    def _choose_kind(self, kind: str, after: Any) -> str:
        """Return the kind, or ``result_changed`` if the schema of a result changed without text."""
        is_mechanical = not self.is_input and kind in _MECHANICAL_IN_RESULTS
        return (
            "result_changed"
            if is_mechanical and (after is ABSENT or is_wordless(after, self.location.member))
            else kind
        )

    def build_widening_change(self, kind: str, before: Any, after: Any, *, textless: bool = False) -> Change:
        """Build a change after which this part of the schema accepts more values.

        ``textless`` says that the new part has no text that a model could follow. Numbers, booleans and removals never
        have any. Under ``not``, a new part with text is reported as added, because a model reads text there too.
        """
        textless = textless or after is ABSENT or type(after) is bool or is_number(after)
        kind_under_not = "negation_tightened" if self.is_input else "result_narrowed"
        kinds = {1: kind, -1: kind_under_not if textless else "subschema_added", 0: "condition_changed"}
        return self.location.build_change(self._choose_kind(kinds[self.direction], after), before, after)

    def build_narrowing_change(self, kind: str, before: Any, after: Any) -> Change:
        """Build a change after which this part of the schema accepts fewer values."""
        if not self.is_input and kind in _NARROWING:
            kind = "result_narrowed"
        kinds = {1: kind, -1: "negation_loosened", 0: "condition_changed"}
        return self.location.build_change(kinds[self.direction], before, after)


KeywordRule = Callable[[SchemaPosition, Schema, Schema], Iterator[Change]]
"""A function that compares one keyword of two schemas, given the position of the keyword."""


def get_keyword_values(position: SchemaPosition, before: Schema, after: Schema) -> tuple[Any, Any]:
    """Return the old and the new value of the keyword at the position."""
    return before.get(position.location.member, ABSENT), after.get(position.location.member, ABSENT)


def is_textless(schema: Any) -> bool:
    """Whether a schema, or every schema in a list, has no name, text or value that a model could follow.

    A value of the wrong type is not textless, because a model also reads a text in place of a number.
    """
    if isinstance(schema, dict):
        return all(_is_textless_keyword(keyword, value) for keyword, value in schema.items())
    if isinstance(schema, list):
        return all(map(is_textless, schema))
    return type(schema) is bool


def _is_textless_keyword(keyword: str, value: Any) -> bool:
    if keyword == "type":
        return _parse_types(value) is not None
    if keyword == "uniqueItems":
        return type(value) is bool
    if keyword in _TEXTLESS_BOUNDS:
        return is_number(value)
    return keyword in _TEXTLESS_SCHEMA_KEYWORDS and is_textless(value)


def _compare_text(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare text for the model: title, description, $comment."""
    old, new = get_keyword_values(position, before, after)
    name = split_pointer(position.location.path)[-2] if position.is_input else ""
    if name and position.asks_for_conversation(name, after) and not position.asks_for_conversation(name, before):
        yield position.build_neutral_change("conversation_requested", old, new)
    else:
        yield from compare_texts(position.location, old, new)


def compare_unknown_keyword(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare a keyword whose effect Pinwarden does not know."""
    old, new = get_keyword_values(position, before, after)
    if not position.is_input and all(side is ABSENT or type(side) is bool or is_number(side) for side in (old, new)):
        yield position.build_neutral_change("keyword_changed", old, new)
        return
    yield from compare_values(position.location, *get_keyword_values(position, before, after), "keyword_changed")


def _compare_defaults(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if position.is_input and presets_consent(before, after):
        yield position.build_neutral_change("default_reversed", old, new)
        return
    if position.is_input and presets_text(before, after) and position.location.approved.find_new_sentences(new):
        yield position.build_neutral_change("default_preset", old, new)
        return
    kind = "same_meaning" if (old is ABSENT or old is None) and (new is ABSENT or new is None) else "default_changed"
    yield from compare_values(position.location, old, new, kind)


def _compare_examples(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield from compare_values(position.location, *get_keyword_values(position, before, after), "examples_changed")


def _compare_dialects(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare ``$schema``, the dialect of the schema."""
    old, new = get_keyword_values(position, before, after)
    known = all(side is ABSENT or is_known_dialect(side) for side in (old, new))
    yield position.location.build_change(
        "dialect_changed" if known else "dialect_unknown", old, new, ignored=_DESTINATION
    )


def _compare_identifiers(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare ``$id``. It looks like an address but is only a name, so its host does not matter."""
    yield position.location.build_change(
        "keyword_changed", *get_keyword_values(position, before, after), ignored=_DESTINATION
    )


def _compare_references(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare ``$ref``, which may point into the same document or to another one."""
    old, new = get_keyword_values(position, before, after)
    if is_remote(new) and new not in position.location.approved.references:
        yield position.location.build_change("remote_reference", old, new, ignored=_DESTINATION)
    else:
        yield position.build_neutral_change("reference_changed", old, new)


def _compare_headers(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare ``x-mcp-header``, which makes the client send the argument also as an HTTP header."""
    old, new = get_keyword_values(position, before, after)
    yield position.build_neutral_change("keyword_changed" if new is ABSENT else "header_exposed", old, new)


def _compare_upper_bounds(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield _compare_bounds(position, before, after, sign=1)


def _compare_lower_bounds(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    yield _compare_bounds(position, before, after, sign=-1)


def _compare_bounds(position: SchemaPosition, before: Schema, after: Schema, sign: int) -> Change:
    old, new = get_keyword_values(position, before, after)
    if not all(side is ABSENT or is_number(side) for side in (old, new)):
        return position.build_neutral_change("keyword_changed", old, new)
    is_minimum_size = position.location.member in _MINIMUM_SIZES
    if is_minimum_size and (old is ABSENT or old <= 0) and (new is ABSENT or new <= 0):
        return position.build_neutral_change("same_meaning", old, new)
    if new is ABSENT:
        return position.build_widening_change("bound_removed", old, new)
    if old is not ABSENT and (new - old) * sign > 0:
        return position.build_widening_change("bound_loosened", old, new)
    if position.is_choice and forces_choice(position.location.member, before, after):
        return position.build_narrowing_change("choice_forced", old, new)
    if is_minimum_size:
        return position.build_narrowing_change("more_demanded", old, new)
    if _keeps_choice(position.location.member, after, new * sign):
        return position.build_narrowing_change("size_limited", old, new)
    return position.build_narrowing_change("bound_added" if old is ABSENT else "bound_tightened", old, new)


def _keeps_choice(keyword: str, schema: Schema, limit: Any) -> bool:
    """Whether the model can still choose freely: the limit excludes only large sizes, or integers from 2**53 on.

    This is not so if the schema also has an enum, a pattern or a format, or if the limit allows only the smallest size:
    then the limit can leave a single value.
    """
    minimum_keyword = _MINIMUM_OF_MAXIMUM.get(keyword)
    if minimum_keyword is None:
        return bool(limit >= _MAX_EXACT_INTEGER)
    free = schema.keys() <= _FREE_TEXT_OR_LIST | _MINIMUM_OF_MAXIMUM.keys() | _MINIMUM_SIZES
    smallest = schema.get(minimum_keyword, 0)
    return free and is_number(smallest) and bool(limit > max(1, smallest))


def _compare_multiples(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare ``multipleOf``. If the new number is a multiple of the old one, fewer values are accepted."""
    old, new = get_keyword_values(position, before, after)
    if not all(side is ABSENT or is_number(side) for side in (old, new)):
        yield position.build_neutral_change("keyword_changed", old, new)
    elif old is ABSENT:
        yield position.build_narrowing_change("bound_added", old, new)
    elif new is ABSENT:
        yield position.build_widening_change("bound_removed", old, new)
    elif type(old) is int and type(new) is int and old > 0 and new % old == 0:
        yield position.build_narrowing_change("bound_tightened", old, new)
    else:
        yield position.build_widening_change("bound_loosened", old, new)


def _compare_unique_items(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    was_unique, is_unique = old is True, new is True
    if not all(side is ABSENT or type(side) is bool for side in (old, new)):
        yield position.build_neutral_change("keyword_changed", old, new)
    elif was_unique == is_unique:
        yield position.build_neutral_change("same_meaning", old, new)
    elif is_unique:
        # If a list needs several elements and all must differ, perhaps only one list is possible.
        yield position.build_narrowing_change("bound_added" if _requires_several(after) else "size_limited", old, new)
    else:
        yield position.build_widening_change("bound_removed", old, new)


def _requires_several(schema: Schema) -> bool:
    min_items = schema.get("minItems", 0)
    return not is_number(min_items) or bool(min_items > 1)


def _compare_enums(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if old is ABSENT and isinstance(new, list):
        yield position.build_narrowing_change("values_prescribed", old, new)
    elif new is ABSENT:
        yield position.build_widening_change("enum_removed", old, new)
    elif not isinstance(old, list) or not isinstance(new, list):
        yield position.build_neutral_change("keyword_changed", old, new)
    else:
        approved, offered = set(map(json_identity, old)), set(map(json_identity, new))
        if offered == approved:
            yield position.build_neutral_change("order_changed", old, new)
        elif offered < approved:
            yield position.build_narrowing_change(
                "choice_forced" if position.is_choice and len(new) == 1 else "enum_shrunk", old, new
            )
        else:
            added = [value for value in new if json_identity(value) not in approved]
            yield position.build_widening_change("enum_grown", old, new, textless=all(map(_is_textless_value, added)))


def _is_textless_value(value: Any) -> bool:
    return value is None or type(value) is bool or is_number(value)


def _compare_constants(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    old, new = get_keyword_values(position, before, after)
    if new is ABSENT:
        yield position.build_widening_change("constant_removed", old, new)
    elif old is not ABSENT:
        yield position.build_neutral_change("constant_changed", old, new)
    elif _was_in_enum(before, new):
        yield position.build_narrowing_change("choice_forced" if position.is_choice else "enum_shrunk", old, new)
    else:
        yield position.build_narrowing_change("choice_forced" if position.is_choice else "values_prescribed", old, new)


def _was_in_enum(before: Schema, value: Any) -> bool:
    choices = before.get("enum")
    return isinstance(choices, list) and any(is_json_equal(choice, value) for choice in choices)


def _compare_patterns(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare keywords for the format of a string: pattern, format, encoding, media type."""
    old, new = get_keyword_values(position, before, after)
    if old is ABSENT:
        yield position.build_narrowing_change("values_prescribed", old, new)
    elif new is ABSENT:
        yield position.build_widening_change("pattern_removed", old, new)
    else:
        yield position.build_neutral_change("pattern_changed", old, new)


def _compare_types(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare the types of accepted values. ``number`` includes ``integer``."""
    old, new = get_keyword_values(position, before, after)
    old_types, new_types = _parse_types(old), _parse_types(new)
    if old_types is None or new_types is None:
        yield position.build_neutral_change("keyword_changed", old, new)
    elif old_types == new_types:
        yield position.build_neutral_change(
            "order_changed" if isinstance(old, list) and isinstance(new, list) else "same_meaning", old, new
        )
    elif new_types < old_types and _has_only_types(before, new_types):
        yield position.build_neutral_change("same_meaning", old, new)
    elif new_types < old_types:
        yield position.build_narrowing_change("type_narrowed", old, new)
    elif new is ABSENT:
        yield position.build_widening_change("type_removed", old, new)
    elif old_types < new_types:
        kind = "null_accepted" if new_types - old_types == {"null"} else "type_grown"
        yield position.build_widening_change(kind, old, new, textless=True)
    else:
        yield position.build_neutral_change("type_changed", old, new)


def _has_only_types(schema: Schema, names: frozenset[str]) -> bool:
    """Whether the schema has an enum whose values all have one of these types."""
    values = schema.get("enum")
    return isinstance(values, list) and bool(values) and all(_TYPE_NAMES.get(type(value)) in names for value in values)


def _parse_types(value: Any) -> frozenset[str] | None:
    if value is ABSENT:
        return _ALL_TYPES
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not _ALL_TYPES.issuperset(name for name in names if isinstance(name, str)):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names) | ({"integer"} if "number" in names else set())


def _compare_required(position: SchemaPosition, before: Schema, after: Schema) -> Iterator[Change]:
    """Compare the required members. If a property was removed, its requirement is not reported separately."""
    old, new = get_keyword_values(position, before, after)
    old_names, new_names = _parse_names(old), _parse_names(new)
    if old_names is None or new_names is None:
        yield position.build_neutral_change("keyword_changed", old, new)
        return
    gained, lost = new_names - old_names, old_names - new_names
    if not gained and not lost:
        yield position.build_neutral_change("order_changed" if old_names else "same_meaning", old, new)
        return
    lost -= _list_property_names(before) - _list_property_names(after)
    if gained and lost:
        yield position.build_neutral_change("required_changed", old, new)
    elif lost:
        yield position.build_widening_change(
            "parameter_optional" if position.is_input else "promise_dropped", old, new, textless=True
        )
    elif gained and position.is_input:
        yield position.build_narrowing_change("parameter_required", old, new)
    elif gained:
        # A required name without a property is only text, and says nothing about results.
        yield position.build_narrowing_change(
            "result_promised" if gained <= _list_property_names(after) else "required_changed", old, new
        )


def _parse_names(value: Any) -> frozenset[str] | None:
    names = [] if value is ABSENT else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names)


def _list_property_names(schema: Schema) -> set[str]:
    properties = schema.get("properties")
    return set(properties) if isinstance(properties, dict) else set()


KEYWORD_RULES: dict[str, KeywordRule] = {
    "$schema": _compare_dialects,
    "$id": _compare_identifiers,
    "$ref": _compare_references,
    "$dynamicRef": _compare_references,
    "$recursiveRef": _compare_references,
    "x-mcp-header": _compare_headers,
    "title": _compare_text,
    "description": _compare_text,
    "$comment": _compare_text,
    "default": _compare_defaults,
    "examples": _compare_examples,
    "example": _compare_examples,
    "maximum": _compare_upper_bounds,
    "exclusiveMaximum": _compare_upper_bounds,
    "maxLength": _compare_upper_bounds,
    "maxItems": _compare_upper_bounds,
    "maxProperties": _compare_upper_bounds,
    "maxContains": _compare_upper_bounds,
    "minimum": _compare_lower_bounds,
    "exclusiveMinimum": _compare_lower_bounds,
    "minLength": _compare_lower_bounds,
    "minItems": _compare_lower_bounds,
    "minProperties": _compare_lower_bounds,
    "minContains": _compare_lower_bounds,
    "multipleOf": _compare_multiples,
    "uniqueItems": _compare_unique_items,
    "enum": _compare_enums,
    "const": _compare_constants,
    "pattern": _compare_patterns,
    "format": _compare_patterns,
    "contentEncoding": _compare_patterns,
    "contentMediaType": _compare_patterns,
    "type": _compare_types,
    "required": _compare_required,
}
"""The rule for each known keyword that contains no schemas."""
