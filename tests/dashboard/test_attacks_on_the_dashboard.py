"""Attacks on the dashboard over HTTP, each by its name. Nothing that they ask for happens."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from pinwarden.dashboard.access import DashboardSessions, DashboardUser, build_local_site
from tests.dashboard.world import Client, Dashboard
from tests.gateway.review_world import CHANGED, ReviewWorld


def prepare(world: ReviewWorld, client: Client) -> dict[str, Any]:
    """A complete form that would approve a change."""
    (name,) = world.serve(CHANGED)
    page = client.page(f"reviews/{name}/")
    return {"csrf": page.values("csrf")[0], "change": page.values("change"), "action": "approve", "why": "x"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "-"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_attack_csrf_a_form_from_another_origin_is_refused(
    world: ReviewWorld, client: Client, headers: Mapping[str, str]
) -> None:
    form, before = prepare(world, client), world.files()
    answer = client.post(f"{client.base}decide", form, **headers)
    assert (answer.status, "ORIGIN_REFUSED" in answer.text) == (403, True)
    assert (world.files(), world.events()) == (before, [])


def test_attack_csrf_a_form_without_the_token_of_its_session_is_refused(
    world: ReviewWorld, dashboard: Dashboard, client: Client
) -> None:
    form, before = prepare(world, client), world.files()
    other = dashboard.client()
    foreign = other.page("reviews/").values("csrf")[0]
    for token in (foreign, "", form["csrf"][:-1]):
        answer = client.post(f"{client.base}decide", {**form, "csrf": token})
        assert (answer.status, "ORIGIN_REFUSED" in answer.text) == (403, True)
    assert (world.files(), world.events()) == (before, [])


def test_attack_csrf_a_get_request_decides_nothing(world: ReviewWorld, client: Client) -> None:
    form, before = prepare(world, client), world.files()
    answer = client.page(f"decide?csrf={form['csrf']}&change={form['change'][0]}&action=approve&why=x")
    assert answer.status == 404
    assert world.files() == before


def test_attack_csrf_only_a_plain_form_is_read(world: ReviewWorld, client: Client) -> None:
    form, before = prepare(world, client), world.files()
    for content_type in ("text/plain", "application/json", "multipart/form-data; boundary=x", "-"):
        assert client.post(f"{client.base}decide", form, **{"content-type": content_type}).status == 422
    assert client.post(f"{client.base}decide", {**form, "why": "x" * 300_000}).status == 413
    assert world.files() == before


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "x:y", ""])
def test_attack_dns_rebinding_another_host_is_refused(dashboard: Dashboard, client: Client, host: str) -> None:
    for path in ("/", "/sign-in", f"{client.base}reviews/", "/assets/style.css"):
        answer = client.get(path, host=host or " ")
        assert answer.status == 421
        assert "HOST_REFUSED" in answer.text
    answer = Client(dashboard.url).post("/sign-in", {"code": dashboard.codes[-1]}, host="evil.example")
    assert answer.status == 421
    assert len(dashboard.codes) == 2  # the code is still valid


def test_attack_session_fixation_a_cookie_from_elsewhere_never_becomes_a_session(dashboard: Dashboard) -> None:
    victim = Client(dashboard.url)
    victim.cookie = "pinwarden=chosen-by-the-attacker"
    assert victim.sign_in(dashboard.codes[-1]).status == 303
    assert victim.cookie != "pinwarden=chosen-by-the-attacker"
    attacker = Client(dashboard.url)
    attacker.cookie, attacker.base = "pinwarden=chosen-by-the-attacker", victim.base
    assert attacker.page().headers["location"] == "/sign-in"
    first = victim.cookie
    assert victim.sign_in(dashboard.codes[-1]).status == 303  # signing in again ends the earlier session
    attacker.cookie = first
    assert attacker.page().headers["location"] == "/sign-in"


def test_a_cookie_is_unreadable_for_scripts_and_other_ports_and_ends_with_the_session(
    dashboard: Dashboard, client: Client
) -> None:
    fresh = Client(dashboard.url)
    cookie = fresh.sign_in(dashboard.codes[-1]).headers["set-cookie"]
    assert cookie.split("; ")[1:] == [f"Path={fresh.base}", "HttpOnly", "SameSite=Strict"]
    assert len(fresh.base) == len("/0123456789abcdef/")
    held = client.cookie
    answer = client.submit("sign-out", {})
    assert (answer.status, answer.headers["location"]) == (303, "/sign-in")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    client.cookie = held
    assert client.page().status == 303
    assert client.post(f"{client.base}decide", {}).status == 403


def test_with_tls_the_cookie_is_bound_to_the_host() -> None:
    site = build_local_site(["pinwarden.example"], is_secure=True)
    assert site.build_cookie("value") == "__Host-pinwarden=value; Path=/; HttpOnly; SameSite=Strict; Secure"


def test_a_session_ends_when_it_is_unused_or_old() -> None:
    now = 0.0
    sessions = DashboardSessions(lambda: now)
    cookie, _ = sessions.open(DashboardUser(name="ana", role="viewer"))
    for _ in range(3):
        now += 7 * 3600
        assert sessions.find(cookie) is not None
    now += 4 * 3600  # more than a day since it began
    assert sessions.find(cookie) is None
    cookie, _ = sessions.open(DashboardUser(name="ana", role="viewer"))
    now += 9 * 3600
    assert sessions.find(cookie) is None
    first, _ = sessions.open(DashboardUser(name="ana", role="viewer"))
    for _ in range(1000):
        sessions.open(DashboardUser(name="eve", role="viewer"))
    assert sessions.find(first) is None


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example", "%2f%2fevil.example"])
def test_attack_open_redirect_no_address_of_a_request_is_redirected_to(
    dashboard: Dashboard, client: Client, target: str
) -> None:
    fresh = Client(dashboard.url)
    answer = fresh.post(f"/sign-in?next={target}", {"code": dashboard.codes[-1], "next": target, "return_to": target})
    assert answer.headers["location"] == client.base
    for path in (f"/{target}", f"//{target}", f"{client.base}{target}", f"{client.base}reviews?to={target}"):
        assert client.get(path).headers.get("location", "/sign-in") in ("/sign-in", client.base)


def test_attack_clickjacking_no_page_can_be_framed(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(CHANGED)
    for path in ("", "reviews/", f"reviews/{name}/", "nothing/"):
        headers = client.page(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


def test_the_policy_of_every_response_allows_only_the_own_script(client: Client) -> None:
    for path in ("", "reviews/", "nothing/", "assets/dashboard.js", "assets/style.css"):
        policy = client.page(path).headers["content-security-policy"]
        assert policy == (
            "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'; script-src 'self'; connect-src 'self'; "
            "frame-ancestors 'none'"
        )


def test_a_form_that_cannot_be_read_is_an_error(client: Client) -> None:
    token = client.page("reviews/").values("csrf")[0]
    for body in (b"csrf=%ff", b"a=1&" * 2000, b"\xff=1"):
        headers = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{client.host}"}
        assert client.send("POST", f"{client.base}decide", body, headers).status in (403, 422)
    for form in (
        {},
        {"change": "x"},
        {"change": "x:y", "action": "approve"},
        {"change": ["a:b"] * 3, "action": "burn"},
    ):
        answer = client.post(f"{client.base}decide", {"csrf": token, **form})
        assert answer.status in (404, 422)
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert client.send(method, client.base, b"", {}).status == 422
    assert client.page("reviews/?server=%00").status == 422


def test_a_client_that_hangs_up_in_the_middle_of_a_form_changes_nothing(client: Client) -> None:
    head = f"POST {client.base}decide HTTP/1.1\r\nHost: {client.host}\r\nOrigin: http://{client.host}\r\n"
    head += f"Cookie: {client.cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\n"
    host, port = urlsplit(f"//{client.host}").hostname or "", urlsplit(f"//{client.host}").port or 0
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(head.encode() + b"csrf=")
    assert client.page().status == 200


def test_events_need_a_session_and_end_with_it(world: ReviewWorld, client: Client) -> None:
    assert Client(f"http://{client.host}/").get(f"{client.base}events").status == 303
    connection = http.client.HTTPConnection(client.host, timeout=60)
    connection.request("GET", f"{client.base}events", headers={"cookie": client.cookie})
    stream = connection.getresponse()
    assert (stream.status, stream.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert stream.readline() == b"retry: 3000\n"
    world.serve(CHANGED)
    while stream.readline() != b"event: changed\n":
        pass
    client.submit("sign-out", {})
    assert b"changed" not in stream.read()  # it ends
    connection.close()
