"""Probing addresses: three transports, both eras, and nothing that a server, resolver or redirect can make of us."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.surface.probe.probe import ProbeOptions, probe, probe_all, probe_as_two_clients
from pinwarden.surface.probe.session import ClientIdentity
from pinwarden.surface.surface import Surface
from pinwarden.system.net.connections import is_public
from pinwarden.system.probe_budget import ProbeLimits
from pinwarden.system.target import HttpTarget
from tests.servers.scripted_http import HttpWorld, http_server
from tests.support.targets import LOCAL, failure, names, tool

SCRIPT: dict[str, Any] = {
    "server": {"instructions": "Be kind."},
    "lists": {"tools": [[tool("a")], [tool("b")]], "prompts": [[{"name": "p"}]]},
}
OLD = {**SCRIPT, "eras": ["initialize"]}


def at(world: HttpWorld, **members: Any) -> HttpTarget:
    return HttpTarget(url=world.url, **members)


class TestTransports:
    @pytest.mark.parametrize(
        ("mode", "script", "transport", "era"),
        [
            ("json", SCRIPT, "streamable-http", "discover"),
            ("events", SCRIPT, "streamable-http", "discover"),
            ("json", {**SCRIPT, "eras": ["discover"]}, "streamable-http", "discover"),
            ("json", OLD, "streamable-http", "initialize"),
            ("events", OLD, "streamable-http", "initialize"),
            ("sessions", OLD, "streamable-http", "initialize"),
            ("sse", {**OLD, "version": "2024-11-05"}, "sse", "initialize"),
        ],
    )
    def test_the_whole_surface_is_seen_over_every_transport(
        self, mode: str, script: dict[str, Any], transport: str, era: str
    ) -> None:
        with http_server(script, mode) as world:
            surface = probe(at(world), LOCAL)
        assert names(surface) == ["a", "b"]
        assert names(surface, "prompts") == ["p"]
        assert surface.server is not None
        assert surface.server["instructions"] == "Be kind."
        assert (surface.observed["transport"], surface.observed["era"]) == (transport, era)
        assert surface.observed["pages"] == {"tools": 2, "prompts": 1}

    def test_the_modern_era_names_version_and_method_in_headers(self) -> None:
        with http_server(SCRIPT) as world:
            probe(at(world), LOCAL)
        for _, _, headers, message in world.requests:
            assert message is not None
            assert headers["mcp-method"] == message["method"]
            assert headers["mcp-protocol-version"] == "2026-07-28"
            assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
            assert message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}
            assert message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] == "pinwarden"

    def test_one_connection_serves_all_questions(self) -> None:
        with http_server(SCRIPT) as world:
            probe(at(world), LOCAL)
        assert (len(world.requests), world.connections) == (4, 1)

    def test_a_stream_that_is_done_is_closed(self) -> None:
        pages = [[tool(str(number))] for number in range(60)]
        with http_server({"lists": {"tools": pages}}, "events") as world:
            surface = probe(at(world), LOCAL)
        assert len(surface.items["tools"]) == 60
        assert world.connections > 60
        assert world.most_open < 30  # the server notices a closed connection a little later

    def test_a_session_is_kept_and_ended(self) -> None:
        with http_server(OLD, "sessions") as world:
            probe(at(world), LOCAL)
        after = world.requests[2:]
        assert {headers.get("mcp-session-id") for _, _, headers, _ in after} == {"s-1"}
        assert {headers.get("mcp-protocol-version") for _, _, headers, _ in after} == {"2025-11-25"}
        assert world.requests[-1][0] == "DELETE"

    def test_requests_of_the_server_on_its_stream_get_a_response(self) -> None:
        asks = [
            {"jsonrpc": "2.0", "id": "p", "method": "ping"},
            {"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}},
        ]
        with http_server({"lists": {"tools": [[tool("a")]]}, "asks": asks}, "events") as world:
            assert names(probe(at(world), LOCAL)) == ["a"]

    def test_a_transport_can_be_demanded(self) -> None:
        with http_server(OLD, "sse") as world:
            assert probe(at(world, transport="sse"), LOCAL).observed["transport"] == "sse"
            error = failure(at(world, transport="streamable-http"), LOCAL)
        assert (error.code, error.data["status"]) == ("PROBE_FAILED", 404)

    def test_attack_lists_that_differ_by_client_are_seen(self) -> None:
        script = {**SCRIPT, "for_client": {"real": {"tools": [[tool("evil")]]}}}
        with http_server(script) as world:
            ours, theirs = probe_as_two_clients(at(world), LOCAL, ClientIdentity(name="real"))
        assert (names(ours), names(theirs)) == (["a", "b"], ["evil"])

    def test_many_are_probed_at_once_in_order(self) -> None:
        with http_server(SCRIPT) as first, http_server({}, "status:404") as second:
            results = probe_all([at(second), at(first), at(second)], LOCAL)
        assert [type(result) for result in results] == [PinwardenError, Surface, PinwardenError]

    @pytest.mark.parametrize("mode", ["json", "events"])
    def test_attack_one_undigestable_tool_does_not_hide_the_others(self, mode: str) -> None:
        script = {"lists": {"tools": [[tool("a"), '{"name":"x","name":"y"}', tool("b")]]}}
        with http_server(script, mode) as world:
            surface = probe(at(world), LOCAL)
        assert [item.key for item in surface.items["tools"] if item.digest] == ["a", "b"]
        assert len(surface.undigestable) == 1


class TestFailures:
    @pytest.mark.parametrize("mode", ["hang", "drip", "drip-headers"])
    def test_attack_a_server_that_takes_for_ever_meets_the_deadline(self, mode: str) -> None:
        with http_server(SCRIPT, mode) as world:
            error = failure(at(world), replace(LOCAL, timeout=1))
        assert (error.code, error.data["reason"]) == ("PROBE_FAILED", "timeout")

    def test_attack_a_stream_without_end_of_message_meets_the_limit(self) -> None:
        options = replace(LOCAL, limits=ProbeLimits(max_message_bytes=200))
        with http_server(SCRIPT, "drip") as world:
            assert failure(at(world), options).code == "PROBE_LIMIT"

    def test_attack_an_oversized_answer_meets_the_limit(self) -> None:
        options = replace(LOCAL, limits=ProbeLimits(max_message_bytes=100))
        with http_server(SCRIPT) as world:
            assert failure(at(world), options).code == "PROBE_LIMIT"

    def test_attack_a_compressed_answer_is_refused(self) -> None:
        with http_server(SCRIPT, "gzip") as world:
            assert failure(at(world), LOCAL).data["reason"] == "protocol"

    def test_a_connection_that_is_cut_is_an_error(self) -> None:
        with http_server(SCRIPT, "cut") as world:
            error = failure(at(world), LOCAL)
        assert (error.code, error.data["reason"]) == ("PROBE_FAILED", "ended")

    @pytest.mark.parametrize("status", [401, 403, 404, 500])
    def test_an_http_error_is_named(self, status: int) -> None:
        with http_server(SCRIPT, f"status:{status}") as world:
            error = failure(at(world, transport="streamable-http"), LOCAL)
        assert (error.code, error.data["status"]) == ("PROBE_FAILED", status)
        if status in (401, 403):
            assert len(world.requests) == 1

    def test_a_closed_port_is_an_error(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            error = failure(HttpTarget(url=f"http://127.0.0.1:{held.getsockname()[1]}/"), LOCAL)
        assert (error.code, error.data["reason"]) == ("PROBE_FAILED", "connect")


class TestAddresses:
    def test_attack_a_private_address_is_not_contacted(self) -> None:
        with http_server(SCRIPT) as world:
            error = failure(at(world), ProbeOptions())
        assert (error.code, error.data["reason"]) == ("ADDRESS_REFUSED", "private")
        assert world.requests == []

    @pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]"])
    def test_attack_no_spelling_of_loopback_passes(self, host: str) -> None:
        assert failure(HttpTarget(url=f"https://{host}/mcp"), ProbeOptions()).code == "ADDRESS_REFUSED"

    @pytest.mark.parametrize(
        "place",
        [
            *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
            *("224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "ff02::1"),
            *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1"),
        ],
    )
    def test_attack_private_reserved_and_disguised_addresses_are_not_public(self, place: str) -> None:
        assert not is_public(ipaddress.ip_address(place))

    @pytest.mark.parametrize("place", ["1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"])
    def test_public_addresses_are_public(self, place: str) -> None:
        assert is_public(ipaddress.ip_address(place))

    def test_attack_a_name_that_also_leads_to_a_private_address_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve_to(monkeypatch, ["93.184.216.34", "10.0.0.5"])
        error = failure(HttpTarget(url="https://rebind.example/mcp"), ProbeOptions())
        assert (error.code, error.data["reason"]) == ("ADDRESS_REFUSED", "private")

    def test_attack_dns_rebinding_finds_the_name_already_pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with http_server(SCRIPT) as world:
            # The second and every later answer would be another place.
            asked = resolve_to(monkeypatch, ["127.0.0.1"], then=["127.0.0.2"])
            port = world.url.rpartition(":")[2]
            surface = probe(HttpTarget(url=f"http://rebind.example:{port}"), LOCAL)
        assert names(surface) == ["a", "b"]
        assert asked == ["rebind.example"]
        assert world.header_values("host") == {f"rebind.example:{port.partition('/')[0]}"}

    def test_plain_http_beyond_this_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve_to(monkeypatch, ["93.184.216.34"])
        error = failure(HttpTarget(url="http://public.example/mcp"), LOCAL)
        assert (error.code, error.data["reason"]) == ("ADDRESS_REFUSED", "plain-http")

    @pytest.mark.parametrize(
        "url",
        [
            *("ftp://a.example/", "https://", "https://user:pw@a.example/", "https://a.example/#x", "a.example"),
            *(
                "https://a.example\\@b.example/",
                "https://a.example/ b",
                "https://a.example:99999/",
                "https://ä.example/",
            ),
        ],
    )
    def test_an_address_that_readers_could_understand_differently_is_refused(self, url: str) -> None:
        with pytest.raises(PinwardenError) as caught:
            HttpTarget(url=url)
        assert caught.value.code == "TARGET_INVALID"


class TestRedirects:
    def test_a_redirect_is_refused_unless_allowed(self) -> None:
        with http_server(SCRIPT) as real, http_server(SCRIPT, f"redirect:307:{real.url}") as world:
            error = failure(at(world), LOCAL)
            assert (error.code, error.data["reason"]) == ("ADDRESS_REFUSED", "redirect")
            assert real.requests == []
            surface = probe(at(world), replace(LOCAL, allow_redirects=True))
        assert names(surface) == ["a", "b"]

    def test_attack_credentials_do_not_follow_a_redirect_to_another_origin(self) -> None:
        with http_server(SCRIPT) as real, http_server(SCRIPT, f"redirect:308:{real.url}") as world:
            target = at(world, headers={"Authorization": "Bearer abcdef", "X-Key": "k"})
            probe(target, replace(LOCAL, allow_redirects=True))
        assert world.header_values("authorization") == {"Bearer abcdef"}
        assert real.header_values("authorization") == set()
        assert real.header_values("x-key") == set()

    @pytest.mark.parametrize("host", ["127.0.0.2", "localhost", "10.0.0.1", "169.254.169.254", "[::1]"])
    def test_attack_a_redirect_to_a_private_host_is_refused_even_when_private_targets_are_allowed(
        self, host: str
    ) -> None:
        with http_server(SCRIPT, f"redirect:307:http://{host}:1/latest") as world:
            error = failure(at(world), replace(LOCAL, allow_redirects=True))
        assert error.code == "ADDRESS_REFUSED"

    @pytest.mark.parametrize("code", [301, 302, 303])
    def test_a_redirect_that_changes_the_request_is_refused(self, code: int) -> None:
        with http_server(SCRIPT) as real, http_server(SCRIPT, f"redirect:{code}:{real.url}") as world:
            assert failure(at(world), replace(LOCAL, allow_redirects=True)).code == "ADDRESS_REFUSED"
        assert real.requests == []

    def test_attack_redirects_in_a_circle_end(self) -> None:
        with http_server(SCRIPT, "redirect:307:/mcp") as world:
            error = failure(at(world), replace(LOCAL, allow_redirects=True))
        assert error.code == "ADDRESS_REFUSED"
        assert len(world.requests) == ProbeLimits().max_redirects + 1

    def test_attack_an_endpoint_on_another_host_gets_no_message(self) -> None:
        with http_server(SCRIPT) as thief:
            script = {**OLD, "endpoint": thief.url}
            with http_server(script, "sse") as world:
                error = failure(at(world, transport="sse", headers={"Authorization": "Bearer abcdef"}), LOCAL)
        assert (error.code, error.data["reason"]) == ("ADDRESS_REFUSED", "endpoint")
        assert thief.requests == []


class TestSecrets:
    def test_attack_a_server_that_echoes_headers_does_not_get_them_into_the_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("API_TOKEN", "tok-123456")
        monkeypatch.setenv("QUERY_KEY", "query-98765")
        headers = {"Authorization": "Bearer ${API_TOKEN}", "X-Api-Key": "literal-key"}
        with http_server(SCRIPT, "echo-headers") as world:
            target = HttpTarget(url=world.url + "?key=${QUERY_KEY}", headers=headers)
            error = failure(target, LOCAL)
        assert world.header_values("authorization") == {"Bearer tok-123456"}
        assert world.requests[0][1] == "/mcp?key=query-98765"
        shown = f"{error} {error.hint} {dict(error.data)} {target!r}"
        for secret in ("tok-123456", "literal-key", "query-98765"):
            assert secret not in shown

    def test_no_header_or_address_is_part_of_the_surface(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("API_TOKEN", "tok-123456")
        with http_server(SCRIPT) as world:
            surface = probe(at(world, headers={"Authorization": "Bearer ${API_TOKEN}"}), LOCAL)
        text = json.dumps([surface.observed, surface.server])
        assert "tok-123456" not in text
        assert "127.0.0.1" not in text

    def test_a_header_that_would_break_the_request_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("API_TOKEN", "x\r\nX-Injected: 1")
        with http_server(SCRIPT) as world:
            error = failure(at(world, headers={"Authorization": "${API_TOKEN}"}), LOCAL)
        assert error.code == "TARGET_INVALID"
        assert world.requests == []


class TestTls:
    def test_the_certificate_is_checked_against_the_name_though_the_address_is_pinned(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        context = certificate_for("good.example", tmp_path)
        with http_server(SCRIPT, tls=context) as world:
            port = world.url.rpartition(":")[2]
            resolve_to(monkeypatch, ["127.0.0.1"])
            good = HttpTarget(url=f"https://good.example:{port}")
            untrusted = failure(good, LOCAL)
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            surface = probe(good, LOCAL)
            misnamed = failure(HttpTarget(url=f"https://other.example:{port}"), LOCAL)
        assert names(surface) == ["a", "b"]
        for error in (untrusted, misnamed):
            assert (error.code, error.data["reason"]) == ("PROBE_FAILED", "tls")
            assert "has no valid TLS certificate" in error.message
            assert "clock" not in error.hint

    def test_a_certificate_that_is_not_valid_now_leads_to_a_hint_about_the_clock(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        context = certificate_for("good.example", tmp_path, days_until_valid=1)
        with http_server(SCRIPT, tls=context) as world:
            resolve_to(monkeypatch, ["127.0.0.1"])
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            error = failure(HttpTarget(url=f"https://good.example:{world.url.rpartition(':')[2]}"), LOCAL)
        assert (error.code, error.data["reason"]) == ("PROBE_FAILED", "tls")
        assert error.hint == "Check this machine's clock: the certificate is not valid at its current time."


def resolve_to(monkeypatch: pytest.MonkeyPatch, places: list[str], then: list[str] | None = None) -> list[str]:
    """A resolver that answers with these addresses, and with others from the second question on."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        answer = places if not asked or then is None else then
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in answer]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def certificate_for(host: str, folder: Path, days_until_valid: int = -1) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + datetime.timedelta(days=days_until_valid))
        .not_valid_after(now + datetime.timedelta(days=days_until_valid + 2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
