"""Parses npm's formats: package names, integrity strings, packuments, ``package.json`` and ``package-lock.json``.

All input is untrusted. A packument for another package than the requested one is refused.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from posixpath import basename, normpath
from typing import Any, NoReturn
from urllib.parse import quote

from pinwarden.artifacts.artifact import ReleaseFacts
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.lock.closure import LIMITS, is_node_modules_path

INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
"""The scripts that npm runs when it installs a package, in this order."""

_GYP_SCRIPT = "node-gyp rebuild"  # npm's default install script for packages with a binding.gyp

# https://github.com/npm/validate-npm-package-name. Existing packages with old names may have capital letters.
_NAME_PART = re.compile(r"[A-Za-z0-9~-][A-Za-z0-9._~-]*")
_MAX_NAME = 214
_RESERVED_NAMES = frozenset({"node_modules", "favicon.ico"})
# https://semver.org, with npm's length limits.
_VERSION = re.compile(
    r"(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})"
    r"(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_MAX_VERSION = 256
_HEX = re.compile(r"[0-9a-fA-F]+")
_MAX_SIGNATURES = 20


class NpmName(Record):
    """A valid package name, split into scope and bare name."""

    scope: str
    """The scope with its ``@``; empty if the name has none."""
    bare: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.bare}" if self.scope else self.bare

    @property
    def in_url(self) -> str:
        """The name as one URL path segment."""
        return quote(str(self), safe="@~")


class Integrity(Record):
    """A parsed Subresource Integrity string."""

    text: str
    digests: tuple[Digest, ...]
    sha1: tuple[bytes, ...] = ()
    """SHA-1 digests. A mismatch is reported, but a match is no evidence, because SHA-1 collisions exist."""


class SignatureClaim(Record):
    """An unverified registry signature from a packument."""

    key_id: str
    signature: bytes | None
    """The signature; None if it is not valid base64."""


class InstallManifest(Record):
    """The fields of a manifest that npm uses on installation, normalised so that equivalent manifests are equal."""

    name: str
    version: str
    dependencies: Mapping[str, str]
    scripts: Mapping[str, str]
    """The scripts that npm runs on installation, by event."""
    programs: Mapping[str, str] | None
    """The path of each program by name; None if the package declares a folder of programs instead."""


class PackumentVersion(Record):
    """One version in a packument."""

    tarball: str
    integrity: Integrity | None
    shasum: bytes | None
    signatures: tuple[SignatureClaim, ...]
    has_attestations: bool
    """Whether the packument announces attestations."""
    facts: ReleaseFacts
    announces_install_script: bool
    install_manifest: InstallManifest = field(repr=False)


def parse_name(text: str) -> NpmName:
    """Parse a package name by npm's rules. Raises ``PACKAGE_INVALID`` if it is not valid."""
    scope, slash, bare = text.rpartition("/")
    parts = [scope[1:], bare] if slash else [bare]
    is_well_formed = all(_NAME_PART.fullmatch(part) for part in parts) and (not slash or scope.startswith("@"))
    if not is_well_formed or len(text) > _MAX_NAME or bare.lower() in _RESERVED_NAMES:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the name of an npm package")
    return NpmName(scope=scope, bare=bare)


def check_version(text: str) -> str:
    """Return an exact version unchanged. Raises ``PACKAGE_INVALID`` for ranges and tags."""
    if len(text) > _MAX_VERSION or not _VERSION.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not an exact npm version")
    return text


def parse_integrity(text: str) -> Integrity:
    """Parse a Subresource Integrity string. Like npm, ignores unknown algorithms."""
    digests: list[Digest] = []
    sha1: list[bytes] = []
    for word in text.split():
        value = word.partition("?")[0]
        algorithm, _, encoded = value.partition("-")
        if algorithm in ("sha256", "sha384", "sha512"):
            digests.append(Digest.parse(value))
        elif algorithm == "sha1":
            sha1.append(_parse_base64(encoded, 20))
    if not digests and not sha1:
        raise PinwardenError("DIGEST_INVALID", f"{text[:100]!a} has no digest with a supported algorithm")
    return Integrity(text=text, digests=tuple(dict.fromkeys(digests)), sha1=tuple(sha1))


def parse_packument(document: Any, name: NpmName, version: str) -> PackumentVersion | None:
    """Parse one version in a packument. Returns None if the packument does not list this version."""
    if not isinstance(document, dict) or document.get("name") != str(name):
        _refuse_packument("is for a different package")
    versions = document.get("versions", {})
    if not isinstance(versions, dict):
        _refuse_packument("has a member versions that is not an object")
    if version not in versions:
        return None
    manifest = versions[version]
    if not isinstance(manifest, dict) or (manifest.get("name"), manifest.get("version")) != (str(name), version):
        _refuse_packument(f"has a different package under version {version}")
    return _parse_version(manifest, _string_or_none(_as_object(document.get("time")).get(version)))


