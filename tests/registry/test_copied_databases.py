"""A database that was copied, restored or swapped must not become a second history of the same log."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.signed_note import Checkpoint, Note
from pinwarden.registry import access as operating
from pinwarden.registry.log_writer import rotate_key
from pinwarden.registry.registry import RegistrySettings, open_registry
from pinwarden.system.clock import wall_clock
from tests.registry.replica import Replica, identity_of, publish_over_http, writer
from tests.registry.world import ACME, MALLORY, REGISTRY_KEY, World, bundle, open_world


def _kept(folder: Path) -> Checkpoint:
    return Checkpoint.parse(Note.parse((folder / "registry.checkpoint").read_bytes()).text)


def _entries(database: Path) -> int:
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)  # without its journal
    try:
        return int(connection.execute("SELECT size FROM log_head").fetchone()[0])
    finally:
        connection.close()


def _refused(folder: Path, database: str | None = None) -> str:
    with pytest.raises(PinwardenError) as caught:
        open_registry(RegistrySettings(folder=folder, database=database), REGISTRY_KEY)
    return caught.value.code


def test_the_database_file_of_a_stopped_registry_is_complete(tmp_path: Path) -> None:
    replica = Replica("--data", str(tmp_path))
    try:
        operated = open_registry(RegistrySettings(folder=tmp_path))
        operating.add_namespace(operated, "acme", ACME.public_key.did)
        token = str(operating.add_token(operated, "acme", "", 30).facts["token"])
        operated.close()
        publish_over_http(writer(replica.url, token), bundle(), identity_of(replica.url), wall_clock(), "1")
    finally:
        code = replica.stop()
    assert code == 0
    assert not (tmp_path / "registry.sqlite-wal").exists()
    assert _entries(tmp_path / "registry.sqlite") == 1


def test_the_database_file_of_a_running_registry_has_every_publish(world: World, tmp_path: Path) -> None:
    world.publish(bundle())
    assert _entries(tmp_path / "registry" / "registry.sqlite") == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_registry_with_a_shorter_log_than_its_checkpoint_neither_publishes_nor_starts(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = None if kind == "sqlite" else request.getfixturevalue("cluster").new_database()
    world = open_world(tmp_path, url)
    world.publish(bundle())
    world.publish(bundle(version="1.1.0"))
    assert _kept(tmp_path).size == 2
    with world.registry.database.transaction() as transaction:  # as a restored backup would have it
        transaction.run("DELETE FROM log_entries WHERE seq = 1")
        transaction.run("UPDATE log_head SET size = 1, edge = (SELECT leaf FROM log_entries WHERE seq = 0)")
    with pytest.raises(PinwardenError) as caught:
        world.publish(bundle(version="1.2.0"))
    assert caught.value.code == "REGISTRY_LOG_BEHIND"
    world.registry.close()
    assert _refused(tmp_path, url) == "REGISTRY_LOG_BEHIND"
    assert _kept(tmp_path).size == 2


def test_a_registry_whose_log_contradicts_its_checkpoint_does_not_start(tmp_path: Path) -> None:
    first = open_world(tmp_path / "first")
    first.publish(bundle())
    first.registry.close()
    other = open_world(tmp_path / "other")
    other.publish(bundle(version="2.0.0"))
    other.publish(bundle(version="2.1.0"))
    other.registry.close()
    shutil.copy(tmp_path / "other" / "registry.sqlite", tmp_path / "first" / "registry.sqlite")
    assert _refused(tmp_path / "first") == "REGISTRY_LOG_BEHIND"


def test_an_empty_database_with_an_existing_key_does_not_start_a_second_log(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    open_registry(RegistrySettings(folder=folder)).close()
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(folder / "registry.key", moved / "registry.key")
    with pytest.raises(PinwardenError) as caught:
        open_registry(RegistrySettings(folder=moved))
    assert caught.value.code == "REGISTRY_LOG_BEHIND"
    with sqlite3.connect(moved / "registry.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM identity").fetchone() == (0,)


def test_a_deleted_database_is_not_replaced_by_an_empty_log(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    world.publish(bundle())
    world.registry.close()
    (tmp_path / "registry.sqlite").unlink()
    assert _refused(tmp_path) == "REGISTRY_LOG_BEHIND"


def test_a_complete_copy_of_a_folder_starts_and_publishes(tmp_path: Path) -> None:
    world = open_world(tmp_path / "registry")
    world.publish(bundle())
    world.registry.close()
    shutil.copytree(tmp_path / "registry", tmp_path / "copy")
    again = open_registry(RegistrySettings(folder=tmp_path / "copy"), REGISTRY_KEY)
    again.close()
    assert _kept(tmp_path / "copy").size == 1


def test_a_truncated_or_forged_checkpoint_file_is_an_error(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    world.publish(bundle())
    world.registry.close()
    path = tmp_path / "registry.checkpoint"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert _refused(tmp_path) == "LOG_STATE_CORRUPT"
    log_id = world.registry.identity.log_id
    path.write_bytes(bytes(Checkpoint(origin=log_id, size=0, root=bytes(32)).note().sign(log_id, MALLORY)))
    assert _refused(tmp_path) == "LOG_STATE_CORRUPT"
    path.write_bytes(whole)
    open_registry(RegistrySettings(folder=tmp_path), REGISTRY_KEY).close()


def test_a_checkpoint_by_the_previous_key_is_accepted(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    world.publish(bundle())
    old = (tmp_path / "registry.checkpoint").read_bytes()
    renewed, _, _ = rotate_key(world.registry, MALLORY, "yearly")
    renewed.close()
    (tmp_path / "registry.checkpoint").write_bytes(old)  # as if the process had ended in between
    open_registry(RegistrySettings(folder=tmp_path), MALLORY).close()
    assert _kept(tmp_path).size == 2
