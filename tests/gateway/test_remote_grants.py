"""``pinwarden remote``, ``pinwarden run`` and probes with a real server that demands tokens of a real provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.cli.run import Outcome
from tests.docs.schemas import problems
from tests.gateway.test_gateway_command import Project
from tests.support.oidc_provider import SECRET, Browser, needs_node
from tests.support.protected import ProtectedServer, protected_server

pytestmark = needs_node


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtectedServer]:
    with protected_server(tmp_path_factory.mktemp("server")) as running:
        yield running


class World(Project):
    """A project with a remote server that demands tokens."""

    def __init__(self, root: Path, server: ProtectedServer) -> None:
        super().__init__(root)
        self.server = server
        (root / "home").mkdir()
        self.lock({"notes": {"type": "http", "url": server.url}}, unasked=True)
        self.configure()

    def configure(self, **more: Any) -> None:
        (self.root / "pinwarden.toml").write_text(self.server.settings(**more))

    def connect(self, user: str, *more: str, before: Callable[[str], None] = lambda _: None) -> Outcome:
        """Run ``pinwarden remote connect``, and log in with a browser at the address that it prints."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pinwarden", "remote", "connect", "notes", "--format", "json", *more],
            cwd=self.root,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("http"):
                before(line.strip())
                back = self.server.log_in(line.strip(), user)
                Browser().get(back)
                break
        out, err = process.communicate(timeout=60)
        return Outcome(code=process.returncode, out=out, err=said + err)

    def call(self, *tools: str) -> list[str]:
        """Call tools through ``pinwarden run``. Returns the text of each result or error."""

        async def use() -> list[str]:
            parameters = StdioServerParameters(
                command=sys.executable,
                args=["-m", "pinwarden", "run", "notes"],
                env={**os.environ, **self.environment},
                cwd=self.root,
            )
            texts = []
            async with Client(stdio_client(parameters), mode="legacy") as client:
                for tool in tools:
                    try:
                        result: Any = await client.call_tool(tool, {})
                        texts.append(result.content[0].text)
                    except Exception as err:  # noqa: BLE001 - the text is what the user sees
                        texts.append(str(err))
            return texts

        try:
            return anyio.run(use)
        except BaseException as err:  # noqa: BLE001
            return [_flatten(err)]

    def grants(self) -> Any:
        listed = json.loads(self("remote", "list", "--format", "json").out)
        assert problems("remote-list", listed) == []
        return listed["grants"]

    def events(self) -> list[tuple[str, str]]:
        done = self("audit", "tail", "--format", "json")
        facts = [entry["fact"] for entry in json.loads(done.out)["entries"]]
        return [(fact["kind"], fact.get("by", "")) for fact in facts if fact["kind"].startswith("grant_")]


def _flatten(err: BaseException) -> str:
    inner = getattr(err, "exceptions", ())
    return " ".join(map(_flatten, inner)) if inner else str(err)


@pytest.fixture
def world(tmp_path: Path, server: ProtectedServer) -> World:
    return World(tmp_path, server)


def test_a_developer_connects_a_server_approves_it_and_uses_it(world: World) -> None:
    done = world("approve", "notes", "--yes")
    assert done.code == 3
    done = world.connect("alice")
    assert (done.code, json.loads(done.out)["grant"]["scopes"]) == (0, ["tools:read"])
    assert problems("remote-connect", json.loads(done.out)) == []
    world.approve("notes")
    assert world.call("whoami") == ["alice"]
    assert world.events() == [("grant_added", "tester")]
    key = world.root / "state" / "grants.key"
    assert key.stat().st_mode & 0o777 == 0o600
    (grant,) = world.grants()
    assert (grant["server"], grant["owner"]["issuer"], grant["problem"]) == ("notes", "local", None)


def test_no_output_log_or_database_has_a_token(world: World) -> None:
    seen: list[str] = []
    done = world.connect("alice", before=seen.append)
    world.approve("notes")
    world.call("whoami", "write")
    listed = world("remote", "list")
    said = f"{done.out}{done.err}{listed.out}{listed.err}{world('audit', 'export').out}"
    assert "eyJ" not in said.replace(seen[0], ""), "an access token is a JWT"
    for file in (world.root / "state").rglob("*"):
        if file.is_file():
            assert b"eyJ" not in file.read_bytes(), file