def parse_install_manifest(manifest: Any, *, has_gyp: bool = False) -> InstallManifest:
    """Parse the fields of a ``package.json``, or of a packument's copy of it, that npm uses to install the package."""
    document = _as_object(manifest)
    name = (_string_or_none(document.get("name")) or "").strip()
    scripts = _select_strings(document.get("scripts"))
    install_scripts = {key: scripts[key] for key in INSTALL_SCRIPTS if scripts.get(key)}
    if has_gyp and document.get("gypfile") is not False and not {"install", "preinstall"} & install_scripts.keys():
        install_scripts["install"] = _GYP_SCRIPT
    return InstallManifest(
        name=name,
        version=_normalize_version(_string_or_none(document.get("version")) or ""),
        dependencies={
            **_parse_ranges(document.get("dependencies")),
            **_parse_ranges(document.get("optionalDependencies")),
        },
        scripts=install_scripts,
        programs=_parse_programs(document, name),
    )


def compare_manifests(published: InstallManifest, packed: InstallManifest) -> tuple[str, ...]:
    """Return the fields in which the packument and the tarball's package.json differ ("manifest confusion")."""
    pairs = {
        "name": (published.name, packed.name),
        "version": (published.version, packed.version),
        "dependencies": (dict(published.dependencies), dict(packed.dependencies)),
        "scripts": (_list_declared_scripts(published), _list_declared_scripts(packed)),
    }
    if published.programs is not None and packed.programs is not None:
        pairs["bin"] = (dict(published.programs), dict(packed.programs))
    return tuple(field for field, (published_value, packed_value) in pairs.items() if published_value != packed_value)


def _list_declared_scripts(manifest: InstallManifest) -> dict[str, str]:
    """Return the install scripts without npm's default node-gyp script, which only some packuments contain."""
    return {name: text for name, text in manifest.scripts.items() if text != _GYP_SCRIPT}


def _parse_version(manifest: dict[str, Any], published_at: str | None) -> PackumentVersion:
    dist = manifest.get("dist")
    if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
        _refuse_packument("has no tarball URL")
    integrity, shasum = dist.get("integrity"), dist.get("shasum")
    if integrity is not None and not isinstance(integrity, str):
        _refuse_packument("has an integrity that is not a string")
    repository = manifest.get("repository")
    return PackumentVersion(
        tarball=dist["tarball"],
        integrity=parse_integrity(integrity) if integrity else None,
        shasum=_parse_hex(shasum, 20) if shasum else None,
        signatures=_parse_signatures(dist.get("signatures")),
        has_attestations=bool(dist.get("attestations")),
        facts=ReleaseFacts(
            published_at=published_at,
            publisher=_string_or_none(_as_object(manifest.get("_npmUser")).get("name")),
            repository=_string_or_none(repository) or _string_or_none(_as_object(repository).get("url")),
            yanked=_parse_deprecation(manifest.get("deprecated")),
        ),
        announces_install_script=manifest.get("hasInstallScript") is True,
        install_manifest=parse_install_manifest(manifest, has_gyp=manifest.get("gypfile") is True),
    )


def _parse_deprecation(value: Any) -> str | None:
    if not value:
        return None
    return value if isinstance(value, str) else "deprecated"


