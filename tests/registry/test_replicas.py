"""Several processes serve one registry on PostgreSQL: one log, whatever happens to them.

``make soak`` runs the same with many more versions and kills; see SOAK below.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.strict_json import parse_json
from pinwarden.registry import access as operating
from pinwarden.registry.log_client import FollowOptions, check_consistency, follow_log
from pinwarden.registry.log_verification import VerifiedHead, verify_head
from pinwarden.registry.names import manifest_path, version_path
from pinwarden.registry.registry import RegistrySettings, open_registry
from pinwarden.registry.registry_documents import version_from_json
from pinwarden.system.clock import now
from tests.registry.replica import Remembered, Replica, identity_of, publish_over_http, reader, replicas, writer
from tests.registry.world import ACME, Bundle, bundle
from tests.support.postgres import Cluster

SOAK = bool(os.environ.get("PINWARDEN_SOAK"))
VERSIONS = 500 if SOAK else 60
KILLS = 50 if SOAK else 5
MOST_KILLS = 100
PUBLISHERS = 6
AT_ONCE = 4
"""Publishes that run when a replica is killed."""


class Fleet:
    """Three replicas, a token, and every head that any of them was seen to sign."""

    def __init__(self, running: list[Replica], token: str) -> None:
        self.running = running
        self.token = token
        self.identity = identity_of(running[0].url)
        self.seen: dict[int, VerifiedHead] = {}
        self.cut_off = 0

    def look(self, url: str) -> None:
        """Keep the head that a replica shows now. Two heads of one size must be the same."""
        key = self.identity.note_key
        head = verify_head(reader(url).get("log/checkpoint"), self.identity.log_id, key)
        known = self.seen.setdefault(head.checkpoint.size, head)
        assert known.checkpoint == head.checkpoint

    def publish(self, patch: int, url: str) -> int:
        """Publish a version at a replica; returns the index of its event."""
        made = version(patch)
        answer = publish_over_http(writer(url, self.token), made, self.identity, now(), f"{patch}-{url}")
        self.look(url)
        return int(answer["log_index"])

    def publish_stubbornly(self, patch: int) -> int:
        """Publish a version at whatever replica takes it, asking again after each failure, as a publisher would."""
        for attempt in range(200):
            url = self.running[(patch + attempt) % len(self.running)].url
            try:
                return self.publish(patch, url)
            except PinwardenError as err:
                if err.code not in ("FETCH_FAILED", "DATABASE_UNAVAILABLE"):
                    raise
                self.cut_off += 1
        raise AssertionError(f"version {patch} could not be published")

    def check(self, indexes: dict[int, int]) -> None:
        """Every accepted version is in the log exactly once, at the reported index, on every replica."""
        for replica in self.running:
            files = Remembered(reader(replica.url))
            followed = follow_log(files, None, FollowOptions(key=PublicKey.from_did(replica.key_id)))
            logged = {event.seq: event.new_root_cid for event in followed.events}
            assert sorted(logged) == list(range(followed.state.edge.size))
            roots = [version(patch).root_cid for patch in indexes]
            assert sorted(filter(None, logged.values())) == sorted(roots)
            assert {patch: logged[index] for patch, index in indexes.items()} == {
                patch: version(patch).root_cid for patch in indexes
            }
            for head in self.seen.values():
                check_consistency(files, head, followed.head)
        self._check_parts(indexes)

    def _check_parts(self, indexes: dict[int, int]) -> None:
        """Nothing of a version is missing, and the version says the same index as the log."""
        files = reader(self.running[0].url)
        for patch, index in indexes.items():
            made = version(patch)
            tool, stated = made.descriptor["tool"]["name"], made.descriptor["tool"]["version"]
            published = version_from_json(parse_json(files.get(version_path(tool, stated))))
            assert (published.seq, published.root_cid) == (index, made.root_cid)
            assert files.get(manifest_path(made.root_cid, made.descriptor_cid))
            assert files.get_document(made.descriptor_cid)
            assert files.get_blob(made.archive_cid) == made.archive


def version(patch: int) -> Bundle:
    return bundle(name=f"acme.tool{patch % 7}", version=f"1.0.{patch}", content=b"# %d\n" % patch)


def open_fleet(cluster: Cluster, folder: Path) -> tuple[str, str]:
    """A database with a namespace; returns its address and a token."""
    url = cluster.new_database()
    registry = open_registry(RegistrySettings(folder=folder, database=url))
    operating.add_namespace(registry, "acme", ACME.public_key.did)
    token = str(operating.add_token(registry, "acme", "", 30).facts["token"])
    registry.database.close()
    return url, token


def test_concurrent_publishes_at_three_replicas_make_one_log(cluster: Cluster, tmp_path: Path) -> None:
    url, token = open_fleet(cluster, tmp_path)
    with replicas(3, tmp_path, "--database", url, "--max-requests", "1000000") as running:
        fleet = Fleet(running, token)
        with ThreadPoolExecutor(PUBLISHERS) as pool:
            report = pool.map(lambda patch: fleet.publish(patch, running[patch % 3].url), range(VERSIONS))
            indexes = dict(enumerate(report))
        assert sorted(indexes.values()) == list(range(VERSIONS))
        assert len(fleet.seen) > VERSIONS // 10
        fleet.check(indexes)


def test_a_replica_killed_during_a_publish_leaves_no_partial_state(cluster: Cluster, tmp_path: Path) -> None:
    """Every accepted publish is in the log, none is partial, and repeating a request gets the same response."""
    url, token = open_fleet(cluster, tmp_path)
    with replicas(3, tmp_path, "--database", url, "--max-requests", "1000000") as running:
        fleet = Fleet(running, token)
        random = Random(11)
        indexes: dict[int, int] = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, MOST_KILLS * AT_ONCE, AT_ONCE):
                if first >= KILLS * AT_ONCE and fleet.cut_off:
                    break  # on a fast machine all of them may have been done each time
                numbers = range(first, first + AT_ONCE)
                report = pool.map(fleet.publish_stubbornly, numbers)
                Event().wait(random.uniform(0.0, 0.02))  # any moment of a publish will do
                victim = random.choice(running)
                victim.kill()
                indexes |= dict(zip(numbers, report, strict=True))
                victim.start_again()
        assert fleet.cut_off > 0, "no publish was cut off"
        fleet.check(indexes)
