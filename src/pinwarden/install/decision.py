"""Decide whether a bundle may be installed. The caller (``bundle_download.py``) downloads and passes all documents.

A refusal has exactly one code: the code of the first check that fails. The nine acceptance steps run first, so their
codes come before the codes of the other checks. The end of this module has what the reports of installed servers and
skills share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from pinwarden.artifacts.artifact import check_content_hash, parse_content_hash
from pinwarden.bundle.acceptance import (
    ACCEPT,
    FAILED,
    LAST_STEP,
    PASSED,
    REJECT,
    AcceptanceResult,
    CheckResult,
    Provenance,
    Rejection,
    accept,
    check_documents,
    find_failed_step,
    list_step_results,
    provenance_to_json,
    rejection_from_error,
)
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.bundle_documents import BundleDocuments
from pinwarden.bundle.bundle_files import OpenedBundle, open_bundle
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.bundle.trust import InstallerPolicy, TrustedRegistry, TrustStore
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row
from pinwarden.core.versions import are_comparable, compare_versions
from pinwarden.registry.log_verification import (
    LogState,
    PointerTarget,
    VerifiedHead,
    check_not_taken_down,
    check_not_yanked,
    check_pointer_is_latest,
)
from pinwarden.registry.names import DEFAULT_CHANNEL
from pinwarden.registry.registry_documents import PublishedVersion

LITERAL_NOTE = (
    "--literal skips checks, for example that the pointer is fresh, that attesters have the required roles, and that "
    "the pointer names this manifest"
)
LOG_CHECK = "the pointer is the newest one in the log, and the log was only appended to since you last saw it"
BYTES_CHECK = "every byte of the archive matches the manifest"
MINIMUM_CHECK = "the version is not below the requested minimum"
ACCEPTED_CHECK = "accepted, with provenance"
DOCUMENTS_CHECK = "the documents have the expected types and name the requested tool"


class InstallRequest(Record):
    """The name and channel of the bundle to install, with the policy and the trust store of the user."""

    tool: str
    channel: str = DEFAULT_CHANNEL
    floor: str | None = None
    """The lowest version to accept, now and in later updates."""
    literal: bool = False
    """Whether to apply only the verifier rulebook v0.1.1, without Pinwarden's stricter checks."""
    policy: InstallerPolicy
    trusted: TrustStore
    now: str


class LogPosition(Record):
    """The position of a pointer's event in the registry's log."""

    log_id: str
    index: int
    size: int
    """The number of events in the log."""
    witnesses: int
    """The number of witnesses that cosigned the head of the log."""


class AcceptedBundle(Record):
    """A bundle that passed every check, in memory."""

    opened: OpenedBundle
    provenance: Provenance
    published: PublishedVersion | None
    """The registry's signed record of the version; None if the bundle is from an OCI registry."""
    registry: TrustedRegistry
    log_position: LogPosition | None
    """The position of the pointer's event in the log; None with ``--literal``, which does not read the log."""

    @property
    def documents(self) -> BundleDocuments:
        """The bundle's descriptor and manifest."""
        return self.opened.documents


class InstallDecision(Record):
    """The result of every check, with either the accepted bundle or the refusal."""

    checks: tuple[CheckResult, ...]
    accepted: AcceptedBundle | None = None
    refusal: Rejection | None = None
    exit_code: int = 0


class InstallRefusedError(Exception):
    """Ends the checks of one install at the first check that fails."""

    def __init__(self, refusal: Rejection, exit_code: int) -> None:
        super().__init__(refusal.code)
        self.refusal, self.exit_code = refusal, exit_code


