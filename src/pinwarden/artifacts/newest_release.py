"""Chooses the newest release that a registry lists, by the rules of npm, pip or container tags.

Nothing is verified here. Pinwarden verifies a release when it locks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact import ReleaseFacts
from pinwarden.artifacts.npm_package import NpmName, check_version, parse_packument
from pinwarden.artifacts.npm_range import find_matching_versions
from pinwarden.artifacts.pypi_index import ReleaseFile
from pinwarden.artifacts.python_package import is_same_version, parse_exact_version, parse_file_version
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.versions import compare_versions

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
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
    """The version, or for an image the tag."""
    facts: ReleaseFacts = ReleaseFacts()
    digest: Digest | None = None
    """For an image, the digest that the tag points to."""


def choose_npm_release(
    document: Any, name: NpmName, wanted: str = "latest", preferred: Sequence[str] = ()
) -> NewestRelease | None:
    """Return the release that npm installs for a tag or range, by default for the tag ``latest``.

    A version in ``preferred`` is chosen instead if the registry lists it and the tag or range allows it.
    """
    tags = document.get("dist-tags") if isinstance(document, dict) else None
    tagged = tags.get(wanted) if isinstance(tags, dict) else None
    if tagged is None and wanted == "latest":
        return None
    versions = document.get("versions") if isinstance(document, dict) else None
    listed = [version for version in versions if isinstance(version, str)] if isinstance(versions, dict) else []
    matching = listed if tagged is not None else find_matching_versions(listed, wanted)
    chosen = next((version for version in preferred if version in matching), tagged)
    if chosen is None:
        chosen = _choose_newest_in_range(tags, matching)
    if chosen is None:
        return None
    release = parse_packument(document, name, check_version(chosen)) if isinstance(chosen, str) else None
    if release is None:
        raise PinwardenError("FETCH_FAILED", f"the packument does not list the version of its tag {wanted[:80]}")
    return NewestRelease(version=chosen, facts=release.facts)


def _choose_newest_in_range(tags: Any, matching: Sequence[str]) -> str | None:
    """Return the release with the tag ``latest`` if the range allows it, otherwise the highest version, as npm does."""
    latest = tags.get("latest") if isinstance(tags, dict) else None
    if latest in matching:
        return str(latest)
    return max(matching, key=cmp_to_key(compare_versions), default=None)


def choose_python_release(
    files: Iterable[ReleaseFile], project: str, locked: str, constraint: str = "", preferred: Sequence[str] = ()
) -> NewestRelease | None:
    """Return the highest version with a file that is not yanked. Pre-releases count only if ``locked`` is one.

    A ``constraint`` such as ``>=1,<2`` limits the choice. A version in ``preferred`` is chosen instead if the index
    lists it and the constraint allows it.
    """
    allow_prereleases = parse_exact_version(locked).is_prerelease
    allowed = _parse_specifiers(constraint)
    by_version: dict[Version, list[ReleaseFile]] = {}
    for file in files:
        version = parse_file_version(file.name, project) if file.yanked is None else None
        if version is not None and allowed.contains(version, prereleases=True):
            by_version.setdefault(version, []).append(file)
    wanted = [version for text in preferred for version in by_version if is_same_version(text, str(version))]
    final = [version for version in by_version if allow_prereleases or not version.is_prerelease]
    if not (wanted or final or (by_version and not locked.strip("0"))):
        return None
    # Without any final release, installers choose a pre-release for a requirement without a version.
    chosen = wanted[0] if wanted else max(final or by_version)
    times = sorted(file.uploaded_at for file in by_version[chosen] if file.uploaded_at)
    return NewestRelease(version=str(chosen), facts=ReleaseFacts(published_at=times[0] if times else None))


def _parse_specifiers(constraint: str) -> SpecifierSet:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(constraint)
    except InvalidSpecifier as err:
        raise PinwardenError("PACKAGE_INVALID", f"{constraint[:120]!a} is not a version specifier") from err


def choose_release_tag(tags: Sequence[str]) -> str | None:
    """Return the highest tag that is only a version with a dot, such as ``1.2.3`` or ``v1.2``; None without one."""
    versions = [match for tag in tags if (match := _RELEASE_TAG.fullmatch(tag)) and not match["after"]]
    plain = [match for match in versions if match["before"] in ("", "v") and "." in match["numbers"]]
    return max(plain, key=lambda match: (_parse_tag_numbers(match), match["before"] == ""))[0] if plain else None


def is_release_tag(tag: str) -> bool:
    """Whether a tag names a release, unlike ``latest`` or ``main``."""
    return _RELEASE_TAG.fullmatch(tag) is not None


def choose_tag(tags: Sequence[str], locked: str) -> str | None:
    """Return the highest tag of the same form as ``locked``; None if ``locked`` is no release tag.

    Two tags have the same form if they have as many numbers and the same text around them.
    """
    current = _RELEASE_TAG.fullmatch(locked)
    if current is None:
        return None
    same_form = [
        match
        for tag in tags
        if (match := _RELEASE_TAG.fullmatch(tag)) and _parse_tag_form(match) == _parse_tag_form(current)
    ]
    return max(same_form, key=_parse_tag_numbers)[0] if same_form else None


def is_newer_tag(tag: str, locked: str) -> bool:
    """Whether ``tag`` names a later release than ``locked``."""
    candidate, current = _RELEASE_TAG.fullmatch(tag), _RELEASE_TAG.fullmatch(locked)
    return candidate is not None and current is not None and _parse_tag_numbers(candidate) > _parse_tag_numbers(current)


def _parse_tag_form(match: re.Match[str]) -> tuple[str, int, str]:
    return match["before"], match["numbers"].count("."), match["after"]


def _parse_tag_numbers(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(map(int, match["numbers"].split(".")))
