"""Client configurations: every dialect understood, nothing hidden by a neighbour, nothing ambiguous accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError
from pinwarden.clients.config import ConfigFile, parse_targets, read_config
from pinwarden.clients.documents import read_document
from pinwarden.clients.table import CLIENTS, FOLDERS, SYSTEMS, ConfigLocation, find_installation_location, get_client
from pinwarden.lock.entry import LOCK_CLIENTS
from pinwarden.system.target import HttpTarget, StdioTarget, Target


def read(
    data: str | bytes, client: str = "generic", name: str = "mcp.json", location: ConfigLocation | None = None
) -> ConfigFile:
    known = CLIENTS[client]
    raw = data.encode() if isinstance(data, str) else data
    return read_config(raw, client=known, location=location or known.locations[0], path=name)


def target(entry: dict[str, Any], client: str) -> Target | None:
    known = CLIENTS[client]
    document: Any = {"x": entry}
    if known.entry_format.named_list:
        document = [{"name": "x", **entry}]
    for step in reversed(known.root):
        document = {step: document}
    [server] = read(json.dumps(document), client).servers
    assert server.name == "x"
    return server.target


STDIO = StdioTarget(command=("npx", "-y", "notes@1.0.0"), env={"TOKEN": "${TOKEN}"})
HEADERS = {"Authorization": "Bearer ${TOKEN}"}


@pytest.mark.parametrize(
    ("client", "entry", "expected"),
    [
        *(
            (client, {"command": "npx", "args": ["-y", "notes@1.0.0"], "env": {"TOKEN": "${TOKEN}"}}, STDIO)
            for client in CLIENTS
            if client not in ("opencode", "goose")
        ),
        *(
            ("goose", entry, STDIO)
            for own in [{"type": "stdio", "cmd": "npx", "args": ["-y", "notes@1.0.0"], "envs": {"TOKEN": "${TOKEN}"}}]
            for entry in (own, {"enabled": True, "config": own})
        ),
        (
            "goose",
            {"type": "streamable_http", "uri": "https://x.example/mcp", "headers": HEADERS},
            HttpTarget(url="https://x.example/mcp", headers=HEADERS, transport="streamable-http"),
        ),
        (
            "opencode",
            {"type": "local", "command": ["npx", "-y", "notes@1.0.0"], "environment": {"TOKEN": "${TOKEN}"}},
            STDIO,
        ),
        (
            "zed",
            {"command": {"path": "npx", "args": ["-y", "notes@1.0.0"], "env": {"TOKEN": "${TOKEN}"}}, "settings": {}},
            STDIO,
        ),
        (
            "claude",
            {"type": "http", "url": "https://x.example/mcp", "headers": HEADERS},
            HttpTarget(url="https://x.example/mcp", headers=HEADERS, transport="streamable-http"),
        ),
        ("cursor", {"url": "https://x.example/mcp"}, HttpTarget(url="https://x.example/mcp")),
        ("claude", {"type": "sse", "url": "https://x.example"}, HttpTarget(url="https://x.example", transport="sse")),
        ("windsurf", {"serverUrl": "https://x.example/mcp"}, HttpTarget(url="https://x.example/mcp")),
        (
            "gemini",
            {"httpUrl": "https://x.example/mcp"},
            HttpTarget(url="https://x.example/mcp", transport="streamable-http"),
        ),
        ("gemini", {"url": "https://x.example/sse"}, HttpTarget(url="https://x.example/sse", transport="sse")),
        (
            "cline",
            {"type": "streamableHttp", "url": "https://x.example"},
            HttpTarget(url="https://x.example", transport="streamable-http"),
        ),
        (
            "continue",
            {"type": "streamable-http", "url": "https://x.example", "requestOptions": {"headers": HEADERS}},
            HttpTarget(url="https://x.example", headers=HEADERS, transport="streamable-http"),
        ),
        (
            "codex",
            {"url": "https://x.example", "bearer_token_env_var": "TOKEN", "env_http_headers": {"X-Key": "KEY"}},
            HttpTarget(url="https://x.example", headers={**HEADERS, "X-Key": "${KEY}"}),
        ),
    ],
)
def test_each_client_says_the_same_thing_in_its_own_words(client: str, entry: dict[str, Any], expected: Target) -> None:
    assert target(entry, client) == expected


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("claude", {"command": "x", "disabled": True}),
        ("codex", {"command": "x", "enabled": False}),
        ("opencode", {"command": ["x"], "enabled": False}),
        ("zed", {"command": "x", "enabled": False}),
    ],
)
def test_a_server_that_is_switched_off_is_known_to_be(client: str, entry: dict[str, Any]) -> None:
    [server] = read(json.dumps({CLIENTS[client].root[0]: {"x": entry}}), client).servers
    assert server.disabled


class TestOneBadEntryDoesNotHideTheOthers:
    @pytest.mark.parametrize(
        "bad",
        [
            7,
            {},
            {"command": 7},
            {"command": ""},
            {"command": "x", "args": [1]},
            {"command": "x", "env": {"A": []}},
            {"command": "x", "env": 7},
            {"command": "x", "cwd": 7},
            {"url": 7},
            {"url": "file:///etc/passwd"},
            {"url": "https://user:pass@x.example"},
            {"url": "https://x.example", "headers": {"a b": "c"}},
        ],
    )
    def test_an_invalid_entry_is_a_server_with_a_problem(self, bad: Any) -> None:
        file = read(json.dumps({"mcpServers": {"bad": bad, "good": {"command": "x"}}}))
        assert [(server.name, server.target) for server in file.servers] == [
            ("bad", None),
            ("good", StdioTarget(command=("x",))),
        ]
        assert file.servers[0].problem
        assert file.servers[0].entry == bad

    def test_a_command_and_an_address_at_once_is_a_problem_and_the_command_counts(self) -> None:
        [server] = read('{"mcpServers": {"x": {"command": "evil", "url": "https://x.example"}}}').servers
        assert server.target == StdioTarget(command=("evil",))
        assert server.problem == "the entry has a command and an address; clients differ in which one they use"

    def test_numbers_and_null_in_the_environment_are_read_as_vs_code_does(self) -> None:
        [server] = read('{"servers": {"x": {"command": "c", "env": {"PORT": 80, "GONE": null}}}}', "vscode").servers
        assert server.target == StdioTarget(command=("c",), env={"PORT": "80"})


class TestFiles:
    def test_comments_trailing_commas_and_a_byte_order_mark_are_read(self) -> None:
        text = '\ufeff// mine\n{"mcpServers": {/* a */ "x": {"command": "c", "args": ["-y",],}, // end\n},}\n'
        assert [server.name for server in read(text).servers] == ["x"]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("mcp.json", '{"mcpServers": {"x": {"command": "a"}, "x": {"command": "b"}}}'),
            ("mcp.json", '{"mcpServers": {"x": {"command": "a"}, /**/ "\\u0078": {"command": "b"}}}'),
            ("config.toml", '[mcpServers.x]\ncommand = "a"\n[mcpServers.x]\ncommand = "b"\n'),
            ("config.yaml", "mcpServers:\n  x:\n    command: a\n  x:\n    command: b\n"),
            ("config.yaml", "mcpServers:\n  - name: x\n    command: a\n  - name: x\n    command: b\n"),
        ],
    )
    def test_a_repeated_server_makes_the_file_invalid(self, name: str, text: str) -> None:
        file = read(text, name=name)
        assert (file.fault, file.servers) == ("invalid", ())

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("mcp.json", "{"),
            ("mcp.json", "[]"),
            ("mcp.json", "{} {}"),
            ("mcp.json", '{"mcpServers": []x}'),
            ("mcp.json", '{"mcpServers": "x"}'),
            ("mcp.json", '{"a": "\\ud800"}'),
            ("mcp.json", '{"a": 1e999}'),
            ("mcp.json", "{/* no end"),
            ("mcp.json", "[" * 5000),
            ("config.toml", "a = "),
            ("config.yaml", "a: [1"),
            ("config.yaml", "a: !!python/object:os.system x"),
            ("config.yaml", "a: &x [*x]"),
            ("config.yaml", "&a [" * 500),
            ("config.yaml", "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
                f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 8)}]\n" for n in range(9)
            )),
        ],
    )  # fmt: skip
    def test_a_damaged_file_is_a_value_that_says_so(self, name: str, text: str) -> None:
        file = read(text, name=name)
        assert (file.fault, file.servers, file.document) == ("invalid", (), None)
        assert file.problem

    @pytest.mark.parametrize("name", ["mcp.json", "config.toml", "config.yaml"])
    def test_bytes_that_are_not_utf8_are_a_fault(self, name: str) -> None:
        assert read(b'{"a": "\xff"}', name=name).fault == "invalid"

    @pytest.mark.parametrize("name", ["mcp.json", "config.toml", "config.yaml"])
    def test_an_empty_file_has_no_servers_and_no_fault(self, name: str) -> None:
        file = read(b"", name=name)
        assert (file.fault, file.servers, file.document) == (None, (), {})

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("mcp.json", '{"env": {"TOKEN": "hunter2secret"} "x"}'),
            ("config.toml", 'TOKEN = "hunter2secret" x'),
            ("config.yaml", 'TOKEN: "hunter2secret" x: ['),
            ("config.yaml", "TOKEN: *hunter2secret"),
        ],
    )
    def test_the_description_of_a_damaged_file_never_quotes_it(self, name: str, text: str) -> None:
        assert "hunter2" not in repr(read(text, name=name))

    def test_yaml_is_read_by_the_rules_of_version_1_2(self) -> None:
        text = "a: no\nb: 1.0.0\nc: 010\nd: 'true'\ne: ~\nf: 0x1\ng: 1e3\nh: {x: [1, on]}\n"
        assert read_document(text.encode(), "x.yaml") == {
            "a": "no",
            "b": "1.0.0",
            "c": 10,
            "d": "true",
            "e": None,
            "f": "0x1",
            "g": 1000.0,
            "h": {"x": [1, "on"]},
        }

    def test_entries_and_values_are_not_shown(self) -> None:
        file = read('{"mcpServers": {"x": {"command": "c", "env": {"T": "hunter2"}}}}')
        assert "hunter2" not in repr(file)

    def test_claude_keeps_servers_of_single_projects_in_the_users_file(self) -> None:
        location = next(location for location in CLIENTS["claude"].locations if location.projects_member)
        document = {
            "mcpServers": {"all": {"command": "a"}},
            "projects": {"/w/x": {"mcpServers": {"one": {"command": "b"}}, "history": []}, "/w/y": {}},
        }
        file = read(json.dumps(document), "claude", ".claude.json", location)
        assert [(server.name, server.scope, server.folder, server.pointer) for server in file.servers] == [
            ("all", "global", None, "/mcpServers/all"),
            ("one", "local", "/w/x", "/projects/~1w~1x/mcpServers/one"),
        ]


class TestServersIn:
    def test_every_usual_member_is_searched(self) -> None:
        config = {
            "mcpServers": {"a": {"command": "1"}},
            "servers": {"b": {"url": "https://x.example"}},
            "context_servers": {"c": {"command": "3"}},
            "mcp": {"d": {"type": "local", "command": ["4"]}},
            "mcp_servers": {"e": {"command": "5"}},
        }
        assert sorted(parse_targets(config)) == ["a", "b", "c", "d", "e"]
        assert sorted(parse_targets({"mcp": {"servers": {"f": {"command": "6"}}, "inputs": []}})) == ["f"]

    def test_values_other_than_objects_are_refused_and_invalid_servers_are_left_out(self) -> None:
        assert parse_targets({"mcpServers": {"a": 1, "b": {"command": "x"}}}) == {"b": StdioTarget(command=("x",))}
        with pytest.raises(PinwardenError) as caught:
            parse_targets([])
        assert caught.value.code == "CONFIG_INVALID"


def vscode_place(ending: str) -> ConfigLocation:
    return next(location for location in CLIENTS["vscode"].locations if location.path.endswith(ending))


CONTAINER = vscode_place("/devcontainer.json")
SETTINGS = vscode_place("{project}/.vscode/settings.json")
BLOCK = next(location for location in CLIENTS["continue"].locations if location.may_be_one_server)


class TestNestedLocations:
    def test_a_container_has_servers_of_its_own_and_in_its_settings(self) -> None:
        servers = {"mcp": {"servers": {"a": {"command": "c"}}}, "settings": {"mcp": {"servers": {"b": {"url": "u"}}}}}
        file = read(json.dumps({"customizations": {"vscode": servers}}), "vscode", location=CONTAINER)
        assert [(server.name, server.pointer) for server in file.servers] == [
            ("a", "/customizations/vscode/mcp/servers/a"),
            ("b", "/customizations/vscode/settings/mcp/servers/b"),
        ]

    @pytest.mark.parametrize("document", [{}, {"customizations": {"vscode": {"extensions": []}}}, {"name": "x"}])
    def test_a_container_without_servers_is_a_file_without_servers(self, document: Any) -> None:
        file = read(json.dumps(document), "vscode", location=CONTAINER)
        assert (file.fault, file.servers) == (None, ())

    def test_a_path_of_settings_written_with_dots_hides_no_server(self) -> None:
        document = {"mcp.servers": {"a": {"command": "c"}}, "mcp": {"servers": {"b": {"command": "c"}}}}
        file = read(json.dumps(document), "vscode", location=SETTINGS)
        assert [(server.name, server.pointer) for server in file.servers] == [
            ("b", "/mcp/servers/b"),
            ("a", "/mcp.servers/a"),
        ]

    @pytest.mark.parametrize("member", ["mcp.servers.a", "mcp.servers.a.command"])
    def test_a_server_taken_apart_into_members_with_dots_is_a_fault(self, member: str) -> None:
        assert read(json.dumps({member: "c"}), "vscode", location=SETTINGS).fault == "invalid"

    def test_dots_mean_nothing_where_the_client_takes_them_for_letters(self) -> None:
        file = read('{"mcp.servers": {"a": {"command": "c"}}}', "generic")
        assert (file.fault, file.servers) == (None, ())

    @pytest.mark.parametrize("value", [7, "x", True])
    def test_an_invalid_servers_member_is_a_fault(self, value: Any) -> None:
        document = {"customizations": {"vscode": {"mcp": {"servers": value}}}}
        assert read(json.dumps(document), "vscode", location=CONTAINER).fault == "invalid"

    def test_a_block_of_continue_may_be_one_server_that_is_called_like_its_file(self) -> None:
        file = read('{"command": "npx", "args": ["notes"]}', "continue", "/p/.continue/mcpServers/my.notes.json", BLOCK)
        [server] = file.servers
        assert (server.name, server.pointer, server.scope) == ("my.notes", "", "project")
        assert server.target == StdioTarget(command=("npx", "notes"))

    def test_a_block_of_continue_may_be_the_file_of_another_client(self) -> None:
        document = {
            "mcpServers": {"a": {"command": "c"}},
            "projects": {"/p": {"mcpServers": {"b": {"command": "c"}}}},
        }
        file = read(json.dumps(document), "continue", "x.json", BLOCK)
        assert [(server.name, server.scope) for server in file.servers] == [("a", "project"), ("b", "local")]


TOKEN: dict[str, Any] = {"type": "promptString", "id": "token", "password": True}


class TestInputs:
    def test_what_the_user_is_asked_for_is_read_beside_the_servers(self) -> None:
        pick = {"type": "pickString", "id": "mode", "options": ["a", {"label": "B", "value": "b"}], "default": "a"}
        document = {"inputs": [TOKEN, pick], "servers": {"x": {"command": "c", "env": {"T": "${input:token}"}}}}
        file = read(json.dumps(document), "vscode")
        assert [(declared.id, declared.pointer, declared.password, declared.literals) for declared in file.inputs] == [
            ("token", "/inputs/0", True, ()),
            ("mode", "/inputs/1", False, ("a", "a", "b")),
        ]
        [server] = file.servers
        assert server.target == StdioTarget(command=("c",), env={"T": "${input:token}"})

    @pytest.mark.parametrize(
        ("location", "document"),
        [
            (SETTINGS, {"mcp": {"inputs": [TOKEN]}}),
            (SETTINGS, {"mcp.inputs": [TOKEN]}),
            (CONTAINER, {"customizations": {"vscode": {"mcp": {"inputs": [TOKEN]}}}}),
            (vscode_place(".code-workspace"), {"settings": {"mcp": {"inputs": [TOKEN]}}}),
        ],
    )
    def test_inputs_are_where_the_servers_are(self, location: ConfigLocation, document: Any) -> None:
        assert [declared.id for declared in read(json.dumps(document), "vscode", location=location).inputs] == ["token"]

    @pytest.mark.parametrize("inputs", [None, 7, "x", {}, [7, None, "x", []], [{"id": 7}], [{"options": 7}]])
    def test_invalid_inputs_hide_no_server(self, inputs: Any) -> None:
        document = {"inputs": inputs, "servers": {"x": {"command": "c"}}}
        file = read(json.dumps(document), "vscode")
        assert (file.fault, [server.name for server in file.servers]) == (None, ["x"])

    def test_a_literal_is_not_in_what_python_prints(self) -> None:
        file = read(json.dumps({"inputs": [{**TOKEN, "default": "hunter2"}]}), "vscode")
        assert "hunter2" not in repr(file)


class TestTable:
    def test_every_path_begins_with_a_known_folder(self) -> None:
        known = {*FOLDERS, "project", "home", "root"}
        paths = [location.path for client in CLIENTS.values() for location in client.locations]
        paths += [path for folder in FOLDERS.values() for path in folder.otherwise.values()]
        assert all(path[1 : path.index("}")] in known for path in paths)
        assert all(set(folder.otherwise) == set(SYSTEMS) for folder in FOLDERS.values())

    def test_installation_is_offered_where_toolpin_offers_it(self) -> None:
        offered = {(client, scope) for client in LOCK_CLIENTS for scope in ("project", "global")
                   if find_installation_location(get_client(client), scope)}  # fmt: skip
        assert {client for client, scope in offered if scope == "project"} == {
            "claude", "cursor", "vscode", "codex", "opencode", "gemini", "roo", "generic",
        }  # fmt: skip
        assert {client for client, scope in offered if scope == "global"} == {
            "cursor", "vscode", "codex", "opencode", "windsurf", "cline", "continue", "gemini", "generic",
        }  # fmt: skip

    def test_an_unknown_client_is_refused(self) -> None:
        with pytest.raises(PinwardenError) as caught:
            get_client("notepad")
        assert caught.value.code == "CLIENT_UNKNOWN"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES, st.sampled_from(sorted(CLIENTS)))
def test_any_json_under_the_servers_member_is_read_without_failing(value: Any, client: str) -> None:
    document = value
    for step in reversed(CLIENTS[client].root):
        document = {step: document}
    file = read(json.dumps(document), client)
    assert all(server.target is not None or server.problem for server in file.servers)


@given(st.binary(max_size=60), st.sampled_from(["x.json", "x.toml", "x.yaml"]))
def test_any_bytes_are_read_or_refused_with_a_value(data: bytes, name: str) -> None:
    file = read(data, name=name)
    assert (file.fault is None) == (file.document is not None)
