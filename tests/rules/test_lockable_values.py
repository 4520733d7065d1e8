"""What a lock keeps of values: no secret, and enough of everything else that a change is seen."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.documents.clients.table import CLIENTS
from pinwarden.rules.config.drift import compare_entries
from pinwarden.rules.config.masking import lockable_entry, shown_words

RUN = {"command": "node", "args": ["server.js"]}
PASSWORD = "hunter2"


def _seen(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The kinds of change that fail a gate, between what is locked of one entry and what is configured then."""
    changes = compare_entries("notes", lockable_entry(before), lockable_entry(after), CLIENTS["claude"])
    return [change.kind for change in changes if change.severity != "info"]


GOOD = "https://good.example/v4"


@pytest.mark.parametrize(
    "value",
    [
        "https://evil.example/?a=@good.example/v4",
        "https://evil.example/@good.example/v4",
        "https://evil.example/#@good.example/v4",
        "https://good.example@evil.example/v4",
        "https://good.example\\@evil.example/v4",
        "https://evil.example\\@good.example/v4",
        "https://good.example:80@evil.example/v4",
        "https://good.example\t.evil.example/v4",
        "https://good.example,https://evil.example/v4",
        "https://evil.example/v4 https://good.example/v4",
        "https://good.example/v4?to=https://evil.example/",
        "https://good.example/v4/${GITHUB_TOKEN}",
    ],
)
def test_attack_an_address_that_reads_like_the_approved_one_and_leads_elsewhere_is_seen(value: str) -> None:
    assert _seen({**RUN, "env": {"API_URL": GOOD}}, {**RUN, "env": {"API_URL": value}}) == ["variable_changed"]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("API_URL", "${API_URL:-https://good.example/v4}", "${API_URL:-https://evil.example/v4}"),
        ("API_URL", "${API_URL:-https://good.example/v4}", "${API_URL:-https://good.example\t.evil.example/v4}"),
        ("API_URL", "${API_URL:-https://good.example/v4}", "${GITHUB_TOKEN:-https://good.example/v4}"),
        ("API_URL", "https://${TENANT}.good.example/", "https://${TENANT}.evil.example/"),
        ("DB", "postgres://me:pw@good.example:5432/x", "postgres://me:pw@evil.example:5432/x"),
        ("DB", "grpc://good.example:5432", "grpc://evil.example:5432"),
        ("PEERS", "https://a.example,https://good.example", "https://a.example,https://evil.example"),
        ("KAFKA_BROKERS", "a.example:9092,good.example:9092", "a.example:9092,evil.example:9092"),
        ("DB_HOST", "good.example", "evil.example"),
        ("READ_ONLY", "true", "false"),
        ("ALLOW_WRITE", "0", "1"),
        ("KUBECONFIG", "~/.kube/config", "./evil/config"),
        ("AWS_CONFIG_FILE", "${HOME}/.aws/config", "${HOME}/project/evil"),
        ("SETTINGS_FILE", "${SETTINGS:-/etc/notes}", "${SETTINGS:-/tmp/evil}"),
    ],
)
def test_attack_a_value_that_leads_elsewhere_or_allows_more_is_seen(name: str, before: str, after: str) -> None:
    assert _seen({**RUN, "env": {name: before}}, {**RUN, "env": {name: after}}) == ["variable_changed"]
    assert _seen({**RUN, "env": {name: before}}, {**RUN, "env": {name: before}}) == []


