"""Secrets of a user: what a configuration or a repository may try to get written down, sent away or printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.lock.mcp_registry import load_registries
from tests.cli.run import pinwarden
from tests.cli.test_lock_and_gate import World
from tests.cli.test_surface_commands import TOOL, script
from tests.cli.test_surface_commands import command as server_command
from tests.servers.scripted_http import http_server

PASSWORD = "hunter2horse"
RUN = {"command": "uvx", "args": ["acme-notes-mcp==1.4.0"]}
REMOTE = {"url": "https://mcp.example.com/notes"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class TestSecretsInTheLock:
    @pytest.mark.parametrize(
        "entry",
        [
            {**RUN, "environment": {"A": PASSWORD}},
            {"command": {"path": "uvx", "args": ["acme-notes-mcp==1.4.0"], "env": {"A": PASSWORD}}},
            {**RUN, "settings": {"api_key": PASSWORD}},
            {**RUN, "settings": {"deep": [{"x": PASSWORD}, PASSWORD]}},
            {**REMOTE, "oauth": {"clientSecret": PASSWORD}},
            {**REMOTE, "auth": {"CLIENT_SECRET": PASSWORD}},
            {**REMOTE, "apiKey": PASSWORD},
            {**REMOTE, "password": PASSWORD},
            {**REMOTE, "http_headers": {"X-A": PASSWORD}},
            {**REMOTE, "requestOptions": {"headers": {"X-A": PASSWORD}}},
            {**REMOTE, "bearer_token": PASSWORD},
            {**RUN, "env": {"HTTPS_PROXY": f"user:{PASSWORD}@proxy:8080"}},
            {**RUN, "env": {"HTTPS_PROXY": f"http://user:{PASSWORD}@proxy:8080"}},
            {**RUN, "env": {"NPM_CONFIG__AUTH": PASSWORD}},
            {**RUN, "env": {"DATABASE": f"postgres://user:{PASSWORD}@db.example/x"}},
            {**RUN, "env": {"HOOK": f"https://user:{PASSWORD}@hooks.example/{PASSWORD}?{PASSWORD}"}},
            {**RUN, "env": {"PASSWORD": f"${PASSWORD}"}},
            {**RUN, "env": {"X": f"<{PASSWORD}>"}},
            {**RUN, "env": {"X": f"${{X:-{PASSWORD}}}"}},
            {"url": f"https://mcp.example.com/notes?k={PASSWORD}"},
            {"url": f"https://mcp.example.com/notes?{PASSWORD}"},
            {**REMOTE, "serverUrl": f"https://mcp.example.com/notes?k={PASSWORD}"},
        ],
    )
    def test_a_secret_in_any_member_is_not_written_and_the_gate_stays_clean(
        self, world: World, entry: dict[str, Any]
    ) -> None:
        world.configure({"notes": entry})
        outcome = world.run("init", "--accept", "notes")  # some of the variables redirect what is fetched
        assert outcome.code == 0, outcome.out
        assert PASSWORD not in world.lock.read_text() + outcome.out + outcome.err
        gate = world.run("ci", "--format", "json")
        assert gate.code == 0, gate.out
        assert PASSWORD not in gate.out + gate.err

    @pytest.mark.parametrize(
        "entry",
        [
            {"command": "x", "args": ["--pw", PASSWORD]},
            {"command": "docker", "args": ["run", "-e", f"DB_PASS={PASSWORD}", "acme/notes:1"]},
            {"command": "docker", "args": ["run", f"--env=DB_PASS={PASSWORD}", "acme/notes:1"]},
            {"command": "x", "args": ["--header", f"X-Custom:{PASSWORD}"]},
            {"command": "x", "args": [f"--header=X-Custom:{PASSWORD}"]},
            {"command": "x", "args": ["--password", f"-{PASSWORD}"]},
            {"command": "x", "args": ["--password", f"${PASSWORD}"]},
            {"command": "x", "args": ["--password", f"<{PASSWORD}>"]},
            {"command": {"path": "x", "args": ["--password", PASSWORD]}},
            {**REMOTE, "args": ["--password", PASSWORD]},
            {"url": f"https://mcp.example.com/notes?sig={PASSWORD}"},
            {**RUN, "url": f"https://mcp.example.com/notes?sig={PASSWORD}"},
        ],
    )
    def test_a_secret_in_an_argument_or_address_is_refused(self, world: World, entry: dict[str, Any]) -> None:
        world.configure({"notes": entry})
        outcome = world.run("init")
        assert outcome.code == 1
        assert PASSWORD not in outcome.out + outcome.err
        assert not world.lock.exists()

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"url": "https://a.example/x?k=1"}, {"url": "https://b.example/x?k=1"}),
            ({"url": "https://a.example/x?k=1"}, {"url": "https://a.example/y?k=1"}),
            ({"url": "https://a.example/x?k=1"}, {"url": "https://a.example/x?k=1&more=2"}),
            ({"url": "https://a.example/x?k=1"}, {"url": "https://a.example/x?k=${AWS_SECRET_ACCESS_KEY}"}),
            (
                {**RUN, "env": {"HTTPS_PROXY": "user:hunter2horse@proxy:8080"}},
                {**RUN, "env": {"HTTPS_PROXY": "user:hunter2horse@evil.example:8080"}},
            ),
            ({**RUN, "env": {"NOTES_API": "https://a.example"}}, {**RUN, "env": {"NOTES_API": "https://b.example"}}),
            ({**RUN, "env": {"NODE_OPTIONS": "--import a@1"}}, {**RUN, "env": {"NODE_OPTIONS": "--import b@1"}}),
            ({**RUN, "alwaysAllow": ["read"]}, {**RUN, "alwaysAllow": ["read", "delete"]}),
        ],
    )
    def test_masking_does_not_hide_a_changed_address(
        self, world: World, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        world.configure({"notes": before})
        assert world.run("init", "--accept", "notes").code == 0
        assert world.run("ci").code == 0
        world.configure({"notes": after})
        assert world.run("ci").code == 1

    def test_foreign_members_of_other_clients_are_masked_too(self, world: World) -> None:
        document = {"mcp": {"notes": {"type": "local", "command": ["uvx", "a==1"], "env": {"A": PASSWORD}}}}
        (world.root / "opencode.json").write_text(json.dumps(document))
        assert world.run("init").code == 0
        assert PASSWORD not in world.lock.read_text()
        assert world.run("ci").code == 0


class TestVariablesForConfiguredServers:
    @pytest.mark.parametrize(
        "more",
        [
            {"url": "?x=${GITHUB_TOKEN}"},
            {"url": "?x=${env:GITHUB_TOKEN}"},
            {"url": "?x=${GITHUB_TOKEN:-none}"},
            {"url": "", "headers": {"X-A": "${GITHUB_TOKEN}"}},
        ],
    )
    def test_a_hostile_config_gets_only_the_variables_that_the_user_names(
        self, tmp_path: Path, more: dict[str, Any]
    ) -> None:
        env = {"GITHUB_TOKEN": PASSWORD, "HOME": str(tmp_path / "home"), "PINWARDEN_APPROVER": "reviewer"}
        with http_server(script(TOOL)) as server:
            entry = {**more, "url": server.url + more["url"]}
            (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": entry}}))
            refused = pinwarden("inspect", "notes", "--allow-private", cwd=tmp_path, env=env)
            discovered = pinwarden("init", "--allow-private", cwd=tmp_path, env=env)
            contacted = list(server.header_values("x-a"))
            agreed = ("inspect", "notes", "--allow-private", "--pass-env", "GITHUB_TOKEN")
            allowed = pinwarden(*agreed, cwd=tmp_path, env=env)
        assert refused.code == 2
        assert "[CONSENT_REQUIRED]" in refused.err
        assert "127.0.0.1" in refused.err
        assert "--pass-env GITHUB_TOKEN" in refused.err
        assert "Pinwarden does not send these variables to" in discovered.out
        assert contacted == []
        assert allowed.code == 0
        assert PASSWORD not in refused.err + discovered.out + allowed.out

    def test_a_locked_address_gets_no_variable_in_ci_or_approve_either(self, tmp_path: Path) -> None:
        env = {"NOTES_TOKEN": PASSWORD, "HOME": str(tmp_path / "home"), "PINWARDEN_APPROVER": "reviewer"}
        named = ("--allow-private", "--pass-env", "NOTES_TOKEN")
        with http_server(script(TOOL)) as server:
            entry = {"url": server.url, "headers": {"X-A": "${NOTES_TOKEN}"}}
            (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": entry}}))
            assert "1 with their live surface" in pinwarden("init", *named, cwd=tmp_path, env=env).out
            gate = pinwarden("ci", "--live", "--allow-private", cwd=tmp_path, env=env)
            approval = pinwarden("approve", "notes", "--yes", "--allow-private", cwd=tmp_path, env=env)
            agreed = pinwarden("ci", "--live", *named, cwd=tmp_path, env=env)
        assert gate.code != 0
        assert "Pinwarden does not send these variables to" in " ".join(gate.out.split())
        assert approval.code == 2
        assert "[CONSENT_REQUIRED]" in approval.err
        assert "not sent to" not in agreed.out  # the policy still has something against plain http


class TestRegistriesNamedByARepository:
    def registries(self, folder: Path, **row: Any) -> None:
        (folder / ".toolpin").mkdir()
        rows = [{"id": "acme", "url": "https://registry.acme.example", **row}]
        (folder / ".toolpin" / "registries.json").write_text(json.dumps({"registries": rows}))

    def test_a_variable_of_the_user_is_not_sent_as_a_token(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GITHUB_TOKEN", PASSWORD)
        self.registries(tmp_path, authEnv="GITHUB_TOKEN")
        with pytest.raises(PinwardenError) as caught:
            load_registries(tmp_path).find("acme/notes")
        assert caught.value.code == "CONSENT_REQUIRED"
        assert "PINWARDEN_REGISTRY_AUTH_ENV" in caught.value.hint
        assert PASSWORD not in caught.value.message

    @pytest.mark.parametrize(
        "variable", ["PINWARDEN_HEADER_AUTHORIZATION", "PINWARDEN_REGISTRY_TOKEN", "PINWARDEN_ACME", "pinwarden_acme"]
    )
    def test_a_variable_of_pinwarden_is_never_sent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        """Attack: a repository's registry asks for the header of an enforced server, or for a publish token."""
        monkeypatch.setenv(variable, PASSWORD)
        monkeypatch.setenv("PINWARDEN_REGISTRY_AUTH_ENV", variable)
        self.registries(tmp_path, authEnv=variable)
        with pytest.raises(PinwardenError) as caught:
            load_registries(tmp_path).find("acme/notes")
        assert caught.value.code == "CONFIG_INVALID"
        assert PASSWORD not in f"{caught.value.message}{caught.value.hint}{caught.value.data}"

    @pytest.mark.parametrize("variable", ["TOOLPIN_ACME", "ACME"])
    def test_a_variable_for_registries_may_be_sent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv("PINWARDEN_REGISTRY_AUTH_ENV", "OTHER, ACME")
        self.registries(tmp_path, authEnv=variable)
        with pytest.raises(PinwardenError) as caught:
            load_registries(tmp_path).find("acme/notes")
        assert caught.value.code == "VARIABLE_MISSING"  # it was looked up

    @pytest.mark.parametrize(
        ("url", "said", "allowed"),
        [
            ("http://10.0.0.7/registry", "", False),
            ("http://169.254.169.254/", "", False),
            ("http://127.0.0.1.evil.example/", "", False),
            ("http://127.0.0.1:8080/", "", True),
            ("http://10.0.0.7/registry", "1", True),
        ],
    )
    def test_a_private_host_is_contacted_only_if_the_user_allows_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str, allowed: bool
    ) -> None:
        monkeypatch.setenv("PINWARDEN_ALLOW_PRIVATE_REGISTRIES", said)
        self.registries(tmp_path, url=url, allowHttp=True, allowPrivateHosts=True)
        source = load_registries(tmp_path).sources[0]
        assert (source.allow_http, source.allow_private) == (allowed, allowed)

    def test_another_registry_cannot_claim_to_be_the_official_one(self, tmp_path: Path) -> None:
        self.registries(tmp_path, id="official")
        with pytest.raises(PinwardenError, match="official"):
            load_registries(tmp_path)


