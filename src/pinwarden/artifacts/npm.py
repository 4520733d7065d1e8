"""Fetches npm packages: the packument, the tarball, the registry's signatures and the attestations.

Name, version, dependencies, scripts and programs are read from both the packument and the tarball, because a registry
accepts both from the publisher without comparing them ("manifest confusion").
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit, urlunsplit

from pinwarden.artifacts.archives.package_tarball import PackageJson, read_package_json
from pinwarden.artifacts.artifact import (
    ArtifactAttestation,
    ArtifactFile,
    ArtifactProblem,
    FetchedArtifact,
    PackageRef,
    RegistrySignature,
)
from pinwarden.artifacts.downloads import open_download
from pinwarden.artifacts.endpoints.npm import get_default_registry
from pinwarden.artifacts.newest_release import NewestRelease, choose_npm_release
from pinwarden.artifacts.npm_package import (
    INSTALL_SCRIPTS,
    NpmName,
    PackumentVersion,
    SignatureClaim,
    check_version,
    compare_manifests,
    parse_install_manifest,
    parse_name,
    parse_packument,
)
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_array, split_object
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest
from pinwarden.system.net.network_errors import fetch_error
from pinwarden.system.target import HttpAddress

MANIFEST_MISMATCH = "npm_manifest_mismatch"
SHASUM_MISMATCH = "npm_shasum_mismatch"
ARCHIVE_UNSAFE = "npm_archive_unsafe"

_PACKUMENT_LIMITS = Limits(max_bytes=64 * 1024 * 1024)  # some packages have thousands of versions
_SMALL_LIMITS = Limits(max_bytes=8 * 1024 * 1024)
_MAX_ATTESTATIONS = 20
_HASH_ALGORITHMS = ("sha256", "sha512")
_KEY_SCHEME = "ecdsa-sha2-nistp256"


def fetch_artifact(
    package: PackageRef, fetcher: Fetcher, endpoint: ServiceEndpoint, *, now: str, save_folder: Path | None = None
) -> FetchedArtifact:
    """Fetch one version's packument and tarball, hash the tarball, and verify the registry's signatures."""
    registry = _RegistryPackage(
        name=parse_name(package.name), version=check_version(package.version), endpoint=endpoint, fetcher=fetcher
    )
    # 1. Fetch the packument.
    body = registry.fetch(registry.name.in_url, _PACKUMENT_LIMITS)
    if body is None:
        return FetchedArtifact(package=package, registry=endpoint.url, checked_at=now, missing="package")
    release = parse_packument(_parse_json(body, _PACKUMENT_LIMITS), registry.name, registry.version)
    if release is None:
        return FetchedArtifact(package=package, registry=endpoint.url, checked_at=now, missing="version")
    # 2. Fetch and check the tarball.
    tarball = _fetch_tarball(registry, release, save_folder)
    # 3. Verify the signatures and fetch the attestations.
    signatures = _verify_signatures(registry, release, now)
    attestations = _fetch_attestations(registry) if release.has_attestations else ()
    scripts = tarball.install_scripts | release.install_manifest.scripts.keys() | _find_unnamed_script(release, tarball)
    return FetchedArtifact(
        package=package,
        registry=endpoint.url,
        checked_at=now,
        files=(tarball.file,),
        facts=release.facts,
        install_scripts=tuple(name for name in INSTALL_SCRIPTS if name in scripts),
        signatures=signatures,
        attestations=attestations,
        problems=tarball.problems,
    )


def find_newest_release(
    package: PackageRef,
    fetcher: Fetcher,
    endpoint: ServiceEndpoint,
    wanted: str = "latest",
    preferred: Sequence[str] = (),
) -> NewestRelease | None:
    """Return the release that npm would install today for a tag or range; None if the registry lists none.

    See `choose_npm_release` for ``preferred``.
    """
    registry = _RegistryPackage(name=parse_name(package.name), version="", endpoint=endpoint, fetcher=fetcher)
    body = registry.fetch(registry.name.in_url, _PACKUMENT_LIMITS)
    if body is None:
        return None
    return choose_npm_release(_parse_json(body, _PACKUMENT_LIMITS), registry.name, wanted, preferred)


class _RegistryPackage(Record):
    """One package in one registry."""

    name: NpmName
    version: str
    endpoint: ServiceEndpoint
    fetcher: Fetcher

    def fetch(self, path: str, limits: Limits) -> bytes | None:
        url = f"{self.endpoint.url}{path}"
        request = FetchRequest(endpoint=self.endpoint, url=url, accept="application/json")
        response = self.fetcher.get(request, max_bytes=limits.max_bytes)
        return response.body if response.found else None


class _Tarball(Record):
    file: ArtifactFile
    install_scripts: frozenset[str]
    problems: tuple[ArtifactProblem, ...]


def _find_unnamed_script(release: PackumentVersion, tarball: _Tarball) -> set[str]:
    """Return ``install`` if the registry announces an install script, but neither packument nor tarball names one."""
    known_scripts = release.install_manifest.scripts.keys() | tarball.install_scripts
    return {"install"} if release.announces_install_script and not known_scripts else set()


# The tarball


def choose_tarball_url(release: PackumentVersion, endpoint: ServiceEndpoint) -> str:
    """Return the URL of the tarball: the one in the packument, or the same path at a mirror of the default registry.

    The latter follows npm's ``replace-registry-host``. Plain HTTP is accepted only for the registry's own host.
    """
    try:
        address = HttpAddress.parse(release.tarball)
    except PinwardenError as err:
        raise fetch_error("protocol", "the packument has a tarball URL that is not a web address") from err
    base = endpoint.address
    default = HttpAddress.parse(get_default_registry())
    if address.host == default.host and base.host != default.host:
        return f"{base.scheme}://{base.host_header}{address.path}"
    if address.scheme != "https" and address.origin != base.origin:
        message = f"{address} uses plain HTTP and is not on the registry's host"
        raise PinwardenError("ADDRESS_REFUSED", message, data={"reason": "plain-http"})
    parts = urlsplit(release.tarball)
    return urlunsplit((parts.scheme, address.host_header, parts.path or "/", parts.query, ""))


def _fetch_tarball(registry: _RegistryPackage, release: PackumentVersion, save_folder: Path | None) -> _Tarball:
    claims = release.integrity.digests if release.integrity else ()
    algorithms = tuple(dict.fromkeys((*_HASH_ALGORITHMS, *(claim.algorithm for claim in claims))))
    request = FetchRequest(endpoint=registry.endpoint, url=choose_tarball_url(release, registry.endpoint))
    host = HttpAddress.parse(request.url).host_header
    with open_download(registry.fetcher, request, algorithms=algorithms, save_folder=save_folder) as download:
        problems = _check_sha1(download.stream, release)
        manifest, archive_problems = _read_tarball_manifest(download.stream)
        result = download.result
    file = ArtifactFile(
        name=f"{registry.name.bare}-{registry.version}.tgz",
        size=result.size,
        digests=result.digests,
        claims=claims,
        uploaded_at=release.facts.published_at,
        host=None if host == registry.endpoint.address.host_header else host,
    )
    if manifest is None:
        return _Tarball(file=file, install_scripts=frozenset(), problems=(*problems, *archive_problems))
    packed = parse_install_manifest(manifest.document, has_gyp=manifest.has_gyp)
    differences = compare_manifests(release.install_manifest, packed)
    if differences:
        message = f"the packument and the tarball's package.json differ in: {', '.join(differences)}"
        problems = (*problems, ArtifactProblem(code=MANIFEST_MISMATCH, message=message))
    return _Tarball(file=file, install_scripts=frozenset(packed.scripts), problems=problems)


def _read_tarball_manifest(stream: IO[bytes]) -> tuple[PackageJson | None, tuple[ArtifactProblem, ...]]:
    stream.seek(0)
    try:
        return read_package_json(stream), ()
    except PinwardenError as err:
        return None, (ArtifactProblem(code=ARCHIVE_UNSAFE, message=err.message),)


def _check_sha1(stream: IO[bytes], release: PackumentVersion) -> tuple[ArtifactProblem, ...]:
    """Report a wrong SHA-1 sum: SHA-1 is no evidence, but a wrong sum means that the registry contradicts itself."""
    claimed = {*(release.integrity.sha1 if release.integrity else ()), *([release.shasum] if release.shasum else [])}
    if not claimed:
        return ()
    stream.seek(0)
    actual = hashlib.file_digest(stream, lambda: hashlib.sha1(usedforsecurity=False)).digest()  # type: ignore[arg-type]
    if claimed == {actual}:
        return ()
    return (
        ArtifactProblem(
            code=SHASUM_MISMATCH, message="the tarball does not have the SHA-1 sum that the registry states"
        ),
    )


# The registry's signatures


def _verify_signatures(
    registry: _RegistryPackage, release: PackumentVersion, now: str
) -> tuple[RegistrySignature, ...]:
    if not release.signatures:
        return ()
    body = registry.fetch("-/npm/v1/keys", _SMALL_LIMITS)
    keys = _parse_keys(_parse_json(body, _SMALL_LIMITS)) if body is not None else {}
    integrity = release.integrity.text if release.integrity else ""
    message = f"{registry.name}@{registry.version}:{integrity}".encode()
    signed_at = release.facts.published_at or now
    return tuple(_verify_signature(claim, keys.get(claim.key_id), message, signed_at) for claim in release.signatures)


def _verify_signature(claim: SignatureClaim, key: Any, message: bytes, signed_at: str) -> RegistrySignature:
    if key is None:
        return RegistrySignature(key_id=claim.key_id, state="unknown-key")
    if not _verify_ecdsa(claim, key, message):
        return RegistrySignature(key_id=claim.key_id, state="invalid")
    if key.get("expires") is not None and not _is_before(signed_at, key["expires"]):
        return RegistrySignature(key_id=claim.key_id, state="expired-key")
    return RegistrySignature(key_id=claim.key_id, state="valid")


def _parse_keys(document: Any) -> dict[str, dict[str, Any]]:
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise fetch_error("protocol", "the registry's key document has no list of keys")
    usable = [row for row in rows if isinstance(row, dict) and isinstance(row.get("keyid"), str)]
    return {row["keyid"]: row for row in usable}


def _verify_ecdsa(claim: SignatureClaim, key: dict[str, Any], message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    text = key.get("key")
    if claim.signature is None or not isinstance(text, str) or key.get("scheme", _KEY_SCHEME) != _KEY_SCHEME:
        return False
    try:
        public = load_der_public_key(b64decode(text, validate=True))
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        public.verify(claim.signature, message, ec.ECDSA(SHA256()))
    except (InvalidSignature, BinasciiError, ValueError, TypeError):
        return False
    return True


def _is_before(earlier: Any, later: Any) -> bool:
    """Whether ``earlier`` is before ``later``. False if one of them is not a timestamp."""
    try:
        times = [datetime.fromisoformat(text) for text in (earlier, later)]
    except (ValueError, TypeError):
        return False
    first, second = (time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)
    return first < second


# Attestations


def _fetch_attestations(registry: _RegistryPackage) -> tuple[ArtifactAttestation, ...]:
    """Return the attestations as the registry sent them, unverified."""
    path = f"-/npm/v1/attestations/{registry.name.in_url}@{quote(registry.version, safe='')}"
    body = registry.fetch(path, _SMALL_LIMITS)
    if body is None:
        return ()
    if not isinstance(_parse_json(body, _SMALL_LIMITS), dict):
        raise fetch_error("protocol", "the registry's attestation document is not an object")
    members = dict(split_object(body))
    attestations = split_array(members.get("attestations", b"[]"))
    if len(attestations) > _MAX_ATTESTATIONS:
        raise fetch_error("protocol", f"the registry has more than {_MAX_ATTESTATIONS} attestations for one version")
    return tuple(_parse_attestation(row) for row in attestations)


def _parse_attestation(row: bytes) -> ArtifactAttestation:
    value = _parse_json(row, _SMALL_LIMITS)
    kind = value.get("predicateType") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not isinstance(value.get("bundle"), dict):
        raise fetch_error("protocol", "an attestation from the registry has no predicateType or no bundle")
    return ArtifactAttestation(kind=kind, bundle=dict(split_object(row))["bundle"])


def _parse_json(body: bytes, limits: Limits) -> Any:
    try:
        return strict_json.parse_json(body, limits)
    except PinwardenError as err:
        raise fetch_error("protocol", f"the registry sent invalid JSON: {err}") from err
