"""``pylock.toml`` (PEP 751) as uv writes it: packages, and for each the files that may be installed, by hash.

Only files with a SHA-256 are taken. Whatever stands for code without one (a repository, a folder, an archive of
unknown making) is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from pinwarden.artifacts.python_package import (
    belongs_to,
    exact_version,
    file_kind,
    is_safe_file_name,
    normalized_name,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

MAX_BYTES = 64 * 1024 * 1024
"""A closure of a thousand packages with all their wheels has about ten megabytes."""

_MAX_PACKAGES = 5000
_MAX_FILES = 2000
_MAX_SIZE = 16 * 1024 * 1024 * 1024
_MAX_MARKER = 10_000


class PylockFile(Record):
    """One file that may be installed."""

    name: str
    url: str
    sha256: Digest
    size: int | None = None
    uploaded_at: str | None = None


class PylockPackage(Record):
    """One package at one version, for the environments that its marker names."""

    name: str
    version: str
    marker: str = ""
    wheels: tuple[PylockFile, ...] = ()
    sdist: PylockFile | None = None


class Pylock(Record):
    """A whole file."""

    packages: tuple[PylockPackage, ...]
    requires_python: str = ""


def parse_pylock(data: bytes) -> Pylock:
    """Read a lock. What has no verifiable bytes, or could be read in two ways, is refused."""
    if len(data) > MAX_BYTES:
        _invalid(f"is larger than {MAX_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as err:
        raise PinwardenError("CLOSURE_INVALID", "the pylock is not TOML") from err
    if not re.fullmatch(r"1\.[0-9]+", str(document.get("lock-version", ""))):
        _invalid(f"is of version {str(document.get('lock-version'))[:20]!a}, which is not read here")
    rows = document.get("packages")
    if not isinstance(rows, list) or not rows or len(rows) > _MAX_PACKAGES:
        _invalid("has no packages, or too many")
    packages = tuple(_package(row) for row in rows)
    _check_distinct(packages)
    requires = document.get("requires-python", "")
    if not isinstance(requires, str):
        _invalid("has a requires-python that is not text")
    return Pylock(packages=packages, requires_python=requires)


def _package(row: Any) -> PylockPackage:
    if not isinstance(row, dict):
        _invalid("has a package that is not a table")
    name = row.get("name")
    if not isinstance(name, str) or not _is_normalized(name):
        _invalid(f"names a package {str(name)[:120]!a}")
    for kind in ("vcs", "directory", "archive"):
        if kind in row:
            _invalid(f"takes {name} from a {kind}, whose bytes nobody can hold against a hash from an index")
    version = row.get("version")
    if not isinstance(version, str) or not _is_version(version):
        _invalid(f"does not say the version of {name}")
    marker = row.get("marker", "")
    if not isinstance(marker, str) or len(marker) > _MAX_MARKER:
        _invalid(f"has a marker for {name} that is not one")
    wheels = row.get("wheels", [])
    if not isinstance(wheels, list) or len(wheels) > _MAX_FILES:
        _invalid(f"has no list of wheels for {name}")
    package = PylockPackage(
        name=name,
        version=version,
        marker=marker,
        wheels=tuple(_file(each, name, version) for each in wheels),
        sdist=_file(row["sdist"], name, version) if "sdist" in row else None,
    )
    _check_files(package)
    return package


def _check_files(package: PylockPackage) -> None:
    name = package.name
    names = [wheel.name for wheel in package.wheels]
    if len(set(names)) != len(names):
        _invalid(f"names a file of {name} twice")
    if any(file_kind(each) != "wheel" for each in names):
        _invalid(f"has a wheel of {name} that is none")
    if package.sdist is not None and file_kind(package.sdist.name) != "sdist":
        _invalid(f"has a source archive of {name} that is none")
    if not package.wheels and package.sdist is None:
        _invalid(f"has no file for {name}")


def _file(value: Any, package: str, version: str) -> PylockFile:
    if not isinstance(value, dict):
        _invalid(f"has a file of {package} that is not a table")
    url = value.get("url")
    if not isinstance(url, str) or "path" in value:
        _invalid(f"has a file of {package} without an address")
    name = _file_name(value.get("name"), url, package)
    if not belongs_to(name, package, version):
        _invalid(f"gives {package} {version} the file {name}, which is of something else")
    size = value.get("size")
    if size is not None and (type(size) is not int or not 0 < size <= _MAX_SIZE):
        _invalid(f"has a size for {name} that no file has")
    return PylockFile(
        name=name, url=url, sha256=_sha256(value.get("hashes"), name), size=size, uploaded_at=_time(value, name)
    )


def _file_name(named: Any, url: str, package: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise PinwardenError("CLOSURE_INVALID", f"the pylock has a malformed address for {package}") from err
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        _invalid(f"has a file of {package} at something that is not a plain web address")
    in_url = unquote(parts.path.rpartition("/")[2])
    name = in_url if named is None else named
    if not isinstance(name, str) or name != in_url or not is_safe_file_name(name):
        _invalid(f"has a file of {package} whose name is not that of its address")
    return name


def _sha256(hashes: Any, name: str) -> Digest:
    found = hashes.get("sha256") if isinstance(hashes, dict) else None
    if not isinstance(found, str):
        _invalid(f"has no SHA-256 for {name}")
    try:
        return Digest.parse(f"sha256:{found}")
    except PinwardenError as err:
        raise PinwardenError("CLOSURE_INVALID", f"the pylock has a false SHA-256 for {name}") from err


def _time(value: Mapping[str, Any], name: str) -> str | None:
    time = value.get("upload-time")
    if time is None:
        return None
    if not isinstance(time, datetime):
        _invalid(f"has an upload-time for {name} that is no time")
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)  # PEP 751: UTC where no zone is given
    return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _check_distinct(packages: tuple[PylockPackage, ...]) -> None:
    """A name may come several times, for different environments, but each version once and each with a marker."""
    seen: dict[str, list[PylockPackage]] = {}
    for package in packages:
        for other in seen.setdefault(package.name, []):
            if other.version == package.version or not other.marker or not package.marker:
                _invalid(f"names {package.name} twice for one environment")
        seen[package.name].append(package)


def _is_normalized(name: str) -> bool:
    try:
        return normalized_name(name) == name
    except PinwardenError:
        return False


def _is_version(text: str) -> bool:
    try:
        exact_version(text)
    except PinwardenError:
        return False
    return True


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("CLOSURE_INVALID", f"the pylock {why}")
