"""npm's settings, found as npm finds them, and nothing in a repository's own that would send a token away."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pinwarden.artifacts.endpoints.npm import NpmRegistry, find_registry, get_default_registry, parse_npmrc
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import SettingsSources
from tests.support.needs import needs


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The files and variables of a user who works in a repository."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def project(self) -> Path:
        return self.root / "project"

    def registry(self, name: str = "tool", **members: str) -> NpmRegistry:
        settings = SettingsSources(home=self.home, project=self.project, variables=self.variables)
        return find_registry(name, settings, **members)

    def url(self, name: str = "tool") -> str:
        return self.registry(name).endpoint.url

    def authorization(self, name: str = "tool") -> str | None:
        return self.registry(name).endpoint.authorization


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With a node whose prefix holds the settings of the whole machine."""
    for folder in ("home", "project", "prefix/bin", "prefix/etc"):
        (tmp_path / folder).mkdir(parents=True)
    node = tmp_path / "prefix" / "bin" / "node"
    node.write_text("#!/bin/sh\n")
    node.chmod(0o755)
    return Machine(root=tmp_path, variables={"PATH": str(node.parent)})


def write(machine: Machine, **files: str) -> None:
    places = {"user": "home/.npmrc", "project": "project/.npmrc", "system": "prefix/etc/npmrc"}
    for name, text in files.items():
        (machine.root / places[name]).write_text(text)


class TestWhichRegistry:
    def test_without_settings_it_is_the_default_of_the_table_of_package_addresses(self, machine: Machine) -> None:
        found = machine.registry()
        assert (found.endpoint.url, found.endpoint.configured_by) == (get_default_registry(), "default")
        assert found.endpoint.url.startswith("https://")
        assert found.endpoint.url.endswith("/")
        assert (found.endpoint.authorization, found.endpoint.ca_file, found.notes) == (None, None, ())

    def test_each_layer_wins_over_those_below_it(self, machine: Machine) -> None:
        write(machine, system="registry=https://system.example/")
        assert (machine.url(), machine.registry().endpoint.configured_by) == ("https://system.example/", "system")
        write(machine, user="registry = https://user.example/npm")
        assert (machine.url(), machine.registry().endpoint.configured_by) == ("https://user.example/npm/", "user")
        write(machine, project="registry=https://project.example/")
        assert (machine.url(), machine.registry().endpoint.configured_by) == ("https://project.example/", "project")
        machine.variables["npm_config_registry"] = "https://environment.example/"
        assert machine.registry().endpoint.configured_by == "environment"
        found = machine.registry(argument="https://argument.example").endpoint
        assert (found.url, found.configured_by) == ("https://argument.example/", "argument")

    def test_a_scope_can_have_its_own_registry(self, machine: Machine) -> None:
        write(machine, user="registry=https://all.example/\n@team:registry=https://team.example/\n")
        assert machine.url("@team/tool") == "https://team.example/"
        assert machine.url("@other/tool") == machine.url("team") == "https://all.example/"

    def test_the_registry_of_a_scope_wins_over_a_general_one_of_a_higher_layer(self, machine: Machine) -> None:
        write(machine, user="@team:registry=https://team.example/")
        machine.variables["NPM_CONFIG_REGISTRY"] = "https://environment.example/"
        assert machine.url("@team/tool") == "https://team.example/"
        machine.variables["npm_config_@team:registry"] = "https://other.example/"
        assert machine.url("@team/tool") == "https://other.example/"

    def test_other_files_can_be_named_by_variables(self, machine: Machine) -> None:
        (machine.root / "mine").write_text("registry=https://mine.example/")
        machine.variables["npm_config_userconfig"] = str(machine.root / "mine")
        assert machine.url() == "https://mine.example/"
        (machine.root / "ours").write_text("@team:registry=https://ours.example/")
        machine.variables["NPM_CONFIG_GLOBALCONFIG"] = str(machine.root / "ours")
        assert machine.url("@team/x") == "https://ours.example/"

    def test_a_registry_that_the_user_names_too_is_the_users(self, machine: Machine) -> None:
        write(machine, user="@x:registry=https://corp.example/npm/", project="registry=https://corp.example/npm")
        found = machine.registry().endpoint
        assert (found.url, found.configured_by, found.private_allowed) == ("https://corp.example/npm/", "user", True)

    def test_a_repository_in_the_home_folder_is_the_user(self, machine: Machine) -> None:
        write(machine, user="registry=https://user.example/")
        settings = SettingsSources(home=machine.home, project=machine.home, variables=machine.variables)
        assert find_registry("tool", settings).endpoint.configured_by == "user"

    @pytest.mark.parametrize(
        "value",
        ["ftp://h/", "https://me:secret@h/", "//h/", "https://h/?q=secret", "https://h/#f", "h", "https://${NO}/"],
    )
    def test_a_registry_with_an_invalid_address_is_an_error_that_hides_the_address(
        self, machine: Machine, value: str
    ) -> None:
        write(machine, user=f"registry={value.replace('#', chr(92) + '#')}")
        with pytest.raises(PinwardenError) as caught:
            machine.registry()
        assert caught.value.code == "CONFIG_INVALID"
        assert "secret" not in caught.value.message


