"""The entries of the log, as pages and feeds show them."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.bundle.log_documents import KEY_CHANGE_SCHEMA, LOG_EVENT_SCHEMA, log_event_from_json
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.registry import operator_documents
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.registry.operator_documents import OperatorAction
from pinwarden.registry.store import publications
from pinwarden.system.database import Transaction

PUBLISHED = "published"
MOVED = "channel moved"
YANKED = "yanked"
REINSTATED = "yank reversed"
POINTER_REMOVED = "pointer removed"
KEY_CHANGED = "registry key changed"
OTHER = "other entry"
_OPERATOR_ACTIONS = {
    operator_documents.TAKEDOWN: "taken down by the operator",
    operator_documents.REINSTATE: "takedown reversed",
    operator_documents.TRANSFER: "namespace given to another key",
    operator_documents.RECOVERY_START: "recovery of the namespace announced",
    operator_documents.RECOVERY_COMPLETE: "namespace recovered for another key",
    operator_documents.RECOVERY_OBJECTION: "owner objected to the recovery",
    operator_documents.RECOVERY_CANCEL: "recovery cancelled",
    operator_documents.REQUIRE: "required attestations changed",
}
_LEVELS = {
    PUBLISHED: "approved",
    YANKED: "critical",
    KEY_CHANGED: "review",
    POINTER_REMOVED: "review",
    **dict.fromkeys(_OPERATOR_ACTIONS.values(), "review"),
    _OPERATOR_ACTIONS[operator_documents.TAKEDOWN]: "critical",
}


class LoggedChange(Record):
    """One entry of the log."""

    seq: int
    action: str
    """What happened, in words."""
    tool: str = ""
    version: str | None = None
    """The version that the entry is about; None if it is about none, or about one that is not published."""
    channel: str = ""
    namespace: str = ""
    """The namespace, or the name of a bundle without versions, that an action of the operator is about."""
    reason: str = ""
    moment: str = ""

    @property
    def level(self) -> str:
        """How the action is shown."""
        return _LEVELS.get(self.action, "info")


def describe_entries(transaction: Transaction, entries: Iterable[bytes]) -> list[LoggedChange]:
    """Describe entries of the log."""
    return [describe_entry(transaction, entry) for entry in entries]


def describe_entry(transaction: Transaction, entry: bytes) -> LoggedChange:
    """Describe one entry of the log. Entries of unknown kinds have only their index, time and reason."""
    document = strict_json.parse_json(entry)
    if type(document) is not dict or type(document.get("seq")) is not int:
        raise PinwardenError("DATABASE_CORRUPT", "an entry of the log is not a document")
    if document.get("schema_version") == operator_documents.ACTION_SCHEMA:
        return _describe_action(transaction, operator_documents.action_from_entry(document))
    if document.get("schema_version") != LOG_EVENT_SCHEMA:
        reason, moment = document.get("reason"), document.get("issued_at_utc")
        return LoggedChange(
            seq=document["seq"],
            action=KEY_CHANGED if document.get("schema_version") == KEY_CHANGE_SCHEMA else OTHER,
            reason=reason if isinstance(reason, str) else "",
            moment=moment if isinstance(moment, str) else "",
        )
    event = log_event_from_json(document)
    version, action = None, MOVED
    if event.channel.startswith(YANKED_PREFIX):
        version = event.channel.removeprefix(YANKED_PREFIX)
        action = YANKED if event.new_root_cid else REINSTATED
    elif event.new_root_cid is None:
        action = POINTER_REMOVED
    else:
        version = publications.find_content(transaction, event.tool, event.new_root_cid)
        action = PUBLISHED if event.reason == "publish" else MOVED
    return LoggedChange(
        seq=event.seq,
        action=action,
        tool=event.tool,
        version=version,
        channel="" if event.channel.startswith(YANKED_PREFIX) else event.channel,
        reason="" if event.reason in ("publish", "point", "yank", "unyank") else event.reason,
        moment=event.issued_at_utc,
    )


def _describe_action(transaction: Transaction, action: OperatorAction) -> LoggedChange:
    """Describe an action of the operator. Its name is that of a bundle or of a namespace."""
    is_bundle = bool(publications.list_releases(transaction, action.name))
    published = bool(action.version) and publications.find_version(transaction, action.name, action.version) is not None
    return LoggedChange(
        seq=action.seq,
        action=_OPERATOR_ACTIONS[action.action],
        tool=action.name if is_bundle else "",
        version=action.version if published else None,
        channel=action.channel,
        namespace="" if is_bundle else action.name,
        reason=action.reason,
        moment=action.issued_at_utc,
    )
