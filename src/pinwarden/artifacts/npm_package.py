"""What npm's registry says about a package: names, integrity strings, and the document of one version.

Everything here comes from strangers. A document that does not speak of the package that was asked for is refused.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from posixpath import basename, normpath
from typing import Any, NoReturn
from urllib.parse import quote

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
"""What npm runs for a package that it installs, in this order."""

_GYP = "node-gyp rebuild"  # what npm writes into the metadata where a package has binding.gyp

# https://github.com/npm/validate-npm-package-name, for packages that exist: old names may have capitals.
_PART = re.compile(r"[A-Za-z0-9~-][A-Za-z0-9._~-]*")
_MAX_NAME = 214
_FORBIDDEN = frozenset({"node_modules", "favicon.ico"})
# https://semver.org, with the lengths that npm allows.
_VERSION = re.compile(
    r"(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})"
    r"(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_MAX_VERSION = 256
_HEX = re.compile(r"[0-9a-fA-F]+")
_MAX_SIGNATURES = 20


class NpmName(Record):
    """The name of a package, taken apart and checked."""

    scope: str
    """With its ``@``; empty for a package without one."""
    bare: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.bare}" if self.scope else self.bare

    @property
    def in_url(self) -> str:
        """As one step of a path."""
        return quote(str(self), safe="@~")


class Integrity(Record):
    """What an integrity string says."""

    text: str
    digests: tuple[Digest, ...]
    sha1: tuple[bytes, ...] = ()
    """Collisions of SHA-1 can be made, so these prove nothing; that they disagree means something."""


class SignatureClaim(Record):
    """One signature of the registry as the document has it."""

    key_id: str
    signature: bytes | None
    """None where it is not base64."""


class RunInfo(Record):
    """What decides about what is installed and run, in a form in which two spellings of the same thing are equal."""

    name: str
    version: str
    dependencies: Mapping[str, str]
    scripts: Mapping[str, str]
    """Only those that an installation runs."""
    programs: Mapping[str, str] | None
    """By name; None where they are all files of a folder."""


class VersionDocument(Record):
    """What the registry says about one version."""

    tarball: str
    integrity: Integrity | None
    shasum: bytes | None
    signatures: tuple[SignatureClaim, ...]
    attested: bool
    """The document says that there are attestations."""
    published_at: str | None
    publisher: str | None
    repository: str | None
    deprecated: str | None
    says_install_script: bool
    run_info: RunInfo = field(repr=False)


def parse_name(text: str) -> NpmName:
    """A name by npm's rules. It may stand in an address or path afterwards."""
    scope, slash, bare = text.rpartition("/")
    parts = [scope[1:], bare] if slash else [bare]
    shaped = all(_PART.fullmatch(part) for part in parts) and (not slash or scope.startswith("@"))
    if not shaped or len(text) > _MAX_NAME or bare.lower() in _FORBIDDEN:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the name of an npm package")
    return NpmName(scope=scope, bare=bare)


def check_version(text: str) -> str:
    """One exact version."""
    if len(text) > _MAX_VERSION or not _VERSION.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not one exact version of an npm package")
    return text


def parse_integrity(text: str) -> Integrity:
    """Every digest of a Subresource Integrity string. Algorithms that nobody knows are left out, as npm does."""
    digests: list[Digest] = []
    sha1: list[bytes] = []
    for word in text.split():
        value = word.partition("?")[0]
        algorithm, _, rest = value.partition("-")
        if algorithm in ("sha256", "sha384", "sha512"):
            digests.append(Digest.parse(value))
        elif algorithm == "sha1":
            sha1.append(_base64(rest, 20))
    if not digests and not sha1:
        raise PinwardenError("DIGEST_INVALID", f"{text[:100]!a} holds no digest that is known here")
    return Integrity(text=text, digests=tuple(dict.fromkeys(digests)), sha1=tuple(sha1))


def parse_packument(document: Any, name: NpmName, version: str) -> VersionDocument | None:
    """The document of one version, out of the document of the package; None if there is no such version."""
    if not isinstance(document, dict) or document.get("name") != str(name):
        _refuse("is not about the package that was asked for")
    versions = document.get("versions", {})
    if not isinstance(versions, dict):
        _refuse("has versions of the wrong kind")
    if version not in versions:
        return None
    found = versions[version]
    if not isinstance(found, dict) or (found.get("name"), found.get("version")) != (str(name), version):
        _refuse(f"has another package under version {version}")
    return _version(found, _text(_object(document.get("time")).get(version)))


