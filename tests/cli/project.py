"""A project folder and a home of its own, and the command line in it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.run import Outcome, pinwarden

RECORDED = 1784548800  # 2026-07-20T12:00:00Z, when ToolPin's recordings were made


class ProjectFolder:
    """What tests of commands that lock and check work in."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home = folder / "project", folder / "home"
        self.root.mkdir(exist_ok=True)
        self.home.mkdir()

    def run(self, *arguments: str) -> Outcome:
        """The command in this folder, as the same person at the same moment."""
        env = {"HOME": str(self.home), "PINWARDEN_APPROVER": "reviewer", "SOURCE_DATE_EPOCH": str(RECORDED)}
        return pinwarden(*arguments, cwd=self.root, env=env)

    @property
    def lock(self) -> Path:
        """The lock of the project."""
        return self.root / "mcp-lock.json"
