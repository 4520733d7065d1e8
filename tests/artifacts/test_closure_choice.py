"""Which wheel of which package one environment gets."""

from __future__ import annotations

import pytest
from packaging.tags import Tag

from pinwarden.artifacts.python_package import choose_best_wheel, choose_wheels, is_marker_satisfied
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.closure import ClosureFile, ClosurePackage

LINUX = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.7",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "python_full_version": "3.11.7",
    "python_version": "3.11",
    "sys_platform": "linux",
}
TAGS = [Tag("cp311", "cp311", "manylinux_2_17_x86_64"), Tag("cp311", "abi3", "linux_x86_64"), Tag("py3", "none", "any")]


def package(name: str, *tags: str, marker: str = "", version: str = "1.0") -> ClosurePackage:
    def file(file_name: str) -> ClosureFile:
        return ClosureFile(
            name=file_name, url=f"https://f.example/{file_name}", digest=Digest.of_bytes(file_name.encode())
        )

    return ClosurePackage(
        name=name, version=version, marker=marker, files=tuple(file(f"{name}-{version}-{tag}.whl") for tag in tags)
    )


def test_packages_for_other_environments_are_left_out() -> None:
    here = package("here", "py3-none-any", marker="sys_platform != 'win32' and python_version < '3.12'")
    windows = package("windows", "py3-none-any", marker="sys_platform == 'win32'")
    assert choose_wheels([here, windows], LINUX, TAGS) == ((here, here.files[0]),)


def test_of_two_forks_the_one_for_this_environment_is_chosen() -> None:
    old = package("a", "py3-none-any", marker="python_full_version < '3.11'")
    new = package("a", "py3-none-any", marker="python_full_version >= '3.11'", version="2.0")
    assert [each.version for each, _ in choose_wheels([old, new], LINUX, TAGS)] == ["2.0"]


def test_two_forks_for_one_environment_are_refused() -> None:
    one = package("a", "py3-none-any", marker="os_name == 'posix'")
    other = package("a", "py3-none-any", marker="sys_platform == 'linux'", version="2.0")
    with pytest.raises(PinwardenError) as caught:
        choose_wheels([one, other], LINUX, TAGS)
    assert caught.value.code == "CLOSURE_INVALID"


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"], 1),
        (["a-1-cp311-cp311-win_amd64.whl", "a-1-py2.py3-none-any.whl"], 1),
        (["a-1-1-py3-none-any.whl", "a-1-2-py3-none-any.whl", "a-1-py3-none-any.whl"], 1),
        (["a-1-9-py3-none-any.whl", "a-1-10-py3-none-any.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.whl", "a-1.tar.gz", "broken.whl"], None),
        ([], None),
    ],
)
def test_the_best_wheel_is_the_one_that_installers_choose(names: list[str], best: int | None) -> None:
    assert choose_best_wheel(names, TAGS) == (None if best is None else names[best])


def test_a_package_without_a_usable_wheel_is_an_error() -> None:
    with pytest.raises(PinwardenError) as caught:
        choose_wheels([package("a", "cp311-cp311-win_amd64")], LINUX, TAGS)
    assert (caught.value.code, caught.value.exit_code) == ("NO_USABLE_FILE", 3)
    assert caught.value.data == {"package": "a", "version": "1.0"}


@pytest.mark.parametrize("marker", ["nonsense", "python_version ~~ '3'", "os_name ==", "unknown == '1'"])
def test_a_marker_that_cannot_be_read_is_an_error_and_not_a_no(marker: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        is_marker_satisfied(marker, LINUX)
    assert caught.value.code == "CLOSURE_INVALID"
