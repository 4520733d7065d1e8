"""One server that several clients have, and several servers that clients call by one name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.several_clients import SeveralClients, in_words_of, several_clients
from tests.cli.test_prove_fetch_run import needs_node

pytestmark = needs_node

SAME = {
    "claude": "npx -y acme-notes@1.0.0 --root .",
    "cursor": "npx acme-notes@1.0.0 --root .",
    "vscode": "/usr/bin/npx --yes acme-notes@1.0.0 --root .",
    "opencode": "npx -y acme-notes@v1.0.0 --root .",
}
OTHER = {"claude": "npx -y acme-notes@1.0.0", "opencode": "npx -y acme-notes@2.0.0"}


class TestOneServerInSeveralDialects:
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, **SAME) as world:
            yield world

    def test_every_command_takes_it_for_one_server(self, world: SeveralClients) -> None:
        """``gateway`` refused it as locked differently, and ``approve`` failed on its own hint."""
        approved = world.done("approve", "notes", "--allow-execute", "--yes")
        assert "for claude, cursor, vscode, opencode" in " ".join(approved.out.split())
        digests = {key: record["surface"]["digest"] for key, record in world.records().items()}
        assert (len(digests), len(set(digests.values()))) == (4, 1)
        code, facts = world.told("gateway", "--check", "--listen", "127.0.0.1:0")
        assert (code, list(facts["servers"]), facts["not_served"], facts["unapproved"]) == (0, ["notes"], {}, [])
        outcome, texts = world.start(["pinwarden", "run", "notes", "--require-lock"])
        assert texts == ["As ever.", "One."], outcome
        world.done("ci")
        world.done("doctor")

    def test_the_same_server_in_one_more_client_is_approved_elsewhere_and_no_stranger(
        self, world: SeveralClients
    ) -> None:
        (world.root / ".gemini").mkdir()
        entry = in_words_of("claude", SAME["claude"].split(" "), "KEY")
        (world.root / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"notes": entry}}))
        code, report = world.told("ci")
        assert (code, [row["code"] for row in report["failures"]]) == (1, ["unlocked_entry"])


class TestSeveralServersOfOneName:
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, **OTHER) as world:
            yield world

    @pytest.mark.parametrize("command", ["approve", "run"])
    def test_the_hint_names_a_client_and_works_when_it_is_pasted(self, world: SeveralClients, command: str) -> None:
        outcome = world.run(command, "notes")
        assert outcome.code == 2, outcome
        told = " ".join(outcome.err.split())
        assert "pkg:npm/acme-notes@1.0.0 for claude; pkg:npm/acme-notes@2.0.0 for opencode" in told
        hint = told.rpartition("Name the client: pinwarden ")[2].split(" ")[:4]
        assert hint == [command, "notes", "--client", "claude"]
        consent = ("--allow-execute", "--yes") if command == "approve" else ("--show",)
        world.done(*hint, *consent)

    def test_each_client_has_its_own_approval(self, world: SeveralClients) -> None:
        for client in OTHER:
            world.done("approve", "notes", "--client", client, "--allow-execute", "--yes")
            assert world.start(["pinwarden", "run", "notes", "--client", client])[1][1] in ("One.", "Two.")
        digests = {record["surface"]["digest"] for record in world.records().values()}
        assert len(digests) == 2
        _, facts = world.told("gateway", "--check", "--listen", "127.0.0.1:0")
        assert "locked differently" in json.dumps(facts)
