"""Decide whether a bundle may be installed: the nine acceptance steps, then the log and the bytes.

A refusal has exactly one code: that of the first check that fails. The acceptance steps run first, so their codes come
before the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pinwarden.artifacts.artifact import check_content_hash, parse_content_hash
from pinwarden.bundle.acceptance import (
    ACCEPTED,
    FAILED,
    PASSED,
    AcceptanceResult,
    CheckResult,
    Provenance,
    Rejection,
    accept,
    check_documents,
    check_pointer,
    list_step_results,
    rejection_from_error,
)
from pinwarden.bundle.bundle_documents import BundleDocuments
from pinwarden.bundle.bundle_files import OpenedBundle, open_bundle
from pinwarden.bundle.evidence import AcceptanceRequest
from pinwarden.bundle.trust import (
    InstallerPolicy,
    ReplacedKey,
    TrustedRegistry,
    TrustStore,
    apply_key_changes,
    check_not_revoked,
)
from pinwarden.bundle.trust_files import change_trust, load_trust, log_state_path
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.core.versions import are_comparable, compare_versions
from pinwarden.install.sources import BundleSource
from pinwarden.lock.lock_store import hold_write_lock
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
from pinwarden.registry.names import DEFAULT_CHANNEL, YANKED_PREFIX
from pinwarden.registry.registry_client import RegistryReader
from pinwarden.registry.registry_documents import PublishedVersion, RegistryIdentity

if TYPE_CHECKING:
    from pinwarden.registry.log_verification import LoggedPointer

_Result = TypeVar("_Result")
LOGGED = "the pointer is the newest one in the log, and the log was only appended to since you last saw it"
COMPLETE = "every byte of the archive matches the manifest"
FLOOR = "the version is not below the requested minimum"
LOG_SECONDS = 120.0
"""How long to wait for another install that reads the same log."""
_MAX_REASON = 200


class InstallRequest(Record):
    """What to install, and by which policy and trust store."""

    tool: str
    channel: str = DEFAULT_CHANNEL
    floor: str | None = None
    literal: bool = False
    policy: InstallerPolicy
    trusted: TrustStore
    trust_path: Path
    now: str


class AcceptedBundle(Record):
    """A bundle that passed every check, in memory."""

    opened: OpenedBundle
    provenance: Provenance
    published: PublishedVersion | None
    registry: TrustedRegistry
    log_position: LogPosition | None

    @property
    def documents(self) -> BundleDocuments:
        """Its descriptor and manifest."""
        return self.opened.documents


class LogPosition(Record):
    """Where a pointer is in the log."""

    log_id: str
    index: int
    size: int
    witnesses: int


class InstallDecision(Record):
    """The outcome of every check, and the accepted bundle or the refusal."""

    plan: tuple[CheckResult, ...]
    accepted: AcceptedBundle | None = None
    rejection: Rejection | None = None
    exit_code: int = 0


def decide_install(request: InstallRequest, source: BundleSource) -> InstallDecision:
    """Decide whether the bundle that a channel points to may be installed.

    1. Download the pointer. A trusted registry must have signed it; its log may lead to a new key of the registry.
    2. Download the documents that the pointer names.
    3. Take the acceptance steps.
    4. Refuse a version below the requested minimum.
    5. Check that the pointer is the newest one in the registry's log (not with ``literal``).
    6. Download the archive and verify every byte.

    If the channel moves while the checks run, they run once more.
    """
    decision = _Checks(request, source).run()
    if decision.rejection is not None and decision.rejection.code == "POINTER_STALE":
        return _Checks(request, source).run()
    return decision


class _Rejected(Exception):  # noqa: N818  # a result, not an error
    def __init__(self, rejection: Rejection, exit_code: int) -> None:
        super().__init__(rejection.code)
        self.rejection, self.exit_code = rejection, exit_code


class _Checks:
    """One run of the checks. Records a result for each."""

    def __init__(self, request: InstallRequest, source: BundleSource) -> None:
        self._request, self._source = request, source
        self._trusted = request.trusted
        self._results: list[CheckResult] = []

    def run(self) -> InstallDecision:
        """Run all checks in order."""
        try:
            accepted = self._run()
        except _Rejected as refused:
            return InstallDecision(plan=tuple(self._results), rejection=refused.rejection, exit_code=refused.exit_code)
        return InstallDecision(plan=tuple(self._results), accepted=accepted)

    def _run(self) -> AcceptedBundle:
        submission, pointer, registry = self._check_pointer(self._download_pointer())
        submission = self._download_documents(submission, pointer, registry)
        provenance, documents = self._take_steps(submission, registry)
        version = documents.descriptor.version
        self._check_floor(version)
        position = self._check_log(provenance, version, registry)
        published, opened = self._open_archive(documents, registry)
        detail = f"{provenance.tool} {version}: {provenance.root_cid}"
        self._add(ACCEPTED, "accepted, with provenance", PASSED, detail)
        return AcceptedBundle(
            opened=opened, provenance=provenance, published=published, registry=registry, log_position=position
        )

    # 1. The pointer

    def _download_pointer(self) -> AcceptanceRequest:
        request = self._request
        try:
            pointer = self._source.pointer(request.tool, request.channel)
        except PinwardenError as err:
            self._reject_at_step(self._explain_missing(err), err.exit_code, 1)
        return AcceptanceRequest(
            pointer=pointer,
            descriptor=b"",
            manifest=b"",
            policy=request.policy,
            trust=request.trusted.trust,
            now=request.now,
            tool=request.tool,
            channel=request.channel,
            literal=request.literal,
        )

    def _explain_missing(self, err: PinwardenError) -> PinwardenError:
        """Add why the pointer is missing, if the log records that it was removed."""
        request, log = self._request, self._source.log
        if err.code != "POINTER_NOT_FOUND" or request.literal or log is None or not request.trusted.registries:
            return err
        channel = request.tool, request.channel
        return explain_missing_pointer(err, log, request.trusted, request.trust_path, channel, request.now)

    def _check_pointer(
        self, submission: AcceptanceRequest
    ) -> tuple[AcceptanceRequest, dict[str, Any], TrustedRegistry]:
        try:
            pointer, key_id = self._check_signature(submission)
        except PinwardenError as err:
            self._reject_at_step(err if self._request.trusted.registries else _no_registry_trusted(err), EXIT_REFUSED)
        registry = self._trusted.find_registry(key_id)
        if registry is None:
            raise TypeError("the registry that signed the pointer is in the trust store")
        return replace(submission, trust=self._trusted.trust), pointer, registry

    def _check_signature(self, submission: AcceptanceRequest) -> tuple[dict[str, Any], str]:
        """Check the pointer's signature. An unknown key may be the new key of a trusted registry, if its log says so.

        Otherwise, the error of the signature check is raised.
        """
        request, log = self._request, self._source.log
        try:
            return check_pointer(submission)
        except PinwardenError as err:
            if (
                err.code != "POINTER_SIGNATURE_INVALID"
                or request.literal
                or log is None
                or not request.trusted.registries
            ):
                raise
            try:
                renewed = trust_after_key_change(log, request.trusted, request.trust_path, request.now)
            except PinwardenError as why:
                message = (
                    f"{err.message}; the log shows no new key of a trusted registry either: {why.message} ({why.code})"
                )
                raise PinwardenError(err.code, message, data={**err.data, "log": why.code}) from why
            if renewed is None:
                raise
        self._trusted = renewed
        return check_pointer(replace(submission, trust=renewed.trust))

    # 2. The documents

    def _download_documents(
        self, submission: AcceptanceRequest, pointer: dict[str, Any], registry: TrustedRegistry
    ) -> AcceptanceRequest:
        try:
            raw = self._source.documents(str(pointer.get("root_cid")), str(pointer.get("descriptor_cid")))
        except PinwardenError as err:
            self._reject_at_step(err, err.exit_code, 3, {1: _registry_name(registry)})
        return replace(submission, descriptor=raw.descriptor, manifest=raw.manifest, attestations=raw.attestations)

    # 3. The acceptance steps

    def _take_steps(
        self, submission: AcceptanceRequest, registry: TrustedRegistry
    ) -> tuple[Provenance, BundleDocuments]:
        result = accept(submission)
        self._results += list_step_results(result.rejection, self._step_details(result, registry))
        if result.rejection is not None:
            if result.rejection.code in ("DOCUMENT_INVALID", "TOOL_NAME_MISMATCH"):
                check = "the documents have the expected types and name the requested tool"
                self._add(None, check, FAILED, f"{result.rejection.what} ({result.rejection.code})")
            raise _Rejected(result.rejection, EXIT_REFUSED)
        if result.provenance is None:
            raise TypeError("an accepted bundle has a provenance")
        # Literal mode accepts documents without validating them; validate them before anything is unpacked.
        documents = result.documents or self._check(
            COMPLETE, lambda: check_documents(submission.descriptor, submission.manifest)
        )
        return result.provenance, documents

    def _step_details(self, result: AcceptanceResult, registry: TrustedRegistry) -> dict[int, str]:
        names = {trusted.key.key_id: trusted.key.name or trusted.key.key_id for trusted in self._trusted.keys}
        details = {1: _registry_name(registry)}
        if result.provenance is not None:
            used = dict.fromkeys(names.get(key_id, key_id) for key_id in result.provenance.attestations_used)
            details[6] = ", ".join(used)
            details[7] = f"at least {result.provenance.min_attestations}"
        if result.documents is not None:
            policy = result.documents.descriptor.policy
            details[8] = f"network {policy.network}, filesystem {policy.filesystem}, exec {policy.exec}"
        return details

    # 4 to 6. What the acceptance steps do not cover

    def _check_floor(self, version: str) -> None:
        floor = self._request.floor
        if floor is not None:
            self._check(FLOOR, lambda: _refuse_below(floor, version, self._request))
            self._add(None, FLOOR, PASSED, f"{version} is at or above {floor}")

    def _check_log(self, provenance: Provenance, version: str, registry: TrustedRegistry) -> LogPosition | None:
        request = self._request
        if request.literal:
            self._add(None, LOGGED, "not checked", "--literal")
            return None
        target = PointerTarget(
            tool=provenance.tool,
            channel=provenance.channel,
            root_cid=provenance.root_cid,
            descriptor_cid=provenance.descriptor_cid,
        )
        position = self._check(
            LOGGED, lambda: check_logged(target, version, self._source, registry, request.trust_path, request.now)
        )
        witnesses = f", cosigned by {position.witnesses} witnesses" if position.witnesses else ""
        self._add(None, LOGGED, PASSED, f"event {position.index} of {position.size} in {position.log_id}{witnesses}")
        return position

    def _open_archive(
        self, documents: BundleDocuments, registry: TrustedRegistry
    ) -> tuple[PublishedVersion | None, OpenedBundle]:
        published, opened = self._check(COMPLETE, lambda: _open_archive(self._source, documents, registry.key.key))
        self._add(None, COMPLETE, PASSED, f"{len(opened.contents)} files, {opened.content_hash}")
        return published, opened

    # Results

    def _check(self, check: str, run: Callable[[], _Result]) -> _Result:
        try:
            return run()
        except PinwardenError as err:
            self._add(None, check, FAILED, f"{err.message} ({err.code})")
            raise _Rejected(rejection_from_error(err), err.exit_code) from err

    def _reject_at_step(
        self, err: PinwardenError, exit_code: int, step: int | None = None, details: dict[int, str] | None = None
    ) -> NoReturn:
        rejection = rejection_from_error(err)
        self._results += list_step_results(rejection, details or {}, step)
        raise _Rejected(rejection, exit_code) from err

    def _add(self, step: int | None, check: str, result: str, detail: str) -> None:
        self._results.append(CheckResult(step=step, check=check, result=result, detail=detail))


def _no_registry_trusted(err: PinwardenError) -> PinwardenError:
    """Add how to trust a registry, if the user trusts none yet."""
    if err.code != "POINTER_SIGNATURE_INVALID":
        return err
    return PinwardenError(
        err.code,
        f"{err.message}: you trust no registry yet",
        hint="Get the registry's key over a channel you trust, then: pinwarden trust add KEY --role registry.",
        data=err.data,
    )


def _registry_name(registry: TrustedRegistry) -> str:
    return registry.key.name or registry.key.key_id


def _refuse_below(floor: str, version: str, request: InstallRequest) -> None:
    # A version that cannot be compared is refused: descriptors may have versions that are not semantic versions.
    if not are_comparable(version, floor) or compare_versions(version, floor) < 0:
        raise PinwardenError(
            "VERSION_BELOW_FLOOR",
            f"{request.tool} on {request.channel} is {version}, below the minimum {floor}",
            data={"version": version, "floor": floor},
        )


def _open_archive(
    source: BundleSource, documents: BundleDocuments, key: PublicKey
) -> tuple[PublishedVersion | None, OpenedBundle]:
    descriptor = documents.descriptor
    published = source.published_version(descriptor.name, descriptor.version, key)
    if published is not None and (published.root_cid, published.descriptor_cid) != (
        documents.root_cid,
        documents.descriptor_cid,
    ):
        raise PinwardenError("ARTIFACT_MISMATCH", "the registry's entry for this version describes another bundle")
    opened = open_bundle(documents, source.archive(published))
    if published is not None:
        check_content_hash(opened.content_hash, parse_content_hash(published.content_hash), descriptor.name)
    return published, opened


# The registry's transparency log


def check_logged(  # noqa: PLR0913, PLR0917
    pointed: PointerTarget, version: str, source: BundleSource, registry: TrustedRegistry, trust: Path, now: str
) -> LogPosition:
    """Check a pointer against the log of its registry.

    1. Fetch the pointer's inclusion proof, if the source has one.
    2. Follow the log from the state that this machine saved, and save the new state.
    3. Check that the registry signed the current checkpoint recently.
    4. Check the proof, that its checkpoint is consistent with the log, and that no later event changes the channel.
    """
    if source.log is None:
        raise PinwardenError("POINTER_UNLOGGED", f"{source} has no log, and --log does not name one")
    logged_event = source.logged_event(pointed.tool, pointed.channel)
    if logged_event is None and source.has_proofs:
        raise PinwardenError("POINTER_UNLOGGED", f"{source} has no proof that the pointer is in its log")
    followed = follow_registry_log(source.log, registry, trust, now)
    _check_key(registry, followed.state)
    index = None
    if logged_event is not None:
        index, proved = verify_proof(pointed, logged_event.event, logged_event.proof, followed.state, followed.head)
        check_consistency(source.log, proved, followed.head)
    newest = check_newest(pointed, followed.state, index)
    check_not_yanked(pointed, version, followed.state)
    return LogPosition(
        log_id=registry.log.name,
        index=newest,
        size=followed.head.checkpoint.size,
        witnesses=len(followed.head.cosigned),
    )


def _check_key(registry: TrustedRegistry, state: LogState) -> None:
    """The key that signed the pointer must still be the registry's key."""
    if registry.key.key != state.key and registry.key.key in state.keys:
        seq = next(change.seq for change in state.key_changes if change.old == registry.key.key)
        raise PinwardenError(
            "REGISTRY_KEY_ENDED",
            f"entry {seq} of the log replaced the key that signed the pointer",
            data={"key_id": registry.key.key_id, "ended_by": seq, "present": state.key.did},
        )


