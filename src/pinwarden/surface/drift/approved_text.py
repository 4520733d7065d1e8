"""Which text was approved: the sentences, hosts and remote references of an item and of its server.

A sentence that was approved, in this item or elsewhere on the server, is not new. So an approved order does not allow
any other order, and a tool can repeat a sentence that another tool already has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pinwarden.core.json_values import iter_strings
from pinwarden.core.text import INVISIBLE
from pinwarden.surface.drift.text_signals import (
    IDENTIFIER,
    find_main_verb,
    fold_identifier,
    split_name_words,
    writes,
)
from pinwarden.surface.scan.cues import Cue, find_cues
from pinwarden.surface.scan.hidden_text import fold_word
from pinwarden.surface.scan.scan import NeighbourTools
from pinwarden.surface.sentences import SplitSentence, normalise, split_sentences
from pinwarden.surface.surface import TOOL, Item, Surface

HEADER_KEYWORD = "x-mcp-header"
REFERENCE_KEYWORDS = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
KNOWN_DIALECTS = frozenset(
    {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose member names the schema's author chooses, so these names are not keywords themselves."""
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples", "example"})
_BEFORE_HOST = re.compile(r"^(?:[a-z][a-z0-9+.\-]*://)?(?:[^/?#\s]*@)?", re.IGNORECASE)
_AFTER_HOST = re.compile(r"[/?#:\s].*$", re.DOTALL)


