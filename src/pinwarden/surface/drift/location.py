"""`ChangeLocation` turns a difference at a location of an item into a ``Change``.

A change becomes critical if its new text looks like an attack and the approved text of the item does not already have
that kind of cue: a tool that always named a password file is not attacked because its wording improved. Destinations
are compared by host, so that one approved address does not allow any other.
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
"""Keywords whose members are named by the author, so that these names are not keywords."""
_DATA = frozenset({"enum", "const", "default", "examples", "example"})
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
        """The codes of its cues."""
        return self._analyse()[0]

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts it names."""
        return self._analyse()[1]

    @property
    def references(self) -> frozenset[str]:
        """The remote references in its schemas."""
        return self._analyse()[2]

    def _analyse(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        if self._analysis is None:
            cues = list(_cues_in(iter_strings(self._value), include_quoted=True))
            self._analysis = (
                frozenset(code for code, _ in cues),
                frozenset(host for code, host in cues if code == "destination"),
                frozenset(_remote_references(self._value)),
            )
        return self._analysis


def new_cues(texts: Iterable[str], approved: ApprovedText, ignored: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The codes of cues in ``texts`` that the approved text does not have, most severe first."""
    cues = {(code, host) for code, host in _cues_in(texts, include_quoted=True) if code not in ignored}
    new_codes = {code for code, host in cues if _is_new(code, host, approved)}
    return tuple(code for code in CUE_ORDER if code in new_codes)


def new_item_cues(value: Any) -> tuple[str, ...]:
    """The codes of cues that make a new item suspicious, most severe first.

    A new item is pending review in any case. Addresses alone and keys alone are ordinary in tools; both together are
    not.
    """
    codes = {code for code, _ in _cues_in(iter_strings(value), include_quoted=False)}
    if codes <= _ORDINARY_IN_NEW_ITEMS and codes != _ORDINARY_IN_NEW_ITEMS:
        return ()
    return tuple(code for code in CUE_ORDER if code in codes)


def schema_alarms(value: Any, approved: ApprovedText) -> tuple[str, ...]:
    """The kinds of change that new schema parts always are: remote references, exposed headers."""
    kinds: list[str] = []
    if any(reference not in approved.references for reference in _remote_references(value)):
        kinds.append("remote_reference")
    if any(keyword == HEADER_KEYWORD for keyword, _ in _keywords_in(value)):
        kinds.append("header_exposed")
    return tuple(kinds)


def is_remote(reference: Any) -> bool:
    """Whether a reference points outside the document, that is, is not a fragment."""
    return isinstance(reference, str) and not reference.startswith("#")


def is_known_dialect(value: Any) -> bool:
    """Whether a ``$schema`` names a published dialect."""
    return isinstance(value, str) and value.removesuffix("#") in KNOWN_DIALECTS


def _is_new(code: str, host: str, approved: ApprovedText) -> bool:
    return host not in approved.hosts if code == "destination" else code not in approved.cue_codes


def _cues_in(texts: Iterable[str], *, include_quoted: bool) -> Iterator[tuple[str, str]]:
    """The code of each cue, with the host for destinations. ``include_quoted`` adds phrases that are only quoted."""
    for text in dict.fromkeys(texts):
        for cue in _cues_of_short_text(text) if len(text) <= _SHORT else find_cues(text):
            if cue.mentioned and not include_quoted:
                continue
            if cue.code != "destination":
                yield cue.code, ""
            elif not is_known_dialect(text):
                yield cue.code, _host(text[cue.start : cue.end])


# Names of keywords, parameters and types occur many times.
_SHORT = 60
_cues_of_short_text = lru_cache(maxsize=16_384)(find_cues)


def _host(address: str) -> str:
    return _AFTER_HOST.sub("", _BEFORE_HOST.sub("", address.strip())).casefold().rstrip(".")


def _remote_references(value: Any) -> Iterator[str]:
    for keyword, target in _keywords_in(value):
        if keyword in REFERENCE_KEYWORDS and is_remote(target):
            yield target


def _keywords_in(value: Any, author_named: bool = False) -> Iterator[tuple[str, Any]]:
    """Every keyword of the schemas in a value. Names chosen by the author and data are not keywords."""
    if type(value) is dict:
        for name, member in value.items():
            if not author_named:
                yield name, member
            if author_named or name not in _DATA:
                yield from _keywords_in(member, author_named=not author_named and name in NAMED_SCHEMAS)
    elif type(value) is list:
        for element in value:
            yield from _keywords_in(element)


_SCHEMAS = frozenset({"inputSchema", "outputSchema"})


class ChangeLocation(Record):
    """A location in an item, with the approved text of the item."""

    entity: str
    name: str
    field: str
    path: str = ""
    member: str = ""
    """The last token of the path, if it is the name of a member."""
    approved: ApprovedText

    def child(self, token: str | int) -> ChangeLocation:
        """The location one level deeper."""
        return replace(self, path=child_pointer(self.path, token), member=token if isinstance(token, str) else "")

    def change(self, kind: str, before: Any, after: Any, *, ignored: frozenset[str] = frozenset()) -> Change:
        """A change of this kind at this location, raised to critical if the new text looks like an attack.

        ``ignored`` are the codes of cues that are normal at such a location.
        """
        return self.change_with(kind, before, after, self._alarms(before, after, ignored))

    def change_with(self, kind: str, before: Any, after: Any, alarms: Iterable[str] = (), note: str = "") -> Change:
        """A change at this location. The first critical one of ``kind`` and ``alarms`` is its kind."""
        kinds = list(dict.fromkeys([kind, *alarms]))
        chosen = next((row for row in map(CHANGE_KINDS.__getitem__, kinds) if row.severity == CRITICAL), None)
        row = chosen or CHANGE_KINDS[kind]
        reasons = [row.reason, *(CHANGE_KINDS[other].reason for other in kinds if other != row.kind), note]
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

    def _alarms(self, before: Any, after: Any, ignored: frozenset[str]) -> Iterator[str]:
        if after is ABSENT:
            return
        texts = iter_strings(after)
        if before is ABSENT and self.member:
            texts = iter((self.member, *texts))
        for code in new_cues(texts, self.approved, ignored):
            yield f"new_{code}"
        if self.field in _SCHEMAS:
            yield from schema_alarms(after, self.approved)


def value_changes(location: ChangeLocation, before: Any, after: Any, kind: str) -> Iterator[Change]:
    """A change of the given kind for each differing leaf of two values."""
    if is_json_equal(before, after):
        return
    if type(before) is dict and type(after) is dict and before and after:
        for name in before | after:
            yield from value_changes(location.child(name), before.get(name, ABSENT), after.get(name, ABSENT), kind)
    elif type(before) is list and type(after) is list and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from value_changes(location.child(index), old, new, kind)
    else:
        yield location.change(kind, before, after)


def text_changes(location: ChangeLocation, before: Any, after: Any) -> Iterator[Change]:
    """Text that a model or user reads: any difference counts."""
    if not is_json_equal(before, after):
        kind = "text_added" if before is ABSENT else "text_removed" if after is ABSENT else "text_changed"
        yield location.change(kind, before, after)
