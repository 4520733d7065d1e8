"""The newest release of a package, out of what its registry lists. Which one counts is the rule of its own installer.

Nothing here is proven: a registry says it, and whoever agrees to a release has its bytes hashed afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.npm_package import NpmName, check_version, parse_packument
from pinwarden.artifacts.python_index import ReleaseFile
from pinwarden.artifacts.python_package import exact_version, file_version
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

if TYPE_CHECKING:
    from packaging.version import Version

# A tag that names a release: numbers, and around them what says which build of it (v1.2.3, 1.2-alpine, server-4.0).
# A single number behind a word is a commit or a build (sha-1234567, pr-12), of which a higher one means nothing.
_TAG = re.compile(
    r"(?P<before>v?|(?:[A-Za-z_.-]{0,40}[A-Za-z_-])(?=[0-9]+\.[0-9]))"
    r"(?P<numbers>[0-9]{1,9}(?:\.[0-9]{1,9}){0,5})(?P<after>(?![0-9]).*|)"
)


class Newest(Record):
    """A release that a registry has."""

    version: str
    """For an image its tag."""
    published_at: str | None = None
    publisher: str | None = None
    withdrawn: str | None = None
    """The registry's words, where it advises against this release."""
    digest: Digest | None = None
    """Of an image."""


def newest_npm(document: Any, name: NpmName) -> Newest | None:
    """What npm installs where nobody names a version: the release under the tag ``latest``."""
    tags = document.get("dist-tags") if isinstance(document, dict) else None
    latest = tags.get("latest") if isinstance(tags, dict) else None
    if latest is None:
        return None
    told = parse_packument(document, name, check_version(latest)) if isinstance(latest, str) else None
    if told is None:
        raise PinwardenError("FETCH_FAILED", "the registry's document has no release under its tag latest")
    return Newest(version=latest, published_at=told.published_at, publisher=told.publisher, withdrawn=told.deprecated)


def newest_python(files: Iterable[ReleaseFile], project: str, locked: str) -> Newest | None:
    """The highest version with a file that is not withdrawn; previews count only for whoever has one already."""
    previews = exact_version(locked).is_prerelease
    found: dict[Version, list[ReleaseFile]] = {}
    for file in files:
        version = file_version(file.name, project) if file.yanked is None else None
        if version is not None and (previews or not version.is_prerelease):
            found.setdefault(version, []).append(file)
    if not found:
        return None
    highest = max(found)
    times = sorted(file.uploaded_at for file in found[highest] if file.uploaded_at)
    return Newest(version=str(highest), published_at=times[0] if times else None)


def is_release_tag(tag: str) -> bool:
    """Whether a tag names a release, in contrast to ``latest`` or ``main``."""
    return _TAG.fullmatch(tag) is not None


def newest_tag(tags: Sequence[str], locked: str) -> str | None:
    """The highest of the tags that are built like the locked one: as many numbers, the same words around them."""
    meant = _TAG.fullmatch(locked)
    if meant is None:
        return None
    alike = [found for tag in tags if (found := _TAG.fullmatch(tag)) and _shape(found) == _shape(meant)]
    return max(alike, key=_numbers)[0] if alike else None


def is_newer_tag(tag: str, locked: str) -> bool:
    """Whether one of two tags that are built alike names the later release."""
    one, other = _TAG.fullmatch(tag), _TAG.fullmatch(locked)
    return one is not None and other is not None and _numbers(one) > _numbers(other)


def _shape(found: re.Match[str]) -> tuple[str, int, str]:
    return found["before"], found["numbers"].count("."), found["after"]


def _numbers(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(map(int, found["numbers"].split(".")))