def follow_registry_log(log: RegistryReader, registry: TrustedRegistry, trust: Path, now: str) -> FollowedLog:
    """Follow the log of a trusted registry to its head. If the log names a new key, trust that key from now on."""
    followed = _follow(log, registry, trust, now)
    if followed.state.key != registry.log.key:
        _trust_new_key(registry, followed.state, trust, now)
    return followed


def _follow(log: RegistryReader, registry: TrustedRegistry, trust: Path, now: str) -> FollowedLog:
    """Follow the log to its head. One process at a time updates the saved state, and only forward."""
    path = log_state_path(trust, registry.log)
    options = FollowOptions(
        key=registry.log.key, witnesses=registry.witnesses, quorum=registry.witnesses_needed, watch=()
    )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror or err}") from err
    with hold_write_lock(path, LOG_SECONDS):
        known = load_log_state(path) or LogState(log_id=registry.log.name, key=registry.log.key)
        if known.log_id != registry.log.name:
            raise PinwardenError("LOG_STATE_CORRUPT", "the saved state belongs to another log")
        followed = follow_log(log, known, options)
        if followed.key_changes:  # a log cannot restore a key that the user revoked
            check_not_revoked(load_trust(trust), *(change.new.did for change in followed.key_changes))
        if followed.state != known:  # most installs see nothing new; do not wait for the disk
            save_log_state(path, followed.state)
        identity = RegistryIdentity(name=".", log_id=registry.log.name, key=followed.state.key)
        issued = fetch_signed_checkpoint(log, identity, followed.head)
        if issued.size > followed.head.checkpoint.size:  # something was published between the two requests
            followed = follow_log(log, followed.state, options)
            save_log_state(path, followed.state)
    if issued.size > followed.head.checkpoint.size:
        raise PinwardenError(
            "LOG_FROZEN",
            f"the registry signed a log of {issued.size} events, but shows only {followed.head.checkpoint.size}",
        )
    check_head_age(issued.issued_at_utc, now, registry.max_age_days)
    return followed


