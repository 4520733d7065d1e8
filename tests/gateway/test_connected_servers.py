"""The gateway in front of a remote server that demands tokens: every client uses its own account, and no other one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest

from pinwarden.gateway.remote_grants import find_remote_target, finish_connecting, open_remote_tokens
from pinwarden.gateway.state import GatewayState
from pinwarden.identity.grants import EVERYONE, STATIC, GrantOwner, list_grants
from pinwarden.identity.remote_tokens import RemoteTokens
from pinwarden.project.project import Project as PinwardenProject
from tests.gateway.test_gateway_command import Project, Running, running
from tests.support.oidc_provider import needs_node
from tests.support.ports import reserved_port
from tests.support.protected import ProtectedServer, protected_server
from tests.support.waiting import poll

pytestmark = needs_node
REDIRECT = "http://127.0.0.1/callback"


class World(Project):
    """A gateway as a process, a server that demands tokens, and the grants in the gateway's database."""

    gateway: Running

    def __init__(self, root: Path, server: ProtectedServer) -> None:
        super().__init__(root)
        self.server = server
        (root / "home").mkdir()
        self.environment["PINWARDEN_GRANT_KEY"] = "A" * 43 + "="
        self.lock({"notes": {"type": "http", "url": server.url}}, unasked=True)
        self.state = GatewayState(root / "state")
        self.project = PinwardenProject(
            root=root, lock=root / "mcp-lock.json", home=root / "home", system="linux", variables=self.environment
        )

    @property
    def tokens(self) -> RemoteTokens:
        return open_remote_tokens(self.state, self.environment)

    def connect(self, owner: GrantOwner, user: str) -> None:
        """Connect as a person does on the dashboard."""
        tokens = self.tokens
        pending, url = tokens.begin(find_remote_target(self.project, "notes"), owner, REDIRECT)
        finish_connecting(self.state, tokens, pending, urlsplit(self.server.log_in(url, user)).query, user)

    def access(self, owner: GrantOwner) -> dict[str, Any]:
        """The claims of the token that an owner's requests carry."""
        token = self.tokens.get(find_remote_target(self.project, "notes"), owner).access_token
        return dict(jwt.decode(token, options={"verify_signature": False}))

    def client_token(self, name: str) -> str:
        done = self("gateway", "token", "add", name, "--format", "json")
        token = str(json.loads(done.out)["token"])
        poll(lambda: self.gateway.ask("notes", token)[0] != 401)
        return token

    def connected_client(self, name: str, user: str) -> str:
        """A client whose calls the server receives as the user's."""
        if static(name) not in [grant.owner for grant in list_grants(self.state.grants_database)]:
            self.connect(static(name), user)
        token = self.client_token(name)
        poll(lambda: self.call(token) == user)
        return token

    def call(self, token: str, tool: str = "whoami") -> str:
        """Call a tool in the stateless era. Returns the text of the result or error."""
        _, answer = self.gateway.ask("notes", token, "tools/call", name=tool, arguments={})
        if "error" in answer:
            return str(answer["error"]["message"])
        return str(answer["result"]["content"][0]["text"])


def static(name: str) -> GrantOwner:
    return GrantOwner(issuer=STATIC, subject=name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    port = reserved_port()
    with protected_server(tmp_path_factory.mktemp("server"), gateway=f"http://127.0.0.1:{port}") as server:
        world = World(tmp_path_factory.mktemp("gateway"), server)
        settings = world.root / "pinwarden.toml"
        settings.write_text(server.settings())
        local = GrantOwner(issuer="local", subject=world.state.read_host_id())
        world.connect(local, "victor")
        world.approve("notes")  # with the account of the operator
        settings.write_text(
            f"""{server.settings()}
[identity]
issuer = "{server.provider.issuer}"
[identity.clients]
url = "http://127.0.0.1:{port}"
"""
        )
        options = ("--listen", f"127.0.0.1:{port}", "--dashboard-url", "https://pinwarden.example")
        with running(world, *options) as process:
            world.gateway = process
            yield world
        world.state.close()


@pytest.fixture
def alice(world: World) -> str:
    return world.connected_client("alice-laptop", "alice")


@pytest.fixture
def bob(world: World) -> str:
    return world.connected_client("bob-laptop", "bob")


def test_every_client_uses_the_account_of_its_person(world: World, alice: str, bob: str) -> None:
    assert world.call(alice) == "alice"
    assert world.call(bob) == "bob"
    assert world.call(alice) == "alice"


def test_attack_confused_deputy_many_calls_at_once_carry_the_right_token(world: World, alice: str, bob: str) -> None:
    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(world.call, [alice, bob] * 40))
    assert texts == ["alice", "bob"] * 40


