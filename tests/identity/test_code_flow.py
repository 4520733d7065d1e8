"""Logins at a real OpenID provider, and answers of the provider that are wrong in one way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.identity.access_tokens import AccessTokenRules, verify_access_token
from pinwarden.identity.code_flow import (
    LoginFlow,
    LoginRequest,
    Person,
    build_authorization_url,
    check_authorization_response,
    is_local_path,
)
from pinwarden.identity.issuer import Issuer, IssuerMetadata
from pinwarden.identity.settings import LoginSettings
from tests.identity.issuer_server import IssuerServer, issuer_server
from tests.support.oidc_provider import SECRET, Browser, OidcProvider, SigningKey, needs_node, oidc_provider

REDIRECT = "http://127.0.0.1:8642/login/callback"
SETTINGS = LoginSettings(
    client_id="dashboard",
    client_secret=SECRET,
    scopes=("openid", "profile", "email", "groups"),
    roles={"viewer": frozenset({"staff"}), "reviewer": frozenset({"reviewers"}), "admin": frozenset({"security"})},
)
K1, K2 = SigningKey("k1"), SigningKey("k2")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcProvider]:
    with oidc_provider(tmp_path_factory.mktemp("provider"), redirect_uris=[REDIRECT], keys=[K1]) as provider:
        yield provider


@pytest.fixture
def flow(provider: OidcProvider) -> LoginFlow:
    return LoginFlow(Issuer(provider.issuer), SETTINGS)


def refusal(do: Callable[[], object], code: str = "LOGIN_REFUSED") -> object:
    with pytest.raises(PinwardenError) as caught:
        do()
    assert caught.value.code == code
    return caught.value.data.get("reason")


def answer(flow: LoginFlow, provider: OidcProvider, user: str) -> tuple[LoginRequest, str]:
    """Begin a login, and let a person log in. Returns what to keep, and the query of the response."""
    request, url = flow.begin(REDIRECT, "/reviews", time.time())
    back = Browser().log_in(url, user, provider.issuer)
    assert back.startswith(f"{REDIRECT}?")
    return request, urlsplit(back).query


@needs_node
@pytest.mark.parametrize(("user", "role"), [("alice", "reviewer"), ("carol", "admin"), ("victor", "viewer")])
def test_a_person_logs_in_and_has_the_role_of_their_group(
    flow: LoginFlow, provider: OidcProvider, user: str, role: str
) -> None:
    request, query = answer(flow, provider, user)
    person = flow.finish(request, query, time.time())
    assert person == Person(
        issuer=provider.issuer,
        subject=user,
        name=f"{user.capitalize()} Example",
        email=f"{user}@example.com",
        groups=person.groups,
        role=role,  # type: ignore[arg-type]
        expires_at=person.expires_at,
    )
    assert request.return_to == "/reviews"
    assert "verifier" not in repr(request)


@needs_node
def test_a_person_without_a_configured_group_cannot_log_in(flow: LoginFlow, provider: OidcProvider) -> None:
    request, query = answer(flow, provider, "bob")
    assert refusal(lambda: flow.finish(request, query, time.time())) == "role"


@needs_node
def test_groups_that_the_id_token_does_not_have_are_fetched(tmp_path: Path) -> None:
    with oidc_provider(tmp_path, redirect_uris=[REDIRECT], keys=[K1], thinIdTokens=True) as provider:
        flow = LoginFlow(Issuer(provider.issuer), SETTINGS)
        request, query = answer(flow, provider, "alice")
        person = flow.finish(request, query, time.time())
        assert (person.role, person.groups) == ("reviewer", ("reviewers", "platform"))


@needs_node
def test_attack_11_a_response_works_once_and_only_for_its_login(flow: LoginFlow, provider: OidcProvider) -> None:
    request, query = answer(flow, provider, "alice")
    other, other_query = answer(flow, provider, "carol")
    now = time.time()
    assert refusal(lambda: flow.finish(other, query, now)) == "state"
    assert refusal(lambda: flow.finish(request, other_query, now)) == "state"
    swapped = {**dict(parse_qsl(query)), "state": other.state}  # the code of another browser under the own state
    assert refusal(lambda: flow.finish(other, urlencode(swapped), now)) == "provider"
    assert flow.finish(request, query, now).subject == "alice"
    assert refusal(lambda: flow.finish(request, query, now)) == "provider"


@needs_node
def test_attack_11_a_nonce_of_another_login_is_refused(flow: LoginFlow, provider: OidcProvider) -> None:
    request, query = answer(flow, provider, "alice")
    assert refusal(lambda: flow.finish(replace(request, nonce="other"), query, time.time())) == "nonce"


@needs_node
def test_attack_11_a_login_that_took_more_than_ten_minutes_is_refused(flow: LoginFlow, provider: OidcProvider) -> None:
    request, query = answer(flow, provider, "alice")
    assert refusal(lambda: flow.finish(request, query, request.began_at + 601)) == "expired"
    assert refusal(lambda: flow.finish(request, query, request.began_at - 1)) == "expired"


@needs_node
def test_a_code_without_its_verifier_is_refused(flow: LoginFlow, provider: OidcProvider) -> None:
    request, query = answer(flow, provider, "alice")
    assert refusal(lambda: flow.finish(replace(request, verifier="x" * 64), query, time.time())) == "provider"


@needs_node
def test_a_person_who_refuses_at_the_provider_gets_its_reason(flow: LoginFlow, provider: OidcProvider) -> None:
    request, _ = flow.begin(REDIRECT, "/", time.time())
    refused = {"error": "access_denied", "error_description": "no\u202e"}
    query = urlencode({**refused, "state": request.state, "iss": provider.issuer})
    with pytest.raises(PinwardenError) as caught:
        flow.finish(request, query, time.time())
    assert caught.value.message == "the provider refused: access_denied: no<U+202E>"


@needs_node
def test_a_wrong_client_secret_is_reported_without_the_secret(provider: OidcProvider) -> None:
    flow = LoginFlow(Issuer(provider.issuer), replace(SETTINGS, client_secret="wrong-secret"))
    request, query = answer(flow, provider, "alice")
    with pytest.raises(PinwardenError) as caught:
        flow.finish(request, query, time.time())
    assert caught.value.message.startswith("the provider refused: invalid_client")
    assert "wrong-secret" not in repr((caught.value.message, caught.value.data))


@needs_node
def test_access_tokens_of_the_provider_are_verified_across_a_key_rotation(tmp_path: Path) -> None:
    gateway = "http://127.0.0.1:8642"
    with oidc_provider(tmp_path, gateway=gateway, keys=[K1]) as provider:
        now = [0.0]
        issuer = Issuer(provider.issuer, clock=lambda: now[0])
        rules = AccessTokenRules(issuer=provider.issuer, audiences=frozenset({f"{gateway}/mcp"}))

        def verify(token: str) -> str:
            return verify_access_token(token, issuer, rules, time.time()).client_id

        issuer.refresh()
        old = provider.client_token(resource=f"{gateway}/mcp")
        assert verify(old) == "robot"
        assert refusal(lambda: verify(provider.client_token()), "ACCESS_TOKEN_INVALID") == "malformed"  # opaque
        other = provider.client_token(resource=f"{gateway}/mcp/notes")
        assert refusal(lambda: verify(other), "ACCESS_TOKEN_INVALID") == "audience"
        provider.restart([K2, K1])
        new = provider.client_token(resource=f"{gateway}/mcp")
        assert refusal(lambda: verify(new), "ACCESS_TOKEN_INVALID") == "key"
        now[0] += 31
        issuer.refresh(key_unknown=True)
        assert (verify(old), verify(new)) == ("robot", "robot")
        provider.restart([K2])
        now[0] += 300
        issuer.refresh()
        assert refusal(lambda: verify(old), "ACCESS_TOKEN_INVALID") == "key"
        assert verify(new) == "robot"


# Answers that a good provider does not give

METADATA = IssuerMetadata(
    issuer="https://login.example.com",
    jwks_uri="https://login.example.com/jwks",
    authorization_endpoint="https://login.example.com/auth",
    token_endpoint="https://login.example.com/token",
    code_challenge_methods=("S256",),
    sends_issuer=True,
)


@pytest.mark.parametrize("issuer", [None, "https://evil.example", "https://login.example.com/", ""])
def test_attack_9_a_response_of_another_issuer_or_of_none_is_refused(issuer: str | None) -> None:
    query = urlencode({"code": "c", "state": "s", **({} if issuer is None else {"iss": issuer})})
    assert refusal(lambda: check_authorization_response(query, "s", METADATA)) == "issuer"


def test_attack_9_an_issuer_that_does_not_announce_itself_may_leave_itself_out() -> None:
    metadata = replace(METADATA, sends_issuer=False)
    assert check_authorization_response("code=c&state=s", "s", metadata) == "c"
    wrong = "code=c&state=s&iss=https%3A%2F%2Fevil.example"
    assert refusal(lambda: check_authorization_response(wrong, "s", metadata)) == "issuer"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "state"),
        ("code=c", "state"),
        ("code=c&state=", "state"),
        ("code=c&state=other", "state"),
        ("code=c&state=s&state=s", "state"),
        ("code=c&state=s&code=d", "state"),
        ("error=x&error_description=shown", "state"),
        ("code=c&state=s%00", "state"),
        ("state=s&code=" + "x" * 20_000, "state"),
        ("&".join(f"a{number}=1" for number in range(60)) + "&code=c&state=s", "state"),
        ("state=s", "response"),
        ("state=s&code=", "response"),
        ("state=s&error=access_denied", "provider"),
        ("state=s&error=access_denied&code=c", "provider"),
    ],
)
def test_attack_11_a_response_that_does_not_belong_to_the_login_is_refused(query: str, reason: str) -> None:
    metadata = replace(METADATA, sends_issuer=False)
    assert refusal(lambda: check_authorization_response(query, "s", metadata)) == reason


def test_a_provider_without_pkce_is_refused() -> None:
    for methods in ((), ("plain",)):
        metadata = replace(METADATA, code_challenge_methods=methods)
        with pytest.raises(PinwardenError) as caught:
            build_authorization_url(metadata, {}, "v")
        assert caught.value.code == "ISSUER_INVALID"
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"  # of RFC 7636, appendix B
    assert parse_qs(urlsplit(build_authorization_url(METADATA, {"state": "s"}, verifier)).query) == {
        "response_type": ["code"],
        "state": ["s"],
        "code_challenge": ["E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"],
        "code_challenge_method": ["S256"],
    }


class FlowWorld:
    """A login whose token endpoint answers as a test says."""

    def __init__(self, server: IssuerServer) -> None:
        self.server = server
        self.issuer = Issuer(server.url)
        self.flow = LoginFlow(self.issuer, SETTINGS)
        server.publish(K1)
        self.now = time.time()
        self.request, _ = self.flow.begin(REDIRECT, "/", self.now)
        self.claims: dict[str, Any] = {
            "iss": server.url,
            "sub": "alice",
            "aud": "dashboard",
            "nonce": self.request.nonce,
            "iat": self.now,
            "exp": self.now + 60,
            "groups": ["reviewers"],
        }

    def finish(self, id_token: object, **changes: Any) -> Person:
        self.server.answers["/token"] = {
            "access_token": "a",
            "token_type": "Bearer",
            **({} if id_token is None else {"id_token": id_token}),
            **changes,
        }
        return self.flow.finish(self.request, f"code=c&state={self.request.state}", self.now)

    def sign(self, header: dict[str, Any] | None = None, **changes: Any) -> str:
        claims = {name: value for name, value in {**self.claims, **changes}.items() if value is not None}
        return K1.sign(claims, {"typ": "JWT", **(header or {})})


@pytest.fixture
def world() -> Iterator[FlowWorld]:
    with issuer_server() as server:
        yield FlowWorld(server)


def test_the_answers_of_the_test_are_right_but_for_what_each_test_changes(world: FlowWorld) -> None:
    assert world.finish(world.sign()).role == "reviewer"
    assert world.finish(world.sign(aud=["dashboard", "other"], azp="dashboard")).role == "reviewer"


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "other"},
        {"aud": ["dashboard", "other"]},
        {"azp": "other"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"exp": None},
        {"iat": None},
        {"sub": None},
        {"nonce": None},
        {"nonce": 5},
    ],
)
def test_an_id_token_for_others_or_without_what_it_needs_is_refused(world: FlowWorld, changes: dict[str, Any]) -> None:
    assert refusal(lambda: world.finish(world.sign(**changes))) == "id-token"


@pytest.mark.parametrize("name", ["absent", "number", "empty", "unsigned", "other key", "access token"])
def test_an_id_token_that_is_missing_unsigned_or_of_another_key_is_refused(world: FlowWorld, name: str) -> None:
    token: object = {
        "absent": None,
        "number": 5,
        "empty": "",
        "unsigned": "e30.e30.",
        "other key": K2.sign(world.claims, {"typ": "JWT"}),
        "access token": world.sign({"typ": "at+jwt"}),
    }[name]
    assert refusal(lambda: world.finish(token)) == "id-token"


def test_a_key_that_signs_since_a_moment_ago_is_fetched_during_the_login(world: FlowWorld) -> None:
    world.server.publish(K2)
    issuer = Issuer(world.server.url, clock=iter(range(1000, 90_000, 40)).__next__)
    world.flow = LoginFlow(issuer, SETTINGS)
    issuer.refresh()
    world.server.publish(K1, K2)
    assert world.finish(world.sign()).subject == "alice"


@pytest.mark.parametrize("changes", [{"token_type": "DPoP"}, {"access_token": ""}, {"token_type": None}])
def test_a_token_response_without_a_bearer_token_is_refused(world: FlowWorld, changes: dict[str, Any]) -> None:
    assert refusal(lambda: world.finish(world.sign(), **changes)) == "provider"


def test_claims_about_another_user_are_refused(world: FlowWorld) -> None:
    world.server.publish(K1, userinfo_endpoint=f"{world.server.url}/me")
    world.flow = LoginFlow(Issuer(world.server.url), SETTINGS)
    world.server.answers["/me"] = {"sub": "carol", "groups": ["security"]}
    assert refusal(lambda: world.finish(world.sign(groups=None))) == "userinfo"
    world.server.answers["/me"] = {"sub": "alice", "groups": ["security"], "iss": "https://evil.example", "exp": 1}
    person = world.finish(world.sign(groups=None))
    assert (person.role, person.issuer) == ("admin", world.server.url)


def test_names_are_shown_without_hidden_characters(world: FlowWorld) -> None:
    person = world.finish(world.sign(name="Ali\u200bce\n\u202eX"))
    assert person.name == "Ali<U+200B>ce <U+202E>X"
    assert len(world.finish(world.sign(name="x" * 500)).name) == 200


@pytest.mark.parametrize(
    "path",
    [
        "",
        "reviews",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "/ /evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "/a\\b",
        "/\u2215/evil.example",
        "@evil.example",
        "/" + "x" * 3000,
    ],
)
def test_attack_10_a_page_to_return_to_is_on_this_site(path: str) -> None:
    assert not is_local_path(path)


def test_pages_of_this_site_are_local_paths() -> None:
    for path in ("/", "/reviews", "/reviews?server=notes&tool=a%2Fb", "/a//b"):
        assert is_local_path(path)
