"""``ci --registry``: what a registry says today about a locked version, held against what was approved."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.lock import lockfile
from pinwarden.lock.entry import Entry, with_integrity
from pinwarden.lock.lockfile import put_entries
from tests.cli.test_lock_and_gate import World

NAME = "io.github.acme/notes"
REMOTE = {"type": "streamable-http", "url": "https://mcp.example.com/notes"}
LATER = "2026-07-21T12:00:00.000Z"
SERVER: dict[str, Any] = {
    "server": {
        "name": NAME,
        "title": "Acme Notes",
        "description": "Read and write notes.",
        "version": "1.2.3",
        "repository": {"url": "https://github.com/acme/notes", "source": "github"},
        "packages": [
            {
                "registryType": "npm",
                "identifier": "@acme/mcp-notes",
                "version": "1.2.3",
                "transport": {"type": "stdio"},
                "packageArguments": ["--root", "./notes"],
                "environmentVariables": [{"name": "NOTES_TOKEN", "isRequired": True, "isSecret": True}],
            }
        ],
    },
    "_meta": {"io.modelcontextprotocol.registry/official": {"status": "active", "isLatest": True}},
}
Edit = Callable[[Any], object]


def same(_: Any) -> None:
    """No edit at all."""


class Shelf(World):
    """A project whose one registry is a folder of files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.root / ".toolpin").mkdir()
        (self.root / "shelf").mkdir()
        registries = {"registries": [{"id": "shelf", "url": "./shelf"}]}
        (self.root / ".toolpin" / "registries.json").write_text(json.dumps(registries))

    def offer(self, edit: Edit = same) -> None:
        entry = copy.deepcopy(SERVER)
        edit(entry)
        (self.root / "shelf" / "notes.json").write_text(json.dumps(entry))

    def rows(self) -> tuple[int, list[tuple[str, str]]]:
        """The exit code, and code and level of every row."""
        outcome = self.run("ci", "--registry", "--offline", "--format", "json")
        document = json.loads(outcome.out)
        return outcome.code, [
            (row["code"], row["severity"])
            for kind in ("failures", "unchecked", "remarks")
            for row in document.get(kind, ())
        ]

    def approve_tier(self, tier: str) -> None:
        """The lock as it would be had this tier been approved."""
        lock = lockfile.parse(self.lock.read_bytes())
        (entry,) = lock.entries
        document = json.loads(json.dumps(entry.document))
        document["trust"]["tier"] = tier
        changed = with_integrity(Entry(key=entry.key, document=document))
        self.lock.write_bytes(lockfile.to_bytes(put_entries(lock, [changed], LATER, plain_v2=True)))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.offer()
    assert shelf.run("lock", NAME, "--offline", "--plain-v2").code == 0
    return shelf


def package(entry: Any) -> Any:
    return entry["server"]["packages"][0]


def status(word: str) -> Edit:
    return lambda entry: entry["_meta"]["io.modelcontextprotocol.registry/official"].update(status=word)


def test_unchanged_registry_metadata_is_clean(shelf: Shelf) -> None:
    assert shelf.rows() == (0, [])


@pytest.mark.parametrize(
    ("edit", "rows"),
    [
        (lambda entry: entry["server"].update(version="1.2.4"), [("version_gone", "critical")]),
        (status("deprecated"), [("entry_deprecated", "review")]),
        (status("deleted"), [("entry_deleted", "critical")]),
        (lambda entry: entry["server"].update(packages=[]), [("no_install_target", "critical")]),
        (
            lambda entry: package(entry).update(identifier="@evil/mcp-notes"),
            [("target_changed", "critical"), ("config_changed", "critical")],
        ),
        (
            lambda entry: entry["server"].update(packages=[], remotes=[REMOTE]),
            [
                ("target_changed", "critical"),
                ("config_changed", "critical"),
                ("manifest_changed", "critical"),
            ],
        ),
        (lambda entry: package(entry).update(packageArguments=["--root", "/"]), [("config_changed", "critical")]),
        (
            lambda entry: package(entry)["environmentVariables"].append({"name": "MORE", "isSecret": True}),
            [("config_changed", "critical"), ("manifest_changed", "critical")],
        ),
        (lambda entry: entry["server"].pop("repository"), [("score_decreased", "review")]),
    ],
    ids=[
        "gone",
        "deprecated",
        "deleted",
        "no target",
        "other package",
        "other kind",
        "other argument",
        "more secrets",
        "worse",
    ],
)
def test_every_change_at_the_registry_has_its_code(shelf: Shelf, edit: Edit, rows: list[tuple[str, str]]) -> None:
    """Attack: the publisher, or an attacker with the account, edits a version that people have locked."""
    before = shelf.lock.read_bytes()
    shelf.offer(edit)
    assert shelf.rows() == (1, rows)
    assert shelf.lock.read_bytes() == before


def floating(entry: Any) -> None:
    package(entry).pop("version")


FLOATS = [("target_changed", "critical"), ("config_changed", "critical"), ("score_decreased", "review")]
LESS_TRUSTED = [*FLOATS, ("tier_decreased", "critical")]


@pytest.mark.parametrize(
    ("approved", "edit", "expected"),
    [
        ("verified", same, (0, [])),  # of metadata alone nothing is better than conditional
        ("conditional", same, (0, [])),
        ("unverified", same, (0, [])),
        ("verified", floating, (1, LESS_TRUSTED)),
        ("conditional", floating, (1, LESS_TRUSTED)),
        ("unverified", floating, (1, FLOATS)),
    ],
)
def test_a_tier_that_metadata_no_longer_supports_is_reported(
    shelf: Shelf, approved: str, edit: Edit, expected: tuple[int, list[tuple[str, str]]]
) -> None:
    shelf.approve_tier(approved)
    shelf.offer(edit)
    assert shelf.rows() == expected


def test_a_server_without_install_targets_does_not_hide_the_others(shelf: Shelf) -> None:
    """Attack: empty one entry, so that the gate stops there and never comes to the one that was changed."""
    assert shelf.run("lock", NAME, "--offline", "--plain-v2", "--client", "cursor").code == 0
    shelf.offer(lambda entry: entry["server"].update(packages=[]))
    assert shelf.rows() == (1, [("no_install_target", "critical")] * 2)


def test_a_registry_that_cannot_be_read_is_not_clean(shelf: Shelf) -> None:
    (shelf.root / "shelf" / "notes.json").write_text("{")
    assert shelf.rows() == (3, [("could_not_check", "review")])
