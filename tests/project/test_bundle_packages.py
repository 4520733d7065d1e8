"""Packing a Python project: the right wheels for each declared platform, from the project's lock, and one launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle.platforms import detect_platform, detect_python
from pinwarden.project.bundle_packages import Target, list_tags
from tests.cli.run import Outcome, pinwarden_in
from tests.support.wheels import make_wheel, package_index, wheel_name

LINUX, MAC, WINDOWS = "manylinux_2_28_x86_64", "macosx_11_0_arm64", "win_amd64"


def write_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", **more: Any) -> None:
    (folder / wheel_name(name, version, tag)).write_bytes(make_wheel(name, version, tag=tag, **more))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package index with pure and native wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "acme-base", "1.0.0", code="NAME = 'old'\n")
    more = {"acme_base_data/value.txt": b"42", "acme_base-2.0.0.data/scripts/acme": b"#!python\n"}
    headers = ("Requires-Dist: acme-fast", 'Requires-Dist: acme-win; sys_platform == "win32"')
    write_wheel(folder, "acme-base", "2.0.0", code="NAME = 'new'\n", more=more, headers=headers)
    own = list_tags(Target(platform=detect_platform(), python=detect_python()))[0].platform
    here = {f"cp{sys.version_info[0]}{sys.version_info[1]}-{own}"} | {
        f"cp311-{LINUX}",
        f"cp312-{LINUX}",
        f"cp312-{MAC}",
    }
    for words in (*here, f"cp312-{WINDOWS}"):
        python, _, platform = words.partition("-")
        write_wheel(folder, "acme-fast", "1.0.0", f"{python}-{python}-{platform}", code=f"WHERE = {words!r}\n")
    write_wheel(folder, "acme-win", "1.0.0")
    write_wheel(folder, "acme-path", "1.0.0", more={"acme.pth": b"acme_path_extra\n", "acme_path_extra/deep.py": b""})
    with package_index(folder) as url:
        yield url


class Project:
    """The folder of a Python project, and the command that packs it."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder, self.home, self.index = folder / "notes", folder, index
        self.write("src/notes/__init__.py", "")
        self.write("src/notes/name.py", "from acme_base import NAME\n")
        self.write("src/notes/server.py", "import acme_fast\nfrom .name import NAME\nprint(NAME, acme_fast.WHERE)\n")
        self.server: dict[str, Any] = {"name": "acme.notes", "version": "1.0.0", "runtime": "python"}
        self.server |= {"entry": "src/notes/server.py"}
        self.depend("acme-base>=1")

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def depend(self, *requirements: str, more: str = "") -> None:
        """Write pyproject.toml."""
        text = f'[project]\nname = "Acme.Notes"\nversion = "1.0.0"\nrequires-python = ">=3.11"\n{more}\n'
        self.write("pyproject.toml", f"{text}dependencies = {json.dumps(requirements)}\n")

    @property
    def variables(self) -> dict[str, str]:
        given = {"HOME": str(self.home), "PINWARDEN_STORE": str(self.home / "store"), "UV_DEFAULT_INDEX": self.index}
        return {**os.environ, **given}

    def pack(self, *options: str) -> Outcome:
        self.write("server.json", json.dumps(self.server))
        words = ("bundle", "pack", str(self.folder), "-o", str(self.home / "packed"), "--format", "json", *options)
        return pinwarden_in(self.variables, *words, cwd=self.home)

    def packed(self, *options: str) -> dict[str, Any]:
        """The report, with the files of the bundle under their paths."""
        outcome = self.pack(*options)
        assert outcome.code == 0, outcome
        report: dict[str, Any] = json.loads(outcome.out)
        unpacked = json.loads(Path(report["manifest"]).read_bytes())["entries"]
        return {**report, "paths": [entry["path"] for entry in unpacked], "notes": outcome.err}

    def refused(self, *options: str) -> dict[str, Any]:
        outcome = self.pack(*options)
        assert outcome.code != 0
        error: dict[str, Any] = json.loads(outcome.out)["error"]
        return error

    def unpacked(self) -> Path:
        """The bundle's files on disk, as an installation has them."""
        from pinwarden.bundle.bundle_files import find_bundle_files, open_files, unpack

        opened = open_files(find_bundle_files(self.home / "packed/acme.notes-1.0.0.car"))
        unpack(opened.documents.manifest.entries, opened.contents, self.home / "unpacked")
        return self.home / "unpacked"

    def start(self) -> str:
        """What the server prints, started as an installed bundle is."""
        command = [sys.executable, "-B", "-s", str(self.unpacked() / "python_packages/start.py")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd="/").stdout.strip()


@pytest.fixture
def project(tmp_path: Path, index: str) -> Project:
    return Project(tmp_path, index)


def test_the_packages_of_this_platform_are_packed_and_the_server_runs_with_them(project: Project) -> None:
    report = project.packed()
    assert report["packages"] == ["acme-base==2.0.0", "acme-fast==1.0.0"]
    assert (report["platforms"], report["python"]) == ([detect_platform()], [detect_python()])
    own = f"python_packages/{detect_platform().replace('/', '-')}-py{detect_python()}"
    assert {"python_packages/all/acme_base.py", f"{own}/acme_fast.py", "python_packages/start.py"} <= {*report["paths"]}
    assert not any("scripts" in path or path.startswith("python_packages/all/bin") for path in report["paths"])
    descriptor = json.loads(Path(report["descriptor"]).read_bytes())
    assert descriptor["entrypoint"]["target"] == "python_packages/start.py"
    name, _, where = project.start().partition(" ")
    assert (name, where.startswith(f"cp{detect_python().replace('.', '')}-")) == ("new", True)


