"""Describe one change as a sentence with its values: ``"limit" may be at most 1000, was at most 50``. Pure.

A name or value from the server is always written as JSON, so that no name can end its quotation and continue the
sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from json import dumps
from typing import Any

from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.summary import find_required_parameters
from pinwarden.surface.drift.text_diff import shorten_middle

_MAX_VALUE = 120  # characters of a quoted value
_MAX_VALUES = 8  # values of a list that a sentence names


def describe_in_words(changes: Iterable[Change]) -> list[str]:
    """Return a sentence for each change. It says what changed, and not how severe that is."""
    listed = tuple(changes)
    required = find_required_parameters(listed)
    return [_describe(change, is_required=(change.entity, change.name, change.path) in required) for change in listed]


def _describe(change: Change, *, is_required: bool) -> str:
    subject, keyword = _locate(change.path)
    if change.kind == "parameter_added":
        name = change.path.rpartition("/")[2]
        shown = _type_of(change.after)
        return f"New {'required' if is_required else 'optional'} parameter {_quote(_unescape(name))}{shown}."
    if keyword in _BOUNDS and not isinstance(change.before, dict | list):
        return _describe_bound(change, subject, _BOUNDS[keyword])
    write = _SENTENCES.get(change.kind)
    if write is not None:
        return write(change, subject)
    if keyword in ("description", "title", "instructions", "name") and _is_text(change):
        return _describe_text(change, subject, keyword)
    if change.path.startswith("/annotations/") and type(change.after) in (bool, type(ABSENT)):
        return _describe_hint(change, keyword)
    if keyword == "default":
        return _describe_default(change, subject)
    if keyword == "required" and _has_lists(change):
        return _describe_required(change)
    if keyword in ("enum", "type") and change.before is not ABSENT and change.after is not ABSENT:
        return _describe_choices(change, subject, keyword)
    return change.reason


# Where a change is


def _locate(path: str) -> tuple[str, str]:
    """Return the parameter or member that a JSON Pointer leads to, quoted, and the last segment of the pointer."""
    segments = [_unescape(segment) for segment in path.split("/")[1:]]
    names: list[str] = []
    position = 0
    while position < len(segments) - 1:
        if segments[position] == "properties":
            names.append(segments[position + 1])
            position += 2
        else:
            if segments[position] == "items" and names:
                names[-1] += "[]"
            position += 1
    keyword = segments[-1] if segments else ""
    prefix = "result " if path.startswith("/outputSchema/") else ""
    return f"{prefix}{_quote('.'.join(names))}" if names else "", keyword


def _unescape(segment: str) -> str:
    return segment.replace("~1", "/").replace("~0", "~")


def _quote(value: Any) -> str:
    return shorten_middle(dumps(value, ensure_ascii=False), _MAX_VALUE)


def _list_values(values: Sequence[Any]) -> str:
    shown = ", ".join(map(_quote, values[:_MAX_VALUES]))
    return f"{shown} and {len(values) - _MAX_VALUES} more" if len(values) > _MAX_VALUES else shown


# What a change says

_BOUNDS = {
    "maximum": "at most {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "less than {}",
    "exclusiveMinimum": "more than {}",
    "maxLength": "at most {} characters long",
    "minLength": "at least {} characters long",
    "maxItems": "a list of at most {} entries",
    "minItems": "a list of at least {} entries",
    "maxProperties": "an object of at most {} members",
    "minProperties": "an object of at least {} members",
    "multipleOf": "a multiple of {}",
}


def _describe_bound(change: Change, subject: str, bound: str) -> str:
    about = subject or "The value"
    before, after = (bound.format(_quote(side)) for side in (_or_none(change.before), _or_none(change.after)))
    if change.after is ABSENT:
        return f"{about} no longer has to be {before}."
    if change.before is ABSENT:
        return f"{about} must now be {after}."
    return f"{about} may now be {after}, was {before}."


def _or_none(value: Any) -> Any:
    return None if value is ABSENT else value


def _type_of(schema: Any) -> str:
    named = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(named, str):
        return f" ({_quote(named)})"
    return f" ({' or '.join(map(_quote, named[:_MAX_VALUES]))})" if isinstance(named, list) and named else ""


def _is_text(change: Change) -> bool:
    sides = [side for side in (change.before, change.after) if side is not ABSENT]
    return bool(sides) and all(isinstance(side, str) for side in sides)


def _describe_text(change: Change, subject: str, keyword: str) -> str:
    verb = "was added" if change.before is ABSENT else "was removed" if change.after is ABSENT else "was reworded"
    what = "The instructions for the model" if keyword == "instructions" else f"The {keyword}"
    if keyword == "instructions":
        verb = verb.replace("was", "were")
    return f"{what}{f' of {subject}' if subject else ''} {verb}."


_HINTS = {
    ("readOnlyHint", True): "Now claims that it only reads.",
    ("readOnlyHint", False): "Now says that it changes something.",
    ("destructiveHint", True): "Now says that it may destroy something.",
    ("destructiveHint", False): "Now claims that it destroys nothing.",
    ("idempotentHint", True): "Now claims that calling it twice is the same as once.",
    ("idempotentHint", False): "Now says that calling it twice is not the same as once.",
    ("openWorldHint", True): "Now says that it reaches other systems.",
    ("openWorldHint", False): "Now claims that it does not reach other systems.",
}


def _describe_hint(change: Change, name: str) -> str:
    if change.after is ABSENT:
        return f"No longer states the hint {_quote(name)}, was {_quote(change.before)}."
    said = _HINTS.get((name, change.after), f"Now states the hint {_quote(name)} as {_quote(change.after)}.")
    return said if change.before is ABSENT else f"{said[:-1]}; said the opposite before."


def _describe_default(change: Change, subject: str) -> str:
    about = subject or "The value"
    if change.after is ABSENT:
        return f"{about} no longer has a default, was {_quote(change.before)}."
    if change.before is ABSENT:
        return f"{about} now defaults to {_quote(change.after)}; it had no default."
    return f"{about} now defaults to {_quote(change.after)}, was {_quote(change.before)}."


def _has_lists(change: Change) -> bool:
    return all(side is ABSENT or isinstance(side, list) for side in (change.before, change.after))


def _describe_required(change: Change) -> str:
    before, after = (side if isinstance(side, list) else [] for side in (change.before, change.after))
    gained = [name for name in after if name not in before]
    lost = [name for name in before if name not in after]
    parts = [f"{_list_values(gained)} {'is' if len(gained) == 1 else 'are'} now required"] if gained else []
    parts += [f"{_list_values(lost)} {'is' if len(lost) == 1 else 'are'} no longer required"] if lost else []
    return f"{'; '.join(parts)}." if parts else "The list of required parameters is in another order."


def _describe_choices(change: Change, subject: str, keyword: str) -> str:
    before, after = (side if isinstance(side, list) else [side] for side in (change.before, change.after))
    gained = [value for value in after if value not in before]
    lost = [value for value in before if value not in after]
    about = subject or "The value"
    noun = "the type " if keyword == "type" else ""
    parts = [f"now also accepts {noun}{_list_values(gained)}"] if gained else []
    parts += [f"no longer accepts {noun}{_list_values(lost)}"] if lost else []
    return f"{about} {' and '.join(parts)}." if parts else change.reason


def _describe_added(change: Change, _: str) -> str:
    return f"New {_NOUNS.get(change.entity, change.entity)} {_quote(change.name)}."


_NOUNS = {"resourceTemplate": "resource template"}
_SENTENCES: dict[str, Callable[[Change, str], str]] = {
    "item_added": _describe_added,
    "item_removed": lambda change, _: (
        f"The server no longer offers the {_NOUNS.get(change.entity, change.entity)} {_quote(change.name)}."
    ),
    "parameter_removed": lambda change, _: (
        f"Parameter {_quote(_unescape(change.path.rpartition('/')[2]))} was removed."
    ),
    "additional_properties_opened": lambda _, subject: (
        f"{subject} now accepts members that the schema does not name."
        if subject
        else "Arguments that the schema does not name are now accepted."
    ),
    "constant_changed": lambda change, subject: (
        f"{subject or 'The value'} must now be {_quote(change.after)}, was {_quote(change.before)}."
    ),
    "pattern_changed": lambda change, subject: (
        f"{subject or 'The value'} must now match {_quote(change.after)}, was {_quote(change.before)}."
    ),
    "pattern_removed": lambda change, subject: (
        f"{subject or 'The value'} no longer has to match {_quote(change.before)}."
    ),
}
