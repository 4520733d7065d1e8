"""The real ToolPin, installed by npm from tests/npm, run offline in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.conformance.vectors import REPOSITORY, vectors_dir
from tests.support.needs import missing

INSTALL = "npm ci --prefix tests/npm"
_CLI = REPOSITORY / "tests/npm/node_modules/@proofofwork-agency/toolpin/dist/cli.js"


class ToolPin:
    """A project folder with the vectors' registry cache in it, and the real command line in that folder."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("node") is None or not _CLI.exists():
            missing("ToolPin 0.5.4", INSTALL)
        self.folder = folder
        shutil.copytree(vectors_dir() / "toolpin/dot-toolpin", folder / ".toolpin")
        self.lock = folder / "mcp-lock.json"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """The command with its outcome; it sees no home folder but its own."""
        return subprocess.run(
            ["node", "--no-warnings", str(_CLI), *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "LC_ALL": "en_US.UTF-8"},
            capture_output=True,
            check=False,
            timeout=240,
        )

    def ci(self) -> tuple[int, Any]:
        """Exit code and report of ``ci``."""
        done = self.run("ci", "--no-policy", "--json")
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr.decode()

    def digest(self) -> str:
        """The whole-lock digest."""
        done = self.run("lock", "digest", "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["digest"])

    def digests(self, texts: list[bytes]) -> list[dict[str, Any]]:
        """What its own reader makes of each lock: the digest and the integrity values, or its error."""
        files = [self.folder / f"{number}.json" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_bytes(text)
        question = [_CLI.with_name("plan.js").as_uri(), [str(file) for file in files]]
        script = Path(__file__).with_name("toolpin_digests.mjs")
        done = subprocess.run(
            ["node", str(script)], input=json.dumps(question).encode(), capture_output=True, check=True, timeout=240
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers
