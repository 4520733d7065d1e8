"""More attacks on the gate: on policies, registries, signatures, configurations, and readers of reports."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.output import FORMATS, render
from pinwarden.clients.similar_names import compute_edit_distance
from pinwarden.core.json_slices import split_array
from pinwarden.core.keys import PrivateKey
from pinwarden.core.report import Report, Row
from pinwarden.core.strict_json import encode_json_file
from pinwarden.core.text import neutralize_log_commands, show_invisible
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lockfile, signature
from pinwarden.lock.extension import read_extension, with_extension
from pinwarden.lock.lockfile import put_entries
from pinwarden.lock.policy_table import GlobPattern, _match_pieces
from pinwarden.surface.probe.secret_mask import refuse_echoed_secrets
from pinwarden.surface.surface import TOOL, Item, Surface
from pinwarden.system.masking import is_secret_name, looks_secret, mask_text, mask_url, mask_words
from pinwarden.system.redaction import redact_entry
from tests.cli.run import pinwarden
from tests.cli.test_config_attacks import OK, OK_LIST, World

NOTES_SERVER = Path(__file__).parents[2] / "examples" / "notes_server.py"
LOCAL = {"command": "./run.sh"}
TOKEN = "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def locked(world: World, entry: Any = OK, name: str = "notes") -> World:
    world.write(".mcp.json", {"mcpServers": {name: entry}})
    world.lock()
    return world


# Configurations that two readers understand differently


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".cursor/mcp.json", "[" * 100_000),
        (".cursor/mcp.json", '{"a":' * 100_000),
        (".cursor/mcp.json", '{"mcpServers":{},"mcpS\\u0065rvers":{"x":{"command":"sh"}}}'),
        (".cursor/mcp.json", '{} {"mcpServers":{"x":{"command":"sh"}}}'),
        (".cursor/mcp.json", '{}\0{"mcpServers":{"x":{"command":"sh"}}}'),
        (".cursor/mcp.json", "{'mcpServers':{x:{command:'sh'}}}"),
        (".cursor/mcp.json", '{"mcpServers":{"x":{"command":"npx","timeout":' + "9" * 5000 + "}}}"),
        (".vscode/mcp.json", '{// off\u2028 "servers":{"x":{"command":"sh"}}\n}'),
        (".vscode/mcp.json", '{// off\u2029 "servers":{"x":{"command":"sh"}}\n}'),
        (".continue/config.yaml", "mcpServers:\n  - name: x\n    command: sh\n---\nmcpServers: []\n"),
        (".continue/config.yaml", "[" * 20_000),
        (".continue/config.yaml", "? {a: b}\n: c\nmcpServers: []\n"),
        (".codex/config.toml", "a = " + "[" * 50_000),
        (".codex/config.toml", "a = " + "9" * 6000),
    ],
)
def test_an_ambiguous_configuration_is_invalid_and_never_clean(world: World, file: str, text: str) -> None:
    locked(world).write(file, text)
    assert world.codes() == {"config_invalid"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".cursor/mcp.json", '\ufeff{"mcpServers":{"x":{"command":"sh"}}}'),
        (".cursor/mcp.json", '/* {} */ {"mcpServers":{"x":{"command":"sh"},},}'),
        (".cursor/mcp.json", '{// off\r "mcpServers":{"x":{"command":"sh"}}\n}'),
        (".cursor/mcp.json", '{"mcpServers":{"__proto__":{"command":"sh"}}}'),
        (".continue/config.yaml", "mcpServers: &m [{name: x, command: sh}]\nz: *m\n"),
        (".continue/config.yaml", "mcpServers: [{name: on, command: sh}]\n"),
        (".codex/config.toml", 'mcp_servers.x = {command="sh"}\n'),
        (".codex/config.toml", '[[mcp_servers.x]]\ncommand="sh"\n'),
        (".codex/config.toml", '["mcp_\\u0073ervers".x]\ncommand="sh"\n'),
    ],
)
def test_a_server_in_an_odd_spelling_of_the_file_is_found(world: World, file: str, text: str) -> None:
    locked(world).write(file, text)
    assert world.codes() == {"rogue_entry"}


def test_a_bomb_of_yaml_aliases_is_refused_at_once(world: World) -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for one, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{one}: &{one} [{','.join([f'*{before}'] * 9)}]")
    locked(world).write(".continue/config.yaml", "\n".join(lines) + "\nmcpServers: []\n")
    began = time.monotonic()
    assert world.codes() == {"config_invalid"}
    assert time.monotonic() - began < 60


def test_a_yaml_tag_runs_nothing(world: World, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text = f'mcpServers: !!python/object/apply:os.system ["touch {marker}"]\n'
    locked(world).write(".continue/config.yaml", text)
    assert world.run("ci").code == 1
    assert not marker.exists()


@pytest.mark.parametrize(
    "value", ["user:${OTHER}", "user:$OTHER", "x {env:OTHER}", "a%OTHER%b", "${A}-${B} and text", "a ${{ secrets.B }}"]
)
def test_a_literal_swapped_for_text_with_another_variable_in_it_is_seen(world: World, value: str) -> None:
    locked(world, {**OK, "env": {"MODE": "fast"}})
    world.write(".mcp.json", {"mcpServers": {"notes": {**OK, "env": {"MODE": value}}}})
    assert world.codes() == {"variable_changed"}


def test_text_around_a_variable_is_not_written_into_the_lock(world: World) -> None:
    locked(world, {**OK, "env": {"LOGIN": "hunter2hunter2:${OTHER}", "PIN": "pa$SWORDFISH"}})
    text = (world.root / "mcp-lock.json").read_text()
    assert "${OTHER}" in text
    assert "hunter2" not in text
    assert "SWORDFISH" not in text


@pytest.mark.parametrize("member", ["environment", "http_headers", "x"])
def test_a_secret_in_a_member_of_another_client_is_audited(world: World, member: str) -> None:
    world.write(".mcp.json", {"mcpServers": {"notes": {**OK, member: {"deep": {"GITHUB": TOKEN}}}}})
    outcome = world.run("secrets", "audit")
    assert outcome.code == 1
    assert TOKEN not in outcome.out


def test_planted_look_alikes_by_the_hundred_do_not_stall_the_gate(world: World) -> None:
    world.write(".mcp.json", {"mcpServers": {f"name{number:06}{'a' * 150}": OK for number in range(150)}})
    world.lock()
    world.write(".cursor/mcp.json", {"mcpServers": {f"game{number:06}{'b' * 150}": OK for number in range(150)}})
    began = time.monotonic()
    assert world.run("ci").code == 1
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [("abcd", "abcd", 0), ("abcd", "abdc", 1), ("abcd", "abc", 1), ("abcd", "xabcde", 2), ("abcd", "dcba", 3)],
)
def test_edit_distances_are_bounded(one: str, other: str, count: int) -> None:
    assert compute_edit_distance(one, other, 2) == compute_edit_distance(other, one, 2) == count


# Policies


def denied(world: World, policy: str) -> bool:
    world.write("pinwarden.toml", policy)
    outcome = world.run("ci", "--format", "json")
    facts = json.loads(outcome.out)
    return outcome.code == 1 and any(row["code"].endswith("_denied") for row in facts["failures"])


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("evil.com", "https://EVIL.com:8443/x"),
        ("Evil.com", "https://evil.com/x"),
        ("evil.com", "https://evil.com./x"),
        ("evil.com.", "https://evil.com/x"),
        ("bücher.example", "https://xn--bcher-kva.example/"),
        ("evil.com", "https://%65vil.com/"),
        ("1.2.3.4", "https://0x1020304/"),
        ("[::1]", "https://[0:0:0:0:0:0:0:1]:443/"),
        ("*.Evil.com", "https://a.evil.com:1/"),
    ],
)
def test_a_denied_host_is_denied_in_every_spelling(world: World, pattern: str, url: str) -> None:
    locked(world, {"url": url})
    assert denied(world, f'[policy.hosts]\ndeny=["{pattern}"]\n')


@pytest.mark.parametrize(("name", "pattern"), [("evil/a\nb", "evil/**"), ("evil/\u2028x", "**"), ("evil/", "evil/*")])
def test_a_denied_server_does_not_escape_by_odd_characters_in_its_name(world: World, name: str, pattern: str) -> None:
    locked(world, name=name)
    assert denied(world, f'[policy.servers]\ndeny=["{pattern}"]\n')


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("a*c", "abc", True),
        ("a*c", "a/c", False),
        ("a**c", "a/b/c", True),
        ("**X*Y", "X/XY", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("***", "a/\nb", True),
        ("*", "", True),
        ("a", "ab", False),
    ],
)
def test_patterns_match_as_documented(pattern: str, name: str, fits: bool) -> None:
    assert GlobPattern(text=pattern).matches(name) is fits


def test_the_fast_path_for_patterns_with_one_star_matches_the_general_one() -> None:
    names = ["".join(letters) for size in range(5) for letters in product("a/", repeat=size)]
    for pattern in ("".join(letters) for size in range(5) for letters in product("a/*", repeat=size)):
        pieces = re.findall(r"\*\*+|.", pattern)
        assert [GlobPattern(text=pattern).matches(name) for name in names] == [
            _match_pieces(pieces, name) for name in names
        ]


def test_pattern_matching_takes_bounded_time() -> None:
    began = time.process_time()
    assert not GlobPattern(text="*-*-*-*-*-*-*-x").matches("-" * 20_000)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "text",
    [
        "policy = " + "[" * 100_000,
        "[policy]\nminimum-score = " + "9" * 5000,
        '\ufeff[policy]\nminimum-tier="verified"\n',
        '[policy]\nminimum-tier="verified"\n[policy]\n',
        '[policy]\nminimum-tier="verified"\n"minimum-t\\u0069er"="unverified"\n',
        '[policy]\nminimum-tier="verified"\r[policy.servers]\rdeny=["x"]',
    ],
)
def test_an_ambiguous_policy_is_refused(world: World, text: str) -> None:
    locked(world)
    (world.root / "pinwarden.toml").write_bytes(text.encode())
    outcome = world.run("ci")
    assert outcome.code == 3
    assert "POLICY_INVALID" in outcome.err


def test_a_clock_that_is_set_back_does_not_revive_a_waiver(world: World) -> None:
    locked(world)
    waiver = 'server="notes"\ncode="server_denied"\nreason="x"\nowner="me"\nexpires=2020-01-01\n'
    world.write("pinwarden.toml", f'[policy.servers]\ndeny=["notes"]\n[[policy.waivers]]\n{waiver}')
    env = {"HOME": str(world.home), "SOURCE_DATE_EPOCH": "1500000000"}
    assert pinwarden("ci", cwd=world.root, env=env).code == 1


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit every entry and seal all of it again, as an attacker can."""
    made = []
    for entry in lockfile.parse(path.read_bytes()).entries:
        record = read_extension(entry)
        assert record is not None
        document = json.loads(json.dumps(entry.document))
        del document["capabilityManifest"][lock_entry.EXTENSION]
        change(document)
        for member in ("config", "selectedTarget", "capabilityManifest"):
            document["locked"][member] = document[member]
        made.append(
            with_extension(lock_entry.with_integrity(lock_entry.Entry(key=entry.key, document=document)), record)
        )
    path.write_bytes(lockfile.to_bytes(put_entries(None, made, "2099-01-01T00:00:00.000Z")))


