"""From a lock to bytes, from bytes to a running server, and what an attacker can do in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pinwarden.core.digest import Digest
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.project.approval_candidate import scan_for_approval
from pinwarden.project.lock import Approver, approve_surfaces
from pinwarden.project.project import Project
from pinwarden.surface.surface import surface_from_listing
from tests.cli.project import RECORDED
from tests.cli.run import Outcome, pinwarden
from tests.docs.schemas import problems
from tests.servers.acme_packages import Registries, acme_registries, npm_answers, npm_packages
from tests.servers.plain_http import plain_server
from tests.support.needs import missing, needs

needs_node = needs("node", install="apt-get install nodejs npm")
PINWARDEN = (sys.executable, "-m", "pinwarden")
TALK = (
    {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}}},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A project, a home and a store of its own, and the command line in it."""

    folder: Path
    variables: dict[str, str]

    @property
    def root(self) -> Path:
        return self.folder / "project"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def lock(self) -> Path:
        return self.root / "mcp-lock.json"

    @property
    def environment(self) -> dict[str, str]:
        places = {"PINWARDEN_STORE": str(self.store), "PINWARDEN_STATE": str(self.folder / "state")}
        own = {"HOME": str(self.folder / "home"), "PINWARDEN_APPROVER": "reviewer", **places}
        return {**own, "SOURCE_DATE_EPOCH": str(RECORDED), **self.variables}

    def run(self, *arguments: str) -> Outcome:
        return pinwarden(*arguments, cwd=self.root, env=self.environment)

    def done(self, *arguments: str) -> Outcome:
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome
        return outcome

    def run_json(self, *arguments: str) -> tuple[int, Any]:
        outcome = self.run(*arguments, "--format", "json")
        return outcome.code, json.loads(outcome.out)

    def configure(self, **servers: Any) -> None:
        (self.root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def about(self, server: str, *arguments: str) -> dict[str, Any]:
        """Start a server as a client does, and hear from it what it was started with."""
        lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in TALK)
        with TemporaryDirectory(dir=self.folder) as state:  # each time is the first
            environment = {**self.environment, "PINWARDEN_STATE": state}
            outcome = pinwarden("run", server, *arguments, stdin=lines.encode(), cwd=self.root, env=environment)
        assert outcome.code == 0, outcome
        answers = [json.loads(line) for line in outcome.out.splitlines()]
        output: dict[str, Any] = json.loads(answers[1]["result"]["tools"][0]["description"])
        said = [line for line in outcome.err.splitlines() if not line.startswith("pinwarden: First use")]
        return {**output, "stderr": "\n".join(said)}

    def closure_file(self, server: str) -> Path:
        return self.root / "mcp-lock.closures" / f"{server}.json"

    def environments(self) -> list[Path]:
        return [folder for folder in (self.store / "environments").glob("*") if not folder.name.startswith(".")]


NOTES: dict[str, Any] = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0", "--root", "/data"]}
CLOCK: dict[str, Any] = {"command": "uvx", "args": ["acme-clock==1.0.0"], "env": {"CLOCK_ZONE": "UTC"}}
DOCS: dict[str, Any] = {"url": "https://mcp.example.com/docs"}
PLAIN = ("--allow-plain-http", "--allow-private")


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    with acme_registries(tmp_path_factory.mktemp("wheels")) as running:
        yield running


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory, registries: Registries) -> World:
    """A world in which everything was proved and built; tests work in copies of it."""
    world = World(folder=tmp_path_factory.mktemp("proved"), variables=registries.variables)
    world.root.mkdir()
    (world.folder / "home").mkdir()
    world.configure(notes=NOTES, clock=CLOCK, docs=DOCS)
    world.done("init")
    world.done("prove", *PLAIN)
    world.done("fetch", *PLAIN)
    return world


@pytest.fixture
def world(proved: World, tmp_path: Path) -> World:
    shutil.copytree(proved.folder, tmp_path / "world", symlinks=True)
    return replace(proved, folder=tmp_path / "world")


def _approve(world: World, server: str, listing: dict[str, Any]) -> None:
    project = Project(root=world.root, lock=world.lock, home=world.folder / "home")
    for entry in find_entries(world.lock, server):
        offered = scan_for_approval(server, surface_from_listing(listing))
        approve_surfaces(project, [(entry, offered)], Approver(by="reviewer", why="test"), "2026-07-20T12:00:00Z")


