"""MCP registries over real HTTP: every page is read, nothing that is odd is believed, and a token stays where it is."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from pinwarden import PinwardenError
from pinwarden.lock.mcp_registry import Registries, RegistrySource, load_registries
from pinwarden.lock.server_entry import OFFICIAL_META, parse_server_entry
from tests.cli.run import pinwarden

NAME = "io.acme/notes"
TOKEN = "ghp_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
Answer = tuple[int, dict[str, str], bytes]
Route = Callable[[str, dict[str, str]], Answer | None]


def server(version: str = "1.0.0", name: str = NAME, **official: Any) -> dict[str, Any]:
    described = {
        "name": name,
        "description": "Notes.",
        "version": version,
        "packages": [{"registryType": "npm", "identifier": "notes", "version": version}],
    }
    return {"server": described, "_meta": {OFFICIAL_META: {"status": "active", **official}}}


def ok(value: Any, **headers: str) -> Answer:
    return 200, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()


def always(answer: Answer | None) -> Route:
    return lambda *_: answer


class LoopbackRegistry:
    """A registry on this machine that answers as a test wants it to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.route: Route = always(None)
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.drip = Event()
        """Set when a slow answer may end."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65_536  # headers and body in one packet

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                registry.paths.append(unquote(parts.path))
                registry.headers.append({name.lower(): value for name, value in self.headers.items()})
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                answer = registry.route(unquote(parts.path), query) or (404, {}, b"{}")
                status, headers, body = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                slow = "X-Drip" in headers
                if status != 304 and "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body) + 1000 * slow))
                self.end_headers()
                try:
                    self.wfile.write(body)
                    while slow and not registry.drip.wait(0.01):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                except OSError:
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.drip.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def has(self, *rows: dict[str, Any], api: str = "/v0", direct: bool = False) -> None:
        """Answer with these entries, under one version of the API."""

        def route(path: str, query: dict[str, str]) -> Answer | None:
            if direct and path.startswith(f"{api}/servers/"):
                wanted = path.rpartition("/")[2]
                matching = [row for row in rows if wanted in ("latest", row["server"]["version"])]
                return ok(matching[-1]) if matching else None
            if path != f"{api}/servers":
                return None
            return ok({"servers": list(rows), "metadata": {"count": len(rows)}})

        self.route = route

    def source(self, **members: Any) -> RegistrySource:
        return RegistrySource(
            **{"id": "acme", "url": self.url, "allow_http": True, "allow_private": True, **members},
        )

    def registries(self, *, cache: Path | None = None, seconds: float = 20.0, **members: Any) -> Registries:
        return Registries(sources=(self.source(**members),), cache_folder=cache, timeout_seconds=seconds)


@pytest.fixture
def registry() -> Iterator[LoopbackRegistry]:
    made = LoopbackRegistry()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[LoopbackRegistry]:
    made = LoopbackRegistry()
    yield made
    made.close()


def refusal(registries: Registries, version: str | None = None, name: str = NAME) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        registries.find(name, version)
    return caught.value


class TestApi:
    def test_one_version_is_requested_by_its_number(self, registry: LoopbackRegistry) -> None:
        registry.has(server("1.0.0"), server("2.0.0"), api="/v0.1", direct=True)
        assert registry.registries().find(NAME, "1.0.0") == {**server("1.0.0"), "source": "acme"}
        assert registry.paths == [f"/v0.1/servers/{NAME}/versions/1.0.0"]

    def test_without_a_version_the_latest_is_requested(self, registry: LoopbackRegistry) -> None:
        registry.has(server("1.0.0"), server("2.0.0"), api="/v0.1", direct=True)
        assert registry.registries().find(NAME)["server"]["version"] == "2.0.0"
        assert registry.paths == [f"/v0.1/servers/{NAME}/versions/latest"]

    def test_a_registry_of_the_older_api_is_queried_by_list(self, registry: LoopbackRegistry) -> None:
        registry.has(server())
        assert registry.registries().find(NAME) == {**server(), "source": "acme"}
        assert registry.paths == [f"/v0.1/servers/{NAME}/versions/latest", "/v0.1/servers", "/v0/servers"]

    def test_a_url_with_an_api_version_uses_that_version(self, registry: LoopbackRegistry) -> None:
        registry.has(server())
        assert registry.registries(url=f"{registry.url}/v0").find(NAME)["source"] == "acme"
        assert registry.paths == ["/v0/servers"]

    def test_a_list_of_bare_server_json_is_understood(self, registry: LoopbackRegistry) -> None:
        registry.route = lambda path, _query: ok({"servers": [server()["server"]]}) if path == "/v0/servers" else None
        assert registry.registries().find(NAME) == {"server": server()["server"], "_meta": {}, "source": "acme"}

    def test_the_name_is_escaped_in_the_url(self, registry: LoopbackRegistry) -> None:
        registry.has(server())
        assert refusal(registry.registries(), name="../../admin?x=1#y").code == "SERVER_NOT_FOUND"
        assert registry.paths[0] == "/v0.1/servers/../../admin?x=1#y/versions/latest"  # one encoded step

    def test_an_unknown_server_is_not_found(self, registry: LoopbackRegistry) -> None:
        registry.has(server("1.0.0"))
        assert refusal(registry.registries(), "9.9.9").code == "SERVER_NOT_FOUND"
        assert refusal(registry.registries(), name="io.acme/other").code == "SERVER_NOT_FOUND"

    def test_a_similar_name_in_the_list_does_not_match(self, registry: LoopbackRegistry) -> None:
        registry.has(server("9.0.0", "io.acme/notes-evil"), server("1.0.0"), server("8.0.0", "io.acme/Notes"))
        assert registry.registries().find(NAME)["server"]["version"] == "1.0.0"

    def test_the_source_is_set_by_us_not_by_the_registry(self, registry: LoopbackRegistry) -> None:
        registry.has({**server(), "source": "official"})
        assert registry.registries().find(NAME)["source"] == "acme"

    def test_the_first_source_that_has_the_entry_wins(
        self, registry: LoopbackRegistry, other: LoopbackRegistry
    ) -> None:
        registry.has(server("1.0.0", "io.acme/else"))
        other.has(server("2.0.0"))
        both = Registries(sources=(registry.source(), other.source(id="second")))
        assert both.find(NAME)["source"] == "second"
        registry.has(server("1.0.0"))
        assert both.find(NAME)["source"] == "acme"
        assert both.find(NAME, source="second")["server"]["version"] == "2.0.0"

    def test_an_unavailable_source_ends_the_search(self, registry: LoopbackRegistry, other: LoopbackRegistry) -> None:
        """Attack: silence the company's registry, and offer the same name in a public one."""
        registry.route = always((503, {}, b""))
        other.has(server("6.6.6"))
        both = Registries(sources=(registry.source(), other.source(id="second")))
        assert refusal(both).code == "REGISTRY_UNAVAILABLE"
        assert other.paths == []


