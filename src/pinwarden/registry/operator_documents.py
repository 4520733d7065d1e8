"""The log entries in which the operator of a registry records what it did to a bundle or a namespace.

The registry signs each entry. A follower of the log keeps the latest action about each subject, and refuses a sequence
that no honest operator writes, for example a recovery that was completed before its waiting period had passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pinwarden.bundle.document import DocumentReader, add_signature, read_signatures
from pinwarden.bundle.log_documents import Constraints, encode_leaf
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, Signer, is_document_signature_valid
from pinwarden.core.record import Record, field
from pinwarden.core.text import parse_timestamp

ACTION_SCHEMA = "pinwarden.registry.operator-action.v1"
ACTION_SIGNED_FIELDS = (
    *("/schema_version", "/log_id", "/seq", "/action", "/name", "/version", "/channel", "/details", "/reason"),
    *("/issued_at_utc", "/issuer_key_id"),
)
TAKEDOWN, REINSTATE = "takedown", "reinstate"
TRANSFER = "namespace-transfer"
RECOVERY_START, RECOVERY_COMPLETE = "recovery-start", "recovery-complete"
RECOVERY_OBJECTION, RECOVERY_CANCEL = "recovery-objection", "recovery-cancel"
REQUIRE = "require"
_TOPICS = {
    TAKEDOWN: "availability",
    REINSTATE: "availability",
    TRANSFER: "ownership",
    RECOVERY_START: "ownership",
    RECOVERY_COMPLETE: "ownership",
    RECOVERY_OBJECTION: "ownership",
    RECOVERY_CANCEL: "ownership",
    REQUIRE: "requirements",
}
ACTIONS = tuple(_TOPICS)
_PREDECESSORS = {
    REINSTATE: TAKEDOWN,
    RECOVERY_COMPLETE: RECOVERY_START,
    RECOVERY_OBJECTION: RECOVERY_START,
    RECOVERY_CANCEL: RECOVERY_START,
}
_MARK = b'"schema_version":"' + ACTION_SCHEMA.encode() + b'"'
MAX_REASON = 500
_SHORTEST_WAIT = timedelta(hours=23)  # a day, less the time between two readings of the clock
ActionKey = tuple[str, str, str, str]


class OperatorAction(Record):
    """One action of the operator, about a bundle, a version, a channel or a namespace."""

    log_id: str
    seq: int
    """The index of the entry."""
    action: str
    name: str
    """A bundle or a namespace."""
    version: str = ""
    """The version; empty if the action is about all versions."""
    channel: str = ""
    """The channel; empty if the action is about all channels."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Members that depend on the action, such as the new owner of a namespace."""
    reason: str
    issued_at_utc: str

    @property
    def key(self) -> ActionKey:
        """The subject: a later action with this key replaces this one."""
        return _TOPICS[self.action], self.name, self.version, self.channel

    @property
    def subject(self) -> str:
        """The subject for people."""
        version = f" {self.version}" if self.version else ""
        return f"{self.name}{version}{f'@{self.channel}' if self.channel else ''}"


def action_to_json(action: OperatorAction) -> dict[str, Any]:
    """Return an action as JSON, without the members that are about the log."""
    return {
        "seq": action.seq,
        "action": action.action,
        "name": action.name,
        "version": action.version,
        "channel": action.channel,
        "details": dict(action.details),
        "reason": action.reason,
        "issued_at_utc": action.issued_at_utc,
    }


def action_from_json(value: Any, log_id: str) -> OperatorAction:
    """Build an action from the value that `action_to_json` returned."""
    reader = DocumentReader(value, "action")
    return OperatorAction(
        log_id=log_id,
        seq=reader.integer("seq"),
        action=reader.one_of("action", ACTIONS),
        name=reader.text("name"),
        version=reader.string("version"),
        channel=reader.string("channel"),
        details=reader.object("details").value,
        reason=reader.text("reason"),
        issued_at_utc=reader.timestamp("issued_at_utc"),
    )


def sign_action(action: OperatorAction, signer: Signer) -> bytes:
    """Return the log entry of an action, signed by the registry."""
    value = {
        "schema_version": ACTION_SCHEMA,
        "log_id": action.log_id,
        **action_to_json(action),
        "issuer_key_id": signer.public_key.did,
    }
    return encode_leaf(add_signature(value, ACTION_SIGNED_FIELDS, signer))


def is_action_entry(entry: bytes) -> bool:
    """Whether a log entry claims to be an action of the operator. `verify_action` decides."""
    return _MARK in entry


