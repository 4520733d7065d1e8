"""Locks published into the database: gateways follow the newest one, and refuse unsigned, changed and older ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.gateway.published_lock import LockSigners, Publication, PublishedLockFollower, publish_lock
from pinwarden.gateway.state import GatewayState
from pinwarden.gateway.store.published_locks import PublishedLock
from pinwarden.lock.signature import RequiredSigners, encode_dsse, sign_file
from pinwarden.project.project import Project as LockedProject
from pinwarden.system.key_files import generate_key
from tests.gateway.test_gateway_command import Project, running
from tests.servers import turning
from tests.support.hosts import network_host
from tests.support.postgres import Cluster
from tests.support.waiting import poll

SEARCH = {"name": "search_notes", "description": "Search.", "inputSchema": {"type": "object"}}
BETTER = {**SEARCH, "description": "Search the notes and the archive."}
READ = {"name": "read_note", "description": "Read a note.", "inputSchema": {"type": "object"}}
BOTH, ONLY_READ = ["search_notes", "read_note"], ["read_note"]


class Company:
    """A repository with a lock, whose server changes after the approval, and gateways without a lock of their own."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database
        place = folder / "place"
        script = folder / "script.json"
        script.write_text(
            json.dumps({"states": [{"tools": [SEARCH, READ]}, {"tools": [BETTER, READ]}], "place": str(place)})
        )
        place.write_text("0")
        self.repository = self.project("repository")
        self.repository.lock(
            {"notes": {"command": sys.executable, "args": [str(Path(turning.__file__)), f"@{script}"]}}
        )
        place.write_text("1")
        assert self.repository("keygen", "ci").code == 0
        self.token = self.repository("gateway", "token", "add", "team").out.split()[0]

    def project(self, name: str) -> Project:
        root = self._folder / name
        root.mkdir()
        project = Project(root)
        project.environment["PINWARDEN_DATABASE"] = self._database
        return project

    def publish(self, *options: str) -> None:
        done = self.repository("lock", "publish", *options)
        assert done.code == 0, done.err


@pytest.fixture
def company(tmp_path: Path, cluster: Cluster) -> Company:
    return Company(tmp_path, cluster.new_database())


def test_two_gateways_follow_the_signed_lock_and_continue_with_it_when_an_unsigned_or_older_one_comes(
    company: Company,
) -> None:
    key = str(company.repository.root / "ci.pub")
    options = ("--published", "default", "--public-key", f"ci={key}")
    first, second = company.project("first"), company.project("second")
    assert first("gateway", "--check", *options, "--listen", "127.0.0.1:0").err.count("[LOCK_NOT_PUBLISHED]") == 1
    assert company.repository("lock", "sign", "--key", "ci", "--dsse", "--output", "earlier").code == 0
    company.publish("--signature", "earlier")
    root = company.repository.root
    earlier = {path: path.read_bytes() for path in (root / "pinwarden.toml", *root.rglob("*.json"))}
    with (
        network_host() as here,
        network_host() as there,
        running(first, *options, host=here) as one,
        running(second, *options, host=there) as two,
    ):

        def names() -> list[list[str]]:
            return [at.names("notes", company.token) for at in (one, two)]

        assert names() == [ONLY_READ, ONLY_READ]
        company.repository.approve("notes", "--why", "an archive")
        company.publish("--key", "ci")
        poll(lambda: names() == [BOTH, BOTH])
        (root / "pinwarden.toml").write_text('[policy]\nversion = 1\n[policy.gateway]\nunknown = "warn"\n')
        company.publish()  # for gateways that require no signature
        for at in (one, two):
            poll(lambda: "(LOCK_UNSIGNED)" in at.get("/readyz")[1])  # noqa: B023
            assert at.get("/readyz")[0] == 200
        for path, data in earlier.items():
            path.write_bytes(data)
        company.publish("--signature", "earlier")
        for at in (one, two):
            poll(lambda: "(LOCK_ROLLED_BACK)" in at.get("/readyz")[1])  # noqa: B023
        assert names() == [BOTH, BOTH]
    again = first("gateway", "--check", *options, "--listen", "127.0.0.1:0")
    assert (again.code, "[LOCK_ROLLED_BACK]" in again.err) == (1, True)
    events = [json.loads(line)["fact"] for line in first("audit", "export").out.splitlines()]
    codes = [event.get("code") for event in events if event["kind"] == "lock_changed"]
    assert codes == [None, None, "LOCK_UNSIGNED", "LOCK_UNSIGNED", "LOCK_ROLLED_BACK", "LOCK_ROLLED_BACK"]


