"""A developer with ten published servers in the files of eight clients: two floating, one in two versions, one remote,
one with a secret in plain text, and one wrapped in a shell.

Releases are exact, except those of the floating servers, so that the world does not change with new releases.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
SECRET = "ghp_" + "9fK2LmX0pQ7vR4sT8wY1zA3bC5dE6fG7hJ9k"
NPM = "@modelcontextprotocol/server-"
FLOATING = ("thinking", "fetch")
SERVERS = ("calculator", "everything", "fetch", "files", "git", "hello", "memory", "thinking", "time", "weather")
REMOTE = ("climate", "forecast", "weather")
"""Three names of the remote server; two of them are not among the ten. None needs a download."""


@dataclass(frozen=True, kw_only=True)
class TenServers:
    """The home folder and the project of the developer."""

    home: Path
    project: Path
    address: str
    cache: Path | None = None
    """Where Pinwarden keeps downloads, if several worlds share it; otherwise in the home folder."""

    @property
    def environment(self) -> dict[str, str]:
        """The developer's variables, with the package caches and settings of this machine."""
        cache = {
            "npm_config_cache": _ask("npm", "config", "get", "cache"),
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or _ask("uv", "cache", "dir"),
        }
        settings = Path.home() / ".npmrc"
        if settings.exists():
            cache["NPM_CONFIG_USERCONFIG"] = str(settings)
        own = {
            "HOME": str(self.home),
            "PATH": os.pathsep.join((str(_PROGRAMS), str(self.home / ".local/bin"), os.environ["PATH"])),
            "PINWARDEN_APPROVER": "dev",
            "USER": "dev",
            "TERM": "xterm",
        }
        if self.cache is not None:
            own["XDG_CACHE_HOME"] = str(self.cache)
        dropped = ("XDG_", "PINWARDEN_", "COLUMNS", "CI", "CLAUDE", "CODEX")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {**kept, **cache, **own}

    def client_files(self) -> dict[str, bytes]:
        """The content of every client's file."""
        return {
            str(path.relative_to(self.home.parent)): path.read_bytes()
            for folder, name in _FILES
            if (path := (self.home if folder == "home" else self.project) / name).exists()
        }


_PROGRAMS = Path(sys.executable).parent
_FILES = (
    ("home", ".config/Claude/claude_desktop_config.json"),
    ("home", ".claude.json"),
    ("home", ".cursor/mcp.json"),
    ("home", ".codeium/windsurf/mcp_config.json"),
    ("home", ".codex/config.toml"),
    ("home", ".config/goose/config.yaml"),
    ("home", ".config/zed/settings.json"),
    ("project", ".mcp.json"),
    ("project", ".vscode/mcp.json"),
)


@contextmanager
def ten_servers(folder: Path, names: Sequence[str] = SERVERS, *, cache: Path | None = None) -> Iterator[TenServers]:
    """Write the files of all clients, with these servers, and start the remote one."""
    folder.mkdir(exist_ok=True)
    home, project = folder / "home", folder / "project"
    notes = home / "notes"
    for path in (home, project, notes):
        path.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/pinwarden").symlink_to(_PROGRAMS / "pinwarden")  # so that clients find it by its name
    with _remote_server() as address:
        world = TenServers(home=home, project=project, address=address, cache=cache)
        for (place, name), text in zip(_FILES, _texts(world, names), strict=True):
            if text:
                path = (home if place == "home" else project) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        yield world


def _texts(world: TenServers, names: Sequence[str]) -> list[str]:
    """The text of each file of `_FILES`; empty if it would have no server."""

    def chosen(**servers: Any) -> dict[str, Any]:
        return {name: entry for name, entry in servers.items() if name in names}

    files = ["-y", f"{NPM}filesystem@2026.8.31", str(world.home / "notes")]
    desktop = chosen(
        memory={"command": "npx", "args": ["-y", f"{NPM}memory@2026.8.31"]},
        files={"command": "npx", "args": files},
    )
    local = chosen(git={"type": "stdio", "command": "uvx", "args": ["mcp-server-git@2026.10.19"], "env": {}})
    cursor = chosen(
        memory={"command": "npx", "args": ["-y", f"{NPM}memory@2026.7.4"]},
        hello={"command": "npx", "args": ["-y", "mcp-hello-world@1.1.2"], "env": {"GITHUB_TOKEN": SECRET}},
    )
    windsurf = chosen(everything={"command": "bash", "args": ["-lc", f"npx -y {NPM}everything@2026.8.31"]})
    claude = chosen(
        calculator={"command": "uvx", "args": ["mcp-server-calculator@0.2.1"]},
        climate={"type": "http", "url": f"{world.address}?climate"},
        forecast={"type": "http", "url": f"{world.address}?forecast"},
    )
    vscode = chosen(
        thinking={"type": "stdio", "command": "npx", "args": ["-y", f"{NPM}sequential-thinking"]},
        weather={"type": "http", "url": world.address},
    )
    return [
        _json({"mcpServers": desktop}, desktop),
        _json({"numStartups": 7, "projects": {str(world.project): {"mcpServers": local, "allowedTools": []}}}, local),
        _json({"mcpServers": cursor}, cursor, indent=4),
        _json({"mcpServers": windsurf}, windsurf),
        _CODEX if "fetch" in names else "",
        _GOOSE if "time" in names else "",
        _ZED.replace("FILES", json.dumps(files)) if "files" in names else "",
        _json({"mcpServers": claude}, claude),
        _json({"servers": vscode, "inputs": []}, vscode, indent=4),
    ]


def _json(document: Mapping[str, Any], servers: Mapping[str, Any], indent: int = 2) -> str:
    return json.dumps(document, indent=indent) + "\n" if servers else ""


_CODEX = """\
model = "o4-mini"  # the fast one

[mcp_servers.fetch]
command = "uvx"
args = ["mcp-server-fetch"]
"""

_GOOSE = """\
# Goose
GOOSE_PROVIDER: anthropic
extensions:
  time:
    type: stdio
    enabled: true
    name: time
    cmd: uvx
    args:
      - mcp-server-time@2026.10.19  # the clock
    timeout: 300
"""

_ZED = """\
// Zed settings
{
  "theme": "One Dark",
  "context_servers": {
    // notes on this machine
    "files": {
      "source": "custom",
      "command": "npx",
      "args": FILES,
    },
  },
}
"""


@contextmanager
def _remote_server() -> Iterator[str]:
    """The address of a remote server: the sample of the official SDK, over HTTP."""
    server = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "tests" / "servers" / "sdk_server.py"), "http"],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


@cache
def _ask(*command: str) -> str:
    """What a program prints. Starting npm takes longer than most commands of Pinwarden."""
    program = shutil.which(command[0]) or str(Path(sys.executable).parent / command[0])
    return subprocess.run([program, *command[1:]], capture_output=True, text=True, check=True).stdout.strip()
