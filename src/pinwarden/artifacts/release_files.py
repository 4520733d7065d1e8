"""A release as it was locked against the release as it is now: files that were added, exchanged or taken away.

An index may let an owner add a file to a release of years ago. An installer that goes by name and version takes it if
it fits better, so the code changes while the version stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pinwarden.artifacts.artifact import ArtifactFacts
from pinwarden.artifacts.closure_choice import best_wheel
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.surface.drift.changes import CRITICAL, INFO, REVIEW

if TYPE_CHECKING:
    from packaging.tags import Tag

STILL_FRESH = timedelta(days=3)
"""Build farms upload the wheels of a release one after another, within hours; days later nobody does."""


class ReleaseFinding(Record):
    """One difference."""

    kind: str
    """``file_added``, ``file_changed``, ``file_removed`` or ``file_unchecked``."""
    severity: str
    file: str
    message: str


def compare_release(
    locked: Mapping[str, Digest], found: ArtifactFacts, *, now: str, tags: Sequence[Tag] = ()
) -> tuple[ReleaseFinding, ...]:
    """What is different, by file name. ``locked`` has the SHA-256 of each file; ``tags`` is the platform, best first.

    Without tags nobody knows what an installer would prefer, and an added wheel counts as preferred.
    """
    present = _present(found)
    added = sorted(set(present) - set(locked))
    findings = [_added(name, locked, added, tags, old=_is_old(found.published_at, now)) for name in added]
    for name in sorted(locked):
        if name not in present:
            findings.append(
                ReleaseFinding(
                    kind="file_removed", severity=REVIEW, file=name, message=f"{name} is no longer in the release"
                )
            )
        else:
            findings.extend(_same_name(name, locked[name], present[name]))
    return tuple(findings)


def _present(found: ArtifactFacts) -> dict[str, tuple[Digest, ...]]:
    """What each file is now: by its bytes, or, where they were not fetched, by the index's word, if it says one."""
    present: dict[str, tuple[Digest, ...]] = {file.name: _sha256(file.digests) for file in found.files}
    for listed in found.listed:
        present.setdefault(listed.name, _sha256(listed.claims))
    return present


def _sha256(digests: Iterable[Digest]) -> tuple[Digest, ...]:
    return tuple(each for each in digests if each.algorithm == "sha256")


def _same_name(name: str, locked: Digest, now: tuple[Digest, ...]) -> Iterable[ReleaseFinding]:
    if not now:
        message = f"{name} was not fetched, and the index does not say what its bytes are"
        yield ReleaseFinding(kind="file_unchecked", severity=REVIEW, file=name, message=message)
    elif any(each != locked for each in now):
        message = f"{name} has other bytes than were locked: {now[0]} instead of {locked}"
        yield ReleaseFinding(kind="file_changed", severity=CRITICAL, file=name, message=message)


def _added(
    name: str, locked: Mapping[str, Digest], added: Sequence[str], tags: Sequence[Tag], *, old: bool
) -> ReleaseFinding:
    if _preferred(name, (*locked, *added), tags):
        severity, why = CRITICAL, "an installer here would take it instead of what was locked"
    elif old:
        severity, why = REVIEW, "the release is old, and nobody adds to those without a reason"
    else:
        severity, why = INFO, "the release is fresh, and its files are still coming in"
    return ReleaseFinding(
        kind="file_added", severity=severity, file=name, message=f"{name} was added to the release; {why}"
    )


def _preferred(name: str, names: Sequence[str], tags: Sequence[Tag]) -> bool:
    if name.endswith(".whl"):
        return not tags or best_wheel(names, tags) == name
    # A source archive is taken, and built, where no wheel fits and none was there before.
    is_first_source = not any(other != name and not other.endswith(".whl") for other in names)
    return bool(tags) and is_first_source and best_wheel(names, tags) is None


def _is_old(published_at: str | None, now: str) -> bool:
    """Whether the release had time to be complete. Without a date it counts as old."""
    published, today = _time(published_at or ""), _time(now)
    return published is None or today is None or today - published > STILL_FRESH


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
