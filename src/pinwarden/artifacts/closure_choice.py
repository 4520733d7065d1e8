"""Whether an environment needs a package of a Python closure, and which of its wheels an installer would take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.lock.closure import ClosureFile, ClosurePackage

if TYPE_CHECKING:
    from packaging.tags import Tag

Choice = tuple[ClosurePackage, ClosureFile]
"""A package, and the one of its files that is for an environment."""


def choose_wheels(
    packages: Sequence[ClosurePackage], environment: Mapping[str, str], tags: Sequence[Tag]
) -> tuple[Choice, ...]:
    """The packages that an environment (PEP 508) needs, each with its best wheel for an ordered list of tags."""
    chosen: dict[str, Choice] = {}
    for package in packages:
        if not marker_applies(package.marker, environment):
            continue
        if package.name in chosen:
            raise PinwardenError("CLOSURE_INVALID", f"two versions of {package.name} are for the same environment")
        best = best_wheel([file.name for file in package.files], tags)
        if best is None:
            raise PinwardenError(
                "NO_USABLE_FILE",
                f"{package.name} {package.version} has no wheel for this platform",
                data={"package": package.name, "version": package.version},
            )
        chosen[package.name] = package, next(file for file in package.files if file.name == best)
    return tuple(chosen.values())


def marker_applies(marker: str, environment: Mapping[str, str]) -> bool:
    """Whether a package is for an environment. A marker that cannot be read is an error, not a no."""
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    if not marker:
        return True
    full: dict[str, Any] = {**environment, "extras": frozenset(), "dependency_groups": frozenset()}
    try:
        return Marker(marker).evaluate(full, context="lock_file")
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, KeyError, RecursionError) as err:
        raise PinwardenError("CLOSURE_INVALID", f"a marker cannot be read: {marker[:120]!a}") from err


def best_wheel(names: Iterable[str], tags: Sequence[Tag]) -> str | None:
    """The wheel that pip and uv would take: the best tag, then the highest build number. None if none fits."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    rank = {tag: place for place, tag in reversed(list(enumerate(tags)))}
    best: tuple[tuple[int, Any], str] | None = None
    for name in sorted(names):
        try:
            _, _, build, offered = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        places = [rank[tag] for tag in offered if tag in rank]
        if not places:
            continue
        key = (-min(places), build)
        if best is None or key > best[0]:
            best = (key, name)
    return None if best is None else best[1]