@pytest.mark.parametrize(
    ("entry", "policy", "part", "member", "value"),
    [
        ({"url": "https://evil.com/x"}, '[policy.hosts]\nallow=["good.com"]', "capabilityManifest", "remoteHosts", []),
        (LOCAL, '[policy.package-types]\nallow=["npm"]', "capabilityManifest", "packageTypes", ["npm"]),
        (OK, '[policy]\nminimum-tier="verified"', "trust", "tier", "verified"),
    ],
)
def test_an_entry_that_lies_to_the_policy_about_itself_is_caught(  # noqa: PLR0917
    world: World, entry: Any, policy: str, part: str, member: str, value: Any
) -> None:
    locked(world, entry).write("pinwarden.toml", policy + "\n")
    forge(world.root / "mcp-lock.json", lambda document: document[part].update({member: value}))
    assert world.codes() == {"entry_inconsistent"}


@pytest.mark.parametrize(
    ("file", "root", "entry"),
    [
        (".mcp.json", "mcpServers", {"url": "https://a.example/x?team=1&k=${K}", "headers": {"X": "y"}}),
        (".mcp.json", "mcpServers", {"type": "sse", "url": "https://a.example:8443/x"}),
        (".mcp.json", "mcpServers", {"command": "docker", "args": ["run", "-i", "a/b:1", "--x"], "env": {"A": "b"}}),
        (".mcp.json", "mcpServers", {"command": "uvx", "args": ["--from", "a==1.0", "b"]}),
        (".mcp.json", "mcpServers", {"command": "./run.sh"}),
        (".vscode/mcp.json", "servers", {"command": "npx", "args": ["-y", "a"], "envFile": ".env"}),
        ("opencode.json", "mcp", OK_LIST),
        (".zed/settings.json", "context_servers", {"command": {"path": "npx", "args": ["a@1.0.0"]}}),
    ],
)
def test_a_consistent_entry_is_clean_under_a_policy(world: World, file: str, root: str, entry: Any) -> None:
    world.write(file, {root: {"notes": entry}})
    world.write("pinwarden.toml", '[policy.servers]\ndeny=["other"]\n')
    world.lock()
    assert world.run("ci").code == 0


