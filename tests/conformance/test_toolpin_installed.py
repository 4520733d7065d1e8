"""ToolPin 0.5.4's installed files: the same bytes when we install, the same findings after tampering."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pinwarden.clients.config import ConfigFile
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.files import discover_configs, list_installation_paths
from pinwarden.clients.table import CLIENTS
from pinwarden.lock.locked_config import LockedConfig, read_locked_config
from pinwarden.project.config_secrets import audit_locked, audit_servers
from pinwarden.project.configured_servers import diagnose, find_uncovered_servers
from tests.cli.run import pinwarden
from tests.conformance.vectors import load, vectors_dir
from tests.support.client_files import install_entry, remove_entry

INSTALLED = "toolpin/installed"


class Machine:
    """A project and a home with the files that ToolPin wrote, or with none."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.home = folder / "home"
        for each in (self.project, self.home):
            each.mkdir()

    def fill(self) -> Machine:
        for name, target in (("project", self.project), ("home", self.home)):
            for source in sorted((vectors_dir() / INSTALLED / name).rglob("*")):
                if source.is_file() and source.name != "mcp-lock.json":
                    copy = target / _undotted(source.relative_to(vectors_dir() / INSTALLED / name))
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, copy)
        return self

    @property
    def paths(self) -> dict[tuple[str, str], str]:
        return list_installation_paths(self.project, self.home, "linux", {})

    @property
    def found(self) -> list[ConfigFile]:
        return discover_configs(self.project, self.home, "linux", {}, root=self.home / "no-root")

    @property
    def files(self) -> dict[str, ConfigFile]:
        return {file.path: file for file in self.found}

    @property
    def inventory(self) -> set[tuple[str, str, str, str]]:
        return {
            (server.client, server.scope, self.shown(server.path), server.name)
            for file in self.found
            for server in file.servers
        }

    def asked(self, *command: str) -> Any:
        """What a command reports; its exit code has to say the same as its report."""
        outcome = pinwarden(
            *command, "--scope", "project", "--format", "json", cwd=self.project, env={"HOME": str(self.home)}
        )
        report = json.loads(outcome.out)
        assert (outcome.code == 0) is report.get("ok", True)
        return report

    def shown(self, report: Any) -> Any:
        text = json.dumps(report).replace(str(self.project), "<PROJECT>").replace(str(self.home), "<HOME>")
        return json.loads(text)


def _undotted(path: Path) -> Path:
    return Path(*(f".{part.removeprefix('dot-')}" if part.startswith("dot-") else part for part in path.parts))


