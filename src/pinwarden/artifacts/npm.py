"""npm packages: the registry's document, the tarball's bytes, the registry's signatures and the attestations.

Everything that decides about what is run is read twice, from the document and from the tarball: a registry takes both
from the publisher and compares nothing ("manifest confusion").
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from binascii import Error as BinasciiError
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit, urlunsplit

from pinwarden.artifacts.artifact import (
    ArtifactFacts,
    ArtifactFile,
    Attestation,
    PackageName,
    Problem,
    RegistrySignature,
)
from pinwarden.artifacts.downloads import downloaded
from pinwarden.artifacts.endpoints.npm import default_registry
from pinwarden.artifacts.newest import Newest, newest_npm
from pinwarden.artifacts.npm_package import (
    INSTALL_SCRIPTS,
    NpmName,
    SignatureClaim,
    VersionDocument,
    check_version,
    differences,
    parse_name,
    parse_packument,
    read_run_info,
)
from pinwarden.artifacts.npm_tarball import TarballManifest, read_manifest
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import array_elements, object_members
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, Wanted
from pinwarden.system.net.fetch_failures import unfetched
from pinwarden.system.target import Address

MANIFEST_MISMATCH = "npm_manifest_mismatch"
SHASUM_MISMATCH = "npm_shasum_mismatch"
ARCHIVE_UNSAFE = "npm_archive_unsafe"

_PACKUMENT_LIMITS = Limits(max_bytes=64 * 1024 * 1024)  # some packages have thousands of versions
_SMALL_LIMITS = Limits(max_bytes=8 * 1024 * 1024)
_MAX_ATTESTATIONS = 20
_ALWAYS = ("sha256", "sha512")
_KEY_KIND = "ecdsa-sha2-nistp256"


class _Registry(Record):
    """One package at one registry."""

    name: NpmName
    version: str
    endpoint: Endpoint
    fetcher: Fetcher

    def document(self, path: str, limits: Limits) -> bytes | None:
        url = f"{self.endpoint.url}{path}"
        wanted = Wanted(endpoint=self.endpoint, url=url, accept="application/json")
        answer = self.fetcher.get(wanted, max_bytes=limits.max_bytes)
        return answer.body if answer.found else None


class _Tarball(Record):
    """What was found in the bytes."""

    file: ArtifactFile
    install_scripts: frozenset[str]
    problems: tuple[Problem, ...]


def facts(
    package: PackageName, fetcher: Fetcher, endpoint: Endpoint, *, now: str, into: Path | None = None
) -> ArtifactFacts:
    """What the registry says about one version, and what its bytes are."""
    registry = _Registry(
        name=parse_name(package.name), version=check_version(package.version), endpoint=endpoint, fetcher=fetcher
    )
    # 1. What the registry says.
    body = registry.document(registry.name.in_url, _PACKUMENT_LIMITS)
    if body is None:
        return ArtifactFacts(package=package, registry=endpoint.url, checked_at=now, missing="package")
    told = parse_packument(_json(body, _PACKUMENT_LIMITS), registry.name, registry.version)
    if told is None:
        return ArtifactFacts(package=package, registry=endpoint.url, checked_at=now, missing="version")
    # 2. What the bytes are.
    tarball = _tarball(registry, told, into)
    # 3. What was signed about them.
    signatures = _signatures(registry, told, now)
    attestations = _attestations(registry) if told.attested else ()
    scripts = tarball.install_scripts | told.run_info.scripts.keys() | _unnamed_script(told, tarball)
    return ArtifactFacts(
        package=package,
        registry=endpoint.url,
        checked_at=now,
        files=(tarball.file,),
        published_at=told.published_at,
        publisher=told.publisher,
        repository=told.repository,
        withdrawn=told.deprecated,
        install_scripts=tuple(name for name in INSTALL_SCRIPTS if name in scripts),
        signatures=signatures,
        attestations=attestations,
        problems=tarball.problems,
    )


def newest(package: PackageName, fetcher: Fetcher, endpoint: Endpoint) -> Newest | None:
    """The release that npm would install today; None if the registry has no such package."""
    registry = _Registry(name=parse_name(package.name), version="", endpoint=endpoint, fetcher=fetcher)
    body = registry.document(registry.name.in_url, _PACKUMENT_LIMITS)
    return None if body is None else newest_npm(_json(body, _PACKUMENT_LIMITS), registry.name)


def _unnamed_script(told: VersionDocument, tarball: _Tarball) -> set[str]:
    """The registry says that there is one, and nothing says which."""
    named = told.run_info.scripts.keys() | tarball.install_scripts
    return {"install"} if told.says_install_script and not named else set()


# The tarball


def tarball_url(told: VersionDocument, endpoint: Endpoint) -> str:
    """Where the bytes are: where the registry says, or at the same path of a mirror of the default registry.

    The latter is what npm does (``replace-registry-host``). Plain http is for the registry's own host only.
    """
    try:
        address = Address.parse(told.tarball)
    except PinwardenError as err:
        raise unfetched("protocol", "the registry's document names a tarball without a web address") from err
    base = endpoint.address
    default = Address.parse(default_registry())
    if address.host == default.host and base.host != default.host:
        return f"{base.scheme}://{base.host_header}{address.path}"
    if address.scheme != "https" and address.origin != base.origin:
        message = f"{address} is not encrypted and not at the registry"
        raise PinwardenError("ADDRESS_REFUSED", message, data={"reason": "plain-http"})
    parts = urlsplit(told.tarball)
    return urlunsplit((parts.scheme, address.host_header, parts.path or "/", parts.query, ""))


def _tarball(registry: _Registry, told: VersionDocument, into: Path | None) -> _Tarball:
    claims = told.integrity.digests if told.integrity else ()
    algorithms = tuple(dict.fromkeys((*_ALWAYS, *(claim.algorithm for claim in claims))))
    wanted = Wanted(endpoint=registry.endpoint, url=tarball_url(told, registry.endpoint))
    host = Address.parse(wanted.url).host_header
    with downloaded(registry.fetcher, wanted, algorithms=algorithms, into=into) as download:
        problems = _sha1_problems(download.stream, told)
        manifest, unreadable = _manifest(download.stream)
        received = download.received
    file = ArtifactFile(
        name=f"{registry.name.bare}-{registry.version}.tgz",
        size=received.size,
        digests=received.digests,
        claims=claims,
        uploaded_at=told.published_at,
        host=None if host == registry.endpoint.address.host_header else host,
    )
    if manifest is None:
        return _Tarball(file=file, install_scripts=frozenset(), problems=(*problems, *unreadable))
    real = read_run_info(manifest.document, has_gyp=manifest.has_gyp)
    wrong = differences(told.run_info, real)
    if wrong:
        message = f"the registry's document and the package.json in the tarball differ: {', '.join(wrong)}"
        problems = (*problems, Problem(code=MANIFEST_MISMATCH, message=message))
    return _Tarball(file=file, install_scripts=frozenset(real.scripts), problems=problems)


def _manifest(stream: IO[bytes]) -> tuple[TarballManifest | None, tuple[Problem, ...]]:
    stream.seek(0)
    try:
        return read_manifest(stream), ()
    except PinwardenError as err:
        return None, (Problem(code=ARCHIVE_UNSAFE, message=err.message),)


def _sha1_problems(stream: IO[bytes], told: VersionDocument) -> tuple[Problem, ...]:
    """SHA-1 proves nothing any more, but a registry whose own sum does not fit its file is not in order."""
    claimed = {*(told.integrity.sha1 if told.integrity else ()), *([told.shasum] if told.shasum else [])}
    if not claimed:
        return ()
    stream.seek(0)
    real = hashlib.file_digest(stream, lambda: hashlib.sha1(usedforsecurity=False)).digest()  # type: ignore[arg-type]
    if claimed == {real}:
        return ()
    return (Problem(code=SHASUM_MISMATCH, message="the bytes do not have the SHA-1 sum that the registry states"),)


# Signatures of the registry


def _signatures(registry: _Registry, told: VersionDocument, now: str) -> tuple[RegistrySignature, ...]:
    if not told.signatures:
        return ()
    body = registry.document("-/npm/v1/keys", _SMALL_LIMITS)
    keys = _keys(_json(body, _SMALL_LIMITS)) if body is not None else {}
    integrity = told.integrity.text if told.integrity else ""
    message = f"{registry.name}@{registry.version}:{integrity}".encode()
    when = told.published_at or now
    return tuple(_signature(claim, keys.get(claim.key_id), message, when) for claim in told.signatures)


def _signature(claim: SignatureClaim, key: Any, message: bytes, when: str) -> RegistrySignature:
    if key is None:
        return RegistrySignature(key_id=claim.key_id, state="unknown-key")
    if not _is_signed(claim, key, message):
        return RegistrySignature(key_id=claim.key_id, state="invalid")
    if key.get("expires") is not None and not _before(when, key["expires"]):
        return RegistrySignature(key_id=claim.key_id, state="expired-key")
    return RegistrySignature(key_id=claim.key_id, state="valid")


def _keys(document: Any) -> dict[str, dict[str, Any]]:
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise unfetched("protocol", "the registry's keys are not a list")
    usable = [row for row in rows if isinstance(row, dict) and isinstance(row.get("keyid"), str)]
    return {row["keyid"]: row for row in usable}


def _is_signed(claim: SignatureClaim, key: dict[str, Any], message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    text = key.get("key")
    if claim.signature is None or not isinstance(text, str) or key.get("scheme", _KEY_KIND) != _KEY_KIND:
        return False
    try:
        public = load_der_public_key(b64decode(text, validate=True))
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        public.verify(claim.signature, message, ec.ECDSA(SHA256()))
    except (InvalidSignature, BinasciiError, ValueError, TypeError):
        return False
    return True


def _before(one: Any, other: Any) -> bool:
    """Whether one moment is certainly before another."""
    try:
        moments = [datetime.fromisoformat(text) for text in (one, other)]
    except (ValueError, TypeError):
        return False
    first, second = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in moments)
    return first <= second


# Attestations


def _attestations(registry: _Registry) -> tuple[Attestation, ...]:
    """The statements as they were sent. None is verified here."""
    path = f"-/npm/v1/attestations/{registry.name.in_url}@{quote(registry.version, safe='')}"
    body = registry.document(path, _SMALL_LIMITS)
    if body is None:
        return ()
    if not isinstance(_json(body, _SMALL_LIMITS), dict):
        raise unfetched("protocol", "the registry's attestations are not an object")
    members = dict(object_members(body))
    rows = array_elements(members.get("attestations", b"[]"))
    if len(rows) > _MAX_ATTESTATIONS:
        raise unfetched("protocol", f"the registry has more than {_MAX_ATTESTATIONS} attestations for one version")
    return tuple(_attestation(row) for row in rows)


def _attestation(row: bytes) -> Attestation:
    value = _json(row, _SMALL_LIMITS)
    kind = value.get("predicateType") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not isinstance(value.get("bundle"), dict):
        raise unfetched("protocol", "an attestation of the registry has no kind or no bundle")
    return Attestation(kind=kind, bundle=dict(object_members(row))["bundle"])


def _json(body: bytes, limits: Limits) -> Any:
    try:
        return strict_json.parse(body, limits)
    except PinwardenError as err:
        raise unfetched("protocol", f"the registry's document cannot be read: {err}") from err
