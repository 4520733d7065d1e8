"""Web pages of allowed origins can use the gateway; other pages learn nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.gateway.http_gateway import (
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    rpc,
    stateless_request,
)
from tests.gateway.session_harness import DELETE, SEARCH, approved_surface
from tests.servers.turning_http import TurningWorld, turning_http

PAGE = "https://app.example"
STATE: dict[str, Any] = {"tools": [SEARCH, DELETE]}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,mcp-protocol-version",
}
CALL = {"name": "search_notes", "arguments": {"query": "x"}}


@contextmanager
def scene(**options: Any) -> Iterator[tuple[TurningWorld, RunningGateway, InMemoryRecorder]]:
    recorder = InMemoryRecorder()
    with turning_http({"states": [STATE]}) as world:
        behind = UpstreamServer(guard("notes", approved_surface(STATE)), url=world.url)
        with gateway({"notes": behind}, recorder, origins=[PAGE + "/", "http://localhost:5173"], **options) as running:
            yield world, running, recorder


@pytest.fixture(scope="module")
def at() -> Iterator[tuple[TurningWorld, RunningGateway, InMemoryRecorder]]:
    with scene() as running:
        yield running


def cors(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


class Browser(RawClient):
    """A browser that sends a page's requests without the page's token."""

    def preflight(self, origin: str, **more: str) -> tuple[int, dict[str, str], bytes]:
        self._connection.request("OPTIONS", self._path, None, {"Origin": origin, **PREFLIGHT, **more})
        answer = self._connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:5173"])
def test_a_preflight_of_an_allowed_origin_lists_the_allowed_headers(
    origin: str, at: tuple[TurningWorld, RunningGateway, InMemoryRecorder]
) -> None:
    with Browser(at[1], "notes") as browser:
        status, headers, body = browser.preflight(origin)
    assert (status, body) == (200, b"")
    assert cors(headers) == {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization, content-type, accept, last-event-id, mcp-session-id, "
        "mcp-protocol-version, mcp-method, mcp-name",
        "access-control-max-age": "600",
        "access-control-expose-headers": "mcp-session-id, www-authenticate, retry-after",
    }
    assert headers["vary"] == "origin"


def test_attack_a_preflight_does_not_reveal_which_servers_exist(
    at: tuple[TurningWorld, RunningGateway, InMemoryRecorder],
) -> None:
    """Attack: a page without a token probes which servers exist."""
    answers = []
    for path in ("notes", "nothing", "", "../healthz"):
        with Browser(at[1], path) as browser:
            answers.append(browser.preflight(PAGE))
    assert answers == [answers[0]] * 4


def test_a_preflight_allows_declared_argument_headers_and_no_others(
    at: tuple[TurningWorld, RunningGateway, InMemoryRecorder],
) -> None:
    wanted = {"Access-Control-Request-Headers": "Mcp-Param-Region, x-evil, mcp-param-a:b, cookie, mcp-param-region"}
    with Browser(at[1], "notes") as browser:
        allowed = browser.preflight(PAGE, **wanted)[1]["access-control-allow-headers"].split(", ")
    assert allowed[-1] == "mcp-param-region"
    assert {"x-evil", "cookie"}.isdisjoint(allowed)
    assert len(allowed) == 9


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "null", "https://app.example.evil.example", "https://evil-app.example", "*", ""),
        *("http://app.example", "https://app.example:8443", "https://app.example https://evil.example"),
        *(
            "https://app.example@evil.example",
            "https://app.example/",
            "https://app.example.",
            "https://sub.app.example",
        ),
    ],
)
def test_attack_a_page_of_a_foreign_origin_is_rejected(
    origin: str, at: tuple[TurningWorld, RunningGateway, InMemoryRecorder]
) -> None:
    """Attack: an origin that only resembles an allowed one, or an invalid one, is reflected."""
    before = len(at[0].bodies)
    with Browser(at[1], "notes") as browser:
        status, headers, _ = browser.preflight(origin)
        assert (status, cors(headers)) == (403, {})
        status, headers, _ = browser.send(*_from(origin, "tools/list"))
    assert (status, cors(headers)) == (403, {})
    assert len(at[0].bodies) == before


def _from(origin: str, method: str, params: dict[str, Any] | None = None) -> tuple[bytes, dict[str, str]]:
    body, headers = stateless_request(method, params)
    return body, {**headers, "Origin": origin}


def test_attack_dns_rebinding_is_rejected(
    at: tuple[TurningWorld, RunningGateway, InMemoryRecorder],
) -> None:
    """Attack: DNS rebinding; the page's host name resolves to the gateway."""
    with Browser(at[1], "notes") as browser:
        status, headers, _ = browser.preflight(PAGE, Host="evil.example")
    assert (status, cors(headers)) == (421, {})


def test_responses_on_the_fast_path_have_cors_headers_too(
    at: tuple[TurningWorld, RunningGateway, InMemoryRecorder],
) -> None:
    with RawClient(at[1], "notes") as page, RawClient(at[1], "notes") as program:
        for _ in range(3):
            status, headers, body = page.send(*_from(PAGE, "tools/call", CALL))
            assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
            assert "result" in json.loads(body)
            status, headers, _ = program.send(*stateless_request("tools/call", CALL))
            assert (status, cors(headers)) == (200, {})
        for token in ("", "Bearer wrong"):
            status, headers, _ = page.send(b"{}", {"Origin": PAGE, "Authorization": token})
            assert (status, headers["access-control-allow-origin"]) == (401, PAGE)


def test_a_page_can_open_a_session_and_its_stream(at: tuple[TurningWorld, RunningGateway, InMemoryRecorder]) -> None:
    own = {"Origin": PAGE}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
    with RawClient(at[1], "notes") as page:
        _, headers, _ = page.send(json.dumps(rpc("initialize", hello, 0)).encode(), own)
        assert "mcp-session-id" in headers["access-control-expose-headers"]
        page.session = headers["mcp-session-id"]
        page._connection.request(
            "GET",
            page._path,
            headers={
                "Authorization": f"Bearer {page._token}",
                "Accept": "text/event-stream",
                "Mcp-Session-Id": page.session,
                **own,
            },
        )
        stream = page._connection.getresponse()
        assert (stream.status, stream.headers["access-control-allow-origin"]) == (200, PAGE)
        stream.close()
    with RawClient(at[1], "notes") as page:
        page.session = headers["mcp-session-id"]
        status, headers, _ = page.send(b"", own, "DELETE")
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE)


def test_options_without_a_browser_origin_needs_a_token(
    at: tuple[TurningWorld, RunningGateway, InMemoryRecorder],
) -> None:
    with Browser(at[1], "notes") as browser:
        browser._connection.request("OPTIONS", "/mcp/notes", None, {"Origin": PAGE})
        assert browser._connection.getresponse().status == 401
    with Browser(at[1], "notes") as browser:
        browser._connection.request("OPTIONS", "/mcp/notes", None, PREFLIGHT)
        assert browser._connection.getresponse().status == 401
