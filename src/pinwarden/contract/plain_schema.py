"""A schema without what frameworks add to it by themselves: titles made of names, and references or their expansion.

A model reads all of a schema: titles, names of definitions, definitions that nothing refers to. So only what cannot
carry a sentence goes, and a reference is only expanded where nothing of its definition is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_MAX_NODES = 20_000  # of one schema after its references are expanded; real ones stay below 5,000
_MAX_DEPTH = 100
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_PLACES = ("$defs", "definitions")
_SEPARATORS = re.compile(r"[ _-]+")
_MADE_OF_FUNCTIONS = re.compile(r"(?:Arguments|DictOutput|Output)\Z")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MOST_WORDS, _LONGEST_NAME = 3, 40


def plain_schema(schema: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """The schema of a tool with local references expanded and generated titles gone; as it is if that is too much."""
    try:
        return _Expansion(schema, tool).whole()
    except _TooMuchError:
        return dict(schema)


def is_generated_title(title: Any, key: str) -> bool:
    """Whether a title within a schema is the name of what it stands on, in other letters."""
    return bool(key) and same_words(title, key)


def is_generated_root_title(title: Any, tool: str) -> bool:
    """Whether a title of a whole schema is made of the name of the tool, or is the name of a class.

    A class may be called anything, also a sentence; so a name of many words is not taken for one.
    """
    return isinstance(title, str) and (
        same_words(_MADE_OF_FUNCTIONS.sub("", title), tool) or _is_class_name(_MADE_OF_FUNCTIONS.sub("", title))
    )


def same_words(title: Any, name: str) -> bool:
    """Whether two texts differ in capitals and separators only. Anything else, seen or unseen, is a difference."""
    return isinstance(title, str) and _folded(title) == _folded(name)


def _folded(text: str) -> str:
    return _SEPARATORS.sub("", text).casefold()


def _is_class_name(text: str) -> bool:
    return (
        text.isascii()
        and text.isidentifier()
        and len(text) <= _LONGEST_NAME
        and len(_WORD.findall(text)) <= _MOST_WORDS
    )


class _TooMuchError(Exception):
    """A schema whose references multiply."""


class _Expansion:
    """One walk over a schema. A definition that is not put in the place of every reference to it stays."""

    def __init__(self, root: Mapping[str, Any], tool: str) -> None:
        self.root, self.tool = root, tool
        self.definitions: dict[str, Any] = {
            f"#/{place}/{name}": each
            for place in _PLACES
            if isinstance(root.get(place), Mapping)
            for name, each in root[place].items()
        }
        self.left = _MAX_NODES
        self.expandable = self._expandable()
        self.expanded: set[str] = set()

    def whole(self) -> dict[str, Any]:
        """The plain form of the whole schema, with the definitions that are still needed or were never used."""
        body = {
            name: member
            for name, member in self.root.items()
            if not (name in _PLACES and isinstance(member, Mapping))
            and not (name == "title" and is_generated_root_title(member, self.tool))
        }
        plain = dict(self.of(body, "", _MAX_DEPTH))
        for reference, definition in self._kept(plain).items():
            _, place, name = reference.split("/", 2)
            plain.setdefault(place, {})[name] = definition
        return plain

    def of(self, schema: Any, key: str, depth: int) -> Any:
        """The plain form of the schema under that key."""
        self.left -= 1
        if self.left < 0 or depth < 0:
            raise _TooMuchError
        if not isinstance(schema, Mapping) or ("$id" in schema and schema is not self.root):
            return schema  # references below another $id mean something else
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self.expandable:
            beside = {name: member for name, member in schema.items() if name != "$ref"}
            name = reference.rpartition("/")[2]
            definition = {
                each: member
                for each, member in self.definitions[reference].items()
                if not (each == "title" and is_generated_title(member, name))
            }
            if all(definition[each] == beside[each] for each in definition.keys() & beside.keys()):
                self.expanded.add(reference)
                return self.of({**definition, **beside}, key, depth - 1)
        return {
            name: self._member(name, member, depth - 1)
            for name, member in schema.items()
            if not (name == "title" and is_generated_title(member, key))
        }

    def _member(self, name: str, member: Any, depth: int) -> Any:
        if name in _SCHEMA_MAPS and isinstance(member, Mapping):
            return {each: self.of(value, each, depth) for each, value in member.items()}
        if name in _SCHEMA_LISTS and isinstance(member, list):
            return [self.of(each, "", depth) for each in member]
        if name in _SCHEMAS:
            return self.of(member, "", depth)
        if name == "required" and isinstance(member, list) and all(isinstance(each, str) for each in member):
            return sorted(member)
        return member

    def _kept(self, plain: Any) -> dict[str, Any]:
        """The definitions that something still refers to, and those that were put nowhere: a model reads them too."""
        kept: dict[str, Any] = {}
        self._keep(_references(plain), kept)
        for name in sorted(self.definitions):
            if name not in self.expanded:
                self._keep([name], kept)
        return kept

    def _keep(self, names: Iterable[str], kept: dict[str, Any]) -> None:
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in self.definitions and name not in kept:
                kept[name] = self.of(self.definitions[name], name.rpartition("/")[2], _MAX_DEPTH)
                pending += _references(kept[name])

    def _expandable(self) -> frozenset[str]:
        """The definitions that can stand in the place of a reference: no circle, and no name with a sentence in it."""
        leads = {
            name: frozenset(_references(each)) & self.definitions.keys() for name, each in self.definitions.items()
        }
        return frozenset(
            name
            for name, each in self.definitions.items()
            if isinstance(each, Mapping)
            and "$id" not in each
            and _is_class_name(name.split("/", 2)[2])
            and name not in _reached(leads, leads[name])
        )


def _reached(leads: Mapping[str, frozenset[str]], start: Iterable[str]) -> set[str]:
    found: set[str] = set()
    pending = list(start)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(leads[name])
    return found


def _references(value: Any) -> list[str]:
    """Whatever ``$ref`` says anywhere in a value."""
    found: list[str] = []
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                found.append(each["$ref"])
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return found
