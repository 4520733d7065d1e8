"""Getting tokens for remote servers: what servers and issuers may say, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.identity.loopback import LoopbackRedirect
from pinwarden.identity.remote_flow import ConnectRequest, RemoteFlow
from pinwarden.identity.remote_settings import RemoteSettings, parse_remotes
from tests.identity.issuer_server import METADATA, IssuerServer, issuer_server

REDIRECT = "http://127.0.0.1/callback"
RESOURCE = "/.well-known/oauth-protected-resource/mcp"
KNOWN = {"issuer": "", "client_id": "desk"}


@pytest.fixture
def server() -> Iterator[IssuerServer]:
    """A remote server that is its own issuer."""
    with issuer_server() as running:
        running.publish(jwks_uri=None)
        publish_resource(running)
        yield running


def publish_resource(server: IssuerServer, challenge: str | None = None, **more: Any) -> None:
    """Publish the server's metadata, and a challenge that names them."""
    server.answers[RESOURCE] = {
        "resource": f"{server.url}/mcp",
        "authorization_servers": [server.url],
        "scopes_supported": ["notes:all"],
        **more,
    }
    header = challenge
    if header is None:
        header = f'Bearer resource_metadata="{server.url}{RESOURCE}", scope="notes:read"'

    def refuse(handler: Any) -> None:
        handler.send_response(401)
        handler.send_header("www-authenticate", header)
        handler.send_header("content-length", "0")
        handler.end_headers()

    server.answers["/mcp"] = refuse


def settings(server: IssuerServer, **more: Any) -> RemoteSettings:
    return RemoteSettings(**{"issuer": server.url, "client_id": "desk", **more})


def begin(server: IssuerServer, chosen: RemoteSettings | None = None, **more: Any) -> tuple[ConnectRequest, str]:
    with RemoteFlow(f"{server.url}/mcp", chosen or settings(server)) as flow:
        return flow.begin(REDIRECT, 1000.0, **more)


def refused(server: IssuerServer, chosen: RemoteSettings | None = None, **more: Any) -> tuple[str, Any]:
    with pytest.raises(PinwardenError) as caught:
        begin(server, chosen, **more)
    return caught.value.code, caught.value.data.get("reason")


def test_a_server_is_asked_for_its_issuer_and_the_issuer_for_a_code(server: IssuerServer) -> None:
    request, url = begin(server, scopes=["notes:write"])
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert url.startswith(f"{server.url}/auth?")
    assert query.pop("code_challenge")
    assert query == {
        "response_type": "code",
        "client_id": "desk",
        "redirect_uri": REDIRECT,
        "state": request.state,
        "resource": f"{server.url}/mcp",
        "scope": "notes:read notes:write",
        "code_challenge_method": "S256",
    }
    assert request.verifier not in repr(request)
    assert request.state not in repr(request)


def test_the_well_known_addresses_are_asked_if_the_challenge_names_none(server: IssuerServer) -> None:
    publish_resource(server, "Bearer")
    assert begin(server)[0].scopes == ("notes:all",)
    server.answers["/.well-known/oauth-protected-resource"] = server.answers.pop(RESOURCE)
    assert begin(server)[0].scopes == ("notes:all",)
    del server.answers["/.well-known/oauth-protected-resource"]
    request, _ = begin(server)
    assert (request.client.issuer, request.client.resource) == (server.url, f"{server.url}/mcp")
    assert refused(server, RemoteSettings()) == ("REMOTE_REFUSED", "metadata")


def test_offline_access_is_requested_with_consent_where_the_issuer_offers_it(server: IssuerServer) -> None:
    server.publish(jwks_uri=None, scopes_supported=["offline_access"])
    request, url = begin(server)
    assert request.scopes == ("notes:read", "offline_access")
    assert "prompt=consent" in url


@pytest.mark.parametrize(
    "named",
    ["https://evil.example/mcp", "{url}/other", "{url}", "http://127.0.0.1:9/mcp", "{url}/mcpx", "{url}/mcp?a=1"],
)
def test_attack_poisoned_metadata_cannot_ask_for_a_token_of_another_resource(server: IssuerServer, named: str) -> None:
    publish_resource(server, resource=named.format(url=server.url))
    assert refused(server) == ("REMOTE_REFUSED", "resource")


def test_a_resource_above_the_server_counts_only_if_it_is_configured(server: IssuerServer) -> None:
    publish_resource(server, resource=server.url)
    assert begin(server, settings(server, resource=server.url))[0].client.resource == server.url


def test_attack_metadata_at_another_host_are_not_fetched(server: IssuerServer) -> None:
    for url in ("https://169.254.169.254/latest", "http://localhost:9/x", "file:///etc/passwd", "https://a@b/"):
        publish_resource(server, f'Bearer resource_metadata="{url}"')
        assert refused(server)[0] == "REMOTE_REFUSED"
    assert "/latest" not in server.requests


