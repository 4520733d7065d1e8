"""Check a pointer against its registry's transparency log: logged, newest, and in a consistent log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.bundle.trust import EndedKey, TrustedRegistry, TrustStore, apply_key_changes, check_not_revoked
from pinwarden.bundle.trust_files import change_trust, load_trust, log_state_path
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
from pinwarden.registry.log_verification import (
    LogState,
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
    from pinwarden.registry.log_verification import LoggedPointer

LOG_SECONDS = 120.0
"""How long to wait for another install that reads the same log."""


class LogPosition(Record):
    """Where a pointer is in the log."""

    log_id: str
    index: int
    size: int
    witnesses: int


def check_logged(  # noqa: PLR0913, PLR0917  what is asked, of whom, and where what was seen is kept
    pointed: PointerTarget, version: str, source: BundleSource, root: TrustedRegistry, trust: Path, now: str
) -> LogPosition:
    """Check a pointer against the log of its registry.

    1. Fetch the inclusion proof beside the pointer, if the source has one.
    2. Follow the log from where this machine last saw it, and save the new state.
    3. Check that the registry signed the current checkpoint recently.
    4. Check the proof, that its checkpoint is consistent with the log, and that no later event changes the channel.
    """
    if source.log is None:
        raise PinwardenError("POINTER_UNLOGGED", f"{source} has no log, and --log does not name one")
    shown = source.logged(pointed.tool, pointed.channel)
    if shown is None and source.has_proofs:
        raise PinwardenError("POINTER_UNLOGGED", f"{source} has no proof that the pointer is in its log")
    followed = follow_registry_log(source.log, root, trust, now)
    _check_key(root, followed.state)
    index = None
    if shown is not None:
        index, proved = verify_proof(pointed, shown.event, shown.proof, followed.state, followed.head)
        check_consistency(source.log, proved, followed.head)
    newest = check_newest(pointed, followed.state, index)
    check_not_yanked(pointed, version, followed.state)
    return LogPosition(
        log_id=root.log.name,
        index=newest,
        size=followed.head.checkpoint.size,
        witnesses=len(followed.head.cosigned),
    )


def _check_key(root: TrustedRegistry, state: LogState) -> None:
    """The key that signed the pointer must still be the registry's key."""
    if root.key.key != state.key and root.key.key in state.keys:
        seq = next(change.seq for change in state.key_changes if change.old == root.key.key)
        raise PinwardenError(
            "REGISTRY_KEY_ENDED",
            f"entry {seq} of the log replaced the key that signed the pointer",
            data={"key_id": root.key.key_id, "ended_by": seq, "present": state.key.did},
        )


def follow_registry_log(log: RegistryReader, root: TrustedRegistry, trust: Path, now: str) -> FollowedLog:
    """Follow the log of a trusted registry to its head. If the log names a new key, trust that key from now on."""
    followed = _follow(log, root, trust, now)
    if followed.state.key != root.log.key:
        _trust_new_key(root, followed.state, trust, now)
    return followed


def trust_after_key_change(log: RegistryReader, trusted: TrustStore, trust: Path, now: str) -> TrustStore | None:
    """The trust store after following the log to the registry's current key.

    Reads only the given log, and only if it belongs to a trusted registry. None if it does not, or if its key did not
    change.
    """
    log_id = Checkpoint.parse(Note.parse(log.get(names.CHECKPOINT)).text).origin
    changed = False
    for root in trusted.registries:
        if root.log.name == log_id:
            counted = replace(root, witnesses=trusted.without_revoked(root.witnesses))
            changed |= follow_registry_log(log, counted, trust, now).state.key != root.log.key
    return load_trust(trust) if changed else None


def _trust_new_key(root: TrustedRegistry, state: LogState, trust: Path, now: str) -> None:
    """Save the log state under the new key first, so that following under that key does not start over."""
    moved = log_state_path(trust, NoteKey(name=root.log.name, key=state.key))
    with exclusive(moved, LOG_SECONDS):
        there = load_log_state(moved)
        if there is None or there.edge.size < state.edge.size:
            save_log_state(moved, state)
    ended = [EndedKey(key_id=change.old.did, seq=change.seq, seen_at=now) for change in state.key_changes]
    change_trust(trust, lambda store: apply_key_changes(store, root.log, ended, state.key))