def verify_action(entry: bytes, log_id: str, key: PublicKey, index: int) -> OperatorAction:
    """Verify the canonical form, log, index and signature of an entry. ``key`` is the registry's key at this index."""
    document = strict_json.parse_json(entry)
    reader = DocumentReader.for_schema(document, ACTION_SCHEMA)
    if encode_leaf(document) != entry:
        reader.fail("schema_version", "is not in its canonical form")
    if reader.text("log_id") != log_id or reader.integer("seq") != index:
        reader.fail("seq", "belongs to another log or index")
    signatures = read_signatures(reader)
    if len(signatures) != 1 or signatures[0].signed_fields != ACTION_SIGNED_FIELDS:
        reader.fail("signatures", "must be one signature over all members")
    if reader.text("issuer_key_id") != key.did or not is_document_signature_valid(
        document, document["signatures"][0], [key]
    ):
        reader.fail("signatures", "are not by the registry")
    return action_from_json({name: reader.value.get(name) for name in _ACTION_MEMBERS}, log_id)


def action_from_entry(document: Mapping[str, Any]) -> OperatorAction:
    """Read an action from an entry of a log that is known to be the registry's own, without verifying it again."""
    return action_from_json({name: document.get(name) for name in _ACTION_MEMBERS}, str(document.get("log_id")))


_ACTION_MEMBERS = ("seq", "action", "name", "version", "channel", "details", "reason", "issued_at_utc")


def check_sequence(before: OperatorAction | None, action: OperatorAction) -> None:
    """Raise unless the action may follow the previous one about its subject."""
    needed = _PREDECESSORS.get(action.action)
    if needed is not None and (before is None or before.action != needed):
        raise PinwardenError("DOCUMENT_INVALID", f"{action.action} of {action.subject} does not follow a {needed}")
    if action.action == RECOVERY_START:
        due, announced = parse_timestamp(str(action.details.get("due_at_utc"))), parse_timestamp(action.issued_at_utc)
        if due is None or announced is None or due - announced < _SHORTEST_WAIT:
            raise PinwardenError("DOCUMENT_INVALID", f"the recovery of {action.name} has no waiting period of a day")
    if action.action == RECOVERY_COMPLETE and before is not None:
        due, completed = parse_timestamp(str(before.details.get("due_at_utc"))), parse_timestamp(action.issued_at_utc)
        if due is None or completed is None or completed < due:
            raise PinwardenError("DOCUMENT_INVALID", f"the recovery of {action.name} was completed before it was due")
        if action.details.get("new_key_id") != before.details.get("new_key_id"):
            raise PinwardenError("DOCUMENT_INVALID", f"the recovery of {action.name} was announced for another key")


def find_takedown(actions: Mapping[ActionKey, OperatorAction], tool: str, version: str) -> OperatorAction | None:
    """Return the action that took down a version or its whole bundle; None if neither was taken down."""
    for key in (("availability", tool, version, ""), ("availability", tool, "", "")):
        action = actions.get(key)
        if action is not None and action.action == TAKEDOWN:
            return action
    return None


def find_ownership_change(actions: Mapping[ActionKey, OperatorAction], tool: str) -> OperatorAction | None:
    """Return the latest action about the owner of a bundle's namespace, or of a namespace around it."""
    parts = tool.split(".")
    found = (actions.get(("ownership", ".".join(parts[:count]), "", "")) for count in range(1, len(parts) + 1))
    return max((action for action in found if action is not None), key=lambda action: action.seq, default=None)


def describe_takedown(action: OperatorAction) -> str:
    """Say that the operator took the subject down, when and why."""
    return (
        f"{action.subject} was taken down by the registry's operator at {action.issued_at_utc}: "
        f"{action.reason} (event {action.seq})"
    )


# What pointers require


def constraints_to_json(constraints: Constraints) -> dict[str, Any]:
    """Return what a registry requires of attestations as JSON, with all members."""
    return {
        "min_attestations": constraints.min_attestations,
        "require_signers": list(constraints.require_signers),
        "require_verifier_attestation": constraints.require_verifier_attestation,
    }


def constraints_from_json(value: Any) -> Constraints:
    """Parse requirements."""
    reader = DocumentReader(value, "requirements")
    return Constraints(
        min_attestations=reader.integer("min_attestations", minimum=1),
        require_signers=reader.strings("require_signers", default=[]),
        require_verifier_attestation=reader.boolean("require_verifier_attestation", default=False),
    )


def check_reason(reason: str) -> str:
    """Return a reason that can be recorded in the log. Otherwise raise."""
    if not reason.strip() or len(reason) > MAX_REASON or "\0" in reason:
        raise PinwardenError("USAGE", f"a reason must be text of at most {MAX_REASON} characters")
    return reason
