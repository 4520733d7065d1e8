"""A small MCP server as an npm package and as a wheel, and registries on loopback that serve both.

The server's one tool says what the server was started with: its arguments and the names of its variables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.servers.npm_registry import tarball, version_document
from tests.servers.plain_http import Asked, PlainServer, Said, plain_server
from tests.support.wheels import make_wheel, package_index, wheel_name

NODE_SERVER = """#!/usr/bin/env node
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const asked = JSON.parse(line);
  if (asked.id === undefined) return;
  const about = { base: require("acme-base"), arguments: process.argv.slice(2), variables: Object.keys(process.env) };
  const first = { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "n", version: "1" } };
  const tools = [{ name: "about", description: JSON.stringify(about), inputSchema: { type: "object" } }];
  const result = asked.method === "initialize" ? first : { tools };
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id: asked.id, result }) + "\\n");
});
"""

PYTHON_SERVER = """
import json, os, sys
import acme_ticks

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        about = {"base": acme_ticks.BASE, "arguments": sys.argv[1:], "variables": sorted(os.environ)}
        first = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        first["serverInfo"] = {"name": "c", "version": "1"}
        tools = [{"name": "about", "description": json.dumps(about), "inputSchema": {"type": "object"}}]
        result = first if asked["method"] == "initialize" else {"tools": tools}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def npm_packages() -> dict[str, tuple[dict[str, Any], bytes]]:
    """Name -> package.json and tarball."""
    notes = {
        "name": "@acme/notes",
        "version": "1.0.0",
        "bin": {"notes": "server.js"},
        "dependencies": {"acme-base": "^1.0.0"},
        "scripts": {"postinstall": "exit 1"},
    }
    base = {"name": "acme-base", "version": "1.2.0", "main": "index.js"}
    return {
        "@acme/notes": (
            notes,
            tarball({"package/package.json": json.dumps(notes).encode(), "package/server.js": NODE_SERVER.encode()}),
        ),
        "acme-base": (
            base,
            tarball(
                {"package/package.json": json.dumps(base).encode(), "package/index.js": b"module.exports = 'b';\n"}
            ),
        ),
    }


Package = tuple[dict[str, Any], bytes]
"""A package.json and the tarball that holds it."""


def npm_answers(packages: dict[str, Package], asked: Asked) -> Said:
    """A registry of these packages, which says that they lie wherever it was asked."""
    return release_answers({name: [package] for name, package in packages.items()}, asked)


def release_answers(packages: dict[str, list[Package]], asked: Asked) -> Said:
    """The same with several releases of each package, of which the last is the latest."""
    base = f"http://{asked.headers['host']}"
    for name, releases in packages.items():
        versions: dict[str, Any] = {}
        for manifest, data in releases:
            place = f"/{name}/-/{name.rpartition('/')[2]}-{manifest['version']}.tgz"
            if asked.path == place:
                return Said(body=data)
            version = versions[manifest["version"]] = version_document(manifest, data, base + place)
            if "scripts" in manifest:
                version["hasInstallScript"] = True  # what npm looks at, and registries work out
        if asked.path in (f"/{name}", f"/{quote(name, safe='@')}", f"/{quote(name, safe='@').lower()}"):
            times = dict.fromkeys((*versions, "modified"), "2026-01-02T03:04:05.000Z")
            document = {
                "_id": name,
                "name": name,
                "dist-tags": {"latest": releases[-1][0]["version"]},
                "versions": versions,
                "time": times,
            }
            return Said(body=json.dumps(document).encode(), headers={"content-type": "application/json"})
    return Said(status=404, body=b"{}")


def write_wheels(folder: Path) -> None:
    """The wheels of the Python server and of what it needs."""
    entry_points = b"[console_scripts]\nacme-clock = acme_clock:main\n"
    clock = make_wheel(
        "acme-clock",
        "1.0.0",
        code=PYTHON_SERVER,
        headers=("Requires-Dist: acme-ticks",),
        more={"acme_clock-1.0.0.dist-info/entry_points.txt": entry_points},
    )
    (folder / wheel_name("acme-clock", "1.0.0")).write_bytes(clock)
    (folder / wheel_name("acme-ticks", "2.0.0")).write_bytes(make_wheel("acme-ticks", "2.0.0", code="BASE = 'b'\n"))


@dataclass(frozen=True, kw_only=True)
class Registries:
    """Running registries."""

    npm: PlainServer
    pypi: str
    wheels: Path

    @property
    def variables(self) -> dict[str, str]:
        """What makes npm, uv and pip ask them and nobody else."""
        return {"NPM_CONFIG_REGISTRY": self.npm.url, "UV_DEFAULT_INDEX": self.pypi, "PIP_INDEX_URL": self.pypi}


@contextmanager
def acme_registries(folder: Path) -> Iterator[Registries]:
    """Serve both until the block ends."""
    packages = npm_packages()
    write_wheels(folder)
    with plain_server(lambda asked: npm_answers(packages, asked)) as npm, package_index(folder) as pypi:
        yield Registries(npm=npm, pypi=pypi, wheels=folder)
