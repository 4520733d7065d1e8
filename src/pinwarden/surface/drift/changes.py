"""`Change`, one difference between two surfaces, and the table of all kinds of change with their severity.

Reports and ``docs/reference/changes.md`` take severities and reasons from the table. The kinds are stable, so
scripts may match on them; the reasons can be reworded in any release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Row, build_kind_table

CRITICAL = "critical"
REVIEW = "review"
INFO = "info"
SEVERITIES = (CRITICAL, REVIEW, INFO)
"""All severities, the most severe first.

``critical``: the change looks like an attack. ``review``: the change affects what the model or the host reads, which
values are accepted, or who chooses them. ``info``: the change cannot affect what a reviewed call does.
"""


class Absence(Enum):
    """The type of ``ABSENT``, which stands for a missing member. Null and empty members are not absent."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absence.ABSENT


CUE_ORDER = (
    "hidden_characters",
    "terminal_escape",
    "homoglyph",
    "concealment",
    "exfiltration",
    "agent_instruction",
    "impersonation",
    "steering",
    "encoded_payload",
    "oversized_text",
    "secret",
    "destination",
)
"""The codes of cues, the most severe first. The first one in a text decides the kind of the change."""

_DETAIL = "{detail}{s} changed"

CHANGE_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("new_hidden_characters", "The text now contains characters that a model reads but a person does not see."),
        ("new_terminal_escape", "The text now contains control characters that change what a terminal shows."),
        ("new_homoglyph", "The text now contains letters of another script that look like Latin letters."),
        ("new_concealment", "The text now asks the model to hide something from the user."),
        ("new_exfiltration", "The text now asks the model to send private data somewhere else."),
        ("new_agent_instruction", "The text now gives the model instructions instead of describing the item."),
        ("new_impersonation", "The text now poses as the system, the user or another tool."),
        ("new_steering", "The text now tries to make the model do something that the user did not ask for."),
        ("new_encoded_payload", "The text now contains encoded content that a reviewer cannot read."),
        ("new_oversized_text", "The text is now too long to be checked completely."),
        ("new_secret", "The text now mentions keys, passwords or files that contain them."),
        ("new_destination", "The text now moves data to or from a host that the approved text does not contain."),
        ("description_copied", "The description is now that of another approved item."),
        ("meaning_reversed", "A sentence now says the opposite: only a negation, restriction or quantity changed."),
        ("safeguard_removed", "A sentence of caution is gone, such as a warning or the need for a confirmation."),
        ("writing_announced", "The text of a tool that only read now says that something is changed or sent."),
        ("call_ordered", "The text of a tool that only read now names a tool that changes something."),
        ("read_only_claimed", "A tool that changes something, by its name, now claims to be read-only or harmless."),
        ("tool_shadowing", "The text now interferes with a tool of another server, or copies it."),
        ("foreign_identifier", "A new order names a tool or function that this server does not have."),
        ("conversation_requested", "A parameter now asks for the conversation, prompt, session or environment."),
        ("choice_forced", "Only one value is left where the model could choose."),
        ("default_preset", "A preset text now replaces a value that the model or the user had to give."),
        ("default_reversed", "The default of an on/off parameter is now the opposite of the approved one."),
        ("name_wrapped", "The new name wraps the name of an approved item, so a model may take it for that item."),
        (
            "annotation_toward_harmless",
            "An annotation that stated a hazard now denies it. Hosts rely on such annotations to skip confirmations.",
        ),
        ("renamed", "A new item is nearly the same as an approved item that disappeared, but has another name."),
        ("duplicate_name", "Another item has the same name, so it is unclear which one a call uses."),
        ("look_alike_name", "The name looks almost the same as the name of another item."),
        ("remote_reference", "The schema refers to a document on another host, which can change without notice."),
        ("header_exposed", "The client now also sends an argument as an HTTP header."),
        ("undigestable", "The definition is ambiguous or invalid JSON, so Pinwarden cannot compare or approve it."),
        ("address_moved", "The address now has another scheme or host."),
        ("unsafe_address", "The address has a scheme that can run code or read local files."),
    ),
    review=(
        ("item_added", "The item did not exist when the server was approved.", "{item}{s} added"),
        ("renamed_in_release", "A new release of the server renamed an approved item.", "{item}{s} renamed"),
        ("text_changed", "Text that the model or the user reads has changed.", "{text}{s} reworded"),
        ("text_added", "Text that the model or the user reads was added.", "{text}{s} added"),
        ("text_removed", "Text that the model or the user reads was removed.", "{text}{s} removed"),
        ("schema_added", "The item now has a schema.", "{schema}{s} added"),
        ("schema_removed", "The approved schema was removed, so any values are accepted.", "{schema}{s} removed"),
        ("parameter_added", "The tool has a new parameter that was not reviewed.", "{required} parameter{s} added"),
        (
            "parameter_removed",
            "A parameter was removed, so reviewed calls may behave differently.",
            "parameter{s} removed",
        ),
        (
            "parameter_required",
            "A parameter is now required that the model could omit before.",
            "parameter{s} now required",
        ),
        (
            "parameter_optional",
            "The model can now omit a parameter that was required before.",
            "parameter{s} now optional",
        ),
        ("required_changed", "The list of required parameters changed.", "list{s} of required parameters changed"),
        ("result_added", "Results can contain a new member that was not reviewed.", "result member{s} added"),
        ("result_removed", "The schema of results no longer has this member.", "result member{s} removed"),
        ("promise_dropped", "Results may now omit a member that was always present before.", _DETAIL),
        ("bound_added", "A new limit means that fewer values are accepted.", _DETAIL),
        ("bound_tightened", "A stricter limit means that fewer values are accepted.", _DETAIL),
        ("enum_shrunk", "Some approved values are no longer accepted, so the model has fewer choices.", _DETAIL),
        (
            "type_narrowed",
            "Fewer types are accepted. If null is no longer accepted, the model must give a value.",
            _DETAIL,
        ),
        ("schema_tightened", "A part of the schema accepts fewer values.", _DETAIL),
        ("alternative_removed", "One of the approved alternatives is no longer accepted.", _DETAIL),
        ("negation_tightened", "A schema under 'not' now excludes more values.", _DETAIL),
        ("additional_properties_opened", "Members that the schema does not name are now accepted.", _DETAIL),
        ("bound_removed", "A limit on values was removed.", _DETAIL),
        ("bound_loosened", "A limit was relaxed, so more values are accepted.", _DETAIL),
        ("more_demanded", "A minimum length or size is higher, so the model must give more than before.", _DETAIL),
        ("enum_grown", "The list of accepted values has new entries.", _DETAIL),
        ("enum_removed", "Any value is accepted where a list of values was approved.", _DETAIL),
        ("constant_changed", "The only accepted value changed.", _DETAIL),
        ("constant_removed", "Any value is accepted where only one was approved.", _DETAIL),
        ("values_prescribed", "The schema now prescribes values or their format.", _DETAIL),
        ("pattern_changed", "The format of values changed. Which values it accepts cannot be compared.", _DETAIL),
        ("pattern_removed", "The format of values is no longer checked.", _DETAIL),
        ("type_grown", "Values of more types are accepted.", _DETAIL),
        ("type_changed", "The type of values changed.", _DETAIL),
        ("type_removed", "Values of every type are accepted.", _DETAIL),
        ("schema_loosened", "A part of the schema accepts more values.", _DETAIL),
        ("subschema_added", "A part of the schema was added.", _DETAIL),
        ("subschema_removed", "A part of the schema that limited values was removed.", _DETAIL),
        ("alternative_added", "One more alternative is accepted.", _DETAIL),
        ("negation_loosened", "A schema under 'not' now excludes fewer values.", _DETAIL),
        ("condition_changed", "The condition that chooses between parts of the schema changed.", _DETAIL),
        (
            "default_changed",
            "The default value changed, which applies if the model gives no value.",
            "default value{s} changed",
        ),
        ("examples_changed", "The examples changed, and models tend to follow examples.", _DETAIL),
        ("reference_changed", "A reference now points to another part of the schema.", _DETAIL),
        ("dialect_unknown", "The schema names a dialect that Pinwarden does not know.", _DETAIL),
        ("keyword_changed", "A keyword changed, and Pinwarden does not know which values it accepts.", _DETAIL),
        ("annotation_declared", "An annotation was added, and hosts may rely on it.", "hint{s} declared"),
        (
            "annotation_withdrawn",
            "An annotation was removed, and hosts differ in what they assume without it.",
            "hint{s} withdrawn",
        ),
        ("annotation_changed", "An annotation that describes the behaviour of the tool changed.", "hint{s} changed"),
        ("argument_added", "The prompt has a new argument that was not reviewed.", "prompt argument{s} added"),
        ("argument_removed", "The prompt no longer has this argument.", "prompt argument{s} removed"),
        ("argument_required", "The prompt now requires this argument.", _DETAIL),
        ("argument_optional", "The prompt no longer requires this argument.", _DETAIL),
        ("address_changed", "The address changed.", "address{es} changed"),
        ("icon_changed", "The icon by which a user recognises the item changed.", "icon{s} changed"),
        ("media_type_changed", "The media type of the content changed.", _DETAIL),
        ("member_changed", "Another member of the item changed.", _DETAIL),
        ("capability_added", "The server offers a capability that was not reviewed.", "capabilit{y} added"),
        ("capability_changed", "The server describes its capabilities differently.", "capabilit{y} changed"),
        ("identity_changed", "The name of the server changed.", "server name{s} changed"),
        ("changed", "The item changed in a way that no rule covers.", _DETAIL),
    ),
    info=(
        (
            "item_removed",
            "The server no longer offers the item. Its approval is kept in case it returns.",
            "{item}{s} removed",
        ),
        ("dialect_changed", "The schema names another JSON Schema dialect."),
        ("additional_properties_closed", "Members that the schema does not name are now refused."),
        (
            "additional_properties_unstated",
            "Every input schema lost this member at once, as when a server changes its schema generator.",
        ),
        ("title_restated", "The title changed, but only repeats the name of what it belongs to."),
        ("null_accepted", "Null is accepted in addition, which says the same as leaving the value out."),
        ("result_schema_added", "The item now has a schema for its results, without any text for the model."),
        ("result_changed", "The schema of results changed, without any text for the model."),
        ("framework_note_changed", "A note of the server's framework changed, which the model does not read."),
        ("size_limited", "A maximum size is lower, but the model still chooses the value."),
        ("result_narrowed", "The schema of results accepts fewer values."),
        ("result_promised", "Results now always have this member."),
        ("order_changed", "The same entries are in another order."),
        ("same_meaning", "The notation changed, but the meaning is the same."),
        ("version_changed", "The server states another version.", "other version stated"),
        ("identity_unstated", "The server no longer states its name, which was never verified."),
        ("capability_removed", "The server no longer offers this capability."),
        (
            "notice_changed",
            "The server changed whether it notifies clients when its lists change.",
        ),
        ("content_fact_changed", "The size or the modification date of the content changed."),
    ),
)
"""All kinds of change of a surface. Critical changes are listed one by one; the others are counted by their phrase.

Every kind that needs a review has a phrase. Changes of an ``info`` kind without a phrase have no effect, and lists may
leave them out. ``{s}``, ``{es}`` and ``{y}`` are endings of the plural. ``{text}``, ``{item}``, ``{schema}``,
``{required}`` and ``{detail}`` say what has changed; ``_build_phrase`` in ``summary.py`` fills them.
"""


