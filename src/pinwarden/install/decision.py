"""The plan of an install: the nine steps of the rulebook, then what it leaves open (the log, the bytes).

Exactly one code answers: that of the first check that fails. The rulebook's own steps go first, so none of our codes
ever stands before one of its.
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
    CheckResult,
    accept,
    check_documents,
    check_pointer,
    step_results,
)
from pinwarden.bundle.acceptance_result import (
    AcceptanceRequest,
    AcceptanceResult,
    BundleDocuments,
    Provenance,
    Rejection,
    rejection_from_error,
)
from pinwarden.bundle.bundle_files import OpenedBundle, open_bundle
from pinwarden.bundle.trust import InstallerPolicy
from pinwarden.bundle.trust_store import TrustedRegistry, TrustStore
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.versions import are_comparable, compare_versions
from pinwarden.install.freshness import Fresh, check_fresh, renewed_trust
from pinwarden.install.sources import BundleSource
from pinwarden.registry.log_verification import PointerTarget
from pinwarden.registry.names import DEFAULT_CHANNEL
from pinwarden.registry.registry_documents import PublishedVersion

_Found = TypeVar("_Found")
LOGGED = "the pointer is logged, is the newest, and the log only grew since you last saw it"
WHOLE = "every byte of the archive is what the manifest names"
FLOOR = "the version is not below the least that was asked for"


class Question(Record):
    """What is to be installed, and by whose rules."""

    tool: str
    channel: str = DEFAULT_CHANNEL
    floor: str | None = None
    literal: bool = False
    policy: InstallerPolicy
    trusted: TrustStore
    trust_path: Path
    now: str


class Accepted(Record):
    """A bundle that passed every check, in memory."""

    opened: OpenedBundle
    provenance: Provenance
    published: PublishedVersion | None
    root: TrustedRegistry
    fresh: Fresh | None

    @property
    def documents(self) -> BundleDocuments:
        """Its descriptor and manifest."""
        return self.opened.documents


class Judged(Record):
    """What the plan came to."""

    lines: tuple[CheckResult, ...]
    accepted: Accepted | None = None
    refusal: Rejection | None = None
    exit_code: int = 0


def judge(question: Question, source: BundleSource) -> Judged:
    """Take the plan. A channel that moved between two questions to the registry is asked about once more."""
    judged = _Plan(question, source).run()
    if judged.refusal is not None and judged.refusal.code == "POINTER_STALE":
        return _Plan(question, source).run()
    return judged


class _Stopped(Exception):  # noqa: N818  # it carries an answer
    def __init__(self, refusal: Rejection, exit_code: int) -> None:
        super().__init__(refusal.code)
        self.refusal, self.exit_code = refusal, exit_code


class _Plan:
    """One run of the plan; every line is written down as it is taken."""

    def __init__(self, question: Question, source: BundleSource) -> None:
        self._question, self._source = question, source
        self._trusted = question.trusted
        self._lines: list[CheckResult] = []

    def run(self) -> Judged:
        """All steps in their order."""
        try:
            accepted = self._accepted()
        except _Stopped as stop:
            return Judged(lines=tuple(self._lines), refusal=stop.refusal, exit_code=stop.exit_code)
        return Judged(lines=tuple(self._lines), accepted=accepted)

    def _accepted(self) -> Accepted:
        question, source = self._question, self._source
        # 1 to 8. The rulebook.
        submission, root = self._submission()
        verdict = accept(submission)
        self._rulebook(verdict, root)
        if verdict.provenance is None:
            raise TypeError("an accepted bundle has a provenance")
        documents = verdict.documents or self._check(WHOLE, lambda: _safe(submission))
        provenance = verdict.provenance
        pointed = PointerTarget(
            tool=provenance.tool,
            channel=provenance.channel,
            root_cid=provenance.root_cid,
            descriptor_cid=provenance.descriptor_cid,
        )
        version = documents.descriptor.version
        # What the rulebook leaves open.
        if question.floor is not None:
            self._check(FLOOR, lambda: _check_floor(question, version))
            self._passed(FLOOR, f"{version} is at or above {question.floor}")
        fresh = None
        if question.literal:
            self._lines.append(CheckResult(step=None, check=LOGGED, result="not checked", detail="--literal"))
        else:
            fresh = self._check(
                LOGGED, lambda: check_fresh(pointed, version, source, root, question.trust_path, question.now)
            )
            witnesses = f", seen by {fresh.witnesses} witnesses" if fresh.witnesses else ""
            self._passed(LOGGED, f"event {fresh.index} of {fresh.size} in {fresh.log_id}{witnesses}")
        published, opened = self._check(WHOLE, lambda: _opened(source, documents, root.key.key))
        self._passed(WHOLE, f"{len(opened.contents)} files, {opened.content_hash}")
        # 9. Accepted.
        told = f"{pointed.tool} {version}: {pointed.root_cid}"
        self._lines.append(
            CheckResult(step=ACCEPTED, check="accepted, with its provenance", result=PASSED, detail=told)
        )
        return Accepted(opened=opened, provenance=provenance, published=published, root=root, fresh=fresh)

    def _submission(self) -> tuple[AcceptanceRequest, TrustedRegistry]:
        question, source = self._question, self._source
        try:
            submission = AcceptanceRequest(
                pointer=source.pointer(question.tool, question.channel),
                descriptor=b"",
                manifest=b"",
                policy=question.policy,
                trust=question.trusted.trust,
                now=question.now,
                tool=question.tool,
                channel=question.channel,
                literal=question.literal,
            )
        except PinwardenError as err:
            self._stop(self._why_none(err), err.exit_code, 1)
        try:
            pointer, key_id = self._first_steps(submission)
        except PinwardenError as err:
            self._stop(err if question.trusted.registries else _nobody_trusted(err), EXIT_REFUSED)
        submission = replace(submission, trust=self._trusted.trust)
        root = self._trusted.find_registry(key_id)
        if root is None:
            raise TypeError("a trusted registry is in the store")
        try:
            papers = source.papers(str(pointer.get("root_cid")), str(pointer.get("descriptor_cid")))
        except PinwardenError as err:
            self._stop(err, err.exit_code, 3, {1: _who(root)})
        filled = replace(
            submission, descriptor=papers.descriptor, manifest=papers.manifest, attestations=papers.attestations
        )
        return filled, root

    def _why_none(self, err: PinwardenError) -> PinwardenError:
        """A pointer that is not there may have been taken away; the log says so, and why."""
        question, log = self._question, self._source.log
        if err.code != "POINTER_NOT_FOUND" or question.literal or log is None or not question.trusted.registries:
            return err
        from pinwarden.install.freshness import why_no_pointer

        asked = question.tool, question.channel
        return why_no_pointer(err, log, question.trusted, question.trust_path, asked, question.now)

    def _first_steps(self, submission: AcceptanceRequest) -> tuple[dict[str, Any], str]:
        """Whose pointer it is. A key that nobody knows may be the new one of a registry that is trusted: its log says.

        Whatever is wrong there, the answer stays that of the first step.
        """
        question, log = self._question, self._source.log
        try:
            return check_pointer(submission)
        except PinwardenError as err:
            if (
                err.code != "POINTER_SIGNATURE_INVALID"
                or question.literal
                or log is None
                or not question.trusted.registries
            ):
                raise
            try:
                renewed = renewed_trust(log, question.trusted, question.trust_path, question.now)
            except PinwardenError as why:
                told = f"{err.message}; nor does the log lead to a new key of one: {why.message} ({why.code})"
                raise PinwardenError(err.code, told, data={**err.data, "log": why.code}) from why
            if renewed is None:
                raise
        self._trusted = renewed
        return check_pointer(replace(submission, trust=renewed.trust))

    def _stop(
        self, err: PinwardenError, exit_code: int, step: int | None = None, details: dict[int, str] | None = None
    ) -> NoReturn:
        refusal = rejection_from_error(err)
        self._lines += step_results(refusal, details or {}, step)
        raise _Stopped(refusal, exit_code) from err

    def _rulebook(self, verdict: AcceptanceResult, root: TrustedRegistry) -> None:
        names = {each.key.key_id: each.key.name or each.key.key_id for each in self._trusted.keys}
        details = {1: _who(root)}
        if verdict.provenance is not None:
            used = dict.fromkeys(names.get(each, each) for each in verdict.provenance.attestations_used)
            details[6] = ", ".join(used)
            details[7] = f"at least {verdict.provenance.min_attestations}"
        if verdict.documents is not None:
            asked = verdict.documents.descriptor.policy
            details[8] = f"network {asked.network}, filesystem {asked.filesystem}, exec {asked.exec}"
        self._lines += step_results(verdict.rejection, details)
        if verdict.rejection is not None:
            if verdict.rejection.code in ("DOCUMENT_INVALID", "TOOL_NAME_MISMATCH"):
                told = f"{verdict.rejection.what} ({verdict.rejection.code})"
                check = "the documents are of their kinds, and of the tool that was asked for"
                self._lines.append(CheckResult(step=None, check=check, result=FAILED, detail=told))
            raise _Stopped(verdict.rejection, EXIT_REFUSED)

    def _check(self, check: str, run: Callable[[], _Found]) -> _Found:
        try:
            return run()
        except PinwardenError as err:
            self._line_failed(check, err)
            raise _Stopped(rejection_from_error(err), err.exit_code) from err

    def _line_failed(self, check: str, err: PinwardenError) -> None:
        told = f"{err.message} ({err.code})"
        self._lines.append(CheckResult(step=None, check=check, result=FAILED, detail=told))

    def _passed(self, check: str, detail: str) -> None:
        self._lines.append(CheckResult(step=None, check=check, result=PASSED, detail=detail))


def _nobody_trusted(err: PinwardenError) -> PinwardenError:
    """The same, for somebody who has not said yet which registry they trust."""
    if err.code != "POINTER_SIGNATURE_INVALID":
        return err
    return PinwardenError(
        err.code,
        f"{err.message}: you trust none yet",
        hint="Get the registry's key by a way that you trust, then: pinwarden trust add KEY --role registry.",
        data=err.data,
    )


def _who(root: TrustedRegistry) -> str:
    return root.key.name or root.key.key_id


def _safe(submission: AcceptanceRequest) -> BundleDocuments:
    """By the letter anything may be accepted; what is unpacked is safe all the same."""
    return check_documents(submission.descriptor, submission.manifest)


def _check_floor(question: Question, version: str) -> None:
    if question.floor is None:
        return
    # What cannot be compared is not above: descriptors may have versions that are none by Semantic Versioning.
    if not are_comparable(version, question.floor) or compare_versions(version, question.floor) < 0:
        raise PinwardenError(
            "VERSION_BELOW_FLOOR",
            f"{question.tool} on {question.channel} is {version}, below {question.floor}",
            data={"version": version, "floor": question.floor},
        )


def _opened(
    source: BundleSource, documents: BundleDocuments, key: PublicKey
) -> tuple[PublishedVersion | None, OpenedBundle]:
    descriptor = documents.descriptor
    published = source.published(descriptor.name, descriptor.version, key)
    if published is not None and (published.root_cid, published.descriptor_cid) != (
        documents.root_cid,
        documents.descriptor_cid,
    ):
        raise PinwardenError("ARTIFACT_MISMATCH", "the registry's page of this version is about another bundle")
    opened = open_bundle(documents, source.archive(published))
    if published is not None:
        check_content_hash(opened.content_hash, parse_content_hash(published.content_hash), descriptor.name)
    return published, opened
