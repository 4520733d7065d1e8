"""The one HTTP client against real servers: none can make it hang, swell, leak a credential or look elsewhere."""

from __future__ import annotations

import gzip
import io
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import Origin, ServiceEndpoint, find_proxy
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRequest, FetchRules
from pinwarden.system.target import HttpAddress
from tests.servers.authority import Authority
from tests.servers.plain_http import Asked, Said, files, plain_server

SECRET = "Bearer a-secret-token"  # not one


def fetcher(**members: Any) -> Fetcher:
    """A fetcher that never waits between attempts."""
    limits = members.pop("limits", FetchLimits())
    members.setdefault("pause", lambda _: None)
    rules = FetchRules(
        limits=limits, **{name: members.pop(name) for name in ("offline", "allow_plain_http") if name in members}
    )
    return Fetcher(rules, members.pop("variables", {}), **members)


def wanted(url: str, path: str = "", **members: Any) -> FetchRequest:
    configured_by: Origin = members.pop("configured_by", "user")
    endpoint = ServiceEndpoint(url=url, configured_by=configured_by, ca_file=members.pop("ca_file", None), **members)
    return FetchRequest(endpoint=endpoint, url=path if "://" in path else f"{url}{path}")


def failure(client: Fetcher, what: FetchRequest, **members: Any) -> PinwardenError:
    """The error that a request ends with. It never holds the credential."""
    try:
        answer = client.get(what, **members)
    except PinwardenError as err:
        assert "secret" not in f"{err} {err.data} {err.__cause__!r}"
        return err
    finally:
        client.close()
    raise AssertionError(f"answered with {answer.status}")


def code_and_reason(err: PinwardenError) -> tuple[str, object]:
    return err.code, err.data.get("reason")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class TestResponses:
    def test_a_document_is_what_the_server_sent(self) -> None:
        with plain_server(files({"/a": Said(body=b"hello", headers={"Content-Type": "text/x"})})) as server:
            client = fetcher()
            answer = client.get(wanted(server.url, "a"))
            client.close()
        assert (answer.found, answer.body, answer.headers["content-type"]) == (True, b"hello", "text/x")
        assert str(answer.address) == f"{server.url}a"
        assert server.sent("accept-encoding") == ["identity"]

    @pytest.mark.parametrize("status", [404, 410])
    def test_a_missing_document_is_a_result_and_not_an_error(self, status: int) -> None:
        with plain_server(lambda _: Said(status=status, body=b"no")) as server:
            client = fetcher()
            answer = client.get(wanted(server.url, "a"))
            client.close()
        assert (answer.found, answer.status, answer.body, len(server.asked)) == (False, status, b"", 1)

    @pytest.mark.parametrize(
        ("status", "reason"), [(401, "unauthorized"), (403, "unauthorized"), (400, "status"), (204, "status")]
    )
    def test_another_status_is_a_failure_that_is_not_tried_again(self, status: int, reason: str) -> None:
        with plain_server(lambda _: Said(status=status)) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert (*code_and_reason(err), err.data["status"], err.exit_code) == ("FETCH_FAILED", reason, status, 3)
        assert len(server.asked) == 1

    def test_a_file_is_hashed_by_every_requested_algorithm(self, tmp_path: Path) -> None:
        body = bytes(range(256)) * 5000
        seen: list[int] = []
        with plain_server(files({"/f": body})) as server, (tmp_path / "f").open("w+b") as to:
            client = fetcher(on_bytes=seen.append)
            received = client.download(wanted(server.url, "f"), to, algorithms=("sha256", "sha512"))
            client.close()
        assert received.digests == (Digest.of_bytes(body), Digest.of_bytes(body, "sha512"))
        assert (tmp_path / "f").read_bytes() == body
        assert (received.size, sum(seen)) == (len(body), len(body))

    def test_a_missing_file_is_a_failure(self) -> None:
        with plain_server(files({})) as server, pytest.raises(PinwardenError) as caught:
            fetcher().download(wanted(server.url, "f"), io.BytesIO())
        assert (caught.value.code, caught.value.data["status"]) == ("FETCH_FAILED", 404)

    def test_a_full_disk_is_reported_as_such_and_the_download_is_not_retried(self) -> None:
        with (
            plain_server(files({"/f": b"x" * 100_000})) as server,
            Path("/dev/full").open("r+b", buffering=0) as to,
            pytest.raises(PinwardenError) as caught,
        ):
            fetcher().download(wanted(server.url, "f"), FullDisk(to))
        assert caught.value.code == "FILE_UNWRITABLE"
        assert len(server.asked) == 1

    def test_threads_share_a_client_and_each_gets_its_own_answer(self) -> None:
        with plain_server(lambda asked: Said(body=asked.path.encode() * 999)) as server:
            client = fetcher()
            with ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(lambda n: client.get(wanted(server.url, f"doc-{n}")), range(200)))
            client.close()
        assert [each.body for each in answers] == [f"/doc-{n}".encode() * 999 for n in range(200)]