class Change(Record):
    """One difference between two surfaces."""

    entity: str
    """tool, prompt, resource, resourceTemplate or server."""
    name: str
    """The item's name; empty for the server."""
    field: str
    """The top-level member that changed, or one of ``added``, ``removed``, ``duplicate``, ``undigestable``."""
    path: str
    """JSON Pointer to the changed value inside the item; empty for the whole item."""
    kind: str
    severity: str
    before: Any
    after: Any
    """The value at the path after the change. Both ``before`` and ``after`` are ``ABSENT`` if there is no value."""
    reason: str
    sentence: str = ""
    """The sentence or address that makes the change critical; empty if no single one does."""
    phrase: str = ""
    """The phrase of the kind."""
    topic: str = ""
    """What a person decides about, if that does not follow from the kind and path."""

    def to_json(self) -> dict[str, Any]:
        """Convert the change to a JSON object. An absent ``before`` or ``after`` value has no member in it."""
        sides = {"before": self.before, "after": self.after}
        return {
            "entity": self.entity,
            "name": self.name,
            "field": self.field,
            "path": self.path,
            "kind": self.kind,
            "severity": self.severity,
            "reason": self.reason,
            **({"sentence": self.sentence} if self.sentence else {}),
            **{side: value for side, value in sides.items() if value is not ABSENT},
        }


