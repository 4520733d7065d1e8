"""Registry entries: everything that server.json says is read, and nothing is guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.core.javascript import parse_whatwg_host
from pinwarden.lock import server_entry
from pinwarden.lock.server_entry import OFFICIAL_META, parse_server_entry

FULL: dict[str, Any] = {
    "server": {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "io.acme/notes",
        "description": "Notes.",
        "version": "1.0.0",
        "websiteUrl": "https://acme.example",
        "icons": [{"src": "https://acme.example/i.png"}],
        "packages": [
            {
                "registryType": "oci",
                "registryBaseUrl": "https://images.example",
                "identifier": "images.example/acme/notes:1",
                "runtimeHint": "docker",
                "transport": {"type": "stdio"},
                "runtimeArguments": [
                    {
                        "type": "named",
                        "name": "--mount",
                        "value": "type=bind,src={folder},dst=/notes",
                        "isRequired": True,
                        "variables": {"folder": {"description": "Where notes are.", "format": "filepath"}},
                    }
                ],
                "packageArguments": [
                    {"type": "positional", "valueHint": "folder", "default": "/notes", "isRepeated": True},
                    "--quiet",
                ],
                "environmentVariables": [{"name": "TOKEN", "isSecret": True, "isRequired": True}],
            }
        ],
        "remotes": [
            {
                "type": "sse",
                "url": "https://{tenant}.acme.example/sse",
                "variables": {"tenant": {"default": "main"}},
                "headers": [
                    {"name": "Authorization", "value": "Bearer {key}", "variables": {"key": {"isSecret": True}}}
                ],
            }
        ],
    },
    "_meta": {OFFICIAL_META: {"status": "deprecated", "statusMessage": "Use notes2.", "isLatest": True}},
    "source": "official",
}


def test_an_entry_is_parsed_and_kept_verbatim() -> None:
    entry = parse_server_entry(FULL)
    package, remote = entry.packages[0], entry.remotes[0]
    assert entry.raw == FULL
    assert (entry.status, entry.status_message, entry.is_latest) == ("deprecated", "Use notes2.", True)
    assert (entry.title, entry.namespace, entry.website_url) == ("io.acme/notes", "io.acme", "https://acme.example")
    mount = package.runtime_arguments[0]
    assert (mount.kind, mount.name, mount.variables[0].name) == ("named", "--mount", "folder")
    assert [argument.kind for argument in package.package_arguments] == ["positional", "text"]
    assert package.package_arguments[0].is_repeated
    assert package.registry_base_url == "https://images.example"
    assert remote.variables[0].default == "main"
    assert remote.headers[0].value == "Bearer {key}"
    assert entry.transports == ("stdio", "sse")


def test_a_status_is_active_by_default() -> None:
    assert parse_server_entry({"server": {"name": "a/b"}, "source": "x"}).status == "active"
    deleted = {"server": {"name": "a/b"}, "_meta": {OFFICIAL_META: {"status": "deleted"}}, "source": "x"}
    assert parse_server_entry(deleted).status == "deleted"


def changed(path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(FULL))
    *steps, last = path.split("/")
    location: Any = copy
    for step in steps:
        location = location[int(step)] if isinstance(location, list) else location[step]
    if isinstance(location, list):
        location[int(last)] = value
    else:
        location[last] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("server/name", "", "entry.server.name"),
        ("server/name", 5, "entry.server.name"),
        ("server/packages", {}, "entry.server.packages"),
        ("server/packages/0", "npm", "entry.server.packages[0]"),
        ("server/packages/0/identifier", None, "entry.server.packages[0].identifier"),
        ("server/packages/0/environmentVariables/0/isSecret", "yes", "environmentVariables[0].isSecret"),
        ("server/packages/0/runtimeArguments/0/type", "flag", "runtimeArguments[0].type"),
        ("server/packages/0/runtimeArguments/0/name", None, "runtimeArguments[0].name"),
        ("server/remotes/0/url", None, "entry.server.remotes[0].url"),
        ("server/remotes/0/headers/0/name", None, "remotes[0].headers[0].name"),
        ("server/remotes/0/variables/tenant", "main", "remotes[0].variables.tenant"),
        (f"_meta/{OFFICIAL_META.replace('/', '~')}", {}, None),
        ("server", [], "entry.server"),
        ("_meta", [], "entry._meta"),
    ],
)
def test_ambiguous_members_are_refused_by_name(path: str, value: Any, named: str | None) -> None:
    entry = changed(path, value)
    if named is None:
        parse_server_entry(entry)  # an unknown member of _meta is kept, not refused
        return
    with pytest.raises(PinwardenError) as caught:
        parse_server_entry(entry)
    assert caught.value.code == "SERVER_ENTRY_INVALID"
    assert named in caught.value.message


def described(**package: Any) -> Any:
    row = {"registryType": "npm", "identifier": "notes", "version": "1.0.0", **package}
    return parse_server_entry({"server": {"name": "io.acme/notes", "packages": [row]}}, source="acme").packages[0]


def test_formats_and_choices_of_inputs_are_parsed() -> None:
    level = {
        "name": "LEVEL",
        "description": "How much is logged.",
        "format": "string",
        "choices": ["info", "debug"],
        "default": "info",
        "placeholder": "info",
    }
    port = {"type": "named", "name": "--port", "format": "number", "default": "8080", "valueHint": "port"}
    package = described(environmentVariables=[level, {"name": "TOKEN", "isSecret": True}], packageArguments=[port])
    first, second = package.environment_variables
    assert (first.format, first.choices, first.default, first.raw) == ("string", ("info", "debug"), "info", level)
    assert (second.format, second.choices, second.is_secret) == ("string", (), True)
    [argument] = package.package_arguments
    assert (argument.format, argument.choices, argument.value_hint) == ("number", (), "port")


def test_variables_of_headers_and_urls_are_parsed_as_inputs() -> None:
    variable = {"description": "Which region.", "choices": ["eu", "us"], "isRequired": True, "format": "string"}
    remote = {
        "type": "streamable-http",
        "url": "https://{region}.acme.example/{tenant-id}/mcp",
        "variables": {"region": variable, "tenant-id": {"isRequired": True}},
        "headers": [{"name": "X-Region", "value": "{region}", "isRequired": True, "variables": {"region": variable}}],
    }
    [read] = parse_server_entry({"server": {"name": "io.acme/notes", "remotes": [remote]}}, source="acme").remotes
    assert [(variable.name, variable.choices, variable.is_required) for variable in read.variables] == [
        ("region", ("eu", "us"), True),
        ("tenant-id", (), True),
    ]
    assert read.headers[0].variables[0].choices == ("eu", "us")


def test_a_package_may_serve_a_url() -> None:
    transport = {
        "type": "streamable-http",
        "url": "http://127.0.0.1:{port}/mcp",
        "headers": [{"name": "X-Key", "isSecret": True}],
        "variables": {"port": {"default": "8080", "format": "number"}},
    }
    package = described(transport=transport)
    assert (package.transport, package.endpoint.url) == ("streamable-http", "http://127.0.0.1:{port}/mcp")
    assert (package.endpoint.headers[0].name, package.endpoint.variables[0].default) == ("X-Key", "8080")
    assert described(transport={"type": "stdio"}).endpoint is None


@pytest.mark.parametrize(
    ("package", "named"),
    [
        ({"environmentVariables": [{"name": "A", "choices": "a"}]}, "environmentVariables[0].choices"),
        ({"environmentVariables": [{"name": "A", "choices": ["a", 7]}]}, "environmentVariables[0].choices"),
        ({"environmentVariables": [{"name": "A", "format": 7}]}, "environmentVariables[0].format"),
        ({"environmentVariables": [{"name": "A", "value": 7}]}, "environmentVariables[0].value"),
        ({"packageArguments": [{"type": "positional", "choices": {}}]}, "packageArguments[0].choices"),
        ({"packageArguments": [{"type": "named", "name": "--a", "isRepeated": 1}]}, "packageArguments[0].isRepeated"),
        ({"packageArguments": [{"type": "named", "name": "--a", "variables": []}]}, "packageArguments[0].variables"),
        ({"runtimeArguments": [7]}, "runtimeArguments[0]"),
        ({"transport": "stdio"}, "transport"),
        ({"transport": {"type": "sse", "url": 7}}, "transport.url"),
        ({"transport": {"type": "sse", "url": "http://a", "headers": [{}]}}, "transport.headers[0].name"),
    ],
)
def test_an_invalid_member_of_a_package_is_refused_by_name(package: Any, named: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        described(**package)
    assert (caught.value.code, named in caught.value.message) == ("SERVER_ENTRY_INVALID", True)


def test_an_unknown_status_is_refused_because_it_may_mean_deleted() -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_server_entry({"server": {"name": "a/b"}, "_meta": {OFFICIAL_META: {"status": "gone"}}, "source": "x"})
    assert caught.value.code == "SERVER_ENTRY_INVALID"


def test_an_entry_without_a_source_is_refused() -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_server_entry({"server": {"name": "a/b"}})
    assert caught.value.code == "SERVER_ENTRY_INVALID"
    assert parse_server_entry({"server": {"name": "a/b"}}, source="file").source == "file"


def test_the_queried_registry_is_the_source_whatever_the_entry_claims() -> None:
    assert parse_server_entry({"server": {"name": "a/b"}, "source": "official"}, source="corner").source == "corner"


def test_secrets_are_ordered_by_locale_and_duplicates_are_kept() -> None:
    variables = [
        {"name": "b", "isSecret": True},
        {"name": "B", "isRequired": True},
        {"name": "plain"},
        {"name": "A_A", "isRequired": True},
        {"name": "b", "isRequired": True},
    ]
    package = {"registryType": "npm", "identifier": "p", "environmentVariables": variables}
    entry = parse_server_entry({"server": {"name": "a/b", "packages": [package]}, "source": "x"})
    secrets, exact = entry.list_secrets()
    assert exact
    assert [(row["name"], row["required"]) for row in secrets] == [
        ("A_A", True),
        ("b", False),
        ("b", True),
        ("B", True),
    ]


def test_an_entry_that_cannot_be_installed_has_a_reason() -> None:
    bare = parse_server_entry({"server": {"name": "a/b"}, "source": "official"})
    assert server_entry.find_install_problem(bare) == "registry entry has no package or remote install target"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://h.example/x", "h.example"),
        ("https://H.Example:443/", "h.example"),
        ("https://h.example:8443", "h.example:8443"),
        ("https://user:secret@h.example/", "h.example"),
        ("https://{tenant}.h.example/", "{tenant}.h.example"),
        ("https://127.1/", "127.0.0.1"),
        ("https://0x7f.1/", "127.0.0.1"),
        ("https://[::1]:8/", "[::1]:8"),
        ("https:\\\\h.example\\x", "h.example"),
        ("mailto:x", ""),
        ("https://a b/", None),
        ("https://h:99999/", None),
        ("https://", None),
        ("https://1.2.3.400/", None),
        ("no address", None),
    ],
)
def test_hosts_are_parsed_as_in_javascript(url: str, host: str | None) -> None:
    address = parse_whatwg_host(url)
    assert (None if address is None else address.host) == host
