"""Evaluates npm's version ranges such as ``^1.2``, ``~1.2.3``, ``1.x`` or ``>=1 <3 || 5``.

Follows https://github.com/npm/node-semver#ranges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.versions import compare_versions

_MAX_RANGE = 256  # as in npm
_PART = r"(?:0|[1-9][0-9]{0,8}|[xX*])"
_PARTIAL = rf"v?({_PART})(?:\.({_PART})(?:\.({_PART})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?)?)?"
_COMPARATOR = re.compile(rf"(\^|~>?|[<>]=?|=|)\s*{_PARTIAL}")
_HYPHEN = re.compile(rf"({_PARTIAL})\s+-\s+({_PARTIAL})")

_Comparator = tuple[str, str]
"""An operator and a complete version."""
_Partial = tuple[int | None, int | None, int | None, str]


def find_matching_versions(versions: Iterable[str], wanted: str) -> list[str]:
    """Return the versions that a range allows. Raises ``PACKAGE_INVALID`` if the text is not a range."""
    sets = [list(_parse_comparators(part.strip())) for part in _split_alternatives(wanted)]
    return [version for version in versions if any(_allows(comparators, version) for comparators in sets)]


def _split_alternatives(wanted: str) -> list[str]:
    if len(wanted) > _MAX_RANGE:
        raise _range_error(wanted)
    return wanted.split("||")


def _parse_comparators(text: str) -> Iterator[_Comparator]:
    hyphen = _HYPHEN.fullmatch(text)
    if hyphen is not None:
        yield from _expand_comparator(">=", _parse_partial(hyphen.group(2, 3, 4, 5)))
        yield from _expand_comparator("<=", _parse_partial(hyphen.group(7, 8, 9, 10)))
        return
    position = 0
    while position < len(text):
        match = _COMPARATOR.match(text, position)
        if match is None or (match.end() < len(text) and not text[match.end()].isspace()):
            raise _range_error(text)
        yield from _expand_comparator(
            match[1].rstrip(">") if match[1] == "~>" else match[1], _parse_partial(match.group(2, 3, 4, 5))
        )
        position = len(text) - len(text[match.end() :].lstrip())


def _parse_partial(parts: Sequence[str | None]) -> _Partial:
    numbers = [None if part is None or not part.isdigit() else int(part) for part in parts[:3]]
    for index in (1, 2):
        if numbers[index - 1] is None:
            numbers[index] = None
    return numbers[0], numbers[1], numbers[2], parts[3] or ""


def _expand_comparator(operator: str, partial: _Partial) -> Iterator[_Comparator]:
    major, minor, patch, suffix = partial
    low = f"{major or 0}.{minor or 0}.{patch or 0}" + (f"-{suffix}" if suffix else "")
    if major is None:
        if operator in ("<", ">"):
            yield "<", "0.0.0-0"  # allows no version
        return
    if operator in ("<", ">="):
        yield operator, low if patch is not None or operator == ">=" else f"{low}-0"
        return
    if operator in (">", "<="):
        if patch is not None:
            yield operator, low
        else:
            yield (">=" if operator == ">" else "<"), _next_release(major, minor) + ("" if operator == ">" else "-0")
        return
    if operator in ("", "=") and patch is not None:
        yield "=", low
        return
    yield ">=", low
    yield "<", f"{_compute_upper_bound(operator, major, minor, patch)}-0"


def _compute_upper_bound(operator: str, major: int, minor: int | None, patch: int | None) -> str:
    if operator == "^" and minor is not None:
        if major > 0:
            return f"{major + 1}.0.0"
        return f"0.0.{patch + 1}" if minor == 0 and patch is not None else f"0.{minor + 1}.0"
    return _next_release(major, minor)


def _next_release(major: int, minor: int | None) -> str:
    return f"{major + 1}.0.0" if minor is None else f"{major}.{minor + 1}.0"


def _allows(comparators: Sequence[_Comparator], version: str) -> bool:
    if not all(_compare(operator, version, bound) for operator, bound in comparators):
        return False
    numbers, _, suffix = version.partition("+")[0].removeprefix("v").partition("-")
    # A pre-release is allowed only if a comparator names a pre-release of the same numbers.
    return not suffix or any(
        bound.partition("-")[0] == numbers and "-" in bound and bound.partition("-")[2] != "0"
        for _, bound in comparators
    )


def _compare(operator: str, version: str, bound: str) -> bool:
    order = compare_versions(version, bound)
    return {"=": order == 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def _range_error(text: str) -> PinwardenError:
    return PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is neither a tag of the package nor a version range")