def test_every_declared_platform_gets_its_own_wheels_and_shares_the_pure_ones(project: Project) -> None:
    project.server |= {"platforms": ["linux/amd64", "darwin/arm64", "windows/amd64"], "python": ["3.12"]}
    report = project.packed()
    fast = [path for path in report["paths"] if path.endswith("/acme_fast.py")]
    folders = ("darwin-arm64", "linux-amd64", "windows-amd64")
    assert fast == [f"python_packages/{name}-py3.12/acme_fast.py" for name in folders]
    inspected = pinwarden_in(project.variables, "bundle", "inspect", report["archive"], cwd=project.home)
    assert "is for linux/amd64, darwin/arm64, windows/amd64 with Python 3.12" in inspected.out + inspected.err
    assert [path for path in report["paths"] if path.endswith("/acme_win.py")] == [
        "python_packages/windows-amd64-py3.12/acme_win.py"
    ]
    assert report["paths"].count("python_packages/all/acme_base.py") == 1
    project.server["python"] = ["3.11", "3.12"]
    refused = project.refused()
    assert refused["code"] == "NO_USABLE_FILE"
    assert "acme-fast 1.0.0 has no wheel for darwin/arm64 with Python 3.11" in refused["message"]


def test_a_lock_decides_the_versions_and_packing_again_gives_the_same_bytes(project: Project) -> None:
    from uv import find_uv_bin

    project.depend("acme-base<2")
    command = [find_uv_bin(), "lock", "--quiet", "--no-config", "--python", sys.executable]
    subprocess.run(command, cwd=project.folder, env=project.variables, check=True, timeout=120)
    report = project.packed()
    assert report["packages"] == ["acme-base==1.0.0"]
    assert "resolved now" not in report["notes"]
    assert project.packed()["root_cid"] == report["root_cid"]
    assert project.packed("--offline")["root_cid"] == report["root_cid"]  # from the store
    project.depend("acme-base>=2")
    refused = project.refused()
    assert refused["message"] == "the project's lock has acme-base 1.0.0, and pyproject.toml needs acme-base>=2"
    project.depend("acme-base", "acme-path")
    assert "the project's lock has no acme-path" in project.refused()["message"]


def test_a_single_file_and_packages_with_path_files_run(project: Project) -> None:
    project.depend("acme-path")
    code = "import deep, sys\nfrom importlib.metadata import version\nfrom side import x\n"
    project.write("main.py", f"{code}print(version('acme.notes'), __name__, sys.argv[0].endswith('/main.py'), x)\n")
    project.write("side.py", "x = 1\n")
    project.server["entry"] = "main.py"
    assert project.packed("--exclude", "src")["python"] == [detect_python()]
    assert project.start() == "1.0.0 __main__ True 1"


@pytest.mark.parametrize(
    ("dependency", "message"),
    [
        (
            "acme-base @ https://example.com/acme.whl",
            "the dependency acme-base comes from a URL, and not from an index",
        ),
        ("-r /etc/passwd", "pyproject.toml has an invalid dependency: '-r /etc/passwd'"),
        ("acme-base\n--index-url=http://evil", "pyproject.toml has an invalid dependency"),
        ("git+https://example.com/x", "pyproject.toml has an invalid dependency"),
    ],
)
def test_attack_a_dependency_that_no_index_serves_is_refused(project: Project, dependency: str, message: str) -> None:
    project.depend(dependency)
    refused = project.refused()
    assert refused["code"] == "PACKAGES_NOT_PACKED"
    assert refused["message"].startswith(message)


def test_what_cannot_be_packed_is_refused_with_the_reason(project: Project) -> None:
    project.write("pyproject.toml", '[project]\ndynamic = ["dependencies"]\n')
    assert project.refused()["message"] == "the dependencies in pyproject.toml are dynamic"
    project.write("pyproject.toml", "[project\n")
    assert project.refused()["message"] == "pyproject.toml is not valid TOML"
    project.write("pyproject.toml", '[project]\ndependencies = "mcp"\n')
    assert project.refused()["code"] == "PACKAGES_NOT_PACKED"
    project.depend("acme-nowhere")
    assert project.refused()["code"] == "RESOLVER_FAILED"
    assert project.packed("--without-packages")["packages"] == []
    project.depend("acme-base")
    project.write("python_packages/x.py", "")
    assert project.refused()["message"].startswith("the folder has a python_packages")
    project.server["python"] = ["2.7"]
    assert project.refused()["code"] == "SERVER_ENTRY_INVALID"


def test_attack_a_wheel_that_differs_from_the_lock_is_refused(project: Project, index: str) -> None:
    wheel = wheel_name("acme-base", "1.0.0")
    packages = f'[[packages]]\nname = "acme-base"\nversion = "1.0.0"\n[[packages.wheels]]\nname = "{wheel}"\n'
    url = index.replace("/simple/", f"/packages/{wheel}")
    lock = f'lock-version = "1.0"\ncreated-by = "uv"\n{packages}url = "{url}"\nhashes = {{ sha256 = "{"0" * 64}" }}\n'
    project.write("pylock.toml", lock)
    assert project.refused()["code"] == "ARTIFACT_MISMATCH"
    assert not (project.home / "packed").exists()
