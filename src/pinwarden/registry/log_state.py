"""A follower's saved state of a registry's log: how far it was read, and the latest event of every channel."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import encode_json_file
from pinwarden.core.tlog import Frontier

FORMAT = "pinwarden-log-state/1"
LOG_STATE_LIMITS = Limits(max_bytes=256 * 1024 * 1024, max_depth=10)


class LoggedPointer(Record):
    """The latest event of a tool's channel."""

    seq: int
    root_cid: str | None
    """None if the pointer was removed."""
    descriptor_cid: str | None
    reason: str | None = None
    """The reason; stored only for yanked versions."""


class LoggedKeyChange(Record):
    """A key rotation and the index of its entry."""

    seq: int
    old: PublicKey
    new: PublicKey


class LogState(Record):
    """How far a log was read. All entries up to there were verified against the root of ``edge``."""

    log_id: str
    key: PublicKey
    """The key of the head and of later entries."""
    key_changes: tuple[LoggedKeyChange, ...] = ()
    """The rotations that led to ``key``."""
    edge: Frontier = field(default_factory=Frontier)
    checkpoint: str = ""
    """The last verified checkpoint note, kept as evidence."""
    pointers: Mapping[tuple[str, str], LoggedPointer] = field(default_factory=dict, repr=False)
    """By tool and channel."""

    def pointer(self, tool: str, channel: str) -> LoggedPointer | None:
        """The latest event of a channel; None if there is none."""
        return self.pointers.get((tool, channel))

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        """All keys of the log, the current one last."""
        return (*(each.old for each in self.key_changes), self.key)

    def key_for(self, size: int) -> PublicKey:
        """The key that signs a head of ``size`` entries and the next entry."""
        return next((each.old for each in self.key_changes if size <= each.seq), self.key)


def log_state_bytes(state: LogState) -> bytes:
    """The file's bytes, including a digest that detects edits."""
    pointers: dict[str, dict[str, Any]] = {}
    for (tool, channel), each in sorted(state.pointers.items()):
        row = {"seq": each.seq, "root_cid": each.root_cid, "descriptor_cid": each.descriptor_cid}
        if each.reason is not None:
            row["reason"] = each.reason
        pointers.setdefault(tool, {})[channel] = row
    document = {
        "format": FORMAT,
        "log_id": state.log_id,
        "key_id": state.key.did,
        "size": state.edge.size,
        "edge": b64encode(bytes(state.edge)).decode(),
        "checkpoint": state.checkpoint,
        "pointers": pointers,
        "key_changes": [
            {"seq": each.seq, "old_key_id": each.old.did, "new_key_id": each.new.did} for each in state.key_changes
        ],
    }
    return encode_json_file({**document, "integrity": str(Digest.of_bytes(encode_json_file(document)))})


def parse_log_state(data: bytes) -> LogState:
    """Parse the file. Raises if it is damaged: starting over would lose the proof that the log was not rewritten."""
    try:
        document = strict_json.parse_json(data, LOG_STATE_LIMITS)
    except PinwardenError as err:
        _corrupt(err.message)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _corrupt(f"its format is not {FORMAT}")
    content = {name: value for name, value in document.items() if name != "integrity"}
    if document.get("integrity") != str(Digest.of_bytes(encode_json_file(content))):
        _corrupt("its integrity digest does not match its content")
    try:
        pointers = {
            (tool, channel): LoggedPointer(**row)
            for tool, channels in content["pointers"].items()
            for channel, row in channels.items()
        }
        return LogState(
            log_id=content["log_id"],
            key=PublicKey.from_did(content["key_id"]),
            key_changes=tuple(_key_change(each) for each in content.get("key_changes", [])),
            edge=Frontier.from_bytes(content["size"], b64decode(content["edge"], validate=True)),
            checkpoint=content["checkpoint"],
            pointers=pointers,
        )
    except (KeyError, TypeError, AttributeError, BinasciiError, PinwardenError) as err:
        raise PinwardenError("LOG_STATE_CORRUPT", "the saved log state is damaged") from err


def _key_change(row: dict[str, Any]) -> LoggedKeyChange:
    return LoggedKeyChange(
        seq=row["seq"], old=PublicKey.from_did(row["old_key_id"]), new=PublicKey.from_did(row["new_key_id"])
    )


def _corrupt(why: str) -> NoReturn:
    raise PinwardenError("LOG_STATE_CORRUPT", f"the saved log state is damaged: {why}")
