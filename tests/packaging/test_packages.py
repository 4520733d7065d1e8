"""What users install: the wheel and the source archive, built here, in environments of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
LARGEST_WHEEL = 4_000_000  # bytes


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", **variables}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(source: Path, target: Path) -> dict[str, str]:
    """Build wheel and source archive, and return their digests by name."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", target, cwd=source)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.iterdir())}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(REPOSITORY, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions that all other tests use, so that a new release of a dependency does not break this test."""
    path = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    pins = re.findall(r"^[\w.-]+==\S+", (REPOSITORY / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    path.write_text("\n".join(pins))
    return path


def copy_source(folder: Path) -> Path:
    """A copy of what is tracked, in another folder and with other times."""
    packed = ("src", "docs", "man", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore")
    names = run("git", "ls-files", *packed, cwd=REPOSITORY)
    for name in names.splitlines():
        path = REPOSITORY / name
        if path.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)
    return folder


def test_two_builds_give_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    first = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(dist.iterdir())}
    (tmp_path / "copy").mkdir()
    assert build(copy_source(tmp_path / "copy"), tmp_path / "again") == first


def test_the_packages_have_what_the_program_needs_and_nothing_of_the_tests(dist: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tracked = run("git", "ls-files", "src/pinwarden", cwd=REPOSITORY).splitlines()
    needed = {name.removeprefix("src/") for name in tracked if (REPOSITORY / name).is_file()}
    assert needed - set(names) == set()
    top = {name.partition("/")[0] for name in names}
    assert top == {"pinwarden", "pinwarden-0.1.0.dist-info", "pinwarden-0.1.0.data"}
    assert "pinwarden-0.1.0.data/data/share/man/man1/pinwarden.1" in names
    assert not [name for name in names if name.endswith(".pyc")]
    assert wheel.stat().st_size < LARGEST_WHEEL
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        folders = {name.split("/")[1] for name in packed.getnames() if name.count("/")}
    assert folders == {
        "src",
        "docs",
        "man",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "pyproject.toml",
        ".gitignore",
    }


def install(folder: Path, requirement: str, constraints: Path, *, python: str = sys.executable) -> Path:
    """Install into a new environment with pip's successor, and return the program."""
    environment = folder / "environment"
    run("uv", "venv", "--quiet", "--python", python, environment, cwd=folder)
    python_there = environment / "bin" / "python"
    run("uv", "pip", "install", "--quiet", "--python", python_there, "-c", constraints, requirement, cwd=folder)
    return environment / "bin" / "pinwarden"


def find_pythons() -> list[str]:
    """This Python, and the newest other one of this machine."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    others = [
        str(folder / f"python3.{minor}")
        for minor in range(12, 20)
        for folder in folders
        if minor != sys.version_info.minor and _works(folder / f"python3.{minor}")
    ]
    return [sys.executable, *others[-1:]]


def _works(python: Path) -> bool:
    return python.is_file() and not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode


@pytest.mark.parametrize("python", find_pythons(), ids=["this-python", "newest-python"][: len(find_pythons())])
def test_the_minimal_installation_locks_approves_and_blocks(
    python: str, wheel: Path, constraints: Path, tmp_path: Path
) -> None:
    program = install(tmp_path, str(wheel), constraints, python=python)
    assert run(program, "--version", cwd=tmp_path) == "pinwarden 0.1.0\n"
    printed = run(program, "demo", cwd=tmp_path, HOME=str(tmp_path))
    assert "The model sees no tool." in printed
    assert 'To see bundles and a registry too: pip install "pinwarden[registry]"' in printed
    refused = subprocess.run([program, "gateway"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, "[GATEWAY_UNAVAILABLE]" in refused.stderr) == (3, True)


def test_the_full_installation_also_runs_a_gateway_and_a_registry(
    dist: Path, constraints: Path, tmp_path: Path
) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    program = install(tmp_path, f"{sdist}[gateway,registry,postgres,javascript]", constraints)
    printed = run(program, "demo", cwd=tmp_path, HOME=str(tmp_path))
    assert "1 event of 1 tool: all entries match the signed head" in printed
    server = {"command": "python3", "args": [str(REPOSITORY / "examples" / "notes_server.py")]}
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": server}}))
    options = ("--scope", "project", "--allow-execute")
    run(program, "init", *options, cwd=project, HOME=str(tmp_path))
    checked = run(program, "gateway", "--check", "--listen", "127.0.0.1:0", *options, cwd=project, HOME=str(tmp_path))
    assert "all servers" in checked


def test_uvx_and_uv_tool_start_it_from_the_wheel(wheel: Path, constraints: Path, tmp_path: Path) -> None:
    options = ("--quiet", "--python", sys.executable, "--constraints", str(constraints))
    assert run("uvx", *options, "--from", wheel, "pinwarden", "--version", cwd=tmp_path) == "pinwarden 0.1.0\n"
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run("uv", "tool", "install", *options, wheel, cwd=tmp_path, **folders)
    assert run(tmp_path / "bin" / "pinwarden", "--version", cwd=tmp_path) == "pinwarden 0.1.0\n"


def test_pipx_installs_the_wheel(wheel: Path, constraints: Path, tmp_path: Path) -> None:
    folders = {
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIP_CONSTRAINT": str(constraints),
    }
    run(sys.executable, "-m", "pipx", "install", "--quiet", "--python", sys.executable, wheel, cwd=tmp_path, **folders)
    assert run(tmp_path / "bin" / "pinwarden", "--version", cwd=tmp_path) == "pinwarden 0.1.0\n"
