"""Compares the pins and closures in the lock with the artifacts that registries serve now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from pinwarden.artifacts.artifact import FetchedArtifact
from pinwarden.artifacts.python_package import choose_best_wheel
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, build_kind_table
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.lock.extension import Artifact, ImagePin, LockExtension
from pinwarden.surface.drift.changes import ABSENT, CRITICAL, INFO, REVIEW, Change

if TYPE_CHECKING:
    from packaging.tags import Tag

ARTIFACT_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("bytes_changed", "The same name and version now has different bytes."),
        ("version_vanished", "The locked version is no longer in its registry."),
        ("registry_changed", "The package comes from a registry other than the locked one."),
        ("manifest_changed", "The registry serves content that does not match the locked image digest."),
        ("provenance_changed", "The package was built by a different builder or from a different repository."),
        ("artifact_kind_changed", "The locked artifact is now of a different kind, or a different package."),
        ("signature_lost", "The artifact was signed when it was locked and is not signed now."),
    ),
    review=(
        ("tag_moved", "The tag now points to an image other than the locked one."),
        ("platform_changed", "The image has a different manifest for a platform."),
        ("release_changed", "The configured release is not the locked one."),
        ("publisher_changed", "The publisher changed."),
        ("scripts_added", "The package would now run scripts on installation."),
        ("file_gone", "A locked file is no longer offered."),
    ),
    info=(("platform_added", "The image supports an additional platform."),),
)
"""Severity and explanation of each kind of change."""


def compare_pins(server: str, pinned: LockExtension, artifact: FetchedArtifact) -> tuple[Change, ...]:
    """Return every difference between an artifact and its pins. Properties that were not pinned are not compared."""
    return tuple(_find_changes(server, pinned, artifact))


def compare_releases(server: str, before: FetchedArtifact, after: FetchedArtifact) -> tuple[Change, ...]:
    """Compare name, publisher and install scripts of a newer release with those of the locked release."""
    changes: list[Change] = []
    if after.missing is not None:
        changes.append(_build_change("version_vanished", server, "version", str(after.package), ABSENT))
    if before.package.name != after.package.name:
        changes.append(_build_change("artifact_kind_changed", server, "name", before.package.name, after.package.name))
    old, new = before.facts.publisher or ABSENT, after.facts.publisher or ABSENT
    if old != new:
        changes.append(_build_change("publisher_changed", server, "publisher", old, new))
    if set(after.install_scripts) - set(before.install_scripts):
        scripts = list(before.install_scripts), list(after.install_scripts)
        changes.append(_build_change("scripts_added", server, "scripts", *scripts))
    return tuple(changes)


def build_registry_change(server: str, locked: str, configured: str) -> Change:
    """Return the finding for a configured registry that is not the locked one.

    Pinwarden does not query the configured registry in this case.
    """
    return _build_change("registry_changed", server, "registry", locked, configured)


def _find_changes(server: str, pinned: LockExtension, artifact: FetchedArtifact) -> Iterator[Change]:
    if artifact.missing is not None and (pinned.artifacts or pinned.image):
        yield _build_change("version_vanished", server, "version", str(artifact.package), ABSENT)
        return
    if pinned.registry is not None and pinned.registry != artifact.registry:
        yield build_registry_change(server, pinned.registry, artifact.registry)
    publisher = artifact.facts.publisher
    if pinned.publisher is not None and pinned.publisher != publisher:
        yield _build_change("publisher_changed", server, "publisher", pinned.publisher, publisher or ABSENT)
    yield from _compare_files(server, pinned.artifacts, artifact)
    if pinned.image is not None and artifact.image is not None:
        yield from _compare_image(server, pinned.image, artifact)


def _compare_files(server: str, artifacts: Iterable[Artifact], artifact: FetchedArtifact) -> Iterator[Change]:
    downloaded = {file.name: file for file in artifact.files}
    listed = {file.name: file for file in artifact.listed}
    for locked in artifacts:
        file = downloaded.get(locked.name)
        if file is not None:
            same = [digest for digest in file.digests if digest.algorithm == locked.digest.algorithm]
            if locked.digest not in same:
                after = str(same[0]) if same else str(file.sha256)
                yield _build_change("bytes_changed", server, locked.name, str(locked.digest), after)
        elif locked.name in listed:
            claims = [claim for claim in listed[locked.name].claims if claim.algorithm == locked.digest.algorithm]
            if claims and locked.digest not in claims:
                yield _build_change("bytes_changed", server, locked.name, str(locked.digest), str(claims[0]))
        elif artifact.image is None:
            yield _build_change("file_gone", server, locked.name, str(locked.digest), ABSENT)


def _compare_image(server: str, pinned: ImagePin, artifact: FetchedArtifact) -> Iterator[Change]:
    image = artifact.image
    if image is None:
        return
    for digest_text in image.mismatches:
        yield _build_change("manifest_changed", server, "image", digest_text, ABSENT)
    roots = [pinned.index] if pinned.index is not None else list(pinned.platforms.values())
    if image.tag_digest is not None and image.tag_digest not in roots:
        yield _build_change("tag_moved", server, "tag", str(roots[0]) if roots else ABSENT, str(image.tag_digest))
        return  # the tag points to a different image, so all its platforms differ
    for platform, digest in pinned.platforms.items():
        manifest = image.platforms.get(platform)
        if manifest is None or manifest.digest != digest:
            after = ABSENT if manifest is None else str(manifest.digest)
            yield _build_change("platform_changed", server, platform, str(digest), after)
    for platform in image.platforms.keys() - pinned.platforms.keys():
        yield _build_change("platform_added", server, platform, ABSENT, str(image.platforms[platform].digest))


def _build_change(kind: str, server: str, field: str, before: Any, after: Any) -> Change:
    row = ARTIFACT_KINDS[kind]
    return Change(
        kind=kind,
        severity=row.severity,
        reason=row.reason,
        entity="artifact",
        name=server,
        field=field,
        path="",
        before=before,
        after=after,
    )


# Files of a release
#
# An index may let an owner add a file to a years-old release. Installers that select by name and version install that
# file if they prefer it to the locked ones.


UPLOAD_PERIOD = timedelta(days=3)
"""Build farms upload a release's wheels within hours. A file added days later is unusual."""


