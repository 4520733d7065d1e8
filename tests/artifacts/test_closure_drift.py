"""What is different between two closures of one package."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.artifacts.artifact_drift import ClosureChange, compare_closures
from pinwarden.core.digest import Digest
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage


def package(name: str, version: str = "1.0.0", content: str = "", **members: Any) -> ClosurePackage:
    """One package of an npm closure, whose one file holds ``content``."""
    file = ClosureFile(
        name=f"{name}-{version}.tgz",
        url="https://npm.example.com/x",
        digest=Digest.of_bytes((content or name).encode()),
    )
    return ClosurePackage(
        **{"name": name, "version": version, "files": (file,), "path": f"node_modules/{name}"} | members
    )


def wheel(name: str, version: str, *files: str, marker: str = "") -> ClosurePackage:
    """One package of a Python closure, each of whose files holds its own name."""
    made = tuple(
        ClosureFile(name=each, url="https://index.example/x", digest=Digest.of_bytes(each.encode())) for each in files
    )
    return ClosurePackage(name=name, version=version, files=made, marker=marker)


ROOT = package("notes")


def closure(*packages: ClosurePackage) -> Closure:
    return Closure(
        ecosystem="npm",
        name="notes",
        version="1.0.0",
        resolver="npm 11",
        registry="https://npm.example.com/",
        packages=(ROOT, *packages),
    )


def test_equal_closures_have_no_difference_whatever_their_order() -> None:
    a, b = package("a"), package("b")
    assert compare_closures(closure(a, b), closure(b, a)) == ()


@pytest.mark.parametrize(
    ("before", "after", "kind", "message"),
    [
        (None, package("a"), "added", "a 1.0.0 was added"),
        (package("a"), None, "removed", "a 1.0.0 was removed"),
        (package("a"), package("a", "1.0.1"), "version", "a changed from 1.0.0 to 1.0.1"),
        (package("a"), package("a", content="evil"), "bytes", "a 1.0.0 has different bytes under the same version"),
        (
            package("a"),
            package("a", has_install_scripts=True),
            "scripts",
            "a 1.0.0 now has scripts that a normal installation would run",
        ),
        (
            package("a"),
            package("a", "1.0.1", has_install_scripts=True),
            "scripts",
            "a 1.0.1 now has scripts that a normal installation would run",
        ),
        (package("a"), package("b", path="node_modules/a"), "version", "b 1.0.0 replaces a 1.0.0"),
    ],
)
def test_every_kind_of_difference(
    before: ClosurePackage | None, after: ClosurePackage | None, kind: Any, message: str
) -> None:
    old, new = (closure(*([each] if each else [])) for each in (before, after))
    (change,) = compare_closures(old, new)
    some = after or before
    assert some is not None
    assert change == ClosureChange(kind=kind, name=some.name, path="node_modules/a", before=before, after=after)
    assert change.message == message


def test_attack_scripts_do_not_hide_other_bytes() -> None:
    (change,) = compare_closures(closure(package("a")), closure(package("a", content="evil", has_install_scripts=True)))
    assert change.kind == "bytes"


def test_existing_install_scripts_are_not_reported_again() -> None:
    before, after = package("a", has_install_scripts=True), package("a", "1.0.1", has_install_scripts=True)
    (change,) = compare_closures(closure(before), closure(after))
    assert change.kind == "version"


def test_the_same_package_in_two_folders_is_two_changes() -> None:
    nested = package("a", "2.0.0", path="node_modules/b/node_modules/a")
    (change,) = compare_closures(closure(package("a")), closure(package("a"), nested))
    assert (change.kind, change.path) == ("added", "node_modules/b/node_modules/a")


def test_changes_are_sorted_by_severity_and_then_by_name() -> None:
    before = closure(package("gone"), package("z"), package("y"), package("b"), package("s"))
    after = closure(
        package("new"),
        package("z", "2.0.0"),
        package("y", "2.0.0"),
        package("b", content="evil"),
        package("s", has_install_scripts=True),
    )
    assert [(change.kind, change.name) for change in compare_closures(before, after)] == [
        ("bytes", "b"),
        ("scripts", "s"),
        ("version", "y"),
        ("version", "z"),
        ("added", "new"),
        ("removed", "gone"),
    ]


def test_python_packages_are_distinguished_by_their_marker() -> None:
    linux, windows = "sys_platform == 'linux'", "sys_platform == 'win32'"
    both = closure(wheel("a", "1.0", "a1", marker=linux), wheel("a", "0.9", "a0", marker=windows))
    newer = closure(wheel("a", "1.0", "a1", marker=linux), wheel("a", "1.0", "a1", marker=windows))
    (change,) = compare_closures(both, newer)
    assert (change.kind, change.before and change.before.version) == ("version", "0.9")


def test_an_added_wheel_under_a_locked_version_is_reported() -> None:
    """An installer on another platform may choose it, although it was not reviewed."""
    (change,) = compare_closures(closure(wheel("a", "1.0", "x")), closure(wheel("a", "1.0", "x", "y")))
    assert (change.kind, change.message) == ("files", "a 1.0 has different files under the same version: y was added")


def test_a_removed_wheel_under_a_locked_version_is_reported() -> None:
    (change,) = compare_closures(closure(wheel("a", "1.0", "x", "y")), closure(wheel("a", "1.0", "x")))
    assert (change.kind, change.message) == ("files", "a 1.0 has different files under the same version: y was removed")


def test_the_same_file_at_another_host_is_reported() -> None:
    here = package("a")
    moved = ClosureFile(name=here.files[0].name, url="https://evil.example/x", digest=here.files[0].digest)
    (change,) = compare_closures(closure(here), closure(package("a", files=(moved,))))
    assert (change.kind, change.message) == ("place", "a 1.0.0 comes from evil.example instead of npm.example.com")
