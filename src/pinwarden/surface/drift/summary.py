"""Describe changes in words: the phrase for each change, and the sentence that leads every list of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinwarden.core.record import Record
from pinwarden.core.text import plural, show_invisible
from pinwarden.surface.drift.approved_text import extract_host
from pinwarden.surface.drift.changes import CRITICAL, INFO, Change
from pinwarden.surface.sentences import normalise

_MAX_ATTACKS = 3  # changes that the sentence names one by one
_MAX_NAME = 60


class ChangePhrase(Record):
    """The singular and plural of a phrase for a change: ``description reworded``, ``descriptions reworded``."""

    one: str
    many: str

    def count(self, number: int) -> str:
        """Return the phrase with a number, such as ``3 descriptions reworded``."""
        return self.one if self.one == self.many else plural(number, self.one, self.many)


class ChangeGroup(Record):
    """Changes with the same phrase."""

    phrase: ChangePhrase
    changes: tuple[Change, ...]

    @property
    def heading(self) -> str:
        """The phrase with the number of changes."""
        return self.phrase.count(len(self.changes))


def summarize_changes(changes: Sequence[Change]) -> str:
    """Return one sentence that says whether a change looks like an attack, and then what changed."""
    attacks = [change for change in changes if change.severity == CRITICAL]
    harmless = sum(map(is_without_effect, changes))
    headings = [group.heading for group in group_changes(changes)]
    if harmless:
        headings.append(plural(harmless, "change without effect", "changes without effect"))
    if not changes:
        return "Nothing changed."
    if not attacks:
        return f"Nothing looks like an attack: {', '.join(headings)}."
    named = list(dict.fromkeys(map(_describe_attack, attacks)))
    shown = "; ".join(named[:_MAX_ATTACKS])
    more = f"; and {len(named) - _MAX_ATTACKS} more" if len(named) > _MAX_ATTACKS else ""
    verdict = f"{plural(len(attacks), 'change looks', 'changes look')} like an attack: {shown}{more}."
    return f"{verdict} Also: {', '.join(headings)}." if headings else verdict


def group_changes(changes: Iterable[Change]) -> tuple[ChangeGroup, ...]:
    """Group the changes that need a review but do not look like an attack: text first, then parameters, then others.

    The phrase of a new parameter says whether it is required, so the list of required parameters is left out.
    """
    listed = tuple(changes)
    added = {(change.entity, change.name, change.path) for change in listed if change.kind == "parameter_added"}
    required = _list_newly_required(listed)
    groups: dict[tuple[str, str], list[Change]] = {}
    phrases: dict[tuple[str, str], ChangePhrase] = {}
    for change in listed:
        if change.severity == CRITICAL or is_without_effect(change) or _is_about_added_parameters(change, added):
            continue
        phrase = _build_phrase(change, is_required=(change.entity, change.name, change.path) in required)
        key = phrase.one, phrase.many
        phrases[key] = phrase
        groups.setdefault(key, []).append(change)
    ordered = sorted(groups, key=lambda key: _rank(groups[key][0]))
    return tuple(ChangeGroup(phrase=phrases[key], changes=tuple(groups[key])) for key in ordered)


class Decision(Record):
    """Changes about which a person decides together."""

    topic: str
    """What the changes are about, in the plural: ``texts``, ``parameters``; or the reason of an alarm."""
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert the decision to a JSON object, with the entity, name and path of each of its changes."""
        members = ("entity", "name", "path")
        return {
            "topic": self.topic,
            "severity": self.changes[0].severity,
            "changes": [{member: getattr(change, member) for member in members} for change in self.changes],
        }


