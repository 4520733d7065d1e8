"""Probing real servers, from npm and PyPI and written with two frameworks, over every transport they offer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from pinwarden.core.record import replace
from pinwarden.surface.probe.probe import ProbeOptions, probe, probe_all, probe_as_two_clients
from pinwarden.surface.probe.session import ClientIdentity
from pinwarden.surface.surface import Surface, encode_surface, parse_surface, surface_from_listing
from pinwarden.system.target import HttpTarget, StdioTarget
from tests.support.needs import missing
from tests.support.ports import reserved_port
from tests.support.targets import ALLOWED, LOCAL, names

TESTS = Path(__file__).parent.parent
NPM = TESTS / "npm" / "node_modules" / "@modelcontextprotocol"
RECORDED = TESTS / "vectors" / "real-servers"
REAL_CLIENT = ClientIdentity(
    name="real-client", version="1", capabilities={"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}
)
SLOW = replace(ALLOWED, timeout=240)
SLOW_LOCAL = replace(LOCAL, timeout=240)


def npm_server(name: str, *arguments: str) -> StdioTarget:
    entry = NPM / name / "dist" / "index.js"
    if shutil.which("node") is None or not entry.is_file():
        missing(f"{name} from npm", "tools/npm-packages.sh")
    return StdioTarget(command=("node", str(entry), *arguments))


def python_server(name: str, *arguments: str) -> StdioTarget:
    program = Path(sys.executable).with_name(name)
    if not program.is_file():
        missing(name, "make test")
    return StdioTarget(command=(str(program), *arguments))


def sample(name: str, mode: str) -> StdioTarget:
    return StdioTarget(command=(sys.executable, str(TESTS / "servers" / f"{name}_server.py"), mode))


def recording(name: str) -> Any:
    """What was recorded of a server, by another client, in the version that is installed."""
    return json.loads((RECORDED / f"{name}.json").read_bytes())


def npm_version(name: str) -> str:
    return str(json.loads((NPM / name / "package.json").read_bytes())["version"])


def assert_as_recorded(surface: Surface, name: str) -> None:
    expected = surface_from_listing(recording(name))
    assert surface.undigestable == ()
    assert {member: names(surface, member) for member in surface.items} == {
        member: names(expected, member) for member in surface.items
    }
    assert surface.items == {member: expected.items[member] for member in surface.items}
    assert surface.server is not None
    assert expected.server is not None
    assert surface.server["serverInfo"] == expected.server["serverInfo"]
    assert surface.server.get("instructions") == expected.server.get("instructions")
    assert parse_surface(encode_surface(surface)).digest == surface.digest


class TestNpm:
    @pytest.mark.parametrize("name", ["server-everything", "server-filesystem", "server-memory"])
    def test_the_listing_is_the_recorded_one(self, name: str, tmp_path: Path) -> None:
        arguments = (str(tmp_path),) if name == "server-filesystem" else ()
        surface = probe(npm_server(name, *arguments), SLOW)
        assert surface.observed["era"] == "initialize"
        assert_as_recorded(surface, f"{name}@{npm_version(name)}")

    def test_a_server_shows_more_to_a_client_that_can_do_more(self) -> None:
        plain, real = probe_as_two_clients(npm_server("server-everything"), SLOW, REAL_CLIENT)
        version = npm_version("server-everything")
        assert_as_recorded(plain, f"server-everything@{version}")
        assert_as_recorded(real, f"server-everything@{version}+client-capabilities")
        assert len(real.items["tools"]) > len(plain.items["tools"])

    @pytest.mark.parametrize(
        ("mode", "path", "transport"), [("streamableHttp", "mcp", "streamable-http"), ("sse", "sse", "sse")]
    )
    def test_the_same_surface_comes_over_http(self, mode: str, path: str, transport: str) -> None:
        with everything_over_http(mode) as port:
            surface = probe(HttpTarget(url=f"http://127.0.0.1:{port}/{path}"), SLOW_LOCAL)
        assert surface.observed["transport"] == transport
        assert_as_recorded(surface, f"server-everything@{npm_version('server-everything')}")


class TestPyPI:
    @pytest.mark.parametrize("name", ["mcp-server-time", "mcp-server-git"])
    def test_the_listing_is_the_recorded_one(self, name: str) -> None:
        from importlib.metadata import version

        # The time server tells the zone of its machine; the recording was made in UTC.
        arguments = ("--local-timezone", "UTC") if name == "mcp-server-time" else ()
        surface = probe(python_server(name, *arguments), SLOW)
        assert surface.observed["era"] == "discover"
        assert_as_recorded(surface, f"{name}@{version(name)}")


class TestFrameworks:
    @pytest.mark.parametrize(
        ("name", "info", "tools", "instructions"),
        [
            ("sdk", {"name": "sdk-sample", "version": "1.2.3"}, ["weather"], "Ask for the weather only."),
            ("fastmcp", {"name": "fastmcp-sample", "version": "4.5.6"}, ["add"], "Add numbers only."),
        ],
    )
    def test_stdio_http_and_sse_show_the_same_surface(
        self, name: str, info: dict[str, str], tools: list[str], instructions: str
    ) -> None:
        surface = probe(sample(name, "stdio"), SLOW)
        assert surface.server is not None
        assert surface.server["serverInfo"] == info
        assert surface.server["instructions"] == instructions
        assert names(surface) == tools
        assert names(surface, "resources") == ["note://today"]
        assert names(surface, "resourceTemplates") == ["note://{day}"]
        assert len(surface.items["prompts"]) == 1
        assert (surface.observed["era"], surface.observed["transport"]) == ("discover", "stdio")
        for mode, path, transport in (("http", "mcp", "streamable-http"), ("sse", "sse", "sse")):
            with over_http(name, mode) as port:
                other = probe(HttpTarget(url=f"http://127.0.0.1:{port}/{path}"), SLOW_LOCAL)
            assert other.observed["transport"] == transport
            assert other.items == surface.items
            assert other.server is not None
            assert other.server["instructions"] == instructions


def test_real_servers_are_probed_at_once(tmp_path: Path) -> None:
    targets = [
        npm_server("server-memory"),
        python_server("mcp-server-time"),
        npm_server("server-filesystem", str(tmp_path)),
        npm_server("server-everything"),
    ]
    results = probe_all(targets, SLOW)
    counts = [len(result.items["tools"]) for result in results if isinstance(result, Surface)]
    assert counts == [9, 2, 14, 13]


def test_a_real_server_answers_from_inside_the_sandbox() -> None:
    from pinwarden.system.sandbox import Sandbox

    if shutil.which("bwrap") is None:
        missing("bubblewrap", "apt-get install bubblewrap")
    target = npm_server("server-memory")
    options: ProbeOptions = replace(SLOW, sandbox=Sandbox(readable=(str(TESTS / "npm"),)))
    assert len(probe(replace(target, cwd=str(TESTS / "npm")), options).items["tools"]) == 9


@contextmanager
def over_http(name: str, mode: str) -> Iterator[int]:
    """A sample server on a port of its own choice."""
    with running(sample(name, mode).command, dict(os.environ)) as process:
        assert process.stdout is not None
        yield int(line_with(process.stdout, r"port (\d+)"))


@contextmanager
def everything_over_http(mode: str) -> Iterator[int]:
    """server-everything takes its port from outside."""
    port = reserved_port()
    command = npm_server("server-everything", mode).command
    with running(command, {**os.environ, "PORT": str(port)}) as process:
        assert process.stderr is not None
        line_with(process.stderr, rf"port ({port})")
        yield port


@contextmanager
def running(command: tuple[str, ...], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_with(stream: IO[str], pattern: str) -> str:
    """What the pattern finds in the first line that it matches."""
    for line in stream:
        match = re.search(pattern, line)
        if match:
            return match[1]
    raise AssertionError(f"the server ended without saying {pattern!r}")