@pytest.mark.parametrize(
    "name",
    [
        "OPENSSL_CONF",
        "PYTHONPYCACHEPREFIX",
        "PYTHONWARNINGS",
        "CORECLR_PROFILER_PATH",
        "YARN_YARN_PATH",
        "UV_ENV_FILE",
        "LD_DEBUG_OUTPUT",
        "NODE_COMPILE_CACHE",
        "GIT_ASKPASS",
        "LUA_INIT_5_4",
        "BUNDLE_GEMFILE",
        "DOTNET_ADDITIONAL_DEPS",
        "GCONV_PATH",
        "UV_OVERRIDE",
        "COREPACK_NPM_REGISTRY",
        "PLAYWRIGHT_DOWNLOAD_HOST",
        "CONTAINERS_CONF",
        "BASH_FUNC_node%%",
        "TS_NODE_PROJECT",
    ],
)
def test_attack_another_value_of_a_variable_that_decides_what_is_loaded_is_critical(name: str) -> None:
    before, after = ({**RUN, "env": {name: value}} for value in ("/opt/approved", "/tmp/evil"))
    assert _seen(before, after) == ["redirecting_variable"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"headersHelper": "./good.sh"}, {"headersHelper": "./evil.sh"}),
        ({"headersHelper": "sh -c './good.sh | cut -f1'"}, {"headersHelper": "sh -c './evil.sh | cut -f1'"}),
        ({"setup_command": "make good"}, {"setup_command": "make evil"}),
        ({"oauth": {"authServerMetadataUrl": GOOD}}, {"oauth": {"authServerMetadataUrl": "https://evil.example/"}}),
    ],
)
def test_attack_another_command_or_address_in_a_member_beside_the_usual_ones_is_seen(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    entry = {"type": "http", "url": "https://mcp.example/notes"}
    assert _seen({**entry, **before}, {**entry, **after}) == ["member_changed"]


@pytest.mark.parametrize(
    "text", [f"get --token {PASSWORD}", f"TOKEN={PASSWORD} ./get.sh", f"curl https://me:{PASSWORD}@a.example/x"]
)
def test_a_password_in_a_command_beside_the_usual_ones_is_not_kept(text: str) -> None:
    assert PASSWORD not in str(lockable_entry({**RUN, "headersHelper": text, "setup_command": text}))


@pytest.mark.parametrize(
    ("before", "after"),
    [("read_only=true", "read_only=false"), ("to=https://good.example", "to=https%3A%2F%2Fevil.example")],
)
def test_attack_a_parameter_of_an_address_that_allows_more_or_leads_elsewhere_is_seen(before: str, after: str) -> None:
    entries = [{"type": "http", "url": f"https://mcp.example/notes?{query}"} for query in (before, after)]
    assert _seen(*entries) == ["address_changed"]


@pytest.mark.parametrize(
    "words",
    [
        [f"Server=db;Uid=sa;Pwd={PASSWORD}"],
        ["--connection", f"Server=db;Uid=sa;Password={PASSWORD}"],
        [f"AccountName=x;AccountKey={PASSWORD};EndpointSuffix=core"],
        [f'{{"password":"{PASSWORD}"}}'],
        [f'--config={{"apiKey":"{PASSWORD}"}}'],
        [f"db.example/x?token={PASSWORD}"],
        [f"me:{PASSWORD}@db.example:5432/app"],
        ["--set", f"auth.password={PASSWORD}"],
        [f"-DdbPassword={PASSWORD}"],
        ["--dbPassword", PASSWORD],
        [f"--adminToken={PASSWORD}"],
        [f"--passwd:{PASSWORD}"],
    ],
)
def test_a_password_inside_an_argument_is_masked(words: list[str]) -> None:
    assert PASSWORD not in " ".join(shown_words(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--maxTokens", "4096"],
        ["image:tag@sha256:" + "a" * 64],
        ["alias@npm:@acme/notes@1.0.0"],
        ["registry.example:5000/acme/notes:1.0"],
        ['{"mode":"fast","auth":"none"}'],
        ["--filter", "a=b;c=d"],
    ],
)
def test_what_only_has_the_form_of_a_secret_is_shown(words: list[str]) -> None:
    assert shown_words(words) == words


@pytest.mark.parametrize(
    "value",
    [
        f"https://me:{PASSWORD}@good.example/{PASSWORD}",
        f"https://me:{PASSWORD}/x@good.example/",
        f"postgres://me:1{PASSWORD}/x@good.example/",
        f"vmess://{PASSWORD}",
        f"${{API_URL:-https://me:{PASSWORD}@good.example/{PASSWORD}}}",
        f"text {PASSWORD} https://good.example/{PASSWORD}",
    ],
)
def test_no_secret_of_a_value_is_kept_with_its_host(value: str) -> None:
    assert PASSWORD not in str(lockable_entry({**RUN, "env": {"API_URL": value}, "headers": {"X": value}}))
