"""Whether a pointer is the newest word of its registry, by the registry's log.

The log was followed to its signed head (``registry/log_following.py``), so every event is known: a pointer that is not
the newest event of its channel is an old one played again, and one without an event was not shown to others.
"""

from __future__ import annotations

from datetime import timedelta

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.signed_note import Checkpoint, NoteKey, TlogProof
from pinwarden.core.timestamps import parse_timestamp
from pinwarden.registry.log_following import Head, event_in, verified_head
from pinwarden.registry.log_state import LogState
from pinwarden.registry.names import YANKED_PREFIX

_SKEW = timedelta(minutes=10)
"""Clocks of honest machines are apart by less."""


class Pointed(Record):
    """What a signed pointer says."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str


def check_newest(pointed: Pointed, state: LogState, index: int | None) -> int:
    """The index of the pointer's event, if it is the newest of its channel. ``index`` is where its proof found it."""
    newest = state.pointer(pointed.tool, pointed.channel)
    if newest is None:
        raise PinwardenError("POINTER_UNLOGGED", f"the log has no event for {pointed.tool} on {pointed.channel}")
    if (newest.root_cid, newest.descriptor_cid) == (pointed.root_cid, pointed.descriptor_cid):
        return newest.seq
    data = {"pointed": pointed.root_cid, "newest": newest.root_cid, "index": newest.seq}
    if index is not None and index < newest.seq:
        told = "took the pointer away" if newest.root_cid is None else f"points to {newest.root_cid}"
        raise PinwardenError(
            "POINTER_STALE",
            f"the pointer is event {index} of the log, and event {newest.seq} {told}",
            data={**data, "given": index},
        )
    raise PinwardenError(
        "POINTER_UNLOGGED", f"the newest event for {pointed.tool} on {pointed.channel} is of another bundle", data=data
    )


def proven_index(pointed: Pointed, event: bytes, proof: bytes, state: LogState, head: Head) -> tuple[int, Head]:
    """Where in the log a proof file finds the pointer's event, and the head that it was proved under.

    The log is read after the proof, so its head cannot be behind the proof's.
    """
    found = TlogProof.parse(proof)
    size = Checkpoint.parse(found.checkpoint.text).size
    proved = verified_head(bytes(found.checkpoint), state.log_id, NoteKey(name=state.log_id, key=state.key_for(size)))
    found.proves(event)
    told = event_in(event, state.log_id, state.key_for(found.index), found.index)
    said = (told.tool, told.channel, told.new_root_cid, told.descriptor_cid)
    if said != (pointed.tool, pointed.channel, pointed.root_cid, pointed.descriptor_cid):
        raise PinwardenError("POINTER_UNLOGGED", "the event that is shown with the pointer is about another bundle")
    if proved.checkpoint.size > head.checkpoint.size:
        raise PinwardenError(
            "LOG_ROLLBACK",
            f"the proof is of a log of {proved.checkpoint.size} events, and it is shown with {head.checkpoint.size}",
            data={"seen": bytes(proved.note).decode(), "shown": bytes(head.note).decode()},
        )
    if proved.checkpoint.size == head.checkpoint.size and proved.checkpoint.root != head.checkpoint.root:
        raise PinwardenError(
            "LOG_PROOF_INVALID",
            "the proof is of another history of the log",
            data={"seen": bytes(proved.note).decode(), "shown": bytes(head.note).decode()},
        )
    return found.index, proved


def check_not_yanked(pointed: Pointed, version: str, state: LogState) -> None:
    """A version that was taken back is not installed, whatever a pointer says."""
    mark = state.pointer(pointed.tool, f"{YANKED_PREFIX}{version}")
    if mark is not None and mark.root_cid is not None:
        raise PinwardenError(
            "VERSION_YANKED", f"{pointed.tool} {version} was taken back by its publisher (event {mark.seq})"
        )


def check_age(issued_at: str, now: str, max_age_days: int) -> None:
    """The registry's word about its head is recent: otherwise everything since may be hidden."""
    issued, present = parse_timestamp(issued_at), parse_timestamp(now)
    if issued is None or present is None or issued > present + _SKEW:
        raise PinwardenError(
            "LOG_FROZEN",
            f"the head of the log was issued at {issued_at[:40]}, which is in the future here ({now[:40]})",
            hint="Check this machine's clock; then try again.",
        )
    if present - issued > timedelta(days=max_age_days):
        raise PinwardenError(
            "LOG_FROZEN",
            f"the registry's last word about its log is of {issued_at}, more than {max_age_days} days ago",
            data={"issued_at_utc": issued_at, "now_utc": now, "max_age_days": max_age_days},
        )