@pytest.mark.parametrize(
    "issuer",
    [
        "https://169.254.169.254",
        "https://[::ffff:169.254.169.254]",
        "https://0251.0376.0251.0376",
        "https://2852039166",
        "https://10.1.2.3/tenant",
        "http://198.51.100.7",
        "http://login.example.com",
        "javascript:alert(1)",
        "https://user@127.0.0.1/",
        "https://login.example.com/?next=1",
    ],
)
def test_attack_ssrf_a_server_cannot_name_a_private_or_plain_issuer(server: IssuerServer, issuer: str) -> None:
    publish_resource(server, authorization_servers=[issuer])
    assert refused(server, RemoteSettings(allow_registration=True))[0] in ("REMOTE_REFUSED", "REMOTE_UNAVAILABLE")


def test_attack_a_server_cannot_replace_the_configured_issuer(server: IssuerServer) -> None:
    publish_resource(server, authorization_servers=["https://evil.example"])
    assert refused(server) == ("REMOTE_REFUSED", "issuer")


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "http://login.example.com/auth"},
        {"token_endpoint": "http://10.0.0.1/token"},
        {"code_challenge_methods_supported": ["plain"]},
        {"code_challenge_methods_supported": None},
        {"authorization_endpoint": None},
    ],
)
def test_attack_poisoned_issuer_metadata_are_refused(server: IssuerServer, metadata: dict[str, Any]) -> None:
    server.publish(**{"jwks_uri": None, **metadata})
    assert refused(server)[0] == "REMOTE_REFUSED"


def test_attack_redirects_and_huge_documents_are_refused(server: IssuerServer) -> None:
    whole = server.answers[METADATA]
    server.answers["/elsewhere"] = whole
    server.answers[METADATA] = lambda handler: handler.redirect("/elsewhere")
    assert refused(server)[0] == "REMOTE_REFUSED"
    assert server.requests["/elsewhere"] == 0
    server.answers[METADATA] = {**whole, "x": "x" * 600_000}
    assert refused(server)[0] == "REMOTE_REFUSED"
    server.answers[METADATA] = whole
    publish_resource(server, x="x" * 200_000)
    assert refused(server)[0] == "REMOTE_REFUSED"


def test_attack_a_slow_body_ends_in_time(server: IssuerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from pinwarden.core.record import replace
    from pinwarden.identity import remote_flow

    monkeypatch.setattr(remote_flow, "_LIMITS", replace(remote_flow._LIMITS, total_seconds=0.5, idle_seconds=0.5))

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", "100000")
        handler.end_headers()
        while not server.released.wait(0.05):
            handler.wfile.write(b" ")

    server.answers[RESOURCE] = drip
    assert refused(server)[0] == "REMOTE_UNAVAILABLE"


def test_registration_happens_only_where_it_is_offered_and_allowed(server: IssuerServer) -> None:
    unknown = RemoteSettings()
    assert refused(server, unknown) == ("REMOTE_REFUSED", "client")
    server.publish(jwks_uri=None, registration_endpoint=f"{server.url}/register")
    server.answers["/register"] = {"client_id": "made-up"}
    assert refused(server, unknown) == ("REMOTE_REFUSED", "registration")
    assert server.requests["/register"] == 0
    assert begin(server, unknown, may_register=True)[0].client.credentials.client_id == "made-up"
    assert begin(server, settings(server))[0].client.credentials.client_id == "desk"
    for bad in ({"client_id": "a\nb"}, {"client_id": "a", "client_secret": 1}, {}):
        server.answers["/register"] = bad
        assert refused(server, unknown, may_register=True)[0] == "REMOTE_REFUSED"


def test_a_client_metadata_document_needs_an_issuer_that_reads_it(server: IssuerServer) -> None:
    document = RemoteSettings(client_id="https://gw.example.com/client.json")
    assert refused(server, document) == ("REMOTE_REFUSED", "client")
    server.publish(jwks_uri=None, client_id_metadata_document_supported=True)
    trusted = settings(server, client_id=document.client_id)
    assert begin(server, trusted)[0].client.credentials.client_id == "https://gw.example.com/client.json"


def finish(server: IssuerServer, request: ConnectRequest, query: str, now: float = 1010.0) -> Any:
    with RemoteFlow(f"{server.url}/mcp", settings(server)) as flow:
        return flow.finish(request, query, now)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("code=c&state=other&iss={url}", "state"),
        ("code=c&iss={url}", "state"),
        ("code=c&state={state}&state=x&iss={url}", "state"),
        ("code=c&state={state}&iss=https://evil.example", "issuer"),
        ("code=c&state={state}&iss={url}/", "issuer"),
        ("code=c&state={state}", "issuer"),
        ("state={state}&iss={url}", "response"),
        ("error=access_denied&state={state}&iss={url}", "provider"),
    ],
)
def test_attack_mix_up_and_forged_responses_are_refused(server: IssuerServer, query: str, reason: str) -> None:
    server.publish(jwks_uri=None, authorization_response_iss_parameter_supported=True)
    request, _ = begin(server)
    with pytest.raises(PinwardenError) as caught:
        finish(server, request, query.format(state=request.state, url=server.url))
    assert (caught.value.code, caught.value.data["reason"]) == ("REMOTE_REFUSED", reason)
    assert server.requests["/token"] == 0