# Starting servers


@pytest.mark.parametrize("attack", ["digest", "policy", "tampered"])
def test_unapproved_servers_are_not_started_for_a_probe(world: World, attack: str) -> None:
    marker = world.root / "ran"
    command = f"touch {marker}; exec {sys.executable} {NOTES_SERVER}"
    world.write(".mcp.json", {"mcpServers": {"notes": {"command": "sh", "args": ["-c", command]}}})
    assert world.run("init", "--accept", "notes", "--by", "me", "--allow-execute").code == 0
    marker.unlink()
    more: list[str] = []
    if attack == "digest":
        more = ["--expect-digest", "sha256-n1VTHE77rmX6VTubCBZ8TdMvWvfJe4rZrxWnyuBcKbI="]
    elif attack == "policy":
        world.write("pinwarden.toml", '[policy.servers]\ndeny=["notes"]\n')
    else:
        path = world.root / "mcp-lock.json"
        path.write_text(path.read_text().replace("exec ", "exec  "))
    assert world.run("ci", "--live", "--allow-execute", "--offline", *more).code == 1
    assert not marker.exists()


ECHO = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        about = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        said = {"result": {**about, "serverInfo": {"name": "x", "version": "1"}}}
    elif asked.get("method") == "tools/list":
        tool = {"name": "t", "description": os.environ.get("TOKEN", ""), "inputSchema": {"type": "object"}}
        said = {"result": {"tools": [tool]}}
    else:
        said = {"error": {"code": -32601, "message": "no"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


def test_a_surface_that_repeats_a_secret_is_not_stored(world: World) -> None:
    world.write("echo.py", ECHO)
    entry = {"command": sys.executable, "args": ["echo.py"], "env": {"TOKEN": TOKEN}}
    world.write(".mcp.json", {"mcpServers": {"notes": entry}})
    outcome = world.run("init", "--by", "me", "--allow-execute")
    assert "repeat a secret value that was sent to it: TOKEN" in outcome.out.replace("\n", " ").replace("  ", "")
    written = [path for path in world.root.rglob("*") if path.is_file() and path.name != ".mcp.json"]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def test_an_item_nested_beyond_reading_is_cut_out_and_the_others_stay() -> None:
    deep = '{"a":' * 5000 + '"]}\\""' + "}" * 5000
    assert split_array(f'[1, {deep} , "x"]'.encode()) == [b"1", deep.encode(), b'"x"']


# Registries


class Registry(BaseHTTPRequestHandler):
    status = 200
    answer: Any = None
    padding = 0

    def do_GET(self) -> None:
        body = json.dumps(self.answer).encode() + b" " * self.padding
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # the client may have closed the connection
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002  the name is the base's
        return


def published(name: str = "io.acme/notes", version: str = "1.0.0") -> dict[str, Any]:
    package = {"registryType": "npm", "identifier": "@acme/notes", "version": version, "transport": {"type": "stdio"}}
    return {"server": {"name": name, "description": "d", "version": version, "packages": [package]}, "_meta": {}}


@pytest.fixture
def registry(world: World) -> Iterator[type[Registry]]:
    class Ours(Registry):
        answer = published()

    with ThreadingHTTPServer(("127.0.0.1", 0), Ours) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        row = {"id": "acme", "url": f"http://127.0.0.1:{server.server_port}", "allowHttp": True}
        row["allowPrivateHosts"] = True
        off = {"official": {"enabled": False}}
        world.write(".toolpin/registries.json", {"registries": [row], "sources": off})
        assert world.run("lock", "io.acme/notes", "--client", "claude", "--by", "me").code == 0
        assert world.run("ci", "--registry").code == 0
        yield Ours
        server.shutdown()


@pytest.mark.parametrize("answer", [published(name="io.acme/other"), published(version="1.0.1")])
def test_a_registry_response_about_another_server_or_version_is_refused(
    world: World, registry: type[Registry], answer: Any
) -> None:
    registry.answer = answer
    assert world.run("ci", "--registry").code == 3


@pytest.mark.parametrize(("status", "code"), [(404, 1), (500, 3)])
def test_a_cache_planted_in_the_repository_does_not_replace_a_registry(
    world: World, registry: type[Registry], status: int, code: int
) -> None:
    registry.status = status
    world.write(".toolpin/registry-cache.json", {"entries": [{**published(), "source": "acme"}]})
    assert world.run("ci", "--registry").code == code


def test_a_cache_planted_in_the_repository_is_not_the_official_registry(world: World) -> None:
    world.write(".toolpin/registries.json", {"registries": [], "sources": {"official": {"enabled": False}}})
    world.write(".toolpin/registry-cache.json", {"entries": [{**published(), "source": "official"}]})
    assert world.run("lock", "io.acme/notes", "--client", "claude", "--by", "me").code != 0


def test_not_modified_without_a_cached_response_is_refused(world: World, registry: type[Registry]) -> None:
    registry.status = 304
    assert world.run("ci", "--registry").code == 3


# Signatures


def test_a_flood_of_signatures_is_refused_before_they_are_tried() -> None:
    key = PrivateKey.from_seed(b"1" * 32)
    envelope = signature.sign_file(b"{}", [key], "2026-01-01T00:00:00.000Z")
    envelope["signatures"] = [{"keyid": "", "sig": b64encode(bytes(64)).decode()}] * 100_000 + envelope["signatures"]
    began = time.process_time()
    data = json.dumps(envelope).encode()
    outcome = signature.verify_signatures(b"{}", [data], {"me": key.public_key}, signature.RequiredSigners())
    assert not outcome.ok
    assert time.process_time() - began < 20


# Reports

COMMANDS = ("##[add-mask]critical", "##vso[task.setvariable variable=PATH]/evil", "##teamcity[x]")


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "github"])
def test_server_text_cannot_become_a_build_server_command(form: str) -> None:
    words = " ".join(("x" * 88, "::stop-commands::x", *COMMANDS, "::add-mask::y"))
    rows = [
        Row(code="c", severity="critical", entity="tool", name=text, path=text, message=text, before=before, after=text)
        for text in (words, *COMMANDS, *(("y" * size) + " ::error::x" for size in range(60, 100)))
        for before in (None, "old")
    ]
    report = Report(
        command="ci", subject="s", summary=words, exit_code=1, rows=tuple(rows), notes=(words,), facts={"text": words}
    )
    text = render(report, form)
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
    assert not [mark for mark in ("##[", "##vso[", "##teamcity[") if mark in text]
    if form == "json":
        assert json.loads(text) == {"text": words}


