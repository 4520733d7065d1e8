"""Real Python servers from the user's own package index: locked, checked, upgraded to another release, compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run import pinwarden
from tests.support.needs import needs

UV = str(Path(sys.executable).with_name("uv"))

SERVERS = [
    pytest.param("mcp-server-time", "2025.9.25", "2026.10.19", id="mcp-server-time"),
    pytest.param("mcp-server-git", "2025.9.25", "2026.10.19", id="mcp-server-git", marks=pytest.mark.soak),
    pytest.param("mcp-server-fetch", "2025.4.7", "2026.10.24", id="mcp-server-fetch", marks=pytest.mark.soak),
    pytest.param("duckduckgo-mcp-server", "0.1.1", "0.7.0", id="duckduckgo", marks=pytest.mark.soak),
    pytest.param("wikipedia-mcp", "1.5.8", "2.0.1", id="wikipedia-mcp", marks=pytest.mark.soak),
]


def installed(folder: Path, package: str, version: str, *more: str) -> tuple[Path, Path]:
    """The program of a server in an environment of its own, and the folder of its source."""
    for command in (
        [UV, "venv", "-q", "--python", sys.executable, str(folder)],
        [UV, "pip", "install", "-q", "--python", str(folder / "bin" / "python"), f"{package}=={version}", *more],
    ):
        subprocess.run(command, check=True, timeout=240, env={**os.environ, "VIRTUAL_ENV": ""})
    source = next(folder.glob(f"lib/python*/site-packages/{package.replace('-', '_')}"))
    return folder / "bin" / package, source


OLD = """
from mcp.server.fastmcp import FastMCP

mcp = FastMCP("old", instructions="Look.")


@mcp.tool()
def look(city: str) -> str:
    \"\"\"Look up a city.\"\"\"
    open(city)
    return city
"""


def test_a_server_of_the_first_sdk_is_locked_from_its_own_environment_and_keeps_its_digest_in_the_second(
    tmp_path: Path,
) -> None:
    for command in (
        [UV, "venv", "-q", "--python", sys.executable, str(tmp_path / ".venv")],
        [UV, "pip", "install", "-q", "--python", str(tmp_path / ".venv" / "bin" / "python"), "mcp<2"],
    ):
        subprocess.run(command, check=True, timeout=240, env={**os.environ, "VIRTUAL_ENV": ""})
    (tmp_path / "server.py").write_text(OLD)
    new = OLD.replace("mcp.server.fastmcp import FastMCP", "mcp.server.mcpserver import MCPServer")
    (tmp_path / "new.py").write_text(new.replace('FastMCP("old"', 'MCPServer("old"'))
    servers = {"old.lock": ("server.py",), "new.lock": ("new.py", "--python", sys.executable)}
    for lock, server in servers.items():
        made = pinwarden("contract", "lock", "--lock", lock, "--server", *server, cwd=tmp_path, env={"VIRTUAL_ENV": ""})
        assert made.code == 0, made
    old, now = (json.loads((tmp_path / lock).read_bytes())["pinwarden"] for lock in servers)
    assert [contract["versions"]["mcp"].split(".")[0] for contract in (old, now)] == ["1", "2"]
    assert old["tools"]["look"]["entitlements"]["kinds"] == ["filesystem:read"]
    assert old["normalisedDigest"] == now["normalisedDigest"]
    compared = pinwarden("contract", "diff", *servers, "--format", "json", cwd=tmp_path)
    assert json.loads(compared.out)["sameMeaning"] is True


@pytest.mark.parametrize(("package", "before", "after"), SERVERS)
@needs("git", install="sudo apt-get install git")
def test_a_real_server_is_locked_checked_upgraded_and_compared(
    package: str, before: str, after: str, tmp_path: Path
) -> None:
    locks = []
    for version in (before, after):
        older = ("mcp<2",) if version == before else ()  # what that release was written for
        program, source = installed(tmp_path / version, package, version, *older)
        lock = f"{version}.lock"
        server = ("--lock", lock, "--source", str(source), "--command", "--", str(program))
        made = pinwarden("contract", "lock", *server, cwd=tmp_path)
        assert made.code == 0, made
        assert pinwarden("contract", "check", *server, cwd=tmp_path).code == 0
        locks.append(lock)
    tools = [json.loads((tmp_path / lock).read_bytes())["pinwarden"]["tools"] for lock in locks]
    levels = [tool["evidence"]["entitlements"] for group in tools for tool in group.values()]
    assert levels.count("source") >= len(levels) / 2  # a tool that is registered in a loop has no name in the source
    upgraded = pinwarden("contract", "check", *server[:1], locks[0], *server[2:], cwd=tmp_path)
    assert upgraded.code == 1
    assert "contract lock" in upgraded.out
    compared = pinwarden("contract", "diff", *locks, "--format", "json", cwd=tmp_path)
    assert compared.code in (0, 1)
    assert json.loads(compared.out)


SEEDED = [
    pytest.param("mcp-server-time", "2026.10.19", {}, id="mcp-server-time", marks=pytest.mark.soak),
    pytest.param("mcp-server-fetch", "2026.10.24", {}, id="mcp-server-fetch", marks=pytest.mark.soak),
    pytest.param("arxiv-mcp-server", "0.8.2", {}, id="arxiv-mcp-server", marks=pytest.mark.soak),
    pytest.param("duckduckgo-mcp-server", "0.7.0", {}, id="duckduckgo", marks=pytest.mark.soak),
    pytest.param("wikipedia-mcp", "2.0.1", {}, id="wikipedia-mcp", marks=pytest.mark.soak),
    pytest.param(
        "mcp-clickhouse",
        "0.7.0",
        {"CLICKHOUSE_HOST": "localhost", "CLICKHOUSE_USER": "reader", "CLICKHOUSE_PASSWORD": "unused-here"},
        id="mcp-clickhouse",
        marks=pytest.mark.soak,
    ),
]


@pytest.mark.parametrize(("package", "version", "variables"), SEEDED)
def test_the_lock_of_a_real_server_has_the_same_bytes_with_ten_hash_seeds(
    package: str, version: str, variables: dict[str, str], tmp_path: Path
) -> None:
    program, source = installed(tmp_path / "environment", package, version)
    given = [f"{name}={value}" for name, value in variables.items()]
    command = ("--source", str(source), "--command", "--", "env", *given, str(program))
    written = set()
    for seed in range(10):
        made = pinwarden("contract", "lock", *command, cwd=tmp_path, env={"PYTHONHASHSEED": str(seed)})
        assert made.code == 0, made
        assert seed == 0 or "is up to date" in made.out + made.err
        written.add((tmp_path / "mcp-fusion.lock").read_bytes())
    assert len(written) == 1
