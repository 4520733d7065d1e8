"""Describe changes in words: the phrase for each change, and the sentence that leads every list of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinwarden.core.record import Record
from pinwarden.core.text import plural, show_invisible
from pinwarden.surface.drift.approved_text import extract_host
from pinwarden.surface.drift.changes import CHANGE_KINDS, CRITICAL, INFO, Change
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
    ordered = sorted(groups, key=lambda key: (not key[0], _TOPICS.index(key[1]) if not key[0] else 0))
    return tuple(
        Decision(topic=groups[key][0].reason if key[0] else key[1], changes=tuple(groups[key])) for key in ordered
    )


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
_TOPICS = ("texts", "new items", "parameters", "results", "hints", "the server", "the configuration")


def _find_topic(change: Change) -> str:
    if change.entity == "config":
        return "the configuration"
    if change.kind in _TEXT_VERBS:
        return "texts"
    if change.kind in _ITEM_VERBS:
        return "new items"
    if change.path.startswith("/outputSchema") or change.kind.startswith("result_"):
        return "results"
    if change.entity == "server":
        return "the server"
    return "hints" if change.kind in _HINT_VERBS else "parameters"


def is_without_effect(change: Change) -> bool:
    """Whether a change affects only the notation, so that a list of changes may leave it out."""
    return change.severity == INFO and change.kind not in _NAMED_INFO_KINDS


def find_required_parameters(changes: Iterable[Change]) -> set[tuple[str, str, str]]:
    """Return the parameters that a list of required parameters gained: entity, item and path of each parameter."""
    return _list_newly_required(tuple(changes))


def _describe_attack(change: Change) -> str:
    kind = CHANGE_KINDS.get(change.kind) if change.entity != "config" else None
    reason = kind.reason if kind is not None else change.reason
    sentence = reason.split(". ")[0].rstrip(".")
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


_TEXT_VERBS = {"text_changed": "reworded", "text_added": "added", "text_removed": "removed"}
_ITEM_VERBS = {"item_added": "added", "item_removed": "removed", "renamed_in_release": "renamed"}
_HINT_VERBS = {
    "annotation_declared": "declared",
    "annotation_withdrawn": "withdrawn",
    "annotation_changed": "changed",
}
_ENTITIES = {"resourceTemplate": "resource template"}
_NAMED_INFO_KINDS = frozenset({"item_removed", "version_changed"})
_PHRASES = {
    "version_changed": ("other version stated", "other version stated"),
    "parameter_removed": ("parameter removed", "parameters removed"),
    "parameter_required": ("parameter now required", "parameters now required"),
    "parameter_optional": ("parameter now optional", "parameters now optional"),
    "required_changed": ("list of required parameters changed", "lists of required parameters changed"),
    "result_added": ("result member added", "result members added"),
    "result_removed": ("result member removed", "result members removed"),
    "default_changed": ("default value changed", "default values changed"),
    "argument_added": ("prompt argument added", "prompt arguments added"),
    "argument_removed": ("prompt argument removed", "prompt arguments removed"),
    "capability_added": ("capability added", "capabilities added"),
    "capability_changed": ("capability changed", "capabilities changed"),
    "identity_changed": ("server name changed", "server names changed"),
    "icon_changed": ("icon changed", "icons changed"),
    "address_changed": ("address changed", "addresses changed"),
    "release_changed": ("other release configured", "other releases configured"),
    "pin_tightened": ("exact version configured", "exact versions configured"),
    "pin_loosened": ("exact version dropped", "exact versions dropped"),
    "arguments_changed": ("command with other arguments", "commands with other arguments"),
    "launcher_changed": ("other launcher configured", "other launchers configured"),
    "variable_added": ("variable added", "variables added"),
    "variable_changed": ("variable changed", "variables changed"),
    "variable_removed": ("variable removed", "variables removed"),
    "unlocked_entry": ("client added", "clients added"),
}
_RANKS = ("text", "item", "parameter", "argument", "annotation", "schema", "result")


def _build_phrase(change: Change, *, is_required: bool) -> ChangePhrase:
    member = change.path.rpartition("/")[2]
    if change.kind in _TEXT_VERBS:
        if member == "instructions":
            phrase = f"instructions {_TEXT_VERBS[change.kind]}"
            return ChangePhrase(one=phrase, many=phrase)
        noun = member if member in ("title", "description", "name") else "text"
        owner = "parameter " if change.path.startswith("/inputSchema") else ""
        return _phrase(f"{owner}{noun}", _TEXT_VERBS[change.kind])
    if change.kind in _ITEM_VERBS:
        return _phrase(_ENTITIES.get(change.entity, change.entity), _ITEM_VERBS[change.kind])
    if change.kind in _HINT_VERBS:
        return _phrase("hint", _HINT_VERBS[change.kind])
    if change.kind == "parameter_added":
        return _phrase(f"{'required' if is_required else 'optional'} parameter", "added")
    if change.kind in ("schema_added", "schema_removed"):
        noun = "result schema" if change.path.startswith("/outputSchema") else "parameter schema"
        return _phrase(noun, change.kind.removeprefix("schema_"))
    if change.kind in _PHRASES:
        one, many = _PHRASES[change.kind]
        return ChangePhrase(one=one, many=many)
    return _phrase(_name_detail(change), "changed")


def _name_detail(change: Change) -> str:
    if change.path.startswith("/inputSchema"):
        return "parameter detail"
    if change.path.startswith("/outputSchema"):
        return "result detail"
    return "configuration detail" if change.entity == "config" else "other detail"


def _phrase(noun: str, verb: str) -> ChangePhrase:
    return ChangePhrase(one=f"{noun} {verb}", many=f"{noun}s {verb}")


def _rank(change: Change) -> int:
    if change.path.endswith(("/description", "/instructions")) and change.kind in _TEXT_VERBS:
        return -1
    beginning = change.kind.partition("_")[0]
    return _RANKS.index(beginning) if beginning in _RANKS else len(_RANKS)
