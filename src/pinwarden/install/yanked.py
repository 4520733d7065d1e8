"""Why a registry points to nothing: what its log says, verifiably, of a version that was taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.note import Checkpoint, Note
from pinwarden.core.record import replace
from pinwarden.install.freshness import follow_root
from pinwarden.registry import layout
from pinwarden.registry.log_client import Followed, logged_event
from pinwarden.registry.names import YANKED_PREFIX

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.bundle.trust_store import TrustStore
    from pinwarden.registry.files import RegistryFiles
    from pinwarden.registry.log_state import LoggedPointer

_MOST_REASON = 200


def why_no_pointer(  # noqa: PLR0913, PLR0917  what was asked for, of whom, and where what was seen is kept
    err: PinwardenError, log: RegistryFiles, trusted: TrustStore, trust: Path, asked: tuple[str, str], now: str
) -> PinwardenError:
    """A better answer than "there is no pointer", if the log of a trusted registry has one; otherwise the same.

    Only what the log proves is told: a page that says so could be anybody's.
    """
    try:
        followed = _followed(log, trusted, trust, now)
        return err if followed is None else _told(err, log, followed, *asked)
    except PinwardenError as why:
        told = f"{err.message}; why is not known, because its log cannot be followed: {why.message} ({why.code})"
        return PinwardenError(err.code, told, hint=err.hint, data={**err.data, "log": why.code})


def _followed(log: RegistryFiles, trusted: TrustStore, trust: Path, now: str) -> Followed | None:
    """The log at this place, if it is that of a registry that is trusted."""
    data = log.find(layout.CHECKPOINT)
    if data is None:
        return None
    log_id = Checkpoint.parse(Note.parse(data).text).origin
    root = next((each for each in trusted.roots if each.log.name == log_id), None)
    if root is None:
        return None
    return follow_root(log, replace(root, witnesses=trusted.counted(root.witnesses)), trust, now)


def _told(err: PinwardenError, log: RegistryFiles, followed: Followed, tool: str, channel: str) -> PinwardenError:
    gone = followed.state.pointer(tool, channel)
    if gone is None or gone.root_cid is not None:
        return err
    event = logged_event(log, followed, gone.seq)
    for (name, mark), pointer in followed.state.pointers.items():
        version = mark.removeprefix(YANKED_PREFIX)
        if (
            name == tool
            and version != mark
            and pointer.root_cid is not None
            and pointer.root_cid == event.prev_root_cid
        ):
            return yanked(log, followed, tool, version, pointer)
    told = f"{err.message}: event {gone.seq} of its log took that pointer away, {event.issued_at_utc}"
    return PinwardenError(err.code, f"{told}: {event.reason[:_MOST_REASON]}", hint=err.hint, data=err.data)


def yanked(log: RegistryFiles, followed: Followed, tool: str, version: str, mark: LoggedPointer) -> PinwardenError:
    """The refusal of a version that was taken back: when, and why, in the words that were logged."""
    event = logged_event(log, followed, mark.seq)
    reason = event.reason[:_MOST_REASON]
    return PinwardenError(
        "VERSION_YANKED",
        f"{tool} {version} was taken back by its publisher at {event.issued_at_utc}: {reason} (event {mark.seq})",
        data={
            "tool": tool,
            "version": version,
            "reason": reason,
            "yanked_at_utc": event.issued_at_utc,
            "index": mark.seq,
        },
    )