class TestPages:
    def pages(self, registry: LoopbackRegistry, *pages: list[dict[str, Any]]) -> None:
        def route(path: str, query: dict[str, str]) -> Answer | None:
            if path != "/v0/servers":
                return None
            index = int(query.get("cursor", "0"))
            following = {"nextCursor": str(index + 1)} if index + 1 < len(pages) else {}
            return ok({"servers": pages[index], "metadata": following})

        registry.route = route

    def test_every_page_is_read(self, registry: LoopbackRegistry) -> None:
        self.pages(registry, [server("1.0.0")], [], [server("3.0.0", isLatest=True)], [server("2.0.0")])
        assert registry.registries().find(NAME)["server"]["version"] == "3.0.0"
        assert registry.paths.count("/v0/servers") == 4

    def test_a_cursor_is_sent_back_unchanged(self, registry: LoopbackRegistry) -> None:
        odd = "io.acme/a:1.0&limit=1 ü%2f"
        seen: list[str | None] = []

        def route(path: str, query: dict[str, str]) -> Answer | None:
            if path != "/v0/servers":
                return None
            seen.append(query.get("cursor"))
            return ok({"servers": [server()], "metadata": {} if "cursor" in query else {"next_cursor": odd}})

        registry.route = route
        registry.registries().find(NAME)
        assert seen == [None, odd]

    @pytest.mark.parametrize("circle", [["a"], ["a", "b", "c"]])
    def test_pages_that_form_a_loop_are_refused(self, registry: LoopbackRegistry, circle: list[str]) -> None:
        steps = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
        registry.route = lambda path, query: ok(
            {"servers": [server()], "metadata": {"nextCursor": steps[query.get("cursor", circle[-1])]}}
        ) if path == "/v0/servers" else None  # fmt: skip
        error = refusal(registry.registries())
        assert (error.code, "form a loop" in error.message) == ("REGISTRY_UNAVAILABLE", True)
        assert registry.paths.count("/v0/servers") <= len(circle) + 1

    def test_an_endless_list_is_refused_although_it_has_the_server(self, registry: LoopbackRegistry) -> None:
        registry.route = lambda path, query: ok(
            {"servers": [server()], "metadata": {"nextCursor": query.get("cursor", "") + "x"}}
        ) if path == "/v0/servers" else None  # fmt: skip
        error = refusal(registry.registries(seconds=60.0))
        assert (error.code, "more than 500 pages" in error.message) == ("REGISTRY_UNAVAILABLE", True)
        assert registry.paths.count("/v0/servers") == 500

    @pytest.mark.parametrize("cursor", [7, True, ["a"], {"a": 1}])
    def test_a_cursor_that_is_not_a_string_is_refused(self, registry: LoopbackRegistry, cursor: Any) -> None:
        registry.route = always(ok({"servers": [server()], "metadata": {"nextCursor": cursor}}))
        assert refusal(registry.registries(url=f"{registry.url}/v0")).code == "REGISTRY_UNAVAILABLE"

    def test_a_page_that_is_missing_is_refused(self, registry: LoopbackRegistry) -> None:
        registry.route = lambda _path, query: None if "cursor" in query else ok(
            {"servers": [server()], "metadata": {"nextCursor": "b"}}
        )  # fmt: skip
        assert refusal(registry.registries(url=f"{registry.url}/v0")).code == "REGISTRY_UNAVAILABLE"

    def test_two_different_entries_for_one_version_are_refused(self, registry: LoopbackRegistry) -> None:
        changed = server("1.0.0")
        changed["server"]["packages"][0]["identifier"] = "evil"
        self.pages(registry, [server("1.0.0")], [changed])
        assert refusal(registry.registries()).code == "REGISTRY_UNAVAILABLE"
        self.pages(registry, [server("1.0.0")], [server("1.0.0", isLatest=True)])
        assert registry.registries().find(NAME)["server"] == server()["server"]


