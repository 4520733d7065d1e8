"""Signing in at a real OpenID provider: who decides is who the provider says, with the role of their groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from pinwarden.dashboard.provider_login import CALLBACK, ProviderLogin
from pinwarden.identity.code_flow import LoginFlow
from pinwarden.identity.issuer import Issuer
from pinwarden.identity.settings import LoginSettings
from tests.dashboard.test_in_browser import WIDE, click, wait_for_heading, wait_for_text, wait_until
from tests.dashboard.world import Client, Dashboard, serving_dashboard
from tests.gateway.review_world import CHANGED, EVIL, ReviewWorld, names
from tests.support.browser import Browser, needs_browser
from tests.support.oidc_provider import SECRET, OidcProvider, needs_node, oidc_provider
from tests.support.oidc_provider import Browser as Agent
from tests.support.ports import reserved_port

pytestmark = [needs_node]
SETTINGS = LoginSettings(
    client_id="dashboard",
    client_secret=SECRET,
    scopes=("openid", "profile", "email", "groups"),
    roles={"viewer": frozenset({"staff"}), "reviewer": frozenset({"reviewers"}), "admin": frozenset({"security"})},
)


class Known(NamedTuple):
    """A provider, and the port of the dashboard that it sends browsers back to."""

    provider: OidcProvider
    port: int


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    port = reserved_port()
    uri = f"http://127.0.0.1:{port}/{CALLBACK}"
    with oidc_provider(tmp_path_factory.mktemp("provider"), redirect_uris=[uri]) as provider:
        yield Known(provider, port)


@pytest.fixture
def dashboard(world: ReviewWorld, known: Known) -> Iterator[Dashboard]:
    flow = LoginFlow(Issuer(known.provider.issuer), SETTINGS)
    login = ProviderLogin(flow, f"http://127.0.0.1:{known.port}/{CALLBACK}")
    with serving_dashboard(world.state, login=login, port=known.port) as served:
        yield served


def log_in(client: Client, known: Known, user: str) -> str:
    """Log in at the provider. Returns the address with which it sends the browser back."""
    begun = client.get("/login")
    assert begun.status == 303
    assert client.cookie.startswith("pinwarden-login=")
    return Agent().log_in(begun.headers["location"], user, known.provider.issuer)


def finish(client: Client, back: str) -> int:
    """Open the address with which the provider sends the browser back."""
    parts = urlsplit(back)
    answer = client.get(f"{parts.path}?{parts.query}")
    if answer.status == 200:
        client.base = answer.html.partition("0; url=")[2].partition('"')[0]
        cookies = [cookie for cookie in answer.cookies if cookie.startswith("pinwarden=")]
        client.cookie = cookies[0].partition(";")[0]
    return answer.status


def test_the_reviewer_in_the_audit_log_is_the_person_who_logged_in(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    (name,) = world.serve(CHANGED)
    client = Client(dashboard.url)
    assert "Sign in with your identity provider" in client.get("/sign-in").text
    assert finish(client, log_in(client, known, "alice")) == 200
    (change,) = client.page(f"reviews/{name}/").values("change")
    assert client.submit("decide", {"change": change, "action": "approve", "by": "eve"}).status == 303
    assert names(world.approved()) == {"search": CHANGED["description"]}
    person = "Alice Example <alice@example.com>"
    assert [event[2] for event in world.events()] == [person]
    assert world.sign_ins() == [("signed_in", person)]


def test_a_viewer_of_the_provider_cannot_approve_and_others_cannot_even_look(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    (name,) = world.serve(CHANGED)
    before = world.files()
    victor = Client(dashboard.url)
    assert finish(victor, log_in(victor, known, "victor")) == 200
    assert "your role is viewer" in victor.page(f"reviews/{name}/").text
    assert victor.submit("decide", {"change": f"{name}:x", "action": "approve"}).status == 403
    bob = Client(dashboard.url)
    assert finish(bob, log_in(bob, known, "bob")) == 403
    assert bob.get("/").headers["location"] == "/sign-in"
    assert world.files() == before


def test_attack_login_csrf_a_browser_that_began_no_login_gets_no_session(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    attacker, victim = Client(dashboard.url), Client(dashboard.url)
    back = log_in(attacker, known, "carol")
    assert finish(victim, back) == 403  # the address of the attacker's login
    victim.get("/login")
    assert finish(victim, back) == 403  # with a login of its own, whose state differs
    assert finish(attacker, back) == 200
    attacker.get("/login")
    assert finish(attacker, back) == 403  # a second time
    kinds = [kind for kind, _ in world.sign_ins()]
    assert kinds == ["sign_in_refused", "signed_in"], "only the first of a few refusals"


def test_attack_a_code_from_the_terminal_is_not_asked_for(dashboard: Dashboard) -> None:
    client = Client(dashboard.url)
    answer = client.post("/sign-in", {"code": "AAAA-AAAA-AAAA-AAAA"})
    assert "set-cookie" not in answer.headers
    assert client.get("/login/callback").status == 403


@needs_browser
def test_a_person_logs_in_at_the_provider_in_a_browser(
    browser: Browser, world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    (name,) = world.serve(EVIL)
    browser.show(width=WIDE, dark=False)
    browser.driver.delete_all_cookies()
    browser.open(dashboard.url)
    browser.driver.find_element("link text", "Sign in with your identity provider").click()
    wait_for_form(browser, "login")
    browser.driver.find_element("name", "login").send_keys("alice")
    browser.driver.find_element("name", "password").send_keys("any")
    browser.driver.find_element("css selector", "button[type=submit]").click()
    wait_for_form(browser, "consent")
    browser.driver.find_element("css selector", "button[type=submit]").click()
    wait_for_heading(browser, "Overview")
    wait_for_text(browser, "tool search")
    browser.open(f"{browser.driver.current_url}reviews/{name}/")
    browser.driver.find_element("id", "why").send_keys("theft")
    click(browser, "Reject this exact definition")
    wait_for_text(browser, "rejected by Alice Example <alice@example.com>")
    assert world.events() == [("rejected", "search", "Alice Example <alice@example.com>", "theft")]


def wait_for_form(browser: Browser, prompt: str) -> None:
    wait_until(browser, "return document.querySelector('[name=prompt]')?.value === arguments[0]", prompt)


def test_an_issuer_without_a_login_and_a_provider_that_is_away(world: ReviewWorld, tmp_path: Path) -> None:
    outcome = world.run("dashboard", "--sign-in", "provider", "--listen", "127.0.0.1:0")
    assert (outcome.code, "[IDENTITY_INVALID]" in outcome.err) == (2, True)
    login = ProviderLogin(LoginFlow(Issuer("http://127.0.0.1:9"), SETTINGS), "http://127.0.0.1/login/callback")
    with serving_dashboard(world.state, login=login) as served:
        answer = Client(served.url).get("/login")
        assert (answer.status, "ISSUER_UNAVAILABLE" in answer.text) == (503, True)
