"""Download a bundle and decide whether it may be installed. Each download is checked before the next one starts.

``decision.py`` contains the checks and is pure. This module does the downloads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.bundle.acceptance import Provenance, check_pointer
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.bundle_documents import BundleDocuments
from pinwarden.bundle.trust import TrustedRegistry, TrustStore
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.install.decision import (
    BYTES_CHECK,
    LOG_CHECK,
    AcceptedBundle,
    InstallChecks,
    InstallDecision,
    InstallRefusedError,
    InstallRequest,
    LogPosition,
    check_key_current,
    check_published_version,
    describe_registry,
)
from pinwarden.registry.log_client import check_consistency
from pinwarden.registry.log_verification import PointerTarget, verify_proof

if TYPE_CHECKING:
    from pinwarden.bundle.bundle_files import OpenedBundle
    from pinwarden.install.registry_log import LogFollower
    from pinwarden.install.sources import BundleSource
    from pinwarden.registry.registry_documents import PublishedVersion


def download_bundle(request: InstallRequest, source: BundleSource, follower: LogFollower) -> InstallDecision:
    """Download the bundle that a channel points to, and decide whether it may be installed.

    1. Download the pointer.
    2. Verify that a trusted registry signed the pointer. The registry's log may replace a trusted key with a new one.
    3. Download the documents that the pointer names.
    4. Run the nine acceptance steps (``bundle/acceptance.py``).
    5. Refuse a version below the requested minimum.
    6. Follow the registry's log, and check that the pointer is the newest of its channel (not with ``literal``).
    7. Download the archive and verify every byte.

    If the channel moves to another version during the checks, all checks run once more.
    """
    decision = _BundleDownload(request, source, follower).run()
    if decision.refusal is not None and decision.refusal.code == "POINTER_STALE":
        return _BundleDownload(request, source, follower).run()
    return decision


class _BundleDownload:
    def __init__(self, request: InstallRequest, source: BundleSource, follower: LogFollower) -> None:
        self._request, self._source, self._follower = request, source, follower
        self._checks = InstallChecks(request)

    def run(self) -> InstallDecision:
        """Run the steps of `download_bundle` in order, up to the first that fails."""
        try:
            return self._checks.accept(self._download())
        except InstallRefusedError as refused:
            return self._checks.refuse(refused)

    def _download(self) -> AcceptedBundle:
        acceptance_request = self._download_pointer()
        trusted, pointer, registry = self._verify_pointer(acceptance_request)
        acceptance_request = replace(acceptance_request, trust=trusted.trust)
        acceptance_request = self._download_documents(acceptance_request, pointer, registry)
        provenance, documents = self._checks.run_acceptance_steps(acceptance_request, trusted, registry)
        version = documents.descriptor.version
        self._checks.check_minimum(version)
        position = self._check_log(provenance, version, registry)
        published, opened = self._download_archive(documents, registry)
        return AcceptedBundle(
            opened=opened, provenance=provenance, published=published, registry=registry, log_position=position
        )

    def _download_pointer(self) -> AcceptanceRequest:
        install_request, log = self._request, self._source.log
        try:
            pointer = self._source.get_pointer(install_request.tool, install_request.channel)
        except PinwardenError as err:
            error = err
            if err.code == "POINTER_NOT_FOUND" and log is not None and self._may_follow_log:
                error = self._follower.explain_missing_pointer(
                    err, log, install_request.trusted, install_request.tool, install_request.channel
                )
            self._checks.fail_step(error, error.exit_code, 1)
        return AcceptanceRequest(
            pointer=pointer,
            descriptor=b"",
            manifest=b"",
            policy=install_request.policy,
            trust=install_request.trusted.trust,
            now=install_request.now,
            tool=install_request.tool,
            channel=install_request.channel,
            literal=install_request.literal,
        )

    def _verify_pointer(
        self, acceptance_request: AcceptanceRequest
    ) -> tuple[TrustStore, dict[str, Any], TrustedRegistry]:
        """Verify the pointer's signature. Returns the keys that are trusted now, the pointer, and its registry."""
        try:
            trusted, pointer, key_id = self._verify_signature(acceptance_request)
        except PinwardenError as err:
            error = err if self._request.trusted.registries else _explain_no_trusted_registry(err)
            self._checks.fail_step(error, EXIT_REFUSED)  # always raises
        registry = trusted.find_registry(key_id)
        if registry is None:
            raise TypeError("the registry that signed the pointer is not in the trust store")
        return trusted, pointer, registry

    def _verify_signature(self, acceptance_request: AcceptanceRequest) -> tuple[TrustStore, dict[str, Any], str]:
        """Verify the pointer's signature with the trusted keys, or with a new key that the log of a registry names.

        Returns the keys that are trusted now, the pointer, and the id of the key that signed it.
        """
        log = self._source.log
        try:
            return (self._request.trusted, *check_pointer(acceptance_request))
        except PinwardenError as err:
            if err.code != "POINTER_SIGNATURE_INVALID" or log is None or not self._may_follow_log:
                raise
            try:
                renewed = self._follower.trust_after_key_change(log, self._request.trusted)
            except PinwardenError as why:
                message = (
                    f"{err.message}; the log shows no new key of a trusted registry either: {why.message} ({why.code})"
                )
                raise PinwardenError(err.code, message, data={**err.data, "log": why.code}) from why
            if renewed is None:
                raise
        return (renewed, *check_pointer(replace(acceptance_request, trust=renewed.trust)))

    @property
    def _may_follow_log(self) -> bool:
        return not self._request.literal and bool(self._request.trusted.registries)

    def _download_documents(
        self, acceptance_request: AcceptanceRequest, pointer: dict[str, Any], registry: TrustedRegistry
    ) -> AcceptanceRequest:
        try:
            raw = self._source.get_documents(str(pointer.get("root_cid")), str(pointer.get("descriptor_cid")))
        except PinwardenError as err:
            self._checks.fail_step(err, err.exit_code, 3, {1: describe_registry(registry)})  # always raises
        return replace(
            acceptance_request, descriptor=raw.descriptor, manifest=raw.manifest, attestations=raw.attestations
        )

    def _check_log(self, provenance: Provenance, version: str, registry: TrustedRegistry) -> LogPosition | None:
        """Check a pointer against the log of its registry.

        1. Download the pointer's event and inclusion proof, if the source has proofs.
        2. Follow the log from the state that this machine saved, and save the new state.
        3. Verify the proof, and that its checkpoint is consistent with the head of the log.
        4. Check that no later event changes the channel, and that the version was not yanked.
        """
        if self._request.literal:
            self._checks.skip_log()
            return None
        source = self._source
        target = PointerTarget(
            tool=provenance.tool,
            channel=provenance.channel,
            root_cid=provenance.root_cid,
            descriptor_cid=provenance.descriptor_cid,
        )
        with self._checks.fail_check_on_error(LOG_CHECK):
            if source.log is None:
                raise PinwardenError("POINTER_UNLOGGED", f"{source} has no log, and --log does not name one")
            logged_event = source.get_logged_event(target.tool, target.channel)
            if logged_event is None and source.has_proofs:
                raise PinwardenError("POINTER_UNLOGGED", f"{source} has no proof that the pointer is in its log")
            followed = self._follower.follow(source.log, registry)
            check_key_current(registry, followed.state)
            proved_index = None
            if logged_event is not None:
                proved_index, proved_head = verify_proof(
                    target, logged_event.event, logged_event.proof, followed.state, followed.head
                )
                check_consistency(source.log, proved_head, followed.head)
        return self._checks.check_log(target, version, registry, followed.state, followed.head, proved_index)

    def _download_archive(
        self, documents: BundleDocuments, registry: TrustedRegistry
    ) -> tuple[PublishedVersion | None, OpenedBundle]:
        descriptor = documents.descriptor
        with self._checks.fail_check_on_error(BYTES_CHECK):
            published = self._source.get_published_version(descriptor.name, descriptor.version, registry.key.key)
            if published is not None:
                check_published_version(published, documents)
            archive = self._source.get_archive(published)
        return published, self._checks.check_archive(documents, archive, published)


def _explain_no_trusted_registry(err: PinwardenError) -> PinwardenError:
    """Explain a failed signature check to a user who trusts no registry yet. Other errors stay unchanged."""
    if err.code != "POINTER_SIGNATURE_INVALID":
        return err
    return PinwardenError(
        err.code,
        f"{err.message}: you trust no registry yet",
        hint="Get the registry's key over a channel you trust, then: pinwarden trust add KEY --role registry.",
        data=err.data,
    )
