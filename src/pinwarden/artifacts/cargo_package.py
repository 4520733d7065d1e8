"""What a Cargo registry says: names, lines of the sparse index, where crates are downloaded, and ``Cargo.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record

# https://doc.rust-lang.org/cargo/reference/registry-index.html
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VERSION = re.compile(
    r"(?:0|[1-9]\d{0,18})\.(?:0|[1-9]\d{0,18})\.(?:0|[1-9]\d{0,18})"
    r"(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_MARKERS = ("{crate}", "{version}", "{prefix}", "{lowerprefix}", "{sha256-checksum}")
_LINE_LIMITS = Limits(max_bytes=1024 * 1024)
_MAX_LINES = 20_000


class IndexLine(Record):
    """One version in the index."""

    checksum: Digest
    yanked: bool
    published_at: str | None


class CrateManifest(Record):
    """What ``Cargo.toml`` says."""

    name: str
    version: str
    repository: str | None
    build: bool | None
    """Whether a program is run before building; None where the presence of ``build.rs`` decides."""


def check_name(text: str) -> str:
    """The name of a crate. It may stand in an address or path afterwards."""
    if not _NAME.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the name of a crate")
    return text


def check_version(text: str) -> str:
    """One exact version."""
    if len(text) > 256 or not _VERSION.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not one exact version of a crate")
    return text


def index_path(name: str) -> str:
    """The file of a crate in the index."""
    return f"{_prefix(name.lower())}/{name.lower()}"


def parse_index(body: bytes, name: str, version: str) -> IndexLine | None:
    """The line of one version; None if there is none. Every line must be about the crate that was asked for."""
    lines = body.split(b"\n", _MAX_LINES)
    if len(lines) > _MAX_LINES:
        _refuse(f"has more than {_MAX_LINES} versions")
    rows = [strict_json.parse(line, _LINE_LIMITS) for line in lines if line.strip()]
    if not all(isinstance(row, dict) and row.get("name") == name for row in rows):
        _refuse("is not about the crate that was asked for")
    found = [row for row in rows if row.get("vers") == version]
    if len(found) > 1:
        _refuse(f"has version {version} twice")
    return _line(found[0]) if found else None


def download_url(template: str, name: str, version: str, checksum: Digest) -> str:
    """Where a crate is, by the ``dl`` member of the registry's configuration."""
    if not any(marker in template for marker in _MARKERS):
        template = f"{template.rstrip('/')}/{{crate}}/{{version}}/download"
    values = (name, quote(version, safe=""), _prefix(name), _prefix(name.lower()), checksum.hex)
    for marker, value in zip(_MARKERS, values, strict=True):
        template = template.replace(marker, value)
    return template


def parse_manifest(data: bytes) -> CrateManifest:
    """The package of a ``Cargo.toml`` as it is inside a published crate, with nothing inherited."""
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", "the Cargo.toml of the crate cannot be read") from err
    package = document.get("package", document.get("project"))
    if not isinstance(package, dict):
        raise PinwardenError("ARCHIVE_UNSAFE", "the Cargo.toml of the crate names no package")
    build = package.get("build")
    return CrateManifest(
        name=_text(package, "name") or "",
        version=_text(package, "version") or "",
        repository=_text(package, "repository"),
        build=None if build is None else build is not False,
    )


def _line(row: Mapping[str, Any]) -> IndexLine:
    checksum = row.get("cksum")
    if not isinstance(checksum, str):
        _refuse("has no checksum")
    return IndexLine(
        checksum=Digest.parse(f"sha256:{checksum}"),
        yanked=row.get("yanked") is not False and row.get("yanked") is not None,
        published_at=_text(row, "pubtime"),
    )


def _prefix(name: str) -> str:
    if len(name) <= 2:
        return str(len(name))
    return f"3/{name[0]}" if len(name) == 3 else f"{name[:2]}/{name[2:4]}"


def _text(row: Mapping[str, Any], member: str) -> str | None:
    value = row.get(member)
    return value if isinstance(value, str) else None


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("FETCH_FAILED", f"the registry's index {why}", data={"reason": "protocol"})