class ReleaseFinding(Record):
    """One difference between a release and its locked files."""

    kind: str
    """``file_added``, ``file_changed``, ``file_removed`` or ``file_unchecked``."""
    severity: str
    file: str
    message: str


def compare_release_files(
    locked: Mapping[str, Digest], artifact: FetchedArtifact, *, now: str, tags: Sequence[Tag] = ()
) -> tuple[ReleaseFinding, ...]:
    """Compare a release with its locked files.

    ``locked`` has the SHA-256 of each file by name. ``tags`` describes the platform, in order of preference. Without
    tags it is unknown what an installer prefers, so an added wheel counts as preferred.
    """
    current = _collect_digests(artifact)
    added = sorted(set(current) - set(locked))
    findings = [
        _build_added_finding(name, locked, added, tags, old=_is_old(artifact.facts.published_at, now)) for name in added
    ]
    for name in sorted(locked):
        if name not in current:
            findings.append(
                ReleaseFinding(
                    kind="file_removed", severity=REVIEW, file=name, message=f"{name} is no longer in the release"
                )
            )
        else:
            findings.extend(_compare_file(name, locked[name], current[name]))
    return tuple(findings)


def _collect_digests(artifact: FetchedArtifact) -> dict[str, tuple[Digest, ...]]:
    """Return the SHA-256 of each file by name: the computed digest, or the stated one if it was not downloaded."""
    current: dict[str, tuple[Digest, ...]] = {file.name: _select_sha256(file.digests) for file in artifact.files}
    for listed in artifact.listed:
        current.setdefault(listed.name, _select_sha256(listed.claims))
    return current


def _select_sha256(digests: Iterable[Digest]) -> tuple[Digest, ...]:
    return tuple(digest for digest in digests if digest.algorithm == "sha256")


def _compare_file(name: str, locked: Digest, current: tuple[Digest, ...]) -> Iterable[ReleaseFinding]:
    if not current:
        message = f"{name} was not downloaded, and the index states no digest for it"
        yield ReleaseFinding(kind="file_unchecked", severity=REVIEW, file=name, message=message)
    elif any(digest != locked for digest in current):
        message = f"{name} changed: its digest is {current[0]}, the locked one is {locked}"
        yield ReleaseFinding(kind="file_changed", severity=CRITICAL, file=name, message=message)


def _build_added_finding(
    name: str, locked: Mapping[str, Digest], added: Sequence[str], tags: Sequence[Tag], *, old: bool
) -> ReleaseFinding:
    if _is_preferred(name, (*locked, *added), tags):
        severity, reason = CRITICAL, "an installer on this platform would prefer it to the locked files"
    elif old:
        severity, reason = REVIEW, "the release is old, so an addition is unusual"
    else:
        severity, reason = INFO, "the release is recent, so its files may still be arriving"
    return ReleaseFinding(
        kind="file_added", severity=severity, file=name, message=f"{name} was added to the release; {reason}"
    )