def find_entries(lock: Path, server: str) -> list[Entry]:
    locked = lock_store.read(lock)
    assert locked is not None
    return [entry for entry in locked.entries if entry.name == server]


def codes(report: Any) -> list[tuple[str, str]]:
    return [(row["code"], row["name"]) for row in report["findings"]]


@needs_node
class TestRunning:
    def test_both_kinds_of_server_are_started_from_verified_bytes_with_the_approved_arguments(
        self, world: World
    ) -> None:
        notes, clock = world.about("notes"), world.about("clock")
        assert (notes["base"], notes["arguments"], notes["stderr"]) == ("b", ["--root", "/data"], "")
        assert (clock["base"], clock["arguments"], clock["stderr"]) == ("b", [], "")

    def test_no_registry_is_contacted_at_start(self, world: World, registries: Registries) -> None:
        before = len(registries.npm.asked)
        away = replace(world, variables=dict.fromkeys(registries.variables, "http://127.0.0.1:1/"))
        assert away.about("notes")["base"] == away.about("clock")["base"] == "b"
        assert len(registries.npm.asked) == before

    def test_variables_that_load_code_are_not_passed_on(self, world: World, tmp_path: Path) -> None:
        evil = tmp_path / "evil"
        evil.mkdir()
        (evil / "evil.js").write_text("process.stdout.write('evil');")
        (evil / "acme_ticks.py").write_text("BASE = 'evil'")
        attack = {
            "NODE_OPTIONS": f"--require={evil / 'evil.js'}",
            "NODE_PATH": str(evil),
            "PYTHONPATH": str(evil),
            "LD_PRELOAD": str(evil / "none.so"),
            "PYTHONSTARTUP": str(evil / "acme_ticks.py"),
            "SECRET_OF_THE_CLIENT": "hunter2",
        }
        attacked = replace(world, variables={**world.variables, **attack})
        for server in ("notes", "clock"):
            report = attacked.about(server)
            assert report["base"] == "b"
            assert not attack.keys() & set(report["variables"])

    def test_only_approved_variables_are_passed_on(self, world: World) -> None:
        given = replace(world, variables={**world.variables, "CLOCK_ZONE": "UTC"})
        assert "CLOCK_ZONE" in given.about("clock")["variables"]
        assert "CLOCK_ZONE" not in given.about("notes")["variables"]

    @pytest.mark.parametrize("given", [["--root", "/"], ["--root"], ["--root", "/data", "--more"]])
    def test_other_arguments_than_the_approved_ones_are_refused(self, world: World, given: list[str]) -> None:
        outcome = world.run("run", "notes", "--", *given)
        assert (outcome.code, outcome.out) == (1, "")
        assert "[ARGUMENTS_CHANGED]" in outcome.err

    def test_the_approved_arguments_may_be_repeated(self, world: World) -> None:
        assert world.about("notes", "--", "--root", "/data")["arguments"] == ["--root", "/data"]

    def test_the_gateway_enforces_the_lock_for_an_approved_server(self, world: World, tmp_path: Path) -> None:
        """The server tells which variables it got, so that giving it one more is a change of its text."""
        lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in TALK).encode()

        def started(*options: str, **variables: str) -> tuple[Outcome, list[Any]]:
            environment = {**world.environment, "PINWARDEN_STATE": str(tmp_path / "state"), **variables}
            outcome = pinwarden("run", *options, "clock", stdin=lines, cwd=world.root, env=environment)
            answers = [json.loads(line) for line in outcome.out.splitlines()]
            assert all("result" in answer for answer in answers), outcome
            return outcome, [answer["result"] for answer in answers]

        refused, _ = started("--require-lock")
        assert (refused.code, refused.out) == (1, "")
        assert "[SERVER_NOT_LOCKED]" in refused.err
        _, (opening, listed) = started()
        _approve(world, "clock", {**opening, **listed})
        outcome, answers = started("--require-lock")
        assert (answers, outcome.err) == ([opening, listed], "")
        outcome, answers = started(CLOCK_ZONE="UTC")
        assert answers == [opening, {"tools": []}]
        assert "blocked tool" in outcome.err
        world.lock.write_text(world.lock.read_text().replace("acme-clock", "acme-clack"))
        outcome, _ = started()
        assert "[LOCK_TAMPERED]" in outcome.err

    def test_only_what_a_client_fills_in_may_differ_from_the_approved_arguments(self, world: World) -> None:
        words = ["-y", "@acme/notes@1.0.0", "--root=${workspaceFolder}/data"]
        world.configure(notes={"command": "npx", "args": words}, clock=CLOCK, docs=DOCS)
        world.done("init", "--accept", "notes")
        world.done("prove", "notes", *PLAIN)
        world.done("fetch", "notes", *PLAIN)
        assert world.about("notes", "--", "--root=/p/data")["arguments"] == ["--root=/p/data"]
        for given in ("--eval=/p/data", "--root=/p", "/data"):
            assert "[ARGUMENTS_CHANGED]" in world.run("run", "notes", "--", given).err

    def test_a_package_that_cannot_be_started_from_its_bytes_and_an_unknown_name_are_not_run(
        self, world: World
    ) -> None:
        world.configure(notes=NOTES, clock=CLOCK, docs=DOCS, old={"command": "dnx", "args": ["Acme.Old@1.0.0"]})
        world.done("init", "--accept", "old")
        for name, code, says in (
            ("old", 2, "[NOTHING_TO_RUN]"),
            ("none", 1, "[SERVER_NOT_LOCKED]"),
        ):
            outcome = world.run("run", name)
            assert (outcome.code, outcome.out) == (code, ""), outcome
            assert says in outcome.err

    def test_show_prints_the_command_without_starting_it(self, world: World) -> None:
        shown = world.done("run", "notes", "--show").out.splitlines()
        assert [Path(shown[0]).name, Path(shown[1]).name, *shown[2:]] == ["node", "server.js", "--root", "/data"]


