"""A user with real registries: a project, a home, a store, and nothing of the machine that the tests run on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cli.run import Outcome, pinwarden_in
from tests.servers.npm_registry import tarball
from tests.support.wheels import make_wheel

LOCK = "mcp-lock.json"


@dataclass(kw_only=True)
class User:
    """One user at one machine, with the settings of package clients that a test gives."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (self.root, self.home, self.programs):
            folder.mkdir(parents=True)
        # Only looked up, never started: no test starts a container.
        docker = self.programs / "docker"
        docker.write_text("#!/bin/sh\nexit 99\n")
        docker.chmod(0o755)

    @property
    def root(self) -> Path:
        """The project."""
        return self.folder / "project"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def programs(self) -> Path:
        """What comes first on the search path."""
        return self.folder / "programs"

    def run(self, *arguments: str) -> Outcome:
        """One command line, in an environment of its own: settings of this machine's clients do not get in."""
        environment = {
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            **{name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_", "PYTHON"))},
            "PINWARDEN_STORE": str(self.folder / "store"),
            **self.variables,
        }
        return pinwarden_in(environment, *arguments, cwd=self.root)

    def ask(self, *arguments: str) -> tuple[int, Any]:
        """The exit code and the report of a command."""
        outcome = self.run(*arguments, "--format", "json")
        try:
            return outcome.code, json.loads(outcome.out)
        except ValueError:
            raise AssertionError(outcome) from None

    def configure(self, **commands: str) -> None:
        """Write a client's configuration: for each server its command line."""
        servers = {name: _entry(command) for name, command in commands.items()}
        (self.root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def lock(self) -> None:
        """Approve what is configured. A floating version only warns, unless a test has a policy of its own."""
        policy = self.root / "pinwarden.toml"
        has_policy = policy.exists()
        outcome = self.run("init", "--accept-all", "--by", "me")
        assert outcome.code == 0, outcome
        if not has_policy:
            policy.unlink(missing_ok=True)

    def prove(self, *names: str) -> Any:
        """Pin the bytes of what is locked; the gate has to be clean then."""
        code, report = self.ask("prove", *names)
        assert code == 0, report
        return report

    def locked(self, **commands: str) -> User:
        """Configure, approve, pin."""
        self.configure(**commands)
        self.lock()
        self.prove()
        return self

    def lock_bytes(self) -> dict[str, bytes]:
        """The lock and all that lies beside it."""
        beside = sorted(self.root.glob("mcp-lock.*"))
        files = [file for path in beside for file in ([path] if path.is_file() else sorted(path.iterdir()))]
        return {str(file.relative_to(self.root)): file.read_bytes() for file in files}

    def record(self, server: str) -> Any:
        """Our record of a server in the lock."""
        lock = json.loads((self.root / LOCK).read_text())
        (entry,) = [entry for entry in lock["servers"].values() if entry["name"] == server]
        return entry["capabilityManifest"]["pinwarden"]

    def gate(self) -> tuple[int, dict[str, Any]]:
        """``ci --bytes``: its exit code, and what failed by code."""
        code, report = self.ask("ci", "--bytes")
        return code, {row["code"]: row for row in report["failures"]}

    def without_store(self) -> User:
        """The same user at a machine where nothing has been fetched yet."""
        self.variables["PINWARDEN_STORE"] = str(self.folder / "empty-store")
        return self


def _entry(command: str) -> dict[str, Any]:
    first, *rest = command.split()
    return {"command": first, "args": rest}


def npm_server(
    name: str,
    version: str = "1.0.0",
    *,
    says: str,
    needs: Mapping[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], bytes]:
    """A package with a program that says something, and then what each of its dependencies says."""
    manifest: dict[str, Any] = {
        "name": name,
        "version": version,
        "main": "index.js",
        "bin": {name.rpartition("/")[2]: "index.js"},
    }
    manifest |= {"dependencies": dict(needs)} if needs else {}
    manifest |= {"scripts": dict(scripts)} if scripts else {}
    words = ", ".join([json.dumps(says), *(f"require({json.dumps(package)})" for package in needs or {})])
    code = f"#!/usr/bin/env node\nconsole.log([{words}].join('; '));\nmodule.exports = {json.dumps(says)};\n"
    return manifest, tarball({"package/package.json": json.dumps(manifest).encode(), "package/index.js": code.encode()})


def npm_library(
    name: str, version: str = "1.0.0", *, says: str, scripts: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], bytes]:
    """A package that a server needs."""
    manifest: dict[str, Any] = {"name": name, "version": version, "main": "index.js"}
    manifest |= {"scripts": dict(scripts)} if scripts else {}
    code = f"module.exports = {json.dumps(says)};\n"
    return manifest, tarball({"package/package.json": json.dumps(manifest).encode(), "package/index.js": code.encode()})


def python_server(name: str, version: str = "1.0", *, says: str, tag: str = "py3-none-any") -> bytes:
    """A wheel with a program that says something."""
    stem = name.replace("-", "_")
    points = f"[console_scripts]\n{name} = {stem}:main\n".encode()
    return make_wheel(
        name,
        version,
        code=f"def main():\n    print({says!r})\n",
        tag=tag,
        more={f"{stem}-{version}.dist-info/entry_points.txt": points},
    )
