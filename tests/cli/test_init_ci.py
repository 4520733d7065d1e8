"""`init-ci` writes a workflow that runs as it is: its source of Pinwarden, its branch, and how a file is updated."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinwarden import __version__
from tests.cli.configured_world import ConfiguredWorld, harmless

GITHUB = ".github/workflows/pinwarden.yml"
GITLAB = ".gitlab/pinwarden.gitlab-ci.yml"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "ab" * 32
SOURCE = f"git+https://git.example.org/acme/pinwarden@{COMMIT}"
FROM_GIT = {"url": "https://git.example.org/acme/pinwarden", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
WHEEL_URL = "https://files.example.org/pinwarden-0.1.0-py3-none-any.whl"


class CiWorld(ConfiguredWorld):
    """A project in a real repository, and a copy of Pinwarden whose installer recorded a source."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.root / ".git").rmdir()
        self.git("init", "--quiet", "--initial-branch", "trunk")
        self.configure(now=harmless())
        assert self.run("init").code == 0
        self.installed: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        own = {**super().environment, "PIP_NO_BUILD_ISOLATION": "false"}  # the build tools are installed here
        return own if getattr(self, "installed", None) is None else {**own, "PYTHONPATH": str(self.installed)}

    def git(self, *words: str, folder: Path | None = None) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
        subprocess.run(["git", *identity, *words], cwd=folder or self.root, check=True, capture_output=True)

    def install_from(self, recorded: dict[str, Any] | None) -> None:
        """Let the installed copy of Pinwarden have this record of its source (PEP 610)."""
        self.installed = self.home / "installed"
        metadata = self.installed / f"pinwarden-{__version__}.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: pinwarden\nVersion: {__version__}\n")
        if recorded is not None:
            (metadata / "direct_url.json").write_text(json.dumps(recorded))

    def install_from_checkout(self, *, remote: str | None) -> Path:
        """Let Pinwarden be installed from a folder: a clone of this remote, or a folder that git does not know."""
        checkout = self.home / "checkout"
        checkout.mkdir()
        self.git("init", "--quiet", folder=checkout)
        self.git("commit", "--quiet", "--allow-empty", "--message", "x", folder=checkout)
        if remote is not None:
            self.git("remote", "add", "origin", remote, folder=checkout)
            self.git("update-ref", "refs/remotes/origin/main", "HEAD", folder=checkout)
        self.install_from({"url": checkout.as_uri(), "dir_info": {}})
        return checkout

    def read_workflow(self, file: str = GITHUB) -> Any:
        return yaml.safe_load((self.root / file).read_text())

    def commands(self) -> list[str]:
        return [step["run"].strip() for step in self.read_workflow()["jobs"]["pinwarden"]["steps"] if "run" in step]


@pytest.fixture
def world(tmp_path: Path) -> CiWorld:
    return CiWorld(tmp_path)