def test_starting_a_server_loads_nothing_that_only_building_and_fetching_need() -> None:
    modules = (
        "cli.commands.run",
        "project.run",
        "artifacts.environments.node",
        "artifacts.environments.python",
    )
    code = f"import sys, {', '.join(f'pinwarden.{module}' for module in modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    heavy = {
        "bz2",
        "configparser",
        "cryptography",
        "platform",
        "subprocess",
        "tarfile",
        "urllib3",
        "zipfile",
        "packaging",
    }
    assert heavy & set(done.stdout.decode().split()) == set()


@needs_node
class TestTampering:
    def refused(self, world: World, server: str, says: str) -> None:
        outcome = world.run("run", server)
        assert (outcome.code, outcome.out) == (1, ""), outcome
        assert says in outcome.err

    def test_a_closure_file_that_was_edited_is_refused_everywhere(self, world: World) -> None:
        place = world.closure_file("notes")
        place.write_text(place.read_text().replace("1.2.0", "1.2.1"))
        before = world.lock.read_bytes()
        self.refused(world, "notes", "[LOCK_TAMPERED]")
        for command in (("fetch", *PLAIN), ("prove", *PLAIN)):
            code, report = world.run_json(*command)
            assert code == 1
            assert ("lock_tampered", "notes") in codes(report)
        code, report = world.run_json("sbom")
        assert (code, report["error"]["code"]) == (1, "LOCK_TAMPERED")
        assert world.lock.read_bytes() == before
        assert world.about("clock")["base"] == "b"

    def test_a_closure_that_was_forged_together_with_its_digest_is_refused(self, world: World) -> None:
        place = world.closure_file("notes")
        before = place.read_bytes()
        place.write_bytes(before.replace(b"1.2.0", b"1.2.1"))
        lock = world.lock.read_text().replace(str(Digest.of_bytes(before)), str(Digest.of_bytes(place.read_bytes())))
        world.lock.write_text(lock)
        self.refused(world, "notes", "[LOCK_TAMPERED]")
        self.refused(world, "clock", "[LOCK_TAMPERED]")

    def test_a_closure_file_that_was_removed_is_refused(self, world: World) -> None:
        world.closure_file("clock").unlink()
        self.refused(world, "clock", "[LOCK_TAMPERED]")

    @pytest.mark.parametrize("name", ["server.js", "acme_clock.py"])
    def test_a_replaced_file_of_an_environment_is_rebuilt_before_it_runs(self, world: World, name: str) -> None:
        [place] = (world.store / "environments").rglob(name)
        good = place.read_bytes()
        place.parent.chmod(0o755)
        place.unlink()
        place.write_bytes(b"process.exit(7)" if name.endswith("js") else b"import sys; sys.exit(7)")
        report = world.about("notes" if name.endswith("js") else "clock")
        assert report["base"] == "b"
        assert "building it again" in report["stderr"]
        assert place.read_bytes() == good

    def test_a_file_planted_in_an_environment_is_removed_before_it_runs(self, world: World) -> None:
        [base] = (world.store / "environments").rglob("node_modules/acme-base")
        (base / "planted.js").write_text("")
        assert "does not belong to it" in world.about("notes")["stderr"]
        assert not (base / "planted.js").exists()

    def test_an_archive_of_the_store_that_was_replaced_is_not_built_from(self, world: World) -> None:
        digest = json.loads(world.closure_file("notes").read_text())["packages"][0]["files"][0]["digest"]
        archive = world.store / "files" / digest.partition(":")[2]
        archive.chmod(0o644)
        archive.write_bytes(b"evil")
        for place in world.environments():
            shutil.rmtree(place)
        outcome = world.run("run", "notes")
        assert (outcome.code, outcome.out) == (3, ""), outcome
        assert "[ARTIFACT_MISSING]" in outcome.err
        assert not any("server.js" in names for _, _, names in os.walk(world.store))
        world.done("fetch", "notes", *PLAIN)
        assert world.about("notes")["base"] == "b"

    def test_fetch_refuses_a_registry_that_serves_other_bytes(self, world: World, registries: Registries) -> None:
        """The bytes changed after they were locked, and the store is empty: a fresh machine."""
        shutil.rmtree(world.store)
        [wheel] = registries.wheels.glob("acme_ticks-*")
        good = wheel.read_bytes()
        try:
            wheel.write_bytes(good + b"\0")
            code, report = world.run_json("fetch", "clock", "--frozen", *PLAIN)
        finally:
            wheel.write_bytes(good)
        assert (code, codes(report)) == (1, [("artifact_mismatch", "clock")])
        assert world.environments() == []