def test_step_up_names_the_command_that_asks_for_more(world: World) -> None:
    world.connect("alice")
    world.approve("notes")
    (refusal,) = world.call("write")
    assert "notes needs more permissions (tools:call). Run: pinwarden remote connect notes" in refusal
    assert "needs more scopes" in world("remote", "list").out
    assert json.loads(world.connect("alice").out)["grant"]["scopes"] == ["tools:read", "tools:call"]
    assert world.call("write", "whoami") == ["alice", "alice"]


def test_a_server_that_is_not_connected_says_how(world: World) -> None:
    world.connect("alice")
    world.approve("notes")
    before = len(world.server.subjects)
    done = world("remote", "forget", "notes", "--format", "json")
    assert (done.code, problems("remote-forget", json.loads(done.out))) == (0, [])
    assert world.grants() == []
    (refusal,) = world.call("whoami")
    assert "'notes' is not connected for this user. Run: pinwarden remote connect notes" in refusal
    assert len(world.server.subjects) == before
    assert world.events() == [("grant_added", "tester"), ("grant_removed", "tester")]
    done = world("remote", "forget", "notes")
    assert (done.code, "[REMOTE_NOT_CONNECTED]" in done.err) == (1, True)
    for command in (("remote", "list"), ("status",), ("doctor",)):
        done = world(*command)
        assert "notes is not connected; run: pinwarden remote connect notes" in f"{done.out}{done.err}", command


def test_a_token_that_the_server_refuses_is_renewed_and_the_call_repeated(world: World) -> None:
    import jwt

    from pinwarden.identity.remote_tokens import RemoteTarget
    from pinwarden.project.remote_access import open_local_credential

    world.connect("alice")
    world.approve("notes")
    target = RemoteTarget(server="notes", url=world.server.url)
    credential = open_local_credential(target, world.environment, world.root / "home")
    token = credential.load()
    assert token is not None
    world.server.revoke(jwt.decode(token.access_token, options={"verify_signature": False})["jti"])
    assert world.call("whoami") == ["alice"]


def test_registration_needs_consent(world: World) -> None:
    world.configure(**{"issuer": None, "client-id": None})
    done = world("remote", "connect", "notes")
    assert (done.code, "[REMOTE_REFUSED]" in done.err, "Add --register" in done.err) == (1, True, True)
    grant = json.loads(world.connect("alice", "--register").out)["grant"]
    assert (grant["issuer"], grant["client_id"] != "desk") == (world.server.provider.issuer, True)
    world.approve("notes")
    assert world.call("whoami") == ["alice"]


def test_a_machine_uses_its_own_account(world: World) -> None:
    more = {"account": "machine", "client-id": "robot", "client-secret-variable": "PINWARDEN_NOTES_SECRET"}
    world.configure(**more, scopes=["tools:read"])
    world.environment["PINWARDEN_NOTES_SECRET"] = SECRET
    world.approve("notes")
    assert world.call("whoami") == ["robot"]
    assert not (world.root / "state" / "grants.key").exists()


def test_a_wrong_key_is_an_error_with_a_hint(world: World) -> None:
    world.connect("alice")
    world.approve("notes")
    world.environment["PINWARDEN_GRANT_KEY"] = "C" * 43 + "="
    (refusal,) = world.call("whoami")
    assert "the token was encrypted with another key. Set PINWARDEN_GRANT_KEY" in refusal
    done = world("approve", "notes", "--yes")
    assert (done.code, "[GRANT_KEY_INVALID]" in done.err) == (2, True)


def test_a_gateway_on_postgresql_does_not_make_up_a_key(world: World, cluster: Any) -> None:
    done = world("remote", "connect", "notes", "--audit", cluster.new_database())
    assert (done.code, "[GRANT_KEY_INVALID]" in done.err) == (2, True)
    assert not (world.root / "state" / "grants.key").exists()


def test_options_that_contradict_the_settings_are_refused(world: World) -> None:
    assert world("remote", "connect", "notes", "--shared").code == 2
    world.configure(account="shared")
    done = world("remote", "connect", "notes")
    assert (done.code, "add --shared" in done.err) == (2, True)
    (world.root / "pinwarden.toml").write_text("[remotes.notes]\nx = 1\n")
    done = world("remote", "connect", "notes")
    assert (done.code, "[REMOTES_INVALID]" in done.err) == (2, True)
