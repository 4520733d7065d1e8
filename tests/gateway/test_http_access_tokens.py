"""The gateway as an OAuth resource server: what a client is told, and which access tokens are refused."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.resource_server import ResourceServer, name_client
from pinwarden.identity.issuer import Issuer
from pinwarden.identity.settings import IdentitySettings, identity_from_table
from tests.gateway.http_gateway import (
    TOKEN,
    EventStream,
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    last_message,
    stateless_request,
)
from tests.gateway.session_harness import approved_surface
from tests.identity.issuer_server import IssuerServer, issuer_server
from tests.servers.turning_http import TurningWorld, turning_http
from tests.support.oidc_provider import SigningKey, encode_part

URL = "https://mcp.example.com"
METADATA = "/.well-known/oauth-protected-resource"
TOOLS = [{"name": "search_notes", "description": "Search.", "inputSchema": {"type": "object"}}]
HONEST = {"tools": TOOLS}
KEY, NEW_KEY = SigningKey("k1"), SigningKey("k2")


class Scene:
    """A gateway with the servers ``notes`` and ``other``, an issuer, and two clocks."""

    def __init__(self, running: RunningGateway, issuer: IssuerServer, recorder: InMemoryRecorder, world: TurningWorld):
        self.gateway = running
        self.issuer = issuer
        self.recorder = recorder
        self.world = world
        self.wall = time.time()
        self.machine = 1000.0
        self.verifier: ResourceServer

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(self.wall)
        claims = {
            "iss": self.issuer.url,
            "sub": "alice",
            "aud": f"{URL}/mcp",
            "client_id": "desk",
            "scope": "tools:read tools:call",
            "groups": ["platform"],
            "iat": now,
            "exp": now + 300,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def sign(self, header: Mapping[str, Any] | None = None, /, key: SigningKey = KEY, **changes: Any) -> str:
        return key.sign(self.claims(**changes), header)

    def ask(self, token: str, server: str = "notes", method: str = "tools/list", **params: Any) -> tuple[int, str, Any]:
        """Send a request. Returns the status, the challenge and the JSON-RPC response."""
        with RawClient(self.gateway, server, token) as raw:
            status, headers, body = raw.send(*stateless_request(method, params))
            return status, headers.get("www-authenticate", ""), last_message(headers, body)

    def names(self, token: str, server: str = "notes") -> list[str]:
        status, _, answer = self.ask(token, server)
        assert status == 200, answer
        return [tool["name"] for tool in answer["result"]["tools"]]

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection(self.gateway.host, self.gateway.port, timeout=60)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def settings(issuer: str, **clients: Any) -> IdentitySettings:
    scopes = {"read-scope": "tools:read", "call-scope": "tools:call", "metrics-scope": "metrics"}
    return identity_from_table({"issuer": issuer, "clients": {"url": URL, **scopes, **clients}}, {})


@contextmanager
def scene(
    *, keys: tuple[SigningKey, ...] = (KEY,), clients: Mapping[str, GatewayClient] | None = None
) -> Iterator[Scene]:
    with ExitStack() as stack:
        issuer = stack.enter_context(issuer_server())
        issuer.publish(*keys)
        world = stack.enter_context(turning_http({"states": [HONEST]}))
        recorder = InMemoryRecorder()
        made: list[Scene] = []
        configured = settings(issuer.url)
        assert configured.clients is not None
        client = Issuer(issuer.url, clock=lambda: made[0].machine if made else 1000.0)
        verifier = ResourceServer(configured, configured.clients, client, lambda _: None)
        servers = {
            name: UpstreamServer(guard(name, approved_surface(HONEST)), url=world.url) for name in ("notes", "other")
        }

        def wall() -> float:
            return made[0].wall if made else time.time()

        running = stack.enter_context(gateway(servers, recorder, clients=clients, verifier=verifier, wall_clock=wall))
        running.endpoint.pages = {"/metrics": lambda _: (200, "text/plain", b"pinwarden")}
        at = Scene(running, issuer, recorder, world)
        at.verifier = verifier
        made.append(at)
        yield at


@pytest.fixture(scope="module")
def shared() -> Iterator[Scene]:
    with scene() as at:
        assert at.names(at.sign()) == ["search_notes"]
        yield at


@pytest.fixture
def at() -> Iterator[Scene]:
    with scene() as at:
        yield at


# What a client is told


def test_a_request_without_a_token_learns_where_to_get_one(shared: Scene) -> None:
    for server, path in (("notes", "/mcp/notes"), ("", "/mcp"), ("unknown", "/mcp/unknown")):
        with RawClient(shared.gateway, server, "") as raw:
            status, headers, _ = raw.send(
                *stateless_request("tools/list"),
            )
        assert status == 401
        where = f'resource_metadata="{URL}{METADATA}{path}"'
        assert headers["www-authenticate"] in (
            f'Bearer {where}, scope="tools:read tools:call"',
            f'Bearer error="invalid_token", {where}, scope="tools:read tools:call"',
        )
    status, answer, _ = shared.get("/mcp/notes", Accept="text/event-stream")
    assert status == 401
    assert "error" not in answer["www-authenticate"], "a request without a token is not an error of the client"


def test_the_metadata_names_the_issuer_and_exactly_the_url_of_the_client(shared: Scene) -> None:
    for path, resource in (
        ("/mcp/notes", "/mcp/notes"),
        ("/mcp", "/mcp"),
        ("", "/mcp"),
        ("/mcp/unknown", "/mcp/unknown"),
    ):
        status, headers, body = shared.get(METADATA + path)
        assert (status, headers["content-type"], headers["access-control-allow-origin"]) == (
            200,
            "application/json",
            "*",
        )
        assert json.loads(body) == {
            "resource": f"{URL}{resource}",
            "resource_name": "Pinwarden gateway",
            "authorization_servers": [shared.issuer.url],
            "bearer_methods_supported": ["header"],
            "scopes_supported": ["tools:read", "tools:call"],
        }


def test_a_web_page_may_read_the_metadata_from_any_origin(shared: Scene) -> None:
    preflight = {"Origin": "https://page.example", "Access_Control_Request_Method": "GET"}
    asked = {"Access_Control_Request_Headers": "mcp-protocol-version"}
    status, headers, _ = shared.get(f"{METADATA}/mcp/notes", "OPTIONS", **preflight, **asked)
    assert (status, headers["access-control-allow-origin"]) == (204, "*")
    assert "mcp-protocol-version" in headers["access-control-allow-headers"]
    status, headers, _ = shared.get(f"{METADATA}/mcp/notes", Origin="https://page.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
        f"{METADATA}/",
        f"{METADATA}/metrics",
        f"{METADATA}/mcp/",
        f"{METADATA}/mcp/a/b",
        f"{METADATA}/mcp/..%2f",
        f'{METADATA}/mcp/"x',
        f"{METADATA}/mcp/{'x' * 300}",
        f"{METADATA}x",
    ],
)
def test_other_well_known_addresses_do_not_exist(shared: Scene, path: str) -> None:
    assert shared.get(path)[0] == 404


def test_metadata_cannot_be_changed(shared: Scene) -> None:
    assert shared.get(METADATA, "DELETE")[0] == 405


def test_without_an_issuer_a_bare_challenge_is_sent_and_there_is_no_metadata() -> None:
    with turning_http({"states": [HONEST]}) as world:
        servers = {"notes": UpstreamServer(guard("notes", approved_surface(HONEST)), url=world.url)}
        with gateway(servers) as running, RawClient(running, "notes", "wrong") as raw:
            status, headers, _ = raw.send(*stateless_request("tools/list"))
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            with closing(http.client.HTTPConnection(running.host, running.port, timeout=60)) as connection:
                connection.request("GET", METADATA)
                assert connection.getresponse().status == 404


# Tokens that are valid


def test_an_access_token_is_used_beside_static_tokens_and_named_in_the_audit_log(at: Scene) -> None:
    assert at.names(at.sign()) == ["search_notes"]
    assert at.names(at.sign(), "") == ["notes__search_notes", "other__search_notes"]
    assert at.names(TOKEN) == ["search_notes"]
    status, _, answer = at.ask(at.sign(), method="tools/call", name="search_notes", arguments={})
    assert (status, "result" in answer) == (200, True)
    clients = {event.client for event in at.recorder.events if event.kind == "called"}
    assert clients == {"alice@desk"}


def test_no_server_gets_the_token_of_the_client(at: Scene) -> None:
    token = at.sign()
    at.names(token)
    assert at.world.bodies
    assert not any(token in repr(headers) for headers in at.world.heads)


def test_a_client_cannot_be_named_like_another_one() -> None:
    assert name_client("alice", "desk") == "alice@desk"
    assert name_client("alice", "x@desk") == "alice@x%40desk"
    assert name_client("alice@x", "desk") == "alice@x@desk"
    assert name_client("alice", "x%40desk") == "alice@x%2540desk"


def test_a_renewed_token_continues_the_session_of_the_one_before(at: Scene) -> None:
    with RawClient(at.gateway, "notes", at.sign()) as raw:
        raw.initialize()
        with RawClient(at.gateway, "notes", at.sign(jti="renewed", scope="tools:read")) as renewed:
            renewed.session = raw.session
            assert "result" in renewed.session_request("tools/list")
        for other in (at.sign(sub="mallory"), at.sign(client_id="phone"), at.sign(groups=["other"])):
            with RawClient(at.gateway, "notes", other) as thief:
                thief.session = raw.session
                thief.session_request("tools/list")
                assert thief.status == 404


# Attacks


def refused(at: Scene, token: str, server: str = "notes") -> str:
    """The reason for which the gateway refuses a token; the server sees nothing of the request."""
    before = len(at.world.bodies)
    status, challenge, answer = at.ask(token, server)
    assert status == 401, answer
    assert challenge.startswith('Bearer error="invalid_token", resource_metadata="https://')
    assert len(at.world.bodies) == before
    message: str = answer["error"]["message"]
    assert token not in message
    return message


def test_attack_1_a_token_without_a_signature_is_refused(shared: Scene) -> None:
    for algorithm in ("none", "None", "NONE"):
        head = encode_part({"alg": algorithm, "kid": "k1", "typ": "at+jwt"})
        for signature in ("", "eA"):
            assert "refused" in refused(shared, f"{head}.{encode_part(shared.claims())}.{signature}")


def test_attack_2_a_token_signed_with_the_public_key_as_a_secret_is_refused(shared: Scene) -> None:
    head = f"{encode_part({'alg': 'HS256', 'kid': 'k1', 'typ': 'at+jwt'})}.{encode_part(shared.claims())}"
    signature = hmac.new(KEY.public_pem, head.encode(), hashlib.sha256).digest()
    assert "HS256" in refused(shared, f"{head}.{encode_part(signature)}")


@pytest.mark.parametrize(
    "audience", ["https://other.example/mcp", "desk", f"{URL}/mcpx", f"{URL}/", URL, None, [], f"{URL}/MCP/notes"]
)
def test_attack_3_a_token_for_another_audience_is_refused(shared: Scene, audience: Any) -> None:
    refused(shared, shared.sign(aud=audience))


def test_attack_3_a_token_for_one_server_is_refused_at_another_and_at_all(shared: Scene) -> None:
    token = shared.sign(aud=f"{URL}/mcp/notes")
    assert shared.names(token) == ["search_notes"]
    for server in ("other", "", "notes/", "notes/other", "Notes"):
        assert "another server" in refused(shared, token, server)
    assert shared.get("/metrics", Authorization=f"Bearer {token}")[0] == 401
    assert shared.names(shared.sign(aud=[f"{URL}/mcp/notes", f"{URL}/mcp/other"]), "other") == ["search_notes"]


def test_attack_4_a_token_of_another_issuer_is_refused(shared: Scene) -> None:
    assert "https://evil.example" in refused(shared, shared.sign(iss="https://evil.example"))
    assert "signature" in refused(shared, NEW_KEY.sign(shared.claims(), {"kid": "k1"}))


def test_attack_5_an_expired_token_is_refused_also_on_the_cached_route(at: Scene) -> None:
    token = at.sign()
    for _ in range(3):
        assert at.ask(token, method="tools/call", name="search_notes", arguments={})[0] == 200
    with RawClient(at.gateway, "notes", token) as raw:
        call = stateless_request("tools/call", {"name": "search_notes", "arguments": {}})
        for _ in range(3):
            assert raw.send(*call)[0] == 200
        assert at.gateway.endpoint.routes
        at.wall += 359
        assert raw.send(*call)[0] == 200
        at.wall += 2
        assert raw.send(*call)[0] == 401
    assert "expired" in refused(at, token)


def test_attack_5_a_stream_ends_when_the_token_expires_and_the_session_continues_with_a_new_one(at: Scene) -> None:
    access, manager = at.gateway.endpoint.access, at.gateway.manager

    def expire() -> None:
        manager.end_streams_of(access.forget_expired())

    with RawClient(at.gateway, "notes", at.sign()) as raw:
        raw.initialize()
        with EventStream(at.gateway, raw.session, "notes", token=raw._token) as stream:
            assert stream.status == 200
            at.gateway.call_on_loop(expire)
            at.wall += 400
            at.gateway.call_on_loop(expire)
            assert stream.next() is None
        assert raw.send(b"{}")[0] == 401
        with RawClient(at.gateway, "notes", at.sign()) as renewed:
            renewed.session = raw.session
            assert "result" in renewed.session_request("tools/list")


def test_attack_6_a_flood_of_unknown_keys_causes_one_fetch(at: Scene) -> None:
    assert at.names(at.sign()) == ["search_notes"]
    at.machine += 60
    before = at.issuer.requests["/jwks"]
    for number in range(20):
        refused(at, at.sign({"kid": f"../../{number}"}))
    assert at.issuer.requests["/jwks"] == before + 1


def test_a_new_key_is_fetched_while_the_request_waits_and_a_withdrawn_one_is_refused(at: Scene) -> None:
    old = at.sign()
    assert at.names(old) == ["search_notes"]
    at.issuer.publish(NEW_KEY)
    at.machine += 60
    assert at.names(at.sign(key=NEW_KEY)) == ["search_notes"]
    at.gateway.call_on_loop(at.gateway.endpoint.access.forget_verified)
    assert "no key" in refused(at, old)


def test_attack_14_a_token_counts_only_in_one_header(shared: Scene) -> None:
    token = shared.sign()
    body, headers = stateless_request("tools/list", {"access_token": token})
    with closing(http.client.HTTPConnection(shared.gateway.host, shared.gateway.port, timeout=60)) as connection:
        connection.request(
            "POST", f"/mcp/notes?access_token={token}", body, {**headers, "Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        assert (answer.status, token.encode() in answer.read()) == (401, False)
    with closing(http.client.HTTPConnection(shared.gateway.host, shared.gateway.port, timeout=60)) as connection:
        connection.putrequest("POST", "/mcp/notes")
        for value in (f"Bearer {token}", f"Bearer {token}"):
            connection.putheader("Authorization", value)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        assert connection.getresponse().status == 400


@pytest.mark.parametrize("header", [{"typ": "oauth-id-jag+jwt"}, {"typ": "logout+jwt"}])
def test_attack_15_another_kind_of_token_is_refused(shared: Scene, header: Mapping[str, Any]) -> None:
    refused(shared, shared.sign(header))


def test_attack_15_an_id_token_is_refused(shared: Scene) -> None:
    refused(shared, shared.sign({"typ": "JWT"}, nonce="n"))


def test_attack_15_calls_need_their_scope_and_the_challenge_asks_for_all_at_once(shared: Scene) -> None:
    token = shared.sign(scope="tools:read")
    assert shared.names(token) == ["search_notes"]
    for server in ("notes", ""):
        before = len(shared.world.bodies)
        status, challenge, answer = shared.ask(token, server, "tools/call", name="search_notes", arguments={})
        path = f"/mcp/{server}".rstrip("/")
        assert (status, len(shared.world.bodies)) == (403, before), answer
        assert challenge == (
            f'Bearer error="insufficient_scope", resource_metadata="{URL}{METADATA}{path}", '
            'scope="tools:read tools:call"'
        )
    assert shared.ask(token, method="tasks/get", taskId="x")[0] == 403
    assert shared.ask(shared.sign(scope="TOOLS:CALL other"))[0] == 403
    assert shared.ask(shared.sign(scope=None))[0] == 403
    assert shared.names(shared.sign(scope="tools:call")) == ["search_notes"], "the scope for calls includes lists"


def test_metrics_need_their_own_scope(shared: Scene) -> None:
    assert shared.get("/metrics", Authorization=f"Bearer {shared.sign()}")[0] == 403
    status, _, body = shared.get("/metrics", Authorization=f"Bearer {shared.sign(scope='metrics tools:read')}")
    assert (status, b"pinwarden" in body) == (200, True)


def test_a_static_token_has_an_expiry_and_scopes_too() -> None:
    clients = {
        "pwt_reader": GatewayClient(name="reader", token="r", scopes=frozenset({"read"})),
        "pwt_brief": GatewayClient(name="brief", token="b", expires_at=time.time() + 600),
    }
    with scene(clients=clients) as at:
        assert at.names("pwt_reader") == ["search_notes"]
        assert at.ask("pwt_reader", method="tools/call", name="search_notes", arguments={})[0] == 403
        assert at.get("/metrics", Authorization="Bearer pwt_reader")[0] == 403
        with RawClient(at.gateway, "notes", "pwt_brief") as raw:
            call = stateless_request("tools/call", {"name": "search_notes", "arguments": {}})
            for _ in range(3):
                assert raw.send(*call)[0] == 200
            at.wall += 601
            assert raw.send(*call)[0] == 401


def test_a_large_request_without_a_token_is_refused_before_its_body_is_read(shared: Scene) -> None:
    with closing(http.client.HTTPConnection(shared.gateway.host, shared.gateway.port, timeout=60)) as connection:
        connection.putrequest("POST", "/mcp/notes")
        connection.putheader("Content-Length", str(10 << 20))
        connection.putheader("Content-Type", "application/json")
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 401
        assert f'resource_metadata="{URL}{METADATA}/mcp/notes"' in answer.headers["www-authenticate"]


def test_while_no_key_is_known_tokens_are_not_judged(tmp_path: Path) -> None:
    del tmp_path
    with issuer_server() as issuer:
        issuer.away = True
        configured = settings(issuer.url)
        assert configured.clients is not None
        now = [1000.0]
        notes: list[str] = []
        verifier = ResourceServer(
            configured, configured.clients, Issuer(issuer.url, clock=lambda: now[0]), notes.append
        )
        with turning_http({"states": [HONEST]}) as world:
            servers = {"notes": UpstreamServer(guard("notes", approved_surface(HONEST)), url=world.url)}
            with gateway(servers, verifier=verifier) as running:
                at = Scene(running, issuer, InMemoryRecorder(), world)
                for _ in range(3):
                    assert at.ask(at.sign())[0] == 503
                assert "ISSUER_UNAVAILABLE" in verifier.problem
                assert issuer.url not in verifier.problem, "the page that shows it is public"
                assert at.names(TOKEN) == ["search_notes"], "static tokens do not depend on the issuer"
                issuer.away = False
                issuer.publish(KEY)
                now[0] += 31
                assert at.names(at.sign()) == ["search_notes"]
                assert (len(notes), verifier.problem) == (2, "")
