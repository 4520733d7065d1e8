"""Whose servers a lock covers: finding the project, the lock of each scope, and reports over several scopes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.report import Report
from pinwarden.project.project import Project, find_project_root, find_user_folder, project_in_scope
from pinwarden.project.scopes import combine_reports, list_used_scopes, report_in_scopes
from tests.cli.run import Outcome, pinwarden

SERVER: dict[str, Any] = {"command": "npx", "args": ["-y", "@acme/notes@1.2.3"]}


class Machine:
    """A home with servers of the user, and a project with its own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.root = folder / "home", folder / "home" / "work" / "project"
        (self.root / "deep" / "folder").mkdir(parents=True)
        (self.root / ".git").mkdir()
        self.write(self.root / ".mcp.json", {"mcpServers": {"ours": SERVER}})
        self.write(self.home / ".cursor/mcp.json", {"mcpServers": {"mine": SERVER}})
        local = {"projects": {str(self.root): {"mcpServers": {"private": SERVER}}}}
        self.write(self.home / ".claude.json", local)

    def write(self, path: Path, document: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    def run(self, *arguments: str, folder: str = ".") -> Outcome:
        env = {"HOME": str(self.home), "PINWARDEN_APPROVER": "me", "XDG_CONFIG_HOME": ""}
        return pinwarden(*arguments, cwd=self.root / folder, env=env)

    @property
    def project(self) -> Project:
        return Project(root=self.root, lock=self.root / "mcp-lock.json", home=self.home)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def locked_names(lock: Path) -> set[str]:
    return {key.partition(":")[0] for key in json.loads(lock.read_bytes())["servers"]}


def test_init_locks_each_server_where_it_belongs(machine: Machine) -> None:
    assert machine.run("init").code == 0
    locks = {scope.scope: scope.lock for scope in list_used_scopes(machine.project)}
    assert {scope: locked_names(lock) for scope, lock in locks.items()} == {
        "project": {"ours"},
        "local": {"private"},
        "user": {"mine"},
    }


def test_no_home_path_and_no_personal_server_gets_into_the_committed_files(machine: Machine) -> None:
    assert machine.run("init").code == 0
    committed = b"".join(path.read_bytes() for path in machine.root.rglob("*") if path.is_file())
    assert str(machine.home).encode() not in committed
    assert [word for word in (b"mine", b"private", b".cursor", b"~/") if word in committed] == []


def test_the_project_is_found_from_a_folder_inside_it(machine: Machine) -> None:
    assert machine.run("init", "--scope", "project").code == 0
    outcome = machine.run("ci", folder="deep/folder")
    assert (outcome.code, "1 entry checked" in outcome.out) == (0, True)


def test_ci_is_about_the_project_unless_a_scope_is_named(machine: Machine) -> None:
    assert machine.run("init").code == 0
    machine.write(machine.home / ".cursor/mcp.json", {"mcpServers": {"mine": {"command": "sh", "args": ["-c", "x"]}}})
    assert [machine.run("ci", *scope).code for scope in ((), ("--scope", "user"))] == [0, 1]


def test_servers_of_the_users_other_projects_belong_to_no_scope_here(machine: Machine) -> None:
    machine.write(machine.home / ".claude.json", {"projects": {"/elsewhere": {"mcpServers": {"other": SERVER}}}})
    names = {server.name for scope in list_used_scopes(machine.project) for server in scope.find_servers()}
    assert names == {"ours", "mine"}


class TestProjectRoot:
    def test_the_nearest_lock_wins_over_the_repository(self, machine: Machine) -> None:
        (machine.root / "deep" / "mcp-lock.json").write_text("{}")
        assert find_project_root(machine.root / "deep/folder", machine.home) == machine.root / "deep"

    def test_the_search_ends_at_the_repository(self, machine: Machine) -> None:
        (machine.root.parent / "mcp-lock.json").write_text("{}")
        assert find_project_root(machine.root / "deep", machine.home) == machine.root

    def test_the_home_folder_is_never_a_project_of_the_folders_below_it(self, machine: Machine) -> None:
        (machine.home / ".git").mkdir()
        (machine.home / "mcp-lock.json").write_text("{}")
        loose = machine.home / "loose"
        loose.mkdir()
        assert find_project_root(loose, machine.home) == loose

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
    def test_attack_a_lock_that_another_user_placed_above_is_not_used(self, tmp_path: Path) -> None:
        shared, mine = tmp_path / "shared", tmp_path / "shared" / "mine"
        mine.mkdir(parents=True)
        (shared / "mcp-lock.json").write_text("{}")
        os.chown(shared, 12345, 12345)
        assert find_project_root(mine, tmp_path / "home") == mine


class TestUserFolder:
    @pytest.mark.parametrize(
        ("system", "variables", "expected"),
        [
            ("linux", {}, "/home/me/.config/pinwarden"),
            ("linux", {"XDG_CONFIG_HOME": "/x"}, "/x/pinwarden"),
            ("mac", {}, "/home/me/Library/Application Support/pinwarden"),
            ("windows", {"APPDATA": "/data"}, "/data/pinwarden"),
            ("windows", {}, "/home/me/AppData/Roaming/pinwarden"),
        ],
    )
    def test_it_is_the_configuration_folder_of_the_platform(
        self, system: Any, variables: dict[str, str], expected: str
    ) -> None:
        home = Path("/home/me")
        project = Project(root=Path("/p"), lock=Path("/p/l"), home=home, system=system, variables=variables)
        assert find_user_folder(project) == Path(expected)

    def test_two_projects_of_the_same_name_have_different_local_locks(self, tmp_path: Path) -> None:
        locks = set()
        for parent in ("a", "b"):
            root = tmp_path / parent / "project"
            root.mkdir(parents=True)
            project = Project(root=root, lock=root / "mcp-lock.json", home=tmp_path)
            locks.add(project_in_scope(project, "local").lock)
        assert len(locks) == 2


class TestReports:
    def report(self, exit_code: int, **facts: Any) -> Report:
        return Report(command="x", subject="", summary=f"exit {exit_code}", exit_code=exit_code, facts=facts)

    def test_a_finding_takes_precedence_over_a_check_that_was_not_completed(self, machine: Machine) -> None:
        project = machine.project
        user = project_in_scope(project, "user")
        combined = combine_reports([(project, self.report(3)), (user, self.report(1))])
        assert combined.exit_code == 1
        assert combined.summary == "this project: exit 3; you, in every project: exit 1"

    def test_facts_are_joined(self, machine: Machine) -> None:
        project = machine.project
        first = self.report(0, ok=True, checked=1, rows=[{"a": 1}], lock={"found": True})
        second = self.report(1, ok=False, checked=2, rows=[{"a": 1}, {"b": 2}], lock={"found": False})
        combined = combine_reports([(project, first), (project_in_scope(project, "user"), second)])
        assert combined.facts == {"ok": False, "checked": 3, "rows": [{"a": 1}, {"b": 2}], "lock": {"found": False}}

    def test_a_missing_lock_in_one_scope_does_not_hide_the_findings_of_another(self, machine: Machine) -> None:
        def make(project: Project, _: tuple[str, ...]) -> Report:
            if project.scope == "project":
                raise PinwardenError("LOCK_MISSING", "there is none")
            return self.report(1)

        scopes = [(scope, ()) for scope in list_used_scopes(machine.project)]
        assert report_in_scopes(scopes, make).exit_code == 1

    def test_a_missing_lock_in_every_scope_is_an_error(self, machine: Machine) -> None:
        def make(_: Project, __: tuple[str, ...]) -> Report:
            raise PinwardenError("LOCK_MISSING", "there is none")

        with pytest.raises(PinwardenError, match="there is none"):
            report_in_scopes([(machine.project, ())], make)


def test_a_new_server_for_the_user_is_locked_and_configured_for_the_user(machine: Machine) -> None:
    refused = machine.run("add", "io.github.acme/none", "--scope", "local", "--offline")
    assert (refused.code, "[USAGE]" in refused.err) == (2, True)


def test_the_project_policy_cannot_loosen_the_users_own_servers(machine: Machine) -> None:
    """Attack: a repository's pinwarden.toml turns blocking off for the servers of whoever opens it."""
    (machine.root / "pinwarden.toml").write_text('[policy]\nversion = 1\n[policy.gateway]\nmode = "audit"\n')
    local = project_in_scope(machine.project, "local")
    assert local.policy_file == find_user_folder(machine.project) / "pinwarden.toml"
