"""Fetches MCPB bundles, hashes them with and without their signature block, and verifies signature and manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinwarden.artifacts import cms
from pinwarden.artifacts.archives.mcpb_archive import (
    hash_content,
    open_content,
    read_bundle_manifest,
    read_bundle_parts,
)
from pinwarden.artifacts.artifact import ArtifactProblem, FetchedArtifact, FileSignature, PackageRef, ReleaseFacts
from pinwarden.artifacts.cms import ParsedCertificate
from pinwarden.artifacts.downloads import format_source, stage_file
from pinwarden.artifacts.mcpb_manifest import BundleManifest, McpbParts
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher

ARCHIVE_UNSAFE = "mcpb_unsafe_archive"
MANIFEST_INVALID = "mcpb_manifest_invalid"
MANIFEST_MISMATCH = "mcpb_manifest_mismatch"
SIGNATURE_INVALID = "mcpb_signature_invalid"
SIGNATURE_UNTRUSTED = "mcpb_signature_untrusted"


class BundleSettings(Record):
    """Requirements of the user's settings and the policy for a bundle."""

    endpoint: ServiceEndpoint | None = None
    """The endpoint, if the user's own settings name the bundle's host. Otherwise the host must be public."""
    manifest_name: str | None = None
    """The name that the manifest must state."""
    anchors: tuple[ParsedCertificate, ...] = ()
    """Certificates that the policy trusts. If there are any, a path must lead from the signer to one of them."""


_NO_SETTINGS = BundleSettings()


def fetch_artifact(
    package: PackageRef,
    fetcher: Fetcher,
    settings: BundleSettings = _NO_SETTINGS,
    *,
    now: str,
    save_folder: Path | None = None,
) -> FetchedArtifact:
    """Fetch and check the bundle at a URL or path."""
    empty = FetchedArtifact(package=package, registry=format_source(package.name), checked_at=now)
    with stage_file(package, fetcher, settings.endpoint, save_folder=save_folder) as staged:
        if staged is None:
            return replace(empty, missing="package")
        # 1. Split the content from the signature block.
        try:
            parts = read_bundle_parts(staged.path)
        except PinwardenError as err:
            invalid_signature = FileSignature(state="invalid", reason=err.message)
            problem = ArtifactProblem(code=SIGNATURE_INVALID, message=err.message)
            return replace(empty, files=(staged.file,), signer=invalid_signature, problems=(problem,))
        file = replace(staged.file, content=hash_content(staged.path, parts.content_size))
        # 2. Verify the signature.
        signer = verify_bundle_signature(staged.path, parts, anchors=settings.anchors, now=now)
        problems: list[ArtifactProblem] = []
        if signer.state == "invalid":
            problems.append(ArtifactProblem(code=SIGNATURE_INVALID, message=signer.reason))
        elif settings.anchors and signer.state != "valid":
            reason = signer.reason or "it has no signature"
            message = f"the bundle is not signed by a certificate that the policy trusts: {reason}"
            problems.append(ArtifactProblem(code=SIGNATURE_UNTRUSTED, message=message))
        # 3. Check the manifest.
        manifest, manifest_problems = _read_manifest(staged.path, parts)
        problems += manifest_problems
        if manifest is not None:
            problems += _check_manifest_name(manifest, settings.manifest_name)
        return replace(
            empty,
            files=(file,),
            signer=signer,
            facts=ReleaseFacts(publisher=manifest.author, repository=manifest.repository)
            if manifest
            else ReleaseFacts(),
            problems=tuple(problems),
        )


def _build_facts(manifest: BundleManifest | None) -> ReleaseFacts:
    if manifest is None:
        return ReleaseFacts()
    return ReleaseFacts(publisher=manifest.author, repository=manifest.repository)


def verify_bundle_signature(
    path: Path, parts: McpbParts, *, anchors: Sequence[ParsedCertificate], now: str
) -> FileSignature:
    """Verify the signature of a bundle."""
    if parts.signature is None:
        return FileSignature(state="unsigned")
    return cms.verify_signature(
        parts.signature, lambda name: hash_content(path, parts.content_size, name), anchors=anchors, now=now
    )


def _read_manifest(path: Path, parts: McpbParts) -> tuple[BundleManifest | None, list[ArtifactProblem]]:
    try:
        with open_content(path, parts) as bundle:
            return read_bundle_manifest(bundle), []
    except PinwardenError as err:
        code = {"ARCHIVE_UNSAFE": ARCHIVE_UNSAFE, "BUNDLE_INVALID": MANIFEST_INVALID}.get(err.code)
        if code is None:
            raise
        return None, [ArtifactProblem(code=code, message=err.message)]


def _check_manifest_name(manifest: BundleManifest, expected: str | None) -> list[ArtifactProblem]:
    if expected is None or manifest.name == expected:
        return []
    message = f"the name in the bundle's manifest is {manifest.name[:120]!a}, but the policy expects {expected[:120]!a}"
    return [ArtifactProblem(code=MANIFEST_MISMATCH, message=message)]