class TestCredentials:
    @pytest.mark.parametrize(
        ("lines", "header"),
        [
            ("//r.example/npm/:_authToken=t1", "Bearer t1"),
            ("//r.example/:_authToken=t1", "Bearer t1"),
            ("//r.example/npm:_authToken=t1", "Bearer t1"),
            ("//r.example/:_authToken=far\n//r.example/npm/:_authToken=near", "Bearer near"),
            ("//r.example/npm/:_auth=bWU6cHc=", "Basic bWU6cHc="),
            (f"//r.example/npm/:username=me\n//r.example/npm/:_password={b64encode(b'pw').decode()}", "Basic bWU6cHc="),
            ("//r.example/npm/:username=me", None),
            ("//r.example/other/:_authToken=t1", None),
            ("//r.example.evil/npm/:_authToken=t1", None),
            ("//r.example:8443/npm/:_authToken=t1", None),
            ("_authToken=t1\n_auth=bWU6cHc=", None),
            ('"//r.example/npm/:_authToken"="t;1#"', "Bearer t;1#"),
            ("//r.example/npm/:_authToken=${TOKEN}", "Bearer from-variable"),
            ("//r.example/npm/:_authToken=${TOKEN?}", "Bearer from-variable"),
            ("//r.example/npm/:_authToken=${UNSET?}", None),
            ("//r.example/npm/:_authToken=${UNSET}", None),
            ("//r.example/npm/:_authToken=pre-${TOKEN}", "Bearer pre-from-variable"),
            ("//${HOST}/npm/:_authToken=t1", "Bearer t1"),
        ],
    )
    def test_a_credential_of_the_user_is_found_by_its_place(
        self, machine: Machine, lines: str, header: str | None
    ) -> None:
        machine.variables.update(TOKEN="from-variable", HOST="r.example")
        write(machine, user=f"registry=https://r.example/npm/\n{lines}\n")
        found = machine.registry()
        assert found.endpoint.authorization == header
        assert header is None or header not in repr(found)

    def test_a_variable_may_hold_a_credential_by_its_place(self, machine: Machine) -> None:
        machine.variables["npm_config_//r.example/:_authToken"] = "t1"
        write(machine, user="registry=https://r.example/")
        assert machine.authorization() == "Bearer t1"

    def test_attack_a_credential_with_a_line_break_is_not_used(self, machine: Machine) -> None:
        write(machine, user='registry=https://r.example/\n//r.example/:_authToken="a\\r\\nX-Evil: 1"')
        assert machine.authorization() is None
        assert machine.registry().notes == (
            "the credential for //r.example/ is not used: it contains characters that a header cannot have",
        )

    def test_attack_a_repository_does_not_get_a_variable_sent_to_its_own_host(self, machine: Machine) -> None:
        """``.npmrc`` in a repository: the token of the user, to the host of the attacker."""
        machine.variables["NPM_TOKEN"] = "secret"
        write(machine, project="registry=https://evil.example/\n//evil.example/:_authToken=${NPM_TOKEN}")
        found = machine.registry()
        assert (found.endpoint.url, found.endpoint.authorization) == ("https://evil.example/", None)
        (note,) = found.notes
        assert "has a credential for evil.example with an environment variable" in note
        assert "secret" not in repr(found)

    @pytest.mark.parametrize(
        "lines",
        [
            "registry=https://evil.example/${NPM_TOKEN}/",
            "registry=https://${NPM_TOKEN}.evil.example/",
            "registry=https://evil.example/${NPM_TOKEN?}/",
        ],
    )
    def test_attack_a_repository_does_not_get_a_variable_into_an_address(self, machine: Machine, lines: str) -> None:
        machine.variables["NPM_TOKEN"] = "secret"
        write(machine, project=lines)
        with pytest.raises(PinwardenError) as caught:
            machine.registry()
        assert caught.value.code == "CONFIG_INVALID"
        assert "secret" not in caught.value.message

    def test_attack_a_plain_http_registry_that_a_repository_names_gets_no_token(self, machine: Machine) -> None:
        write(machine, user="//corp.example/:_authToken=secret", project="registry=http://corp.example/")
        assert machine.authorization() is None

    def test_a_repository_may_fill_in_a_variable_for_a_host_that_the_user_names(self, machine: Machine) -> None:
        machine.variables["NPM_TOKEN"] = "t1"
        write(
            machine,
            user="@x:registry=https://corp.example/npm/",
            project="registry=https://corp.example/npm/\n//corp.example/npm/:_authToken=${NPM_TOKEN}",
        )
        assert machine.authorization() == "Bearer t1"

    def test_attack_certificate_authorities_that_a_repository_names_are_not_trusted(self, machine: Machine) -> None:
        write(machine, project="cafile=./evil.pem\nstrict-ssl=false\n")
        found = machine.registry()
        assert found.endpoint.ca_file is None
        assert [note.partition(" ")[2] for note in found.notes] == [
            "sets cafile; Pinwarden does not trust these certificates",
            "sets strict-ssl; Pinwarden ignores this setting",
        ]

    @pytest.mark.parametrize(("text", "path"), [("~/ca.pem", "home/ca.pem"), ("{root}/ca.pem", "ca.pem")])
    def test_the_users_authorities_are_added(self, machine: Machine, text: str, path: str) -> None:
        write(machine, user=f"cafile={text.format(root=machine.root)}")
        assert machine.registry().endpoint.ca_file == machine.root / path

    def test_nodes_own_extra_authorities_count_where_npm_names_none(self, machine: Machine) -> None:
        machine.variables["NODE_EXTRA_CA_CERTS"] = "/etc/extra.pem"
        assert machine.registry().endpoint.ca_file == Path("/etc/extra.pem")

    def test_a_file_that_is_not_text_or_far_too_large_is_an_error(self, machine: Machine) -> None:
        (machine.home / ".npmrc").write_bytes(b"\xff\xfe")
        with pytest.raises(PinwardenError) as caught:
            machine.registry()
        assert caught.value.code == "CONFIG_INVALID"
        (machine.home / ".npmrc").write_bytes(b"#" * 2_000_000)
        with pytest.raises(PinwardenError) as caught:
            machine.registry()
        assert caught.value.code == "FILE_UNREADABLE"


