"""What a lock keeps of values: no secret, and enough of everything else that a change is seen."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.clients.config import DeclaredInput, parse_configured_server
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.findings import list_proposed_inputs
from pinwarden.clients.table import CLIENTS
from pinwarden.system.masking import mask_words
from pinwarden.system.redaction import redact_entry

RUN = {"command": "node", "args": ["server.js"]}
PASSWORD = "hunter2"


def _seen(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The kinds of change that fail a gate, between what is locked of one entry and what is configured then."""
    changes = compare_entries("notes", redact_entry(before), redact_entry(after), CLIENTS["claude"])
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
def test_attack_an_address_that_looks_like_the_approved_one_but_has_another_host_is_detected(value: str) -> None:
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
        ("DB", "mongodb://me:pw@a.example:1,good.example:1/x", "mongodb://me:pw@a.example:1,evil.example:1/x"),
        ("PEERS", "https://a.example,https://good.example", "https://a.example,https://evil.example"),
        ("KAFKA_BROKERS", "a.example:9092,good.example:9092", "a.example:9092,evil.example:9092"),
        ("DB_HOST", "good.example", "evil.example"),
        ("READ_ONLY", "true", "false"),
        ("ALLOW_WRITE", "0", "1"),
        ("KUBECONFIG", "~/.kube/config", "./evil/config"),
        ("AWS_CONFIG_FILE", "${HOME}/.aws/config", "${HOME}/project/evil"),
        ("DATA_DIRS", "/opt/good:/usr/share", "/opt/evil:/usr/share"),
        ("APP_CONFIG", "config/good.json", "config/evil.json"),
        ("APP_HOME", "C:\\Program Files\\Good", "C:\\Users\\Public\\Evil"),
        ("SETTINGS_FILE", "${SETTINGS:-/etc/notes}", "${SETTINGS:-/tmp/evil}"),
    ],
)
def test_attack_a_value_with_another_host_or_more_permissions_is_detected(name: str, before: str, after: str) -> None:
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
    ("name", "before", "after"),
    [
        ("JAVA_TOOL_OPTIONS", "-Dx.password=pw", "-Dx.password=pw -javaagent:/tmp/evil.jar"),
        ("NODE_OPTIONS", "--token=pw --require ./good.js", "--token=pw --require ./evil.js"),
        (
            "UV_EXTRA_INDEX_URL",
            "https://a.example https://me:pw@good.example/",
            "https://a.example https://me:pw@evil.example/",
        ),
    ],
)
def test_attack_what_is_loaded_is_not_hidden_behind_a_password(name: str, before: str, after: str) -> None:
    locked = redact_entry({**RUN, "env": {name: before}})
    assert _seen({**RUN, "env": {name: before}}, {**RUN, "env": {name: after}}) == ["redirecting_variable"]
    assert "pw" not in locked["env"][name]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ALLOWED_DIRECTORIES", "/srv/notes", "/"),
        ("ALLOWED_DIRECTORIES", "/srv/notes,/srv/more", "/srv/notes,/home"),
        ("ALLOWED_DIRECTORIES", '["/srv/notes"]', '["/srv/notes", "~/.ssh"]'),
        ("ALLOWED_PATHS", "./data:./more", "./data:.."),
        ("ALLOWED_PATHS", "C:\\Notes;D:\\More", "C:\\;D:\\More"),
        ("WATCHED", "~/notes", "~/.ssh"),
        ("WATCHED", "${HOME}/notes", "${HOME}/.ssh"),
        ("UV_CACHE_DIR", "cache", "evil"),
        ("UV_CACHE_DIR", ".cache/uv", ".cache/evil"),
        ("PLUGIN_DIR", "plugins", "downloads"),
        ("PLUGIN_DIR", "my plugins", "my downloads"),
        ("CONFIG_FILE", "good.json", "evil.json"),
        ("pluginDirs", "a,b", "a,c"),
        ("ENABLED_TOOLS", "read,list", "read,list,delete"),
        ("TOOLSETS", "issues", "all"),
        ("ACCESS_MODE", "restricted", "unrestricted"),
        ("PRELOAD_MODULE", "@acme/hook", "@evil/hook"),
        ("PERMISSIONS", "repo:read", "repo:write"),
        ("MAX_ROWS", "100", "1000000"),
        ("TIMEOUT", "30s", "9000s"),
    ],
)
def test_attack_a_value_that_is_no_secret_by_its_form_is_seen_whatever_its_name(
    name: str, before: str, after: str
) -> None:
    assert _seen({**RUN, "env": {name: before}}, {**RUN, "env": {name: after}}) == ["variable_changed"]
    assert _seen({**RUN, "env": {name: before}}, {**RUN, "env": {name: before}}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTE", PASSWORD),
        ("NOTE", "correct horse battery staple"),
        ("DB_PASSWORD", "/hunter/two"),
        ("APP_SECRET_MODE_KEY", "restricted"),
        ("API_KEY", "12345678"),
        ("UNLOCK_CODE", "123456"),
        ("CARD_PIN", "1234"),
        ("DATA_DIR", "kX9pQ2mZ7vL4wRt"),
        ("WATCHED", "/kX9pQ2mZ7vL4wRt"),
        ("WATCHED", "/9j/4AAQSkZJRgABAQ"),
        ("WEBHOOK_PATH", "/services/T024BE7LD/B04GZ5/kX9pQ2mZ7vL4wRtAbCdEfG1h"),
        ("ENABLED_TOOLS", "ghp_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"),
        ("MODE", "aB3dE5fG7h"),
        ("CONFIG_FILE", "me:hunter2@host/file"),
        ("CONNECTION", "/db?password=hunter2"),
        ("PHONE", "5551234567"),
    ],
)
def test_no_secret_is_locked_because_it_looks_like_a_path_a_word_or_a_number(name: str, value: str) -> None:
    locked = str(redact_entry({**RUN, "env": {name: value}}))
    assert value not in locked
    assert PASSWORD not in locked
    assert f"<{name}>" in locked


