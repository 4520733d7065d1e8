"""Every command in the guides runs, in the order in which a reader meets them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.run import pinwarden_in
from tests.registry.replica import Replica
from tests.servers.acme_packages import acme_registries

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = sorted((REPOSITORY / "docs" / "guides").glob("*.md"))


NEEDS_REGISTRIES = "prove-and-run"
NEEDS_A_REGISTRY = ("registry", "install", "skills")
SERVED = "http://127.0.0.1:8470"
LOCAL = {"command": "python3", "args": ["examples/notes_server.py"]}
PACKAGED = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}
OSV = {
    "id": "X-1",
    "modified": "2026-01-01T00:00:00Z",
    "affected": [{"package": {"ecosystem": "npm", "name": "other"}}],
}


@pytest.mark.parametrize("guide", GUIDES, ids=[guide.stem for guide in GUIDES])
def test_every_command_of_the_guide_runs(guide: Path, tmp_path: Path) -> None:
    """Blocks marked ``sh`` are run; blocks without a mark are examples that need a server of the reader's own."""
    project = tmp_path / "project"
    (project / "osv-export").mkdir(parents=True)
    (project / "osv-export" / "X-1.json").write_text(json.dumps(OSV))
    for name in ("tests", "examples"):
        (project / name).symlink_to(REPOSITORY / name)
    with ExitStack() as stack:
        environment = {"HOME": str(tmp_path), "PINWARDEN_STORE": str(tmp_path / "store")}
        if guide.stem == NEEDS_REGISTRIES:
            wheels = tmp_path / "wheels"
            wheels.mkdir()
            environment |= stack.enter_context(acme_registries(wheels)).variables
        address = SERVED
        if guide.stem in NEEDS_A_REGISTRY:
            replica = Replica(env=environment)
            stack.callback(replica.kill)
            address = replica.url.rstrip("/")
        notes = PACKAGED if guide.stem == NEEDS_REGISTRIES else LOCAL
        (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
        commands = _commands(guide)
        assert commands
        for command in commands:
            printed = _run(command.replace(SERVED, address), project, environment)
            if command.startswith("pinwarden registry token add"):
                environment["PINWARDEN_REGISTRY_TOKEN"] = printed.strip()


def _commands(guide: Path) -> list[str]:
    text = guide.read_text(encoding="utf-8")
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def _run(command: str, project: Path, environment: dict[str, str]) -> str:
    words = shlex.split(command, comments=True)
    if not words:
        return ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, **environment}
    if words[0] == "pinwarden":
        outcome = pinwarden_in(variables, *words[1:], cwd=project)
        assert outcome.code in (0, 1), f"{command}\n{outcome.err}"
        assert "Traceback" not in outcome.err
        return outcome.out
    done = subprocess.run(
        words,
        cwd=project,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), f"{command}\n{done.stderr.decode()}"
    assert done.returncode == 0 or "PINWARDEN_REGISTRY_TOKEN" not in environment, command
    assert b"Traceback" not in done.stderr
    return done.stdout.decode()
