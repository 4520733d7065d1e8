"""`Change`, one difference between two surfaces, and the table of all kinds of change with their severity.

Severities, the reasons in reports and ``docs/reference/changes.md`` come from the table. Kinds are stable, because
scripts match on them; reasons may be reworded between releases. `change_row` converts a change to a row of a report.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Row, build_kind_table

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError

CRITICAL = "critical"
REVIEW = "review"
INFO = "info"
SEVERITIES = (CRITICAL, REVIEW, INFO)
"""From the most to the least severe. ``critical`` looks like an attack. ``review`` changes what a model or host reads,
accepts more values, or takes a choice from the model or the user. ``info`` cannot change what a reviewed call does."""


class Absence(Enum):
    """The type of ``ABSENT``, the marker for a missing member, which is neither null nor empty."""

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
    "encoded_payload",
    "oversized_text",
    "secret",
    "destination",
)
"""The codes of cues, in order of precedence: the first one found gives the change its kind."""

CHANGE_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("new_hidden_characters", "Text now contains characters that a model reads and a person does not see."),
        ("new_terminal_escape", "Text now contains control characters that change what a terminal shows."),
        ("new_homoglyph", "Text now contains letters of another script that look like Latin letters."),
        ("new_concealment", "Text now asks to hide something from the user."),
        ("new_exfiltration", "Text now asks to send data to a new destination."),
        ("new_agent_instruction", "Text now gives instructions to the model."),
        ("new_impersonation", "Text now poses as the system, the user or another tool."),
        ("new_encoded_payload", "Text now contains encoded content that a reader cannot check."),
        ("new_oversized_text", "Text is now too long to read or to check completely."),
        ("new_secret", "Text now names keys, passwords or files that contain them."),
        ("new_destination", "Text now names an address that is not in the approved text."),
        (
            "annotation_toward_harmless",
            "The approved definition stated a hazard and now denies it. Hosts rely on this hint to skip confirmations.",
        ),
        ("renamed", "A very similar item with another name, which has no pin, replaced an approved item."),
        ("duplicate_name", "Another item has the same name, so a call is ambiguous."),
        ("look_alike_name", "The name looks like the name of another item but is different."),
        ("remote_reference", "The schema refers to a remote document, which can change without notice."),
        ("header_exposed", "An argument is also sent as an HTTP header, where it is not reviewed as an argument."),
        ("undigestable", "The item is ambiguous, so it cannot be compared or approved."),
        ("address_moved", "The address now has another scheme or host."),
        ("unsafe_address", "The address has a scheme that runs code or reads local files."),
    ),
    review=(
        ("item_added", "The item did not exist when the server was approved."),
        ("renamed_in_release", "The item replaces an approved item with another name in a new release of the server."),
        ("text_changed", "Text that the model or the user reads changed."),
        ("text_added", "Text that the model or the user reads was added."),
        ("text_removed", "Approved text was removed."),
        ("schema_added", "A schema was added."),
        ("schema_removed", "The approved schema was removed, so nothing limits the values."),
        ("parameter_added", "A call can pass a parameter that was not reviewed, even if it is optional."),
        ("parameter_removed", "A parameter of reviewed calls was removed, so these calls may behave differently."),
        ("parameter_required", "The model must now give a value that it could omit before."),
        ("parameter_optional", "The model can now omit a value that every reviewed call had."),
        ("required_changed", "The list of required parameters changed."),
        ("result_added", "Results have a member that was not reviewed."),
        ("result_removed", "The schema of results no longer has this member."),
        ("promise_dropped", "Results can now lack a member that was required before."),
        ("bound_added", "Fewer values are accepted: a limit was added."),
        ("bound_tightened", "Fewer values are accepted: a limit is stricter."),
        ("enum_shrunk", "Some approved values are no longer offered, so the server makes part of the choice."),
        ("type_narrowed", "Fewer types are accepted. If null was removed, the model must give a value."),
        ("schema_tightened", "A part of the schema accepts fewer values."),
        ("alternative_removed", "One of the approved alternatives is no longer accepted."),
        ("negation_tightened", "A part under 'not' excludes more values."),
        ("additional_properties_opened", "Members that the schema does not name are now accepted."),
        ("bound_removed", "A limit on values was removed."),
        ("bound_loosened", "A limit accepts more values."),
        ("more_demanded", "The model must now give more than before."),
        ("enum_grown", "More values are accepted."),
        ("enum_removed", "Any value is accepted where a list of values was approved."),
        ("constant_changed", "The only accepted value changed."),
        ("constant_removed", "Any value is accepted where only one was approved."),
        ("values_prescribed", "The schema now prescribes values or their format."),
        ("pattern_changed", "The required format of values changed. Which values it accepts cannot be compared."),
        ("pattern_removed", "The format of values is no longer checked."),
        ("type_grown", "Values of more types are accepted."),
        ("type_changed", "The type of values changed."),
        ("type_removed", "Values of every type are accepted."),
        ("schema_loosened", "A part of the schema accepts more values."),
        ("subschema_added", "A part of the schema was added."),
        ("subschema_removed", "A part of the schema that limited values was removed."),
        ("alternative_added", "One more alternative is accepted."),
        ("negation_loosened", "A part under 'not' excludes fewer values."),
        ("condition_changed", "The condition that chooses between parts of the schema changed."),
        ("default_changed", "The value that is used if the model gives none changed."),
        ("examples_changed", "The examples that a model follows changed."),
        ("reference_changed", "The schema refers to another part of itself."),
        ("dialect_unknown", "The schema names an unknown dialect."),
        ("keyword_changed", "A keyword changed, and its effect on accepted values is unknown."),
        ("annotation_declared", "A hint was added that hosts may now rely on."),
        ("annotation_withdrawn", "A hint was removed. Hosts differ in what they assume without it."),
        ("annotation_changed", "The item describes its own behaviour differently."),
        ("argument_added", "The prompt has a new argument that was not reviewed."),
        ("argument_removed", "The prompt no longer has this argument."),
        ("argument_required", "The prompt now requires this argument."),
        ("argument_optional", "The prompt no longer requires this argument."),
        ("address_changed", "The address changed."),
        ("icon_changed", "The icon by which a user recognises the item changed."),
        ("media_type_changed", "The media type of the content changed."),
        ("member_changed", "Another member of the item changed."),
        ("capability_added", "The server offers a capability that was not reviewed."),
        ("capability_changed", "The server describes its capabilities differently."),
        ("identity_changed", "The name of the server changed."),
        ("changed", "The item changed in a way that no rule covers."),
    ),
    info=(
        ("item_removed", "The server no longer offers the item. Its approval is kept in case it returns."),
        ("dialect_changed", "The schema names another known dialect."),
        ("additional_properties_closed", "Members that the schema does not name are now refused."),
        (
            "additional_properties_unstated",
            "All closed input schemas of the server lost this member together, as with a new schema generator. "
            "The model sees no new parameter.",
        ),
        ("size_limited", "A maximum size is lower. The model still chooses the value."),
        ("result_narrowed", "The schema of results accepts fewer values."),
        ("result_promised", "Results now always have this member."),
        ("order_changed", "The same entries are in another order."),
        ("same_meaning", "The notation changed, not the meaning."),
        ("version_changed", "The server states another version."),
        ("identity_unstated", "The server no longer states its name, which was never verified."),
        ("capability_removed", "The server no longer offers this capability."),
        (
            "notice_changed",
            "The server changed whether it announces changed lists. Every list is checked when it is read.",
        ),
        ("content_fact_changed", "The size or date of the content changed, as with every edit."),
    ),
)


class Change(Record):
    """One difference between two surfaces."""

    entity: str
    """tool, prompt, resource, resourceTemplate or server."""
    name: str
    """The item's name; empty for the server."""
    field: str
    """The top-level member that changed, or added, removed, duplicate, undigestable."""
    path: str
    """JSON Pointer to the changed value inside the item; empty for the whole item."""
    kind: str
    severity: str
    before: Any
    after: Any
    """The values at the path; ``ABSENT`` if there is none."""
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The change as a JSON object; a side that is absent has no member."""
        sides = {"before": self.before, "after": self.after}
        return {
            "entity": self.entity,
            "name": self.name,
            "field": self.field,
            "path": self.path,
            "kind": self.kind,
            "severity": self.severity,
            "reason": self.reason,
            **{side: value for side, value in sides.items() if value is not ABSENT},
        }


def sort_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Sort by severity (critical first), then entity, name and path."""
    return tuple(sorted(changes, key=_order))


