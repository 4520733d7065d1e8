"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli.run import pinwarden

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return [text for tag, text in re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL) if tag == language]


def test_every_command_of_the_readme_runs_and_prints_the_shown_output(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("pinwarden ")]
    assert commands
    shown = "".join(blocks(""))
    for command in commands:
        outcome = pinwarden(*shlex.split(command.split("#")[0])[1:], cwd=tmp_path, env={"COLUMNS": "100"})
        assert outcome.code in (0, 1), command
        assert outcome.out in shown, command


def test_the_python_example_of_the_readme_runs() -> None:
    (example,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, check=True, cwd=REPOSITORY)
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("sha256:")
    assert lines[-1] == "JSON_CANONICALIZATION_ERROR"


def test_every_linked_file_exists() -> None:
    for page in [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