def test_a_word_in_a_header_is_left_out_although_a_variable_of_that_name_would_be_kept() -> None:
    entry = {"url": "https://mcp.example/", "headers": {"X-Mode": "letmein", "X-Path": "/letmein/again"}}
    assert "letmein" not in str(redact_entry(entry))


def test_a_lock_from_before_values_were_stored_still_matches() -> None:
    approved = {**RUN, "env": {"ALLOWED_PATHS": "<ALLOWED_PATHS>"}}
    now = redact_entry({**RUN, "env": {"ALLOWED_PATHS": "/srv/notes"}})
    changes = compare_entries("notes", approved, now, CLIENTS["claude"])
    assert [(change.kind, change.severity) for change in changes] == [("placeholder_filled", "info")]


def test_a_report_says_which_host_or_path_is_another_one_and_no_password() -> None:
    values = (
        {"DB": f"postgres://me:{PASSWORD}@good.example/x", "KUBECONFIG": "~/.kube/config", "NOTE": PASSWORD},
        {"DB": f"postgres://me:{PASSWORD}@evil.example/x", "KUBECONFIG": "./evil", "NOTE": "${GITHUB_TOKEN} other"},
    )
    before, after = (redact_entry({**RUN, "env": env}) for env in values)
    changes = compare_entries("notes", before, after, CLIENTS["claude"])
    assert {change.path: (change.before, change.after) for change in changes} == {
        "/env/DB": ("postgres://good.example/<DB>", "postgres://evil.example/<DB>"),
        "/env/KUBECONFIG": ("~/.kube/config", "./evil"),
        "/env/NOTE": ("<NOTE>", "<NOTE>${GITHUB_TOKEN}"),
    }
    old, new = ({**RUN, "env": env} for env in values)
    raw = compare_entries("notes", old, new, CLIENTS["claude"])
    assert PASSWORD not in str(raw)


