"""The action for GitHub, run step by step as a runner does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
ACTION: Any = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))


class Runner:
    """What a runner gives to the steps of an action."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self._temp = folder / "temp"
        self._temp.mkdir()
        self.summary, self.output = folder / "summary.md", folder / "output"
        self._variables = {
            **os.environ,
            "HOME": str(folder),
            "GITHUB_ACTION_PATH": str(REPOSITORY),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
            "RUNNER_TEMP": str(self._temp),
        }
        self.environment = self._temp / "pinwarden"

    def run(self, step: Mapping[str, Any], **inputs: str) -> subprocess.CompletedProcess[str]:
        defaults = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
        values = {f"${{{{ inputs.{name} }}}}": inputs.get(name, default) for name, default in defaults.items()}
        variables = {name: values[text] for name, text in step.get("env", {}).items()}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.workspace,
            env=self._variables | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def use_installed(self) -> None:
        """Let the second step find the environment of the tests, to install only once."""
        self.environment.symlink_to(Path(sys.executable).parents[1])

    def check(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        return self.run(ACTION["runs"]["steps"][1], **inputs)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_the_first_step_installs_with_hashes_into_the_temporary_folder(runner: Runner) -> None:
    assert not runner.environment.exists()
    done = runner.run(ACTION["runs"]["steps"][0])  # an environment of its own: others run in that of the tests
    assert done.returncode == 0, done.stderr
    assert "installing requirements/base.txt into" in done.stdout
    assert runner.check().returncode == 0


def test_a_repository_without_servers_passes_and_a_planted_server_fails_with_a_summary(runner: Runner) -> None:
    runner.use_installed()
    assert runner.check().returncode == 0
    servers = {"old": {"command": "npx", "args": ["-y", "notes@1.0.0"]}}
    (runner.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    subprocess.run(
        [runner.environment / "bin" / "pinwarden", "init", "--scope", "project"],
        cwd=runner.workspace,
        env={**os.environ, "HOME": str(runner.workspace.parent), "PINWARDEN_APPROVER": "tester"},
        capture_output=True,
        check=True,
    )
    servers["new"] = {"command": "npx", "args": ["-y", "other@1.0.0"]}
    (runner.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    done = runner.check(sarif="found.sarif")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error")
    assert "new" in runner.summary.read_text()
    assert json.loads((runner.workspace / "found.sarif").read_text())["version"] == "2.1.0"
    assert runner.output.read_text().splitlines() == ["exit-code=0", "exit-code=1"]


def test_several_projects_and_further_options_are_passed_on(runner: Runner) -> None:
    runner.use_installed()
    for name in ("services/mail", "services/search"):
        (runner.workspace / name).mkdir(parents=True)
    done = runner.check(projects="services/mail\nservices/search\n", arguments="--require-lock")
    assert done.returncode == 1
    assert "mail" in done.stdout + runner.summary.read_text()


def test_attack_an_input_is_never_read_as_a_script(runner: Runner) -> None:
    runner.use_installed()
    done = runner.check(
        projects='.";touch planted;"', arguments="$(touch planted)\n`touch planted`", sarif="$(touch planted)"
    )
    assert done.returncode == 2
    assert not list(runner.workspace.rglob("planted"))
    assert not [step for step in ACTION["runs"]["steps"] if "${{" in step["run"] or "uses" in step]