def _parse_signatures(value: Any) -> tuple[SignatureClaim, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_SIGNATURES:
        _refuse_packument(f"has signatures that are not a list, or more than {_MAX_SIGNATURES}")
    claims = []
    for claim in map(_as_object, value):
        key_id, text = _string_or_none(claim.get("keyid")) or "", _string_or_none(claim.get("sig")) or ""
        try:
            signature: bytes | None = b64decode(text, validate=True)
        except (BinasciiError, ValueError):
            signature = None
        claims.append(SignatureClaim(key_id=key_id, signature=signature))
    return tuple(claims)


def _parse_programs(document: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return programs as npm links them: names without folders, and paths relative to the package's root."""
    value = document.get("bin")
    if not value and _as_object(document.get("directories")).get("bin"):
        return None
    if isinstance(value, str):
        value = {name.rpartition("/")[2]: value}
    elif isinstance(value, list):
        value = {basename(path): path for path in value if isinstance(path, str)}
    texts = _select_strings(value)
    return {basename(key.replace("\\", "/")): normpath(f"/{path}").lstrip("/") for key, path in texts.items() if path}


def _parse_ranges(value: Any) -> dict[str, str]:
    if isinstance(value, list):  # obsolete syntax
        value = {
            requirement.partition("@")[0]: requirement.partition("@")[2]
            for requirement in value
            if isinstance(requirement, str)
        }
    return {name: text.strip() or "*" for name, text in _select_strings(value).items()}


def _normalize_version(text: str) -> str:
    """Remove a leading ``v`` and build metadata from a version, as npm does."""
    return text.strip().lstrip("=v").strip().partition("+")[0]


def _string_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _select_strings(value: Any) -> dict[str, str]:
    return {name: text for name, text in _as_object(value).items() if isinstance(text, str)}


def _parse_base64(text: str, size: int) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError):
        raw = b""
    if len(raw) != size:
        raise PinwardenError("DIGEST_INVALID", f"{text[:100]!a} is not a base64 digest of {size} bytes")
    return raw


def _parse_hex(text: Any, size: int) -> bytes:
    if not isinstance(text, str) or len(text) != 2 * size or not _HEX.fullmatch(text):
        _refuse_packument("has a shasum that is not a SHA-1 digest")
    return bytes.fromhex(text)


def _refuse_packument(problem: str) -> NoReturn:
    raise PinwardenError("FETCH_FAILED", f"the packument {problem}", data={"reason": "protocol"})


# package-lock.json


class ResolvedPackage(Record):
    """One package in a package-lock.json, for one folder of ``node_modules``."""

    name: str
    version: str
    path: str
    url: str
    """The download URL; empty if npm's settings omit it from the lock."""
    integrity: tuple[Digest, ...]
    """The registry's digests with the strongest algorithm. The tarball must match one of them."""
    systems: tuple[str, ...] = ()
    processors: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    optional: bool = False
    install_scripts: bool = False


def parse_npm_lock(data: bytes) -> tuple[ResolvedPackage, ...]:
    """Return every package that npm would install, sorted by folder."""
    document = strict_json.parse_json(data, LIMITS)
    packages = document.get("packages") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("lockfileVersion") != 3 or not isinstance(packages, dict):
        _refuse_lock("is not a package-lock.json of lockfileVersion 3")
    # A bundled package is in the tarball of its parent and has no tarball of its own.
    return tuple(
        _parse_package(path, package)
        for path, package in sorted(packages.items())
        if path and not (isinstance(package, dict) and package.get("inBundle"))
    )


def _parse_package(path: str, package: Any) -> ResolvedPackage:
    if not isinstance(package, dict) or not is_node_modules_path(path):
        _refuse_lock(f"has a package outside node_modules: {path[:200]!a}")
    if package.get("link"):
        _refuse_lock(f"links {path[:200]!a} to a local folder")
    name = package.get("name") or path.rpartition("node_modules/")[2]
    version, url, integrity = package.get("version"), package.get("resolved", ""), package.get("integrity")
    if not isinstance(name, str) or not isinstance(version, str) or not isinstance(url, str):
        _refuse_lock(f"has no name, version or URL for {path[:200]!a}")
    if url and not url.startswith(("https://", "http://")):
        _refuse_lock(f"has {name[:120]!a} from a source other than a registry")
    if not isinstance(integrity, str) or not integrity:
        _refuse_lock(f"has no integrity value for {name[:120]!a}")
    return ResolvedPackage(
        name=name,
        version=version,
        path=path,
        url=url,
        integrity=select_strongest_digests(integrity),
        systems=_parse_names(package, "os"),
        processors=_parse_names(package, "cpu"),
        libraries=_parse_names(package, "libc"),
        optional=bool(package.get("optional") or package.get("devOptional")),
        install_scripts=bool(package.get("hasInstallScript")),
    )


def select_strongest_digests(integrity: str) -> tuple[Digest, ...]:
    """Return the digests of a Subresource Integrity string that use its strongest algorithm. SHA-1 does not count."""
    digests: list[Digest] = []
    for word in integrity.split():
        try:
            digests.append(Digest.parse(word.partition("?")[0]))
        except PinwardenError:
            continue
    strongest = max((digest.algorithm for digest in digests), default="")
    return tuple(digest for digest in digests if digest.algorithm == strongest)


def _parse_names(package: dict[str, Any], member: str) -> tuple[str, ...]:
    value = package.get(member, [])
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _refuse_lock(f"has a {member} that is not a list of names")
    return tuple(names)


def _refuse_lock(problem: str) -> NoReturn:
    raise PinwardenError("CLOSURE_INVALID", f"npm's package-lock.json {problem}")