def test_attack_mix_up_an_issuer_that_a_server_names_has_a_redirect_uri_of_its_own(server: IssuerServer) -> None:
    """It could forward the browser to another issuer with Pinwarden's known client, and get the code."""
    server.publish(jwks_uri=None, registration_endpoint=f"{server.url}/register")
    server.answers["/register"] = {"client_id": "desk"}  # the client at the other issuer
    request, url = begin(server, RemoteSettings(allow_registration=True))
    (sent,) = parse_qs(urlsplit(url).query)["redirect_uri"]
    assert sent == request.redirect_uri
    assert re.fullmatch(rf"{REDIRECT}/[0-9a-f]{{16}}", sent)
    assert begin(server, settings(server, client_id="", allow_registration=True))[0].redirect_uri == REDIRECT
    document = RemoteSettings(client_id="https://pinwarden.example/client.json")
    server.publish(jwks_uri=None, client_id_metadata_document_supported=True)
    assert refused(server, document) == ("REMOTE_REFUSED", "issuer")
    named = {"authorization_response_iss_parameter_supported": True}
    server.publish(jwks_uri=None, client_id_metadata_document_supported=True, **named)
    assert begin(server, document)[0].redirect_uri == REDIRECT


def test_attack_mix_up_a_response_at_another_redirect_uri_is_not_taken() -> None:
    with LoopbackRedirect() as redirect:
        own = f"{redirect.uri}/0123456789abcdef"
        statuses: list[int] = []

        def ask() -> None:
            for uri in (redirect.uri, own):
                with suppress(HTTPError), urlopen(f"{uri}?code={len(statuses)}") as response:
                    statuses.append(response.status)
                    continue
                statuses.append(404)

        thread = Thread(target=ask)
        thread.start()
        assert redirect.wait(lambda _: True, 30.0, own) == "code=1"
        thread.join()
    assert statuses == [404, 200]


def test_a_connection_that_took_too_long_is_refused(server: IssuerServer) -> None:
    request, _ = begin(server)
    with pytest.raises(PinwardenError) as caught:
        finish(server, request, f"code=c&state={request.state}", 1601.0)
    assert caught.value.data["reason"] == "expired"


@pytest.mark.parametrize(
    "answer",
    [
        {"access_token": "a b"},
        {"access_token": "a\r\nx-injected: 1"},
        {"access_token": "x" * 20_000},
        {"refresh_token": "a\n"},
        {"refresh_token": 7},
        {"expires_in": -1},
        {"expires_in": "3600"},
        {"expires_in": True},
        {"expires_in": 1 << 60},
        {"scope": ["a"]},
        {"token_type": "mac"},
        {"access_token": ""},
    ],
)
def test_attack_malformed_tokens_are_refused_and_not_shown(server: IssuerServer, answer: dict[str, Any]) -> None:
    secret = "very-secret-token"
    server.answers["/token"] = {"access_token": secret, "token_type": "Bearer", **answer}
    request, _ = begin(server)
    with pytest.raises(PinwardenError) as caught:
        finish(server, request, f"code=c&state={request.state}&iss={server.url}")
    assert caught.value.code == "REMOTE_REFUSED"
    assert secret not in f"{caught.value.message}{caught.value.data}"


def test_settings_name_what_is_wrong() -> None:
    def problem(text: str, **variables: str) -> str:
        with pytest.raises(PinwardenError) as caught:
            parse_remotes(f"[remotes.notes]\n{text}".encode(), variables)
        assert caught.value.code == "REMOTES_INVALID"
        return str(caught.value.data["key"])

    assert problem("x = 1") == "remotes.notes.x"
    assert problem('account = "everyone"') == "remotes.notes.account"
    assert problem('client-id = "a"') == "remotes.notes.client-id"
    assert problem('client-id = "https://a.example"') == "remotes.notes.client-id"
    assert problem('account = "machine"') == "remotes.notes.account"
    assert problem('scopes = ["a b"]') == "remotes.notes.scopes"
    assert problem('issuer = "javascript:x"') == "remotes.notes.issuer"
    assert problem("resource = 1") == "remotes.notes.resource"
    known = 'issuer = "https://a.example"\nclient-id = "b"\n'
    assert problem(f'{known}client-secret-variable = "PINWARDEN_X_SECRET"') == "remotes.notes.client-secret-variable"
    # A project's file must not send any variable of this machine to an issuer.
    stolen = {"AWS_SECRET_ACCESS_KEY": "x", "PINWARDEN_GRANT_KEY": "x"}
    for name in stolen:
        assert problem(f'{known}client-secret-variable = "{name}"', **stolen).endswith("client-secret-variable")
    text = f'[remotes.notes]\n{known}client-secret-variable = "PINWARDEN_X_SECRET"\naccount = "shared"\n'
    (parsed,) = parse_remotes(text.encode(), {"PINWARDEN_X_SECRET": "hidden"}).values()
    assert (parsed.account, parsed.client_secret, "hidden" in repr(parsed)) == ("shared", "hidden", False)
    assert parse_remotes(b"[policy]\n", {}) == {}