def test_a_host_without_a_scheme_is_not_a_link_in_markdown() -> None:
    row = Row(
        code="c", severity="review", entity="tool", name="n", path="", message="see www.evil.com and WWW.evil.com"
    )
    report = Report(command="ci", subject="s", summary="s", exit_code=1, rows=(row,), notes=(), facts={})
    assert "www." not in render(report, "markdown").lower()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pinwarden.toml", '[policy]\n"\\u001b]0;x\\u0007\\n::add-mask::x" = 1\n'),
        (".toolpin/policy.json", json.dumps({"\x1b[2J\n::add-mask::x": 1})),
    ],
)
def test_an_error_about_a_hostile_file_controls_neither_terminal_nor_build_server(
    world: World, file: str, text: str
) -> None:
    locked(world).write(file, text)
    outcome = world.run("ci")
    assert outcome.code == 3
    assert "\x1b" not in outcome.err
    assert not [line for line in outcome.err.splitlines() if line.startswith("::")]


# What the open ones became


@pytest.fixture
def loud(world: World) -> World:
    """A server, its listing and its lock, all named like commands to a build server."""
    text = ECHO.replace('"name": "t"', '"name": "##[add-mask]x"').replace('os.environ.get("TOKEN", "")', repr("::x::y"))
    world.write("loud.py", text)
    world.write("tools.json", [{"name": "##vso[x]y"}, {"name": "##teamcity[x]"}, {"x": "##[x]"}])
    world.write(".mcp.json", {"mcpServers": {"##[add-mask]x": OK, "::stop-commands::x": OK}})
    world.lock()
    return world


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--allow-execute", "--", sys.executable, "loud.py"),
        ("inspect", "--allow-execute", "--format", "json", "--", sys.executable, "loud.py"),
        ("digest", "tools.json"),
        ("digest", "tools.json", "--format", "json"),
        ("list",),
        ("list", "--format", "json"),
        ("explain", "::stop-commands::x"),
        ("explain", "##[add-mask]x"),
    ],
)
def test_no_command_prints_build_server_commands(loud: World, words: tuple[str, ...]) -> None:
    outcome = loud.run(*words)
    assert outcome.out, outcome
    output = outcome.out + outcome.err
    assert not [line for line in output.splitlines() if line.lstrip().startswith("::")]
    assert not [mark for mark in ("##[", "##vso[", "##teamcity[") if mark in output]


