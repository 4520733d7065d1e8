"""Backups of a gateway's database: complete while it is in use, verified, and refused if they are not what was kept."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pinwarden.gateway.audit.event import CALLED, AuditEvent
from pinwarden.gateway.state import GatewayState
from tests.cli.run import Outcome
from tests.gateway.test_gateway_command import Project, running
from tests.servers import talking
from tests.support.postgres import Cluster, find_programs


def record(project: Project, count: int = 3) -> None:
    with GatewayState(project.root / "state") as state:
        state.record_events(*(AuditEvent(kind=CALLED, server="notes", item=f"tool-{turn}") for turn in range(count)))


def head_of(done: Outcome) -> str:
    assert done.code == 0, done.err
    head = json.loads(done.out)["head"]
    return f"{head['number']}:{head['hash']}"


def code_of(done: Outcome) -> tuple[int, str]:
    return done.code, json.loads(done.out)["error"]["code"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Project:
    """Another machine."""
    folder = tmp_path / "other"
    folder.mkdir()
    return Project(folder)


def test_a_backup_has_what_a_copy_of_the_file_lacks_and_restores_on_another_machine(
    project: Project, other: Project
) -> None:
    """The last commits of a database that is in use are in its write-ahead log."""
    token = project("gateway", "token", "add", "ada").out.strip()
    database = project.root / "state" / "gateway.sqlite"
    with closing(sqlite3.connect(database)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM audit_entry").fetchall()  # what follows stays in the log until it ends
        record(project)
        shutil.copy(database, project.root / "naive.sqlite")
        done = project("gateway", "backup", "backup.sqlite", "--format", "json")
    head = head_of(done)
    with closing(sqlite3.connect(project.root / "naive.sqlite")) as naive:
        assert naive.execute("SELECT COUNT(*) FROM audit_entry").fetchone() == (1,)
    backup = project.root / "backup.sqlite"
    assert (backup.stat().st_mode & 0o777, json.loads(done.out)["entries"]) == (0o600, 4)
    assert [path.name for path in project.root.glob("*backup*")] == ["backup.sqlite"], "one file"
    assert token.encode() not in backup.read_bytes()
    assert other("gateway", "restore", str(backup), "--head", head).code == 0
    listed = json.loads(other("gateway", "token", "list", "--format", "json").out)
    assert [row["client"] for row in listed["tokens"]] == ["ada"]
    assert other("audit", "verify", "--head", head).code == 0
    newest = json.loads(other("audit", "export").out.splitlines()[-1])["fact"]
    assert (newest["kind"], newest["call"], newest["by"]) == ("restored", head, "tester")


def test_a_backup_while_a_gateway_serves_and_after_it_was_killed_has_every_event(project: Project) -> None:
    project.lock({"talking": {"command": sys.executable, "args": [str(Path(talking.__file__)), "/dev/null"]}})
    with running(project) as at:
        for _ in range(20):
            assert "result" in at.ask("talking", at.token, "tools/call", name="echo", arguments={})[1]
        assert project("gateway", "backup", "during.sqlite").code == 0
        for _ in range(20):
            assert "result" in at.ask("talking", at.token, "tools/call", name="echo", arguments={})[1]
        at.process.kill()
    head = head_of(project("gateway", "backup", "after.sqlite", "--format", "json"))
    exported = project("audit", "export", "--audit", "after.sqlite").out.splitlines()
    calls = [line for line in exported if json.loads(line)["fact"].get("item") == "echo"]
    assert len([line for line in calls if json.loads(line)["fact"]["kind"] == CALLED]) == 40
    assert project("audit", "verify", "--audit", "after.sqlite", "--head", head).code == 0


def test_a_backup_that_is_too_old_or_changed_is_not_restored(project: Project, other: Project) -> None:
    """Attack: a person who can write backups removes what an event of the log says."""
    record(project)
    old = head_of(project("gateway", "backup", "old.sqlite", "--format", "json"))
    record(project)
    new = head_of(project("gateway", "backup", "new.sqlite", "--format", "json"))
    database = other.root / "state" / "gateway.sqlite"

    def restore(name: str, *options: str) -> tuple[int, str]:
        return code_of(other("gateway", "restore", str(project.root / name), *options, "--format", "json"))

    assert restore("old.sqlite", "--head", new) == (1, "AUDIT_TAMPERED")
    with closing(sqlite3.connect(project.root / "new.sqlite")) as changed:
        changed.execute("DELETE FROM audit_entry WHERE number = 2")
        changed.commit()
    assert restore("new.sqlite", "--head", old) == (1, "AUDIT_TAMPERED")
    data = (project.root / "old.sqlite").read_bytes()
    (project.root / "cut.sqlite").write_bytes(data[: len(data) // 2])
    assert restore("cut.sqlite") == (3, "DATABASE_CORRUPT")
    (project.root / "text.sqlite").write_text("no database")
    assert restore("text.sqlite")[1] == "DATABASE_CORRUPT"
    assert restore("absent.sqlite")[1] == "DATABASE_MISSING"
    assert not database.exists()
    assert list(database.parent.glob("*.sqlite*")) == []


def test_attack_a_backup_with_other_tokens_a_trigger_or_a_file_next_to_it_is_not_restored(
    project: Project, other: Project
) -> None:
    """The head covers the audit log only, and SQLite runs triggers and reads a write-ahead log next to a file."""
    project("gateway", "token", "add", "ada")
    done = project("gateway", "backup", "kept.sqlite", "--format", "json")
    head, digest = head_of(done), json.loads(done.out)["digest"]
    kept = project.root / "kept.sqlite"

    def change(name: str, statement: str) -> Path:
        copy = project.root / name
        shutil.copy(kept, copy)
        with closing(sqlite3.connect(copy)) as changed:
            changed.execute(statement)
            changed.commit()
        return copy

    def restore(file: Path, *options: str) -> tuple[int, str]:
        return code_of(other("gateway", "restore", str(file), "--head", head, *options, "--format", "json"))

    token = change("token.sqlite", "UPDATE token SET client = 'eve'")
    assert restore(token, "--digest", digest) == (1, "AUDIT_TAMPERED")
    trigger = "CREATE TRIGGER later AFTER INSERT ON audit_entry BEGIN DELETE FROM review; END"
    assert restore(change("trigger.sqlite", trigger)) == (3, "DATABASE_CORRUPT")
    with closing(sqlite3.connect(token)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE token SET client = 'mallory'")
        writer.commit()
        shutil.copy(f"{token}-wal", f"{kept}-wal")
    assert other("gateway", "restore", str(kept), "--head", head, "--digest", digest).code == 0
    listed = json.loads(other("gateway", "token", "list", "--format", "json").out)
    assert [row["client"] for row in listed["tokens"]] == ["ada"]


def test_neither_a_backup_nor_a_restored_database_replaces_a_file(project: Project) -> None:
    record(project)
    assert project("gateway", "backup", "backup.sqlite").code == 0
    before = (project.root / "backup.sqlite").read_bytes()
    assert code_of(project("gateway", "backup", "backup.sqlite", "--format", "json"))[1] == "FILE_EXISTS"
    assert code_of(project("gateway", "restore", "backup.sqlite", "--format", "json"))[1] == "FILE_EXISTS"
    assert (project.root / "backup.sqlite").read_bytes() == before


def test_without_a_database_a_backup_fails_and_creates_none(project: Project) -> None:
    assert code_of(project("gateway", "backup", "backup.sqlite", "--format", "json")) == (3, "DATABASE_MISSING")
    assert [path.name for path in project.root.rglob("*.sqlite")] == []


def test_postgresql_is_backed_up_with_its_own_tools_as_the_guide_says(
    project: Project, other: Project, cluster: Cluster
) -> None:
    source, target = cluster.other_encoding("UTF8"), cluster.other_encoding("UTF8")
    project.environment["PINWARDEN_DATABASE"] = source
    other.environment["PINWARDEN_DATABASE"] = target
    assert project("gateway", "token", "add", "ada").code == 0
    refused = project("gateway", "backup", "backup.sqlite", "--format", "json")
    assert code_of(refused) == (2, "USAGE")
    assert "pg_dump --format=custom" in refused.err
    verified = project("audit", "verify", "--format", "json")
    dump = str(project.root / "gateway.dump")
    pg_dump, pg_restore = str(find_programs() / "pg_dump"), str(find_programs() / "pg_restore")
    subprocess.run([pg_dump, "--format=custom", f"--file={dump}", source], check=True)
    subprocess.run([pg_restore, "--no-owner", f"--dbname={target}", dump], check=True)
    assert other("audit", "verify", "--head", head_of(verified)).code == 0
    assert "ada" in other("gateway", "token", "list").out
    assert other("gateway", "token", "revoke", "ada").code == 0
    assert other("audit", "verify", "--head", head_of(verified)).code == 0, "the chain continues"
