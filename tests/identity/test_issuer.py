"""An issuer's metadata and keys: what is refused, how often is asked, and what happens while it is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.identity.issuer import Issuer, IssuerLimits, check_issuer_url, list_metadata_urls
from tests.identity.issuer_server import METADATA, IssuerServer, issuer_server
from tests.support.oidc_provider import SigningKey

K1, K2 = SigningKey("k1"), SigningKey("k2")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[IssuerServer]:
    with issuer_server() as server:
        server.publish(K1)
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(server: IssuerServer, clock: Clock) -> Iterator[Issuer]:
    issuer = Issuer(server.url, clock=clock)
    yield issuer
    issuer.close()


def refusal(issuer: Issuer) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        issuer.refresh()
    assert issuer.find_key("k1", "RS256") is None
    assert issuer.problem == caught.value.message
    return caught.value


def test_metadata_and_keys_are_fetched_once_while_they_are_fresh(
    server: IssuerServer, issuer: Issuer, clock: Clock
) -> None:
    for _ in range(3):
        assert issuer.load_metadata().token_endpoint == f"{server.url}/token"
    clock.now += 299
    issuer.refresh()
    assert (server.requests[METADATA], server.requests["/jwks"]) == (1, 1)
    clock.now += 1
    issuer.refresh()
    assert (server.requests[METADATA], server.requests["/jwks"]) == (2, 2)
    assert issuer.generation == 1


def test_a_new_key_is_found_and_a_withdrawn_one_is_refused(server: IssuerServer, issuer: Issuer, clock: Clock) -> None:
    issuer.refresh()
    server.publish(K2)
    assert issuer.find_key("k2", "RS256") is None
    clock.now += 31
    assert issuer.needs_refresh(key_unknown=True)
    issuer.refresh(key_unknown=True)
    assert issuer.find_key("k2", "RS256") is not None
    assert issuer.find_key("k1", "RS256") is None
    assert issuer.generation == 2


def test_attack_6_a_flood_of_unknown_keys_causes_one_fetch_per_cooldown(
    server: IssuerServer, issuer: Issuer, clock: Clock
) -> None:
    issuer.refresh()
    for second in range(61):
        clock.now = 1000.0 + second
        issuer.refresh(key_unknown=True)
    assert server.requests["/jwks"] == 3


def test_an_issuer_that_is_away_is_asked_once_per_cooldown_too(
    server: IssuerServer, issuer: Issuer, clock: Clock
) -> None:
    server.away = True
    for second in range(31):
        clock.now = 1000.0 + second
        assert refusal(issuer).code == "ISSUER_UNAVAILABLE"
    assert server.requests[METADATA] == 2


def test_known_keys_are_used_for_a_day_while_the_issuer_is_away(
    server: IssuerServer, issuer: Issuer, clock: Clock
) -> None:
    issuer.refresh()
    server.away = True
    clock.now += 24 * 3600
    issuer.refresh()
    assert issuer.find_key("k1", "RS256") is not None
    assert "503" in issuer.problem
    clock.now += 1
    assert issuer.find_key("k1", "RS256") is None
    with pytest.raises(PinwardenError) as caught:
        issuer.load_metadata()
    assert caught.value.code == "ISSUER_UNAVAILABLE"


def test_a_signature_without_a_key_id_needs_exactly_one_suitable_key(
    server: IssuerServer, issuer: Issuer, clock: Clock
) -> None:
    issuer.refresh()
    assert issuer.find_key(None, "RS256") is not None
    assert issuer.find_key(None, "ES256") is None
    server.publish(K1, K2)
    clock.now += 300
    issuer.refresh()
    assert issuer.find_key(None, "RS256") is None


def test_two_keys_with_one_id_are_not_used(server: IssuerServer, issuer: Issuer) -> None:
    server.publish(K1, SigningKey("k1"))
    issuer.refresh()
    assert issuer.find_key("k1", "RS256") is None


@pytest.mark.parametrize("named", ["https://evil.example", "{url}/", "{url}/tenant", "", None, ["{url}"]])
def test_attack_7_metadata_that_names_another_issuer_is_refused(
    server: IssuerServer, issuer: Issuer, named: Any
) -> None:
    server.publish(K1, issuer=named.format(url=server.url) if isinstance(named, str) else named)
    assert refusal(issuer).code == "ISSUER_INVALID"
    assert server.requests["/jwks"] == 0


@pytest.mark.parametrize("path", [METADATA, "/jwks"])
def test_attack_7_redirects_are_not_followed(server: IssuerServer, issuer: Issuer, path: str) -> None:
    server.answers["/elsewhere"] = server.answers[path]
    server.answers[path] = lambda handler: handler.redirect(f"{server.url}/elsewhere")
    assert refusal(issuer).code == "ISSUER_INVALID"
    assert server.requests["/elsewhere"] == 0


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:169.254.169.254]/jwks",
        "https://[::ffff:a9fe:a9fe]/jwks",
        "https://0251.0376.0251.0376/jwks",
        "https://10.0.0.1/jwks",
        "https://[fd00::1]/jwks",
        "https://localhost:1/jwks",
    ],
)
def test_attack_8_keys_at_a_private_address_are_not_fetched(server: IssuerServer, issuer: Issuer, url: str) -> None:
    server.publish(K1, jwks_uri=url)
    error = refusal(issuer)
    assert (error.code, error.data["reason"]) == ("ISSUER_INVALID", "private")


@pytest.mark.parametrize(
    "url", ["http://login.example.com/jwks", "file:///etc/passwd", "ftp://a/b", "//a/b", "jwks", "", 5, None]
)
def test_attack_8_keys_at_what_is_no_https_address_are_not_fetched(
    server: IssuerServer, issuer: Issuer, url: Any
) -> None:
    server.publish(K1, jwks_uri=url)
    assert refusal(issuer).code == "ISSUER_INVALID"


def test_attack_8_a_host_with_the_address_of_the_issuer_only_by_name_is_refused(
    server: IssuerServer, issuer: Issuer
) -> None:
    server.publish(K1, jwks_uri=server.url.replace("127.0.0.1", "localhost") + "/jwks")
    assert refusal(issuer).code == "ISSUER_INVALID"
    assert server.requests["/jwks"] == 0


@pytest.mark.parametrize("path", [METADATA, "/jwks"])
def test_attack_8_a_huge_document_is_refused(server: IssuerServer, issuer: Issuer, path: str) -> None:
    server.answers[path] = lambda handler: handler.respond(b'{"x":"' + b"x" * 600_000 + b'"}')
    assert refusal(issuer).code == "ISSUER_INVALID"


def test_attack_8_a_document_that_never_ends_is_given_up(server: IssuerServer) -> None:
    def trickle(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.end_headers()
        while not server.released.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    server.answers[METADATA] = trickle
    error = refusal(Issuer(server.url, limits=IssuerLimits(seconds=0.5)))
    assert (error.code, error.data["reason"]) == ("ISSUER_UNAVAILABLE", "timeout")


@pytest.mark.parametrize(
    "document",
    ["text", [], {"keys": {}}, {}, {"keys": []}, {"keys": [{}] * 101}, {"keys": [{"kty": "oct", "k": "eA"}]}],
)
def test_a_key_set_without_a_usable_key_is_refused(server: IssuerServer, issuer: Issuer, document: Any) -> None:
    server.answers["/jwks"] = document
    assert refusal(issuer).code == "ISSUER_INVALID"


def test_keys_that_cannot_be_replaced_stay_in_use(server: IssuerServer, issuer: Issuer, clock: Clock) -> None:
    issuer.refresh()
    server.answers["/jwks"] = {"keys": []}
    clock.now += 300
    issuer.refresh()
    assert issuer.find_key("k1", "RS256") is not None
    assert "no usable key" in issuer.problem


def test_metadata_is_also_found_at_the_address_of_openid_connect(server: IssuerServer, issuer: Issuer) -> None:
    document = server.answers.pop(METADATA)
    assert refusal(issuer).code == "ISSUER_INVALID"
    server.answers["/.well-known/openid-configuration"] = document
    assert Issuer(server.url).load_metadata().issuer == server.url


def test_a_page_for_people_at_a_well_known_address_counts_as_nothing(server: IssuerServer, issuer: Issuer) -> None:
    server.answers["/.well-known/openid-configuration"] = server.answers[METADATA]
    server.answers[METADATA] = lambda handler: handler.respond(b"<p>Welcome</p>", "text/html")
    assert issuer.load_metadata().issuer == server.url


def test_the_well_known_addresses_have_the_order_of_the_specification() -> None:
    assert list_metadata_urls("https://a.example/t") == (
        "https://a.example/.well-known/oauth-authorization-server/t",
        "https://a.example/.well-known/openid-configuration/t",
        "https://a.example/t/.well-known/openid-configuration",
    )
    assert list_metadata_urls("https://a.example:8443/") == (
        "https://a.example:8443/.well-known/oauth-authorization-server",
        "https://a.example:8443/.well-known/openid-configuration",
    )


@pytest.mark.parametrize("url", ["http://login.example.com", "https://a.example/?x=1"])
def test_an_issuer_is_named_by_an_https_url_without_a_query(url: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        check_issuer_url(url)
    assert caught.value.code == "ISSUER_INVALID"
