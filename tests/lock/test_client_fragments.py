"""Configuration fragments: ToolPin's dialect, today's dialect."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.lock.entry import LOCK_CLIENTS
from pinwarden.lock.install_plan import build_fragment
from pinwarden.lock.launch_choice import choose_target
from tests.support.lock_entries import entry, package, remote

SECRET = {"name": "TOKEN", "isSecret": True}
LOCAL = entry(package(environmentVariables=[SECRET, {"name": "DIR", "default": "./n"}]))
HOSTED = entry(remotes=[remote(headers=[{"name": "X-Api-Key", "isSecret": True}])])


def server(about: Any, client: str, dialect: Any = "toolpin") -> dict[str, Any]:
    config = build_fragment(about, client, dialect=dialect).config
    root = config[next(name for name in config if isinstance(config[name], dict | list))]
    entry: dict[str, Any] = root[0] if isinstance(root, list) else root["io.acme/notes"]
    return entry


def test_an_unknown_client_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PinwardenError) as caught:
        build_fragment(LOCAL, "notepad")
    assert caught.value.code == "CLIENT_UNKNOWN"
    assert "claude" in caught.value.message


def test_a_chosen_target_replaces_the_default() -> None:
    about = entry(package(), remotes=[remote()])
    made = build_fragment(about, "claude", target=choose_target(about, "npm"))
    assert made.config["mcpServers"]["io.acme/notes"]["command"] == "npx"


@pytest.mark.parametrize("client", LOCK_CLIENTS)
def test_toolpins_dialect_has_no_differences_to_explain(client: str) -> None:
    assert build_fragment(LOCAL, client).differences == ()
    assert build_fragment(HOSTED, client).differences == ()


@pytest.mark.parametrize(
    ("client", "value"),
    [
        ("claude", "${TOKEN}"),
        ("cursor", "${env:TOKEN}"),
        ("vscode", "${env:TOKEN}"),
        ("opencode", "{env:TOKEN}"),
        ("windsurf", "${env:TOKEN}"),
        ("roo", "${env:TOKEN}"),
        ("gemini", "${TOKEN}"),
        ("continue", "${{ secrets.TOKEN }}"),
        ("generic", "${TOKEN}"),
        ("zed", "<TOKEN>"),
    ],
)
def test_the_modern_dialect_writes_variables_as_the_client_expands_them(client: str, value: str) -> None:
    body = server(LOCAL, client, "modern")
    assert body["environment" if client == "opencode" else "env"] == {"TOKEN": value, "DIR": "./n"}


def test_the_modern_dialect_passes_variables_on_for_codex() -> None:
    body = server(LOCAL, "codex", "modern")
    assert body["env"] == {"DIR": "./n"}
    assert body["env_vars"] == ["TOKEN"]
    hosted = server(HOSTED, "codex", "modern")
    assert hosted == {"url": "https://mcp.acme.example/mcp", "env_http_headers": {"X-Api-Key": "X_API_KEY"}}


@pytest.mark.parametrize(("client", "kind"), [("claude", "http"), ("vscode", "http"), ("generic", "http")])
def test_the_modern_type_of_streamable_http_is_http(client: str, kind: str) -> None:
    assert server(HOSTED, client)["type"] == "streamable-http"
    assert server(HOSTED, client, "modern")["type"] == kind


def test_a_modern_header_keeps_its_value_and_fills_in_its_variables() -> None:
    header = {"name": "Authorization", "value": "Bearer {key}", "variables": {"key": {"isSecret": True}}}
    about = entry(
        remotes=[remote(url="https://{t}.acme.example/", variables={"t": {"default": "eu"}}, headers=[header])]
    )
    body = server(about, "claude", "modern")
    assert body == {"type": "http", "url": "https://eu.acme.example/", "headers": {"Authorization": "Bearer ${key}"}}
    assert server(about, "claude")["headers"] == {"Authorization": "<Authorization>"}


def test_the_modern_dialect_fills_in_values_defaults_and_variables_of_the_environment() -> None:
    parts = {"host": {"default": "h"}, "db-name": {}}
    variables = [
        {"name": "LEVEL", "choices": ["info", "debug"], "default": "info"},
        {"name": "PORT", "format": "number", "default": 8080},
        {"name": "DSN", "value": "pg://{host}/{db-name}", "variables": parts},
        {"name": "KEY", "isSecret": True, "isRequired": True},
    ]
    about = entry(package(environmentVariables=variables))
    expected = {"LEVEL": "info", "PORT": "8080", "DSN": "pg://h/${DB_NAME}", "KEY": "${KEY}"}
    assert server(about, "claude", "modern")["env"] == expected


def test_a_url_variable_without_a_value_becomes_a_placeholder() -> None:
    variables = {"region": {"choices": ["eu", "us"], "isRequired": True}, "tenant-id": {"isRequired": True}}
    about = entry(remotes=[remote(url="https://{region}.acme.example/{tenant-id}/{other}", variables=variables)])
    url = server(about, "claude", "modern")["url"]
    assert url == "https://${region}.acme.example/${TENANT_ID}/{other}"
    assert server(about, "claude")["url"] == "https://{region}.acme.example/{tenant-id}/{other}"  # as ToolPin has it


@pytest.mark.parametrize("about", [LOCAL, HOSTED], ids=["local", "hosted"])
@pytest.mark.parametrize("client", LOCK_CLIENTS)
def test_every_modern_difference_is_explained_in_a_sentence(client: str, about: Any) -> None:
    modern = build_fragment(about, client, dialect="modern")
    if modern.config != build_fragment(about, client).config:
        assert modern.differences
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in modern.differences)