def test_a_change_is_reviewed_once_for_all_gateways_that_follow_a_lock_and_needs_no_lock_to_approve(
    company: Company,
) -> None:
    company.publish()
    reviewer = company.project("reviewer")
    with (
        running(company.project("first"), "--published", "default") as one,
        running(company.project("second"), "--published", "default") as two,
    ):

        def names() -> list[list[str]]:
            return [at.names("notes", company.token) for at in (one, two)]

        def reviews() -> list[Any]:
            listed: list[Any] = json.loads(reviewer("review", "list", "--format", "json").out)["reviews"]
            return listed

        assert names() == [ONLY_READ, ONLY_READ]
        poll(lambda: [review["baseline"] for review in reviews()] == ["published:default"])
        (name,) = [review["name"] for review in reviews()]
        done = reviewer("review", "approve", name, "--why", "an archive")
        assert done.code == 0, done.err
        assert "for gateways that follow the published lock default" in done.out
        assert "2 other gateways with the database" in done.out
        poll(lambda: names() == [BOTH, BOTH])
        done = reviewer("review", "reopen", name, "--why", "too quick")
        assert done.code == 0, done.err
        poll(lambda: names() == [ONLY_READ, ONLY_READ])


# In this process

NOW = ("2026-11-01T10:00:00Z", "2026-11-01T11:00:00Z", "2026-11-01T12:00:00Z")


class Shop:
    """A locked project, a database, and a follower."""

    def __init__(self, folder: Path) -> None:
        made = Project(folder)
        script = {"states": [{"tools": [SEARCH]}]}
        made.lock({"notes": {"command": sys.executable, "args": [str(Path(turning.__file__)), json.dumps(script)]}})
        self.project = LockedProject(root=folder, lock=folder / "mcp-lock.json", home=folder)
        self.state = GatewayState(folder / "state")
        self.key = generate_key()

    def publish(self, *keys: PrivateKey, now: str = NOW[1], **more: Any) -> Any:
        publication = Publication(name="main", keys=keys, by="ci", now=now, **more)
        return publish_lock(lambda: self.state.published_locks, self.project, publication).facts

    def change(self, tier: str) -> None:
        """Write another policy, which makes another publication."""
        (self.project.root / "pinwarden.toml").write_text(f'[policy]\nversion = 1\nminimum-tier = "{tier}"\n')

    def follower(self, *, signed: bool = True) -> PublishedLockFollower:
        signers = LockSigners(keys={"ci": self.key.public_key}, required=RequiredSigners())
        folder = self.state.get_published_folder("main")
        return PublishedLockFollower(lambda: self.state.published_locks, "main", folder, signers if signed else None)

    def store(self, **changes: Any) -> None:
        """Store the newest lock again with changes, as an attacker who can write to the database."""
        newest = self.state.published_locks.read_newest("main")
        assert newest is not None
        self.state.published_locks.publish(replace(newest, **changes))

    def copied(self, follower: PublishedLockFollower) -> dict[str, bytes]:
        folder = follower.lock.parent
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.state.close()


def refusal(follower: PublishedLockFollower) -> str:
    with pytest.raises(PinwardenError) as caught:
        follower.refresh()
    return caught.value.code


def test_publishing_the_same_lock_again_stores_nothing_and_a_signature_for_it_does(shop: Shop) -> None:
    assert [(shop.publish()["sequence"], shop.publish()["published"])] == [(1, False)]
    assert shop.publish(shop.key)["published"]
    assert not shop.publish(shop.key, now=NOW[2])["published"]


