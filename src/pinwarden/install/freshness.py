"""Freshness by the log: the pointer is logged, it is the newest, and the log is the one that was seen before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.bundle.trust_files import change_trust, load_trust, log_state_path
from pinwarden.bundle.trust_store import EndedKey, TrustedRegistry, TrustStore, apply_key_changes, check_not_revoked
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.install.sources import BundleSource
from pinwarden.lock.lock_store import exclusive
from pinwarden.registry import names
from pinwarden.registry.log_client import (
    FollowedLog,
    FollowOptions,
    check_consistency,
    fetch_event,
    fetch_signed_checkpoint,
    follow_log,
    load_log_state,
    save_log_state,
)
from pinwarden.registry.log_state import LogState
from pinwarden.registry.log_verification import (
    PointerTarget,
    check_head_age,
    check_newest,
    check_not_yanked,
    verify_proof,
)
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.registry.registry_client import RegistryReader
from pinwarden.registry.registry_documents import RegistryIdentity

if TYPE_CHECKING:
    from pinwarden.registry.log_state import LoggedPointer

LOG_SECONDS = 120.0
"""How long another install may take to read a log that is new to it."""


class Fresh(Record):
    """Where the log has a pointer."""

    log_id: str
    index: int
    size: int
    witnesses: int


def check_fresh(  # noqa: PLR0913, PLR0917  what is asked, of whom, and where what was seen is kept
    pointed: PointerTarget, version: str, source: BundleSource, root: TrustedRegistry, trust: Path, now: str
) -> Fresh:
    """Hold a pointer against the log of its registry.

    1. The proof that lies beside the pointer, where the place has one, is fetched first.
    2. The log is followed from where it was last seen, and what was seen is kept.
    3. The registry's word about its head is recent.
    4. The proof holds, its head belongs to the same history, and no newer event of the channel is in the log.
    """
    if source.log is None:
        raise PinwardenError("POINTER_UNLOGGED", f"{source} shows no log, and nobody said where it is")
    shown = source.logged(pointed.tool, pointed.channel)
    if shown is None and source.has_proofs:
        raise PinwardenError("POINTER_UNLOGGED", f"{source} shows no proof that the pointer is in its log")
    followed = follow_root(source.log, root, trust, now)
    _check_key(root, followed.state)
    index = None
    if shown is not None:
        index, proved = verify_proof(pointed, shown.event, shown.proof, followed.state, followed.head)
        check_consistency(source.log, proved, followed.head)
    found = check_newest(pointed, followed.state, index)
    check_not_yanked(pointed, version, followed.state)
    return Fresh(
        log_id=root.log.name,
        index=found,
        size=followed.head.checkpoint.size,
        witnesses=len(followed.head.cosigned),
    )


def _check_key(root: TrustedRegistry, state: LogState) -> None:
    """The key that signed the pointer is the one that the registry still has."""
    if root.key.key != state.key and root.key.key in state.keys:
        seq = next(each.seq for each in state.key_changes if each.old == root.key.key)
        raise PinwardenError(
            "REGISTRY_KEY_ENDED",
            f"entry {seq} of the log ended the key that signed the pointer",
            data={"key_id": root.key.key_id, "ended_by": seq, "present": state.key.did},
        )


def follow_root(log: RegistryReader, root: TrustedRegistry, trust: Path, now: str) -> FollowedLog:
    """The log of a trusted registry up to its head. If it leads to a new key, that one is trusted from now on."""
    followed = _followed(log, root, trust, now)
    if followed.state.key != root.log.key:
        _take_over(root, followed.state, trust, now)
    return followed


def renewed_trust(log: RegistryReader, trusted: TrustStore, trust: Path, now: str) -> TrustStore | None:
    """Whom to trust after the logs of trusted registries were followed to the keys that they have now.

    Only the log that lies at this place is read, and only if it is that of a registry that is trusted; None if it is
    not, or if its key is still the same.
    """
    log_id = Checkpoint.parse(Note.parse(log.get(names.CHECKPOINT)).text).origin
    changed = False
    for root in trusted.registries:
        if root.log.name == log_id:
            counted = replace(root, witnesses=trusted.without_revoked(root.witnesses))
            changed |= follow_root(log, counted, trust, now).state.key != root.log.key
    return load_trust(trust) if changed else None


def _take_over(root: TrustedRegistry, state: LogState, trust: Path, now: str) -> None:
    """Keep what was seen under the new key first: whoever trusts that key must not begin anew."""
    moved = log_state_path(trust, NoteKey(name=root.log.name, key=state.key))
    with exclusive(moved, LOG_SECONDS):
        there = load_log_state(moved)
        if there is None or there.edge.size < state.edge.size:
            save_log_state(moved, state)
    ended = [EndedKey(key_id=each.old.did, seq=each.seq, seen_at=now) for each in state.key_changes]
    change_trust(trust, lambda store: apply_key_changes(store, root.log, ended, state.key))


def _followed(log: RegistryReader, root: TrustedRegistry, trust: Path, now: str) -> FollowedLog:
    """The log up to its head. One install at a time moves what is kept, and only ever forward."""
    path = log_state_path(trust, root.log)
    wanted = FollowOptions(key=root.log.key, witnesses=root.witnesses, quorum=root.witnesses_needed, watch=())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror or err}") from err
    with exclusive(path, LOG_SECONDS):
        known = load_log_state(path) or LogState(log_id=root.log.name, key=root.log.key)
        if known.log_id != root.log.name:
            raise PinwardenError("LOG_STATE_CORRUPT", "the kept state is that of another log")
        followed = follow_log(log, known, wanted)
        if followed.key_changes:  # to a key that this user revoked no log leads
            check_not_revoked(load_trust(trust), *(each.new.did for each in followed.key_changes))
        if followed.state != known:  # most installs see nothing new, and a write waits for the disk
            save_log_state(path, followed.state)
        identity = RegistryIdentity(name=".", log_id=root.log.name, key=followed.state.key)
        issued = fetch_signed_checkpoint(log, identity, followed.head)
        if issued.size > followed.head.checkpoint.size:  # somebody published between the two questions
            followed = follow_log(log, followed.state, wanted)
            save_log_state(path, followed.state)
    if issued.size > followed.head.checkpoint.size:
        raise PinwardenError(
            "LOG_FROZEN",
            f"the registry states a log of {issued.size} events, and shows {followed.head.checkpoint.size}",
        )
    check_head_age(issued.issued_at_utc, now, root.max_age_days)
    return followed


_MOST_REASON = 200


def why_no_pointer(  # noqa: PLR0913, PLR0917  what was asked for, of whom, and where what was seen is kept
    err: PinwardenError, log: RegistryReader, trusted: TrustStore, trust: Path, asked: tuple[str, str], now: str
) -> PinwardenError:
    """A better answer than "there is no pointer", if the log of a trusted registry has one; otherwise the same.

    Only what the log proves is told: a page that says so could be anybody's.
    """
    try:
        followed = _trusted_log(log, trusted, trust, now)
        return err if followed is None else _told(err, log, followed, *asked)
    except PinwardenError as why:
        told = f"{err.message}; why is not known, because its log cannot be followed: {why.message} ({why.code})"
        return PinwardenError(err.code, told, hint=err.hint, data={**err.data, "log": why.code})


def _trusted_log(log: RegistryReader, trusted: TrustStore, trust: Path, now: str) -> FollowedLog | None:
    """The log at this place, if it is that of a registry that is trusted."""
    data = log.find(names.CHECKPOINT)
    if data is None:
        return None
    log_id = Checkpoint.parse(Note.parse(data).text).origin
    root = next((each for each in trusted.registries if each.log.name == log_id), None)
    if root is None:
        return None
    return follow_root(log, replace(root, witnesses=trusted.without_revoked(root.witnesses)), trust, now)


def _told(err: PinwardenError, log: RegistryReader, followed: FollowedLog, tool: str, channel: str) -> PinwardenError:
    gone = followed.state.pointer(tool, channel)
    if gone is None or gone.root_cid is not None:
        return err
    event = fetch_event(log, followed, gone.seq)
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


def yanked(log: RegistryReader, followed: FollowedLog, tool: str, version: str, mark: LoggedPointer) -> PinwardenError:
    """The refusal of a version that was taken back: when, and why, in the words that were logged."""
    event = fetch_event(log, followed, mark.seq)
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