@pytest.mark.parametrize(
    ("recorded", "spec"),
    [
        (FROM_GIT, SOURCE),
        ({**FROM_GIT, "url": "ssh://git@git.example.org/acme/pinwarden"}, SOURCE),
        (
            {"url": WHEEL_URL, "archive_info": {"hashes": {"sha256": DIGEST}}},
            f"{WHEEL_URL}#sha256={DIGEST}",
        ),
    ],
)
def test_the_job_installs_pinwarden_from_where_it_was_installed_here(
    world: CiWorld, recorded: dict[str, Any], spec: str
) -> None:
    world.install_from(recorded)
    outcome = world.run("init-ci")
    assert (outcome.code, outcome.out.splitlines()[0]) == (0, f"wrote {GITHUB}"), outcome.err
    assert outcome.out.splitlines()[1] == f"Commit: git add mcp-lock.json pinwarden.toml .mcp.json {GITHUB}"
    assert world.commands() == [f"pipx install {shlex.quote(spec)}", "pinwarden ci --format github"]
    assert world.run("init-ci", "--for", "gitlab").code == 0
    job = world.read_workflow(GITLAB)["pinwarden"]
    assert job["script"][0].strip() == f"pip install {shlex.quote(spec)}"
    assert job["image"] == ("python:3.13" if spec.startswith("git+") else "python:3.13-slim")


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        {"url": "file:///tmp/pinwarden.whl", "archive_info": {"hashes": {"sha256": DIGEST}}},
        {"url": WHEEL_URL, "archive_info": {}},
        {**FROM_GIT, "url": "https://user:password@git.example.org/acme/pinwarden"},
        {**FROM_GIT, "vcs_info": {"vcs": "git", "commit_id": "main"}},
        {"url": 5},
    ],
    ids=["index", "local wheel", "archive without digest", "credentials", "branch", "malformed"],
)
def test_nothing_is_written_if_no_source_works_on_another_machine(
    world: CiWorld, recorded: dict[str, Any] | None
) -> None:
    world.install_from(recorded)
    outcome = world.run("init-ci")
    assert outcome.code == 2
    assert "say what the CI job installs it from [USAGE]" in outcome.err
    assert "pinwarden init-ci --install git+https://" in outcome.err
    assert "password" not in outcome.err
    assert not (world.root / GITHUB).exists()


def test_the_commit_of_a_checkout_is_proposed_in_a_hint_that_works(world: CiWorld) -> None:
    world.install_from_checkout(remote="git@git.example.org:acme/pinwarden.git")
    refused = world.run("init-ci", "--for", "gitlab")
    assert (refused.code, (world.root / GITLAB).exists()) == (2, False)
    hint = refused.err.partition("hint: ")[2].strip()
    words = shlex.split(hint)
    assert words[:5] == ["pinwarden", "init-ci", "--for", "gitlab", "--install"]
    assert words[5].startswith("git+https://git.example.org/acme/pinwarden.git@")
    assert world.run(*words[1:]).code == 0
    assert words[5] in world.read_workflow(GITLAB)["pinwarden"]["script"][0]


def test_on_a_terminal_the_commit_of_a_checkout_is_asked_about(world: CiWorld) -> None:
    world.install_from_checkout(remote="https://git.example.org/acme/pinwarden")
    with world.at_terminal("init-ci") as terminal:
        question = " ".join(terminal.until("[n]o ").split())
        assert "Let the job install Pinwarden from git+https://git.example.org/" in question
        terminal.types("\n")
        assert terminal.ends() == 0
    assert world.commands()[0].startswith("pipx install git+https://git.example.org/acme/pinwarden@")


def test_on_a_terminal_a_wheel_of_a_checkout_without_a_remote_is_built_after_a_question(world: CiWorld) -> None:
    checkout = world.install_from_checkout(remote=None)
    (checkout / "pinwarden").mkdir()
    (checkout / "pinwarden" / "__init__.py").write_text("")
    backend = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    project = f'{backend}[project]\nname = "pinwarden"\nversion = "{__version__}"\nrequires-python = ">=3.11"\n'
    (checkout / "pyproject.toml").write_text(project)
    with world.at_terminal("init-ci") as terminal:
        assert "Build a wheel of it into .pinwarden" in " ".join(terminal.until("[n]o ").split())
        terminal.types("\n")
        assert terminal.ends() == 0
    wheel = f"./.pinwarden/pinwarden-{__version__}-py3-none-any.whl"
    assert (world.root / wheel).is_file()
    assert world.commands()[0] == f"pipx install {wheel}"