def test_an_approved_text_keeps_its_spelling_in_the_file() -> None:
    """What is printed is changed, what is written is not: a digest is over the file's text."""
    assert b'"##[add-mask]x"' in encode_json_file({"description": "##[add-mask]x"})


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "notes", "--allow-execute", "-o", "out.json"),
        ("approve", "notes", "--allow-execute", "--yes", "--by", "me"),
        ("init", "--accept-all", "--allow-execute", "--by", "me"),
    ],
)
@pytest.mark.parametrize("given", ["${PASSED_ON}", "Bearer ${PASSED_ON}", "correct-horse-battery"])
def test_a_surface_that_repeats_a_given_secret_is_refused(world: World, words: tuple[str, ...], given: str) -> None:
    world.write("echo.py", ECHO)
    entry = {"command": sys.executable, "args": ["echo.py"], "env": {"TOKEN": given}}
    world.write(".mcp.json", {"mcpServers": {"notes": entry}})
    if words[0] == "approve":
        assert world.run("init", "--accept-all", "--by", "me").code == 0
    before = {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()}
    env = {"HOME": str(world.home), "PASSED_ON": "correct-horse-battery"}
    outcome = pinwarden(*words, cwd=world.root, env=env)
    assert outcome.code == 1, outcome
    assert "repeat a secret value that was sent to it" in " ".join((outcome.out + outcome.err).split())
    assert "correct-horse" not in outcome.out + outcome.err
    after = {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()}
    written = [path for path in after if after[path] != before.get(path)]
    assert not [path for path in written if b"correct-horse" in after[path] or path.name == "out.json"]


