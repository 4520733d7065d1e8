"""Parses ``pylock.toml`` (PEP 751) as uv writes it: packages and their files with hashes.

The parser refuses files without a SHA-256, and packages from a repository, a folder or an archive outside an index.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from pinwarden.artifacts.python_package import (
    classify_file,
    is_release_file,
    is_safe_file_name,
    normalize_name,
    parse_exact_version,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

MAX_BYTES = 64 * 1024 * 1024
"""Enough for any real closure: with 1,000 packages and all their wheels, a ``pylock.toml`` has about 10 MB."""

_MAX_PACKAGES = 5000
_MAX_FILES = 2000
_MAX_SIZE = 16 * 1024 * 1024 * 1024
_MAX_MARKER = 10_000


class PylockDistribution(Record):
    """One installable file."""

    name: str
    url: str
    sha256: Digest
    size: int | None = None
    uploaded_at: str | None = None


class PylockPackage(Record):
    """One version of a package, for environments that match the marker."""

    name: str
    version: str
    marker: str = ""
    wheels: tuple[PylockDistribution, ...] = ()
    sdist: PylockDistribution | None = None


class Pylock(Record):
    """A parsed lock file."""

    packages: tuple[PylockPackage, ...]
    requires_python: str = ""


def parse_pylock(data: bytes) -> Pylock:
    """Parse a ``pylock.toml``. Raises ``CLOSURE_INVALID`` if a package is ambiguous or has a file without a hash."""
    if len(data) > MAX_BYTES:
        _refuse(f"is larger than {MAX_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as err:
        raise PinwardenError("CLOSURE_INVALID", "the pylock.toml is not valid TOML") from err
    if not re.fullmatch(r"1\.[0-9]+", str(document.get("lock-version", ""))):
        _refuse(f"has the unsupported lock-version {str(document.get('lock-version'))[:20]!a}")
    tables = document.get("packages")
    if not isinstance(tables, list) or not tables or len(tables) > _MAX_PACKAGES:
        _refuse(f"has no packages, or more than {_MAX_PACKAGES}")
    packages = tuple(_parse_package(table) for table in tables)
    _check_duplicates(packages)
    requires = document.get("requires-python", "")
    if not isinstance(requires, str):
        _refuse("has a requires-python that is not a string")
    return Pylock(packages=packages, requires_python=requires)


def _parse_package(table: Any) -> PylockPackage:
    if not isinstance(table, dict):
        _refuse("has a package that is not a table")
    name = table.get("name")
    if not isinstance(name, str) or not _is_normalized(name):
        _refuse(f"has an invalid package name {str(name)[:120]!a}")
    for source in ("vcs", "directory", "archive"):
        if source in table:
            _refuse(f"has {name} with the source {source}, which Pinwarden does not support")
    version = table.get("version")
    if not isinstance(version, str) or not _is_exact_version(version):
        _refuse(f"has no valid version for {name}")
    marker = table.get("marker", "")
    if not isinstance(marker, str) or len(marker) > _MAX_MARKER:
        _refuse(f"has an invalid marker for {name}")
    wheels = table.get("wheels", [])
    if not isinstance(wheels, list) or len(wheels) > _MAX_FILES:
        _refuse(f"has wheels for {name} that are not a list, or more than {_MAX_FILES}")
    package = PylockPackage(
        name=name,
        version=version,
        marker=marker,
        wheels=tuple(_parse_file(wheel, name, version) for wheel in wheels),
        sdist=_parse_file(table["sdist"], name, version) if "sdist" in table else None,
    )
    _check_files(package)
    return package


def _check_files(package: PylockPackage) -> None:
    name = package.name
    names = [wheel.name for wheel in package.wheels]
    if len(set(names)) != len(names):
        _refuse(f"lists a file of {name} twice")
    if any(classify_file(wheel) != "wheel" for wheel in names):
        _refuse(f"lists a wheel of {name} that is not a .whl file")
    if package.sdist is not None and classify_file(package.sdist.name) != "sdist":
        _refuse(f"lists a source archive of {name} with an unknown file type")
    if not package.wheels and package.sdist is None:
        _refuse(f"has no file for {name}")


def _parse_file(value: Any, package: str, version: str) -> PylockDistribution:
    if not isinstance(value, dict):
        _refuse(f"has a file of {package} that is not a table")
    url = value.get("url")
    if not isinstance(url, str) or "path" in value:
        _refuse(f"has a file of {package} without a URL")
    name = _parse_file_name(value.get("name"), url, package)
    if not is_release_file(name, package, version):
        _refuse(f"lists the file {name} for {package} {version}, but the file is for another package or version")
    size = value.get("size")
    if size is not None and (type(size) is not int or not 0 < size <= _MAX_SIZE):
        _refuse(f"has an invalid size for {name}")
    return PylockDistribution(
        name=name,
        url=url,
        sha256=_parse_sha256(value.get("hashes"), name),
        size=size,
        uploaded_at=_parse_upload_time(value, name),
    )


def _parse_file_name(stated_name: Any, url: str, package: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise PinwardenError("CLOSURE_INVALID", f"the pylock.toml has a malformed URL for {package}") from err
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        _refuse(f"has a file of {package} with an invalid URL")
    name_in_url = unquote(parts.path.rpartition("/")[2])
    name = name_in_url if stated_name is None else stated_name
    if not isinstance(name, str) or name != name_in_url or not is_safe_file_name(name):
        _refuse(f"has a file of {package} whose name differs from the name in its URL")
    return name


def _parse_sha256(hashes: Any, name: str) -> Digest:
    sha256 = hashes.get("sha256") if isinstance(hashes, dict) else None
    if not isinstance(sha256, str):
        _refuse(f"has no SHA-256 for {name}")
    try:
        return Digest.parse(f"sha256:{sha256}")
    except PinwardenError as err:
        raise PinwardenError("CLOSURE_INVALID", f"the pylock.toml has a malformed SHA-256 for {name}") from err


def _parse_upload_time(value: Mapping[str, Any], name: str) -> str | None:
    time = value.get("upload-time")
    if time is None:
        return None
    if not isinstance(time, datetime):
        _refuse(f"has an invalid upload-time for {name}")
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)  # PEP 751: a time without a zone is in UTC
    return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _check_duplicates(packages: tuple[PylockPackage, ...]) -> None:
    """Raise if a version is listed twice, or if one of several versions of a package has no marker."""
    seen: dict[str, list[PylockPackage]] = {}
    for package in packages:
        for other in seen.setdefault(package.name, []):
            if other.version == package.version or not other.marker or not package.marker:
                _refuse(f"lists {package.name} twice for one environment")
        seen[package.name].append(package)


def _is_normalized(name: str) -> bool:
    try:
        return normalize_name(name) == name
    except PinwardenError:
        return False


def _is_exact_version(text: str) -> bool:
    try:
        parse_exact_version(text)
    except PinwardenError:
        return False
    return True


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("CLOSURE_INVALID", f"the pylock.toml {problem}")