class TestStatuses:
    @pytest.mark.parametrize("status", ["active", "deprecated", "deleted"])
    def test_the_status_of_an_entry_is_kept(self, registry: LoopbackRegistry, status: str) -> None:
        registry.has(server(status=status, statusMessage="why"), api="/v0.1", direct=True)
        entry = parse_server_entry(registry.registries().find(NAME, "1.0.0"))
        assert (entry.status, entry.status_message) == (status, "why")

    def test_a_deleted_release_is_not_the_latest_while_there_is_another(self, registry: LoopbackRegistry) -> None:
        registry.has(server("1.0.0"), server("2.0.0", status="deprecated"), server("3.0.0", status="deleted"))
        assert registry.registries().find(NAME)["server"]["version"] == "2.0.0"
        registry.has(server("1.0.0"), server("3.0.0", status="deleted", isLatest=True))
        assert registry.registries().find(NAME)["server"]["version"] == "1.0.0"
        registry.has(server("2.0.0", status="deleted"), server("3.0.0", status="deleted"))
        assert registry.registries().find(NAME)["server"]["version"] == "3.0.0"

    def test_versions_are_ordered_as_versions(self, registry: LoopbackRegistry) -> None:
        registry.has(server("1.9.0"), server("1.10.0"), server("1.10.0-rc.1"))
        assert registry.registries().find(NAME)["server"]["version"] == "1.10.0"


