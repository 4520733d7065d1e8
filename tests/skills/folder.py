"""A project with skills in the folders of clients, and the command line in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.cli.project import ProjectFolder
from tests.cli.run import Outcome

PDF = """---
name: pdf
description: Fill and merge PDF forms. Use when a task is about a PDF file.
---

# PDF forms

Run `scripts/fill.py` with the form and a JSON file of values. Ask the user before you overwrite a file.
"""


class SkillProject(ProjectFolder):
    """A project with one skill of Claude Code."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write(".claude/skills/pdf/SKILL.md", PDF)
        self.write(".claude/skills/pdf/scripts/fill.py", "print('filled')\n")

    def write(self, path: str, text: str | bytes, *, executable: bool = False) -> Path:
        """Write a file of the project, or of the home folder if its path begins with ``~/``."""
        target = self.home / path[2:] if path.startswith("~/") else self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
        if executable:
            os.chmod(target, 0o755)  # noqa: PTH101
        return target

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a part of a file of the project."""
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new))

    def lock_skills(self) -> None:
        """Lock all skills, which must work."""
        outcome = self.run("init")
        assert outcome.code == 0, outcome

    def check(self, *options: str) -> tuple[int, list[dict[str, Any]]]:
        """Run ``ci`` and return its exit code and its rows."""
        outcome = self.run("ci", "--format", "json", *options)
        report = json.loads(outcome.out)
        return outcome.code, [*report["failures"], *report["remarks"], *report["unchecked"]]

    def codes(self, *options: str) -> list[tuple[str, str]]:
        """Return severity and code of each row of ``ci``."""
        return [(row["severity"], row["code"]) for row in self.check(*options)[1]]

    def approve(self, *arguments: str) -> Outcome:
        """Run ``approve`` for the skill."""
        return self.run("approve", *arguments)

    @property
    def skills_file(self) -> Path:
        """The file with the approved skills."""
        return self.root / "mcp-lock.skills.json"
