"""Backups of a registry that publishes meanwhile, and what a restored registry is to a client that saw the old one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.main import main
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.registry import ownership
from pinwarden.registry.backup import BackupOptions, back_up
from pinwarden.registry.log_client import FollowedLog, FollowOptions, follow_log, save_log_state
from pinwarden.registry.log_verification import LogState
from pinwarden.registry.registry import RegistrySettings, open_registry
from pinwarden.registry.registry_client import RegistryReader
from pinwarden.registry.restore import RestoreOptions, restore
from pinwarden.registry.takedowns import take_down
from pinwarden.system.clock import wall_clock
from tests.docs.schemas import problems
from tests.registry.replica import Replica, identity_of, publish_over_http, reader, writer
from tests.registry.world import ACME, REGISTRY_KEY, World, bundle
from tests.support.needs import needs
from tests.support.waiting import poll

HEIR = PrivateKey.from_seed(b"h" * 32).public_key.did


def follow(files: RegistryReader, state: LogState | None = None) -> FollowedLog:
    return follow_log(files, state, FollowOptions(key=REGISTRY_KEY.public_key))


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value.code


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> RegistrySettings:
    """Empty storage of each kind; a backup of one kind is restored into the other."""
    url = None if request.param == "sqlite" else request.getfixturevalue("cluster").new_database()
    return RegistrySettings(folder=tmp_path / "restored", database=url, probing="never")


def restored(backup: Path, target: RegistrySettings, *seen: Path | RegistryReader) -> Mapping[str, Any]:
    report = restore(RestoreOptions(backup=backup, settings=target, signer=REGISTRY_KEY, seen=seen))
    return report.facts


def test_a_backup_is_restored_into_any_database_and_continues_the_log(
    anywhere: World, target: RegistrySettings, tmp_path: Path
) -> None:
    made = bundle()
    anywhere.publish(made)
    anywhere.publish(bundle(version="1.1.0", content=b"2"))
    take_down(anywhere.registry, "acme.notes", "1.1.0", "bad")
    ownership.start_recovery(anywhere.registry, "acme", HEIR, "key lost", 7)
    seen = follow(anywhere.files)
    save_log_state(tmp_path / "seen.json", seen.state)
    facts = back_up(anywhere.registry, BackupOptions(folder=tmp_path / "backup")).facts
    assert (facts["log_size"], facts["archives"], facts["copied"]) == (seen.state.edge.size, 2, 2)

    restored(tmp_path / "backup", target, tmp_path / "seen.json")
    registry = replace(open_registry(target, REGISTRY_KEY), now=anywhere.clock)
    again = World(registry=registry, clock=anywhere.clock, token=anywhere.token)
    try:
        assert follow(again.files, seen.state).new_count == 0
        assert again.files.get(f"blobs/{made.archive_cid}") == made.archive
        again.publish(bundle(name="acme.other"))  # with the old token and key
        grown = follow(again.files, seen.state)
        assert grown.new_count == 1
        assert ownership.list_recoveries(registry).facts["waiting"][0]["namespace"] == "acme"
    finally:
        registry.close()


def test_attack_or_mistake_a_backup_that_is_older_than_what_clients_saw_is_not_restored(
    world: World, tmp_path: Path
) -> None:
    world.publish(bundle())
    back_up(world.registry, BackupOptions(folder=tmp_path / "backup"))
    world.publish(bundle(version="1.1.0", content=b"2"))
    save_log_state(tmp_path / "seen.json", follow(world.files).state)
    note = tmp_path / "checkpoint"
    note.write_bytes(world.files.get("log/checkpoint"))
    target = RegistrySettings(folder=tmp_path / "restored")
    for seen in (tmp_path / "seen.json", note, world.files):
        assert code_of(lambda seen=seen: restored(tmp_path / "backup", target, seen)) == "REGISTRY_LOG_BEHIND"  # type: ignore[misc]
    target.folder.mkdir()
    shutil.copy(tmp_path / "registry" / "registry.checkpoint", target.folder)  # the old machine's folder is left
    assert code_of(lambda: restored(tmp_path / "backup", target)) == "REGISTRY_LOG_BEHIND"
    assert sorted(path.name for path in target.folder.iterdir()) == ["registry.checkpoint"]


def test_a_backup_is_not_restored_over_a_registry_or_with_another_key(world: World, tmp_path: Path) -> None:
    world.publish(bundle())
    back_up(world.registry, BackupOptions(folder=tmp_path / "backup"))
    own = RegistrySettings(folder=tmp_path / "registry")
    assert code_of(lambda: restored(tmp_path / "backup", own)) == "BACKUP_INVALID"
    target = RegistrySettings(folder=tmp_path / "restored")
    options = RestoreOptions(backup=tmp_path / "backup", settings=target, signer=ACME)
    assert code_of(lambda: restore(options)) == "REGISTRY_KEY_MISMATCH"
    assert code_of(lambda: restore(replace(options, signer=None))) == "REGISTRY_KEY_MISMATCH"


def _flip_entry(folder: Path) -> None:
    path = next(folder.glob("snapshots/*/tables/log_entries.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"stable"', b'"Stable"'))


def _move_version(folder: Path) -> None:
    """Attack: the backup of another version under this name, with a matching digest in backup.json."""
    from hashlib import sha256

    path = next(folder.glob("snapshots/*/tables/versions.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"1.0.0"', b'"9.0.0"').replace(b'["acme.notes"', b'["acme.other"'))
    about = path.parent.parent / "backup.json"
    value = json.loads(about.read_bytes())
    next(table for table in value["tables"] if table["name"] == "versions")["sha256"] = sha256(
        path.read_bytes()
    ).hexdigest()
    about.write_text(json.dumps(value))


def _lose_archive(folder: Path) -> None:
    next(path for path in (folder / "blobs").rglob("baf*") if path.is_file()).unlink()


def _cut_log(folder: Path) -> None:
    path = next(folder.glob("snapshots/*/tables/log_entries.jsonl"))
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_flip_entry, "BACKUP_INVALID"),
        (_move_version, "BACKUP_INVALID"),
        (_cut_log, "BACKUP_INVALID"),
        (_lose_archive, "ARTIFACT_MISSING"),
    ],
)
def test_attack_a_changed_backup_is_not_restored(
    world: World, tmp_path: Path, damage: Callable[[Path], None], code: str
) -> None:
    world.publish(bundle())
    back_up(world.registry, BackupOptions(folder=tmp_path / "backup"))
    damage(tmp_path / "backup")
    target = RegistrySettings(folder=tmp_path / "restored")
    assert code_of(lambda: restored(tmp_path / "backup", target)) == code
    assert not (target.folder / "registry.checkpoint").exists()


def test_a_backup_without_an_archive_fails_and_leaves_no_snapshot(world: World, tmp_path: Path) -> None:
    made = bundle()
    world.publish(made)
    path = world.registry.blobs.find_path(made.archive_cid)
    assert path is not None
    path.unlink()
    assert code_of(lambda: back_up(world.registry, BackupOptions(folder=tmp_path / "backup"))) == "ARTIFACT_MISSING"
    assert not (tmp_path / "backup" / "snapshots").exists()


def test_only_the_newest_snapshots_are_kept(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    for number in range(4):
        world.publish(bundle(version=f"1.{number}.0", content=b"%d" % number))
        facts = back_up(world.registry, BackupOptions(folder=folder, keep=2)).facts
    assert (facts["copied"], facts["removed"]) == (1, 1)
    assert [path.name[:12] for path in sorted((folder / "snapshots").iterdir())] == ["000000000003", "000000000004"]


class Load:
    """Two publishers and a follower of the log that work until they are stopped."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.identity = url, identity_of(url)
        self.published, self.read = list[str](), list[int]()
        self._token, self._stop = token, threading.Event()
        self._pool = ThreadPoolExecutor(3)
        self._work = [self._pool.submit(self._publish, "a"), self._pool.submit(self._publish, "b")]
        self._work.append(self._pool.submit(self._follow))

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more versions are published."""
        wanted = len(self.published) + count
        poll(lambda: len(self.published) >= wanted or any(work.done() for work in self._work))

    def stop(self) -> None:
        """Stop, and raise what went wrong."""
        self._stop.set()
        for work in self._work:
            work.result(60)
        self._pool.shutdown()

    def _publish(self, publisher: str) -> None:
        for number in count(1):
            if self._stop.is_set():
                return
            made = bundle(name=f"acme.load-{publisher}", version=f"1.{number}.0", content=b"%d" % number)
            nonce = f"{publisher}-{number}"
            publish_over_http(writer(self.url, self._token), made, self.identity, wall_clock(), nonce)
            self.published.append(made.archive_cid)

    def _follow(self) -> None:
        state = None
        while not self._stop.is_set():
            state = follow_log(reader(self.url), state, FollowOptions(key=self.identity.key)).state
            self.read.append(state.edge.size)


OTHER_MACHINE = """set -eu
mkdir /tmp/home
"$0" -m pinwarden registry restore /tmp/backup --data /tmp/data --seen /tmp/seen.json >&2
"$0" -m pinwarden registry serve --data /tmp/data --port 8470 --probe never > /tmp/served &
until [ "$(wc -l < /tmp/served)" -ge 3 ]; do sleep 0.05; done
"$0" -m pinwarden log verify http://127.0.0.1:8470/ --registry-key "$1" --format json
"""


def restored_on_another_machine(folder: Path, key: str) -> Any:
    """Restore and serve a backup where the first registry's files and network do not exist; verify the log there."""
    repository = Path(__file__).parents[2]
    shown = [str(path) for path in (repository, Path(sys.prefix)) for _ in range(2)]
    command = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all"]
    command += ["--die-with-parent", "--hostname", "elsewhere", "--setenv", "HOME", "/tmp/home"]
    command += ["--ro-bind", *shown[:2], "--ro-bind", *shown[2:], "--chdir", "/tmp"]
    for name in ("backup", "seen.json"):
        command += ["--ro-bind", str(folder / name), f"/tmp/{name}"]
    command += ["--", "sh", "-c", OTHER_MACHINE, sys.executable, key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs("bwrap", install="apt-get install bubblewrap")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_operator_actions_and_backup_under_load_and_restore_elsewhere(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Publishers and readers work while the operator takes down, transfers, recovers and backs up.

    A client that saw the log before verifies the registry that was restored into other storage.
    """
    database = None if kind == "sqlite" else request.getfixturevalue("cluster").new_database()
    storage = ("--data", str(tmp_path / "live"), *(("--database", database) if database else ()))

    def operate(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--format", "json"]) == code
        report = json.loads(capsys.readouterr().out)
        assert problems("error" if "error" in report else "-".join(arguments[:2]), report) == []
        return report

    replica = Replica(*storage)
    try:
        owner = ACME.public_key.did
        operate("registry", "namespace", "add", "acme", "--owner", owner, *storage)
        token = operate("registry", "token", "add", "acme", *storage)["token"]
        load = Load(replica.url, token)
        load.wait_for_more(4)
        options = FollowOptions(key=load.identity.key)
        before = follow_log(reader(replica.url), None, options)
        operate("registry", "namespace", "add", "globex", "--owner", HEIR, *storage)
        operate("registry", "takedown", "acme.load-a", "1.1.0", "--reason", "bad", *storage)
        operate("registry", "recover", "start", "globex", "--to", owner, "--reason", "lost", *storage)
        operate("registry", "transfer", "globex", "--to", owner, "--reason", "asked for it", *storage)
        facts = operate("registry", "backup", str(tmp_path / "backup"), "--include-key", *storage)
        load.wait_for_more(3)
        load.stop()
        assert load.read == sorted(load.read)
        assert before.state.edge.size + 3 <= facts["log_size"] < len(load.published) + 4
        save_log_state(tmp_path / "seen.json", before.state)
        restoring = ("registry", "restore", str(tmp_path / "backup"), "--data", str(tmp_path / "elsewhere"))
        # The first registry went on after the backup.
        refused = operate(*restoring, "--seen", replica.url, code=3)
        assert refused["error"]["code"] == "REGISTRY_LOG_BEHIND"
    finally:
        replica.kill()
    operate(*restoring, "--seen", str(tmp_path / "seen.json"))
    second = Replica("--data", str(tmp_path / "elsewhere"))
    try:
        grown = follow_log(reader(second.url), before.state, options)
        assert grown.state.edge.size == facts["log_size"]
        assert [action.action for action in grown.actions] == ["takedown", "recovery-start", "namespace-transfer"]
        publish_over_http(writer(second.url, token), bundle(name="acme.more"), load.identity, wall_clock(), "again")
        assert follow_log(reader(second.url), grown.state, options).new_count == 1
    finally:
        second.kill()
    verified = restored_on_another_machine(tmp_path, load.identity.key.did)
    assert problems("log-verify", verified) == []
    assert verified["size"] == facts["log_size"]
