"""Connecting remote servers on a page: at a real provider, for the person who signed in and for nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from pinwarden.cli.project_arguments import find_current_project
from pinwarden.core.errors import PinwardenError
from pinwarden.dashboard.provider_login import CALLBACK, ProviderLogin
from pinwarden.gateway.remote_grants import find_remote_target, open_remote_tokens
from pinwarden.identity.code_flow import LoginFlow
from pinwarden.identity.grants import GrantOwner, list_grants
from pinwarden.identity.issuer import Issuer
from pinwarden.project.remote_access import find_local_owner
from tests.dashboard.test_provider_login import SETTINGS, finish
from tests.dashboard.world import Answer, Client, Dashboard, serving_dashboard
from tests.gateway.review_world import ReviewWorld
from tests.support.oidc_provider import Browser, needs_node
from tests.support.ports import reserved_port
from tests.support.protected import ProtectedServer, protected_server

pytestmark = needs_node


class Known(NamedTuple):
    """A server that demands tokens, and the port of the dashboard."""

    server: ProtectedServer
    port: int


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    port = reserved_port()
    uri = f"http://127.0.0.1:{port}/{CALLBACK}"
    with protected_server(tmp_path_factory.mktemp("server"), redirect_uris=[uri]) as server:
        yield Known(server, port)


@pytest.fixture
def dashboard(world: ReviewWorld, known: Known) -> Iterator[Dashboard]:
    file = world.root / ".mcp.json"
    servers = json.loads(file.read_text())["mcpServers"]
    file.write_text(json.dumps({"mcpServers": {**servers, "docs": {"type": "http", "url": known.server.url}}}))
    (world.root / "pinwarden.toml").write_text(known.server.settings("docs"))
    (world.root / "mcp-lock.json").unlink()
    world.run("init", "--allow-execute")  # docs cannot be probed without a token, but it is locked
    flow = LoginFlow(Issuer(known.server.provider.issuer), SETTINGS)
    login = ProviderLogin(flow, f"http://127.0.0.1:{known.port}/{CALLBACK}")
    with serving_dashboard(world.state, login=login, port=known.port) as served:
        yield served


def sign_in(dashboard: Dashboard, known: Known, user: str) -> Client:
    client = Client(dashboard.url)
    begun = client.get("/login")
    back = Browser().log_in(begun.headers["location"], user, known.server.provider.issuer)
    assert finish(client, back) == 200
    return client


def begin(client: Client) -> tuple[str, str]:
    """Press Connect. Returns the address to which the page leads, and the cookie that it sets."""
    session = client.cookie
    answer = client.submit("connect", {"server": "docs"})
    assert answer.status == 200, answer.text
    client.cookie = session
    url = unescape(answer.html.partition('rel="noreferrer" href="')[2].partition('"')[0])
    return url, answer.cookies[0].partition(";")[0]


def come_back(client: Client, back: str, cookie: str) -> Answer:
    """Open the address with which the issuer sends the browser back: only the cookie of the connection is sent."""
    session = client.cookie
    client.cookie = cookie
    parts = urlsplit(back)
    answer = client.get(f"{parts.path}?{parts.query}")
    client.cookie = session
    return answer


def owner(known: Known, subject: str) -> GrantOwner:
    return GrantOwner(issuer=known.server.provider.issuer, subject=subject)


def test_a_person_connects_a_server_on_a_page_and_forgets_it(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    client = sign_in(dashboard, known, "victor")  # a viewer
    assert "not connected" in client.page("remotes/").text
    url, cookie = begin(client)
    assert url.startswith(f"{known.server.provider.issuer}/auth?")
    assert "SameSite=Lax" in client.submit("connect", {"server": "docs"}).headers["set-cookie"]
    answer = come_back(client, known.server.log_in(url, "victor"), cookie)
    assert (answer.status, "docs is connected" in answer.text) == (200, True)
    (grant,) = list_grants(world.state.grants_database)
    assert grant.owner == owner(known, "victor")
    assert grant.connected_by == "Victor Example <victor@example.com>"


def test_attack_a_connection_belongs_to_one_browser_and_works_once(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    attacker, victim = sign_in(dashboard, known, "carol"), sign_in(dashboard, known, "alice")
    url, cookie = begin(attacker)
    back = known.server.log_in(url, "carol")
    _, other = begin(victim)
    assert come_back(victim, back, "").status == 403
    url_of_another_issuer, third = begin(attacker)
    elsewhere = known.server.log_in(url_of_another_issuer, "carol").replace("/callback", "/callback/0123456789abcdef")
    assert come_back(attacker, elsewhere, third).status == 403, "mix-up: the redirect URI of another issuer"
    assert come_back(victim, back, other).status == 422, "the state of another connection"
    assert come_back(victim, back, other).status == 403, "it worked once"
    assert list_grants(world.state.grants_database) == []
    assert come_back(attacker, back, cookie).status == 200
    assert come_back(attacker, back, cookie).status == 403
    (grant,) = list_grants(world.state.grants_database)
    assert grant.owner == owner(known, "carol")
    project = find_current_project()
    tokens = open_remote_tokens(world.state, project.variables)
    with pytest.raises(PinwardenError):
        tokens.get(find_remote_target(project, "docs"), owner(known, "alice"))
    assert "not connected" in victim.page("remotes/").text


def test_a_session_that_ended_cannot_finish_a_connection(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    client = sign_in(dashboard, known, "alice")
    url, cookie = begin(client)
    session = client.cookie
    client.submit("sign-out", {})
    client.cookie = session
    assert come_back(client, known.server.log_in(url, "alice"), cookie).status == 403
    assert list_grants(world.state.grants_database) == []


def test_only_an_admin_forgets_the_grant_of_another_person(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    alice = sign_in(dashboard, known, "alice")
    url, cookie = begin(alice)
    assert come_back(alice, known.server.log_in(url, "alice"), cookie).status == 200
    (grant,) = list_grants(world.state.grants_database)
    victor = sign_in(dashboard, known, "victor")
    assert victor.submit("forget-grant", {"id": grant.id}).status == 403
    assert victor.submit("connect", {"server": "docs"}, origin="http://evil.example").status == 403
    assert victor.submit("connect", {"server": "nowhere"}).status == 404
    carol = sign_in(dashboard, known, "carol")  # an admin
    assert carol.submit("forget-grant", {"id": grant.id}).status == 303
    assert list_grants(world.state.grants_database) == []


def test_attack_a_viewer_with_a_code_cannot_replace_the_account_of_the_user_of_the_machine(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    with serving_dashboard(world.state, role="viewer") as local:
        client = local.client()
        assert "only for the role admin" in client.page("remotes/").text
        assert client.submit("connect", {"server": "docs"}).status == 403
        own = find_local_owner(world.state.folder)
        with world.state.grants_database.transaction() as transaction:
            columns = ("id", "owner_issuer", "owner_subject", "server", "address", "issuer", "client_id", "resource")
            texts = ("redirect_uri", "scopes", "wanted", "connected_at", "connected_by", "problem")
            transaction.run(
                f"INSERT INTO remote_grant ({', '.join((*columns, *texts))}, expires_at, revision, refreshing_until,"
                f" sealed) VALUES ({', '.join('?' * 14)}, 0, 1, 0, ?)",
                ("one", own.issuer, own.subject, "docs", known.server.url, *("x",) * 9, b""),
            )
        assert client.submit("forget-grant", {"id": "one"}).status == 403
    assert [grant.id for grant in list_grants(world.state.grants_database)] == ["one"]


def test_only_an_admin_connects_what_all_users_share(world: ReviewWorld, known: Known, dashboard: Dashboard) -> None:
    (Path(world.root) / "pinwarden.toml").write_text(known.server.settings("docs", account="shared"))
    victor = sign_in(dashboard, known, "victor")
    assert "only for the role admin" in victor.page("remotes/").text
    assert victor.submit("connect", {"server": "docs"}).status == 403
    carol = sign_in(dashboard, known, "carol")
    assert "all users of the gateway will use the account" in carol.submit("connect", {"server": "docs"}).text