def test_a_server_that_starts_to_repeat_a_secret_is_drift(world: World) -> None:
    world.write("echo.py", ECHO.replace("TOKEN", "OTHER"))
    entry = {"command": sys.executable, "args": ["echo.py"], "env": {"TOKEN": TOKEN}}
    world.write(".mcp.json", {"mcpServers": {"notes": entry}})
    assert world.run("init", "--accept-all", "--by", "me", "--allow-execute").code == 0
    world.write("echo.py", ECHO)
    outcome = world.run("ci", "--live", "--offline", "--allow-execute", "--format", "json")
    assert [row["code"] for row in json.loads(outcome.out)["failures"]] == ["secret_repeated"]
    assert TOKEN not in outcome.out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOG_LEVEL", "production"),
        ("ROOT", "/srv/notes/all"),
        ("BASE_URL", "https://notes.example.com/api"),
        ("Accept", "application/json"),
        ("SHORT", "abc1234"),
    ],
)
def test_values_that_cannot_be_secrets_may_be_repeated(name: str, value: str) -> None:
    item = Item.from_value(TOOL, {"name": "t", "description": f"Uses {value} for all notes."})
    refuse_echoed_secrets(Surface(server=None, items={"tools": (item,)}, observed={}), [(name, value)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"script": "start.sh"}, {"script": "evil.sh"}),
        ({"x": {"shell": "bash"}}, {"x": {"shell": "evil"}}),
        ({"docker": {"image": "acme/notes:1"}}, {"docker": {"image": "evil/notes:1"}}),
        ({"proxy": "https://a.example/?k=1"}, {"proxy": "https://b.example/?k=1"}),
        ({"permissions": ["read"]}, {"permissions": ["read", "write"]}),
        ({"isolated": True}, {"isolated": False}),
        ({"x": {"uid": 1000}}, {"x": {"uid": 0}}),
    ],
)
def test_an_unknown_member_that_decides_what_is_started_is_compared(
    world: World, before: dict[str, Any], after: dict[str, Any]
) -> None:
    locked(world, {**OK, **before})
    world.write(".mcp.json", {"mcpServers": {"notes": {**OK, **after}}})
    assert world.run("ci").code == 1


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("script", f"run --token {TOKEN}"),
        ("args", ["--password", "hunter2"]),
        ("proxy", "user:hunter2@proxy"),
        ("exec", "start --password hunter2"),
        ("label", "hunter2"),
    ],
)
def test_text_that_may_be_secret_is_not_stored_and_reported_as_not_compared(
    world: World, member: str, value: Any
) -> None:
    world.write(".mcp.json", {"mcpServers": {"notes": {**OK, "extra": {member: value}}}})
    made = world.run("init", "--accept-all", "--by", "me")
    assert made.code == 0, made
    lock = (world.root / "mcp-lock.json").read_text()
    assert "hunter2" not in lock
    assert TOKEN not in lock
    for output in (made.out, world.run("ci").out):
        assert f"the lock does not record extra.{member}" in " ".join(output.split())


