"""A project whose servers several clients have, each in its own words, and a registry with several releases of them."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.cli.run import Outcome, pinwarden_in
from tests.cli.test_enforced_servers import release
from tests.cli.test_prove_fetch_run import PLAIN, TALK, World
from tests.servers.acme_packages import Package, release_answers
from tests.servers.plain_http import plain_server

FILES = {
    "claude": (".mcp.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
    "opencode": ("opencode.json", "mcp"),
}


def in_words_of(client: str, words: list[str], variable: str | None = None) -> dict[str, Any]:
    """One server as a client spells it."""
    reference = {"vscode": "${{env:{}}}", "cursor": "${{env:{}}}", "opencode": "{{env:{}}}"}.get(client, "${{{}}}")
    env = {variable: reference.format(variable)} if variable else {}
    if client == "opencode":
        return {"type": "local", "command": words, "enabled": True, **({"environment": env} if env else {})}
    entry = {"command": words[0], "args": words[1:], **({"env": env} if env else {})}
    return {"type": "stdio", **entry} if client == "vscode" else entry


class SeveralClients(World):
    """Clients that each have a server named ``notes``."""

    releases: list[Package]

    def publish(self, version: str, says: str) -> None:
        self.releases.append(release(version, says))

    def write(self, client: str, **servers: Any) -> None:
        """A client's file with these servers."""
        file, member = FILES[client]
        path = self.root / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({member: servers}, indent=2))

    def entry(self, client: str, name: str = "notes") -> Any:
        """What stands in a client's file."""
        file, member = FILES[client]
        return json.loads((self.root / file).read_text())[member][name]

    def command(self, client: str) -> list[str]:
        """The command line in a client's file."""
        entry = self.entry(client)
        return entry["command"] if client == "opencode" else [entry["command"], *entry["args"]]

    def doctor_findings(self, *options: str) -> list[str]:
        """What ``doctor`` finds, even if the repository itself, and so the program, is in a temporary folder."""
        rows = self.run_json("doctor", *options)[1]["findings"]
        codes = [row["code"] for row in rows if row["severity"] in ("critical", "review")]
        return [code for code in codes if code != "temporary_path"]

    def files(self) -> dict[str, bytes]:
        """The lock and everything else in the project."""
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def records(self) -> dict[str, Any]:
        """Our record of each lock entry by its key."""
        servers = json.loads(self.lock.read_text())["servers"]
        return {key: entry["capabilityManifest"]["pinwarden"] for key, entry in servers.items()}

    def start(self, words: list[str]) -> tuple[Outcome, list[str]]:
        """Start a server by the command line of a client; what came of it, and the texts of its tools."""
        assert words[0] == "pinwarden", words
        words = [word.replace("${workspaceFolder}", str(self.root)) for word in words[1:]]
        lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in TALK).encode()
        outcome = pinwarden_in(self.whole_environment, *words, stdin=lines, cwd=self.root)
        answers = [json.loads(line) for line in outcome.out.splitlines()]
        tools = answers[1]["result"]["tools"] if len(answers) > 1 else []
        return outcome, [tool["description"] for tool in tools]

    @property
    def whole_environment(self) -> dict[str, str]:
        import os

        return {**os.environ, **self.environment}


@contextmanager
def several_clients(folder: Path, **commands: str) -> Iterator[SeveralClients]:
    """For each client its command line of ``notes``; the server is locked and its bytes are pinned.

    The first test of a process that asks for such a world makes it, and the others get a copy.
    """
    yield _copy_world(folder, commands, approved=False)


@contextmanager
def approved_clients(folder: Path, **commands: str) -> Iterator[SeveralClients]:
    """The same with fetched files and approved tools."""
    yield _copy_world(folder, commands, approved=True)


def _copy_world(folder: Path, commands: dict[str, str], *, approved: bool) -> SeveralClients:
    url, packages = _start_registry()
    packages["acme-notes"] = [release("1.0.0", "One."), release("2.0.0", "Two.")]
    world = SeveralClients(folder=folder, variables={"NPM_CONFIG_REGISTRY": url, "KEY": "k"})
    object.__setattr__(world, "releases", packages["acme-notes"])
    template = _make_template(tuple(commands.items()), approved=approved)
    shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
    return world


@cache
def _start_registry() -> tuple[str, dict[str, list[Package]]]:
    """The address of a registry, which runs until the process ends, and its packages, which tests change."""
    packages: dict[str, list[Package]] = {}
    registry = plain_server(lambda asked: release_answers(packages, asked))
    running = registry.__enter__()
    atexit.register(registry.__exit__, None, None, None)
    return running.url, packages


@cache
def _make_template(commands: tuple[tuple[str, str], ...], *, approved: bool) -> Path:
    temporary = TemporaryDirectory(prefix="several-clients-")
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    world = SeveralClients(folder=folder, variables={"NPM_CONFIG_REGISTRY": _start_registry()[0], "KEY": "k"})
    world.root.mkdir()
    (folder / "home").mkdir()
    for client, command in commands:
        world.write(client, notes=in_words_of(client, command.split(" "), "KEY"))
    world.done("init")
    world.done("prove", *PLAIN)
    if approved:
        world.done("fetch", *PLAIN)
        world.done("approve", "notes", "--allow-execute", "--yes")
    return folder
