"""The outcomes of Fusion's command line: its last words and exit code, and how ours exits in the same situation.

The servers behind the recordings are programs of its framework, which the vectors do not hold, so a stand-in of the
same tools is locked here. Its digest is another; everything else has to be the same.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pinwarden.contract.check import check_lockfile
from pinwarden.contract.contract import ActionContract, PromptContract, SurfaceContract, ToolContract
from pinwarden.contract.dialect import F1
from pinwarden.contract.files import read_lockfile, write_lockfile
from pinwarden.contract.lockfile import generate_lockfile
from pinwarden.contract.outcome import Outcome, check_outcome, lock_outcome
from tests.cli.run import pinwarden
from tests.conformance.fusion_world import MADE_AT, dialect_of
from tests.conformance.vectors import load

_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def tool(name: str, description: str = "A tool") -> ToolContract:
    """A tool with one operation."""
    actions = {"default": ActionContract(input_schema_digest="0" * 64)}
    surface = SurfaceContract(name=name, description=description, actions=actions, input_schema_digest="1" * 64)
    return ToolContract(surface=surface)


class StandIn:
    """A server with the tools and prompts that the recordings name."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self.said = "".join(run["stdout"] + run["stderr"] for run in recorded["runs"])
        count = re.search(r"generated \((\d+) tool", self.said)
        names = [*self.named("Tools changed"), *self.named("Tools removed")]
        fillers = [f"tool_{number}" for number in range(int(count[1]) if count else 0)]
        self.tools = list(dict.fromkeys([*names, *fillers]))[: len(fillers)]

    def named(self, what: str) -> list[str]:
        """The names in the lines that begin so."""
        return [name for line in re.findall(rf"{what}: (.*)", self.said) for name in line.split(", ")]

    def variant(self, name: str) -> tuple[dict[str, ToolContract], list[PromptContract]]:
        """The server as it was for one run."""
        tools = {each: tool(each) for each in self.tools}
        if name == "desc":
            tools.update({each: tool(each, "Changed") for each in self.named("Tools changed")})
        elif name == "added":
            tools.update({each: tool(each) for each in self.named("Tools added")})
        elif name == "removed":
            tools = {each: made for each, made in tools.items() if each not in self.named("Tools removed")}
        prompts = self.named("Prompts removed") or ["hello"]
        return tools, [PromptContract(name=each) for each in dict.fromkeys(prompts)] if name == "prompts" else []


def replay(run: dict[str, Any], recorded: dict[str, Any], path: Path) -> Outcome:
    """Do with the engine what the original did."""
    dialect = dialect_of(recorded["dialect"])
    contracts, prompts = StandIn(recorded).variant(run["variant"])
    if "--check" not in run["args"]:
        made = generate_lockfile("cli", contracts, prompts, generated_at=MADE_AT, dialect=dialect)
        write_lockfile(path, made)
        return lock_outcome(made, dialect)
    locked = read_lockfile(path, compat=dialect)
    if locked is None:
        return check_outcome(None, dialect)
    seen = prompts if dialect is F1 else None  # later releases forget to pass them on
    return check_outcome(check_lockfile(locked, contracts, seen, dialect=dialect, compat=True), dialect)


def works_on_a_server(run: dict[str, Any]) -> bool:
    return "./server.mjs" in run["args"]


@pytest.mark.parametrize("recorded", [pytest.param(each, id=each["dialect"]) for each in load("fusion/cli.json")])
def test_the_last_words_and_exit_codes_are_the_originals(recorded: dict[str, Any], tmp_path: Path) -> None:
    dialect = dialect_of(recorded["dialect"])
    path = tmp_path / dialect.file_name
    replayed = [run for run in recorded["runs"] if works_on_a_server(run)]
    assert len(replayed) >= 5
    for run in replayed:
        if "corrupt" in run["situation"]:
            path.write_text("{")
        outcome = replay(run, recorded, path)
        situation = run["situation"]
        assert outcome.exit_code == run["exitCode"], situation
        assert _DIGEST.sub("D", outcome.stdout) == _DIGEST.sub("D", run["stdout"]), situation
        assert run["stderr"].endswith(outcome.stderr_end), situation


@pytest.mark.parametrize("recorded", [pytest.param(each, id=each["dialect"]) for each in load("fusion/cli.json")])
def test_ours_tells_drift_from_could_not_check(recorded: dict[str, Any], tmp_path: Path) -> None:
    dialect = dialect_of(recorded["dialect"])
    path = tmp_path / dialect.file_name
    replayed = [run for run in recorded["runs"] if works_on_a_server(run)]
    codes = {run["situation"]: replay(run, recorded, path).exit_code_now for run in replayed}
    assert {codes[name] for name in codes if "without a lockfile" in name} == {3}
    assert {codes[name] for name in codes if "changed" in name and "unchanged" not in name} == {1}
    assert {codes[name] for name in codes if "unchanged" in name or name.startswith("generate")} == {0}


def test_what_the_original_ends_with_exit_1_is_a_matter_of_usage_here(tmp_path: Path) -> None:
    misuse = [run for run in load("fusion/cli.json")[-1]["runs"] if not works_on_a_server(run)]
    assert {run["exitCode"] for run in misuse} == {0, 1}
    assert pinwarden("contract", "frob").code == 2
    assert pinwarden("contract", "lock", "--server").code == 2
    assert pinwarden("contract", "lock", "--server", "nope.py", cwd=tmp_path).code == 2
    assert list(tmp_path.iterdir()) == []
    assert pinwarden("contract", "lock", "--help").code == 0