class InstallChecks:
    """The checks of one install. Each method records a result, and raises `InstallRefusedError` if its check fails."""

    def __init__(self, request: InstallRequest) -> None:
        self._request = request
        self.results: list[CheckResult] = []

    def run_acceptance_steps(
        self, acceptance_request: AcceptanceRequest, trusted: TrustStore, registry: TrustedRegistry
    ) -> tuple[Provenance, BundleDocuments]:
        """Run the nine acceptance steps, and return the provenance and the validated documents."""
        result = accept(acceptance_request)
        self.results += list_step_results(result.rejection, _describe_steps(result, trusted, registry))
        if result.rejection is not None:
            if result.rejection.code in ("DOCUMENT_INVALID", "TOOL_NAME_MISMATCH"):
                self._add(None, DOCUMENTS_CHECK, FAILED, f"{result.rejection.what} ({result.rejection.code})")
            raise InstallRefusedError(result.rejection, EXIT_REFUSED)
        if result.provenance is None:
            raise TypeError("the accepted bundle has no provenance")
        if result.documents is not None:
            return result.provenance, result.documents
        # Literal mode accepts documents without validating them; validate them before anything is unpacked.
        with self.fail_check_on_error(BYTES_CHECK):
            return result.provenance, check_documents(acceptance_request.descriptor, acceptance_request.manifest)

    def check_minimum(self, version: str) -> None:
        """Refuse a version that is below the requested minimum or cannot be compared with it."""
        request, floor = self._request, self._request.floor
        if floor is None:
            return
        with self.fail_check_on_error(MINIMUM_CHECK):
            # Descriptors may have versions that are not semantic versions, so they may not be comparable.
            if not are_comparable(version, floor) or compare_versions(version, floor) < 0:
                raise PinwardenError(
                    "VERSION_BELOW_FLOOR",
                    f"{request.tool} on {request.channel} is {version}, below the minimum {floor}",
                    data={"version": version, "floor": floor},
                )
        self._add(None, MINIMUM_CHECK, PASSED, f"{version} is at or above {floor}")

    def skip_log(self) -> None:
        """Record that the log is not checked in literal mode."""
        self._add(None, LOG_CHECK, "not checked", "--literal")

    def check_log(  # noqa: PLR0913, PLR0917
        self,
        pointer: PointerTarget,
        version: str,
        registry: TrustedRegistry,
        state: LogState,
        head: VerifiedHead,
        proved_index: int | None,
    ) -> LogPosition:
        """Check that the pointer is the newest of its channel, and that its version was not yanked.

        ``proved_index`` is the index from the pointer's inclusion proof, or None if the source has no proofs.
        """
        with self.fail_check_on_error(LOG_CHECK):
            check_not_taken_down(pointer.tool, version, state)
            index = check_pointer_is_latest(pointer, state, proved_index)
            check_not_yanked(pointer, version, state)
        position = LogPosition(
            log_id=registry.log.name, index=index, size=head.checkpoint.size, witnesses=len(head.cosignatures)
        )
        witnesses = f", cosigned by {position.witnesses} witnesses" if position.witnesses else ""
        self._add(None, LOG_CHECK, PASSED, f"event {position.index} of {position.size} in {position.log_id}{witnesses}")
        return position

    def check_archive(
        self, documents: BundleDocuments, archive: bytes, published: PublishedVersion | None
    ) -> OpenedBundle:
        """Verify every byte of the archive against the manifest, and the archive's hash against the published hash."""
        with self.fail_check_on_error(BYTES_CHECK):
            opened = open_bundle(documents, archive)
            if published is not None:
                expected = parse_content_hash(published.content_hash)
                check_content_hash(opened.content_hash, expected, documents.descriptor.name)
        self._add(None, BYTES_CHECK, PASSED, f"{len(opened.contents)} files, {opened.content_hash}")
        return opened

    def accept(self, bundle: AcceptedBundle) -> InstallDecision:
        """Return the decision for a bundle that passed every check."""
        detail = f"{bundle.provenance.tool} {bundle.documents.descriptor.version}: {bundle.provenance.root_cid}"
        self._add(LAST_STEP, ACCEPTED_CHECK, PASSED, detail)
        return InstallDecision(checks=tuple(self.results), accepted=bundle)

    def refuse(self, refused: InstallRefusedError) -> InstallDecision:
        """Return the decision for a bundle that failed a check."""
        return InstallDecision(checks=tuple(self.results), refusal=refused.refusal, exit_code=refused.exit_code)

    def fail_step(
        self, err: PinwardenError, exit_code: int, step: int | None = None, details: dict[int, str] | None = None
    ) -> NoReturn:
        """Record that an acceptance step failed before all steps could run, and refuse the install: always raises.

        Pass ``step`` if the error code does not identify the step. A code that the rulebook does not define counts as
        a failure of step 1. ``details`` are shown for steps that passed.
        """
        refusal = rejection_from_error(err)
        self.results += list_step_results(refusal, details or {}, step or find_failed_step(refusal) or 1)
        raise InstallRefusedError(refusal, exit_code) from err

    @contextmanager
    def fail_check_on_error(self, check: str) -> Iterator[None]:
        """If the block raises, record that this check failed, and refuse the install."""
        try:
            yield
        except PinwardenError as err:
            self._add(None, check, FAILED, f"{err.message} ({err.code})")
            raise InstallRefusedError(rejection_from_error(err), err.exit_code) from err

    def _add(self, step: int | None, check: str, result: str, detail: str) -> None:
        self.results.append(CheckResult(step=step, check=check, result=result, detail=detail))


