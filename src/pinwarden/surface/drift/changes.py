"""What a change between two surfaces is, and the table of every kind of change with its severity.

The table is the single source for severities, for the reasons people read and for ``docs/reference/changes.md``. A
kind is stable data that scripts may match on; its reason may be reworded between releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, kind_table

CRITICAL = "critical"
REVIEW = "review"
INFO = "info"
SEVERITIES = (CRITICAL, REVIEW, INFO)
"""From worst to least. ``critical`` looks like an attack; ``review`` is seen differently by model or host, lets more
through, or takes a choice from the model or the user; ``info`` cannot change what a reviewed call does."""


class Absence(Enum):
    """The type of ``ABSENT``, which says that a member is not there: neither null nor empty."""

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
"""The classes of cues, the one that gives a change its kind first."""

CHANGE_KINDS: FindingKinds = kind_table(
    critical=(
        ("new_hidden_characters", "Text now holds characters that a person does not see and a model reads."),
        ("new_terminal_escape", "Text now holds control characters that rewrite what a terminal shows."),
        ("new_homoglyph", "Text now holds letters of another script that look like Latin ones."),
        ("new_concealment", "Text now asks to keep something from the user."),
        ("new_exfiltration", "Text now asks to pass data on to where it did not go before."),
        ("new_agent_instruction", "Text now gives orders to the model."),
        ("new_impersonation", "Text now speaks as if it were the system, the user or another tool."),
        ("new_encoded_payload", "Text now holds encoded content that a reader cannot judge."),
        ("new_oversized_text", "Text is now longer than anybody reads or any check looks at."),
        ("new_secret", "Text now names keys, passwords or files that hold them."),
        ("new_destination", "Text now names an address that the approved text did not."),
        (
            "annotation_toward_harmless",
            "The approved definition stated a hazard and now denies it; hosts skip questions on this hint.",
        ),
        ("renamed", "An approved item vanished and this one, much like it, took its place under a name without a pin."),
        ("duplicate_name", "Another item has the same name, so that a call does not say which one it means."),
        ("look_alike_name", "The name reads like that of another item and is not the same."),
        ("remote_reference", "The schema refers to a text elsewhere, which can change without notice."),
        ("header_exposed", "An argument is copied into an HTTP header, where it is not reviewed as an argument."),
        ("undigestable", "The item has no single meaning, so it can be neither compared nor approved."),
        ("address_moved", "The address now leads to another scheme or host."),
        ("unsafe_address", "The address has a scheme that runs code or reads local files."),
    ),
    review=(
        ("item_added", "It was not there when the server was approved."),
        ("renamed_in_release", "It replaces an approved item under another name in a new release of the server."),
        ("text_changed", "Text that the model or the user reads is different."),
        ("text_added", "The model or the user reads text that was not there."),
        ("text_removed", "Text that was approved is gone."),
        ("schema_added", "A schema was not stated before."),
        ("schema_removed", "The schema that was approved is gone, so nothing is promised any more."),
        ("parameter_added", "A call can carry a value that nobody reviewed, even if it is optional."),
        ("parameter_removed", "A reviewed call that gives this parameter no longer means the same."),
        ("parameter_required", "The model must now give a value that it could keep to itself."),
        ("parameter_optional", "A value that every reviewed call had may now be missing."),
        ("required_changed", "Other parameters must be given than before."),
        ("result_added", "Results carry a member that nobody reviewed."),
        ("result_removed", "Results are no longer promised to have this member."),
        ("promise_dropped", "A member that every result had may now be missing."),
        ("bound_added", "A call may carry fewer values: a limit is stated for the first time."),
        ("bound_tightened", "A call may carry fewer values: a limit is stricter."),
        ("enum_shrunk", "Values that were approved are no longer offered, so the server makes part of the choice."),
        ("type_narrowed", "A call may carry fewer types of values; without null a value must be given."),
        ("schema_tightened", "A part of the schema lets fewer values through."),
        ("alternative_removed", "One form of value that was approved is no longer accepted."),
        ("negation_tightened", "A part under 'not' excludes more values."),
        ("additional_properties_opened", "Members are accepted that the schema does not name."),
        ("bound_removed", "A limit on values is gone."),
        ("bound_loosened", "A limit lets more values through."),
        ("more_demanded", "The model must now give more than before."),
        ("enum_grown", "Values are accepted that were not."),
        ("enum_removed", "Any value is accepted where a list of values was approved."),
        ("constant_changed", "The only accepted value is another one."),
        ("constant_removed", "Any value is accepted where one was approved."),
        ("values_prescribed", "The schema now says what a value has to look like."),
        ("pattern_changed", "Values have to look different; which are let through cannot be compared."),
        ("pattern_removed", "Values are no longer checked for how they look."),
        ("type_grown", "Values of another type are accepted as well."),
        ("type_changed", "Values have another type."),
        ("type_removed", "Values of every type are accepted."),
        ("schema_loosened", "A part of the schema lets more values through."),
        ("subschema_added", "A part of the schema was not there when it was approved."),
        ("subschema_removed", "A part of the schema that limited values is gone."),
        ("alternative_added", "One more form of value is accepted."),
        ("negation_loosened", "A part under 'not' excludes fewer values."),
        ("condition_changed", "The condition that chooses between parts of the schema is different."),
        ("default_changed", "Another value is used when the model gives none."),
        ("examples_changed", "The examples that a model follows are different."),
        ("reference_changed", "Another part of the schema is referred to."),
        ("dialect_unknown", "The schema names a dialect whose rules are not known."),
        ("keyword_changed", "A keyword whose direction is not known is different."),
        ("annotation_declared", "A hint that nobody could rely on before is stated for the first time."),
        ("annotation_withdrawn", "A hint is no longer stated; hosts differ in what they assume then."),
        ("annotation_changed", "The item describes its own behaviour differently."),
        ("argument_added", "The prompt takes an argument that nobody reviewed."),
        ("argument_removed", "The prompt no longer takes this argument."),
        ("argument_required", "The prompt now demands this argument."),
        ("argument_optional", "The prompt no longer demands this argument."),
        ("address_changed", "The address is different."),
        ("icon_changed", "The picture by which a user knows the item is different."),
        ("media_type_changed", "The content is announced as another type."),
        ("member_changed", "Something that the server tells about the item is different."),
        ("capability_added", "The server offers something that nobody reviewed."),
        ("capability_changed", "The server describes what it offers differently."),
        ("identity_changed", "The server calls itself something else."),
        ("changed", "The item is different in a way that no rule names."),
    ),
    info=(
        ("item_removed", "It is no longer offered; its approval stays for when it comes back."),
        ("dialect_changed", "The schema names another known dialect."),
        ("additional_properties_closed", "Members that the schema does not name are refused."),
        (
            "additional_properties_unstated",
            "All closed input schemas of the server lost this member at once, as when their generator changes; "
            "the model is told of no new parameter.",
        ),
        ("size_limited", "A maximum size is lower; the choice of the value stays with the model."),
        ("result_narrowed", "Results are promised to take fewer values."),
        ("result_promised", "Results are promised to have this member."),
        ("order_changed", "The same entries stand in another order."),
        ("same_meaning", "Another way to write the same."),
        ("version_changed", "The server states another version."),
        ("identity_unstated", "The server no longer says what it is called; it is the only one to vouch for that."),
        ("capability_removed", "The server no longer offers this."),
        (
            "notice_changed",
            "Whether the server announces changes; every list is judged when it is read, announced or not.",
        ),
        ("content_fact_changed", "Size or date of the content, which change with every edit of it."),
    ),
)


class Change(Record):
    """One place where two surfaces differ, and what that means."""

    entity: str
    """tool, prompt, resource, resourceTemplate or server."""
    name: str
    """The item's name; empty for the server."""
    field: str
    """The top-level member that changed, or added, removed, duplicate, undigestable."""
    path: str
    """JSON Pointer to the place inside the item; empty for the whole item."""
    kind: str
    severity: str
    before: Any
    after: Any
    """The values at the place; ``ABSENT`` where there is none."""
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
    """Critical first, then by entity, name and path: the same on every machine."""
    return tuple(sorted(changes, key=_order))


def blocked_by_default(changes: Iterable[Change]) -> bool:
    """Whether a person has to look before the changed surface may be used."""
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
