"""Version numbers: which one is newer, and whether a version names exactly one release.

``compare_versions`` and ``is_floating_for_toolpin`` behave like ToolPin, because locks contain hashes of its scores.
"""

from __future__ import annotations

import re

from pinwarden.core.errors import PinwardenError

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PART = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"v?({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_FLOATING = re.compile(r"[~^x*]", re.IGNORECASE)
# One release of npm, PyPI, NuGet or Cargo: numbers with dots, then perhaps a suffix. No operators, spaces or names.
_EXACT = re.compile(
    r"v?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*(?:[-._]?[0-9A-Za-z]+(?:[-._][0-9A-Za-z]+)*)?(?:\+[0-9A-Za-z.-]+)?"
)
_WILDCARD_PART = re.compile(r"(?:\A|\.)[xX*](?:\.|\Z)")


def compare_versions(one: str, other: str) -> int:
    """Compare by Semantic Versioning 2.0.0: -1, 0 or 1. Also 0 if one of them is not a semantic version."""
    first, second = _SEMVER.fullmatch(one), _SEMVER.fullmatch(other)
    if first is None or second is None:
        return 0
    left, right = _sort_key(first), _sort_key(second)
    return (left > right) - (left < right)


def are_comparable(one: str, other: str) -> bool:
    """Whether both versions follow Semantic Versioning, so that comparing them is meaningful."""
    return _SEMVER.fullmatch(one) is not None and _SEMVER.fullmatch(other) is not None


def refuse_older(tool: str, version: str, channel: str, present: str | None) -> None:
    """Raise ``VERSION_OLDER`` if a channel at version ``present`` would move back to an older version."""
    if present is not None and compare_versions(version, present) < 0:
        raise PinwardenError(
            "VERSION_OLDER",
            f"{version} is older than {present}, the version of {tool} on {channel}",
            data={"channel": channel, "version": version, "present": present},
        )


def is_floating_for_toolpin(version: str) -> bool:
    """Whether ToolPin 0.5.4 treats a version as floating.

    This repeats a defect of ToolPin, because a hashed score depends on it: the letter x is a wildcard everywhere, so
    1.0.0-next.1 is floating, but ">=1" is not.
    """
    return version.strip().lower() in ("latest", "*") or _FLOATING.search(version) is not None


def is_exact(version: str) -> bool:
    """Whether a version names one release: no range, wildcard or tag such as latest or next."""
    return _EXACT.fullmatch(version) is not None and _WILDCARD_PART.search(version) is None


_SortKey = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


def _sort_key(match: re.Match[str]) -> _SortKey:
    suffix = match[4]
    # A release is newer than its pre-releases. Among pre-releases, numbers come before words (section 11).
    parts = tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in (suffix or "").split("."))
    return int(match[1]), int(match[2]), int(match[3]), suffix is None, parts if suffix is not None else ()
