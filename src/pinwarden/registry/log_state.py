"""What somebody who follows a registry's log keeps: how far they have read, and where every pointer stands."""

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
LIMITS = Limits(max_bytes=256 * 1024 * 1024, max_depth=10)


class LoggedPointer(Record):
    """Where a channel of a tool stands in the log."""

    seq: int
    root_cid: str | None
    """None if the pointer was taken away."""
    descriptor_cid: str | None
    reason: str | None = None
    """Why, where it is kept: of versions that were yanked."""


class LoggedKeyChange(Record):
    """Which entry of the log ended a key, and which key came after it."""

    seq: int
    old: PublicKey
    new: PublicKey


class LogState(Record):
    """How far a log was read. All of it up to there was seen, and hashes to the root that the edge gives."""

    log_id: str
    key: PublicKey
    """The one that signs the head and the entries that are yet to come."""
    key_changes: tuple[LoggedKeyChange, ...] = ()
    """How it came to be the key, if there were others before."""
    edge: Frontier = field(default_factory=Frontier)
    checkpoint: str = ""
    """The signed note that was last believed, as evidence."""
    pointers: Mapping[tuple[str, str], LoggedPointer] = field(default_factory=dict, repr=False)
    """By tool and channel."""

    def pointer(self, tool: str, channel: str) -> LoggedPointer | None:
        """The newest event of a channel; None if there was never one."""
        return self.pointers.get((tool, channel))

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        """Every key that the log ever had, the present one last."""
        return (*(each.old for each in self.key_changes), self.key)

    def key_for(self, size: int) -> PublicKey:
        """The key that signs a head of so many entries, and the entry after it."""
        return next((each.old for each in self.key_changes if size <= each.seq), self.key)


def to_bytes(state: LogState) -> bytes:
    """The state as a file, with a digest over it: a state that somebody edited is not believed."""
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


def parse(data: bytes) -> LogState:
    """Read a state. One that is damaged is an error: to begin anew would be to forget what was seen."""
    try:
        document = strict_json.parse_json(data, LIMITS)
    except PinwardenError as err:
        _corrupt(err.message)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _corrupt(f"it is not of the format {FORMAT}")
    content = {name: value for name, value in document.items() if name != "integrity"}
    if document.get("integrity") != str(Digest.of_bytes(encode_json_file(content))):
        _corrupt("its digest does not belong to its content")
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
        raise PinwardenError("LOG_STATE_CORRUPT", "the kept state of the log is damaged") from err


def _key_change(row: dict[str, Any]) -> LoggedKeyChange:
    return LoggedKeyChange(
        seq=row["seq"], old=PublicKey.from_did(row["old_key_id"]), new=PublicKey.from_did(row["new_key_id"])
    )


def _corrupt(why: str) -> NoReturn:
    raise PinwardenError("LOG_STATE_CORRUPT", f"the kept state of the log is damaged: {why}")
