"""A locked release against the release as it is now."""

from __future__ import annotations

from packaging.tags import Tag

from pinwarden.artifacts.artifact import ArtifactFile, FetchedArtifact, ListedFile, PackageRef, ReleaseFacts
from pinwarden.artifacts.artifact_drift import ReleaseFinding, compare_release_files
from pinwarden.core.digest import Digest

LONG_AGO, NOW = "2024-01-01T00:00:00Z", "2026-11-16T00:00:00Z"
TAGS = [Tag("cp311", "cp311", "manylinux_2_17_x86_64"), Tag("py3", "none", "any")]
PURE, FAST, WINDOWS, SOURCE = (
    "acme_notes-1.0-py3-none-any.whl",
    "acme_notes-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
    "acme_notes-1.0-cp311-cp311-win_amd64.whl",
    "acme_notes-1.0.tar.gz",
)


def digest(text: str) -> Digest:
    return Digest.of_bytes(text.encode())


def found(*names: str, listed: tuple[ListedFile, ...] = (), published: str | None = LONG_AGO) -> FetchedArtifact:
    """A release whose files hold their own names."""
    return FetchedArtifact(
        package=PackageRef(ecosystem="pypi", name="acme-notes", version="1.0"),
        registry="https://index.example/simple/",
        checked_at=NOW,
        files=tuple(ArtifactFile(name=name, size=1, digests=(digest(name),)) for name in names),
        listed=listed,
        facts=ReleaseFacts(published_at=published),
    )


def locked(*names: str) -> dict[str, Digest]:
    return {name: digest(name) for name in names}


def kinds(findings: tuple[ReleaseFinding, ...]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.severity, each.file) for each in findings]


def test_the_same_files_are_no_finding() -> None:
    assert compare_release_files(locked(PURE, SOURCE), found(PURE, SOURCE), now=NOW, tags=TAGS) == ()


def test_attack_a_wheel_added_to_an_old_release_that_the_installer_would_prefer_is_critical() -> None:
    assert compare_release_files(locked(PURE), found(PURE, FAST), now=NOW, tags=TAGS) == (
        ReleaseFinding(
            kind="file_added",
            severity="critical",
            file=FAST,
            message=f"{FAST} was added to the release; "
            "an installer on this platform would prefer it to the locked files",
        ),
    )


def test_a_file_added_to_an_old_release_for_others_is_for_review() -> None:
    findings = compare_release_files(locked(PURE), found(PURE, WINDOWS, SOURCE), now=NOW, tags=TAGS)
    assert kinds(findings) == [("file_added", "review", WINDOWS), ("file_added", "review", SOURCE)]


def test_files_of_a_fresh_release_still_come_in() -> None:
    fresh = found(PURE, WINDOWS, published="2026-11-15T12:00:00Z")
    assert kinds(compare_release_files(locked(PURE), fresh, now=NOW, tags=TAGS)) == [("file_added", "info", WINDOWS)]
    fresh = found(PURE, FAST, published="2026-11-15T12:00:00Z")
    assert kinds(compare_release_files(locked(PURE), fresh, now=NOW, tags=TAGS)) == [("file_added", "critical", FAST)]


def test_without_a_date_a_release_counts_as_old() -> None:
    findings = compare_release_files(locked(PURE), found(PURE, WINDOWS, published=None), now=NOW, tags=TAGS)
    assert kinds(findings) == [("file_added", "review", WINDOWS)]


def test_without_a_platform_an_added_wheel_counts_as_preferred() -> None:
    findings = compare_release_files(locked(PURE), found(PURE, WINDOWS, SOURCE), now=NOW)
    assert kinds(findings) == [("file_added", "critical", WINDOWS), ("file_added", "review", SOURCE)]


def test_attack_source_added_where_no_wheel_fits_would_be_built_and_is_critical() -> None:
    findings = compare_release_files(locked(WINDOWS), found(WINDOWS, SOURCE), now=NOW, tags=TAGS)
    assert kinds(findings) == [("file_added", "critical", SOURCE)]


def test_attack_other_bytes_under_the_same_name_are_critical() -> None:
    findings = compare_release_files({PURE: digest("as reviewed")}, found(PURE), now=NOW, tags=TAGS)
    assert kinds(findings) == [("file_changed", "critical", PURE)]


def test_a_file_that_is_gone_is_for_review() -> None:
    findings = compare_release_files(locked(PURE, SOURCE), found(PURE), now=NOW, tags=TAGS)
    assert kinds(findings) == [("file_removed", "review", SOURCE)]


def test_files_that_were_not_fetched_are_compared_by_the_indexs_digests() -> None:
    rows = (
        ListedFile(name=PURE, claims=(digest(PURE),)),
        ListedFile(name=FAST, claims=(digest("other"),)),
        ListedFile(name=SOURCE),
    )
    findings = compare_release_files(locked(PURE, FAST, SOURCE), found(listed=rows), now=NOW, tags=TAGS)
    assert kinds(findings) == [("file_changed", "critical", FAST), ("file_unchecked", "review", SOURCE)]
