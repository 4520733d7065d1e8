"""One server that several clients have, and several servers that clients call by one name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import pinwarden_in
from tests.cli.several_clients import SeveralClients, in_words_of, several_clients
from tests.cli.test_prove_fetch_run import PLAIN, needs_node
from tests.servers.npm_registry import tarball

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

    def test_every_command_treats_it_as_one_server(self, world: SeveralClients) -> None:
        """``gateway`` refused it as locked differently, and ``approve`` failed on its own hint."""
        approved = world.done("approve", "notes", "--allow-execute", "--yes")
        assert "for Claude Code, Cursor, VS Code, opencode" in " ".join(approved.out.split())
        digests = {key: record["surface"]["digest"] for key, record in world.records().items()}
        assert (len(digests), len(set(digests.values()))) == (4, 1)
        code, facts = world.run_json("gateway", "--check", "--listen", "127.0.0.1:0")
        assert (code, list(facts["servers"]), facts["not_served"], facts["unapproved"]) == (0, ["notes"], {}, [])
        outcome, texts = world.start(["pinwarden", "run", "notes", "--require-lock"])
        assert texts == ["As ever.", "One."], outcome
        world.done("ci")
        world.done("doctor")

    def test_the_same_server_in_another_client_is_not_reported_as_unknown(self, world: SeveralClients) -> None:
        (world.root / ".gemini").mkdir()
        entry = in_words_of("claude", SAME["claude"].split(" "), "KEY")
        (world.root / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"notes": entry}}))
        code, report = world.run_json("ci")
        assert (code, [row["code"] for row in report["failures"]]) == (1, ["unlocked_entry"])


class TestSeveralServersOfOneName:
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, **OTHER) as world:
            yield world

    def test_the_hint_names_a_client_and_works_when_it_is_pasted(self, world: SeveralClients) -> None:
        outcome = world.run("run", "notes")
        assert outcome.code == 2, outcome
        output = " ".join(outcome.err.split())
        assert "pkg:npm/acme-notes@1.0.0 for claude; pkg:npm/acme-notes@2.0.0 for opencode" in output
        hint = output.rpartition("Name the client: pinwarden ")[2].split(" ")[:4]
        assert hint == ["run", "notes", "--client", "claude"]
        world.done(*hint, "--show")

    def test_one_approve_covers_each_of_them(self, world: SeveralClients) -> None:
        code, facts = world.run_json("approve", "notes", "--allow-execute", "--yes")
        assert code == 0
        assert [(server["name"], server["approved"]) for server in facts["servers"]] == [("notes", True)] * 2
        digests = {record["surface"]["digest"] for record in world.records().values()}
        assert len(digests) == 2

    def test_each_client_has_its_own_approval(self, world: SeveralClients) -> None:
        for client in OTHER:
            world.done("approve", "notes", "--client", client, "--allow-execute", "--yes")
            assert world.start(["pinwarden", "run", "notes", "--client", client])[1][1] in ("One.", "Two.")
        digests = {record["surface"]["digest"] for record in world.records().values()}
        assert len(digests) == 2
        _, facts = world.run_json("gateway", "--check", "--listen", "127.0.0.1:0")
        assert "locked differently" in json.dumps(facts)


class TestEnforcing:
    """A server died with exit 2 because its entry did not say which client's server is meant."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, **OTHER) as world:
            for client in OTHER:
                world.done("approve", "notes", "--client", client, "--allow-execute", "--yes")
            yield world

    def test_each_client_starts_its_own_release_by_the_command_that_was_written(self, world: SeveralClients) -> None:
        outcome = world.done("enforce", "--yes")
        assert "no server was started" in " ".join(outcome.out.split())
        for client, text in (("claude", "One."), ("opencode", "Two.")):
            assert world.command(client) == ["pinwarden", "run", "notes", "--require-lock", "--client", client]
            started, texts = world.start(world.command(client))
            assert (started.code, texts) == (0, ["As ever.", text]), started
        world.done("ci")
        world.done("doctor")

    @pytest.mark.parametrize("command", ["ci", "doctor"])
    def test_an_entry_that_pinwarden_run_would_refuse_is_a_finding(self, world: SeveralClients, command: str) -> None:
        world.done("enforce", "--yes")
        written = world.entry("claude")
        for entry in (
            {**written, "args": ["run", "notes", "--require-lock"]},
            {**written, "args": ["run", "notes", "--client", "cursor"]},
            {**written, "args": ["run", "memory"]},
        ):
            world.write("claude", notes=entry)
            code, report = world.run_json(command)
            rows = report["failures"] if command == "ci" else report["findings"]
            assert (code, "start_unresolved" in [row["code"] for row in rows]) == (1, True), report
        world.write("claude", notes=written)
        world.done(command)

    def test_an_older_entry_is_repaired_when_another_client_gets_another_release(self, world: SeveralClients) -> None:
        """Entries without --client, as earlier versions wrote them, in the lock and in the client's file."""
        world.done("enforce", "--yes")
        lock = json.loads(world.lock.read_text())
        for text in ('"--require-lock",', '"--client",'):
            assert text in json.dumps(lock).replace(" ", "")
        edited = {**world.entry("claude"), "args": ["run", "notes", "--require-lock"]}
        world.write("claude", notes=edited)
        world.run("init", "--accept", "claude:notes")
        world.run("init", "--accept", "notes")
        assert world.run("ci").code == 1
        world.done("enforce", "--yes")
        world.done("ci")
        assert world.start(world.command("claude"))[1] == ["As ever.", "One."]

    def test_a_server_is_started_once_by_its_new_command_before_that_is_written(
        self, world: SeveralClients, tmp_path: Path
    ) -> None:
        world.publish("3.0.0", "Three.")
        broken = dict(world.environment, PATH=search_path(tmp_path / "none"))
        before = world.files()
        outcome = pinwarden_in(
            {**world.whole_environment, **broken}, "enforce", "--yes", "--allow-execute", cwd=world.root
        )
        assert outcome.code == 1, outcome
        assert "does not start the server" in outcome.out
        assert world.files() == before
        working = {**world.whole_environment, "PATH": search_path(Path(sys.executable).parent)}
        outcome = pinwarden_in(working, "enforce", "--yes", "--allow-execute", cwd=world.root)
        assert outcome.code == 0, outcome
        assert "each server was started once with its new command" in " ".join(outcome.out.split())
        assert world.files() != before
        recorded = {path.name for path in (tmp_path / "state").iterdir()}
        assert "gateway.sqlite" not in recorded, "nothing is trusted because a server was tried"

    def test_a_lock_is_put_back_if_the_clients_file_cannot_be_written(self, world: SeveralClients) -> None:
        (world.root / ".mcp.json").rename(world.root / "kept.json")
        (world.root / ".mcp.json").symlink_to("kept.json")
        before = world.files()
        outcome = world.run("enforce", "notes", "--yes")
        assert outcome.code == 1
        after = world.files()
        assert after[".mcp.json"] == before[".mcp.json"]
        assert after["mcp-lock.json"] != before["mcp-lock.json"], "the other client's entry"
        records = world.records()
        assert ["launch" in records[key] for key in sorted(records)] == [False, True]


