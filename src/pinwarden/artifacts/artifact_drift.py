"""What is pinned about an artifact against what is found now: other bytes, other places, other people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pinwarden.artifacts.artifact import ArtifactFacts
from pinwarden.core.finding_kinds import Kinds, kind_table
from pinwarden.lock.extension import PUBLISHER, Artifact, Extension, ImagePin
from pinwarden.surface.drift.changes import ABSENT, Change

ARTIFACT_KINDS: Kinds = kind_table(
    critical=(
        ("bytes_changed", "The same name and version now has other bytes."),
        ("version_vanished", "The locked version is gone from its registry."),
        ("registry_changed", "The package now comes from another registry than the one it was locked from."),
        ("manifest_changed", "The image that was locked now has other content under its digest."),
        ("provenance_changed", "Another builder or repository stands behind the package."),
        ("artifact_kind_changed", "What was locked is now another kind of artifact, or another package."),
        ("signature_lost", "The artifact was signed, and is not any more."),
    ),
    review=(
        ("tag_moved", "The tag now points to another image than the locked one."),
        ("platform_changed", "The image has another manifest for a platform."),
        ("release_changed", "Another release is named than was locked."),
        ("publisher_changed", "Somebody else published it."),
        ("scripts_added", "The package would now run scripts on installation."),
        ("file_gone", "A file that was locked is no longer offered."),
    ),
    info=(("platform_added", "The image is offered for one more platform."),),
)
"""By kind. The single source for severities and for the reasons people read."""


def compare_pins(server: str, pinned: Extension, found: ArtifactFacts) -> tuple[Change, ...]:
    """Every way in which an artifact is not what was pinned. What was never pinned cannot have changed."""
    return tuple(_differences(server, pinned, found))


def compare_releases(server: str, before: ArtifactFacts, after: ArtifactFacts) -> tuple[Change, ...]:
    """What a newer release has otherwise than the locked one, beside its bytes: its people, its place, its scripts."""
    found: list[Change] = []
    if after.missing is not None:
        found.append(_change("version_vanished", server, "version", str(after.package), ABSENT))
    if before.package.name != after.package.name:
        found.append(_change("artifact_kind_changed", server, "name", before.package.name, after.package.name))
    if before.publisher != after.publisher and (before.publisher or after.publisher):
        old, new = before.publisher or ABSENT, after.publisher or ABSENT
        found.append(_change("publisher_changed", server, "publisher", old, new))
    if set(after.install_scripts) - set(before.install_scripts):
        scripts = list(before.install_scripts), list(after.install_scripts)
        found.append(_change("scripts_added", server, "scripts", *scripts))
    return tuple(found)


def registry_change(server: str, locked: str, asked: str) -> Change:
    """The change to another registry, for whoever does not go on to ask that one."""
    return _change("registry_changed", server, "registry", locked, asked)


def _differences(server: str, pinned: Extension, found: ArtifactFacts) -> Iterator[Change]:
    if found.missing is not None and (pinned.artifacts or pinned.image):
        yield _change("version_vanished", server, "version", str(found.package), ABSENT)
        return
    if pinned.registry is not None and pinned.registry != found.registry:
        yield registry_change(server, pinned.registry, found.registry)
    publisher = pinned.others.get(PUBLISHER)
    if isinstance(publisher, str) and publisher != found.publisher:
        yield _change("publisher_changed", server, "publisher", publisher, found.publisher or ABSENT)
    yield from _files(server, pinned.artifacts, found)
    if pinned.image is not None and found.image is not None:
        yield from _image(server, pinned.image, found)


def _files(server: str, artifacts: Iterable[Artifact], found: ArtifactFacts) -> Iterator[Change]:
    now = {file.name: file for file in found.files}
    listed = {file.name: file for file in found.listed}
    for locked in artifacts:
        here = now.get(locked.name)
        if here is not None:
            same = [each for each in here.digests if each.algorithm == locked.digest.algorithm]
            if locked.digest not in same:
                after = str(same[0]) if same else str(here.sha256)
                yield _change("bytes_changed", server, locked.name, str(locked.digest), after)
        elif locked.name in listed:
            claims = [each for each in listed[locked.name].claims if each.algorithm == locked.digest.algorithm]
            if claims and locked.digest not in claims:
                yield _change("bytes_changed", server, locked.name, str(locked.digest), str(claims[0]))
        elif found.image is None:
            yield _change("file_gone", server, locked.name, str(locked.digest), ABSENT)


def _image(server: str, pinned: ImagePin, found: ArtifactFacts) -> Iterator[Change]:
    image = found.image
    if image is None:
        return
    for named in image.mismatches:
        yield _change("manifest_changed", server, "image", named, ABSENT)
    roots = [pinned.index] if pinned.index is not None else list(pinned.platforms.values())
    if image.tag_digest is not None and image.tag_digest not in roots:
        yield _change("tag_moved", server, "tag", str(roots[0]) if roots else ABSENT, str(image.tag_digest))
        return  # all else is about another image
    for platform, digest in pinned.platforms.items():
        manifest = image.platforms.get(platform)
        if manifest is None or manifest.digest != digest:
            after = ABSENT if manifest is None else str(manifest.digest)
            yield _change("platform_changed", server, platform, str(digest), after)
    for platform in image.platforms.keys() - pinned.platforms.keys():
        yield _change("platform_added", server, platform, ABSENT, str(image.platforms[platform].digest))


def _change(kind: str, server: str, field: str, before: Any, after: Any) -> Change:
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