def trust_after_key_change(log: RegistryReader, trusted: TrustStore, trust: Path, now: str) -> TrustStore | None:
    """The trust store after following the log to the registry's current key.

    Reads only the given log, and only if it belongs to a trusted registry. None if it does not, or if its key did not
    change.
    """
    log_id = Checkpoint.parse(Note.parse(log.get(names.CHECKPOINT)).text).origin
    changed = False
    for registry in trusted.registries:
        if registry.log.name == log_id:
            active = replace(registry, witnesses=trusted.without_revoked(registry.witnesses))
            changed |= follow_registry_log(log, active, trust, now).state.key != registry.log.key
    return load_trust(trust) if changed else None


def _trust_new_key(registry: TrustedRegistry, state: LogState, trust: Path, now: str) -> None:
    """Save the log state under the new key first, so that following under that key does not start over."""
    new_path = log_state_path(trust, NoteKey(name=registry.log.name, key=state.key))
    with hold_write_lock(new_path, LOG_SECONDS):
        saved = load_log_state(new_path)
        if saved is None or saved.edge.size < state.edge.size:
            save_log_state(new_path, state)
    ended = [ReplacedKey(key_id=change.old.did, seq=change.seq, seen_at=now) for change in state.key_changes]
    change_trust(trust, lambda store: apply_key_changes(store, registry.log, ended, state.key))


