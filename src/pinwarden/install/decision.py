"""Decide whether a bundle may be installed: the nine acceptance steps, then the log and the bytes.

A refusal has exactly one code: that of the first check that fails. The acceptance steps run first, so their codes come
before ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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
    rejection_from_error,
    step_results,
)
from pinwarden.bundle.bundle_documents import BundleDocuments
from pinwarden.bundle.bundle_files import OpenedBundle, open_bundle
from pinwarden.bundle.evidence import AcceptanceRequest
from pinwarden.bundle.trust import InstallerPolicy, TrustedRegistry, TrustStore
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.versions import are_comparable, compare_versions
from pinwarden.install.freshness import LogPosition, check_logged, trust_after_key_change
from pinwarden.install.sources import BundleSource
from pinwarden.registry.log_verification import PointerTarget
from pinwarden.registry.names import DEFAULT_CHANNEL
from pinwarden.registry.registry_documents import PublishedVersion

_Result = TypeVar("_Result")
LOGGED = "the pointer is the newest one in the log, and the log was only appended to since you last saw it"
COMPLETE = "every byte of the archive matches the manifest"
FLOOR = "the version is not below the requested minimum"


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
    root: TrustedRegistry
    fresh: LogPosition | None

    @property
    def documents(self) -> BundleDocuments:
        """Its descriptor and manifest."""
        return self.opened.documents


class InstallDecision(Record):
    """The outcome of every check, and the accepted bundle or the refusal."""

    plan: tuple[CheckResult, ...]
    accepted: AcceptedBundle | None = None
    refusal: Rejection | None = None
    exit_code: int = 0


def decide_install(request: InstallRequest, source: BundleSource) -> InstallDecision:
    """Run all checks. If the channel moves while they run, they run once more."""
    decision = _Checks(request, source).run()
    if decision.refusal is not None and decision.refusal.code == "POINTER_STALE":
        return _Checks(request, source).run()
    return decision


class _Refused(Exception):  # noqa: N818  # it carries an answer
    def __init__(self, refusal: Rejection, exit_code: int) -> None:
        super().__init__(refusal.code)
        self.refusal, self.exit_code = refusal, exit_code


class _Checks:
    """One run of the checks; records a plan line for each."""

    def __init__(self, request: InstallRequest, source: BundleSource) -> None:
        self._question, self._source = request, source
        self._trusted = request.trusted
        self._lines: list[CheckResult] = []

    def run(self) -> InstallDecision:
        """Run all checks in order."""
        try:
            accepted = self._accepted()
        except _Refused as stop:
            return InstallDecision(plan=tuple(self._lines), refusal=stop.refusal, exit_code=stop.exit_code)
        return InstallDecision(plan=tuple(self._lines), accepted=accepted)

    def _accepted(self) -> AcceptedBundle:
        request, source = self._question, self._source
        # 1 to 8. The acceptance steps.
        submission, root = self._submission()
        verdict = accept(submission)
        self._rulebook(verdict, root)
        if verdict.provenance is None:
            raise TypeError("an accepted bundle has a provenance")
        documents = verdict.documents or self._check(COMPLETE, lambda: _checked_documents(submission))
        provenance = verdict.provenance
        pointed = PointerTarget(
            tool=provenance.tool,
            channel=provenance.channel,
            root_cid=provenance.root_cid,
            descriptor_cid=provenance.descriptor_cid,
        )
        version = documents.descriptor.version
        # What the acceptance steps do not cover.
        if request.floor is not None:
            self._check(FLOOR, lambda: _check_floor(request, version))
            self._passed(FLOOR, f"{version} is at or above {request.floor}")
        fresh = None
        if request.literal:
            self._lines.append(CheckResult(step=None, check=LOGGED, result="not checked", detail="--literal"))
        else:
            fresh = self._check(
                LOGGED, lambda: check_logged(pointed, version, source, root, request.trust_path, request.now)
            )
            witnesses = f", cosigned by {fresh.witnesses} witnesses" if fresh.witnesses else ""
            self._passed(LOGGED, f"event {fresh.index} of {fresh.size} in {fresh.log_id}{witnesses}")
        published, opened = self._check(COMPLETE, lambda: _open_archive(source, documents, root.key.key))
        self._passed(COMPLETE, f"{len(opened.contents)} files, {opened.content_hash}")
        # 9. Accepted.
        detail = f"{pointed.tool} {version}: {pointed.root_cid}"
        self._lines.append(CheckResult(step=ACCEPTED, check="accepted, with provenance", result=PASSED, detail=detail))
        return AcceptedBundle(opened=opened, provenance=provenance, published=published, root=root, fresh=fresh)

    def _submission(self) -> tuple[AcceptanceRequest, TrustedRegistry]:
        request, source = self._question, self._source
        try:
            submission = AcceptanceRequest(
                pointer=source.pointer(request.tool, request.channel),
                descriptor=b"",
                manifest=b"",
                policy=request.policy,
                trust=request.trusted.trust,
                now=request.now,
                tool=request.tool,
                channel=request.channel,
                literal=request.literal,
            )
        except PinwardenError as err:
            self._stop(self._why_none(err), err.exit_code, 1)
        try:
            pointer, key_id = self._first_steps(submission)
        except PinwardenError as err:
            self._stop(err if request.trusted.registries else _no_registry_trusted(err), EXIT_REFUSED)
        submission = replace(submission, trust=self._trusted.trust)
        root = self._trusted.find_registry(key_id)
        if root is None:
            raise TypeError("the registry that signed the pointer is in the trust store")
        try:
            papers = source.papers(str(pointer.get("root_cid")), str(pointer.get("descriptor_cid")))
        except PinwardenError as err:
            self._stop(err, err.exit_code, 3, {1: _registry_name(root)})
        filled = replace(
            submission, descriptor=papers.descriptor, manifest=papers.manifest, attestations=papers.attestations
        )
        return filled, root

    def _why_none(self, err: PinwardenError) -> PinwardenError:
        """Explain a missing pointer, if the log says that it was removed."""
        request, log = self._question, self._source.log
        if err.code != "POINTER_NOT_FOUND" or request.literal or log is None or not request.trusted.registries:
            return err
        from pinwarden.install.freshness import explain_missing_pointer

        asked = request.tool, request.channel
        return explain_missing_pointer(err, log, request.trusted, request.trust_path, asked, request.now)

    def _first_steps(self, submission: AcceptanceRequest) -> tuple[dict[str, Any], str]:
        """Check the pointer's signature. An unknown key may be the new key of a trusted registry; then its log says so.

        If that cannot be established, the error stays that of the first step.
        """
        request, log = self._question, self._source.log
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

    def _stop(
        self, err: PinwardenError, exit_code: int, step: int | None = None, details: dict[int, str] | None = None
    ) -> NoReturn:
        refusal = rejection_from_error(err)
        self._lines += step_results(refusal, details or {}, step)
        raise _Refused(refusal, exit_code) from err

    def _rulebook(self, verdict: AcceptanceResult, root: TrustedRegistry) -> None:
        names = {trusted.key.key_id: trusted.key.name or trusted.key.key_id for trusted in self._trusted.keys}
        details = {1: _registry_name(root)}
        if verdict.provenance is not None:
            used = dict.fromkeys(names.get(key_id, key_id) for key_id in verdict.provenance.attestations_used)
            details[6] = ", ".join(used)
            details[7] = f"at least {verdict.provenance.min_attestations}"
        if verdict.documents is not None:
            policy = verdict.documents.descriptor.policy
            details[8] = f"network {policy.network}, filesystem {policy.filesystem}, exec {policy.exec}"
        self._lines += step_results(verdict.rejection, details)
        if verdict.rejection is not None:
            if verdict.rejection.code in ("DOCUMENT_INVALID", "TOOL_NAME_MISMATCH"):
                detail = f"{verdict.rejection.what} ({verdict.rejection.code})"
                check = "the documents have the expected types and name the requested tool"
                self._lines.append(CheckResult(step=None, check=check, result=FAILED, detail=detail))
            raise _Refused(verdict.rejection, EXIT_REFUSED)

    def _check(self, check: str, run: Callable[[], _Result]) -> _Result:
        try:
            return run()
        except PinwardenError as err:
            self._line_failed(check, err)
            raise _Refused(rejection_from_error(err), err.exit_code) from err

    def _line_failed(self, check: str, err: PinwardenError) -> None:
        detail = f"{err.message} ({err.code})"
        self._lines.append(CheckResult(step=None, check=check, result=FAILED, detail=detail))

    def _passed(self, check: str, detail: str) -> None:
        self._lines.append(CheckResult(step=None, check=check, result=PASSED, detail=detail))


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


def _registry_name(root: TrustedRegistry) -> str:
    return root.key.name or root.key.key_id


def _checked_documents(submission: AcceptanceRequest) -> BundleDocuments:
    """With --literal, documents are accepted that were not validated; validate them before anything is unpacked."""
    return check_documents(submission.descriptor, submission.manifest)


def _check_floor(request: InstallRequest, version: str) -> None:
    if request.floor is None:
        return
    # A version that cannot be compared is refused: descriptors may have versions that are not semantic versions.
    if not are_comparable(version, request.floor) or compare_versions(version, request.floor) < 0:
        raise PinwardenError(
            "VERSION_BELOW_FLOOR",
            f"{request.tool} on {request.channel} is {version}, below the minimum {request.floor}",
            data={"version": version, "floor": request.floor},
        )


def _open_archive(
    source: BundleSource, documents: BundleDocuments, key: PublicKey
) -> tuple[PublishedVersion | None, OpenedBundle]:
    descriptor = documents.descriptor
    published = source.published(descriptor.name, descriptor.version, key)
    if published is not None and (published.root_cid, published.descriptor_cid) != (
        documents.root_cid,
        documents.descriptor_cid,
    ):
        raise PinwardenError("ARTIFACT_MISMATCH", "the registry's entry for this version describes another bundle")
    opened = open_bundle(documents, source.archive(published))
    if published is not None:
        check_content_hash(opened.content_hash, parse_content_hash(published.content_hash), descriptor.name)
    return published, opened
