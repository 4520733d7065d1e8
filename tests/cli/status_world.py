"""Ten servers in the files of ten clients, in every state, with registries on loopback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pinwarden.clients.documents import build_config
from pinwarden.clients.table import get_client
from pinwarden.core.record import replace
from pinwarden.gateway.baselines import Baseline
from pinwarden.gateway.state import GatewayState
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, with_integrity
from pinwarden.lock.extension import read_extension, with_extension
from pinwarden.lock.locked_config import read_locked_config
from pinwarden.lock.locked_launch import read_locked_launch, to_launch_command
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.approval_candidate import scan_for_approval
from pinwarden.project.lock import Approver, approve_surfaces
from pinwarden.project.project import Project
from tests.cli.project import RECORDED
from tests.cli.run import Outcome, pinwarden
from tests.gateway.review_world import CHANGED, SEARCH, listing, verdicts

NOON = "2026-07-20T12:00:00.000Z"
SECRET = "ghp_0123456789abcdef0123456789abcdef0123"
LISTING = listing(SEARCH)
NOTES: dict[str, Any] = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}
CLOCK: dict[str, Any] = {"command": "uvx", "args": ["acme-clock==1.0.0"]}
GITHUB: dict[str, Any] = {
    "command": "docker",
    "args": ["run", "-i", "--rm", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", "ghcr.io/github/github-mcp-server:v0.20.1"],
    "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": SECRET},
}
MEMORY: dict[str, Any] = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}
SENTRY: dict[str, Any] = {
    "httpUrl": "https://mcp.sentry.example/mcp",
    "headers": {"Authorization": "Bearer ${SENTRY_TOKEN}"},
}


def _filesystem(version: str) -> dict[str, Any]:
    return {"command": "npx", "args": ["-y", f"@modelcontextprotocol/server-filesystem@{version}", "/data"]}


PROJECT_FILES: Mapping[str, Any] = {
    ".mcp.json": {"mcpServers": {"notes": NOTES, "clock": CLOCK}},
    ".cursor/mcp.json": {"mcpServers": {"notes": NOTES, "memory": MEMORY}},
    ".vscode/mcp.json": {"servers": {"docs": {"type": "http", "url": "https://mcp.example.com/docs"}}},
}
HOME_FILES: Mapping[str, Any] = {
    ".config/Claude/claude_desktop_config.json": {
        "mcpServers": {
            "filesystem": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-filesystem@2025.8.21", "/data"],
            },
            "github": GITHUB,
        }
    },
    ".codeium/windsurf/mcp_config.json": {
        "mcpServers": {
            "filesystem": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-filesystem@2025.7.1", "/data"],
            },
            "github": GITHUB,
        }
    },
    ".gemini/settings.json": {"mcpServers": {"sentry": SENTRY}},
    ".config/opencode/opencode.json": {
        "mcp": {"postgres": {"type": "local", "command": ["uvx", "mcp-postgres"], "enabled": False}}
    },
    ".config/zed/settings.json": {
        "context_servers": {"house-lights": {"command": "/opt/lights/bin/lights-mcp", "args": ["--room", "all"]}}
    },
}
CODEX = """[mcp_servers.fetch]
command = "uvx"
args = ["mcp-server-fetch"]
"""


class StatusWorld:
    """A project and a home with servers, and the command line in it."""

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.folder, self.root, self.home, self.state = folder, folder / "project", folder / "home", folder / "state"
        self.variables = dict(variables or {})
        (self.root / ".git").mkdir(parents=True)
        self.home.mkdir()

    def write(self, files: Mapping[str, Any], home: Mapping[str, Any] | None = None) -> None:
        """Write configuration files; a text is written as it is."""
        for place, listed in ((self.root, files), (self.home, home or {})):
            for name, document in listed.items():
                path = place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))

    def run(self, *arguments: str, columns: int = 80, **variables: str) -> Outcome:
        unset = dict.fromkeys(
            ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "APPDATA", "PINWARDEN_DATABASE"), ""
        )
        environment = {
            **unset,
            "HOME": str(self.home),
            "PINWARDEN_STATE": str(self.state),
            "PINWARDEN_STORE": str(self.folder / "store"),
            "PINWARDEN_APPROVER": "reviewer",
            "SOURCE_DATE_EPOCH": str(RECORDED),
            "COLUMNS": str(columns),
            **self.variables,
            **variables,
        }
        return pinwarden(*arguments, cwd=self.root, env=environment)

    def facts(self, *arguments: str) -> Any:
        """The JSON of ``pinwarden status``."""
        return json.loads(self.run("status", *arguments, "--format", "json").out)

    def server(self, name: str, *arguments: str) -> Any:
        """One server in the JSON of ``pinwarden status``."""
        (server,) = (server for server in self.facts(*arguments)["servers"] if server["name"] == name)
        return server

    @property
    def project(self) -> Project:
        return Project(
            root=self.root,
            lock=self.root / "mcp-lock.json",
            home=self.home,
            variables={"PINWARDEN_STATE": str(self.state)},
        )

    @property
    def user_lock(self) -> Path:
        return self.home / ".config" / "pinwarden" / "mcp-lock.json"

    def approve(self, *names: str, lock: Path | None = None) -> None:
        """Approve a surface of these servers, as a person does."""
        project = replace(self.project, lock=lock or self.project.lock)
        for entry in _entries(project.lock):
            if entry.name in names:
                candidate = scan_for_approval(entry.name, LISTING)
                approve_surfaces(project, [(entry, candidate)], Approver(by="reviewer", why="read it"), NOON)

    def enforce(self, key: str, file: str) -> None:
        """Let the client of one lock entry start its server through ``pinwarden run``."""
        (entry,) = (entry for entry in _entries(self.project.lock) if entry.key == key)
        extension = read_extension(entry)
        assert extension is not None
        run = {"command": "pinwarden", "args": ["run", entry.name, "--require-lock", "--client", entry.client]}
        approved = {**read_locked_config(entry.key, entry.document).approved, **run}
        fragment = build_config(get_client(entry.client), entry.name, approved)
        document = {**entry.document, "config": fragment, "locked": {**entry.document["locked"], "config": fragment}}
        changed = with_integrity(replace(entry, document=document))
        sealed = with_extension(changed, replace(extension, launch=to_launch_command(read_locked_launch(entry))))
        lock_store.update(self.project.lock, lambda old: lock_store.LockWrite(lock=put_entries(old, [sealed], NOON)))
        config = json.loads((self.root / file).read_text())
        config["mcpServers"][entry.name] |= run
        (self.root / file).write_text(json.dumps(config))

    def block(self, server: str) -> None:
        """Let a session of the gateway see a changed tool of an approved server."""
        with GatewayState(self.state) as state:
            served = listing(CHANGED)
            state.open_sighting_recorder(server, Baseline.of_lock(self.project.lock)).record(verdicts(LISTING, served))

    def record_checks(self, ages: Mapping[Path, Mapping[str, timedelta]]) -> None:
        """Write when servers were last checked."""
        moment = datetime.now(UTC)
        locks = {
            str(lock.resolve()): {name: (moment - age).isoformat() for name, age in servers.items()}
            for lock, servers in ages.items()
        }
        document = {"format": "pinwarden-last-checked/1", "locks": locks}
        self.state.mkdir(mode=0o700, exist_ok=True)
        (self.state / "last-checked.json").write_text(json.dumps(document))


def _entries(lock: Path) -> Sequence[Entry]:
    read = lock_store.read(lock)
    assert read is not None
    return read.entries