class ApprovedServer:
    """The approved text of a whole server, and the names that it has now. Computed on first use."""

    __slots__ = (
        "_current",
        "_descriptions",
        "_hosts",
        "_identifiers",
        "_neighbours",
        "_new_count",
        "_sentences",
        "_surface",
        "_writing",
    )

    def __init__(
        self,
        surface: Surface | None = None,
        current: Surface | None = None,
        neighbours: NeighbourTools | None = None,
    ) -> None:
        self._surface = surface
        self._neighbours = neighbours
        self._current = current
        self._sentences: frozenset[str] | None = None
        self._new_count: int | None = None
        self._hosts: frozenset[str] | None = None
        self._identifiers: frozenset[str] | None = None
        self._descriptions: dict[str, _Descriptions] | None = None
        self._writing: frozenset[str] | None = None

    @property
    def sentences(self) -> frozenset[str]:
        """The approved sentences of all items and of the server information, in the form in which they are compared."""
        if self._sentences is None:
            surface = self._surface
            server = (surface.server if surface else None) or {}
            texts = iter_strings([*(item.value for item in _list_items(surface)), dict(server)])
            known = (sentence.normalised for text in dict.fromkeys(texts) for sentence in split_sentences(text))
            self._sentences = frozenset(known)
        return self._sentences

    def count_new_sentences(self) -> int | None:
        """Return how many different sentences the server has now that it did not have; None if they are not known."""
        if self._new_count is None and self._current is not None:
            server = self._current.server or {}
            texts = iter_strings([*(item.value for item in _list_items(self._current)), dict(server)])
            present = {
                sentence.normalised
                for text in dict.fromkeys(texts)
                if len(text) >= _MIN_SENTENCE
                for sentence in split_sentences(text)
                if len(sentence.normalised) >= _MIN_SENTENCE
            }
            self._new_count = len(present - self.sentences)
        return self._new_count

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of all addresses in the approved text."""
        if self._hosts is None:
            values = [item.value for item in _list_items(self._surface)]
            server = (self._surface.server if self._surface else None) or {}
            self._hosts = _find_hosts([*values, dict(server)])
        return self._hosts

    @property
    def identifiers(self) -> frozenset[str]:
        """The identifiers in the approved text and the names that the server has now, folded."""
        if self._identifiers is None:
            server = (self._surface.server if self._surface else None) or {}
            approved = [*(item.value for item in _list_items(self._surface)), dict(server)]
            known = {
                fold_identifier(match[0])
                for text in dict.fromkeys(iter_strings(approved))
                for match in IDENTIFIER.finditer(text)
            }
            for item in _list_items(self._current):
                known.update(fold_identifier(name) for name in (item.key, item.name, *_list_names(item.value)))
            self._identifiers = frozenset(known)
        return self._identifiers

    def mentions_writing_tool(self, sentence: str, own: str) -> bool:
        """Whether a sentence names another tool of the server that changes something."""
        names = {fold_identifier(match[0]) for match in IDENTIFIER.finditer(sentence)} - {fold_identifier(own)}
        if names and self._writing is None:
            tools = self._surface.items_of_kind(TOOL) if self._surface else ()
            self._writing = frozenset(fold_identifier(item.key) for item in tools if _is_writing(item.value))
        return self._writing is not None and not self._writing.isdisjoint(names)

    def pair_tools(self) -> Iterator[tuple[Any, Any]]:
        """Yield the approved and the current definition of each tool that the server had and has."""
        tools = self._current.items_of_kind(TOOL) if self._current else ()
        current = {item.key: item.value for item in tools if item.digest is not None}
        for item in self._surface.items_of_kind(TOOL) if self._surface else ():
            if item.digest is not None and item.key in current:
                yield item.value, current[item.key]

    def names_other_server(self, sentence: str) -> bool:
        """Whether a sentence names a tool of another server that this server does not have."""
        neighbours = self._neighbours
        if neighbours is None or not neighbours.tools:
            return False
        names = {fold_word(match[0].rstrip(".-_")) for match in IDENTIFIER.finditer(sentence)}
        return any(name in neighbours.tools and name not in neighbours.own for name in names) or any(
            neighbours.find_references(sentence)
        )

    def interferes(self, item: Item, approved: ApprovedText) -> bool:
        """Whether a new item copies a tool of another server, or has a new sentence that names one."""
        if self._neighbours is None or not self._neighbours.tools:
            return False
        if item.kind is TOOL and any(self._neighbours.find_clones(item)):
            return True
        return self.has_text_about_neighbours(item.value, approved)

    def has_text_about_neighbours(self, value: Any, approved: ApprovedText) -> bool:
        """Whether a new sentence of a value names a tool of another server."""
        if self._neighbours is None or not self._neighbours.tools:
            return False
        return any(
            self.names_other_server(text[sentence.start : sentence.end])
            for text in dict.fromkeys(iter_strings(value))
            for sentence in approved.find_new_sentences(text)
        )

    def describes_other_item(self, entity: str, key: str, description: str) -> bool:
        """Whether another approved item has this description."""
        if self._descriptions is None:
            self._descriptions = {}
            for item in _list_items(self._surface):
                text = item.value.get("description")
                if isinstance(text, str):
                    owners = self._descriptions.setdefault(_abbreviate(text), _Descriptions()).owners
                    owners.setdefault(text, set()).add((item.kind.entity, item.key))
        candidates = self._descriptions.get(_abbreviate(description))
        return candidates is not None and bool(candidates.find_owners(description) - {(entity, key)})


class _Descriptions:
    """Descriptions that begin with the same letters, each with the kind and key of the items that have it."""

    __slots__ = ("_by_normalised", "owners")

    def __init__(self) -> None:
        self.owners: dict[str, set[tuple[str, str]]] = {}
        self._by_normalised: dict[str, set[tuple[str, str]]] | None = None

    def find_owners(self, description: str) -> set[tuple[str, str]]:
        """Return the items with this description, apart from spaces, punctuation and letter case."""
        if self._by_normalised is None:
            self._by_normalised = {}
            for text, owners in self.owners.items():
                self._by_normalised.setdefault(normalise(text), set()).update(owners)
        return self._by_normalised.get(normalise(description), set())


class ApprovedText:
    """The approved text of one item, and of its server if that is known. Computed on first use."""

    __slots__ = ("_hosts", "_references", "_sentences", "_value", "server")

    def __init__(self, value: Any, server: ApprovedServer | None = None) -> None:
        self._value = value
        self.server = server or _NO_SERVER
        self._sentences: frozenset[str] | None = None
        self._hosts: frozenset[str] | None = None
        self._references: frozenset[str] | None = None

    @property
    def sentences(self) -> frozenset[str]:
        """The sentences of the item in the form in which they are compared, and as sent if they hide characters."""
        if self._sentences is None:
            known: set[str] = set()
            for text in dict.fromkeys(iter_strings(self._value)):
                for start, end, normalised in split_sentences(text):
                    known.add(normalised)
                    if not text.isascii() and _hides_characters(text[start:end]):
                        known.add(text[start:end])
            self._sentences = frozenset(known)
        return self._sentences

    @property
    def value(self) -> dict[str, Any]:
        """The approved item; empty if there is none."""
        return self._value if isinstance(self._value, dict) else {}

    @property
    def references(self) -> frozenset[str]:
        """The remote references in the approved schemas."""
        if self._references is None:
            self._references = frozenset(_find_remote_references(self._value))
        return self._references

    def is_new_host(self, host: str) -> bool:
        """Whether neither the item nor its server had an address with this host."""
        if self._hosts is None:
            self._hosts = _find_hosts(self._value)
        return host not in self._hosts and host not in self.server.hosts

    def find_new_sentences(self, text: str) -> list[SplitSentence]:
        """Return the sentences of ``text`` that the approved item does not have."""
        return [
            self._skip_known_beginning(text, sentence)
            for sentence in split_sentences(text)
            if not self._is_known(text, sentence)
        ]

    def _is_known(self, text: str, sentence: SplitSentence) -> bool:
        if sentence.normalised not in self.sentences or text.isascii():
            return sentence.normalised in self.sentences
        exact = text[sentence.start : sentence.end]
        return exact in self.sentences or not _hides_characters(exact)

    def _skip_known_beginning(self, text: str, sentence: SplitSentence) -> SplitSentence:
        """Return the new part of a sentence that continues an approved one without a full stop between them."""
        words = sentence.normalised.split(" ")
        for count in range(min(len(words) - 1, _MAX_BEGINNING), 1, -1):
            if " ".join(words[:count]) in self.sentences:
                rest = _skip_words(text, sentence.start, count)
                return SplitSentence(rest, sentence.end, " ".join(words[count:])) if rest < sentence.end else sentence
        return sentence

    def is_approved_elsewhere(self, text: str, sentence: SplitSentence) -> bool:
        """Whether another item of the server has the sentence. One that hides characters never counts as approved."""
        if not text.isascii() and _hides_characters(text[sentence.start : sentence.end]):
            return False
        return sentence.normalised in self.server.sentences


_MIN_SENTENCE = 8  # characters; shorter ones are names and values
_NO_SERVER = ApprovedServer()
_MAX_BEGINNING = 60  # words of a sentence that are compared with the beginning of approved ones


def _skip_words(text: str, start: int, count: int) -> int:
    """Return the position after ``count`` words that `normalise` keeps."""
    for match in _NOT_SPACE.finditer(text, start):
        if count == 0:
            return match.start()
        count -= bool(normalise(match[0]))
    return len(text)


_NOT_SPACE = re.compile(r"\S+")


def _list_items(surface: Surface | None) -> list[Any]:
    return [item for item in surface.all_items() if item.digest is not None] if surface else []


def _abbreviate(text: str) -> str:
    """Return the first letters of a text, a fast key that is equal for texts with the same normalised form."""
    return "".join(filter(str.isalnum, text[:_ABBREVIATED].casefold()))[:12]


_ABBREVIATED = 40


def _is_writing(tool: Any) -> bool:
    description, name = tool.get("description"), tool.get("name")
    return writes(find_main_verb(split_name_words(str(name)), description if isinstance(description, str) else ""))


def _list_names(value: Any) -> Iterator[str]:
    """Yield the names of parameters, definitions and arguments, and short values that a schema lists."""
    if type(value) is dict:
        for name, member in value.items():
            yield name
            if name in ("enum", "examples", "const", "default", "required"):
                yield from (text for text in iter_strings(member) if len(text) <= _MAX_SHORT_TEXT)
            elif name == "name" and type(member) is str:
                yield member
            else:
                yield from _list_names(member)
    elif type(value) is list:
        for element in value:
            yield from _list_names(element)


def _hides_characters(text: str) -> bool:
    return any(not match[0].isspace() for match in INVISIBLE.finditer(text))


def find_schema_alarms(value: Any, approved: ApprovedText) -> tuple[str, ...]:
    """Find the critical kinds of change in new parts of a schema: remote references and exposed headers."""
    kinds: list[str] = []
    if any(reference not in approved.references for reference in _find_remote_references(value)):
        kinds.append("remote_reference")
    if any(keyword == HEADER_KEYWORD for keyword, _ in _walk_keywords(value)):
        kinds.append("header_exposed")
    return tuple(kinds)


def is_remote(reference: Any) -> bool:
    """Whether a ``$ref`` points to another document. References within the document begin with ``#``."""
    return isinstance(reference, str) and not reference.startswith("#")