def search_path(first: Path) -> str:
    """The search path without any program of ours but those in one folder."""
    others = [folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "pinwarden").exists()]
    return os.pathsep.join([str(first), *others])


class TestUpdating:
    """An update ended halfway, and the gate then found Pinwarden's own edit critical."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, **OTHER) as world:
            for client in OTHER:
                world.done("approve", "notes", "--client", client, "--allow-execute", "--yes")
            world.done("enforce", "--yes")
            world.publish("3.0.0", "Three.")
            yield world

    def test_servers_of_one_name_that_clients_have_at_different_releases_are_all_updated(
        self, world: SeveralClients
    ) -> None:
        world.done("update", "notes", "--yes", *PLAIN)
        world.done("ci")
        world.done("doctor")
        launches = {tuple(record["launch"]["command"]) for record in world.records().values()}
        assert launches == {("npx", "-y", "acme-notes@3.0.0")}
        world.done("approve", "notes", "--allow-execute", "--yes")
        for client in OTHER:
            assert world.start(world.command(client))[1] == ["As ever.", "Three."]

    def test_a_release_whose_bytes_cannot_be_pinned_changes_nothing(self, world: SeveralClients) -> None:
        manifest = {**world.releases[-1][0], "dependencies": {"gone": "1.0.0"}}
        files = {"package/package.json": json.dumps(manifest).encode(), "package/server.js": b"// nothing\n"}
        world.releases[-1] = manifest, tarball(files)
        before = world.files()
        code, report = world.run_json("update", "notes", "--yes", *PLAIN)
        assert code == 1
        assert "nothing was changed" in report["configs"][0]["message"], report
        assert world.files() == before
        world.done("ci")

    def test_a_client_whose_file_cannot_be_written_keeps_the_others_as_they_were(self, world: SeveralClients) -> None:
        for client, command in OTHER.items():  # as they were before they were enforced
            world.write(client, notes=in_words_of(client, command.split(" "), "KEY"))
        world.done("init", "--accept", "notes")
        (world.root / "opencode.json").rename(world.root / "kept.json")
        (world.root / "opencode.json").symlink_to("kept.json")
        world.run("init", "--accept", "notes")
        before = world.files()
        code, report = world.run_json("update", "notes", "--yes", *PLAIN)
        assert (code, [row["name"] for row in report["configs"]]) == (1, ["notes"]), report
        assert world.files() == before


class TestPinwardenIsNotAServer:
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, claude=OTHER["claude"]) as world:
            world.done("enforce", "--yes")
            yield world

    @pytest.mark.parametrize(
        "command",
        [
            "pinwarden run memory",
            "pinwarden gateway",
            "/opt/bin/pinwarden run notes",
            "python3 -m pinwarden run notes",
            "uvx pinwarden run notes",
            "uvx --from pinwarden==1.0.0 pinwarden run notes",
            "env KEY=1 pinwarden run notes",
            "bash -c exec\u00a0pinwarden\u00a0run\u00a0notes",
        ],
    )
    def test_a_command_that_starts_pinwarden_is_never_locked_as_a_server(
        self, world: SeveralClients, command: str
    ) -> None:
        words = [word.replace("\u00a0", " ") for word in command.split(" ")]
        before = world.lock.read_bytes()
        world.write("cursor", copied=in_words_of("cursor", words))
        assert world.run("init", "--accept", "copied").code == 1
        assert world.lock.read_bytes() == before
        world.write("cursor")
        world.write("claude", notes=in_words_of("claude", ["/opt/bin/pinwarden", "run", "notes"]))
        world.run("init", "--accept", "notes")
        for entry in json.loads(world.lock.read_text())["servers"].values():
            assert entry["selectedTarget"]["identifier"] == "acme-notes"

    def test_the_command_of_one_client_copied_to_another_is_the_same_server(self, world: SeveralClients) -> None:
        world.write("cursor", notes=world.entry("claude"))
        world.done("init", "--accept", "notes")
        records = world.records()
        assert [record["launch"]["command"] for record in records.values()] == [OTHER["claude"].split(" ")] * 2
        assert len({record["closure"]["file"]["digest"] for record in records.values()}) == 1
        world.done("ci")
        world.done("approve", "notes", "--allow-execute", "--yes")
        assert world.start(world.command("cursor"))[1] == ["As ever.", "One."]

    def test_a_command_behind_pinwarden_run_is_locked_as_what_it_runs(self, world: SeveralClients) -> None:
        words = ["pinwarden", "run", "--name", "files", "--", "npx", "-y", "acme-files@1.0.0"]
        world.write("cursor", files=in_words_of("cursor", words))
        world.done("init", "--accept", "files")
        target = json.loads(world.lock.read_text())["servers"]["files:cursor"]["selectedTarget"]
        assert (target["registryType"], target["identifier"], target["version"]) == ("npm", "acme-files", "1.0.0")


class TestPinning:
    def test_an_exact_pin_to_the_release_that_answered_keeps_its_approval_and_any_other_does_not(
        self, tmp_path: Path
    ) -> None:
        """After the release that had just answered was written into the configuration, it counted as never asked."""
        with several_clients(tmp_path, claude="npx -y acme-notes@1.0.0") as world:
            world.lock.unlink()
            world.write("claude", notes=in_words_of("claude", ["npx", "-y", "acme-notes"], "KEY"))
            world.done("init", "--allow-execute", "--pass-env", "NPM_CONFIG_REGISTRY")
            assert world.records()["notes:claude"]["probedRelease"] == "2.0.0"
            floating = world.lock.read_bytes()
            for words, asked in (("@2.0.0", True), ("@v2.0.0", True), ("@1.0.0", False), ("@2.0.0 --all", False)):
                world.lock.write_bytes(floating)
                command = f"npx -y acme-notes{words}".split(" ")
                world.write("claude", notes=in_words_of("claude", command, "KEY"))
                world.done("init", "--accept", "notes")
                output = " ".join(world.done("ci").out.split())
                assert ("was not started since" not in output) == asked, (words, output)
                assert ("surfaceOf" not in world.records()["notes:claude"]) == asked