class TestHostileResponses:
    @pytest.mark.parametrize(
        "answered",
        [server(name="io.acme/evil"), server("6.6.6"), server("6.6.6", "io.acme/evil"), server(name="IO.ACME/notes")],
        ids=["another name", "another version", "both", "another spelling"],
    )
    def test_a_response_about_another_server_is_refused(self, registry: LoopbackRegistry, answered: Any) -> None:
        registry.route = always(ok(answered))
        error = refusal(registry.registries(), "1.0.0")
        assert (error.code, "another server or version" in error.message) == ("REGISTRY_UNAVAILABLE", True)
        assert len(registry.paths) == 1

    @pytest.mark.parametrize(
        "body",
        [
            b"<!doctype html><title>Sign in</title>",
            b"",
            b"\xff\xfe",
            b"null",
            b"[]",
            b"7",
            b'"text"',
            b"{}",
            b'{"server": 7}',
            b'{"server": []}',
            b'{"servers": 7}',
            b'{"servers": [7]}',
            b'{"servers": [{"a": 1}]}',
            b'{"server": {"name": "io.acme/notes", "name": "io.acme/notes", "version": "1.0.0"}}',
            b'{"server": {"name": "io.acme/notes", "version": NaN}}',
            b"[" * 100_000,
            json.dumps(server()).encode() + b"x",
            json.dumps(server()).encode()[:-1],
        ],
        ids=lambda body: repr(body[:40]),
    )
    @pytest.mark.parametrize("api", ["/v0.1", "/v0"])
    def test_any_other_response_is_refused(self, registry: LoopbackRegistry, body: bytes, api: str) -> None:
        registry.route = always((200, {"Content-Type": "application/json"}, body))
        error = refusal(registry.registries(url=f"{registry.url}{api}"))
        assert (error.code, error.exit_code) == ("REGISTRY_UNAVAILABLE", 3)

    @pytest.mark.parametrize("status", [201, 204, 206, 300, 400, 401, 403, 410, 429, 500, 503])
    def test_any_other_http_status_is_an_error(self, registry: LoopbackRegistry, status: int) -> None:
        registry.route = always((status, {}, b"" if status == 204 else json.dumps(server()).encode()))
        error = refusal(registry.registries(), "1.0.0")
        assert (error.code, str(status) in error.message) == ("REGISTRY_UNAVAILABLE", True)

    def test_not_modified_without_a_cached_response_is_an_error(
        self, registry: LoopbackRegistry, tmp_path: Path
    ) -> None:
        registry.route = always((304, {"ETag": '"a"'}, b""))
        assert refusal(registry.registries(cache=tmp_path)).code == "REGISTRY_UNAVAILABLE"

    def test_an_oversized_response_is_refused(self, registry: LoopbackRegistry) -> None:
        large = b'{"server": "' + b"a" * (17 * 1024 * 1024) + b'"}'
        registry.route = always((200, {}, large))
        assert refusal(registry.registries()).code == "REGISTRY_UNAVAILABLE"

    def test_a_compressed_response_that_expands_enormously_is_refused(self, registry: LoopbackRegistry) -> None:
        packed = gzip.compress(b" " * 50_000_000 + json.dumps(server()).encode())
        registry.route = always((200, {"Content-Encoding": "gzip"}, packed))
        assert refusal(registry.registries()).code == "REGISTRY_UNAVAILABLE"

    def test_a_truncated_response_is_refused(self, registry: LoopbackRegistry) -> None:
        body = json.dumps(server()).encode()
        headers = {"Content-Length": str(len(body) + 10), "Connection": "close"}
        registry.route = always((200, headers, body))
        error = refusal(registry.registries(seconds=60))
        why = "the registry acme is unavailable: it sent no complete response"
        assert (error.code, error.message) == ("REGISTRY_UNAVAILABLE", why)

    def test_a_slow_response_does_not_outlast_the_deadline(self, registry: LoopbackRegistry) -> None:
        registry.route = always((200, {"X-Drip": "yes"}, json.dumps(server()).encode()))
        assert refusal(registry.registries(seconds=0.3), "1.0.0").code == "REGISTRY_UNAVAILABLE"
        assert len(registry.paths) <= 1  # none, where the time was over before the question came

    def test_many_pages_share_one_deadline(self, registry: LoopbackRegistry) -> None:
        registry.route = lambda _path, query: ok(
            {"servers": [], "metadata": {"nextCursor": query.get("cursor", "") + "x"}}, **{"X-Drip": "yes"}
        )
        assert refusal(registry.registries(seconds=0.3, url=f"{registry.url}/v0")).code == "REGISTRY_UNAVAILABLE"

    def test_an_unreachable_registry_is_an_error(self, registry: LoopbackRegistry) -> None:
        registries = registry.registries()
        registry.close()
        assert refusal(registries).code == "REGISTRY_UNAVAILABLE"


