"""``pinwarden scan`` without a target looks at every configured server, after consent, and writes nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.configured_world import POISONED, ConfiguredWorld, harmless

REMOTE = {"url": "https://127.0.0.1:9/mcp"}


@pytest.fixture
def world(tmp_path: Path) -> ConfiguredWorld:
    world = ConfiguredWorld(tmp_path)
    world.configure(clock=harmless(), remote=REMOTE)
    world.configure_user(math=POISONED)
    return world


def states(report: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {server["server"]: server["state"] for server in report["servers"]}


def files_of(world: ConfiguredWorld) -> list[str]:
    return sorted(str(path) for folder in (world.root, world.home) for path in folder.rglob("*") if path.is_file())


def test_without_consent_nothing_is_started_and_the_hint_is_the_command(world: ConfiguredWorld) -> None:
    outcome = world.run("scan")
    assert (outcome.code, world.started) == (2, [])
    (hint,) = [line.removeprefix("hint: ") for line in outcome.err.splitlines() if line.startswith("hint: ")]
    assert hint == "pinwarden scan --allow-execute --allow-connect"
    assert world.run(*shlex.split(hint)[1:]).code == 1


def test_servers_of_all_scopes_are_scanned_and_nothing_is_written(world: ConfiguredWorld) -> None:
    before = files_of(world)
    code, report = world.run_json("scan", "--allow-execute")
    assert (code, world.started) == (1, ["add", "now"])
    assert states(report) == {"clock": "scanned", "math": "scanned", "remote": "skipped"}
    assert {finding["server"] for finding in report["findings"] if finding["severity"] == "warning"} == {"math"}
    assert report["next_command"] == "pinwarden inspect math --allow-execute"
    assert sorted({*files_of(world)} - {*before}) == [str(world.root / "started")]


def test_a_warning_says_in_one_sentence_what_the_text_tries(world: ConfiguredWorld) -> None:
    shown = " ".join(world.run("scan", "--allow-execute").out.split())
    sentence = "This text tries to make the model send private data somewhere else and hide something from the user."
    assert shown.count(sentence) == 1
    assert "server tools warnings result" in shown


def test_a_server_that_several_clients_have_is_started_once(world: ConfiguredWorld) -> None:
    (world.root / ".cursor").mkdir()
    (world.root / ".cursor" / "mcp.json").write_text((world.root / ".mcp.json").read_text())
    _, report = world.run_json("scan", "--allow-execute")
    assert world.started == ["add", "now"]
    assert len(report["servers"]) == 3


def test_a_server_that_does_not_start_is_named_and_is_not_clean(world: ConfiguredWorld) -> None:
    world.configure(clock=harmless(), broken={"command": "python3", "args": ["-c", "exit(3)"]})
    world.configure_user()
    code, report = world.run_json("scan", "--allow-execute")
    assert (code, states(report)) == (3, {"clock": "scanned", "broken": "failed"})


def test_harmless_servers_pass(world: ConfiguredWorld) -> None:
    world.configure(clock=harmless())
    world.configure_user()
    outcome = world.run("scan", "--allow-execute")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-2:] == ["nothing suspicious found", "Next: pinwarden setup"]


def test_a_configuration_file_can_be_the_target(world: ConfiguredWorld) -> None:
    code, report = world.run_json("scan", ".mcp.json", "--allow-execute")
    assert (code, states(report)) == (0, {"clock": "scanned", "remote": "skipped"})
    assert world.started == ["now"]


@pytest.mark.parametrize(("answer", "started"), [("y", ["add", "now"]), ("n", []), ("", [])])
def test_on_a_terminal_the_user_is_asked_before_any_server_is_started(
    world: ConfiguredWorld, answer: str, started: list[str]
) -> None:
    with world.at_terminal("scan") as terminal:
        shown = terminal.until("(Enter = no): ")
        assert "Start these servers" in shown
        assert [name in shown for name in ("clock", "math", "remote")] == [True, True, False]
        assert world.started == []
        terminal.types(f"{answer}\n")
        assert "Contact these servers" in terminal.until("(Enter = no): ")
        terminal.types("n\n")
        assert terminal.ends() == (1 if started else 0)
    assert world.started == started


def test_on_a_terminal_single_servers_can_be_chosen(world: ConfiguredWorld) -> None:
    with world.at_terminal("scan") as terminal:
        terminal.until("(Enter = no): ")
        terminal.types("c\n")
        for answer in ("y", "n", "n"):  # clock, math, then the remote server
            terminal.until("(Enter = no): ")
            terminal.types(f"{answer}\n")
        assert terminal.ends() == 0
    assert world.started == ["now"]


@pytest.mark.parametrize(("answer", "code", "started"), [("", 0, ["now"]), ("n", 2, [])])
def test_on_a_terminal_the_user_is_asked_before_a_named_server_is_started(
    world: ConfiguredWorld, answer: str, code: int, started: list[str]
) -> None:
    with world.at_terminal("scan", "clock") as terminal:
        assert "Start 'clock' (" in " ".join(terminal.until("(Enter = yes): ").split())
        assert world.started == []
        terminal.types(f"{answer}\n")
        assert terminal.ends() == code
    assert world.started == started


def test_an_interrupt_at_the_question_starts_nothing(world: ConfiguredWorld) -> None:
    with world.at_terminal("scan") as terminal:
        terminal.until("(Enter = no): ")
        terminal.types(terminal.INTERRUPT)
        assert terminal.ends() == 130
    assert world.started == []