# Why a pointer is missing


def explain_missing_pointer(  # noqa: PLR0913, PLR0917
    err: PinwardenError, log: RegistryReader, trusted: TrustStore, trust: Path, options: tuple[str, str], now: str
) -> PinwardenError:
    """Add to the error what the log of a trusted registry records about the missing pointer.

    Only what the log proves is used; a mirror could claim anything.
    """
    try:
        followed = _trusted_log(log, trusted, trust, now)
        return err if followed is None else _explained_error(err, log, followed, *options)
    except PinwardenError as why:
        message = f"{err.message}; its log, which may record the reason, cannot be followed: {why.message} ({why.code})"
        return PinwardenError(err.code, message, hint=err.hint, data={**err.data, "log": why.code})


def _trusted_log(log: RegistryReader, trusted: TrustStore, trust: Path, now: str) -> FollowedLog | None:
    """Follow this log, if it belongs to a trusted registry."""
    data = log.find(names.CHECKPOINT)
    if data is None:
        return None
    log_id = Checkpoint.parse(Note.parse(data).text).origin
    registry = next((registry for registry in trusted.registries if registry.log.name == log_id), None)
    if registry is None:
        return None
    return follow_registry_log(
        log, replace(registry, witnesses=trusted.without_revoked(registry.witnesses)), trust, now
    )


def _explained_error(
    err: PinwardenError, log: RegistryReader, followed: FollowedLog, tool: str, channel: str
) -> PinwardenError:
    removal = followed.state.pointer(tool, channel)
    if removal is None or removal.root_cid is not None:
        return err
    event = fetch_event(log, followed, removal.seq)
    for (name, mark), pointer in followed.state.pointers.items():
        version = mark.removeprefix(YANKED_PREFIX)
        if (
            name == tool
            and version != mark
            and pointer.root_cid is not None
            and pointer.root_cid == event.prev_root_cid
        ):
            return yanked_error(log, followed, tool, version, pointer)
    message = f"{err.message}: event {removal.seq} of its log removed the pointer at {event.issued_at_utc}"
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
