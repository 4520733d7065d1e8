"""The audit log on the command line, and what anyone can check without us."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinwarden.gateway.audit.chain import read_lines
from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.audit.journal import Journal, pack_event
from pinwarden.gateway.state import GatewayState
from tests.cli.run import Outcome
from tests.gateway.review_world import ReviewWorld
from tests.support.postgres import Cluster

FACTS = (
    AuditEvent(kind="called", server="notes", client="editor", call="c1", item_kind="tool", item="search"),
    AuditEvent(
        kind="blocked", server="notes", item_kind="tool", item="re\x1b[2Jad", code="text_changed", level="review"
    ),
    AuditEvent(kind="policy_changed", policy="sha256:" + "a" * 64),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[ReviewWorld]:
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    if request.param == "postgresql":
        running: Cluster = request.getfixturevalue("cluster")
        url = running.new_database()
        monkeypatch.setenv("PINWARDEN_DATABASE", url)
        made.state = GatewayState(made.folder, url)
    with made.state.open_audit_log(gateway="desk") as log:
        log.record_durably(*FACTS)
    yield made
    made.state.close()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> ReviewWorld:
    return ReviewWorld(tmp_path, monkeypatch, capfd)


def exported(world: ReviewWorld) -> list[bytes]:
    outcome = world.run("audit", "export")
    assert outcome.code == 0
    return outcome.out.encode().splitlines()


def head(world: ReviewWorld) -> str:
    return world.run("audit", "export").err.removeprefix("head ").strip()


def edit(world: ReviewWorld, *statements: str) -> None:
    with world.state.audit_database.transaction() as step:
        for statement in statements:
            step.run(statement)


def codes(outcome: Outcome) -> list[tuple[int, str]]:
    return [(row["number"], row["code"]) for row in json.loads(outcome.out)["breaks"]]


def test_an_untouched_log_is_clean_and_its_head_is_printed(world: ReviewWorld) -> None:
    report = world.json("audit", "verify")
    number, hash_ = report["head"]["number"], report["head"]["hash"]
    assert report == {
        "ok": True,
        "entries": 3,
        "head": {"number": 3, "hash": hash_},
        "breaks": [],
        "heads_checked": 0,
    }
    assert f"{number}:{hash_}" == head(world)
    assert world.run("audit", "verify", "--head", f"{number}:{hash_}").code == 0


def test_an_export_is_verified_with_nothing_but_sha_256(world: ReviewWorld) -> None:
    lines = exported(world)
    previous = "0" * 64
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        assert (entry["number"], entry["previous"]) == (number, f"sha256:{previous}")
        previous = hashlib.sha256(line).hexdigest()
    assert head(world) == f"3:sha256:{previous}"


def test_the_verifier_in_the_documentation_gives_the_same_result(world: ReviewWorld) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "audit-log.md"
    script = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]

    def verified(lines: list[bytes]) -> subprocess.CompletedProcess[bytes]:
        text = b"".join(line + b"\n" for line in lines)
        return subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, check=False)

    lines = exported(world)
    assert verified(lines).stdout.decode() == f"head {head(world)}\n"
    edited = [lines[0].replace(b"notes", b"mails"), *lines[1:]]
    assert [verified(bad).returncode for bad in (edited, lines[1:], [lines[0], lines[2]])] == [1, 1, 1]


def test_an_edited_log_exits_with_1(world: ReviewWorld) -> None:
    edit(world, "UPDATE audit_entry SET entry = REPLACE(entry, 'blocked', 'allowed') WHERE number = 2")
    outcome = world.run("audit", "verify")
    assert outcome.code == 1
    assert "entry 3 does not contain the hash" in outcome.out


def test_a_truncated_log_is_detected_with_its_head_or_an_earlier_export(world: ReviewWorld, tmp_path: Path) -> None:
    kept = head(world)
    file = tmp_path / "kept.jsonl"
    assert world.run("audit", "export", "--output", str(file)).code == 0
    edit(world, "DELETE FROM audit_entry WHERE number > 1")
    assert world.run("audit", "verify").code == 0
    assert codes(world.run("audit", "verify", "--head", kept, "--format", "json")) == [(3, "cut_off")]
    assert codes(world.run("audit", "verify", "--against", str(file), "--format", "json")) == [(3, "cut_off")]


def test_an_export_is_verified_without_the_database(world: ReviewWorld, tmp_path: Path) -> None:
    file, end = tmp_path / "all.jsonl", tmp_path / "end.jsonl"
    assert world.run("audit", "export", "--output", str(file)).code == 0
    assert world.run("audit", "export", "--after", "1", "--output", str(end)).code == 0
    assert world.run("audit", "verify", "--file", str(file), "--head", head(world)).code == 0
    assert world.run("audit", "verify", "--file", str(end), "--head", head(world)).code == 0
    file.write_bytes(file.read_bytes().replace(b"notes", b"mails", 1))
    assert world.run("audit", "verify", "--file", str(file)).code == 1
    lines = end.read_bytes().splitlines(keepends=True)
    end.write_bytes(lines[0])
    assert world.run("audit", "verify", "--file", str(end), "--head", head(world)).code == 1


def test_a_head_before_the_start_of_an_export_is_checked_or_reported_and_never_ignored(
    world: ReviewWorld, tmp_path: Path
) -> None:
    """Attack: give an export of a rewritten log, without the entry that the kept head names."""
    end = tmp_path / "end.jsonl"
    first, second, _ = (f"sha256:{hashlib.sha256(line).hexdigest()}" for line in exported(world))
    assert world.run("audit", "export", "--after", "2", "--output", str(end)).code == 0
    good = world.json("audit", "verify", "--file", str(end), "--head", f"2:{second}")
    assert (good["ok"], good["heads_checked"]) == (True, 1)
    assert codes(
        world.run("audit", "verify", "--file", str(end), "--head", f"2:{first}", "--format", "json"),
    ) == [(2, "rewritten")]
    early = world.run("audit", "verify", "--file", str(end), "--head", f"2:{second}", "--head", f"1:{first}")
    assert (early.code, "[AUDIT_NOT_COVERED]" in early.err) == (3, True)
    assert "cannot be checked, because this file begins with entry 3" in early.err


def test_an_earlier_export_is_compared_line_by_line(world: ReviewWorld, tmp_path: Path) -> None:
    """Attack: edit the log in the middle and rewrite the rest, or the earlier export."""
    kept, again = tmp_path / "kept.jsonl", tmp_path / "again.jsonl"
    lines = exported(world)
    kept.write_bytes(b"".join(line + b"\n" for line in lines))
    assert world.json("audit", "verify", "--against", str(kept))["heads_checked"] == 1
    edited = lines[1].replace(b"blocked", b"allowed")
    for bad in ([lines[0], edited, lines[2]], [lines[0], lines[2]], [b"{}", *lines[1:]]):
        again.write_bytes(b"".join(line + b"\n" for line in bad))
        output = world.run("audit", "verify", "--against", str(again))
        assert (output.code, "[AUDIT_INVALID]" in output.err, output.out) == (3, True, "")
    # only the whole export shows a rewritten log that keeps its last line
    edit(world, "UPDATE audit_entry SET entry = REPLACE(entry, 'blocked', 'allowed') WHERE number = 2")
    breaks = codes(world.run("audit", "verify", "--against", str(kept), "--format", "json"))
    assert breaks == [(2, "rewritten"), (3, "broken_link")]
    other = world.run("audit", "verify", "--file", str(kept), "--against", str(kept))
    assert other.code == 0


def test_an_export_must_match_an_earlier_overlapping_export(world: ReviewWorld, tmp_path: Path) -> None:
    early, late = tmp_path / "early.jsonl", tmp_path / "late.jsonl"
    lines = exported(world)
    early.write_bytes(b"".join(line + b"\n" for line in lines[:2]))
    late.write_bytes(b"".join(line + b"\n" for line in lines[1:]))
    assert world.run("audit", "verify", "--file", str(late), "--against", str(early)).code == 0
    assert world.run("audit", "verify", "--against", str(late), "--against", str(early)).code == 0
    assert codes(world.run("audit", "verify", "--file", str(early), "--against", str(late), "--format", "json")) == [
        (3, "cut_off")
    ]


def test_an_empty_export_is_not_clean(world: ReviewWorld, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    output = world.run("audit", "verify", "--file", str(tmp_path / "empty"))
    assert (output.code, "[AUDIT_INVALID]" in output.err) == (3, True)


def test_tail_shows_the_newest_events_and_no_control_characters(world: ReviewWorld) -> None:
    out = world.run("audit", "tail", "-n", "2").out
    assert [line.split()[1] for line in out.splitlines()] == ["blocked", "policy_changed"]
    assert "\x1b" not in out
    assert "re<U+001B>[2Jad" in out
    wanted = world.json("audit", "tail", "--kind", "called", "--server", "notes")["entries"]
    assert [(row["number"], row["gateway"], row["fact"]["call"]) for row in wanted] == [(1, "desk", "c1")]


def test_an_export_into_a_file_is_reported_with_its_head(world: ReviewWorld) -> None:
    report = world.json("audit", "export", "--output", "log.jsonl")
    kept = (world.root / "log.jsonl").read_bytes().splitlines()
    assert (report["entries"], f"{report['head']['number']}:{report['head']['hash']}") == (len(FACTS), head(world))
    assert kept == exported(world)
    assert world.run("audit", "export", "--after", "99").err == "no events after 99\n"


def test_an_export_is_readable_only_by_its_owner(world: ReviewWorld) -> None:
    assert world.run("audit", "export", "--output", "log.jsonl").code == 0
    assert (world.root / "log.jsonl").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in world.root.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("failing", ["fsync", "write"])
def test_an_export_that_does_not_fit_the_disk_leaves_no_file(
    failing: str, world: ReviewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short log is in the memory of the program until its file is closed."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr("pinwarden.gateway.audit.report.hash_entry", full)
    outcome = world.run("audit", "export", "--output", "log.jsonl")
    assert (outcome.code, "[FILE_UNWRITABLE]" in outcome.err, list(world.root.iterdir())) == (3, True, [])


def test_an_interrupted_export_leaves_no_file(world: ReviewWorld) -> None:
    edit(world, "ALTER TABLE audit_entry RENAME TO elsewhere")
    outcome = world.run("audit", "export", "--output", "log.jsonl")
    assert (outcome.code, (world.root / "log.jsonl").exists()) == (3, False)


def test_follow_prints_only_matching_events_and_ends_with_its_reader(world: ReviewWorld) -> None:
    command = [sys.executable, "-m", "pinwarden", "audit", "tail", "--follow", "--kind", "blocked"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=world.root) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        with world.state.open_audit_log() as log:
            log.record_durably(AuditEvent(kind="called", item="b"), AuditEvent(kind="blocked", item="c"))
        second = process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
    assert [line.split()[1] for line in (first, second)] == ["blocked", "blocked"]
    assert second.rstrip().endswith("c")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ("tail --kind unheard", 2, "USAGE"),
        ("tail --follow --format json", 2, "USAGE"),
        ("tail --count -3", 2, "USAGE"),
        ("export --format json", 2, "USAGE"),
        ("verify --head nonsense", 2, "USAGE"),
        ("verify --head 1:sha256:00", 2, "USAGE"),
        ("verify --file empty.jsonl --against empty.jsonl", 3, "AUDIT_INVALID"),
        ("verify --against half.jsonl", 3, "AUDIT_INVALID"),
        ("export --output empty.jsonl", 1, "FILE_EXISTS"),
        ("export --output none/x", 3, "FILE_UNWRITABLE"),
        ("export --after 99999999999999999999", 2, "USAGE"),
        ("export --after -5", 2, "USAGE"),
        ("tail --audit mysql://me:secret@host/db", 2, "USAGE"),
        ("tail --audit postgresql://[::1/db", 2, "USAGE"),
    ],
)
def test_errors_have_a_code(arguments: str, code: int, expected: str, empty: ReviewWorld) -> None:
    empty.use()
    (empty.root / "empty.jsonl").touch()
    (empty.root / "half.jsonl").write_text("{")
    outcome = empty.run("audit", *arguments.split())
    assert f"[{expected}]" in outcome.err
    assert outcome.code == code


def test_events_spooled_by_a_killed_gateway_are_included(world: ReviewWorld) -> None:
    script = (
        "import os, sys; from pathlib import Path; from pinwarden.gateway.audit.log import AuditLog, AuditLimits;"
        "from pinwarden.gateway.audit.event import AuditEvent;"
        "log = AuditLog(sys.argv[1], Path(sys.argv[2]), limits=AuditLimits(gather_seconds=60));"
        "log.record(AuditEvent(kind='called', item='last words')); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, world.state.url, str(world.state.journal_folder)], check=False)
    assert world.json("audit", "tail", "-n", "1")["entries"][0]["fact"]["item"] == "last words"
    assert world.run("audit", "verify").code == 0


def test_events_spooled_for_one_database_do_not_go_to_another(empty: ReviewWorld, tmp_path: Path) -> None:
    one, other = GatewayState(empty.folder, str(tmp_path / "1.sqlite")), GatewayState(empty.folder)
    journal = Journal.create(one.journal_folder, "desk", "s1")
    journal.append([pack_event(1, FACTS[0])])
    journal.close(remove=False)
    with other:
        assert list(read_lines(other.audit_database)) == []
    with one:
        assert len(list(read_lines(one.audit_database))) == 1


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("postgresql://me:other@host/db", True),
        ("postgresql://me@host/db", True),
        ("postgresql://you:secret@host/db", False),
        ("postgresql://me:secret@host:1/db", False),
        ("postgresql://me:secret@host/db2", False),
        ("postgresql://me:secret@host/db?options=x", False),
    ],
)
def test_events_are_spooled_by_database_and_not_by_password(url: str, same: bool, tmp_path: Path) -> None:
    first = GatewayState(tmp_path, "postgresql://me:secret@host/db")
    assert (GatewayState(tmp_path, url).journal_folder == first.journal_folder) is same


def test_an_empty_log_is_clean(empty: ReviewWorld) -> None:
    empty.use()
    assert empty.json("audit", "verify")["entries"] == 0
    assert (empty.run("audit", "tail").out, empty.run("audit", "tail").err) == ("", "no events are recorded yet\n")
    assert empty.run("audit", "tail", "--kind", "blocked").err == "no matching events are recorded\n"
    assert (empty.run("audit", "export").out, empty.run("review", "list").code) == ("", 0)


READING = [
    ("audit", "verify"),
    ("audit", "tail"),
    ("audit", "export"),
    ("review", "list"),
    ("review", "show", "0123456789abcdef"),
    ("review", "approve", "0123456789abcdef"),
    ("review",),
    ("policy", "generate"),
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
@pytest.mark.parametrize("how", ["state", "variable", "option", "empty postgresql", "empty file"])
def test_a_missing_log_is_not_clean_and_is_not_created(
    how: str,
    command: tuple[str, ...],
    empty: ReviewWorld,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A wrong path, or a removed log, must not look like an empty one."""
    tmp_path = empty.root.parent
    if how != "state":
        monkeypatch.delenv("PINWARDEN_STATE")
    place = str(tmp_path / "none" / "log.sqlite")
    if how == "variable":
        monkeypatch.setenv("PINWARDEN_DATABASE", place)
    if how == "empty postgresql":
        place = request.getfixturevalue("cluster").new_database()
    if how == "empty file":
        place = str(tmp_path / "log.sqlite")
        Path(place).touch()
    before = sorted(tmp_path.rglob("*"))
    output = empty.run(*command, *(() if how in ("state", "variable") else ("--audit", place)))
    assert (output.code, "[DATABASE_MISSING]" in output.err) == (3, True)
    assert "hint:" in output.err
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_gateway_the_audit_commands_say_so_and_create_nothing(
    empty: ReviewWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PINWARDEN_STATE")
    before = sorted(tmp_path.rglob("*"))
    assert [empty.run(*command).code for command in READING] == [3, 0, 0, 0, 2, 2, 0, 0]
    assert "[DATABASE_MISSING]" in empty.run("audit", "verify").err
    assert empty.run("audit", "tail").err == "no events are recorded yet\n"
    assert "no changes pending review" in empty.run("review", "list").out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_log_exists_even_if_its_gateway_was_killed_before_the_first_commit(empty: ReviewWorld) -> None:
    journal = Journal.create(empty.state.journal_folder, "desk", "s1")
    journal.append([pack_event(1, FACTS[0])])
    journal.close(remove=False)
    assert empty.json("audit", "verify")["entries"] == 1