def lock() -> list[LockedConfig]:
    servers = load(f"{INSTALLED}/project/mcp-lock.json")["servers"]
    return [read_locked_config(key, entry) for key, entry in servers.items()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_doctor_has_no_findings_in_what_toolpin_installed(machine: Machine) -> None:
    machine.fill()
    assert diagnose(lock(), machine.files, machine.paths).to_json() == load(f"{INSTALLED}/doctor-ok.json")


def test_the_secrets_audit_has_no_findings_in_what_toolpin_installed(machine: Machine) -> None:
    machine.fill()
    assert audit_locked(lock(), machine.files, machine.paths).to_json() == load(f"{INSTALLED}/secrets-audit.json")


def test_doctor_and_secrets_audit_say_what_toolpin_says_after_tampering(machine: Machine) -> None:
    machine.fill()
    shutil.copyfile(vectors_dir() / INSTALLED / "tampered-dot-mcp.json", machine.project / ".mcp.json")
    report = diagnose(lock(), machine.files, machine.paths)
    assert machine.shown(report.to_json()) == load(f"{INSTALLED}/doctor-tampered.json")
    secrets = audit_locked(lock(), machine.files, machine.paths)
    assert machine.shown(secrets.to_json()) == load(f"{INSTALLED}/secrets-tampered.json")
    assert "ghp_" not in repr((report, secrets, audit_servers(machine.found[0].servers)))


@pytest.mark.parametrize("name", ["audit", "audit-tampered"])
def test_list_doctor_and_secrets_audit_together_find_what_toolpins_audit_finds(machine: Machine, name: str) -> None:
    """We have no ``audit``: each of its parts is a command with an exit code of its own."""
    machine.fill()
    shutil.copyfile(vectors_dir() / INSTALLED / "project" / "mcp-lock.json", machine.project / "mcp-lock.json")
    if name == "audit-tampered":
        shutil.copyfile(vectors_dir() / INSTALLED / "tampered-dot-mcp.json", machine.project / ".mcp.json")
    expected = load(f"{INSTALLED}/{name}.json")
    doctor, secrets = machine.asked("doctor"), machine.asked("secrets", "audit")
    found = [
        *(("doctor_" + row["kind"], row["message"], row["key"]) for row in doctor["issues"]),
        *(("secret_" + row["kind"], row["message"], row["key"]) for row in secrets["findings"]),
    ]
    assert found == [(row["code"], row["message"], row["key"]) for row in expected["findings"]]
    assert (doctor["ok"] and secrets["ok"]) is expected["ok"]
    assert (doctor["ok"], doctor["checked"]) == (expected["doctor"]["ok"], expected["checked"]["doctor"])
    assert (secrets["ok"], secrets["checked"]) == (expected["secrets"]["ok"], expected["checked"]["secrets"])
    assert len(machine.asked("list")["entries"]) == expected["checked"]["lockfile"]
    inventory = {
        (row["client"], row["scope"], row["file"], row["serverName"]) for row in expected["inventory"]["entries"]
    }
    assert machine.inventory == inventory
    assert expected["inventory"]["issues"] == [file["path"] for file in doctor["files"] if file["fault"]]


def test_the_inventory_holds_what_toolpin_lists(machine: Machine) -> None:
    machine.fill()
    expected = {
        (row["client"], row["scope"], row["file"], row["serverName"])
        for row in load(f"{INSTALLED}/list.json")["entries"]
    }
    assert machine.inventory == expected
    assert all(server.problem is None for file in machine.found for server in file.servers)


def test_nothing_that_toolpin_installed_is_rogue(machine: Machine) -> None:
    machine.fill()
    assert find_uncovered_servers(lock(), machine.found, machine.paths) == ()


def test_a_rogue_entry_that_toolpin_overlooks_is_found(machine: Machine) -> None:
    machine.fill()
    path = machine.project / ".mcp.json"
    document = json.loads(path.read_text())
    document["mcpServers"]["io.github.acme/npm-n0tes"] = {"command": "npx", "args": ["-y", "evil"]}
    path.write_text(json.dumps(document))
    assert diagnose(lock(), machine.files, machine.paths).ok
    assert [
        (each.configured.name, each.change.kind)
        for each in find_uncovered_servers(lock(), machine.found, machine.paths)
    ] == [("io.github.acme/npm-n0tes", "look_alike_entry")]


def test_installing_entry_by_entry_gives_toolpins_bytes_for_every_client(machine: Machine, tmp_path: Path) -> None:
    servers = load(f"{INSTALLED}/project/mcp-lock.json")["servers"]
    for key, entry in servers.items():
        locked = read_locked_config(key, entry)
        path = Path(machine.paths[locked.client, locked.scope or "project"])
        install_entry(path, locked.client, locked.name, entry["config"])
    (tmp_path / "theirs").mkdir()
    theirs = Machine(tmp_path / "theirs").fill()
    for ours, reference in ((machine.project, theirs.project), (machine.home, theirs.home)):
        written = {file.relative_to(ours): file.read_bytes() for file in ours.rglob("*") if file.is_file()}
        wanted = {file.relative_to(reference): file.read_bytes() for file in reference.rglob("*") if file.is_file()}
        assert written == wanted


def test_removing_every_entry_again_leaves_no_server(machine: Machine) -> None:
    machine.fill()
    for entry in lock():
        assert remove_entry(Path(machine.paths[entry.client, entry.scope or ""]), entry.client, entry.name) == "removed"
    assert [server for file in machine.found for server in file.servers] == []
    assert {issue.kind for issue in diagnose(lock(), machine.files, machine.paths).issues} == {"missing"}


def _fragments() -> list[Any]:
    found = []
    for path in sorted((vectors_dir() / "toolpin" / "configs").rglob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        client = path.stem
        if client in CLIENTS and type(document) is dict:
            found.append(pytest.param(client, document, id=f"{path.parent.name}-{client}"))
    return found


@pytest.mark.parametrize(("client", "fragment"), _fragments())
def test_every_fragment_of_toolpin_is_understood_and_equal_to_itself(client: str, fragment: dict[str, Any]) -> None:
    known = CLIENTS[client]
    servers: Any = fragment[known.root[0]]
    rows = servers.items() if type(servers) is dict else [(entry["name"], entry) for entry in servers]
    assert rows
    for name, entry in rows:
        assert compare_entries(name, entry, json.loads(json.dumps(entry)), known) == ()