class FullDisk(io.BytesIO):
    """A file on a disk without room, as the system itself reports it."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device

    def write(self, data: Any) -> int:
        return int(self._device.write(data))


class TestLimits:
    def test_attack_more_bytes_than_allowed_are_refused_by_their_announcement_alone(self) -> None:
        with plain_server(files({"/a": b"x" * 2000})) as server:
            err = failure(fetcher(), wanted(server.url, "a"), max_bytes=1000)
        assert (err.code, err.data) == ("FETCH_LIMIT", {"allowed": 1000})

    def test_attack_a_length_of_thousands_of_digits_is_only_a_large_one(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nx"
        with plain_server(lambda _: Said(raw=[head])) as server:
            assert failure(fetcher(), wanted(server.url, "a")).code == "FETCH_LIMIT"

    def test_attack_an_endless_body_without_a_length_is_cut_at_the_limit(self) -> None:
        def endless() -> Iterator[bytes]:
            while True:
                yield b"x" * 65536

        seen: list[int] = []
        with plain_server(lambda _: Said(pieces=endless())) as server:
            err = failure(fetcher(on_bytes=seen.append), wanted(server.url, "a"), max_bytes=1_000_000)
        assert err.code == "FETCH_LIMIT"
        assert sum(seen) <= 1_000_000
        assert len(server.asked) == 1

    def test_attack_a_404_with_an_endless_body_does_not_block_the_client(self) -> None:
        def endless() -> Iterator[bytes]:
            while True:
                yield b"x" * 65536

        with plain_server(lambda _: Said(status=404, pieces=endless())) as server:
            client = fetcher()
            answer = client.get(wanted(server.url, "a"))
            client.close()
        assert answer.status == 404

    def test_attack_a_404_with_a_slow_body_does_not_block_the_client(self) -> None:
        over = Event()

        def drip() -> Iterator[bytes]:
            while not over.wait(0.05):
                yield b"x"

        with plain_server(lambda _: Said(status=404, pieces=drip())) as server:
            client = fetcher()
            answer = client.get(wanted(server.url, "a"))
            over.set()
            client.close()
        assert answer.status == 404

    def test_a_connection_is_reused_after_every_kind_of_response(self) -> None:
        ports: set[str] = set()

        def answer(asked: Asked) -> Said:
            ports.add(asked.headers["x-client-port"])
            return Said(status=404 if asked.path == "/none" else 200, body=b"some body")

        with plain_server(answer) as server:
            client = fetcher()
            for path in ("a", "none", "b", "none", "c"):
                client.get(wanted(server.url, path))
            client.close()
        assert len(ports) == 1

    @pytest.mark.parametrize("part", ["status line", "header", "body", "length of a chunk"])
    def test_attack_a_slow_drip_ends_at_the_deadline(self, part: str) -> None:
        head = {
            "status line": b"HTTP/1.1 200 ",
            "header": b"HTTP/1.1 200 OK\r\nX-Slow: ",
            "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
            "length of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        }[part]
        over = Event()

        def drip() -> Iterator[bytes]:
            yield head
            while not over.wait(0.05):
                yield b"1"

        limits = FetchLimits(total_seconds=0.4, attempts=2)
        with plain_server(lambda _: Said(raw=drip())) as server:
            err = failure(fetcher(limits=limits), wanted(server.url, "a"))
            over.set()
        assert code_and_reason(err) == ("FETCH_FAILED", "timeout")

    def test_silence_ends_after_the_idle_time(self) -> None:
        over = Event()

        def silent() -> Iterator[bytes]:
            yield b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"
            over.wait(60)

        limits = FetchLimits(idle_seconds=0.2, attempts=1)
        with plain_server(lambda _: Said(raw=silent())) as server:
            err = failure(fetcher(limits=limits), wanted(server.url, "a"))
            over.set()
        assert code_and_reason(err) == ("FETCH_FAILED", "timeout")

    @pytest.mark.parametrize("headers", [{"Content-Encoding": "gzip"}, {"Content-Encoding": "br, identity"}])
    def test_attack_an_unrequested_compressed_response_is_refused(self, headers: dict[str, str]) -> None:
        bomb = gzip.compress(b"0" * 10_000_000)
        with plain_server(lambda _: Said(body=bomb, headers=headers)) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "protocol")

    def test_attack_a_second_header_does_not_hide_the_first(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: identity\r\nContent-Length: 1\r\n\r\nx"
        with plain_server(lambda _: Said(raw=[head])) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "protocol")

    def test_a_server_that_speaks_no_http_is_a_failure(self) -> None:
        with plain_server(lambda _: Said(raw=[b"220 mail.example ESMTP\r\n"])) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "connect")


class TestRetries:
    def test_a_temporary_failure_is_retried_with_growing_pauses(self) -> None:
        pauses: list[float] = []
        said = [Said(status=503), Said(status=500), Said(status=429), Said(body=b"there")]
        with plain_server(lambda _: said.pop(0)) as server:
            client = fetcher(pause=pauses.append)
            answer = client.get(wanted(server.url, "a"))
            client.close()
        assert (answer.body, pauses) == (b"there", [0.5, 1.0, 2.0])

    @pytest.mark.parametrize(
        ("text", "pause"), [("3", 3.0), ("86400", 10.0), ("soon", 0.5), ("-5", 0.5), ("9" * 400, 0.5)]
    )
    def test_the_pause_that_a_registry_asks_for_is_kept_up_to_a_limit(self, text: str, pause: float) -> None:
        pauses: list[float] = []
        said = [Said(status=429, headers={"Retry-After": text}), Said(body=b"there")]
        with plain_server(lambda _: said.pop(0)) as server:
            client = fetcher(pause=pauses.append)
            client.get(wanted(server.url, "a"))
            client.close()
        assert pauses == [pause]

    def test_a_permanent_failure_ends_after_the_last_attempt(self) -> None:
        with plain_server(lambda _: Said(status=502)) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert (*code_and_reason(err), err.data["status"]) == ("FETCH_FAILED", "status", 502)
        assert len(server.asked) == FetchLimits().attempts

    def test_a_truncated_body_is_downloaded_again_and_overwritten(self) -> None:
        cut = Said(body=b"trunc", headers={"content-length": "50"})
        said = [cut, cut, Said(body=b"whole")]
        with plain_server(lambda _: said.pop(0)) as server:
            client = fetcher()
            to = io.BytesIO(b"kept:")
            to.seek(5)
            received = client.download(wanted(server.url, "f"), to)
            client.close()
        assert (to.getvalue(), received.digests) == (b"kept:whole", (Digest.of_bytes(b"whole"),))

    @pytest.mark.parametrize(
        "head", [b"Content-Length: 50\r\n\r\ntrunc", b"Transfer-Encoding: chunked\r\n\r\n50\r\ntrunc"]
    )
    def test_a_body_that_always_ends_too_early_is_a_failure(self, head: bytes) -> None:
        with plain_server(lambda _: Said(raw=[b"HTTP/1.1 200 OK\r\n" + head])) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "connect")
        assert len(server.asked) == FetchLimits().attempts

    def test_an_unknown_host_is_reported_as_such(self) -> None:
        err = failure(fetcher(), wanted("https://no-such-host.invalid/", "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "connect")
        assert "no-such-host.invalid was not found" in err.message

    def test_a_closed_port_is_a_failure(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            err = failure(fetcher(), wanted(f"http://127.0.0.1:{taken.getsockname()[1]}/", "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "connect")

    def test_offline_no_request_is_sent(self) -> None:
        with plain_server(files({"/a": b"x"})) as server:
            err = failure(fetcher(offline=True), wanted(server.url, "a"))
        assert (code_and_reason(err), server.asked) == (("FETCH_FAILED", "offline"), [])


class TestRedirects:
    def test_a_redirect_is_followed_and_the_final_address_is_returned(self) -> None:
        steps: dict[str, bytes | Said] = {
            "/a": Said(status=302, headers={"Location": "/b"}),
            "/b": Said(status=308, headers={"Location": "c?x=1"}),
            "/c?x=1": b"end",
        }
        with plain_server(files(steps)) as server:
            client = fetcher()
            answer = client.get(wanted(server.url, "a"))
            client.close()
        assert (answer.body, answer.address.path) == (b"end", "/c?x=1")

    def test_attack_a_loop_of_redirects_is_refused(self) -> None:
        with plain_server(lambda _: Said(status=302, headers={"Location": "/a"})) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("ADDRESS_REFUSED", "redirect")
        assert len(server.asked) == FetchLimits().redirects + 1

    def test_attack_a_redirect_from_https_to_http_is_refused(self, authority: Authority) -> None:
        with plain_server(files({"/x": b"evil"})) as plain:
            away = Said(status=302, headers={"Location": f"{plain.url}x"})
            with plain_server(lambda _: away, tls=authority.server("localhost")) as server:
                err = failure(fetcher(allow_plain_http=True), wanted(server.url, "a", ca_file=authority.file))
        assert (code_and_reason(err), plain.asked) == (("ADDRESS_REFUSED", "redirect"), [])

    @pytest.mark.parametrize("host", ["127.0.0.2", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.9]", "0x7f.2"])
    def test_attack_a_redirect_into_the_private_network_is_refused(self, host: str) -> None:
        with plain_server(lambda _: Said(status=302, headers={"Location": f"https://{host}/x"})) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("ADDRESS_REFUSED", "private")

    def test_attack_the_second_hop_is_checked_like_the_first(self) -> None:
        steps: dict[str, bytes | Said] = {
            "/a": Said(status=302, headers={"Location": "/b"}),
            "/b": Said(status=302, headers={"Location": "https://192.168.0.1/admin"}),
        }
        with plain_server(files(steps)) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("ADDRESS_REFUSED", "private")

    @pytest.mark.parametrize(
        "location", ["file:///etc/passwd", "ftp://h/x", "https://u:p@h/x", "http://h:99999/", "\\\\h"]
    )
    def test_attack_a_redirect_to_something_else_than_a_web_address_is_refused(self, location: str) -> None:
        with plain_server(lambda _: Said(status=302, headers={"Location": location})) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert code_and_reason(err) == ("ADDRESS_REFUSED", "redirect")

    def test_a_mirror_may_lead_to_another_name_of_its_own_machine(self, authority: Authority, tmp_path: Path) -> None:
        del tmp_path
        with plain_server(files({"/f": b"file"}), tls=authority.server("127.0.0.1"), host="127.0.0.1") as store:
            away = Said(status=302, headers={"Location": f"{store.url}f"})
            with plain_server(lambda _: away, tls=authority.server("localhost")) as server:
                client = fetcher()
                answer = client.get(wanted(server.url, "a", ca_file=authority.file))
                client.close()
        assert answer.body == b"file"

    def test_attack_an_endpoint_that_a_repository_names_may_not_be_private(self) -> None:
        with plain_server(files({"/a": b"x"})) as server:
            err = failure(fetcher(), wanted(server.url, "a", configured_by="project"))
        assert (code_and_reason(err), server.asked) == (("ADDRESS_REFUSED", "private"), [])

    def test_attack_plain_http_to_another_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve(monkeypatch, "mirror.example", [["93.184.216.34"]])
        err = failure(fetcher(), wanted("http://mirror.example/", "a"))
        assert code_and_reason(err) == ("ADDRESS_REFUSED", "plain-http")


class TestCredentials:
    def test_a_credential_is_sent_below_its_endpoint(self) -> None:
        with plain_server(files({"/team/a": b"x"})) as server:
            client = fetcher()
            what = wanted(f"{server.url}team/", "a", authorization=SECRET)
            client.get(what)
            client.close()
        assert server.sent("authorization") == [SECRET]
        assert "secret" not in repr(what)

    @pytest.mark.parametrize(
        "path",
        [
            "other/a",
            "teams/a",
            "team",
            "team/../other/a",
            "team/%2e%2E/other/a",
            "team/..%2fother/a",
            "team/%2e%2e%5cx",
        ],
    )
    def test_attack_a_credential_is_not_sent_beside_its_endpoint(self, path: str) -> None:
        with plain_server(lambda _: Said(body=b"x")) as server:
            client = fetcher()
            client.get(wanted(f"{server.url}team/", f"{server.url}{path}", authorization=SECRET))
            client.close()
        assert server.sent("authorization") == [None]

    def test_attack_a_redirect_carries_no_credential_to_another_port_host_or_path(self, authority: Authority) -> None:
        for host in ("localhost", "127.0.0.1"):
            with plain_server(files({"/team/x": b"x"}), tls=authority.server(host), host=host) as thief:
                away = Said(status=302, headers={"Location": f"{thief.url}team/x"})
                with plain_server(lambda _, away=away: away, tls=authority.server("localhost")) as server:  # type: ignore[misc]
                    client = fetcher()
                    what = wanted(f"{server.url}team/", "a", authorization=SECRET, ca_file=authority.file)
                    assert client.get(what).body == b"x"
                    client.close()
            assert (server.sent("authorization"), thief.sent("authorization")) == ([SECRET], [None])

    def test_attack_a_redirect_on_the_same_host_to_another_path_carries_no_credential(self) -> None:
        steps: dict[str, bytes | Said] = {
            "/team/a": Said(status=302, headers={"Location": "/public/a"}),
            "/public/a": b"x",
        }
        with plain_server(files(steps)) as server:
            client = fetcher()
            client.get(wanted(f"{server.url}team/", "a", authorization=SECRET))
            client.close()
        assert server.sent("authorization") == [SECRET, None]

    def test_a_token_stands_in_for_the_endpoints_own(self) -> None:
        with plain_server(files({"/a": b"x"})) as server:
            client = fetcher()
            endpoint = ServiceEndpoint(url=server.url, configured_by="user", authorization=SECRET)
            client.get(FetchRequest(endpoint=endpoint, url=f"{server.url}a", authorization="Bearer t"))
            client.close()
        assert server.sent("authorization") == ["Bearer t"]

    def test_a_challenge_is_requested_without_credentials(self) -> None:
        with plain_server(lambda _: Said(status=401, headers={"WWW-Authenticate": "Basic realm=x"})) as server:
            client = fetcher()
            answer = client.request_challenge(wanted(server.url, "a", authorization=SECRET))
            client.close()
        assert (answer, server.sent("authorization")) == ((401, "Basic realm=x"), [None])


class TestRefusals:
    """A registry that responds with an error: its own message is reported, not a network problem."""

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b'{"error":{"code":"NAMESPACE_REFUSED","message":"not yours"}}', "NAMESPACE_REFUSED: not yours"),
            (b'{"errors":[{"code":"DENIED","message":"requested access is denied"}]}', "DENIED: requested access"),
            (b'{"error":"version not found: 9.9.9"}', "version not found: 9.9.9"),
            (b'{"message":"rate limited"}', "rate limited"),
        ],
        ids=["pinwarden", "oci", "npm", "others"],
    )
    def test_the_error_text_of_a_registry_is_reported(self, body: bytes, said: str) -> None:
        answer = Said(status=418, body=body, headers={"Content-Type": "application/json"})
        with plain_server(lambda _: answer) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert said in err.message
        assert (err.data["status"], "network" in err.hint) == (418, False)

    def test_attack_a_refusal_cannot_fill_or_steer_the_terminal(self) -> None:
        body = json.dumps({"message": "\x1b[2J\r\nerror: all is well\u202e" + "x" * 5000}).encode()
        with plain_server(
            lambda _: Said(status=418, body=body, headers={"Content-Type": "application/json"})
        ) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert len(err.message) < 1000
        assert err.message.isprintable()

    @pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{", b'{"error": 1}', b'{"a":"' + b"x" * 100_000 + b'"}'])
    def test_a_refusal_without_words_names_the_status(self, body: bytes) -> None:
        answer = Said(status=418, body=body, headers={"Content-Type": "application/json"})
        with plain_server(lambda _: answer) as server:
            err = failure(fetcher(), wanted(server.url, "a"))
        assert err.message.endswith("responded with status 418")


class TestTls:
    def test_an_authority_of_the_clients_settings_is_trusted(self, authority: Authority) -> None:
        with plain_server(files({"/a": b"x"}), tls=authority.server("localhost")) as server:
            client = fetcher()
            assert client.get(wanted(server.url, "a", ca_file=authority.file)).body == b"x"
            client.close()

    def test_attack_a_certificate_by_an_unknown_authority_is_refused_without_another_try(
        self, authority: Authority
    ) -> None:
        pauses: list[float] = []
        with plain_server(files({"/a": b"x"}), tls=authority.server("localhost")) as server:
            err = failure(fetcher(pause=pauses.append), wanted(server.url, "a", authorization=SECRET))
        assert (code_and_reason(err), server.asked, pauses) == (("FETCH_FAILED", "tls"), [], [])

    def test_attack_a_certificate_for_another_name_is_refused(self, authority: Authority) -> None:
        with plain_server(files({"/a": b"x"}), tls=authority.server("other.example")) as server:
            err = failure(fetcher(), wanted(server.url, "a", ca_file=authority.file))
        assert (code_and_reason(err), server.asked) == (("FETCH_FAILED", "tls"), [])
        assert "mismatch" in err.message

    def test_a_connection_made_with_one_authority_is_not_used_without_it(self, authority: Authority) -> None:
        with plain_server(files({"/a": b"x"}), tls=authority.server("localhost")) as server:
            client = fetcher()
            client.get(wanted(server.url, "a", ca_file=authority.file))
            assert code_and_reason(failure(client, wanted(server.url, "a"))) == ("FETCH_FAILED", "tls")

    def test_a_file_that_holds_no_certificates_is_an_error(self, tmp_path: Path) -> None:
        for path in (tmp_path / "absent.pem", tmp_path / "empty.pem"):
            (tmp_path / "empty.pem").write_text("nothing")
            assert failure(fetcher(), wanted("https://localhost:1/", "a", ca_file=path)).code == "FILE_UNREADABLE"


def resolve(monkeypatch: pytest.MonkeyPatch, host: str, answers: list[list[str]]) -> None:
    """A resolver that answers one after another for one host; the last answer stays."""
    real = socket.getaddrinfo

    def getaddrinfo(name: Any, port: Any, *rest: Any, **named: Any) -> Any:
        if name != host:
            return real(name, port, *rest, **named)
        places = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


class TestDns:
    def test_attack_dns_rebinding_finds_no_second_lookup_to_answer_differently(
        self, monkeypatch: pytest.MonkeyPatch, authority: Authority
    ) -> None:
        answers = [["127.0.0.1"], ["10.9.9.9"], ["10.9.9.9"]]
        resolve(monkeypatch, "rebind.example", answers)
        with plain_server(files({"/a": b"x"}), tls=authority.server("rebind.example")) as server:
            client = fetcher()
            what = wanted(f"https://rebind.example:{server.port}/", "a", ca_file=authority.file)
            assert client.get(what).body == b"x"
            client.close()
        assert answers == [["10.9.9.9"], ["10.9.9.9"]]

    def test_attack_dns_rebinding_between_two_requests_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, authority: Authority
    ) -> None:
        """The files of a mirror may be on its own machine. When their host moves, the permission does not."""
        resolve(monkeypatch, "files.example", [["127.0.0.1"], ["10.9.9.9"]])
        with plain_server(lambda _: Said(pieces=[b"x"]), tls=authority.server("files.example")) as store:
            away = Said(status=302, headers={"Location": f"https://files.example:{store.port}/x"})
            with plain_server(lambda _: away) as server:
                client = fetcher()
                what = wanted(server.url, "a", ca_file=authority.file)
                assert client.get(what).body == b"x"
                assert code_and_reason(failure(client, what)) == ("ADDRESS_REFUSED", "private")

    def test_attack_a_public_name_that_points_inside_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with plain_server(files({"/a": b"x"})) as server:
            resolve(monkeypatch, "public.example", [["127.0.0.1"]])
            what = wanted(f"https://public.example:{server.port}/", "a", configured_by="project")
            assert code_and_reason(failure(fetcher(), what)) == ("ADDRESS_REFUSED", "private")
        assert server.asked == []

    def test_attack_one_private_answer_among_public_ones_forbids_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve(monkeypatch, "mixed.example", [["93.184.216.34", "127.0.0.1"]])
        what = wanted("https://mixed.example/", "a", configured_by="project")
        assert code_and_reason(failure(fetcher(), what)) == ("ADDRESS_REFUSED", "private")


class TunnelProxy:
    """A proxy that opens tunnels to one port, whatever the requested host is, and records the requests."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heads: list[str] = []
        self._open: list[socket.socket] = [self._listener]
        self._threads = [Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1)
            self.heads.append(head.decode())
            server = socket.create_connection(("127.0.0.1", self._to))
            self._open += [client, server]
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for pair in ((client, server), (server, client)):
                self._threads.append(Thread(target=self._copy, args=pair, daemon=True))
                self._threads[-1].start()

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()