class TestCachedResponses:
    def with_etag(self, registry: LoopbackRegistry, etag: str = '"one"', version: str = "1.0.0") -> None:
        def route(path: str, query: dict[str, str]) -> Answer | None:
            if registry.headers[-1].get("if-none-match") == etag:
                return 304, {"ETag": etag}, b""
            return ok(server(version), ETag=etag)

        registry.route = route

    def kept(self, folder: Path) -> Path:
        [path] = folder.iterdir()
        return path

    def test_an_unchanged_response_comes_from_the_cache(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        self.with_etag(registry)
        registries = registry.registries(cache=tmp_path / "kept")
        assert registries.find(NAME) == registries.find(NAME) == {**server(), "source": "acme"}
        assert [headers.get("if-none-match") for headers in registry.headers] == [None, '"one"']

    def test_a_changed_response_replaces_the_cached_one(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        registries = registry.registries(cache=tmp_path / "kept")
        self.with_etag(registry)
        registries.find(NAME)
        self.with_etag(registry, '"two"', "2.0.0")
        assert registries.find(NAME)["server"]["version"] == "2.0.0"
        registries.find(NAME)
        assert [headers.get("if-none-match") for headers in registry.headers] == [None, '"one"', '"two"']

    def test_nothing_is_cached_without_an_etag_or_a_folder(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        registry.has(server())
        registry.registries(cache=tmp_path / "kept").find(NAME)
        self.with_etag(registry)
        registry.registries().find(NAME)
        assert list(tmp_path.iterdir()) == []

    def test_the_cache_does_not_replace_an_unavailable_registry(
        self, registry: LoopbackRegistry, tmp_path: Path
    ) -> None:
        self.with_etag(registry)
        registries = registry.registries(cache=tmp_path / "kept")
        registries.find(NAME)
        registry.route = always((503, {}, b""))
        assert refusal(registries).code == "REGISTRY_UNAVAILABLE"
        registry.route = always(None)
        assert refusal(registries).code == "SERVER_NOT_FOUND"

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda _: b"",
            lambda _: b"not json",
            lambda _: b"[]",
            lambda _: b"{}",
            lambda kept: kept[:-10],
            lambda kept: kept.replace(b'"identifier": "notes"', b'"identifier": "evil"'),
            lambda kept: kept.replace(b'"one', b'"two'),
            lambda kept: kept.replace(b'\\"one\\"', b"one\\r\\nX-Injected: yes"),
            lambda kept: kept.replace(b'"url": "http', b'"url": "https'),
            lambda _: json.dumps({"etag": '"one"', "body": server("6.6.6")}).encode(),
        ],
    )
    def test_a_tampered_cached_response_is_requested_again(
        self, registry: LoopbackRegistry, tmp_path: Path, spoil: Callable[[bytes], bytes]
    ) -> None:
        self.with_etag(registry)
        registries = registry.registries(cache=tmp_path / "kept")
        registries.find(NAME)
        path = self.kept(tmp_path / "kept")
        path.write_bytes(spoil(path.read_bytes()))
        assert registries.find(NAME) == {**server(), "source": "acme"}
        assert registry.headers[-1].get("if-none-match") in (None, '"two"')
        assert "x-injected" not in registry.headers[-1]

    @pytest.mark.skipif(not hasattr(os, "getuid"), reason="no modes here")
    def test_a_cached_response_that_others_can_write_is_ignored(
        self, registry: LoopbackRegistry, tmp_path: Path
    ) -> None:
        self.with_etag(registry)
        registries = registry.registries(cache=tmp_path / "kept")
        registries.find(NAME)
        path = self.kept(tmp_path / "kept")
        assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
        path.chmod(0o666)
        registries.find(NAME)
        assert registry.headers[-1].get("if-none-match") is None
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        registries.find(NAME)
        assert registry.headers[-1].get("if-none-match") is None

    def test_a_cached_response_about_another_server_is_refused(
        self, registry: LoopbackRegistry, tmp_path: Path
    ) -> None:
        registries = registry.registries(cache=tmp_path / "kept")
        self.with_etag(registry, version="2.0.0")
        registries.find(NAME)  # the latest
        assert refusal(registries, "1.0.0").code == "REGISTRY_UNAVAILABLE"

    def test_an_unwritable_cache_folder_is_not_an_error(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        self.with_etag(registry)
        (tmp_path / "kept").write_text("a file")
        registries = registry.registries(cache=tmp_path / "kept")
        assert registries.find(NAME) == registries.find(NAME)
        assert (tmp_path / "kept").read_text() == "a file"

    def test_no_token_is_cached(
        self, registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOOLPIN_ACME", TOKEN)
        self.with_etag(registry)
        registry.registries(cache=tmp_path / "kept", auth_env="TOOLPIN_ACME").find(NAME)
        assert TOKEN.encode() not in self.kept(tmp_path / "kept").read_bytes()


class TestTokens:
    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOOLPIN_ACME", TOKEN)

    def test_a_token_is_sent_to_its_registry_and_no_other(
        self, registry: LoopbackRegistry, other: LoopbackRegistry
    ) -> None:
        registry.has(server("1.0.0", "io.acme/else"))
        other.has(server())
        first = registry.source(auth_env="TOOLPIN_ACME")
        assert Registries(sources=(first, other.source(id="second"))).find(NAME)["source"] == "second"
        assert {headers.get("authorization") for headers in registry.headers} == {f"Bearer {TOKEN}"}
        assert {headers.get("authorization") for headers in other.headers} == {None}

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_does_not_get_the_token(
        self, registry: LoopbackRegistry, other: LoopbackRegistry, status: int
    ) -> None:
        other.has(server())
        registry.route = lambda path, _query: (status, {"Location": f"{other.url}{path}"}, b"")
        error = refusal(registry.registries(auth_env="TOOLPIN_ACME"))
        assert (error.code, error.exit_code) == ("ADDRESS_REFUSED", 3)
        assert other.paths == []
        assert TOKEN not in f"{error.message}{error.hint}{error.data}"

    @pytest.mark.parametrize("status", [401, 403, 500])
    def test_errors_do_not_contain_the_token(self, registry: LoopbackRegistry, status: int) -> None:
        registry.route = always((status, {}, TOKEN.encode()))
        error = refusal(registry.registries(auth_env="TOOLPIN_ACME"))
        assert TOKEN not in f"{error.message}{error.hint}{error.data}{error!r}"

    def test_a_token_with_line_breaks_is_not_sent(
        self, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOOLPIN_ACME", f"{TOKEN}\r\nX-Injected: yes")
        registry.has(server())
        error = refusal(registry.registries(auth_env="TOOLPIN_ACME"))
        assert error.code == "VARIABLE_MISSING"
        assert TOKEN not in f"{error.message}{error.hint}{error.data}"
        assert registry.paths == []

    def test_the_command_line_prints_no_token(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        (tmp_path / ".toolpin").mkdir()
        row = {"id": "acme", "url": registry.url, "authEnv": "TOOLPIN_ACME", "allowHttp": True,
               "allowPrivateHosts": True}  # fmt: skip
        (tmp_path / ".toolpin" / "registries.json").write_text(json.dumps({"registries": [row]}))
        env = {"HOME": str(tmp_path), "TOOLPIN_ACME": TOKEN}
        registry.has(server())
        good = pinwarden("verify", NAME, "--source", "acme", "--format", "json", cwd=tmp_path, env=env)
        registry.route = always((500, {}, TOKEN.encode()))
        bad = pinwarden("verify", NAME, "--source", "acme", "--format", "json", cwd=tmp_path, env=env)
        assert bad.code == 3
        assert all(headers["authorization"] == f"Bearer {TOKEN}" for headers in registry.headers)
        assert TOKEN not in good.out + good.err + bad.out + bad.err


class TestOffline:
    def test_no_registry_is_queried_offline(self, registry: LoopbackRegistry) -> None:
        registry.has(server())
        offline = Registries(sources=(registry.source(),), offline=True)
        assert refusal(offline).code == "SERVER_NOT_FOUND"
        assert registry.paths == []

    def test_toolpins_cache_and_local_files_are_used(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        (tmp_path / "local.json").write_text(json.dumps(server("2.0.0", "io.acme/local")))
        sources = (registry.source(), RegistrySource(id="local", path=tmp_path / "local.json"))
        offline = Registries(sources=sources, offline=True, cached_entries=({**server(), "source": "acme"},))
        assert offline.find(NAME)["source"] == "acme"
        assert offline.find("io.acme/local")["source"] == "local"
        assert registry.paths == []

    def test_online_the_cache_does_not_restore_removed_entries(self, registry: LoopbackRegistry) -> None:
        """Attack: commit a cache that still has the release which the registry deleted."""
        cached = ({**server(), "source": "acme"},)
        online = Registries(sources=(registry.source(),), cached_entries=cached)
        assert refusal(online, "1.0.0").code == "SERVER_NOT_FOUND"
        registry.route = always((503, {}, b""))
        assert refusal(online, "1.0.0").code == "REGISTRY_UNAVAILABLE"

    def test_an_entry_of_the_cache_counts_for_its_own_source_only(self) -> None:
        offline = Registries(sources=(), offline=True, cached_entries=({**server(), "source": "acme"},))
        assert offline.find(NAME, source="acme")["source"] == "acme"
        with pytest.raises(PinwardenError) as caught:
            offline.find(NAME, source="official")
        assert caught.value.code == "SERVER_NOT_FOUND"


class TestProjectFiles:
    def configure(self, folder: Path, *rows: Any, **members: Any) -> None:
        (folder / ".toolpin").mkdir(exist_ok=True)
        text = json.dumps({"registries": list(rows), "sources": {"official": {"enabled": False}}, **members})
        (folder / ".toolpin" / "registries.json").write_text(text)

    def row(self, registry: LoopbackRegistry, **members: Any) -> dict[str, Any]:
        return {"id": "acme", "url": registry.url, "allowHttp": True, "allowPrivateHosts": True, **members}

    def test_a_registry_of_the_project_is_queried(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        registry.has(server())
        self.configure(tmp_path, self.row(registry))
        assert load_registries(tmp_path).find(NAME)["source"] == "acme"

    def test_a_disabled_registry_is_not_queried(self, registry: LoopbackRegistry, tmp_path: Path) -> None:
        self.configure(tmp_path, self.row(registry, enabled=False))
        assert load_registries(tmp_path).sources == ()

    @pytest.mark.parametrize("allowed", [{}, {"allowHttp": True}], ids=["nothing", "only plain HTTP"])
    def test_plain_http_and_private_hosts_need_permission_in_the_file(
        self, registry: LoopbackRegistry, tmp_path: Path, allowed: dict[str, bool]
    ) -> None:
        registry.has(server())
        self.configure(tmp_path, {"id": "acme", "url": registry.url, **allowed})
        assert refusal(load_registries(tmp_path)).code == "ADDRESS_REFUSED"
        assert registry.paths == []

    def test_without_a_file_the_official_registry_is_the_only_one(self, tmp_path: Path) -> None:
        assert [source.id for source in load_registries(tmp_path).sources] == ["official"]

    @pytest.mark.parametrize("url", ["servers", "./servers", "file://servers", "servers/a.json"])
    def test_a_file_or_folder_is_a_registry(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "servers").mkdir()
        (tmp_path / "servers" / "a.json").write_text(json.dumps([server("1.0.0"), server("2.0.0")]))
        (tmp_path / "servers" / "b.txt").write_text("no registry")
        self.configure(tmp_path, {"id": "local", "url": url})
        entry = load_registries(tmp_path, offline=True).find(NAME)
        assert (entry["source"], entry["server"]["version"]) == ("local", "2.0.0")

    @pytest.mark.parametrize(
        "document",
        [
            server(),
            server()["server"],
            [server()],
            {"servers": [server()]},
            {"entries": [{**server(), "source": "official"}]},
        ],
    )
    def test_a_file_may_have_one_entry_or_many(self, tmp_path: Path, document: Any) -> None:
        (tmp_path / "a.json").write_text(json.dumps(document))
        self.configure(tmp_path, {"id": "local", "url": "a.json"})
        assert load_registries(tmp_path).find(NAME)["source"] == "local"

    @pytest.mark.parametrize(
        "text",
        ["", "{", '{"a": 1, "a": 2}', "7", "[7]", '{"servers": 7}', '{"servers": [{"a": 1}]}', '{"server": 7}'],
    )
    def test_a_file_without_servers_is_an_error(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a.json").write_text(text)
        self.configure(tmp_path, {"id": "local", "url": "a.json"})
        assert refusal(load_registries(tmp_path)).exit_code in (2, 3)

    def test_a_file_that_is_missing_is_an_error(self, tmp_path: Path) -> None:
        self.configure(tmp_path, {"id": "local", "url": "none.json"})
        assert refusal(load_registries(tmp_path)).code == "FILE_UNREADABLE"

    @pytest.mark.parametrize("row", [7, "x", {}, {"id": "a"}, {"id": 7, "url": "x"}, {"id": "official", "url": "x"}])
    def test_an_invalid_registry_row_is_an_error(self, tmp_path: Path, row: Any) -> None:
        self.configure(tmp_path, row)
        with pytest.raises(PinwardenError) as caught:
            load_registries(tmp_path)
        assert caught.value.code == "CONFIG_INVALID"

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"entries": 7}', '{"entries": [7]}', '{"a": 1, "a": 1}'])
    def test_a_damaged_cache_is_an_error(self, tmp_path: Path, text: str) -> None:
        (tmp_path / ".toolpin").mkdir()
        (tmp_path / ".toolpin" / "registry-cache.json").write_text(text)
        with pytest.raises(PinwardenError) as caught:
            load_registries(tmp_path, offline=True)
        assert caught.value.exit_code in (2, 3)
