"""Implements Python packaging rules: project names (PEP 503), versions (PEP 440), file names and wheel selection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from pinwarden.core.errors import PinwardenError
from pinwarden.lock.closure import ClosureFile, ClosurePackage

if TYPE_CHECKING:
    from packaging.tags import Tag
    from packaging.version import Version

FileKind = Literal["wheel", "sdist", "other"]

_MAX_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9._+!-]+")
_SDIST_ENDINGS = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar.Z", ".tar")
_OTHER_ENDINGS = (".egg", ".exe", ".msi", ".rpm", ".deb", ".dmg")


def normalize_name(name: str) -> str:
    """Return the normalised form of a project name (PEP 503). Raises ``PACKAGE_INVALID`` if it is not valid."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise PinwardenError("PACKAGE_INVALID", f"{name[:120]!a} is not a Python package name")
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_exact_version(text: str) -> Version:
    """Parse an exact PEP 440 version. Raises ``PACKAGE_INVALID`` for ranges and wildcards."""
    version = _parse_version(text)
    if version is None:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not an exact Python package version")
    return version


def is_same_version(text: str, other_text: str) -> bool:
    """Whether two strings are the same version by PEP 440. False if one of the strings is not a version."""
    first, second = _parse_version(text), _parse_version(other_text)
    return first is not None and first == second


def _parse_version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    if len(text) > _MAX_NAME or not text.isascii() or text != text.strip():
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def quote_path_segment(text: str) -> str:
    """Percent-encode a name so that it is one segment of a URL path."""
    return quote(text, safe="")


def is_safe_file_name(name: str) -> bool:
    """Whether a file name is safe in paths and URLs."""
    return len(name) <= _MAX_NAME and _FILE_NAME.fullmatch(name) is not None and not name.startswith(".")


def classify_file(name: str) -> FileKind:
    """Return whether a file is a wheel, a source archive or another file. Like installers, looks only at the name."""
    if name.endswith(".whl"):
        return "wheel"
    return "sdist" if name.endswith(_SDIST_ENDINGS) else "other"


def is_release_file(file_name: str, project: str, version: str) -> bool:
    """Whether a file belongs to a release. ``1.0`` and ``1.0.0`` are the same release (PEP 440)."""
    project, wanted_version = normalize_name(project), parse_exact_version(version)
    if file_name.endswith(".whl"):
        return _parse_wheel_name(file_name) == (project, wanted_version)
    for ending in _SDIST_ENDINGS:
        if file_name.endswith(ending):
            return any(
                _parse_version(remainder) == wanted_version
                for remainder in _strip_project_name(file_name.removesuffix(ending), project)
            )
    for ending in _OTHER_ENDINGS:
        if file_name.endswith(ending):
            remainders = _strip_project_name(file_name.removesuffix(ending), project)
            return any(_starts_with_version(remainder, wanted_version) for remainder in remainders)
    return False


def parse_file_version(file_name: str, project: str) -> Version | None:
    """Return the version of a wheel or source archive; None for other files."""
    project = normalize_name(project)
    if file_name.endswith(".whl"):
        name_and_version = _parse_wheel_name(file_name)
        return name_and_version[1] if name_and_version is not None and name_and_version[0] == project else None
    for ending in _SDIST_ENDINGS:
        if file_name.endswith(ending):
            versions = map(_parse_version, _strip_project_name(file_name.removesuffix(ending), project))
            return next((version for version in versions if version is not None), None)
    return None


def _parse_wheel_name(file_name: str) -> tuple[str, Version] | None:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return None
    return name, version


def _strip_project_name(stem: str, project: str) -> list[str]:
    """Return everything that can follow the project name in a file name.

    There may be several results, because names and versions in old file names contain dashes.
    """
    dashes = [position for position, character in enumerate(stem) if character == "-"]
    return [stem[position + 1 :] for position in dashes if re.sub(r"[-_.]+", "-", stem[:position]).lower() == project]


def _starts_with_version(remainder: str, wanted_version: Version) -> bool:
    """Whether a text starts with this version. In names of Windows installers and eggs, more text follows it."""
    parts = re.split(r"([-.])", remainder)
    return any(_parse_version("".join(parts[:count])) == wanted_version for count in range(1, len(parts) + 1, 2))


ChosenWheel = tuple[ClosurePackage, ClosureFile]
"""A package and the file chosen for an environment."""


def choose_wheels(
    packages: Sequence[ClosurePackage], environment: Mapping[str, str], tags: Sequence[Tag]
) -> tuple[ChosenWheel, ...]:
    """Return the packages that an environment (PEP 508) needs, each with its best wheel.

    ``tags`` are the environment's compatibility tags, best first.
    """
    chosen: dict[str, ChosenWheel] = {}
    for package in packages:
        if not is_marker_satisfied(package.marker, environment):
            continue
        if package.name in chosen:
            raise PinwardenError("CLOSURE_INVALID", f"two versions of {package.name} apply to the same environment")
        best = choose_best_wheel([file.name for file in package.files], tags)
        if best is None:
            raise PinwardenError(
                "NO_USABLE_FILE",
                f"{package.name} {package.version} has no wheel for this platform",
                data={"package": package.name, "version": package.version},
            )
        chosen[package.name] = package, next(file for file in package.files if file.name == best)
    return tuple(chosen.values())


def is_marker_satisfied(marker: str, environment: Mapping[str, str]) -> bool:
    """Whether a marker is empty or true for an environment. Raises ``CLOSURE_INVALID`` if it is malformed."""
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    if not marker:
        return True
    full: dict[str, Any] = {**environment, "extras": frozenset(), "dependency_groups": frozenset()}
    try:
        return Marker(marker).evaluate(full, context="lock_file")
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, KeyError, RecursionError) as err:
        raise PinwardenError("CLOSURE_INVALID", f"invalid environment marker {marker[:120]!a}") from err


def choose_best_wheel(names: Iterable[str], tags: Sequence[Tag]) -> str | None:
    """Return the wheel with the best tag and then the highest build number, as pip and uv do; None if none fits."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    rank = {tag: position for position, tag in reversed(list(enumerate(tags)))}
    best: tuple[tuple[int, Any], str] | None = None
    for name in sorted(names):
        try:
            _, _, build, wheel_tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        positions = [rank[tag] for tag in wheel_tags if tag in rank]
        if not positions:
            continue
        key = (-min(positions), build)
        if best is None or key > best[0]:
            best = (key, name)
    return None if best is None else best[1]
