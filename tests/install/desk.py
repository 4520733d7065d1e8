"""A user's machine in tests: a project, a store, and a static export of a registry beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.main import main
from pinwarden.registry.export import export_registry
from tests.docs.schemas import problems
from tests.install.world import User
from tests.registry.world import SERVER, Bundle

POISONED = SERVER.replace(b'if "--update" in sys.argv', b"if True")
REWORDED = SERVER.replace(b"Full-text search over the user's notes.", b"Search the notes by their full text.")
QUESTIONS = "".join(
    json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {}}) + "\n"
    for number, method in enumerate(("initialize", "tools/list"))
)


@dataclass(slots=True)
class Desk:
    """A user's machine: a project, a store, and a static export of a registry beside it."""

    user: User
    root: Path
    export: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, Any]:
        """A command in this process, and what it prints."""
        self.capture.readouterr()
        code = main([*arguments, "--format", "json"])
        report = json.loads(self.capture.readouterr().out)
        assert problems("error" if set(report) == {"error"} else arguments[0], report) == []
        return code, report

    def install(self, *arguments: str, tool: str = "acme.notes") -> tuple[int, Any]:
        return self.run("install", tool, "--registry", str(self.export), "--by", "me", *arguments)

    def update(self, *arguments: str) -> tuple[int, Any]:
        return self.run("update", "--registry", str(self.export), "--by", "me", *arguments)

    def publish(self, made: Bundle, **more: Any) -> None:
        self.user.publish(made, **more)
        self.write_export()

    def write_export(self) -> None:
        assert export_registry(self.user.world.registry, self.export).exit_code == 0

    def started(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """An installed server, started as a client does."""
        command = self.command(*(arguments or ("acme.notes",)))
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240, check=False)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """The command by which a client starts an installed server."""
        return [sys.executable, "-m", "pinwarden", "run", *arguments]

    @property
    def lock(self) -> Any:
        return json.loads((self.root / "mcp-lock.json").read_bytes())

    def record(self, key: str = "acme.notes:generic") -> Any:
        return self.lock["servers"][key]["capabilityManifest"]["pinwarden"]

    @property
    def written(self) -> list[str]:
        """What an install leaves in the project and in the store."""
        folders = (self.root, self.root.parent / "store")
        return sorted(str(path.relative_to(self.root.parent)) for folder in folders for path in folder.rglob("*"))


def relinked(made: Bundle) -> Bundle:
    """The bundle after its descriptor was changed."""
    from pinwarden.core.digest import document_cid

    cid = str(document_cid(made.descriptor))
    return Bundle(descriptor=made.descriptor, manifest={**made.manifest, "descriptor_cid": cid}, archive=made.archive)