@pytest.mark.parametrize(
    "value",
    [
        f"{PASSWORD}X/Y9",
        f"me:{PASSWORD}@db.example/x",
        f"apiVersion: v1 token: {PASSWORD}/x",
        f"/x token: {PASSWORD}",
        f"wJalrXUt{PASSWORD}EMI/K7MDENG/bPxRfiCY",
        f"Pa~{PASSWORD}",
    ],
)
def test_text_with_only_a_slash_is_not_stored_as_a_path(value: str) -> None:
    names = ("APP_CONFIG", "KUBECONFIG", "CLIENT_CERT", "STORE", "AWS_PROFILE")
    assert PASSWORD not in str(redact_entry({**RUN, "env": dict.fromkeys(names, value)}))


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
    "text",
    [
        f"get --token {PASSWORD}",
        f"TOKEN={PASSWORD} ./get.sh",
        f"PGPASSWORD={PASSWORD} psql",
        f"curl https://me:{PASSWORD}@a.example/x",
        f"curl -s -u me:{PASSWORD} a.example/x",
        f"curl --user='me:{PASSWORD}' a.example/x",
        f"sshpass -p {PASSWORD} ssh a.example",
        f"mysql -u me -p{PASSWORD} x",
    ],
)
def test_a_password_in_a_command_beside_the_usual_ones_is_not_kept(text: str) -> None:
    assert PASSWORD not in str(redact_entry({**RUN, "headersHelper": text, "setup_command": text}))


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
        [f"/token:{PASSWORD}"],
        ["-e", f"PGPASSWORD={PASSWORD}"],
        [f"-Dpassword={PASSWORD}"],
        ["--key", f"/{PASSWORD}"],
        ["--key", "/etc/ghp_AAAAbbbb1111" + PASSWORD + ".pem"],
        ["--key=/etc/ghp_AAAAbbbb1111" + PASSWORD + ".pem"],
        [f"https://a.example/bot123456:AAHdqTcvCH1vGWJxfSeofSAs0K5PAL{PASSWORD}/send"],
    ],
)
def test_a_password_inside_an_argument_is_masked(words: list[str]) -> None:
    assert PASSWORD not in " ".join(mask_words(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--maxTokens", "4096"],
        ["image:tag@sha256:" + "a" * 64],
        ["alias@npm:@acme/notes@1.0.0"],
        ["registry.example:5000/acme/notes:1.0"],
        ['{"mode":"fast","auth":"none"}'],
        ["--filter", "a=b;c=d"],
        ["--user", "1000:1000"],
        ["--password-file", "/run/secrets/db"],
        ["--password-store=basic"],
        ["--auth", "none", "--key", "/etc/tls/key.pem", "--ssl-key=~/tls/server.key"],
        ["git+https://git.example/acme/notes@" + "0123456789" * 4],
        ["--auth-mode", "oauth", "--token-endpoint", "https://id.example/token"],
        ["sh", "-c", "mysql_mcp_server -port 8080"],
        ["https://a.example/v1.2/notes:list"],
    ],
)
def test_what_only_has_the_form_of_a_secret_is_shown(words: list[str]) -> None:
    assert mask_words(words) == words


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
    assert PASSWORD not in str(redact_entry({**RUN, "env": {"API_URL": value}, "headers": {"X": value}}))


def test_answers_that_decide_what_is_loaded_are_kept_and_no_password_among_them() -> None:
    entry = {**RUN, "args": ["${input:db}"], "env": {"NODE_OPTIONS": "${input:options}", "KEY": "${input:key}"}}
    inputs = [
        DeclaredInput(id=name, pointer="", password=False, literals=literals)
        for name, literals in (
            ("db", (f"Server=db;Pwd={PASSWORD}", f"me:{PASSWORD}@db.example:5432/x", "local.db")),
            ("options", ("--require ./good.js",)),
            ("key", (PASSWORD,)),
        )
    ]
    assert list_proposed_inputs(parse_configured_server("notes", entry, CLIENTS["vscode"]), inputs) == {
        "db": ["<db>", "<db>", "local.db"],
        "options": ["--require ./good.js"],
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLE_CRED", "dragonfly"),
        ("TABLE_CREDS", "dragonfly"),
        ("MQTT_PSWD", "998877"),
        ("DB_KENNWORT", "998877"),
        ("TWOFA", "123456"),
        ("MFA_TOTP", "123456"),
        ("UNLOCK", "1234"),
        ("LICENSE", "12345678"),
    ],
)
def test_attack_a_secret_that_looks_like_a_number_or_a_word_is_not_written_to_the_lock(name: str, value: str) -> None:
    assert value not in str(redact_entry({**RUN, "env": {name: value}}))
