"""Python packages by name: projects (PEP 503), versions (PEP 440), and the names of their files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from packaging.version import Version

Kind = Literal["wheel", "sdist", "other"]

_MAX_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9._+!-]+")
_SDIST_ENDINGS = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar.Z", ".tar")
_OTHER_ENDINGS = (".egg", ".exe", ".msi", ".rpm", ".deb", ".dmg")


def normalized_name(name: str) -> str:
    """A project's name as it stands in addresses (PEP 503)."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise PinwardenError("PACKAGE_INVALID", f"{name[:120]!a} is not the name of a Python package")
    return re.sub(r"[-_.]+", "-", name).lower()


def exact_version(text: str) -> Version:
    """A version that names one release (PEP 440): no range, no wildcard."""
    found = _version(text)
    if found is None:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the exact version of a Python package")
    return found


def same_version(one: str, other: str) -> bool:
    """Whether two spellings mean the same release. Texts that are no versions are the same as nothing."""
    first, second = _version(one), _version(other)
    return first is not None and first == second


def _version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    if len(text) > _MAX_NAME or not text.isascii() or text != text.strip():
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def path_segment(text: str) -> str:
    """A name as one step of an address."""
    return quote(text, safe="")


def is_safe_file_name(name: str) -> bool:
    """Whether a name can stand in a path and an address without meaning anything else."""
    return len(name) <= _MAX_NAME and _FILE_NAME.fullmatch(name) is not None and not name.startswith(".")


def file_kind(name: str) -> Kind:
    """What a file is, by the end of its name, as installers look at it."""
    if name.endswith(".whl"):
        return "wheel"
    return "sdist" if name.endswith(_SDIST_ENDINGS) else "other"


def belongs_to(file_name: str, project: str, version: str) -> bool:
    """Whether a file is one of a release: the same project and, by PEP 440, the same version.

    ``1.0`` and ``1.0.0`` are one release, so a file of either spelling counts.
    """
    project, wanted = normalized_name(project), exact_version(version)
    if file_name.endswith(".whl"):
        return _wheel_belongs(file_name, project, wanted)
    for ending in _SDIST_ENDINGS:
        if file_name.endswith(ending):
            return any(_version(rest) == wanted for rest in _after_project(file_name.removesuffix(ending), project))
    for ending in _OTHER_ENDINGS:
        if file_name.endswith(ending):
            rests = _after_project(file_name.removesuffix(ending), project)
            return any(_starts_with_version(rest, wanted) for rest in rests)
    return False


def file_version(file_name: str, project: str) -> Version | None:
    """The version that a wheel or source archive of a project is of; None for other files."""
    project = normalized_name(project)
    if file_name.endswith(".whl"):
        found = _wheel_version(file_name)
        return found[1] if found is not None and found[0] == project else None
    for ending in _SDIST_ENDINGS:
        if file_name.endswith(ending):
            versions = map(_version, _after_project(file_name.removesuffix(ending), project))
            return next((version for version in versions if version is not None), None)
    return None


def _wheel_belongs(file_name: str, project: str, wanted: Version) -> bool:
    return _wheel_version(file_name) == (project, wanted)


def _wheel_version(file_name: str) -> tuple[str, Version] | None:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return None
    return name, version


def _after_project(stem: str, project: str) -> list[str]:
    """What may follow the project's name; old names hold dashes themselves."""
    dashes = [place for place, character in enumerate(stem) if character == "-"]
    return [stem[place + 1 :] for place in dashes if re.sub(r"[-_.]+", "-", stem[:place]).lower() == project]


def _starts_with_version(rest: str, wanted: Version) -> bool:
    """Windows installers and eggs go on after the version, with a platform or a Python version."""
    parts = re.split(r"([-.])", rest)
    return any(_version("".join(parts[:count])) == wanted for count in range(1, len(parts) + 1, 2))
