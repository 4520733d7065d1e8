"""Readiness tells a full disk, a stopped database, lost archives and an ended key apart; and metrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest

from pinwarden.core.record import replace
from pinwarden.registry.log_writer import rotate_key
from pinwarden.registry.oci_archive_store import OciArchiveStore
from pinwarden.registry.readiness import MIN_FREE_BYTES, Readiness
from tests.registry.replica import Replica
from tests.registry.test_serving import ask
from tests.registry.world import MALLORY, World, bundle, open_world
from tests.support.ports import reserved_port
from tests.support.postgres import Cluster, postgres
from tests.support.waiting import poll

pytestmark = pytest.mark.usefixtures("unshortened")


@pytest.fixture
def unshortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question runs the checks."""
    monkeypatch.setattr("pinwarden.registry.readiness._CACHE_SECONDS", -1.0)


def codes(readiness: Readiness) -> list[str]:
    return [problem["code"] for problem in readiness.find_problems()]


def test_a_registry_that_can_work_is_ready(anywhere: World) -> None:
    anywhere.publish(bundle())
    assert codes(Readiness(anywhere.registry)) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, a little larger than what a registry needs."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    size = MIN_FREE_BYTES + 8 * 1024 * 1024
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode != 0:
        pytest.skip("mounting is not permitted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    world = open_world(small_disk / "registry")
    readiness = Readiness(world.registry)
    assert codes(readiness) == []
    filler = small_disk / "filler"
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(b"\0" * (free - 8192))
    assert codes(readiness) == ["disk_full"]
    filler.unlink()
    assert codes(readiness) == []
    world.registry.close()


def test_a_stopped_database(tmp_path: Path) -> None:
    with postgres() as cluster:
        world = open_world(tmp_path / "registry", cluster.new_database())
        world.publish(bundle())
        readiness = Readiness(world.registry)
        assert codes(readiness) == []
        cluster.stop()
        try:
            assert codes(readiness) == ["database_unavailable"]
        finally:
            cluster.start()
        assert codes(readiness) == []
        world.registry.close()


def test_a_frozen_database_does_not_delay_the_answer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinwarden.registry.readiness._CHECK_SECONDS", 0.3)
    world = open_world(tmp_path / "registry", cluster.new_database())
    with cluster.frozen():
        assert codes(Readiness(world.registry)) == ["database_unavailable", "archives_unavailable"]
    world.registry.close()


def test_lost_archives(world: World) -> None:
    kept, lost = bundle(), bundle(version="1.1.0", content=b"2")
    world.publish(kept)
    world.publish(lost)
    readiness = Readiness(world.registry)
    assert codes(readiness) == []
    path = world.registry.blobs.find_path(lost.archive_cid)
    assert path is not None
    path.unlink()
    problems = readiness.find_problems()
    assert [problem["code"] for problem in problems] == ["archives_missing"]
    assert lost.archive_cid in problems[0]["message"]
    world.registry.blobs.put(lost.archive)
    assert codes(readiness) == []


def test_an_unreachable_archive_store(world: World) -> None:
    world.publish(bundle())
    store = OciArchiveStore.open_at(f"oci://127.0.0.1:{reserved_port()}/acme/archives")
    registry = replace(world.registry, blobs=store)
    assert codes(Readiness(registry)) == ["archives_unavailable"]
    store.close()


def test_an_ended_key_and_a_log_that_is_behind(world: World, tmp_path: Path) -> None:
    world.publish(bundle())
    readiness = Readiness(world.registry)
    rotate_key(world.registry, MALLORY, "yearly")
    assert codes(readiness) == ["key_ended"]
    other = open_world(tmp_path / "other")
    other.publish(bundle())
    readiness = Readiness(other.registry)
    with other.registry.database.transaction() as transaction:
        transaction.run("UPDATE log_head SET size = 0, edge = ?", (b"",))
    assert codes(readiness) == ["log_behind"]
    other.registry.close()


def test_readiness_and_metrics_over_http(tmp_path: Path) -> None:
    replica = Replica("--data", str(tmp_path / "registry"))

    def get(path: str) -> tuple[int, Any]:
        status, headers, body = ask(Request(replica.url + path))
        return status, json.loads(body) if "json" in headers["content-type"] else body.decode()

    try:
        assert get("readyz") == (200, {"status": "ready", "problems": []})
        status, text = get("metrics")
        assert status == 200
        assert "pinwarden_registry_ready 1\n" in text
        assert "pinwarden_registry_log_size 0\n" in text
        assert 'pinwarden_registry_requests_total{kind="other",method="GET",status="200"} 1\n' in text
        (tmp_path / "registry" / "registry.sqlite").rename(tmp_path / "moved.sqlite")
        poll(lambda: get("readyz")[0] == 503)  # the result of the last check counts for a second
        assert [problem["code"] for problem in get("readyz")[1]["problems"]] == ["database_unavailable"]
        assert "pinwarden_registry_ready 0\n" in get("metrics")[1]
    finally:
        replica.kill()