def blocked_by_default(changes: Iterable[Change]) -> bool:
    """Whether the changes must be reviewed before the surface may be used."""
    return any(change.severity != INFO for change in changes)


def _order(change: Change) -> tuple[int, str, str, str, str, str]:
    return (
        SEVERITIES.index(change.severity),
        change.entity,
        change.name,
        change.path,
        change.field,
        change.kind,
    )


_MAX_VALUE = 400  # characters of a value that is not text
_MAX_SINGLE_VALUE = 2000  # characters of a value on one side only, such as a server that is not approved


def change_row(change: Change, *, whole: bool = False) -> Row:
    """A change as a row of a report. ``whole`` keeps long values complete, for approvals."""
    before, after = _text_of(change.before), _text_of(change.after)
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
    )


def _shorten(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    if max(len(before or ""), len(after or "")) <= _MAX_VALUE:
        return before, after
    from pinwarden.surface.drift.text_diff import omit_common_text, shorten_middle

    if before is not None and after is not None:
        return omit_common_text(before, after, _MAX_VALUE)
    return before and shorten_middle(before, _MAX_SINGLE_VALUE), after and shorten_middle(after, _MAX_SINGLE_VALUE)


def _text_of(value: Any) -> str | None:
    if value is ABSENT:
        return None
    if isinstance(value, str):
        return value
    from json import dumps

    return dumps(value, ensure_ascii=False)


def stderr_tail(err: PinwardenError) -> str | None:
    """The end of the stderr of a server whose probe failed."""
    stderr = err.data.get("stderr")
    return stderr if isinstance(stderr, str) and stderr else None