def _follow(log: RegistryReader, root: TrustedRegistry, trust: Path, now: str) -> FollowedLog:
    """Follow the log to its head. One process at a time updates the saved state, and only forward."""
    path = log_state_path(trust, root.log)
    wanted = FollowOptions(key=root.log.key, witnesses=root.witnesses, quorum=root.witnesses_needed, watch=())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror or err}") from err
    with exclusive(path, LOG_SECONDS):
        known = load_log_state(path) or LogState(log_id=root.log.name, key=root.log.key)
        if known.log_id != root.log.name:
            raise PinwardenError("LOG_STATE_CORRUPT", "the saved state belongs to another log")
        followed = follow_log(log, known, wanted)
        if followed.key_changes:  # a log cannot restore a key that the user revoked
            check_not_revoked(load_trust(trust), *(change.new.did for change in followed.key_changes))
        if followed.state != known:  # most installs see nothing new; do not wait for the disk
            save_log_state(path, followed.state)
        identity = RegistryIdentity(name=".", log_id=root.log.name, key=followed.state.key)
        issued = fetch_signed_checkpoint(log, identity, followed.head)
        if issued.size > followed.head.checkpoint.size:  # something was published between the two requests
            followed = follow_log(log, followed.state, wanted)
            save_log_state(path, followed.state)
    if issued.size > followed.head.checkpoint.size:
        raise PinwardenError(
            "LOG_FROZEN",
            f"the registry signed a log of {issued.size} events, but shows only {followed.head.checkpoint.size}",
        )
    check_head_age(issued.issued_at_utc, now, root.max_age_days)
    return followed


_MAX_REASON = 200


def explain_missing_pointer(  # noqa: PLR0913, PLR0917  what was asked for, of whom, and where what was seen is kept
    err: PinwardenError, log: RegistryReader, trusted: TrustStore, trust: Path, asked: tuple[str, str], now: str
) -> PinwardenError:
    """Replace "there is no pointer" by what the log of a trusted registry says about it, if it says something.

    Only what the log proves is used; any page could claim it.
    """
    try:
        followed = _trusted_log(log, trusted, trust, now)
        return err if followed is None else _explained_error(err, log, followed, *asked)
    except PinwardenError as why:
        message = f"{err.message}; its log, which could say why, cannot be followed: {why.message} ({why.code})"
        return PinwardenError(err.code, message, hint=err.hint, data={**err.data, "log": why.code})


def _trusted_log(log: RegistryReader, trusted: TrustStore, trust: Path, now: str) -> FollowedLog | None:
    """Follow this log, if it belongs to a trusted registry."""
    data = log.find(names.CHECKPOINT)
    if data is None:
        return None
    log_id = Checkpoint.parse(Note.parse(data).text).origin
    root = next((root for root in trusted.registries if root.log.name == log_id), None)
    if root is None:
        return None
    return follow_registry_log(log, replace(root, witnesses=trusted.without_revoked(root.witnesses)), trust, now)


def _explained_error(
    err: PinwardenError, log: RegistryReader, followed: FollowedLog, tool: str, channel: str
) -> PinwardenError:
    removed = followed.state.pointer(tool, channel)
    if removed is None or removed.root_cid is not None:
        return err
    event = fetch_event(log, followed, removed.seq)
    for (name, mark), pointer in followed.state.pointers.items():
        version = mark.removeprefix(YANKED_PREFIX)
        if (
            name == tool
            and version != mark
            and pointer.root_cid is not None
            and pointer.root_cid == event.prev_root_cid
        ):
            return yanked_error(log, followed, tool, version, pointer)
    message = f"{err.message}: event {removed.seq} of its log removed the pointer at {event.issued_at_utc}"
    return PinwardenError(err.code, f"{message}: {event.reason[:_MAX_REASON]}", hint=err.hint, data=err.data)


def yanked_error(
    log: RegistryReader, followed: FollowedLog, tool: str, version: str, mark: LoggedPointer
) -> PinwardenError:
    """The refusal of a yanked version: when and why, as logged."""
    event = fetch_event(log, followed, mark.seq)
    reason = event.reason[:_MAX_REASON]
    return PinwardenError(
        "VERSION_YANKED",
        f"{tool} {version} was yanked by its publisher at {event.issued_at_utc}: {reason} (event {mark.seq})",
        data={
            "tool": tool,
            "version": version,
            "reason": reason,
            "yanked_at_utc": event.issued_at_utc,
            "index": mark.seq,
        },
    )
