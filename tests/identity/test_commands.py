"""``pinwarden identity``: the commands as a process, with a real provider and with an issuer that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import Outcome, pinwarden_in
from tests.docs.schemas import problems
from tests.identity.issuer_server import IssuerServer, identity_table, issuer_server
from tests.support.oidc_provider import SECRET, Browser, SigningKey, needs_node, oidc_provider

KEY = SigningKey("k1")
GATEWAY = "http://127.0.0.1:8642"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IssuerServer]:
    with issuer_server() as server:
        server.publish(KEY)
        (tmp_path / "pinwarden.toml").write_text(identity_table(server.url))
        yield server


def run(folder: Path, *arguments: str, stdin: str = "") -> Outcome:
    environment = {**os.environ, "HOME": str(folder)}
    return pinwarden_in(environment, "identity", *arguments, cwd=folder, stdin=stdin.encode())


def sign(issuer: str, audience: str = f"{GATEWAY}/mcp", seconds: int = 60) -> str:
    now = int(time.time())
    claims = {"iss": issuer, "sub": "alice", "aud": audience, "iat": now, "exp": now + seconds, "scope": "tools:call"}
    return KEY.sign(claims)


def test_check_shows_keys_and_what_a_token_says(server: IssuerServer, tmp_path: Path) -> None:
    done = run(tmp_path, "check", "--token-file", "-", "--format", "json", stdin=sign(server.url))
    assert done.code == 0, done
    report = json.loads(done.out)
    assert problems("identity-check", report) == []
    assert report["keys"] == [{"id": "k1", "algorithm": "RS256"}]
    assert report["audiences"] == [f"{GATEWAY}/mcp"]
    assert report["token"]["subject"] == "alice"


@pytest.mark.parametrize(
    ("audience", "seconds", "reason"),
    [("https://other.example/mcp", 60, "audience"), (f"{GATEWAY}/mcp", -120, "expired")],
)
def test_check_says_why_a_token_is_refused(
    server: IssuerServer, tmp_path: Path, audience: str, seconds: int, reason: str
) -> None:
    token = sign(server.url, audience, seconds)
    (tmp_path / "token").write_text(f"{token}\n")
    done = run(tmp_path, "check", "--token-file", "token", "--format", "json")
    assert done.code == 1
    error = json.loads(done.out)["error"]
    assert (error["code"], error["data"]["reason"]) == ("ACCESS_TOKEN_INVALID", reason)
    assert token not in done.out + done.err


def test_an_issuer_that_cannot_be_reached_is_not_checked_and_one_that_lies_is_refused(
    server: IssuerServer, tmp_path: Path
) -> None:
    server.publish(KEY, issuer="https://evil.example")
    done = run(tmp_path, "check")
    assert (done.code, "[ISSUER_INVALID]" in done.err) == (1, True), done
    server.away = True
    done = run(tmp_path, "check")
    assert (done.code, "[ISSUER_UNAVAILABLE]" in done.err) == (3, True), done


@pytest.mark.parametrize(
    "table",
    [
        "",
        "[identity]",
        "not toml",
        '[identity]\nissuer = "https://a"',
        '[identity]\nissuer = "https://a"\nx = 1\n[identity.clients]\nurl = "https://b"',
        '[identity]\nissuer = "ftp://a"\n[identity.clients]\nurl = "https://b"',
        '[identity]\nissuer = "https://a"\n[identity.clients]\nurl = "https://b/mcp"',
        '[identity]\nissuer = "https://a"\nalgorithms = ["HS256"]\n[identity.clients]\nurl = "https://b"',
        '[identity]\nissuer = "https://a"\ngroups-claim = []\n[identity.clients]\nurl = "https://b"',
        '[identity]\nissuer = "https://a"\n[identity.clients]\nurl = "https://b"\nleeway-seconds = 3600',
        '[identity]\nissuer = "https://a"\n[identity.login]\nclient-id = "c"',
        '[identity]\nissuer = "https://a"\n[identity.login]\nclient-id = "c"\n[identity.roles]\nviewer = []',
        '[identity]\nissuer = "https://a"\n[identity.login]\nclient-id = "c"\n[identity.roles]\nowner = ["a"]',
        '[identity]\nissuer = "https://a"\n[identity.roles]\nadmin = ["a"]\n'
        '[identity.login]\nclient-id = "c"\nclient-secret-variable = "NOT_SET"',
        '[identity]\nissuer = "https://a"\n[identity.roles]\nadmin = ["a"]\n'
        '[identity.login]\nclient-id = "c"\nscopes = ["profile"]',
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "pinwarden.toml").write_text(table)
    done = run(tmp_path, "check")
    assert (done.code, "[IDENTITY_INVALID]" in done.err) == (2, True), done


@needs_node
def test_login_through_a_browser_shows_the_role(tmp_path: Path) -> None:
    folder = tmp_path / "provider"
    folder.mkdir()
    with oidc_provider(folder) as provider:
        table = identity_table(provider.issuer, client_secret_variable="OIDC_SECRET")
        (tmp_path / "pinwarden.toml").write_text(table)
        command = [sys.executable, "-m", "pinwarden", "identity", "login", "--format", "json"]
        environment = {**os.environ, "HOME": str(tmp_path), "OIDC_SECRET": SECRET}
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            process.stderr.readline()
            browser = Browser()
            back = browser.log_in(process.stderr.readline().strip(), "alice", provider.issuer)
            base = back.partition("?")[0]
            assert browser.get(f"{base}?code=x&state=forged") == 400  # another program on this machine
            assert browser.get(base.replace("127.0.0.1", "localhost")) == 400
            assert browser.get(f"{base}/x") == 404
            assert browser.get(back) == 200
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            report = json.loads(out)
            assert problems("identity-login", report) == []
            assert (report["subject"], report["role"]) == ("alice", "reviewer")
