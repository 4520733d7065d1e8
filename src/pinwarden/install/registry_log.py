"""Follow the transparency logs of trusted registries, and save their last verified states next to the trust store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.bundle.trust import ReplacedKey, TrustedRegistry, TrustStore, apply_key_changes, check_not_revoked
from pinwarden.bundle.trust_files import change_trust, load_trust, log_state_path
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.registry import names
from pinwarden.registry.log_client import (
    FollowedLog,
    FollowOptions,
    fetch_event,
    fetch_signed_checkpoint,
    follow_log,
    load_log_state,
    save_log_state,
)
from pinwarden.registry.log_verification import LogState, build_takedown_error, check_head_age, describe_yank
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.registry.operator_documents import TAKEDOWN, OperatorAction, find_takedown
from pinwarden.system.files import hold_write_lock

if TYPE_CHECKING:
    from pinwarden.registry.log_verification import LoggedPointer
    from pinwarden.registry.registry_client import RegistryReader

LOG_SECONDS = 120.0
"""How long to wait for another process that follows the same log."""
_MAX_REASON = 200


class LogFollower:
    """Follows the logs of registries in one trust store."""

    def __init__(self, trust_path: Path, now: str) -> None:
        self._trust_path, self._now = trust_path, now

    def follow(self, log: RegistryReader, registry: TrustedRegistry) -> FollowedLog:
        """Follow the log of a trusted registry to its head. If the log names a new key, trust that key from now on."""
        followed = self._follow_to_head(log, registry)
        if followed.state.key != registry.log.key:
            self._trust_new_key(registry, followed.state)
        return followed

    def trust_after_key_change(self, log: RegistryReader, trusted: TrustStore) -> TrustStore | None:
        """Follow the log to the registry's current key, and return the new trust store.

        Returns None if the log belongs to no trusted registry, or if the registry's key did not change.
        """
        log_id = Checkpoint.parse(Note.parse(log.get(names.CHECKPOINT)).text).origin
        changed = False
        for registry in trusted.registries:
            if registry.log.name == log_id:
                followed = self.follow(log, exclude_revoked_witnesses(registry, trusted))
                changed |= followed.state.key != registry.log.key
        return load_trust(self._trust_path) if changed else None

    def explain_missing_pointer(
        self, err: PinwardenError, log: RegistryReader, trusted: TrustStore, tool: str, channel: str
    ) -> PinwardenError:
        """Add the reason for a missing pointer to the error, if the log of a trusted registry records the reason.

        Pinwarden verifies the log before it quotes the reason, because a mirror could claim anything.
        """
        try:
            followed = self._follow_if_trusted(log, trusted)
            return err if followed is None else _explain_removal(err, log, followed, tool, channel)
        except PinwardenError as why:
            message = (
                f"{err.message}; the registry's log may record the reason, but Pinwarden could not follow it: "
                f"{why.message} ({why.code})"
            )
            return PinwardenError(err.code, message, hint=err.hint, data={**err.data, "log": why.code})

    def _follow_if_trusted(self, log: RegistryReader, trusted: TrustStore) -> FollowedLog | None:
        data = log.find(names.CHECKPOINT)
        if data is None:
            return None
        log_id = Checkpoint.parse(Note.parse(data).text).origin
        registry = next((registry for registry in trusted.registries if registry.log.name == log_id), None)
        return None if registry is None else self.follow(log, exclude_revoked_witnesses(registry, trusted))

    def _follow_to_head(self, log: RegistryReader, registry: TrustedRegistry) -> FollowedLog:
        """Follow the log to its head. A lock ensures that the saved state never goes back to an older one."""
        path = log_state_path(self._trust_path, registry.log)
        options = FollowOptions(
            key=registry.log.key, witnesses=registry.witnesses, quorum=registry.witnesses_needed, watch=()
        )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as err:
            raise PinwardenError(
                "FILE_UNWRITABLE", f"cannot create the folder {path.parent}: {err.strerror or err}"
            ) from err
        with hold_write_lock(path, LOG_SECONDS):
            saved = load_log_state(path) or LogState(log_id=registry.log.name, key=registry.log.key)
            if saved.log_id != registry.log.name:
                raise PinwardenError("LOG_STATE_CORRUPT", f"{path} is the saved state of another log: {saved.log_id}")
            followed = follow_log(log, saved, options)
            if followed.key_changes:  # a log cannot restore a key that the user revoked
                check_not_revoked(load_trust(self._trust_path), *(change.new.did for change in followed.key_changes))
            if followed.state != saved:  # usually nothing is new, and writing would wait for the disk
                save_log_state(path, followed.state)
            log_key = NoteKey(name=registry.log.name, key=followed.state.key)
            signed = fetch_signed_checkpoint(log, log_key, followed.head)
            if signed.size > followed.head.checkpoint.size:  # the registry published a version between the two requests
                followed = follow_log(log, followed.state, options)
                save_log_state(path, followed.state)
        if signed.size > followed.head.checkpoint.size:
            raise PinwardenError(
                "LOG_FROZEN",
                f"the registry signed a log of {signed.size} events, but shows only {followed.head.checkpoint.size}",
            )
        check_head_age(signed.issued_at_utc, self._now, registry.max_age_days)
        return followed

    def _trust_new_key(self, registry: TrustedRegistry, state: LogState) -> None:
        # Save the state under the new key first, so that following with that key does not start from the beginning.
        new_path = log_state_path(self._trust_path, NoteKey(name=registry.log.name, key=state.key))
        with hold_write_lock(new_path, LOG_SECONDS):
            saved = load_log_state(new_path)
            if saved is None or saved.edge.size < state.edge.size:
                save_log_state(new_path, state)
        ended = [ReplacedKey(key_id=change.old.did, seq=change.seq, seen_at=self._now) for change in state.key_changes]
        change_trust(self._trust_path, lambda store: apply_key_changes(store, registry.log, ended, state.key))


def exclude_revoked_witnesses(registry: TrustedRegistry, trusted: TrustStore) -> TrustedRegistry:
    """Return the registry without the witnesses whose keys were revoked."""
    return replace(registry, witnesses=trusted.exclude_revoked(registry.witnesses))


def _explain_removal(
    err: PinwardenError, log: RegistryReader, followed: FollowedLog, tool: str, channel: str
) -> PinwardenError:
    """Return the error with the reason why the pointer was removed: a yanked version, or the reason in the log."""
    takedown = find_takedown(followed.state.actions, tool, "")
    if takedown is not None:
        return build_takedown_error(takedown)
    removal = followed.state.find_pointer(tool, channel)
    if removal is None or removal.root_cid is not None:
        return err
    event = fetch_event(log, followed, removal.seq)
    taken_down = _find_removing_takedown(followed, tool, event.prev_root_cid)
    if taken_down is not None:
        return build_takedown_error(taken_down)
    for (name, mark), pointer in followed.state.pointers.items():
        version = mark.removeprefix(YANKED_PREFIX)
        if (
            name == tool
            and version != mark
            and pointer.root_cid is not None
            and pointer.root_cid == event.prev_root_cid
        ):
            return _build_yanked_error(log, followed, tool, version, pointer)
    message = f"{err.message}: event {removal.seq} of its log removed the pointer at {event.issued_at_utc}"
    return PinwardenError(err.code, f"{message}: {event.reason[:_MAX_REASON]}", hint=err.hint, data=err.data)


def _find_removing_takedown(followed: FollowedLog, tool: str, root_cid: str | None) -> OperatorAction | None:
    """Return the takedown in force of the version to which a removed pointer pointed."""
    for action in followed.state.actions.values():
        if (action.action, action.name, action.details.get("root_cid")) == (TAKEDOWN, tool, root_cid):
            return action
    return None


def _build_yanked_error(
    log: RegistryReader, followed: FollowedLog, tool: str, version: str, yank: LoggedPointer
) -> PinwardenError:
    event = fetch_event(log, followed, yank.seq)
    reason = event.reason[:_MAX_REASON]
    return PinwardenError(
        "VERSION_YANKED",
        describe_yank(tool, version, yank.seq, reason, event.issued_at_utc),
        data={
            "tool": tool,
            "version": version,
            "reason": reason,
            "yanked_at_utc": event.issued_at_utc,
            "index": yank.seq,
        },
    )