def check_key_current(registry: TrustedRegistry, state: LogState) -> None:
    """Raise REGISTRY_KEY_ENDED if the log replaced the key that signed the pointer."""
    if registry.key.key != state.key and registry.key.key in state.keys:
        seq = next(change.seq for change in state.key_changes if change.old == registry.key.key)
        raise PinwardenError(
            "REGISTRY_KEY_ENDED",
            f"entry {seq} of the log replaced the key that signed the pointer",
            data={"key_id": registry.key.key_id, "ended_by": seq, "present": state.key.did},
        )


def check_published_version(published: PublishedVersion, documents: BundleDocuments) -> None:
    """Raise ARTIFACT_MISMATCH if the registry published a different bundle as this version."""
    if (published.root_cid, published.descriptor_cid) != (documents.root_cid, documents.descriptor_cid):
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry published {published.tool} {published.version} with a bundle that the pointer does not name",
        )


def describe_registry(registry: TrustedRegistry) -> str:
    """Return the name of a registry in the trust store, or its key id if it has no name."""
    return registry.key.name or registry.key.key_id


def _describe_steps(result: AcceptanceResult, trusted: TrustStore, registry: TrustedRegistry) -> dict[int, str]:
    """Return details to show for acceptance steps, by the number of the step."""
    names = {known.key.key_id: known.key.name or known.key.key_id for known in trusted.keys}
    details = {1: describe_registry(registry)}
    if result.provenance is not None:
        attesters = dict.fromkeys(names.get(key_id, key_id) for key_id in result.provenance.attestations_used)
        details[6] = ", ".join(attesters)
        details[7] = f"at least {result.provenance.min_attestations}"
    if result.documents is not None:
        policy = result.documents.descriptor.policy
        details[8] = f"network {policy.network}, filesystem {policy.filesystem}, exec {policy.exec}"
    return details


# Reports


def build_acceptance_facts(
    request: InstallRequest, decision: InstallDecision, accepted: AcceptedBundle, pin: BundlePin
) -> dict[str, Any]:
    """Return the facts that the reports of all installed bundles have: provenance, checks, permissions, log."""
    position = accepted.log_position
    return {
        "result": ACCEPT,
        "provenance": provenance_to_json(accepted.provenance),
        "plan": [check.to_json() for check in decision.checks],
        "literal": request.literal,
        "version": pin.version,
        "registry": pin.registry,
        "content_hash": str(pin.archive),
        "policy": {"network": pin.policy.network, "filesystem": pin.policy.filesystem, "exec": pin.policy.exec},
        "log": {"id": position.log_id, "index": position.index, "size": position.size} if position else None,
    }


def build_refusal_report(request: InstallRequest, decision: InstallDecision, warnings: Sequence[Row] = ()) -> Report:
    """Build the report of a refused install: code, problem, reason and fix of the refusal, then the scan warnings."""
    refusal = decision.refusal
    if refusal is None:
        raise TypeError("the decision has no refusal")
    row = Row(
        code=refusal.code,
        severity="critical" if decision.exit_code == EXIT_REFUSED else "review",
        entity="bundle",
        name=request.tool,
        path="",
        message=refusal.what,
    )
    return Report(
        command="install",
        subject=request.tool,
        summary=f"REJECT {refusal.code}: {refusal.fix}",
        exit_code=decision.exit_code,
        rows=(row, *warnings),
        notes=list_check_notes(request, decision),
        facts={
            "result": REJECT,
            "error": refusal_to_json(refusal),
            "plan": [check.to_json() for check in decision.checks],
            "literal": request.literal,
        },
        rule_texts={refusal.code: refusal.fix},
    )


def refusal_to_json(refusal: Rejection) -> dict[str, Any]:
    """Return a refusal as a member of the JSON output."""
    return {"code": refusal.code, "what": refusal.what, "why": dict(refusal.why), "fix": refusal.fix}


def list_check_notes(request: InstallRequest, decision: InstallDecision) -> tuple[str, ...]:
    """Return the result of every check as a note."""
    lines = tuple(str(check) for check in decision.checks)
    return (*lines, LITERAL_NOTE) if request.literal else lines
