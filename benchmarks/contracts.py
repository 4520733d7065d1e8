"""Contracts: the cost of a check compared with importing the server, and how it grows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Goal, compare, table
from pinwarden.contract.check import check_lockfile
from pinwarden.contract.contract import ActionContract, SurfaceContract, ToolContract
from pinwarden.contract.lockfile import generate_lockfile, parse_lockfile, serialize_lockfile

TOOLS = 200
_HEAD = "from mcp.server.mcpserver import MCPServer\n\nserver = MCPServer('bench', log_level='ERROR')\n"
_TOOL = '''

@server.tool()
def tool_{number}(path: str, limit: int = 10, unit: str = "C") -> str:
    """Tool number {number}: tell what is known about a path, up to a limit."""
    return f"{{path}} {{limit}} {{unit}}"
'''


def checking_report() -> str:
    """Compare ``contract check`` of an unchanged server of 200 tools with importing the server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server.py").write_text(_HEAD + "".join(_TOOL.format(number=index) for index in range(TOOLS)))
        ours = str(Path(sys.executable).parent / "pinwarden")
        subprocess.run([ours, "contract", "lock", "--server", "server.py"], cwd=folder, check=True, capture_output=True)

        def command(*words: str) -> Callable[[], object]:
            return lambda: subprocess.run(words, cwd=folder, check=True, capture_output=True)

        rows = compare(
            {
                "import server": command(sys.executable, "-c", "import server"),
                "pinwarden contract check": command(ours, "contract", "check", "--server", "server.py"),
            },
            baseline="import server",
            rounds=9,
        )
    goals = [Goal(name="pinwarden contract check", against="import server", at_most=1.3)]
    return table(f"Checking an unchanged server of {TOOLS} tools", rows, 1, goals)


def contracts_report() -> str:
    """Measure how the time per tool for generating and checking a lockfile grows with the number of tools."""

    def generate_and_check(count: int) -> Callable[[], object]:
        contracts = {f"tool_{number}": _contract(number) for number in range(count)}

        def run() -> None:
            data = serialize_lockfile(generate_lockfile("bench", contracts, generated_at="2026-01-01T00:00:00.000Z"))
            if not check_lockfile(parse_lockfile(data), contracts).ok:
                raise AssertionError("a new lockfile does not match its contracts")

        return run

    small, large = 1_000, 10_000
    rows = compare(
        {
            f"{small} tools, ten times": _repeat(generate_and_check(small), large // small),
            f"{large} tools": generate_and_check(large),
        },
        baseline=f"{small} tools, ten times",
        rounds=5,
    )
    goals = [Goal(name=f"{large} tools", against=f"{small} tools, ten times", at_most=1.5)]
    return table("Generating and checking contracts, per tool", rows, large, goals)


def _repeat(run: Callable[[], object], count: int) -> Callable[[], object]:
    def run_repeatedly() -> None:
        for _ in range(count):
            run()

    return run_repeatedly


def _contract(number: int) -> ToolContract:
    action = ActionContract(input_schema_digest=f"{number:064x}", required_fields=("path",))
    return ToolContract(
        surface=SurfaceContract(
            name=f"tool_{number}",
            description=f"Tool number {number}: tell what is known about a path.",
            actions={"default": action},
            input_schema_digest=f"{number:064x}",
        )
    )
