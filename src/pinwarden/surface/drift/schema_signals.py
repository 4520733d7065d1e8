"""Signs of an attack in how a schema changed: a choice that is made for the model, and parameters that ask too much."""

from __future__ import annotations

from typing import Any

from pinwarden.core.canonical import is_number
from pinwarden.core.text import lazy_pattern
from pinwarden.surface.drift.text_signals import restates, split_name_words
from pinwarden.surface.scan.hidden_text import parse_words
from pinwarden.surface.sentences import split_sentences

_MAX_USUAL_MINIMUM = 1  # a minimum of 0 or 1 only says that a number is a count


def forces_choice(keyword: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a limit leaves a single number, or a minimum refuses the approved default."""
    minimum, maximum, default = after.get("minimum"), after.get("maximum"), before.get("default")
    if minimum is None or not is_number(minimum):
        return False
    if keyword in ("minimum", "maximum") and maximum is not None and is_number(maximum) and minimum == maximum:
        return True
    if keyword != "minimum":
        return False
    if default is not None and is_number(default):
        return bool(minimum > default)
    description = before.get("description")
    is_documented = isinstance(description, str) and f"{minimum:g}" in description
    return minimum > _MAX_USUAL_MINIMUM and not is_documented


def presets_text(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether free text that the model had to give now has a default."""
    default = after.get("default")
    is_free = "enum" not in before and "enum" not in after and "const" not in after
    return isinstance(default, str) and not before.get("default") and is_free and _is_text(default)


def presets_consent(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether an on/off parameter is now on by default, without an approved text that says so."""
    if type(before.get("default")) is bool:
        return before["default"] is not after.get("default") and type(after.get("default")) is bool
    description = before.get("description")
    is_documented = isinstance(description, str) and "default" in description.casefold()
    return after.get("default") is True and before.get("default") is None and not is_documented


def _is_text(value: str) -> bool:
    return len(value) > 1 and value.casefold() not in ("true", "false", "none", "null") and not _NUMBER.fullmatch(value)


_NUMBER = lazy_pattern(r"[-+\d.,:%\sTZ]*")


# Schemas without text

_NAME = lazy_pattern(r"[\w$.\-]{1,60}")
_REFERENCE = lazy_pattern(r"[\w#/$.:\-]{1,200}")
_MAX_NAME_WORDS = 5
_NAMED_PARTS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_PARTS = frozenset({"items", "anyOf", "oneOf", "allOf", "additionalProperties", "prefixItems", "not"})


def is_wordless(schema: Any, name: str = "") -> bool:
    """Whether a schema has only short names, types and structure: no sentence, value or pattern for the model."""
    if type(schema) is list:
        return all(is_wordless(part, name) for part in schema)
    if type(schema) is not dict:
        return schema is None or type(schema) is bool or is_number(schema)
    return all(_is_wordless_member(keyword, value, name) for keyword, value in schema.items())


def _is_wordless_member(keyword: str, value: Any, name: str) -> bool:
    if keyword in _NAMED_PARTS and type(value) is dict:
        return all(_is_short_name(part) and is_wordless(schema, part) for part, schema in value.items())
    if keyword in _PARTS:
        return is_wordless(value, name)
    if keyword == "title":
        return restates(value, set(split_name_words(name)))
    if keyword == "required":
        return type(value) is list and all(map(_is_short_name, value))
    if keyword in ("type", "format", "$ref", "$schema"):
        return all(
            type(part) is str and _REFERENCE.fullmatch(part) for part in (value if type(value) is list else [value])
        )
    return _is_short_name(keyword) and (value is None or type(value) is bool or is_number(value))


def _is_short_name(name: Any) -> bool:
    return type(name) is str and bool(_NAME.fullmatch(name)) and len(split_name_words(name)) <= _MAX_NAME_WORDS


# Parameters that ask for what the model knows

_KNOWLEDGE = parse_words(
    "conversation conversations dialogue dialog chat chats transcript transcripts prompt prompts messages message "
    "history environment env session context reasoning thoughts thought memory instructions instruction scratchpad "
    "turn turns request question query words wording answer answers outputs notes knowledge tools"
)
_KNOWN_ALONE = parse_words("conversation conversations transcript transcripts dialogue scratchpad reasoning environ")
_EXTENT = parse_words(
    "full entire whole complete all verbatim previous prior preceding earlier recent last past original system user "
    "user's users everything exact raw your agent agent's model model's assistant assistant's own chain available "
    "developer hidden chat conversation session process dump relevant"
)
_TECHNICAL_NAMES = parse_words("id ids key name type url path limit count token cursor page")
_FREE_KEYWORDS = frozenset({"enum", "const", "format", "pattern", "$ref"})
_MAX_GAP = 2  # words between an extent and what it is the extent of


def asks_for_conversation(name: str, schema: Any, topic: str = "") -> bool:
    """Whether a parameter takes free text about the conversation, the prompt, the environment or the session.

    ``topic`` says what the tool is about: a chat tool may well take messages.
    """
    if not isinstance(schema, dict) or not _FREE_KEYWORDS.isdisjoint(schema) or not _takes_free_text(schema):
        return False
    words = split_name_words(name)
    if words and words[-1] in _TECHNICAL_NAMES:
        return False
    known = {word.removesuffix("s") for word in (*split_name_words(topic), *_PLAIN_WORD.findall(topic.casefold()))}
    return _is_about_knowledge(words, known) or _mentions_conversation(schema.get("description"), known)


def _mentions_conversation(text: Any, topic: set[str]) -> bool:
    """Whether a text is about what the model knows: the whole conversation, the system prompt, earlier answers."""
    if not isinstance(text, str):
        return False
    return any(
        _is_about_knowledge(_PLAIN_WORD.findall(text[start:end].casefold()), topic)
        for start, end, _ in split_sentences(text)
    )


_PLAIN_WORD = lazy_pattern(r"[\w']+")


def _is_about_knowledge(words: list[str], topic: set[str]) -> bool:
    extent = -_MAX_GAP - 1
    for index, word in enumerate(words):
        is_topic = word.removesuffix("s") in topic
        if word in _KNOWN_ALONE and not is_topic:
            return True
        if word in _KNOWLEDGE and not is_topic and index - extent <= _MAX_GAP:
            return True
        if word in _EXTENT:
            extent = index
    return False


def _takes_free_text(schema: dict[str, Any]) -> bool:
    lists = [schema.get(keyword) for keyword in ("anyOf", "oneOf")]
    alternatives = [branch for listed in lists if isinstance(listed, list) for branch in listed]
    branches = [branch for branch in (schema, *alternatives) if isinstance(branch, dict)]
    types = {name for branch in branches for name in _list_types(branch.get("type"))}
    return bool(types & {"string", "object", "array"}) or not types


def _list_types(value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    return [name for name in names if isinstance(name, str)]