@needs_node
class TestProving:
    def test_the_reports_match_their_schemas(self, world: World) -> None:
        shutil.rmtree(world.store)
        for command in (("prove", *PLAIN), ("fetch", *PLAIN), ("sbom",), ("sbom", "--kind", "spdx")):
            code, report = world.run_json(*command)
            assert code == 0
            assert problems(command[0], report) == []

    def test_proving_again_leaves_the_lock_unchanged(self, world: World) -> None:
        before = {path: path.read_bytes() for path in world.root.rglob("*.json")}
        world.done("prove", *PLAIN)
        assert {path: path.read_bytes() for path in world.root.rglob("*.json")} == before
        assert world.done("ci").code == 0

    def test_scripts_that_an_ordinary_client_would_run_are_named_and_not_run(self, world: World) -> None:
        _, report = world.run_json("fetch", "notes", *PLAIN)
        assert report["servers"][0]["scripts"] == ["@acme/notes"]

    @pytest.mark.parametrize("how", [".npmrc", "NPM_CONFIG_REGISTRY"])
    def test_a_registry_that_was_substituted_after_locking_is_refused(
        self, world: World, tmp_path: Path, how: str
    ) -> None:
        (tmp_path / "other").mkdir()
        before = world.lock.read_bytes()
        with acme_registries(tmp_path / "other") as other:
            if how == ".npmrc":
                (world.root / ".npmrc").write_text(f"registry={other.npm.url}\n")
                variables = {name: value for name, value in world.variables.items() if not name.startswith("NPM")}
            else:
                variables = {**world.variables, how: other.npm.url}
            code, report = replace(world, variables=variables).run_json("prove", "notes", *PLAIN)
        assert (code, codes(report)) == (1, [("registry_changed", "notes")])
        assert report["servers"] == []
        assert world.lock.read_bytes() == before

    def test_a_version_that_floats_has_no_bytes_to_pin(self, world: World) -> None:
        world.configure(notes=NOTES, clock=CLOCK, docs=DOCS, open={"command": "npx", "args": ["-y", "@acme/notes"]})
        world.done("init", "--accept", "open")
        code, report = world.run_json("prove", "open", *PLAIN)
        assert (code, codes(report)) == (1, [("version_floats", "open")])

    def test_prove_skips_remote_servers_without_failing(self, world: World) -> None:
        code, report = world.run_json("prove", "docs", *PLAIN)
        assert (code, codes(report)) == (0, [("nothing_to_run", "docs")])
        assert "docs" in world.run("prove", "docs", *PLAIN).out
        for command in ("prove", "fetch"):
            assert "docs" not in world.done(command, *PLAIN).out, "a row only if it was named"

    def test_frozen_fails_for_a_server_without_pinned_bytes_and_builds_nothing(
        self, registries: Registries, tmp_path: Path
    ) -> None:
        world = World(folder=tmp_path, variables=registries.variables)
        world.root.mkdir()
        (tmp_path / "home").mkdir()
        world.configure(notes=NOTES)
        world.done("init")
        code, report = world.run_json("fetch", "--frozen", *PLAIN)
        assert (code, codes(report)) == (1, [("bytes_not_locked", "notes")])
        assert not world.store.exists()
        assert world.run("fetch", *PLAIN).code == 0
        outcome = world.run("run", "notes")
        assert (outcome.code, outcome.out) == (1, "")
        assert "[BYTES_NOT_LOCKED]" in outcome.err

    def test_clients_with_different_servers_of_one_name_have_separate_closures(self, world: World) -> None:
        (world.root / ".vscode").mkdir()
        other = {"command": "uvx", "args": ["acme-clock==1.0.0"]}
        (world.root / ".vscode/mcp.json").write_text(json.dumps({"servers": {"notes": other}}))
        world.done("init", "--accept", "notes")
        world.done("prove", *PLAIN)
        world.done("fetch", "--frozen", *PLAIN)
        assert world.done("ci").code == 0
        assert world.about("notes", "--client", "claude")["arguments"] == ["--root", "/data"]
        assert world.about("notes", "--client", "vscode")["arguments"] == []
        assert "[USAGE]" in world.run("run", "notes").err