def test_a_follower_copies_the_lock_with_its_files_and_policy_once(shop: Shop) -> None:
    shop.change("unverified")
    shop.publish(shop.key)
    follower = shop.follower()
    assert follower.refresh().startswith("the published lock main 1 of")
    files = shop.copied(follower)
    root = shop.project.root
    assert files["mcp-lock.json"] == (root / "mcp-lock.json").read_bytes()
    assert files["pinwarden.toml"] == (root / "pinwarden.toml").read_bytes()
    assert any(name.startswith("mcp-lock.surfaces/") for name in files)
    assert follower.refresh() == ""
    (root / "pinwarden.toml").unlink()
    shop.publish(shop.key, now=NOW[2])
    assert follower.refresh() != ""
    assert "pinwarden.toml" not in shop.copied(follower)


def _another_key(shop: Shop) -> Any:
    newest = shop.state.published_locks.read_newest("main")
    assert newest is not None
    return {"signature": encode_dsse(sign_file(newest.content, [generate_key()], NOW[2], policy_digest=None))}


def _other_policy(_: Shop) -> Any:
    return {"policy": b'[policy]\nversion = 1\n[policy.gateway]\nunknown = "warn"\n'}


def _other_lock(shop: Shop) -> Any:
    return {"content": (shop.project.root / "mcp-lock.json").read_bytes() + b"\n"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda _: {"signature": None}, "LOCK_UNSIGNED"),
        (lambda _: {"signature": b"{}"}, "LOCK_UNSIGNED"),
        (_another_key, "LOCK_UNSIGNED"),
        (_other_policy, "LOCK_UNSIGNED"),
        (_other_lock, "LOCK_UNSIGNED"),
        (lambda _: {"files": {}}, "LOCK_TAMPERED"),
        (lambda _: {"policy": b"not toml ["}, "POLICY_INVALID"),
    ],
)
def test_attack_a_lock_that_was_changed_in_the_database_is_refused_and_the_one_before_stays(
    change: Callable[[Shop], Any], code: str, shop: Shop
) -> None:
    shop.publish(shop.key)
    follower = shop.follower()
    follower.refresh()
    before = shop.copied(follower)
    shop.store(**change(shop))
    assert [refusal(follower), refusal(follower), refusal(shop.follower())] == [code] * 3
    assert shop.copied(follower) == before


def test_attack_an_older_signed_lock_is_refused_also_after_a_restart(shop: Shop) -> None:
    shop.publish(shop.key, now=NOW[0])
    older = shop.state.published_locks.read_newest("main")
    assert older is not None
    shop.change("unverified")
    shop.publish(shop.key, now=NOW[1])
    shop.follower().refresh()
    shop.state.published_locks.publish(older)
    assert refusal(shop.follower()) == "LOCK_ROLLED_BACK"
    shop.change("conditional")
    shop.publish(shop.key, now=NOW[2])
    assert shop.follower().refresh() != ""


def test_attack_without_signatures_a_database_that_lost_publications_is_refused(shop: Shop) -> None:
    shop.publish()
    first = shop.state.published_locks.read_newest("main")
    assert first is not None
    shop.change("unverified")
    shop.publish()
    shop.follower(signed=False).refresh()
    with shop.state._locks_database.transaction() as step:
        step.run("DELETE FROM published_lock_file")
        step.run("DELETE FROM published_lock")
    assert refusal(shop.follower(signed=False)) == "LOCK_NOT_PUBLISHED"
    shop.state.published_locks.publish(first)
    assert refusal(shop.follower(signed=False)) == "LOCK_ROLLED_BACK"


def test_a_copy_that_was_not_finished_or_was_changed_is_written_again(shop: Shop) -> None:
    shop.publish(shop.key)
    follower = shop.follower()
    follower.refresh()
    good = shop.copied(follower)
    follower.lock.write_bytes(b"{}")
    shop.follower().refresh()
    assert shop.copied(follower) == good


def test_a_signature_for_another_lock_is_not_published(shop: Shop) -> None:
    envelope = encode_dsse(sign_file(b"{}", [shop.key], NOW[0]))
    with pytest.raises(PinwardenError) as caught:
        shop.publish(envelope=envelope)
    assert caught.value.code == "SIGNATURE_INVALID"
    assert shop.state.published_locks.read_newest("main") is None


def test_a_published_lock_beyond_the_limit_is_not_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinwarden.gateway.store.published_locks._MAX_BYTES", 10)
    shop.state.published_locks.publish(PublishedLock(name="main", content=b"x" * 11))
    assert refusal(shop.follower()) == "DATABASE_CORRUPT"
