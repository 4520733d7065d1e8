"""`ChangeLocation` turns a difference at a location of an item into a ``Change``.

A change becomes critical if a new sentence in it has a cue, a sign of an attack (see ``new_cues.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pinwarden.core.json_values import child_pointer, is_json_equal, iter_strings, split_pointer
from pinwarden.core.record import Record, replace
from pinwarden.surface.drift.approved_text import ApprovedText, find_schema_alarms
from pinwarden.surface.drift.changes import ABSENT, CHANGE_KINDS, CRITICAL, Change
from pinwarden.surface.drift.new_cues import (
    Alarm,
    find_new_alarms,
    find_steering_alarm,
    is_enough_evidence,
    is_suspicious,
)
from pinwarden.surface.drift.reversal import is_reversed, lost_safeguard
from pinwarden.surface.drift.text_signals import (
    addresses_model,
    announces_writing,
    claims_read_only,
    find_main_verb,
    find_ordered_identifiers,
    fold_identifier,
    is_bare_order,
    reads,
    restates,
    split_name_words,
    writes,
)
from pinwarden.surface.sentences import normalise, split_sentences

_SCHEMA_MEMBERS = frozenset({"inputSchema", "outputSchema"})
_REVERSAL = 0.0  # the evidence of a sentence that now says the opposite
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

    def find_main_verb(self) -> str:
        """Return the verb that says what the item does, by its name or its approved description."""
        description = self.approved.value.get("description")
        return find_main_verb(split_name_words(self.name), description if isinstance(description, str) else "")

    @property
    def topic(self) -> str:
        """What the item is about: its name and the first sentence of its approved description."""
        description = self.approved.value.get("description")
        sentences = split_sentences(description) if isinstance(description, str) else ()
        return f"{self.name} {sentences[0].normalised if sentences else ''}"

    def build_change(self, kind: str, before: Any, after: Any, *, ignored: frozenset[str] = frozenset()) -> Change:
        """Build a change at this location. The change becomes critical if the new text looks like an attack.

        ``ignored`` are codes of cues that are normal at this location.
        """
        return self.build_change_with_alarms(kind, before, after, self._find_alarms(before, after, ignored))

    def build_change_with_alarms(
        self, kind: str, before: Any, after: Any, alarms: Iterable[Alarm] = (), note: str = ""
    ) -> Change:
        """Build a change at this location. The first critical kind among ``kind`` and ``alarms`` becomes its kind.

        The reason has a sentence for each kind, except general ones such as ``text_changed`` next to an alarm.
        """
        raised = [Alarm(kind), *alarms]
        kinds = list(dict.fromkeys(alarm.kind for alarm in raised))
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
            sentence=next((alarm.sentence for alarm in raised if alarm.kind == row.kind), ""),
            phrase=row.phrase,
        )

    def _find_alarms(self, before: Any, after: Any, ignored: frozenset[str]) -> Iterator[Alarm]:
        if after is ABSENT:
            return
        texts = [*iter_strings(after)]
        if before is ABSENT and self.member:
            texts.insert(0, self.member)
        yield from find_new_alarms(texts, self.approved, ignored)
        yield from find_text_signals(before, after, self)
        if self.field in _SCHEMA_MEMBERS:
            yield from map(Alarm, find_schema_alarms(after, self.approved))
        yield from find_steering_alarm(texts, self.approved)


def find_text_signals(before: Any, after: Any, location: ChangeLocation) -> Iterator[Alarm]:
    """Find the critical kinds of change that new sentences show, compared with the approved ones."""
    approved = location.approved
    added: list[str] = []
    for text in dict.fromkeys(iter_strings(after)):
        for sentence in approved.find_new_sentences(text):
            added.append(sentence.normalised)
            exact = text[sentence.start : sentence.end]
            signals = [*_find_sentence_signals(exact, location)]
            # The sentences of the whole server are needed only for the few sentences with a signal.
            if signals and not approved.is_approved_elsewhere(text, sentence):
                yield from (Alarm(kind, exact) for kind in signals)
    if isinstance(before, str) and isinstance(after, str):
        kept = {sentence.normalised for sentence in split_sentences(after)}
        gone = [other.normalised for other in split_sentences(before) if other.normalised not in kept]
        widens = location.entity == "tool" and location.path == "/description" and writes(location.find_main_verb())
        turned = (sentence for sentence in added if gone and is_reversed(sentence, gone, widens=widens))
        for opposite in turned:
            if is_enough_evidence(_REVERSAL, approved.server) or is_suspicious(
                opposite, approved.server, has_sign=True
            ):
                yield Alarm("meaning_reversed", opposite)
        if gone and lost_safeguard(gone, added, len(kept)):
            yield Alarm("safeguard_removed", gone[0])


def _find_sentence_signals(sentence: str, location: ChangeLocation) -> Iterator[str]:
    server = location.approved.server
    if server.names_other_server(sentence):
        yield "tool_shadowing"
    # In the schema of results, a sentence is about the results.
    is_about_tool = location.entity == "tool" and location.field != "outputSchema"
    if is_about_tool and claims_read_only(sentence) and writes(location.find_main_verb()):
        yield "read_only_claimed"
    signals = [*_find_weak_signals(sentence, location)]
    if signals and is_suspicious(sentence, server, has_sign=True):
        yield from signals


def _find_weak_signals(sentence: str, location: ChangeLocation) -> Iterator[str]:
    """Find the signals that a sentence shows by a few words, so that the whole sentence must support them."""
    server = location.approved.server
    if any(fold_identifier(name) not in server.identifiers for name in find_ordered_identifiers(sentence)):
        yield "foreign_identifier"
    if location.entity != "tool":
        return
    if (location.field in ("outputSchema", "title") or location.member == "title") and addresses_model(
        sentence, location.name
    ):
        yield "new_agent_instruction"
    verb = location.find_main_verb()
    if not writes(verb) and location.field != "outputSchema" and not claims_read_only(sentence):
        if reads(verb) and announces_writing(sentence):
            yield "writing_announced"
        if server.mentions_writing_tool(sentence, location.name) and is_bare_order(sentence):
            yield "call_ordered"


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
    """Compare text that a model or user reads. A difference in spaces or punctuation only is information."""
    if is_json_equal(before, after):
        return
    kind = "text_added" if before is ABSENT else "text_removed" if after is ABSENT else "text_changed"
    if isinstance(before, str) and isinstance(after, str) and _is_same_text(before, after):
        kind = "same_meaning"
    if location.member == "title" and (after is ABSENT or _restates_name(location, after)):
        kind = "title_restated"
    yield location.build_change(kind, before, after)


def _is_same_text(before: str, after: str) -> bool:
    return normalise(before, keep_case=True) == normalise(after, keep_case=True)


def _restates_name(location: ChangeLocation, title: Any) -> bool:
    names = {word for name in (location.name, *split_pointer(location.path)) for word in split_name_words(name)}
    return restates(title, names)