def test_attack_a_client_without_a_grant_gets_no_other_token(world: World, alice: str) -> None:
    assert world.call(alice) == "alice"
    stranger = world.client_token("stranger")
    before = len(world.server.subjects)
    assert "'notes' is not connected for this user. Run: pinwarden remote connect notes --for stranger" in world.call(
        stranger
    )
    assert len(world.server.subjects) == before


def test_attack_a_static_token_with_the_name_of_a_person_is_not_that_person(world: World) -> None:
    issuer = world.server.provider.issuer
    world.connect(GrantOwner(issuer=issuer, subject="robot"), "carol")
    token = world.server.provider.client_token(resource=f"http://127.0.0.1:{world.gateway.port}/mcp")
    assert world.call(token) == "carol"
    assert "is not connected" in world.call(world.client_token("robot"))
    assert "is not connected" in world.call(world.client_token("carol"))


def test_a_person_of_the_issuer_is_sent_to_the_dashboard(world: World) -> None:
    for grant in list_grants(world.state.grants_database):
        if grant.owner_subject == "robot":
            world.tokens.forget(grant, None)
    token = world.server.provider.client_token(resource=f"http://127.0.0.1:{world.gateway.port}/mcp")
    poll(lambda: "Connect it at https://pinwarden.example, on the page Remotes." in world.call(token))


def test_a_refused_token_is_renewed_and_the_call_repeated(world: World, alice: str, bob: str) -> None:
    assert world.call(alice) == "alice"
    before = world.access(static("alice-laptop"))["jti"]
    world.server.revoke(before)
    assert world.call(alice) == "alice"
    assert world.access(static("alice-laptop"))["jti"] != before
    assert world.call(bob) == "bob"


def test_step_up_names_the_scopes_and_the_command(world: World, alice: str) -> None:
    refusal = world.call(alice, "write")
    assert (
        "notes needs more permissions (tools:call). Run: pinwarden remote connect notes --for alice-laptop" in refusal
    )
    world.connect(static("alice-laptop"), "alice")  # with the scopes that were asked for
    poll(lambda: world.call(alice, "write") == "alice")


def test_reconnecting_with_another_account_ends_what_the_earlier_one_began(world: World) -> None:
    alice = world.connected_client("alice-desk", "alice")
    world.connect(static("alice-desk"), "carol")
    seen: list[str] = []

    def changed() -> bool:
        seen.append(world.call(alice))
        return seen[-1] == "carol"

    poll(changed)
    assert set(seen) <= {"alice", "carol"} | {text for text in seen if "connected again" in text}


def test_forgetting_takes_effect_in_a_running_gateway(world: World) -> None:
    alice = world.connected_client("alice-phone", "alice")
    done = world("remote", "forget", "notes", "--for", "alice-phone")
    assert done.code == 0, done.err
    poll(lambda: "is not connected for this user" in world.call(alice))
    before = world.server.subjects.count("alice")
    world.call(alice)
    assert world.server.subjects.count("alice") == before


def test_a_session_of_the_handshake_era_keeps_its_account(world: World, alice: str, bob: str) -> None:
    import anyio
    import httpx2
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    async def use(token: str) -> list[str]:
        url = f"http://127.0.0.1:{world.gateway.port}/mcp/notes"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
        ):
            results: list[Any] = [await client.call_tool("whoami", {}) for _ in range(3)]
            return [result.content[0].text for result in results]

    async def use_both() -> list[list[str]]:
        found: list[list[str]] = [[], []]

        async def store(place: int, token: str) -> None:
            found[place] = await use(token)

        async with anyio.create_task_group() as group:
            group.start_soon(store, 0, alice)
            group.start_soon(store, 1, bob)
        return found

    assert anyio.run(use_both) == [["alice"] * 3, ["bob"] * 3]


def test_attack_confused_deputy_at_the_address_of_all_servers(world: World, alice: str, bob: str) -> None:
    def call(token: str) -> str:
        _, answer = world.gateway.ask("", token, "tools/call", name="notes__whoami", arguments={})
        return str(answer["result"]["content"][0]["text"])

    assert [call(token) for token in (alice, bob, alice)] == ["alice", "bob", "alice"]


def test_a_shared_account_serves_all_clients_only_with_the_setting(world: World) -> None:
    stranger = world.client_token("visitor")
    settings = world.root / "pinwarden.toml"
    before = settings.read_text()
    settings.write_text(before.replace("[remotes.notes]", '[remotes.notes]\naccount = "shared"'))
    try:
        world.connect(EVERYONE, "victor")
        poll(lambda: world.call(stranger) == "victor")
    finally:
        settings.write_text(before)
    poll(lambda: "is not connected for this user" in world.call(stranger))


def test_no_log_and_no_audit_entry_has_a_token(world: World, alice: str) -> None:
    world.call(alice)
    world.call(alice, "write")
    exported = world("audit", "export").out
    assert "grant_added" in exported
    for text in (exported, world.gateway.said):
        assert "eyJ" not in text, "an access token is a JWT"