def read_run_info(manifest: Any, *, has_gyp: bool = False) -> RunInfo:
    """What a ``package.json``, or its copy at the registry, makes npm install and run."""
    document = _object(manifest)
    name = (_text(document.get("name")) or "").strip()
    scripts = _texts(document.get("scripts"))
    started = {key: scripts[key] for key in INSTALL_SCRIPTS if scripts.get(key)}
    if has_gyp and document.get("gypfile") is not False and not {"install", "preinstall"} & started.keys():
        started["install"] = _GYP
    return RunInfo(
        name=name,
        version=_clean_version(_text(document.get("version")) or ""),
        dependencies={**_ranges(document.get("dependencies")), **_ranges(document.get("optionalDependencies"))},
        scripts=started,
        programs=_programs(document, name),
    )


def differences(told: RunInfo, real: RunInfo) -> tuple[str, ...]:
    """In which respects the registry tells of something else than what is in the archive ("manifest confusion")."""
    pairs = {
        "name": (told.name, real.name),
        "version": (told.version, real.version),
        "dependencies": (dict(told.dependencies), dict(real.dependencies)),
        "scripts": (_own_scripts(told), _own_scripts(real)),
    }
    if told.programs is not None and real.programs is not None:
        pairs["bin"] = (dict(told.programs), dict(real.programs))
    return tuple(what for what, (one, other) in pairs.items() if one != other)


def _own_scripts(info: RunInfo) -> dict[str, str]:
    """Without the one that follows from binding.gyp: some publishers write it down, others leave it to npm."""
    return {name: text for name, text in info.scripts.items() if text != _GYP}


def _version(found: dict[str, Any], published_at: str | None) -> VersionDocument:
    dist = found.get("dist")
    if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
        _refuse("does not say where the archive is")
    integrity, shasum = dist.get("integrity"), dist.get("shasum")
    if integrity is not None and not isinstance(integrity, str):
        _refuse("has an integrity of the wrong kind")
    repository = found.get("repository")
    return VersionDocument(
        tarball=dist["tarball"],
        integrity=parse_integrity(integrity) if integrity else None,
        shasum=_hex(shasum, 20) if shasum else None,
        signatures=_signatures(dist.get("signatures")),
        attested=bool(dist.get("attestations")),
        published_at=published_at,
        publisher=_text(_object(found.get("_npmUser")).get("name")),
        repository=_text(repository) or _text(_object(repository).get("url")),
        deprecated=_deprecated(found.get("deprecated")),
        says_install_script=found.get("hasInstallScript") is True,
        run_info=read_run_info(found, has_gyp=found.get("gypfile") is True),
    )


def _deprecated(value: Any) -> str | None:
    if not value:
        return None
    return value if isinstance(value, str) else "deprecated"


def _signatures(value: Any) -> tuple[SignatureClaim, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_SIGNATURES:
        _refuse("has signatures of the wrong kind")
    found = []
    for each in map(_object, value):
        key_id, text = _text(each.get("keyid")) or "", _text(each.get("sig")) or ""
        try:
            signature: bytes | None = b64decode(text, validate=True)
        except (BinasciiError, ValueError):
            signature = None
        found.append(SignatureClaim(key_id=key_id, signature=signature))
    return tuple(found)


def _programs(document: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """As npm lays them out: names without folders, paths from the root of the package."""
    value = document.get("bin")
    if not value and _object(document.get("directories")).get("bin"):
        return None
    if isinstance(value, str):
        value = {name.rpartition("/")[2]: value}
    elif isinstance(value, list):
        value = {basename(each): each for each in value if isinstance(each, str)}
    texts = _texts(value)
    return {basename(key.replace("\\", "/")): normpath(f"/{path}").lstrip("/") for key, path in texts.items() if path}


def _ranges(value: Any) -> dict[str, str]:
    if isinstance(value, list):  # an old spelling
        value = {each.partition("@")[0]: each.partition("@")[2] for each in value if isinstance(each, str)}
    return {name: text.strip() or "*" for name, text in _texts(value).items()}


def _clean_version(text: str) -> str:
    """As npm writes it on publishing: without a leading ``v`` and without build metadata."""
    return text.strip().lstrip("=v").strip().partition("+")[0]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> dict[str, str]:
    return {name: text for name, text in _object(value).items() if isinstance(text, str)}


def _base64(text: str, size: int) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError):
        raw = b""
    if len(raw) != size:
        raise PinwardenError("DIGEST_INVALID", f"{text[:100]!a} is not a digest")
    return raw


def _hex(text: Any, size: int) -> bytes:
    if not isinstance(text, str) or len(text) != 2 * size or not _HEX.fullmatch(text):
        _refuse("has a shasum that is not one")
    return bytes.fromhex(text)


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("FETCH_FAILED", f"the registry's document {why}", data={"reason": "protocol"})
