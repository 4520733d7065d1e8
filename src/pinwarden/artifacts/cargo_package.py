"""Parses Cargo's formats: crate names, the sparse index, download URLs and ``Cargo.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

from pinwarden.artifacts.artifact import ReleaseFacts
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits

# https://doc.rust-lang.org/cargo/reference/registry-index.html
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VERSION = re.compile(
    r"(?:0|[1-9]\d{0,18})\.(?:0|[1-9]\d{0,18})\.(?:0|[1-9]\d{0,18})"
    r"(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_URL_MARKERS = ("{crate}", "{version}", "{prefix}", "{lowerprefix}", "{sha256-checksum}")
_ENTRY_LIMITS = Limits(max_bytes=1024 * 1024)
_MAX_ENTRIES = 20_000


class CrateIndexEntry(Record):
    """One version of a crate in the index."""

    checksum: Digest
    facts: ReleaseFacts


class CrateManifest(Record):
    """The fields of a ``Cargo.toml`` that Pinwarden uses."""

    name: str
    version: str
    repository: str | None
    build: bool | None
    """Whether the crate has a build script. None means that cargo runs ``build.rs`` if that file exists."""


def check_name(text: str) -> str:
    """Return a crate name unchanged. Raises ``PACKAGE_INVALID`` if it is not valid."""
    if not _NAME.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the name of a crate")
    return text


def check_version(text: str) -> str:
    """Return an exact version unchanged. Raises ``PACKAGE_INVALID`` for anything else."""
    if len(text) > 256 or not _VERSION.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not an exact crate version")
    return text


def build_index_path(name: str) -> str:
    """Return the path of a crate's file in the index."""
    return f"{_get_index_folder(name.lower())}/{name.lower()}"


def parse_index(body: bytes, name: str, version: str) -> CrateIndexEntry | None:
    """Parse the index entry of one version; None if there is none. Raises if an entry is about another crate."""
    lines = body.split(b"\n", _MAX_ENTRIES)
    if len(lines) > _MAX_ENTRIES:
        _refuse(f"has more than {_MAX_ENTRIES} versions")
    rows = [strict_json.parse_json(line, _ENTRY_LIMITS) for line in lines if line.strip()]
    if not all(isinstance(row, dict) and row.get("name") == name for row in rows):
        _refuse("is about another crate")
    matching = [row for row in rows if row.get("vers") == version]
    if len(matching) > 1:
        _refuse(f"has version {version} twice")
    return _parse_entry(matching[0]) if matching else None


def build_download_url(template: str, name: str, version: str, checksum: Digest) -> str:
    """Return the URL of a crate, from the ``dl`` template in the registry's config.json."""
    if not any(marker in template for marker in _URL_MARKERS):
        template = f"{template.rstrip('/')}/{{crate}}/{{version}}/download"
    values = (name, quote(version, safe=""), _get_index_folder(name), _get_index_folder(name.lower()), checksum.hex)
    for marker, value in zip(_URL_MARKERS, values, strict=True):
        template = template.replace(marker, value)
    return template


def parse_manifest(data: bytes) -> CrateManifest:
    """Parse the ``Cargo.toml`` of a published crate, where cargo has already resolved inherited fields."""
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", "the crate's Cargo.toml is not valid TOML") from err
    package = document.get("package", document.get("project"))
    if not isinstance(package, dict):
        raise PinwardenError("ARCHIVE_UNSAFE", "the crate's Cargo.toml has no [package] table")
    build = package.get("build")
    return CrateManifest(
        name=_get_string(package, "name") or "",
        version=_get_string(package, "version") or "",
        repository=_get_string(package, "repository"),
        build=None if build is None else build is not False,
    )


def _parse_entry(row: Mapping[str, Any]) -> CrateIndexEntry:
    checksum = row.get("cksum")
    if not isinstance(checksum, str):
        _refuse("has no checksum")
    return CrateIndexEntry(
        checksum=Digest.parse(f"sha256:{checksum}"),
        facts=ReleaseFacts(
            published_at=_get_string(row, "pubtime"),
            yanked=None if row.get("yanked") in (False, None) else "yanked",
        ),
    )


def _get_index_folder(name: str) -> str:
    if len(name) <= 2:
        return str(len(name))
    return f"3/{name[0]}" if len(name) == 3 else f"{name[:2]}/{name[2:4]}"


def _get_string(row: Mapping[str, Any], member: str) -> str | None:
    value = row.get(member)
    return value if isinstance(value, str) else None


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("FETCH_FAILED", f"the registry's index {problem}", data={"reason": "protocol"})