def group_decisions(changes: Iterable[Change]) -> tuple[Decision, ...]:
    """Group the changes that a person must review: each alarm with its copies in other items, then by topic."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        if change.severity == CRITICAL:
            groups.setdefault((change.kind, _identify_alarm(change)), []).append(change)
        elif change.severity != INFO:
            groups.setdefault(("", _find_topic(change)), []).append(change)
    ordered = sorted(groups, key=lambda key: (not key[0], _rank_topic(key[1]) if not key[0] else 0))
    return tuple(
        Decision(topic=groups[key][0].reason if key[0] else key[1], changes=tuple(groups[key])) for key in ordered
    )


def _rank_topic(topic: str) -> int:
    return _TOPICS.index(topic) if topic in _TOPICS else len(_TOPICS)


def _identify_alarm(change: Change) -> str:
    """Return what the same alarms have in common: the sentence, the host, or the name and value of what changed."""
    if change.kind in _ITEM_ALARMS:
        return ""
    if change.kind == "new_destination":
        return extract_host(change.sentence)
    if change.sentence:
        return normalise(change.sentence)
    after = change.after if isinstance(change.after, str) else repr(change.after)
    return f"{change.path.rpartition('/')[2]} {after}"


_ITEM_ALARMS = frozenset({"renamed", "name_wrapped", "look_alike_name", "duplicate_name", "undigestable"})
"""Kinds that are about the names of items. All items with such a name are one decision."""
_TOPICS = ("texts", "new items", "parameters", "results", "hints", "the server")


def _find_topic(change: Change) -> str:
    if change.topic:
        return change.topic
    if _is_about_text(change):
        return "texts"
    if "{item}" in change.phrase:
        return "new items"
    if change.path.startswith("/outputSchema") or change.kind.startswith("result_"):
        return "results"
    if change.entity == "server":
        return "the server"
    return "hints" if change.kind.startswith("annotation_") else "parameters"


def is_without_effect(change: Change) -> bool:
    """Whether a change affects only the notation, so that a list of changes may leave it out."""
    return change.severity == INFO and not change.phrase


def find_required_parameters(changes: Iterable[Change]) -> set[tuple[str, str, str]]:
    """Return the parameters that a list of required parameters gained: entity, item and path of each parameter."""
    return _list_newly_required(tuple(changes))


def _describe_attack(change: Change) -> str:
    sentence = change.reason.split(". ")[0].rstrip(".")
    item = f"{change.entity} {show_invisible(change.name[:_MAX_NAME])}".strip()
    return f"{item}: {sentence[:1].lower()}{sentence[1:]}"


def _list_newly_required(changes: Sequence[Change]) -> set[tuple[str, str, str]]:
    return {
        (change.entity, change.name, f"{change.path.removesuffix('required')}properties/{_escape(name)}")
        for change in changes
        if change.path.endswith("/required") and isinstance(change.after, list)
        for name in change.after
        if isinstance(name, str) and not (isinstance(change.before, list) and name in change.before)
    }


def _is_about_added_parameters(change: Change, added: set[tuple[str, str, str]]) -> bool:
    """Whether a change only says that newly added parameters are required."""
    names = _list_newly_required((change,)) if change.kind == "parameter_required" else set()
    return bool(names) and names <= added


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


_RANKS = ("text", "item", "parameter", "argument", "annotation", "schema", "result")


def _build_phrase(change: Change, *, is_required: bool) -> ChangePhrase:
    """Fill the placeholders of a phrase: the endings of the plural, and what has changed."""
    member = change.path.rpartition("/")[2]
    text = member if member in ("title", "description", "name", "instructions") else "text"
    in_results = change.path.startswith("/outputSchema")
    in_parameters = change.path.startswith("/inputSchema")
    nouns = {
        "text": f"parameter {text}" if in_parameters else text,
        "item": _ENTITIES.get(change.entity, change.entity),
        "schema": "result schema" if in_results else "parameter schema",
        "required": "required" if is_required else "optional",
        "detail": "parameter detail" if in_parameters else "result detail" if in_results else "other detail",
    }
    one = change.phrase.format(**nouns, s="", es="", y="y")
    is_plural = _is_about_text(change) and member == "instructions"
    return ChangePhrase(one=one, many=one if is_plural else change.phrase.format(**nouns, s="s", es="es", y="ies"))


_ENTITIES = {"resourceTemplate": "resource template"}


def _rank(change: Change) -> int:
    if change.path.endswith(("/description", "/instructions")) and _is_about_text(change):
        return -1
    beginning = change.kind.partition("_")[0]
    return _RANKS.index(beginning) if beginning in _RANKS else len(_RANKS)


def _is_about_text(change: Change) -> bool:
    return "{text}" in change.phrase