def test_ci_live_without_any_approved_surface_is_not_clean(world: World) -> None:
    locked(world)
    outcome = world.run("ci", "--live", "--offline", "--format", "json")
    (row,) = json.loads(outcome.out)["unchecked"]
    assert (outcome.code, row["code"]) == (3, "could_not_check")
    assert "pinwarden approve NAME" in row["message"]


@pytest.mark.parametrize(
    "servers",
    [
        {TOKEN: OK},
        {"notes": {**OK, "env": {TOKEN: "x"}}},
        {"notes": {**OK, "extra": {"deep": [{TOKEN: 1}]}}},
        {"notes": {"url": f"https://a.example/?{TOKEN}=1"}},
        {"notes": {"url": "https://a.example/", "headers": {"AKIA" + "IOSFODNN7EXAMPLE": "x"}}},
    ],
)
def test_a_secret_in_place_of_a_name_is_not_stored(world: World, servers: dict[str, Any]) -> None:
    world.write(".mcp.json", {"mcpServers": servers})
    outcome = world.run("init", "--accept-all", "--by", "me")
    assert outcome.code == 1
    assert "the name of the server, a member or a variable looks like a secret" in " ".join(outcome.out.split())
    lock = world.root / "mcp-lock.json"
    assert not lock.exists() or b"ghp_" not in lock.read_bytes()


