"""The memory-mapped journal: a killed gateway loses no event, and damage is detected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.chain import load_audit_schema, read_lines
from pinwarden.gateway.audit.event import AuditEvent, LogEntry, parse_entry
from pinwarden.gateway.audit.journal import Journal, open_abandoned_journal, pack_event, pack_text_call
from pinwarden.gateway.audit.log import AuditLimits, AuditLog, recover_journals
from pinwarden.system.database import Database, open_database
from tests.support.audit import verify

FORM = AuditEvent(kind="called", server="50% %d \\ \x1f ü", session="s", call="s/", item="echo", expected=("a", "b"))
CALM = AuditLimits(commit_seconds=60.0)
"""A longer wait, for busy machines."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journals"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "audit.sqlite", load_audit_schema())


def entries(database: Database) -> list[LogEntry]:
    return [parse_entry(line) for _, line in read_lines(database)]


def calls(database: Database) -> list[str]:
    return [entry.event.call for entry in entries(database)]


def killed(folder: Path, count: int = 3) -> Path:
    """The file of a gateway that was killed after ``count`` calls, at its full capacity."""
    journal = Journal.create(folder, "desk", "s1")
    form = journal.add_template(FORM)
    for number in range(count):
        journal.add_call(form, number, 1000 + number)
    data = journal.path.read_bytes()
    journal.close(remove=False)
    journal.path.write_bytes(data)
    return journal.path


def edit(path: Path, old: bytes, new: bytes) -> bytes:
    data = path.read_bytes()
    assert data.count(old) == 1
    edited = data.replace(old, new)
    path.write_bytes(edited)
    return edited


def test_calls_have_all_members_of_their_template(database: Database, folder: Path) -> None:
    killed(folder)
    assert recover_journals(database, folder) == 1
    server = "50% %d \\ \x1f ü"
    assert [entry.event for entry in entries(database)] == [
        AuditEvent(kind="called", server=server, session="s", call=f"s/{number}", item="echo", expected=("a", "b"))
        for number in range(3)
    ]
    assert [entry.nth for entry in entries(database)] == [1, 2, 3]
    assert verify(database).breaks == ()


def call(number: int) -> bytes:
    """The second and third word of a call in the file of `killed`."""
    return number.to_bytes(8, sys.byteorder) + (1000 + number).to_bytes(8, sys.byteorder)


@pytest.mark.parametrize("words", [(), (1,), (2,), (1, 2)])
def test_an_incomplete_call_is_ignored_and_no_other_is_lost(
    words: tuple[int, ...], database: Database, folder: Path
) -> None:
    """Killed before the first word, which is written last."""
    path = killed(folder)
    data = bytearray(path.read_bytes())
    start = data.index(call(2)) - 8
    for word in {0, 1, 2} - set(words):
        data[start + 8 * word : start + 8 * word + 8] = bytes(8)
    path.write_bytes(data)
    assert recover_journals(database, folder) == 1
    assert calls(database) == ["s/0", "s/1"]
    assert verify(database).breaks == ()


@pytest.mark.parametrize("kept", [0, 3, 4, 8, 10, 30])
@pytest.mark.parametrize("tail_first", [False, True])
def test_an_incompletely_copied_event_is_ignored_and_no_other_is_lost(
    kept: int, tail_first: bool, database: Database, folder: Path
) -> None:
    """Killed in the middle of a copy, whichever end the processor began with."""
    path = killed(folder)
    with open_abandoned_journal(path) as journal:
        assert journal is not None
        start = journal.end.offset
    data = path.read_bytes()
    torn_from = Journal.create(folder, "desk", "s2")
    torn_from.append([pack_event(5, FORM)])
    record = torn_from.path.read_bytes()[256:].rstrip(b"\0")
    torn_from.close(remove=True)
    lost = bytes(len(record) - kept)
    torn = lost + record[len(record) - kept :] if tail_first else record[:kept] + lost
    path.write_bytes(data[:start] + torn + data[start + len(torn) :])
    assert recover_journals(database, folder) == 1
    assert calls(database) == ["s/0", "s/1", "s/2"]
    assert verify(database).breaks == ()


class Killed(Exception):  # noqa: N818 - nothing went wrong, it ended
    """The process ends here."""


class Stores:
    """The map of a journal that a kill meets after so many stores; a copy is two of them, in either order."""

    def __init__(self, journal: Journal, stores: int, tail_first: bool) -> None:
        self._map, self._words = journal.map, journal.words
        self._left, self._tail_first = stores, tail_first
        journal.map = journal.words = self  # type: ignore[assignment]

    def _store(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def __setitem__(self, place: int | slice, value: Any) -> None:
        if isinstance(place, int):
            self._store()
            self._words[place] = value
            return
        middle = len(value) // 2
        halves = [(place.start, value[:middle]), (place.start + middle, value[middle:])]
        for start, half in reversed(halves) if self._tail_first else halves:
            self._store()
            assert self._map is not None
            self._map[start : start + len(half)] = half


@pytest.mark.parametrize("tail_first", [False, True])
@pytest.mark.parametrize("stores", range(17))
def test_a_batch_interrupted_by_a_kill_keeps_its_first_events_undamaged(
    stores: int, tail_first: bool, database: Database, folder: Path
) -> None:
    """Killed after each single store of four events, one of which is too long to be packed."""
    batch = [pack_event(7, AuditEvent(kind="observed", item=f"tool-{number}" * 3)) for number in range(4)]
    batch[2] = pack_event(7, AuditEvent(kind="called", item="tool-2", arguments=b"x" * 60_000))
    path = killed(folder)
    with open_abandoned_journal(path) as abandoned:
        assert abandoned is not None
        start = abandoned.end
    journal = Journal.create(folder, "desk", "s2")
    journal.ensure_capacity(100_000)
    journal.size, journal.checksum = start.offset, start.checksum
    assert journal.map is not None
    written = journal.map
    Stores(journal, stores, tail_first)
    if stores < 16:
        with pytest.raises(Killed):
            journal.append(batch)
    else:
        journal.append(batch)
    path.write_bytes(path.read_bytes()[: start.offset] + written[start.offset :])
    journal.map, journal.words = None, ()
    journal.close(remove=True)
    assert recover_journals(database, folder) == 1
    whole = [entry.event.item[:6] for entry in entries(database)[3:]]
    assert whole == [f"tool-{number}" for number in range(stores // 4)]
    assert verify(database).breaks == ()
    assert list(folder.iterdir()) == []


def test_events_before_damage_reach_the_chain_once_and_the_damage_is_reported(database: Database, folder: Path) -> None:
    path = killed(folder)
    edited = edit(path, call(1), call(9))
    for _ in range(2):
        with pytest.raises(PinwardenError) as caught:
            recover_journals(database, folder)
        assert (caught.value.code, "after event 1" in caught.value.message) == ("AUDIT_TAMPERED", True)
        assert (calls(database), path.read_bytes()) == (["s/0"], edited)
    assert verify(database).breaks == ()


def test_a_record_overwritten_with_zeros_before_others_is_reported(database: Database, folder: Path) -> None:
    """An incomplete record states its length, so zeros before other records are damage."""
    journal = Journal.create(folder, "desk", "s1")
    journal.append(
        [pack_event(1, AuditEvent(kind="called", item=str(number), arguments=b"x" * 9000)) for number in range(4)]
    )
    journal.close(remove=False)
    data = bytearray(journal.path.read_bytes())
    step = (len(data) - 256) // 4
    data[256 + step : 256 + 2 * step] = bytes(step)
    journal.path.write_bytes(data)
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"
    assert [entry.event.item for entry in entries(database)] == ["0"]


@pytest.mark.parametrize(
    "text",
    [
        b"7 blocked\x1fx",
        b'7 {{"kind":"brandnew"}',
        b'7 {{"kind":"called","future":"x"}',
        b"7 brandnew" + b"\x1f" * 14,
        b"hello world",
        b"7 {{",
        b"7 \xff",
        b"-7 called" + b"\x1f" * 14,
        b"%d called" % 10**30 + b"\x1f" * 14,
        b"#7 brandnew" + b"\x1f" * 14,
    ],
)
def test_a_forged_journal_with_valid_checksums_is_reported_and_blocks_no_gateway(
    text: bytes, database: Database, folder: Path
) -> None:
    """Attack: plant a file that cannot be parsed, so that no journal can be recovered any more."""
    journal = Journal.create(folder, "desk", "s1")
    journal.append([pack_event(1, FORM), text, pack_event(2, FORM)])
    journal.close(remove=False)
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"
    with AuditLog(folder.parent / "audit.sqlite", folder, limits=CALM) as log:
        log.record(AuditEvent(kind="called", call="goes on"))
    assert (calls(database)[0], calls(database)[-1]) == ("s/", "goes on")
    assert [entry.event.code for entry in entries(database)].count("journal_damaged") == 1
    assert (verify(database).breaks, journal.path.exists()) == ((), True)


@pytest.mark.parametrize("named", ["other", "s1\0", "s-1"])
def test_a_journal_with_the_name_of_another_run_is_reported(named: str, database: Database, folder: Path) -> None:
    """Attack: take the positions of a running gateway's events in the chain."""
    path = killed(folder)
    data = path.read_bytes()
    path.write_bytes(data.replace(b" s1 ", f" {named} ".encode())[:256] + data[256:])
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert (caught.value.code, entries(database)) == ("AUDIT_TAMPERED", [])


@pytest.mark.parametrize("failing", ["ftruncate", "write", "posix_fallocate"])
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the file is extended in another way here")
def test_a_journal_that_cannot_be_reset_loses_no_call_and_assigns_none_to_another_tool(
    failing: str, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the file is truncated after a commit."""
    real, armed = getattr(os, failing), 0

    def fail(*given: Any) -> Any:
        nonlocal armed
        if armed:
            armed -= 1
            raise OSError(28, "No space left on device")
        return real(*given)

    monkeypatch.setattr(os, failing, fail)
    other, third = AuditEvent(kind="called", call="t/"), AuditEvent(kind="called", call="u/")
    taken: list[str] = []

    def take(form: AuditEvent, number: int) -> None:
        try:
            log.record_call(form, number)
        except PinwardenError as err:
            assert err.code == "AUDIT_UNAVAILABLE"
        else:
            taken.append(f"{form.call}{number}")

    limits = AuditLimits(batch_bytes=2000, gather_seconds=60.0, commit_seconds=60.0)
    with AuditLog(folder.parent / "audit.sqlite", folder, limits=limits) as log:
        for number in range(100):
            take((FORM, other)[number % 2], number)
        armed = 3
        log.record_durably(AuditEvent(kind="blocked", call="x"))
        for number in range(100, 200):
            take((third, FORM, other)[number % 3], number)
        assert (armed, log.problem) == (0, None) or failing == "ftruncate"
        armed = 0
    assert taken[-1] == "s/199"
    assert [call for call in calls(database) if call != "x"] == taken
    assert verify(database).breaks == ()


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        (call(0), call(9), 0),
        (call(2), call(1), 2),
        (call(2), call(2)[:8] + bytes(8), 2),
        (b"echo", b"evil", 0),
    ],
    ids=["a number", "the last number", "a moment", "a form"],
)
def test_a_record_with_a_wrong_checksum_is_reported_and_the_file_is_kept(
    old: bytes, new: bytes, left: int, database: Database, folder: Path
) -> None:
    path = killed(folder)
    edited = edit(path, old, new)
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"
    assert (path.read_bytes(), len(entries(database))) == (edited, left)


def test_a_removed_record_is_reported(database: Database, folder: Path) -> None:
    path = killed(folder)
    data = path.read_bytes()
    place = data.index(call(1)) - 8
    path.write_bytes(data[:place] + data[place + 24 :])
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"


def test_a_call_of_an_unknown_template_is_reported(database: Database, folder: Path) -> None:
    journal = Journal.create(folder, "desk", "s1")
    journal.ensure_capacity(1000)
    journal.add_call(1 << 63 | 7 << 32, 1, 1)
    journal.close(remove=False)
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"


@pytest.mark.parametrize("number", [0, 2**64 - 1, 2**64, -1, -(2**63), 10**40])
def test_a_call_with_any_integer_as_request_id_is_recorded(number: int, database: Database, folder: Path) -> None:
    with AuditLog(folder.parent / "audit.sqlite", folder, limits=CALM) as log:
        log.record_durably(AuditEvent(kind="called", call="first"))
        log.record_call(FORM, 5)
        log.record_call(FORM, number)
        log.record_calls([(FORM, number), (FORM, 6)])
    assert calls(database) == ["first", "s/5", f"s/{number}", f"s/{number}", "s/6"]
    assert verify(database).breaks == ()


@pytest.mark.parametrize("request_id", ["", "7", "call-7", "4bf9-1e300", 'é"\\\n\0\x1f\x1e %s', "x" * 256, "世" * 256])
def test_a_call_with_any_string_as_request_id_is_recorded(request_id: str, database: Database, folder: Path) -> None:
    with AuditLog(folder.parent / "audit.sqlite", folder, limits=CALM) as log:
        log.record_durably(AuditEvent(kind="called", call="first"))
        log.record_call(FORM, 5)
        log.record_call(FORM, request_id)
        log.record_calls([(FORM, request_id), (FORM, 6)])
        log.record_call(FORM, 7)
    assert calls(database) == ["first", "s/5", f"s/{request_id}", f"s/{request_id}", "s/6", "s/7"]
    assert verify(database).breaks == ()


def test_calls_with_string_ids_reset_a_full_file_without_losing_one(database: Database, folder: Path) -> None:
    limits = AuditLimits(batch_bytes=2000, max_backlog_bytes=8000, gather_seconds=0.001, commit_seconds=60.0)
    with AuditLog(folder.parent / "audit.sqlite", folder, limits=limits) as log:
        log.record_durably(AuditEvent(kind="called", call="first"))
        for number in range(400):
            log.record_call(FORM, "x" * (number % 50) + str(number))
    assert calls(database) == ["first", *(f"s/{'x' * (number % 50)}{number}" for number in range(400))]
    assert verify(database).breaks == ()


def test_attack_an_edited_string_id_in_an_abandoned_journal_is_detected(database: Database, folder: Path) -> None:
    """Also in the last record, where it must not count as incomplete."""
    journal = Journal.create(folder, "desk", "s1")
    form = journal.add_template(FORM)
    for request_id in ("first-id", "last-id"):
        journal.add_text_call(pack_text_call(form, request_id, 1))
    journal.close(remove=False)
    edited = edit(journal.path, b"last-id", b"fake-id")
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"
    assert (journal.path.read_bytes(), calls(database)) == (edited, ["s/first-id"])


def test_an_incomplete_call_with_a_string_id_is_ignored(database: Database, folder: Path) -> None:
    journal = Journal.create(folder, "desk", "s1")
    form = journal.add_template(FORM)
    journal.add_text_call(pack_text_call(form, "whole", 1))
    data = pack_text_call(form, "part", 2)
    journal.ensure_capacity(1000)
    journal.map[journal.size + 8 : journal.size + 8 + len(data)] = data  # type: ignore[index]
    journal.size += 64  # a killed process does not truncate the file
    journal.close(remove=False)
    assert recover_journals(database, folder) == 1
    assert calls(database) == ["s/whole"]


def test_a_full_file_grows_and_is_reset_without_losing_a_call(database: Database, folder: Path) -> None:
    limits = AuditLimits(batch_bytes=2000, max_backlog_bytes=8000, gather_seconds=0.001, commit_seconds=60.0)
    other = AuditEvent(kind="called", call="t/")
    with AuditLog(folder.parent / "audit.sqlite", folder, limits=limits) as log:
        log.record_durably(AuditEvent(kind="called", call="first"))
        for number in range(600):
            log.record_call(FORM if number % 3 else other, number)
        assert next(folder.glob("*.journal")).stat().st_size < 9000
    assert calls(database) == ["first", *(f"{'s' if number % 3 else 't'}/{number}" for number in range(600))]
    assert verify(database).breaks == ()
    assert list(folder.iterdir()) == []


def test_calls_are_in_the_file_before_note_returns(folder: Path) -> None:
    with AuditLog(
        folder.parent / "audit.sqlite", folder, limits=AuditLimits(gather_seconds=60.0, commit_seconds=60.0)
    ) as log:
        log.record_durably(AuditEvent(kind="called", call="first"))
        (path,) = folder.glob("*.journal")
        for number in (7001, 7002):
            log.record_call(FORM, number)
            assert number.to_bytes(8, sys.byteorder) in path.read_bytes()


def test_a_log_that_refuses_events_refuses_calls(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").touch()
    limits = AuditLimits(retry_seconds=0.02, max_retry_seconds=0.02, commit_seconds=60.0)
    with AuditLog(tmp_path / "file" / "audit.sqlite", folder, when_unavailable="refuse", limits=limits) as log:
        log.record_durably(AuditEvent(kind="blocked"))
        for _ in range(2):
            with pytest.raises(PinwardenError) as caught:
                log.record_call(FORM, 1)
            assert caught.value.code == "AUDIT_UNAVAILABLE"
        assert log.waiting_count == 1


def test_a_closed_log_refuses_calls(tmp_path: Path, folder: Path) -> None:
    log = AuditLog(tmp_path / "audit.sqlite", folder, limits=CALM)
    log.record_durably(AuditEvent(kind="called"))
    log.record_call(FORM, 1)
    log.close()
    with pytest.raises(PinwardenError) as caught:
        log.record_call(FORM, 2)
    assert caught.value.code == "AUDIT_UNAVAILABLE"


def test_two_gateways_never_share_a_journal(folder: Path) -> None:
    journal = Journal.create(folder, "desk", "s1")
    journal.append([pack_event(1, FORM)])
    before = journal.path.read_bytes()
    taking = "import sys; from pathlib import Path; from pinwarden.gateway.audit.journal import *\n"
    taking += "with open_abandoned_journal(Path(sys.argv[1])) as abandoned: print(abandoned)"
    other = subprocess.run(
        [sys.executable, "-c", taking, str(journal.path)], capture_output=True, text=True, check=True
    )
    assert other.stdout == "None\n"
    os.link(journal.path, journal.path.with_suffix(".new"))  # another process creates one of the same name
    with pytest.raises(PinwardenError) as caught:
        Journal.create(folder, "desk", "s1")
    assert caught.value.code == "AUDIT_UNAVAILABLE"
    assert journal.path.read_bytes() == before
    journal.close(remove=False)
    with open_abandoned_journal(journal.path) as abandoned:
        assert abandoned is not None
        assert abandoned.end.nth == 1