class TestNoSecretIsPrinted:
    def test_the_consent_error_does_not_show_a_secret_argument(self) -> None:
        outcome = pinwarden("inspect", "--", "uvx", "acme-notes", "--password", PASSWORD)
        assert outcome.code == 2
        assert "uvx acme-notes --password" in outcome.err
        assert PASSWORD not in outcome.err

    @pytest.mark.parametrize("command", ["inspect", "scan", "diff"])
    def test_a_report_does_not_show_the_key_in_an_address(self, tmp_path: Path, command: str) -> None:
        listing = tmp_path / "before.json"
        listing.write_text(json.dumps({"tools": [TOOL]}))
        sides = [str(listing)] if command == "diff" else []
        with http_server(script(TOOL)) as server:
            address = f"{server.url}?key={PASSWORD}"
            for form in ("text", "json"):
                outcome = pinwarden(command, *sides, address, "--allow-private", "--format", form)
                assert outcome.code == 0, outcome.err
                assert PASSWORD not in outcome.out + outcome.err

    @pytest.mark.parametrize("command", ["inspect", "scan", "diff"])
    def test_a_report_does_not_show_a_secret_argument(self, tmp_path: Path, command: str) -> None:
        listing = tmp_path / "before.json"
        listing.write_text(json.dumps({"tools": [TOOL]}))
        sides = [str(listing)] if command == "diff" else []
        started = [*server_command(script(TOOL)), "--password", PASSWORD]
        outcome = pinwarden(command, *sides, "--allow-execute", "--format", "json", "--", *started)
        assert outcome.code == 0, outcome.err
        assert PASSWORD not in outcome.out + outcome.err
