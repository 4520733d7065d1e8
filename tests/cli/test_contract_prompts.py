"""The author's lock records what the code of prompts, resources and resource templates can reach."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Outcome, pinwarden
from tests.gateway.published_servers import OLD_PYTHON
from tests.support.needs import missing

BODY = '''

@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def load(name: str) -> str:
    return open(f"/srv/{name}").read()


@server.prompt()
def summary(topic: str) -> str:
    """Summarise a topic."""
    return load(topic)


@server.prompt(name="plain")
def other() -> str:
    """Reach nothing."""
    return "Hello"


@server.resource("notes://today")
def today() -> str:
    """The notes of today."""
    import urllib.request

    return urllib.request.urlopen("https://notes.example").read().decode()


@server.resource("notes://{day}")
def of_day(day: str) -> str:
    """The notes of a day."""
    return load(day)
'''
FRAMEWORKS = {
    "sdk": (
        "from mcp.server.mcpserver import MCPServer\n\nserver = MCPServer('notes', log_level='ERROR')",
        sys.executable,
    ),
    "older sdk": (
        "from mcp.server.fastmcp import FastMCP\n\nserver = FastMCP('notes', log_level='ERROR')",
        str(OLD_PYTHON),
    ),
    "fastmcp": ("from fastmcp import FastMCP\n\nserver = FastMCP('notes')", sys.executable),
}
LOWLEVEL = """
import subprocess

from mcp.server.lowlevel import Server
from mcp import types


async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[])


async def list_prompts(ctx, params):
    return types.ListPromptsResult(prompts=[types.Prompt(name="summary")])


async def get_prompt(ctx, params):
    text = subprocess.run(["git", "log"], capture_output=True, text=True).stdout
    content = types.TextContent(type="text", text=text)
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


server = Server("notes", on_list_tools=list_tools, on_list_prompts=list_prompts, on_get_prompt=get_prompt)
"""


def contract(folder: Path, command: str, python: str, *more: str) -> Outcome:
    return pinwarden("contract", command, "--server", "server.py:server", "--python", python, *more, cwd=folder)


def recorded(folder: Path) -> dict[str, dict[str, list[str]]]:
    """The kinds that the lock records, by prompt and resource."""
    details = json.loads((folder / "mcp-fusion.lock").read_bytes())["pinwarden"]["details"]
    return {
        member: {name: facts["kinds"] for name, facts in details.get(member, {}).items()}
        for member in ("prompts", "resources")
    }


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_entitlements_of_prompts_and_resources_are_locked_explained_and_checked(tmp_path: Path, framework: str) -> None:
    head, python = FRAMEWORKS[framework]
    if not Path(python).exists():
        missing(python, "make .venv-old-client/.ready")
    server = tmp_path / "server.py"
    server.write_text(head + BODY)
    done = contract(tmp_path, "lock", python)
    assert done.code == 0, done
    assert recorded(tmp_path) == {
        "prompts": {"plain": [], "summary": ["filesystem:read"]},
        "resources": {"notes://today": ["network"], "notes://{day}": ["filesystem:read"]},
    }
    assert contract(tmp_path, "check", python).code == 0
    explained: dict[str, Any] = json.loads(contract(tmp_path, "explain", python, "--format", "json").out)
    assert explained["prompts"]["summary"]["kinds"] == ["filesystem:read"]
    assert explained["resources"]["notes://today"]["kinds"] == ["network"]

    changed = server.read_text().replace('return "Hello"', '__import__("subprocess").run(["id"]); return "Hello"')
    server.write_text(changed)
    checked = contract(tmp_path, "check", python)
    assert (checked.code, "plain now has subprocess" in checked.out) == (1, True), checked


def test_one_function_that_serves_all_prompts_counts_for_each(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(LOWLEVEL)
    done = contract(tmp_path, "lock", sys.executable)
    assert done.code == 0, done
    assert recorded(tmp_path)["prompts"] == {"summary": ["subprocess"]}


def test_a_lock_without_the_code_of_prompts_is_stale(tmp_path: Path) -> None:
    from pinwarden.contract.extension import compute_body_digest
    from pinwarden.contract.lockfile import Lockfile

    (tmp_path / "server.py").write_text(FRAMEWORKS["sdk"][0] + BODY)
    assert contract(tmp_path, "lock", sys.executable).code == 0
    path = tmp_path / "mcp-fusion.lock"
    document = json.loads(path.read_bytes())
    del document["pinwarden"]["details"]["prompts"]
    document["pinwarden"]["bodyDigest"] = str(compute_body_digest(Lockfile(document=document)))
    path.write_text(json.dumps(document))
    checked = contract(tmp_path, "check", sys.executable)
    assert (checked.code, "code of prompt summary" in checked.out) == (1, True), checked