@pytest.mark.parametrize(
    "name", ["task-manager-server", "sk-learn-server-2", "X-Custom-Header-Version2-Of-Acme", "GITHUB_PERSONAL_TOKEN2"]
)
def test_an_ordinary_name_is_not_a_secret(name: str) -> None:
    assert not is_secret_name(name)


# What held, and is held


@pytest.mark.parametrize(
    "url",
    [
        "https://good.example@evil.example/",
        "https://good.example\\@evil.example/",
        "https://ｅｖｉｌ.example/",
        "https://evil.example#@good.example/",
        "https://good.example\t.evil.example/",
    ],
)
def test_an_address_with_an_ambiguous_host_is_not_locked(world: World, url: str) -> None:
    world.write(".mcp.json", {"mcpServers": {"notes": {"url": url}}})
    assert world.run("init", "--accept-all", "--by", "me").code == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-7"])
def test_a_configuration_in_another_encoding_is_never_clean(world: World, encoding: str) -> None:
    locked(world)
    text = '{"mcpServers":{"x":{"command":"sh"}}}'
    data = b"+AHs-" + text[1:].encode() if encoding == "utf-7" else text.encode(encoding)
    (world.root / ".cursor").mkdir()
    (world.root / ".cursor" / "mcp.json").write_bytes(data)
    assert world.codes() == {"config_invalid"}


def test_thousands_of_entries_are_locked_and_checked_in_bounded_time(world: World) -> None:
    world.write(".mcp.json", {"mcpServers": {f"n{number}": OK for number in range(1000)}})
    began = time.monotonic()
    world.lock()
    world.write(".mcp.json", {"mcpServers": {"other": OK} | {f"n{number}": OK for number in range(1000)}})
    assert world.codes() == {"rogue_entry"}
    assert time.monotonic() - began < 60


HOSTILE_TEXTS = [
    pattern * (size // len(pattern))
    for size in (4000, 200_000)
    for pattern in (
        "a",
        "-",
        "a-",
        "a=",
        "--a=",
        "$",
        "${",
        "<",
        " ",
        "a: ",
        "'",
        '"',
        "://",
        "@",
        "a:",
        "%a",
        "eyJaaaaaaaa.",
        "sk-",
        "\\",
    )
]


def test_masking_takes_bounded_time() -> None:
    began = time.process_time()
    for text in HOSTILE_TEXTS:
        for shown in (mask_text, mask_url, is_secret_name):
            shown(text)
        mask_words([text, text])
        looks_secret("name", text)
        redact_entry({"command": text, "url": text, "env": {"A": text}, "x": {"script": text, "args": [text]}})
        neutralize_log_commands(show_invisible(text))
    assert time.process_time() - began < 30


def test_a_registry_response_padded_with_blanks_is_refused(world: World, registry: type[Registry]) -> None:
    registry.padding = 30_000_000
    assert world.run("ci", "--registry").code == 3


def test_a_registry_cannot_claim_another_identity(world: World, registry: type[Registry]) -> None:
    registry.answer = {**published(), "source": "official"}
    assert world.run("lock", "io.acme/notes", "--client", "claude", "--by", "me").code == 0
    (entry,) = lockfile.parse((world.root / "mcp-lock.json").read_bytes()).entries
    assert entry.source == "acme"


def test_a_version_that_its_registry_deleted_is_critical(world: World, registry: type[Registry]) -> None:
    meta = {"io.modelcontextprotocol.registry/official": {"status": "deleted"}}
    registry.answer = {**published(), "_meta": meta}
    outcome = world.run("ci", "--registry", "--format", "json")
    assert outcome.code == 1
    assert "entry_deleted" in {row["code"] for row in json.loads(outcome.out)["failures"]}