def parse_change(value: Mapping[str, Any]) -> Change:
    """Build a change of a surface from the JSON object that ``Change.to_json`` gives."""
    known = CHANGE_KINDS.get(value["kind"])
    return Change(**{"before": ABSENT, "after": ABSENT, **value}, phrase=known.phrase if known else _DETAIL)


def sort_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Sort by severity (critical first), then entity, name and path."""
    return tuple(sorted(changes, key=_sort_key))


def blocked_by_default(changes: Iterable[Change]) -> bool:
    """Whether a person must review the changes before the surface may be used."""
    return any(change.severity != INFO for change in changes)


def _sort_key(change: Change) -> tuple[int, str, str, str, str, str]:
    return (
        SEVERITIES.index(change.severity),
        change.entity,
        change.name,
        change.path,
        change.field,
        change.kind,
    )


_MAX_VALUE = 400  # characters that a report shows of a changed value that is not text
_MAX_SINGLE_VALUE = 2000  # characters that a report shows of an added or removed value that is not text


def build_change_row(change: Change, *, whole: bool = False) -> Row:
    """Convert a change to a row of a report. ``whole`` keeps long values complete, so that a person can review them."""
    before, after = _format_value(change.before), _format_value(change.after)
    if not whole and not isinstance(change.before, str) and not isinstance(change.after, str):
        before, after = _shorten(before, after)
    return Row(
        code=change.kind,
        severity=change.severity,
        entity=change.entity,
        name=change.name,
        path=change.path,
        message=change.reason,
        before=before,
        after=after,
        excerpt=change.sentence or None,
    )


def _shorten(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    if max(len(before or ""), len(after or "")) <= _MAX_VALUE:
        return before, after
    from pinwarden.surface.drift.text_diff import omit_common_text, shorten_middle

    if before is not None and after is not None:
        return omit_common_text(before, after, _MAX_VALUE)
    return before and shorten_middle(before, _MAX_SINGLE_VALUE), after and shorten_middle(after, _MAX_SINGLE_VALUE)


def _format_value(value: Any) -> str | None:
    if value is ABSENT:
        return None
    if isinstance(value, str):
        return value
    from json import dumps

    return dumps(value, ensure_ascii=False)