@needs_node
def test_attack_recorded_evidence_in_an_unsigned_lock_does_not_count_if_the_policy_requires_fresh_evidence(
    world: World,
) -> None:
    """Whoever can write the lock can write any evidence into it, and seal it again."""
    world.configure(notes=NOTES)
    world.done("init", "--accept", "notes")
    for gone in ("clock", "docs"):
        world.done("remove", gone, "--keep-config")
    rules = "[policy.evidence]\nrequire = ['npm_integrity_verified']\n"
    (world.root / "pinwarden.toml").write_text(rules)
    code, report = world.run_json("ci")
    assert (code, [note for note in report["notes"] if "was not verified now" in note] != []) == (0, True)
    assert "was not verified now" in world.done("policy", "check").out

    (world.root / "pinwarden.toml").write_text(f"{rules}proved = true\n")
    code, report = world.run_json("ci")
    assert (code, [row["code"] for row in report["failures"]]) == (1, ["evidence_only_recorded"])
    assert world.run("policy", "check").code == 1
    code, report = world.run_json("ci", "--bytes", "--allow-private")
    assert (code, [note for note in report["notes"] if "was not verified now" in note]) == (0, [])

    world.done("keygen", "ada")
    world.done("lock", "sign", "--dsse", "--key", "ada", "--policy", "pinwarden.toml")
    assert world.run_json("ci", "--public-key", "ada.pub")[0] == 0
    world.done("keygen", "eve")
    code, report = world.run_json("ci", "--public-key", "eve.pub")
    assert (code, {row["code"] for row in report["failures"]} >= {"evidence_only_recorded"}) == (1, True)


