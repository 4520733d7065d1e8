"""`ChangeLocation` turns a difference at a location of an item into a ``Change``.

A change becomes critical if its new text has a cue (a sign of an attack) of a kind that the approved text of the item
does not have. So a tool that always mentioned a password file can reword that sentence. Addresses are compared by host,
so that one approved address does not allow any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pinwarden.core.json_values import child_pointer, is_json_equal, iter_strings
from pinwarden.core.record import Record, replace
from pinwarden.surface.drift.changes import ABSENT, CHANGE_KINDS, CRITICAL, CUE_ORDER, Change
from pinwarden.surface.scan.cues import ATTACK_CODES, find_cues

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
_ORDINARY_IN_NEW_ITEMS = frozenset(CUE_ORDER) - ATTACK_CODES
_BEFORE_HOST = re.compile(r"^(?:[a-z][a-z0-9+.\-]*://)?(?:[^/?#\s]*@)?", re.IGNORECASE)
_AFTER_HOST = re.compile(r"[/?#:\s].*$", re.DOTALL)


class ApprovedText:
    """Cues, hosts and remote references in the approved text of one item, computed on first use."""

    __slots__ = ("_analysis", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._analysis: tuple[frozenset[str], frozenset[str], frozenset[str]] | None = None

    @property
    def cue_codes(self) -> frozenset[str]:
        """The codes of the cues in the approved text."""
        return self._analyse()[0]

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of the addresses in the approved text."""
        return self._analyse()[1]

    @property
    def references(self) -> frozenset[str]:
        """The remote references in the approved schemas."""
        return self._analyse()[2]

    def _analyse(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        if self._analysis is None:
            cues = list(_find_cue_codes(iter_strings(self._value), include_quoted=True))
            self._analysis = (
                frozenset(code for code, _ in cues),
                frozenset(host for code, host in cues if code == "destination"),
                frozenset(_find_remote_references(self._value)),
            )
        return self._analysis


def find_new_cues(
    texts: Iterable[str], approved: ApprovedText, ignored: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Find the codes of cues in ``texts`` that the approved text does not have, the most severe first."""
    cues = {(code, host) for code, host in _find_cue_codes(texts, include_quoted=True) if code not in ignored}
    new_codes = {code for code, host in cues if _is_new(code, host, approved)}
    return tuple(code for code in CUE_ORDER if code in new_codes)


def find_new_item_cues(value: Any) -> tuple[str, ...]:
    """Find the codes of cues that make a new item critical, the most severe first.

    A new item needs review in any case. Many ordinary tools mention an address or a key; only an item with both is
    suspicious.
    """
    codes = {code for code, _ in _find_cue_codes(iter_strings(value), include_quoted=False)}
    if codes <= _ORDINARY_IN_NEW_ITEMS and codes != _ORDINARY_IN_NEW_ITEMS:
        return ()
    return tuple(code for code in CUE_ORDER if code in codes)


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


def _is_new(code: str, host: str, approved: ApprovedText) -> bool:
    return host not in approved.hosts if code == "destination" else code not in approved.cue_codes


def _find_cue_codes(texts: Iterable[str], *, include_quoted: bool) -> Iterator[tuple[str, str]]:
    """Yield the code of each cue in the texts, and the host if the cue is an address.

    ``include_quoted`` adds cues in phrases that the text only quotes.
    """
    for text in dict.fromkeys(texts):
        for cue in _find_cues_in_short_text(text) if len(text) <= _MAX_SHORT_TEXT else find_cues(text):
            if cue.is_quoted and not include_quoted:
                continue
            if cue.code != "destination":
                yield cue.code, ""
            elif not is_known_dialect(text):
                yield cue.code, _extract_host(text[cue.start : cue.end])


# Short texts are cached, because names of keywords, parameters and types occur many times.
_MAX_SHORT_TEXT = 60
_find_cues_in_short_text = lru_cache(maxsize=16_384)(find_cues)


def _extract_host(address: str) -> str:
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


_SCHEMA_MEMBERS = frozenset({"inputSchema", "outputSchema"})
_GENERAL_KINDS = frozenset({"text_changed", "text_added", "text_removed", "member_changed"})
"""Kinds whose reason adds nothing to the reason of an alarm."""


class ChangeLocation(Record):
    """A location inside an item, together with the approved text of that item."""

    entity: str
    name: str
    field: str
    path: str = ""
    member: str = ""
    """The last token of the path if it is a member name; empty for an index of an array."""
    approved: ApprovedText

    def child(self, token: str | int) -> ChangeLocation:
        """Return the location of a member or element of the value at this location."""
        return replace(self, path=child_pointer(self.path, token), member=token if isinstance(token, str) else "")

    def build_change(self, kind: str, before: Any, after: Any, *, ignored: frozenset[str] = frozenset()) -> Change:
        """Build a change at this location. The change becomes critical if the new text looks like an attack.

        ``ignored`` are codes of cues that are normal at this location.
        """
        return self.build_change_with_alarms(kind, before, after, self._find_alarms(before, after, ignored))

    def build_change_with_alarms(
        self, kind: str, before: Any, after: Any, alarms: Iterable[str] = (), note: str = ""
    ) -> Change:
        """Build a change at this location. The first critical kind among ``kind`` and ``alarms`` becomes its kind.

        The reason has a sentence for each kind, except general ones such as ``text_changed`` next to an alarm.
        """
        kinds = list(dict.fromkeys([kind, *alarms]))
        chosen = next((row for row in map(CHANGE_KINDS.__getitem__, kinds) if row.severity == CRITICAL), None)
        row = chosen or CHANGE_KINDS[kind]
        further = [other for other in kinds if other != row.kind and other not in _GENERAL_KINDS]
        reasons = [row.reason, *(CHANGE_KINDS[other].reason for other in further), note]
        return Change(
            entity=self.entity,
            name=self.name,
            field=self.field,
            path=self.path,
            kind=row.kind,
            severity=row.severity,
            before=before,
            after=after,
            reason=" ".join(filter(None, reasons)),
        )

    def _find_alarms(self, before: Any, after: Any, ignored: frozenset[str]) -> Iterator[str]:
        if after is ABSENT:
            return
        texts = iter_strings(after)
        if before is ABSENT and self.member:
            texts = iter((self.member, *texts))
        for code in find_new_cues(texts, self.approved, ignored):
            yield f"new_{code}"
        if self.field in _SCHEMA_MEMBERS:
            yield from find_schema_alarms(after, self.approved)


def compare_values(location: ChangeLocation, before: Any, after: Any, kind: str) -> Iterator[Change]:
    """Compare two JSON values. Yields a change of the given kind for each leaf that differs."""
    if is_json_equal(before, after):
        return
    if type(before) is dict and type(after) is dict and before and after:
        for name in before | after:
            yield from compare_values(location.child(name), before.get(name, ABSENT), after.get(name, ABSENT), kind)
    elif type(before) is list and type(after) is list and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from compare_values(location.child(index), old, new, kind)
    else:
        yield location.build_change(kind, before, after)


def compare_texts(location: ChangeLocation, before: Any, after: Any) -> Iterator[Change]:
    """Compare text that a model or user reads. Any difference is a change."""
    if not is_json_equal(before, after):
        kind = "text_added" if before is ABSENT else "text_removed" if after is ABSENT else "text_changed"
        yield location.build_change(kind, before, after)
