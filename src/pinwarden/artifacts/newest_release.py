"""The newest release among those a registry lists, by the rules of the ecosystem's own installer.

This module verifies nothing: Pinwarden hashes a release when it locks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.npm_package import NpmName, check_version, parse_packument
from pinwarden.artifacts.pypi_index import ReleaseFile
from pinwarden.artifacts.python_package import parse_exact_version, parse_file_version
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

if TYPE_CHECKING:
    from packaging.version import Version

# A tag that names a release: a version and perhaps a variant (v1.2.3, 1.2-alpine, server-4.0). A single number after a
# word is a commit or a build (sha-1234567, pr-12), where a higher number does not mean a newer release.
_RELEASE_TAG = re.compile(
    r"(?P<before>v?|(?:[A-Za-z_.-]{0,40}[A-Za-z_-])(?=[0-9]+\.[0-9]))"
    r"(?P<numbers>[0-9]{1,9}(?:\.[0-9]{1,9}){0,5})(?P<after>(?![0-9]).*|)"
)


class NewestRelease(Record):
    """A release that a registry lists."""

    version: str
    """For an image, the tag."""
    published_at: str | None = None
    publisher: str | None = None
    deprecated: str | None = None
    """The registry's warning, if the release is deprecated."""
    digest: Digest | None = None
    """For an image, the digest the tag points to."""


def choose_npm_release(document: Any, name: NpmName) -> NewestRelease | None:
    """Return the release npm installs by default: the one tagged ``latest``."""
    tags = document.get("dist-tags") if isinstance(document, dict) else None
    latest = tags.get("latest") if isinstance(tags, dict) else None
    if latest is None:
        return None
    release = parse_packument(document, name, check_version(latest)) if isinstance(latest, str) else None
    if release is None:
        raise PinwardenError("FETCH_FAILED", "the packument has no release under its tag latest")
    return NewestRelease(
        version=latest, published_at=release.published_at, publisher=release.publisher, deprecated=release.deprecated
    )


def choose_python_release(files: Iterable[ReleaseFile], project: str, locked: str) -> NewestRelease | None:
    """Return the highest version with a file that is not yanked. Pre-releases count only if ``locked`` is one."""
    allow_prereleases = parse_exact_version(locked).is_prerelease
    by_version: dict[Version, list[ReleaseFile]] = {}
    for file in files:
        version = parse_file_version(file.name, project) if file.yanked is None else None
        if version is not None and (allow_prereleases or not version.is_prerelease):
            by_version.setdefault(version, []).append(file)
    if not by_version:
        return None
    highest = max(by_version)
    times = sorted(file.uploaded_at for file in by_version[highest] if file.uploaded_at)
    return NewestRelease(version=str(highest), published_at=times[0] if times else None)


def is_release_tag(tag: str) -> bool:
    """Whether a tag names a release, unlike ``latest`` or ``main``."""
    return _RELEASE_TAG.fullmatch(tag) is not None


def choose_tag(tags: Sequence[str], locked: str) -> str | None:
    """The highest tag of the same form as ``locked``: the same count of numbers, and the same text around them."""
    current = _RELEASE_TAG.fullmatch(locked)
    if current is None:
        return None
    same_form = [
        match for tag in tags if (match := _RELEASE_TAG.fullmatch(tag)) and _tag_form(match) == _tag_form(current)
    ]
    return max(same_form, key=_tag_numbers)[0] if same_form else None


def is_newer_tag(tag: str, locked: str) -> bool:
    """Whether ``tag`` names a later release than ``locked``."""
    candidate, current = _RELEASE_TAG.fullmatch(tag), _RELEASE_TAG.fullmatch(locked)
    return candidate is not None and current is not None and _tag_numbers(candidate) > _tag_numbers(current)


def _tag_form(match: re.Match[str]) -> tuple[str, int, str]:
    return match["before"], match["numbers"].count("."), match["after"]


def _tag_numbers(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(map(int, match["numbers"].split(".")))