@needs_node
class TestRegistriesOfDependencies:
    """A server from the usual registry, and a dependency whose scope has a registry of its own."""

    @pytest.mark.parametrize("named_by", ["project", "user"])
    def test_each_dependency_comes_from_the_registry_of_its_scope_and_credentials_stay_there(
        self, tmp_path: Path, named_by: str
    ) -> None:
        from tests.cli.artifact_world import npm_library, npm_server

        world = World(folder=tmp_path / "w", variables={})
        for folder in (world.root, world.folder / "home"):
            folder.mkdir(parents=True)
        usual = {"acme-outer": npm_server("acme-outer", says="outer", needs={"@corp/inner": "1.0.0"})}
        # Whoever serves the usual registry would like to serve that scope, too.
        usual["@corp/inner"] = npm_library("@corp/inner", says="evil")
        scoped = {"@corp/inner": npm_library("@corp/inner", says="inner")}
        with (
            plain_server(lambda asked: npm_answers(usual, asked)) as outer,
            plain_server(lambda asked: npm_answers(scoped, asked)) as inner,
        ):
            token = f"{inner.url.removeprefix('http:')}:_authToken=t0ken\n"
            home, project = [f"registry={outer.url}\n{token}"], ["# nothing\n"]
            (project if named_by == "project" else home).append(f"@corp:registry={inner.url}\n")
            (world.folder / "home" / ".npmrc").write_text("".join(home))
            (world.root / ".npmrc").write_text("".join(project))
            world.configure(outer={"command": "npx", "args": ["-y", "acme-outer@1.0.0"]})
            world.done("init")
            world.done("prove", *PLAIN)
            shutil.rmtree(world.store)
            world.done("fetch", "--frozen", *PLAIN)
            assert world.done("run", "outer", "--without-gateway").out == "outer; inner\n"
            assert [request.path for request in outer.asked if "inner" in request.path] == []
            assert [request for request in outer.asked if "authorization" in request.headers] == []
            downloads = [
                request.headers.get("authorization") for request in inner.asked if request.path.endswith(".tgz")
            ]
            # A repository may not have a token of the user sent without encryption.
            assert downloads[-1] == (None if named_by == "project" else "Bearer t0ken")

    def test_attack_a_scope_with_a_forbidden_registry_does_not_fall_back_to_the_default(self, tmp_path: Path) -> None:
        from tests.cli.artifact_world import npm_library, npm_server

        world = World(folder=tmp_path / "w", variables={})
        for folder in (world.root, world.folder / "home"):
            folder.mkdir(parents=True)
        usual = {
            "acme-outer": npm_server("acme-outer", says="outer", needs={"@corp/inner": "1.0.0"}),
            "acme-alone": npm_server("acme-alone", says="alone"),
            "@corp/inner": npm_library("@corp/inner", says="evil"),
        }
        with plain_server(lambda asked: npm_answers(usual, asked)) as outer:
            (world.folder / "home" / ".npmrc").write_text(f"registry={outer.url}\n")
            (world.root / ".npmrc").write_text("@corp:registry=http://127.0.0.1:9/\n")
            world.configure(
                outer={"command": "npx", "args": ["-y", "acme-outer@1.0.0"]},
                alone={"command": "npx", "args": ["-y", "acme-alone@1.0.0"]},
            )
            world.done("init")
            code, report = world.run_json("prove")
            assert (code, codes(report)) == (3, [("could_not_check", "outer")])
            assert "127.0.0.1" in report["findings"][0]["message"]
            assert [server["server"] for server in report["servers"]] == ["alone"]
            assert [request.path for request in outer.asked if "inner" in request.path] == []


