"""Sources of a census beside one file: a list of files, and what the machines of a fleet report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pinwarden.census import sources
from pinwarden.census.sources import FleetServer, SourceAccess, list_source
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.state import GatewayState
from pinwarden.gateway.store.devices import DeviceServer
from tests.cli.run import pinwarden
from tests.servers.plain_http import Asked, Said, plain_server

NPX = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}
LOCAL = {"command": "python3", "args": ["server.py"]}


def write_config(folder: Path, **servers: Any) -> None:
    folder.mkdir()
    (folder / "server.py").write_text("")
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = pinwarden("census", "run", *words, "--queue-only", "--database", "census.sqlite", "--json", cwd=folder)
    return done.code, json.loads(done.out)


def test_a_list_of_files_has_what_they_start_alike_once(tmp_path: Path) -> None:
    write_config(tmp_path / "ada", notes=NPX, own=LOCAL)
    write_config(tmp_path / "bob", notes=NPX, own=LOCAL, wiki={"url": "https://wiki.example/mcp"})
    (tmp_path / "all.txt").write_text("# of the team\nada/.mcp.json\n\nbob/.mcp.json\n")
    code, report = run(tmp_path, "all.txt")
    assert (code, report["servers"]) == (3, 4)  # notes, wiki, and the program of each folder
    assert report["source"] == str(tmp_path / "all.txt")


def test_a_file_of_a_list_that_is_missing_hides_no_server(tmp_path: Path) -> None:
    write_config(tmp_path / "ada", notes=NPX)
    (tmp_path / "all.txt").write_text("ada/.mcp.json\ngone/.mcp.json\nall.txt\na\0b\n")
    listing = list_source(str(tmp_path / "all.txt"), SourceAccess(), "", "2026-01-01T00:00:00Z")
    assert [server.name for server in listing.servers] == ["notes"]
    assert listing.is_complete is False  # what a missing file had is not removed from the census
    assert [name for name, _ in listing.unusable] == ["'gone/.mcp.json'", "'all.txt'", "'a\\x00b'"]


def test_attack_a_registry_that_lists_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(asked: Asked) -> Said:
        start = int(parse_qs(urlsplit(asked.path).query).get("cursor", ["0"])[0])
        entries = [{"server": {"name": f"io.evil/{number}"}, "_meta": {}} for number in range(start, start + 100)]
        return Said(body=json.dumps({"servers": entries, "metadata": {"nextCursor": str(start + 100)}}).encode())

    monkeypatch.setattr(sources, "_MAX_SERVERS", 1000)
    access = SourceAccess(allow_private=True, allow_plain_http=True)
    with plain_server(answer) as server, pytest.raises(PinwardenError, match="more than 1000 servers"):
        list_source(server.url.rstrip("/"), access, "", "2026-01-01T00:00:00Z")
    assert len(server.paths) == 11


def report_servers(folder: Path, machine: str, **servers: str) -> None:
    with GatewayState(folder / "company") as state:
        device, _ = state.devices.invite(machine, "all", "2026-11-01T00:00:00Z")
        rows = [
            DeviceServer(place="", server=name, client="", version="", surface="", waiting=0, started="2026", runs=runs)
            for name, runs in servers.items()
        ]
        state.devices.replace_servers(device, rows)


def test_a_fleet_is_observed_with_each_package_once_however_many_machines_run_it(tmp_path: Path) -> None:
    report_servers(tmp_path, "ada", notes="pkg:npm/%40acme/notes@1.0.0", own="")
    report_servers(tmp_path, "bob", notes="pkg:npm/%40acme/notes@1.0.0", wiki="https://wiki.example/mcp")
    report_servers(tmp_path, "eve", notes="pkg:npm/%40acme/notes@6.6.6")
    with GatewayState(tmp_path / "company") as state:
        state.devices.revoke("eve", "2026-11-02T00:00:00Z")
    code, report = run(tmp_path, "fleet", "--audit", "company/gateway.sqlite")
    assert (code, report["servers"], report["source"]) == (3, 2, "fleet")
    assert report["unusable"] == [{"server": "'own'", "message": "only its machine has what it runs"}]


@pytest.mark.parametrize(
    "runs",
    [
        "pkg:npm/--node-options%3D--require%3D.%2Fx",
        "pkg:npm/..%2F..%2Fetc",
        "pkg:npm/https%3A%2F%2Fevil.example%2Fx.tgz",
        "pkg:npm/notes%40npm%3Aevil",
        "pkg:pypi/notes%20--index-url%20https%3A%2F%2Fevil.example",
        "pkg:pypi/notes@1.0%3Bos_name",
        "pkg:oci/x",
        "http://wiki.example/mcp",
        "file:///etc/passwd",
        "/bin/sh",
        "pkg:npm/",
        "pkg:npm/a\nb",
        "x" * 300,
    ],
)
def test_attack_a_machine_cannot_report_a_command(runs: str) -> None:
    listing = list_source("fleet", SourceAccess(), "", "2026-01-01T00:00:00Z", [FleetServer(name="evil", runs=runs)])
    assert (listing.servers, len(listing.unusable)) == ((), 1)


@pytest.mark.parametrize(
    ("runs", "config"),
    [
        ("pkg:npm/%40acme/notes@1.0.0", {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}),
        ("pkg:npm/notes", {"command": "npx", "args": ["-y", "notes"]}),
        ("pkg:pypi/acme-notes@1.0", {"command": "uvx", "args": ["acme-notes==1.0"]}),
        ("https://wiki.example/mcp", {"url": "https://wiki.example/mcp"}),
    ],
)
def test_a_reported_package_is_started_as_a_client_starts_it(runs: str, config: dict[str, Any]) -> None:
    listing = list_source("fleet", SourceAccess(), "", "2026-01-01T00:00:00Z", [FleetServer(name="notes", runs=runs)])
    (server,) = listing.servers
    assert (server.spec["config"], server.folder) == (config, "")