def _is_preferred(name: str, names: Sequence[str], tags: Sequence[Tag]) -> bool:
    if name.endswith(".whl"):
        return not tags or choose_best_wheel(names, tags) == name
    # A source archive is built and installed if no wheel fits and there was no source archive before.
    is_first_source = not any(other != name and not other.endswith(".whl") for other in names)
    return bool(tags) and is_first_source and choose_best_wheel(names, tags) is None


def _is_old(published_at: str | None, now: str) -> bool:
    """Whether the upload period of a release has passed. True if the publication date is unknown."""
    published, today = _parse_time(published_at or ""), _parse_time(now)
    return published is None or today is None or today - published > UPLOAD_PERIOD


def _parse_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


# Dependency closures

ClosureChangeKind = Literal["bytes", "scripts", "version", "files", "place", "added", "removed"]
_ORDER: tuple[ClosureChangeKind, ...] = get_args(ClosureChangeKind)


class ClosureChange(Record):
    """One package that was added, removed or changed."""

    kind: ClosureChangeKind
    name: str
    path: str
    before: ClosurePackage | None
    after: ClosurePackage | None

    @property
    def message(self) -> str:
        """The change as a sentence."""
        old = self.before.version if self.before else ""
        new = self.after.version if self.after else ""
        match self.kind:
            case "added":
                return f"{self.name} {new} was added"
            case "removed":
                return f"{self.name} {old} was removed"
            case "version":
                if self.before is not None and self.before.name != self.name:
                    return f"{self.name} {new} replaces {self.before.name} {old}{self._host_change}"
                return f"{self.name} changed from {old} to {new}{self._host_change}"
            case "bytes":
                return f"{self.name} {new} has different bytes under the same version"
            case "scripts":
                return f"{self.name} {new} now has scripts that a normal installation would run{self._host_change}"
            case "files":
                return f"{self.name} {new} has different files under the same version: {self._file_changes}"
            case "place":
                return f"{self.name} {new} comes from {_list_hosts(self.after)} instead of {_list_hosts(self.before)}"

    @property
    def _host_change(self) -> str:
        return (
            "" if _list_hosts(self.before) == _list_hosts(self.after) else f" and comes from {_list_hosts(self.after)}"
        )

    @property
    def _file_changes(self) -> str:
        old, new = ({file.name for file in side.files} if side else set() for side in (self.before, self.after))
        changes = [f"{name} was added" for name in sorted(new - old)]
        changes += [f"{name} was removed" for name in sorted(old - new)]
        return ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")


def compare_closures(before: Closure, after: Closure) -> tuple[ClosureChange, ...]:
    """Compare two closures. Returns changes of bytes first, then of scripts, versions, files, hosts and packages."""
    return tuple(
        sorted(_find_closure_changes(before, after), key=lambda change: (_ORDER.index(change.kind), change.name))
    )


def _find_closure_changes(before: Closure, after: Closure) -> Iterator[ClosureChange]:
    old, new = ({_get_location(package): package for package in closure.packages} for closure in (before, after))
    for location in {**old, **new}:
        old_package, new_package = old.get(location), new.get(location)
        name = (new_package or old_package or after.root).name
        path = location[0]
        if old_package is None:
            yield ClosureChange(kind="added", name=name, path=path, before=None, after=new_package)
        elif new_package is None:
            yield ClosureChange(kind="removed", name=name, path=path, before=old_package, after=None)
        else:
            kind = _classify_change(old_package, new_package)
            if kind is not None:
                yield ClosureChange(kind=kind, name=name, path=path, before=old_package, after=new_package)


def _get_location(package: ClosurePackage) -> tuple[str, str]:
    return package.path or package.name, package.marker


def _classify_change(old: ClosurePackage, new: ClosurePackage) -> ClosureChangeKind | None:
    same = (old.name, old.version) == (new.name, new.version)
    old_digests = {file.name: file.digest for file in old.files}
    if same and any(old_digests.get(file.name, file.digest) != file.digest for file in new.files):
        return "bytes"
    if new.has_install_scripts and not old.has_install_scripts:
        return "scripts"
    if not same:
        return "version"
    if old_digests.keys() != {file.name for file in new.files}:
        return "files"
    return None if _list_hosts(old) == _list_hosts(new) else "place"


def _list_hosts(package: ClosurePackage | None) -> str:
    """Return the hosts that serve a package's files, without credentials."""
    files = package.files if package else ()
    return ", ".join(sorted({urlsplit(file.url).netloc.rpartition("@")[2] for file in files}))