@needs_node
@needs("bwrap", install="apt-get install bubblewrap")
class TestInstallScripts:
    """One package is allowed to run its script, at one exact content."""

    FORGE = "acme-forge@1.0.0"
    SCRIPT = (
        "node -e \"const fs = require('fs'); fs.writeFileSync('made.js', 'module.exports = ' + JSON.stringify("
        "Object.keys(require('os').networkInterfaces()).filter((each) => each !== 'lo')));"
        "try { fs.chmodSync('../acme-host/index.js', 0o644);"
        "fs.writeFileSync('../acme-host/index.js', 'evil') } catch { }\""
    )

    @pytest.fixture
    def forge(self, world: World) -> Iterator[tuple[World, Callable[[str], None]]]:
        """A server whose dependency makes a file of its own on installation; and a function to publish it again."""
        from tests.cli.artifact_world import npm_library, npm_server

        packages = npm_packages()
        packages["acme-host"] = npm_server("acme-host", says="host", needs={"acme-forge": "^1.0.0"})

        def publish(version: str) -> None:
            manifest, data = npm_library("acme-forge", version, says="forge", scripts={"postinstall": self.SCRIPT})
            packages["acme-forge"] = manifest, data

        publish("1.0.0")
        with plain_server(lambda asked: npm_answers(packages, asked)) as npm:
            world = replace(world, variables={**world.variables, "NPM_CONFIG_REGISTRY": npm.url})
            world.configure(host={"command": "npx", "args": ["-y", "acme-host@1.0.0"]})
            world.done("init", "--accept-all")
            yield world, publish

    def remarks(self, world: World) -> list[str]:
        return [row["code"] for row in world.run_json("ci")[1]["remarks"] if row["name"] == "host"]

    def made(self, world: World) -> list[Path]:
        return list((world.store / "environments").rglob("made.js"))

    def test_a_script_runs_only_after_approval_and_a_changed_package_loses_it(
        self, forge: tuple[World, Callable[[str], None]]
    ) -> None:
        world, publish = forge
        code, report = world.run_json("prove", "host", *PLAIN)
        left_out = [row for row in report["findings"] if row["code"] == "install_script_left_out"]
        assert (code, len(left_out)) == (0, 1)
        assert "postinstall: " in left_out[0]["message"]
        assert self.remarks(world) == ["install_script_left_out"]
        world.done("fetch", "host", *PLAIN)
        assert self.made(world) == []

        code, report = world.run_json("prove", "host", "--allow-script", self.FORGE, *PLAIN)
        assert (code, codes(report), report["servers"][0]["scripts"]) == (0, [], [])
        assert self.remarks(world) == []
        world.done("fetch", "host", *PLAIN)
        [made] = self.made(world)
        assert made.read_text() == "module.exports = []"  # no network but the loop
        assert world.done("run", "host", "--without-gateway").out == "host; forge\n"

        made.chmod(0o644)
        made.write_text("module.exports = 'evil'")
        outcome = world.done("run", "host", "--without-gateway")
        assert (outcome.out, "building it again" in outcome.err) == ("host; forge\n", True)
        assert made.read_text() == "module.exports = []"

        publish("1.0.1")
        code, report = world.run_json("update", "host", "--yes", "--allow-private")
        assert {"dependency_version", "script_approval_lost"} <= {row["code"] for row in report["changes"]}
        assert "installScripts" not in world.lock.read_text()
        world.done("fetch", "host", *PLAIN)
        assert [folder for folder in self.made(world) if "1.0.1" in (folder.parent / "package.json").read_text()] == []

    def test_approving_a_script_that_does_not_exist_is_reported(
        self, forge: tuple[World, Callable[[str], None]]
    ) -> None:
        world, _ = forge
        code, report = world.run_json("prove", "host", "--allow-script", "acme-forge@9.9.9", *PLAIN)
        assert (code, codes(report)[-1]) == (1, ("install_script_unknown", ""))
        assert "installScripts" not in world.lock.read_text()

    def test_without_a_sandbox_a_script_is_refused_unless_that_is_allowed_too(
        self, forge: tuple[World, Callable[[str], None]], tmp_path: Path
    ) -> None:
        world, _ = forge
        world.done("prove", "host", "--allow-script", self.FORGE, "--no-execute", *PLAIN)
        programs = tmp_path / "programs"
        programs.mkdir()
        for name in ("node", "sh"):
            (programs / name).symlink_to(str(shutil.which(name)))
        bare = replace(world, variables={**world.variables, "PATH": str(programs)})
        code, report = bare.run_json("fetch", "host", *PLAIN)
        assert (code, codes(report)) == (1, [("script_refused", "host")])
        assert self.made(world) == []
        # Unshut, the script of this test reaches for another package, and that is found out afterwards.
        code, report = bare.run_json("fetch", "host", "--scripts-without-sandbox", *PLAIN)
        assert (code, codes(report)) == (3, [("script_failed", "host")])
        assert "acme-host/index.js" in report["findings"][0]["message"]
        assert self.made(world) == []


# The registries that this machine's own package clients reach

