"""Several servers are verified at once; reports and locks are those of one after the other."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from threading import Barrier, Event

import pytest

from tests.cli.artifact_world import User, npm_server
from tests.cli.terminal import AtTerminal
from tests.servers.acme_packages import npm_answers
from tests.servers.plain_http import Answerer, Asked, Said, plain_server
from tests.support.needs import needs

pytestmark = needs("node", install="apt-get install nodejs npm")
NAMES = ("alpha", "beta", "gamma")
PACKAGES = {name: npm_server(name, says=name) for name in NAMES}
PROVE = ("prove", "--allow-plain-http")
WAIT = 60.0


def user_of(folder: Path, registry: str, *names: str) -> User:
    """A user who locked these servers, at a time that never changes."""
    variables = {"NPM_CONFIG_REGISTRY": registry, "SOURCE_DATE_EPOCH": "1790000000"}
    user = User(folder=folder, variables=variables)
    user.configure(**{name: f"npx -y {name}@1.0.0" for name in names or NAMES})
    user.lock()
    return user


def pinned(user: User) -> list[str]:
    """The servers whose bytes are pinned."""
    lock = json.loads((user.root / "mcp-lock.json").read_text())
    entries = lock["servers"].values()
    return [entry["name"] for entry in entries if "closure" in entry["capabilityManifest"]["pinwarden"]]


def meeting(names: tuple[str, ...]) -> Answerer:
    """A registry that answers the first question about each package when all of them were asked."""
    met: set[str] = set()
    barrier = Barrier(len(names))

    def answer(asked: Asked) -> Said:
        name = asked.path.strip("/").partition("/")[0]
        if name in names and name not in met:
            met.add(name)
            barrier.wait(WAIT)
        return npm_answers(PACKAGES, asked)

    return answer


def checked(user: User) -> set[str]:
    """The servers that ``status`` says were checked."""
    code, report = user.ask("status")
    assert code == 0
    return {server["name"] for server in report["servers"] if server["last_checked"] is not None}


@pytest.mark.parametrize("command", ["prove", "ci", "fetch"])
def test_network_waits_of_several_servers_overlap_and_verified_ones_count_as_checked(
    tmp_path: Path, command: str
) -> None:
    ready = Event()
    meet = meeting(NAMES)  # serially, the first question would wait until it fails

    def answer(asked: Asked) -> Said:
        return meet(asked) if ready.is_set() else npm_answers(PACKAGES, asked)

    with plain_server(answer) as server:
        user = user_of(tmp_path / "user", server.url)
        assert checked(user) == set()
        if command != "prove":
            user.prove()
            assert checked(user) == set(NAMES)
            shutil.rmtree(user.home / ".local")  # where it is recorded when servers were checked
            assert checked(user) == set()
        user.variables["PINWARDEN_STORE"] = str(tmp_path / "empty store")
        ready.set()
        code, report = user.ask(*{"prove": PROVE, "ci": ("ci", "--bytes"), "fetch": ("fetch",)}[command])
        assert code == 0, report
        assert checked(user) == (set() if command == "fetch" else set(NAMES))


def test_the_lock_and_the_report_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    with plain_server(lambda asked: npm_answers(PACKAGES, asked)) as registry:
        together, serial = (user_of(tmp_path / name, registry.url) for name in ("together", "serial"))
        code, report = together.ask(*PROVE)
        rows = [serial.ask(*PROVE, name)[1]["servers"] for name in NAMES]
    assert code == 0, report
    assert report["servers"] == [server for servers in rows for server in servers]
    assert together.lock_bytes() == serial.lock_bytes()


def test_a_server_that_cannot_be_verified_does_not_stop_the_others(tmp_path: Path) -> None:
    known = {name: package for name, package in PACKAGES.items() if name != "beta"}
    with plain_server(lambda asked: npm_answers(known, asked)) as registry:
        user = user_of(tmp_path / "user", registry.url)
        code, report = user.ask(*PROVE)
    assert code != 0
    assert [server["server"] for server in report["servers"]] == ["alpha", "gamma"]
    assert {row["name"] for row in report["findings"]} == {"beta"}
    assert pinned(user) == ["alpha", "gamma"]


def test_an_interrupt_keeps_the_servers_that_are_verified_by_then(tmp_path: Path) -> None:
    released = Event()

    def answer(asked: Asked) -> Said:
        if asked.path == "/alpha":
            released.wait(WAIT)  # longer than the test takes: only the interrupt ends it
        return npm_answers(PACKAGES, asked)

    with plain_server(answer) as registry:
        user = user_of(tmp_path / "user", registry.url)
        environment = {**os.environ, "HOME": str(user.home), "PINWARDEN_STORE": str(tmp_path / "store")}
        with AtTerminal(*PROVE, "-v", cwd=user.root, env=environment | user.variables) as terminal:
            shown = terminal.until(" took ")
            while not all(f"{name} took" in shown for name in ("beta", "gamma")):
                shown += terminal.until(" took ")
            terminal.types(AtTerminal.INTERRUPT)
            assert terminal.ends() == 130
        released.set()
    assert pinned(user) == ["beta", "gamma"]


def test_the_progress_bar_names_the_servers_being_worked_on(tmp_path: Path) -> None:
    released = Event()

    def answer(asked: Asked) -> Said:
        released.wait(WAIT)
        return npm_answers(PACKAGES, asked)

    with plain_server(answer) as registry:
        user = user_of(tmp_path / "user", registry.url)
        environment = {**os.environ, "HOME": str(user.home), "PINWARDEN_STORE": str(tmp_path / "store")}
        with AtTerminal(*PROVE, cwd=user.root, env=environment | user.variables | {"COLUMNS": "120"}) as terminal:
            terminal.until("0/3")
            terminal.until("alpha 1s, beta 1s, gamma 1s")
            released.set()
            assert terminal.ends() == 0