def is_known_dialect(value: Any) -> bool:
    """Whether the value of ``$schema`` is a published JSON Schema dialect."""
    return isinstance(value, str) and value.removesuffix("#") in KNOWN_DIALECTS


def _find_hosts(value: Any) -> frozenset[str]:
    return frozenset(
        extract_host(text[cue.start : cue.end])
        for text in dict.fromkeys(iter_strings(value))
        if "." in text
        for cue in find_cues_cached(text)
        if cue.code == "destination"
    )


# Short texts are cached, because names of keywords, parameters and types occur many times.
_MAX_SHORT_TEXT = 60
_find_cues_in_short_text = lru_cache(maxsize=16_384)(find_cues)


def find_cues_cached(text: str) -> tuple[Cue, ...]:
    """Find all cues in ``text``, from the cache if the text is short."""
    return _find_cues_in_short_text(text) if len(text) <= _MAX_SHORT_TEXT else find_cues(text)


def extract_host(address: str) -> str:
    """Return the host of an address in lower case."""
    return _AFTER_HOST.sub("", _BEFORE_HOST.sub("", address.strip())).casefold().rstrip(".")


def _find_remote_references(value: Any) -> Iterator[str]:
    for keyword, target in _walk_keywords(value):
        if keyword in REFERENCE_KEYWORDS and is_remote(target):
            yield target


def _walk_keywords(value: Any, author_named: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield every keyword of the schemas in a value. Names that the author chose, and data, are not keywords."""
    if type(value) is dict:
        for name, member in value.items():
            if not author_named:
                yield name, member
            if author_named or name not in _DATA_KEYWORDS:
                yield from _walk_keywords(member, author_named=not author_named and name in NAMED_SCHEMAS)
    elif type(value) is list:
        for element in value:
            yield from _walk_keywords(element)