def test_without_a_remote_the_hint_builds_a_wheel_and_the_job_runs_in_a_clean_clone(
    world: CiWorld, tmp_path: Path
) -> None:
    """The tests run from a checkout of Pinwarden. Its remote, if there is one, must not decide this test."""
    from pinwarden.system.install_source import find_install_source

    real = find_install_source(os.environ).checkout
    assert real is not None
    world.install_from({"url": real.as_uri(), "dir_info": {}})
    without_git = {**world.environment, "GIT_DIR": str(tmp_path / "nowhere")}
    shell = {**without_git, "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    refused = subprocess.run(
        ["pinwarden", "init-ci"], cwd=world.root, env=shell, capture_output=True, text=True, check=False
    )
    assert "has no commit at a remote repository" in refused.stderr
    hint = refused.stderr.partition("hint: ")[2].strip()
    done = subprocess.run(
        ["bash", "-e", "-c", hint], cwd=world.root, env=shell, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    world.git("add", "--all")
    world.git("commit", "--quiet", "--message", "x")
    world.git("clone", "--quiet", str(world.root), str(tmp_path / "clone"))
    install, check = world.commands()
    target = tmp_path / "target"
    job = {
        **super(CiWorld, world).environment,
        "CI": "true",
        "PIP_TARGET": str(target),
        "PIP_NO_DEPS": "1",
        "PYTHONPATH": str(target),
    }
    job["PATH"] = f"{target / 'bin'}{os.pathsep}{job['PATH']}"
    (world.root / ".mcp.json").write_text("changed, but not in the clone")
    for step in (install.replace("pipx install", "pip install"), check):
        ran = subprocess.run(
            ["bash", "-e", "-c", step], cwd=tmp_path / "clone", env=job, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (target / "bin" / "pinwarden").exists()


@pytest.mark.parametrize(
    ("branch", "filtered"),
    [(None, None), ("trunk", ["trunk"]), ("release/2.x", ["release/2.x"]), ("a'b]: +x", None)],
)
def test_pushes_to_the_default_branch_are_checked(
    world: CiWorld, branch: str | None, filtered: list[str] | None
) -> None:
    """Without a known default branch, and for a name that YAML or a filter could misread, every push is checked."""
    world.install_from(FROM_GIT)
    if branch is not None:
        head = world.root / ".git" / "refs" / "remotes" / "origin" / "HEAD"
        head.parent.mkdir(parents=True)
        head.write_text(f"ref: refs/remotes/origin/{branch}\n")
    assert world.run("init-ci").code == 0
    triggers = world.read_workflow()[True]  # YAML 1.1 reads the word "on" as a boolean
    assert list(triggers) == ["pull_request", "push"]
    assert triggers["push"] == (None if filtered is None else {"branches": filtered})


class TestAnExistingFile:
    OTHER = "git+https://git.example.org/acme/pinwarden@" + "f" * 40

    def test_is_left_alone_if_it_is_up_to_date(self, world: CiWorld) -> None:
        world.install_from(FROM_GIT)
        world.run("init-ci")
        world.git("add", "--all")
        world.git("commit", "--quiet", "--message", "x")
        again = world.run("init-ci")
        assert (again.code, again.out) == (0, f"already up to date: {GITHUB}\n")

    def test_is_changed_with_the_command_of_the_hint_after_a_diff(self, world: CiWorld) -> None:
        world.install_from(FROM_GIT)
        world.run("init-ci")
        before = (world.root / GITHUB).read_text()
        refused = world.run("init-ci", "--install", self.OTHER)
        assert (refused.code, "[FILE_EXISTS]" in refused.err) == (1, True)
        assert f"-          pipx install {SOURCE}\n+          pipx install {self.OTHER}\n" in refused.out
        assert (world.root / GITHUB).read_text() == before
        hint = refused.err.partition("hint: To replace it: ")[2].strip()
        assert hint == f"pinwarden init-ci --install {self.OTHER} --force"
        done = world.run(*shlex.split(hint)[1:])
        assert (done.code, f"\nchanged {GITHUB}\n" in done.out) == (0, True)
        assert world.commands()[0] == f"pipx install {self.OTHER}"

    @pytest.mark.parametrize(("key", "code"), [("\n", 0), ("n\n", 1)])
    def test_is_changed_on_a_terminal_if_the_person_agrees(self, world: CiWorld, key: str, code: int) -> None:
        world.install_from(FROM_GIT)
        world.run("init-ci")
        with world.at_terminal("init-ci", "--install", self.OTHER) as terminal:
            assert "+          pipx install" in terminal.until("[n]o ")
            terminal.types(key)
            assert terminal.ends() == code
        assert (self.OTHER in world.commands()[0]) == (code == 0)

    def test_that_someone_else_wrote_is_replaced_only_with_force(self, world: CiWorld) -> None:
        world.install_from(FROM_GIT)
        (world.root / GITHUB).parent.mkdir(parents=True)
        (world.root / GITHUB).write_text("name: mine\n")
        with world.at_terminal("init-ci") as terminal:
            assert terminal.ends() == 1
        assert (world.root / GITHUB).read_text() == "name: mine\n"
        assert world.run("init-ci", "--force").code == 0
        assert world.commands()[0] == f"pipx install {SOURCE}"

    def test_that_is_a_link_is_not_followed(self, world: CiWorld) -> None:
        world.install_from(FROM_GIT)
        (world.root / GITHUB).parent.mkdir(parents=True)
        (world.root / "elsewhere").write_text("x")
        (world.root / GITHUB).symlink_to(world.root / "elsewhere")
        assert "[CONFIG_UNEDITABLE]" in world.run("init-ci", "--force").err
        assert (world.root / "elsewhere").read_text() == "x"


@pytest.mark.parametrize("spec", ["./missing.whl", "/etc/hostname", "../outside.whl", "pinwarden", "pinwarden==0.1.0"])
def test_a_source_that_the_job_could_not_install_is_refused(world: CiWorld, spec: str) -> None:
    (world.root.parent / "outside.whl").write_text("")
    outcome = world.run("init-ci", "--install", spec)
    assert (outcome.code, "[USAGE]" in outcome.err) == (2, True)
    assert not (world.root / GITHUB).exists()


@pytest.mark.parametrize(
    ("system", "file", "schema"),
    [
        ("github", GITHUB, "vendor.github-workflows"),
        ("gitlab", GITLAB, "vendor.gitlab-ci"),
        ("azure", ".azure-pipelines/pinwarden.yml", "vendor.azure-pipelines"),
    ],
)
def test_the_workflow_is_valid_by_the_schema_of_its_system(world: CiWorld, system: str, file: str, schema: str) -> None:
    assert world.run("init-ci", "--for", system, "--install", SOURCE).code == 0
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(world.root / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_attack_a_folder_or_source_cannot_end_the_strings_of_a_jenkinsfile(world: CiWorld) -> None:
    """Groovy ends a string at three quotes and reads backslashes; the shell reads what Groovy leaves."""
    folder = world.root / "it's''' + x() + '''"
    folder.mkdir()
    (folder / ".mcp.json").write_text((world.root / ".mcp.json").read_text())
    assert world.run("init", "--project", str(folder)).code == 0
    source = f"git+https://git.example.org/a'''/b\\c@{COMMIT}"
    done = world.run("init-ci", "--for", "jenkins", "--install", source, "--project", str(folder))
    assert done.code == 0, done.err
    text = (world.root / ".jenkins/pinwarden.Jenkinsfile").read_text()
    (script,) = re.findall(r"sh '''((?:\\.|[^\\])*?)'''", text, re.DOTALL)
    lines = [shlex.split(line) for line in re.sub(r"\\(.)", r"\1", script).strip().splitlines()]
    assert lines[1][1:] == ["install", source]
    assert lines[2][1:] == ["ci", "--project", folder.name, "--format", "junit=pinwarden.xml"]
    assert text.startswith("// Written by pinwarden init-ci")


@pytest.mark.parametrize("name", ["$(steal)", "${{ secrets.x }}", "$[variables.x]"])
def test_attack_a_folder_that_a_ci_system_would_evaluate_is_refused(world: CiWorld, name: str) -> None:
    folder = world.root / name
    folder.mkdir()
    (folder / ".mcp.json").write_text((world.root / ".mcp.json").read_text())
    assert world.run("init", "--project", str(folder)).code == 0
    done = world.run("init-ci", "--for", "azure", "--install", SOURCE, "--project", str(folder))
    assert (done.code, "not allowed in a workflow file" in done.err) == (2, True)