SYNTAX = r"""
; a comment
# another
registry = https://a.example/ ; not part of it
@one:registry=https://one.example/#not-part-of-it
@two:registry="https://two.example/"
@three:registry='https://three.example/'
@four:registry=https://four.example/\;x/
@five:registry = https://${HOST_FIVE}.example/
@six:registry=https://six.example/${UNSET_SIX?}
@seven:registry=https://seven.example/\${HOST_FIVE}/
 @eight:registry=https://eight.example/
@nine:registry=https://nine.example/
@nine:registry=https://nine-again.example/
flag
[section]
@ten:registry=https://ten.example/
"""
SCOPES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class TestSyntax:
    def test_the_lines_of_a_file(self) -> None:
        assert parse_npmrc("\ufeffa=1\r\nb = x=y \n  ;c=1\nd\n=e\nf[]=1\n\"g\"='h'\n[s]\ni=1") == {
            "a": "1",
            "b": "x=y",
            "d": "true",
            "g": "h",
        }

    @needs("npm", install="tools/system-packages.sh npm")
    def test_npm_itself_reads_the_same(self, tmp_path: Path) -> None:
        for folder in ("home", "project"):
            (tmp_path / folder).mkdir()
        (tmp_path / "home" / ".npmrc").write_text(SYNTAX)
        (tmp_path / "project" / ".npmrc").write_text("@one:registry=https://project.example/\n")
        (tmp_path / "project" / "package.json").write_text("{}")
        variables = {
            "PATH": os.environ["PATH"],
            "HOST_FIVE": "five",
            "npm_config_@two:registry": "https://env.example/",
        }
        keys = ["registry", *(f"@{scope}:registry" for scope in SCOPES)]
        theirs = _npm(["config", "get", *keys], tmp_path, variables)
        effective = dict(line.split("=", 1) for line in theirs.splitlines())
        settings = SettingsSources(home=tmp_path / "home", project=tmp_path / "project", variables=variables)
        for scope in SCOPES:
            registry = effective[f"@{scope}:registry"]
            expected = effective["registry"] if registry == "undefined" else registry
            try:
                ours = find_registry(f"@{scope}/x", settings).endpoint.url
            except PinwardenError as err:
                ours = err.code
            assert ours == ("CONFIG_INVALID" if "${" in expected else f"{expected.rstrip('/')}/"), scope

    @needs("npm", install="tools/system-packages.sh npm")
    def test_npm_itself_reads_the_same_file_for_the_whole_machine(self, tmp_path: Path) -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "npmrc").write_text("registry=https://machine.example/\n")
        for folder in ("home", "project"):
            (tmp_path / folder).mkdir()
        variables = {"PATH": os.environ["PATH"], "npm_config_prefix": str(tmp_path)}
        theirs = _npm(["config", "get", "registry"], tmp_path, variables).strip()
        settings = SettingsSources(home=tmp_path / "home", project=tmp_path / "project", variables=variables)
        assert find_registry("x", settings).endpoint.url == theirs == "https://machine.example/"


def _npm(arguments: list[str], root: Path, variables: Mapping[str, str]) -> str:
    npm = shutil.which("npm")
    assert npm is not None
    done = subprocess.run(
        [npm, *arguments],
        cwd=root / "project",
        env={**variables, "HOME": str(root / "home")},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout
