"""Approvals that all gateways with one database share, each with its own lock, and approvals that must not apply."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.approved_sources import LockApprovals
from pinwarden.gateway.baselines import Baseline
from pinwarden.gateway.review import list_reviews
from pinwarden.gateway.shared_approvals import SharedApprovals
from pinwarden.gateway.state import GatewayState
from pinwarden.gateway.store.approvals import FRESH_SECONDS
from pinwarden.surface.surface import Surface
from tests.gateway.review_world import CHANGED, EVIL, READ, SEARCH, ReviewWorld, listing, names, verdicts
from tests.gateway.test_gateway_command import Project, Running, running
from tests.servers.turning_http import TurningWorld, turning_http
from tests.support.postgres import Cluster
from tests.support.waiting import poll

TOOL = {"name": "search_notes", "description": "Search.", "inputSchema": {"type": "object"}}
NEWER = {**TOOL, "description": "Search the notes and the archive."}
OTHER = {"name": "read_note", "description": "Read.", "inputSchema": {"type": "object"}}
STATES = {"states": [{"tools": [TOOL]}, {"tools": [NEWER]}], "eras": ["discover", "initialize"]}


# Two gateway processes


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "shared.sqlite")
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.new_database()


@pytest.fixture
def world() -> Iterator[TurningWorld]:
    with turning_http(STATES) as made:
        yield made


def two_hosts(folder: Path, url: str, database: str) -> tuple[Project, Project]:
    """Two projects that lock the same server, each with its own state, as on two hosts."""
    made: list[Project] = []
    for name in ("first", "second"):
        root = folder / name
        if made:
            shutil.copytree(folder / "first", root, ignore=shutil.ignore_patterns("state"))
        else:
            root.mkdir()
        project = Project(root)
        if not made:
            project.lock({"notes": {"type": "http", "url": url}})
        project.environment["PINWARDEN_DATABASE"] = database
        made.append(project)
    return made[0], made[1]


def reviews(project: Project) -> list[Any]:
    """The reviews of `pinwarden review list`, without starting a process."""
    with GatewayState(Path(project.environment["PINWARDEN_STATE"]), project.environment["PINWARDEN_DATABASE"]) as state:
        reviews: list[Any] = list_reviews(state).facts["reviews"]
    return reviews


def lets_through(gateway: Running, token: str) -> bool:
    return gateway.names("notes", token) == ["search_notes"]


def test_an_approval_on_one_host_reaches_the_gateway_of_another_and_so_does_undoing_it(
    tmp_path: Path, world: TurningWorld, database: str
) -> None:
    first, second = two_hosts(tmp_path, world.url, database)
    lock = (second.root / "mcp-lock.json").read_bytes()
    with running(first) as here, running(second) as there:
        tokens = here.token, there.token
        assert lets_through(here, tokens[0])
        assert lets_through(there, tokens[1])
        world.turn()
        poll(lambda: not lets_through(here, tokens[0]) and not lets_through(there, tokens[1]))
        poll(lambda: len(reviews(first)) == 2)
        mine = next(review for review in reviews(first) if review["baseline"].endswith("first/mcp-lock.json"))
        done = first("review", "approve", mine["name"], "--why", "they added an archive")
        assert done.code == 0, done.err
        assert f"written to {first.root}/mcp-lock.json" in done.out
        assert "1 other gateway with the database" in done.out
        assert f"{second.root}/mcp-lock.json" in done.out
        poll(lambda: lets_through(here, tokens[0]) and lets_through(there, tokens[1]))
        poll(lambda: reviews(first) == [])
        assert (second.root / "mcp-lock.json").read_bytes() == lock
        done = first("review", "reopen", mine["name"], "--why", "we were too quick")
        assert done.code == 0, done.err
        poll(lambda: not lets_through(here, tokens[0]) and not lets_through(there, tokens[1]))
        poll(lambda: len(reviews(first)) == 2)


def test_a_gateway_that_starts_later_applies_the_approval_unless_configured_not_to(
    tmp_path: Path, world: TurningWorld
) -> None:
    first, second = two_hosts(tmp_path, world.url, str(tmp_path / "shared.sqlite"))
    world.turn()
    with running(first) as here:
        token = here.token
        poll(lambda: not lets_through(here, token) and len(reviews(first)) == 1)
        (name,) = [review["name"] for review in reviews(first)]
        done = first("review", "approve", name, "--why", "fine")
        assert "no other running gateway with the database" in done.out
    with running(second) as there:
        token = there.token
        poll(lambda: lets_through(there, token))
    with running(second, "--approvals", "lock") as there:
        assert not lets_through(there, there.token)
        poll(lambda: sorted(review["state"] for review in reviews(first)) == ["approved", "pending"])


# One host after the other, in this process


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[ReviewWorld]:
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    made.lock_server(SEARCH)
    made.use()
    yield made
    made.state.close()


class Host:
    """Another host that uses the same database."""

    def __init__(self, world: ReviewWorld, folder: Path, lock: Path) -> None:
        self.state = GatewayState(folder, world.state.url)
        self.lock = lock
        self.clock = 1_000_000
        self.shared = SharedApprovals(
            lambda: self.state.approvals, self.state.get_lock_location(lock), lambda: self.clock
        )
        self.source = LockApprovals(lock, "notes", shared=self.shared)

    def approved(self) -> Surface:
        """What counts there, after a look at the database."""
        self.source.get_current()
        self.shared.refresh()
        approved = self.source.get_current()
        self.shared.refresh()
        assert approved is not None
        return approved.surface

    def descriptions(self) -> dict[str, str]:
        return names(self.approved())


@pytest.fixture
def there(here: ReviewWorld, tmp_path: Path) -> Iterator[Host]:
    shutil.copytree(here.root, tmp_path / "there")
    made = Host(here, tmp_path / "state-there", tmp_path / "there/mcp-lock.json")
    yield made
    made.state.close()


def approve(world: ReviewWorld, *tools: Any) -> str:
    (name,) = world.serve(*tools)
    assert world.run("review", "approve", name, "--why", "fine").code == 0
    return name


def test_approvals_that_build_on_each_other_are_applied_in_their_order(here: ReviewWorld, there: Host) -> None:
    approve(here, CHANGED)
    third = {**SEARCH, "description": "Search everything."}
    approve(here, third)
    approve(here, third, READ)
    assert there.descriptions() == {"search": third["description"], "read": READ["description"]}


def test_the_host_whose_lock_was_written_applies_only_its_lock(here: ReviewWorld) -> None:
    """Restoring the lock from version control undoes the approval on this host."""
    before = here.files()
    own = Host(here, here.folder, here.lock)
    approve(here, CHANGED)
    assert own.descriptions() == {"search": CHANGED["description"]}
    for name, data in before.items():
        path = here.lock if name == here.lock.name else here.root / "mcp-lock.surfaces" / name
        path.write_bytes(data)
    assert own.descriptions() == {"search": SEARCH["description"]}
    own.state.close()


def test_attack_an_approval_of_another_server_of_the_same_name_does_not_apply(
    here: ReviewWorld, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = there.lock.parent
    config = folder / ".mcp.json"
    config.write_text(config.read_text().replace("@script.json", "@./script.json"))
    there.lock.unlink()
    shutil.rmtree(folder / "mcp-lock.surfaces")
    with monkeypatch.context() as changed:
        changed.chdir(folder)
        assert here.run("init", "--allow-execute").code == 0
    there.clock = _now()
    assert there.descriptions() == {"search": SEARCH["description"]}
    (name,) = here.serve(CHANGED)
    done = here.run("review", "approve", name, "--why", "fine")
    place = there.state.get_lock_location(there.lock)
    assert (
        f"note: {place} does not apply it, because it has another server of this name or runs with --approvals lock"
        in (done.out)
    )
    assert there.descriptions() == {"search": SEARCH["description"]}
    assert [review["not_followed_by"] for review in here.json("review", "list")["reviews"]] == [[place]]


def _now() -> int:
    return int(time.time())


def test_an_approval_that_a_gateway_does_not_follow_stays_in_the_list(here: ReviewWorld, there: Host) -> None:
    there.clock = _now()
    there.approved()
    name = approve(here, CHANGED)
    listed = here.json("review", "list")["reviews"]
    place = there.state.get_lock_location(there.lock)
    assert [(review["name"], review["state"], review["not_followed_by"]) for review in listed] == [
        (name, "approved", [place])
    ]
    out = here.run("review", "list").out
    assert "approved by reviewer" in out
    assert f"note: {name} is approved, but the gateway of {place} does not apply it yet\n" in out
    assert there.descriptions() == {"search": CHANGED["description"]}
    assert here.json("review", "list")["reviews"] == []
    assert here.run("review", "list").out == "no changes pending review\n"


def test_a_stopped_gateway_is_not_listed_as_behind(here: ReviewWorld, there: Host) -> None:
    there.clock = _now() - 2 * FRESH_SECONDS
    there.approved()
    approve(here, CHANGED)
    assert here.json("review", "list")["reviews"] == []


def test_an_approval_that_replaces_another_definition_does_not_apply(here: ReviewWorld, there: Host) -> None:
    """The approver saw another difference than the one on the other host."""
    there.clock = _now()
    assert there.descriptions() == {"search": SEARCH["description"]}
    approve(here, CHANGED)
    name = approve(here, {**SEARCH, "description": "Search everything."})
    first = here.state.approvals.list_for_servers(["notes"])[0]
    content = (first.server, first.entity, first.item, first.digest)
    here.state.approvals.withdraw([content], by="reviewer", why="", now="")
    assert there.descriptions() == {"search": SEARCH["description"]}
    assert [review["name"] for review in here.json("review", "list")["reviews"]] == [name]


def test_attack_a_rejection_ends_an_approval_and_a_later_approval_applies_again(here: ReviewWorld, there: Host) -> None:
    """The other host has its own review of the same definition."""
    place = Baseline.of_lock(there.lock)
    assert here.serve(SEARCH) == []
    there.state.open_sighting_recorder("notes", place).record(verdicts(there.approved(), listing(CHANGED)))
    (theirs,) = here.waiting()
    (mine,) = [name for name in here.serve(CHANGED) if name != theirs]
    assert here.run("review", "approve", mine, "--why", "fine").code == 0
    assert there.descriptions() == {"search": CHANGED["description"]}
    assert here.run("review", "reject", theirs, "--why", "not here").code == 0
    assert there.descriptions() == {"search": SEARCH["description"]}
    assert here.run("review", "reopen", mine, "--why", "once more").code == 0
    assert here.serve(CHANGED) == [mine]
    assert here.run("review", "approve", mine, "--why", "fine").code == 0
    assert there.descriptions() == {"search": CHANGED["description"]}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("definition", json.dumps(EVIL, sort_keys=True, separators=(",", ":"))),
        ("definition", "{"),
        ("digest", "sha256:" + "0" * 64),
        ("item", "read"),
        ("entity", "nothing"),
        ("identity", "sha256:" + "0" * 64),
        ("name", "0" * 32),
    ],
)
def test_attack_a_database_row_that_does_not_match_its_name_blocks_the_server(
    here: ReviewWorld, there: Host, column: str, value: str
) -> None:
    approve(here, CHANGED)
    with here.state._approvals_database.transaction() as step:
        step.run(f"UPDATE approval SET {column} = ?, sequence = 99", (value,))
    there.source.get_current()
    there.shared.refresh()
    with pytest.raises(PinwardenError) as caught:
        there.source.get_current()
    assert caught.value.code == "DATABASE_CORRUPT"


def test_an_unavailable_database_changes_nothing(here: ReviewWorld, there: Host) -> None:
    approve(here, CHANGED)
    assert there.descriptions() == {"search": CHANGED["description"]}

    def away() -> Any:
        raise PinwardenError("DATABASE_UNAVAILABLE", "away")

    there.shared._open_table = away
    there.shared.start(60)
    approved = there.source.get_current()
    there.shared.close()
    assert approved is not None
    assert names(approved.surface) == {"search": CHANGED["description"]}


def test_an_approval_that_could_not_be_written_to_the_lock_is_not_in_the_database(
    here: ReviewWorld, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = here.serve(CHANGED)

    def full(*_: Any) -> None:
        raise PinwardenError("LOCK_BUSY", "no")

    monkeypatch.setattr("pinwarden.project.lock.approve_surfaces", full)
    assert here.run("review", "approve", name, "--why", "fine").code != 0
    assert there.descriptions() == {"search": SEARCH["description"]}
    assert here.waiting() == [name]