REAL = {
    "everything": ("npx", ["-y", "@modelcontextprotocol/server-everything@2026.8.31"], "echo"),
    "files": ("npx", ["-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "."], "list_directory"),
    "time": ("uvx", ["mcp-server-time==2026.8.18", "--local-timezone", "UTC"], "get_current_time"),
    "git": ("uvx", ["mcp-server-git==2026.8.18"], "git_status"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Servers that were proved and built, and what was reported of that."""

    world: World
    names: tuple[str, ...]
    reports: dict[str, tuple[int, Any]]


@pytest.fixture(
    scope="session",
    params=[("everything", "time"), pytest.param(("files", "git"), marks=pytest.mark.soak)],
    ids="-".join,
)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A published server of each kind, proved and built once for all workers."""
    from pinwarden.system.files import hold_write_lock

    names = request.param
    shared = tmp_path_factory.getbasetemp()
    shared = (shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared) / f"real-servers-{names[0]}"
    world = World(folder=shared, variables={"HOME": str(Path.home())})
    with hold_write_lock(shared, wait_seconds=250):
        if not shared.exists():
            world.root.mkdir(parents=True)
            world.configure(**{name: {"command": REAL[name][0], "args": REAL[name][1]} for name in names})
            world.done("init", "--scope", "project")
            made = {"prove": world.run_json("prove"), "fetch": world.run_json("fetch", "--frozen")}
            (shared / "reports.json").write_text(json.dumps(made))
    reports = json.loads((shared / "reports.json").read_text())
    if any(code == 3 for code, _ in reports.values()):
        missing("a connection to the registries of npm and PyPI", f"npm ping; pip index versions pip ({reports})")
    return Published(world=world, names=names, reports=reports)


def tools_of(world: World, server: str, before: tuple[str, ...] = ()) -> list[str]:
    """The tools that our own probe hears from a server that is started by ``pinwarden run``."""
    passed = ("--pass-env", "PINWARDEN_STORE", "--pass-env", "PINWARDEN_STATE")
    probe = (*PINWARDEN, "inspect", "--allow-execute", "--format", "json", *passed)
    done = subprocess.run(
        [*before, *probe, "--", *PINWARDEN, "run", server],
        cwd=world.root,
        env={**os.environ, **world.environment},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return [tool["name"] for tool in json.loads(done.stdout)["surface"]["tools"]]


def without_network() -> tuple[str, ...]:
    for words in (("unshare", "-rn"), ("bwrap", "--dev-bind", "/", "/", "--unshare-net")):
        if (
            shutil.which(words[0])
            and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
        ):
            return words
    missing("a way to start a program without network", "apt-get install bubblewrap")


@needs_node
@pytest.mark.timeout(300)  # one worker fetches for all
class TestRealRegistries:
    def test_published_servers_are_proved_and_built_and_the_reports_match_their_schemas(self, real: Published) -> None:
        assert set(real.reports) == {"prove", "fetch"}
        for command, (code, report) in real.reports.items():
            assert (code, problems(command, report)) == (0, [])
            assert sorted(row["server"] for row in report["servers"]) == sorted(real.names)
        hashes = {row["server"]: row["hash"] for row in real.reports["prove"][1]["api_surfaces"]}
        assert sorted(hashes) == sorted(real.names)
        assert None not in hashes.values()  # they start in a sandbox without network

    def test_a_published_server_runs_from_verified_bytes(self, real: Published) -> None:
        for server in real.names:
            assert REAL[server][2] in tools_of(real.world, server)

    def test_a_published_server_runs_where_there_is_no_network(self, real: Published) -> None:
        for server in real.names:
            assert REAL[server][2] in tools_of(real.world, server, without_network())


def test_a_program_that_cannot_be_started_is_an_error_with_a_hint_and_not_ours(tmp_path: Path) -> None:
    image = f"registry.example/acme/notes@sha256:{'0' * 64}"
    servers = {"notes": {"command": "docker", "args": ["run", "-i", "--rm", image]}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text("#!/no/such/interpreter\n")
    (programs / "docker").chmod(0o755)
    env = {"HOME": str(tmp_path / "home"), "PATH": str(programs)}
    assert pinwarden("init", "--by", "ada", cwd=tmp_path, env=env).code == 0
    outcome = pinwarden("run", "notes", cwd=tmp_path, env=env)
    assert outcome.code == 3
    assert "[PROGRAM_UNKNOWN]" in outcome.err
