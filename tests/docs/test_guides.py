"""Every command in the guides runs, in the order in which a reader meets them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = sorted((REPOSITORY / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=[guide.stem for guide in GUIDES])
def test_the_commands_of_the_guide_run(guide: Path, tmp_path: Path) -> None:
    """Blocks marked ``sh`` are run; blocks without a mark are examples that need a server of the reader's own."""
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    notes = {"command": "python3", "args": ["examples/notes_server.py"]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    text = guide.read_text(encoding="utf-8")
    commands = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        if not words:
            continue
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in (0, 1), f"{command}\n{done.stderr.decode()}"
        assert b"Traceback" not in done.stderr