class TestProxies:
    def test_a_proxy_of_the_environment_is_used_and_only_it_gets_its_credential(self, authority: Authority) -> None:
        with plain_server(files({"/a": b"x"}), tls=authority.server("registry.example")) as server:
            proxy = TunnelProxy(server.port)
            variables = {"https_proxy": f"http://me:proxy-secret@127.0.0.1:{proxy.port}"}
            client = fetcher(variables=variables)
            what = wanted("https://registry.example/", "a", authorization=SECRET, ca_file=authority.file)
            answer = client.get(what)
            client.close()
            proxy.close()
        assert answer.body == b"x"
        (head,) = proxy.heads
        assert head.startswith("CONNECT registry.example:443 HTTP/1.")
        assert "Basic bWU6cHJveHktc2VjcmV0" in head
        assert "a-secret-token" not in head
        assert (server.sent("authorization"), server.sent("proxy-authorization")) == ([SECRET], [None])

    def test_a_host_of_no_proxy_is_contacted_directly(self) -> None:
        with plain_server(files({"/a": b"x"})) as server:
            client = fetcher(variables={"http_proxy": "http://127.0.0.1:1", "no_proxy": "example, localhost"})
            assert client.get(wanted(server.url, "a")).body == b"x"
            client.close()

    @pytest.mark.parametrize(
        ("variables", "proxy"),
        [
            ({}, None),
            ({"https_proxy": "p:1"}, "http://p:1"),
            ({"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
            ({"HTTPS_PROXY": "http://p:1", "all_proxy": "http://q:1"}, "http://p:1"),
            ({"ALL_PROXY": "http://p:1"}, "http://p:1"),
            ({"http_proxy": "http://p:1"}, None),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".b.example"}, None),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*.b.example"}, None),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "A.B.Example"}, None),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "xa.b.example,.example.org, ,"}, "http://p:1"),
        ],
    )
    def test_the_proxy_for_an_address(self, variables: dict[str, str], proxy: str | None) -> None:
        assert find_proxy(HttpAddress.parse("https://a.b.example/x"), variables) == proxy

    def test_attack_an_upper_case_http_proxy_can_come_from_a_web_request_and_is_not_used(self) -> None:
        assert find_proxy(HttpAddress.parse("http://a.example/"), {"HTTP_PROXY": "http://evil:1"}) is None

    @pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "2130706433", "0x7f.1", "[::1]", "localhost"])
    def test_attack_a_redirect_to_a_private_address_is_refused_behind_a_proxy_too(
        self, authority: Authority, host: str
    ) -> None:
        away = Said(status=302, headers={"Location": f"https://{host}:8443/x"})
        with plain_server(lambda _: away, tls=authority.server("registry.example")) as server:
            proxy = TunnelProxy(server.port)
            client = fetcher(variables={"https_proxy": f"http://127.0.0.1:{proxy.port}"})
            err = failure(client, wanted("https://registry.example/", "a", ca_file=authority.file))
            proxy.close()
        assert (code_and_reason(err), len(proxy.heads)) == (("ADDRESS_REFUSED", "private"), 1)

    def test_attack_plain_http_is_refused_behind_a_proxy_too(self) -> None:
        with plain_server(lambda _: Said(body=b"from the proxy")) as proxy:
            client = fetcher(variables={"http_proxy": proxy.url})
            err = failure(client, wanted("http://registry.example/", "a"))
        assert (code_and_reason(err), proxy.asked) == (("ADDRESS_REFUSED", "plain-http"), [])

    def test_a_proxy_that_refuses_is_named_and_its_credential_is_not(self) -> None:
        with plain_server(lambda _: Said(status=407)) as proxy:
            url = proxy.url.replace("//", "//me:proxy-secret@")
            err = failure(fetcher(variables={"https_proxy": url}), wanted("https://registry.example/", "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "connect")
        assert "proxy" in err.message

    @pytest.mark.parametrize("proxy", ["socks5://h:1", "http://h:port", "http://", "http://[::1"])
    def test_a_proxy_that_cannot_be_used_is_a_failure_and_never_left_out(self, proxy: str) -> None:
        err = failure(fetcher(variables={"https_proxy": proxy}), wanted("https://registry.example/", "a"))
        assert code_and_reason(err) == ("FETCH_FAILED", "connect")
