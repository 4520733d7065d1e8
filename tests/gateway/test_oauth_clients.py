"""Published MCP clients get an access token from a real OpenID provider, and use the gateway with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from fastmcp import Client as FastMcpClient
from fastmcp.client.auth import OAuth
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.gateway.test_gateway_command import Project, Running, running
from tests.servers import talking
from tests.support.oidc_provider import Browser, OidcProvider, SigningKey, needs_node, oidc_provider
from tests.support.ports import reserved_port
from tests.support.waiting import poll

pytestmark = needs_node
KEYS = [SigningKey("k1"), SigningKey("k2")]


class World:
    """A gateway as a process with one server, and the provider that it trusts."""

    def __init__(self, project: Project, provider: OidcProvider, gateway: Running) -> None:
        self.project = project
        self.provider = provider
        self.gateway = gateway
        self.url = f"http://127.0.0.1:{gateway.port}"

    def expect_in_audit_log(self, client: str) -> None:
        """Wait until the audit log has a call of a client: events reach it shortly after the call."""

        def is_there() -> bool:
            done = self.project("audit", "tail", "--kind", "called", "--format", "json")
            return client in {entry["fact"]["client"] for entry in json.loads(done.out)["entries"]}

        poll(is_there)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("gateway")
    project = Project(root)
    command = {"command": sys.executable, "args": ["-I", "-S", talking.__file__, str(root / "record")]}
    project.lock({"notes": command})
    port = reserved_port()
    with oidc_provider(
        tmp_path_factory.mktemp("provider"), gateway=f"http://127.0.0.1:{port}", keys=KEYS[:1]
    ) as provider:
        (root / "pinwarden.toml").write_text(
            f"""
[identity]
issuer = "{provider.issuer}"
[identity.clients]
url = "http://127.0.0.1:{port}"
read-scope = "tools:read"
call-scope = "tools:call"
"""
        )
        with running(project, "--allow-execute", "--listen", f"127.0.0.1:{port}") as process:
            yield World(project, provider, process)


class Stored(TokenStorage):
    """What a client keeps: its registration and its tokens."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.client = client
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


REDIRECT = "http://127.0.0.1:18643/callback"


def sdk_login(world: World, server: str, user: str, *, registered: bool) -> tuple[OAuthClientProvider, Stored]:
    """The official client's OAuth, with a person who logs in. Otherwise the client registers itself first."""
    back: list[str] = []

    async def to_browser(url: str) -> None:
        back.append(await anyio.to_thread.run_sync(Browser().log_in, url, user, world.provider.issuer))

    async def from_browser() -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(back[-1]).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0], iss=query["iss"][0])

    about: dict[str, Any] = {
        "redirect_uris": [AnyUrl(REDIRECT)],
        "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token"],
    }
    metadata = OAuthClientMetadata(client_name="tests", application_type="native", **about)
    storage = Stored(
        OAuthClientInformationFull(client_id="desk", issuer=world.provider.issuer, **about) if registered else None
    )
    url = f"{world.url}/mcp/{server}".rstrip("/")
    return OAuthClientProvider(url, metadata, storage, to_browser, from_browser), storage


@pytest.mark.parametrize(("server", "registered"), [("notes", True), ("", False)])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_official_client_logs_in_and_calls_a_tool(world: World, server: str, registered: bool, mode: str) -> None:
    login, storage = sdk_login(world, server, "alice", registered=registered)

    async def use() -> tuple[list[str], Any]:
        url = f"{world.url}/mcp/{server}".rstrip("/")
        async with httpx2.AsyncClient(auth=login, timeout=60) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode=mode) as client:
                tools = await client.list_tools()
                name = "echo" if server else "notes__echo"
                return [tool.name for tool in tools.tools], await client.call_tool(name, {"a": 1})

    names, result = anyio.run(use)
    assert ("echo" if server else "notes__echo") in names
    assert not result.is_error
    assert storage.tokens is not None
    assert storage.client is not None
    world.expect_in_audit_log(f"alice@{storage.client.client_id}")
    assert storage.tokens.access_token not in world.gateway.said


class LoggedIn(OAuth):
    """fastmcp's OAuth, with a person at the browser that it opens."""

    issuer = ""

    async def redirect_handler(self, authorization_url: str) -> None:
        browser = Browser()

        def reaches(url: str) -> bool:
            try:
                return browser.get(url) == 200
            except OSError:
                return False

        def log_in() -> None:
            back = browser.log_in(authorization_url, "carol", self.issuer)
            poll(lambda: reaches(back))  # the client listens only after it has opened the browser

        self.person = Thread(target=log_in)
        self.person.start()


@pytest.mark.filterwarnings("ignore:Using in-memory token storage")
def test_fastmcp_logs_in_and_calls_a_tool(world: World) -> None:
    login = LoggedIn(client_id="desk", callback_host="127.0.0.1")
    login.issuer = world.provider.issuer

    async def use() -> Any:
        async with FastMcpClient(f"{world.url}/mcp/notes", auth=login) as client:
            return await client.call_tool("echo", {"a": 1})

    assert not anyio.run(use).is_error
    login.person.join(60)
    world.expect_in_audit_log("carol@desk")


def test_a_client_gets_a_token_for_itself(world: World) -> None:
    for path in ("mcp", "mcp/notes"):
        token = world.provider.client_token(resource=f"{world.url}/{path}")
        assert "echo" in world.gateway.names("notes", token)
    assert world.gateway.ask("", token)[0] == 401
    reader = world.provider.client_token(resource=f"{world.url}/mcp", scope="tools:read")
    assert world.gateway.ask("notes", reader, "tools/call", name="echo", arguments={})[0] == 403
    assert world.gateway.ask("notes", world.provider.client_token())[0] == 401, "an opaque token"


def test_changed_settings_of_the_issuer_take_effect_while_the_gateway_runs(world: World) -> None:
    token = world.provider.client_token(resource=f"{world.url}/mcp")
    file = world.project.root / "pinwarden.toml"
    before = file.read_text()
    assert world.gateway.ask("notes", token)[0] == 200
    try:
        file.write_text(before.replace('"tools:call"', '"other"').replace('"tools:read"', '"more"'))
        poll(lambda: world.gateway.ask("notes", token)[0] == 403)
        file.write_text(before)
        poll(lambda: world.gateway.ask("notes", token)[0] == 200)
        file.write_text(before.replace("[identity.clients]\n", "[identity.clients]\nx = 1\n"))
        poll(lambda: world.gateway.ask("notes", token)[0] == 503)
        assert "identity.clients.x is not a known key" in world.gateway.said
    finally:
        file.write_text(before)
    poll(lambda: world.gateway.ask("notes", world.provider.client_token(resource=f"{world.url}/mcp"))[0] == 200)
