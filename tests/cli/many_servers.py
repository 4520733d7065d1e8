"""Many approved and verified servers in the files of several clients, for tests and benchmarks of speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage, format_closure_path
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import (
    Artifact,
    ClosurePin,
    LockExtension,
    format_surface_path,
    read_extension,
    with_extension,
)
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.approval_candidate import ApprovalCandidate
from pinwarden.project.lock import Approver, approve_surfaces
from pinwarden.project.project import Project
from pinwarden.surface.surface import Surface, surface_from_listing
from tests.cli.status_world import NOON, StatusWorld

_TOOLS = 12  # of one server
_DEPENDENCIES = 90  # a common number for an npm package


def write_many_servers(folder: Path, count: int) -> StatusWorld:
    """A project with half of the servers, in two clients, and a home with the others."""
    world = StatusWorld(folder)
    names = [f"server-{number}" for number in range(count)]
    shared = {name: _entry(name) for name in names[: count // 2]}
    own = {name: _entry(name) for name in names[count // 2 :]}
    world.write(
        {".mcp.json": {"mcpServers": shared}, ".cursor/mcp.json": {"mcpServers": shared}},
        {".codeium/windsurf/mcp_config.json": {"mcpServers": own}},
    )
    outcome = world.run("init")
    assert outcome.code == 0, outcome
    for lock in (world.project.lock, world.user_lock):
        project = replace(world.project, lock=lock)
        approved = [(entry, _candidate(entry.name)) for entry in _entries(lock)]
        approve_surfaces(project, approved, Approver(by="reviewer", why="read it"), NOON)
        _pin_bytes(project)
    return world


def _entry(name: str) -> dict[str, Any]:
    arguments = ["-y", f"@acme/{name}@1.2.3", "--root", f"/data/{name}"]
    return {"command": "npx", "args": arguments, "env": {"LEVEL": "info", "API_KEY": "${API_KEY}"}}


def _candidate(name: str) -> ApprovalCandidate:
    return ApprovalCandidate(server=name, surface=_surface(name))


def _surface(name: str) -> Surface:
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "A path below the root."}}}
    tools = [
        {"name": f"tool_{number}", "description": f"Reads part {number} of {name}. " * 5, "inputSchema": schema}
        for number in range(_TOOLS)
    ]
    return surface_from_listing({"serverInfo": {"name": name, "version": "1"}, "capabilities": {}, "tools": tools})


def _pin_bytes(project: Project) -> None:
    def change(old: Any) -> lock_store.LockWrite:
        files: dict[str, bytes] = {}
        made = []
        for entry in old.entries:
            path = format_closure_path(project.lock.stem, format_surface_path(entry.key))
            files[path] = closure_document.to_bytes(_closure(entry.name))
            pin = ClosurePin(packages=_DEPENDENCIES, path=path, file_digest=Digest.of_bytes(files[path]))
            artifact = Artifact(
                name=f"{entry.name}-1.2.3.tgz", digest=Digest.of_bytes(f"@acme/{entry.name}".encode()), size=1
            )
            extension = read_extension(entry) or LockExtension()
            made.append(with_extension(entry, replace(extension, artifacts=(artifact,), closure=pin)))
        return lock_store.LockWrite(lock=put_entries(old, made, NOON), files=files)

    lock_store.update(project.lock, change)


def _closure(name: str) -> Closure:
    dependencies = (_package(f"dependency-{number}", "1.0.0") for number in range(_DEPENDENCIES - 1))
    packages = (_package(f"@acme/{name}", "1.2.3"), *dependencies)
    registry = "https://packages.example.org/"
    return Closure(
        ecosystem="npm", name=f"@acme/{name}", version="1.2.3", resolver="test", registry=registry, packages=packages
    )


def _package(name: str, version: str) -> ClosurePackage:
    archive = f"{name.rpartition('/')[2]}-{version}.tgz"
    url = f"https://packages.example.org/{name}/-/{archive}"
    file = ClosureFile(name=archive, url=url, digest=Digest.of_bytes(name.encode()), size=1)
    return ClosurePackage(name=name, version=version, path=f"node_modules/{name}", files=(file,))


def _entries(lock: Path) -> tuple[Entry, ...]:
    read = lock_store.read(lock)
    assert read is not None
    return tuple(read.entries)
