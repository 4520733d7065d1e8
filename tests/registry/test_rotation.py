"""A registry changes its key while others publish, on either database: one log, two keys, and no gap between them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from pinwarden.bundle.log_documents import KeyChange
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, is_document_signature_valid
from pinwarden.core.record import replace
from pinwarden.registry.log_client import FollowOptions, follow_log, verify_log
from pinwarden.registry.log_writer import rotate_key
from pinwarden.registry.registry import Registry
from tests.registry.world import REGISTRY_KEY, World, as_json, bundle

NEW, NEWER = (PrivateKey.from_seed(letter * 32) for letter in (b"N", b"O"))
BEFORE, ALL = 4, 14


def published(world: World, patch: int) -> int:
    """The index that a version got; a replica that still has the old key is started again with the new one."""
    made = bundle(name=f"acme.t{patch % 3}", version=f"1.0.{patch}", content=b"# %d\n" % patch)
    try:
        return world.publish(made, allow_older=True).seq
    except PinwardenError as err:
        assert err.code == "REGISTRY_KEY_MISMATCH"
    return replace_key(world, NEW).publish(made, allow_older=True).seq


def replace_key(world: World, key: PrivateKey) -> World:
    registry = world.registry
    identity = replace(registry.identity, key=key.public_key)
    return World(registry=replace(registry, identity=identity, signer=key), clock=world.clock, token=world.token)


def test_rotating_the_key_during_publishes_loses_nothing_and_signs_with_the_right_key(anywhere: World) -> None:
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(published, anywhere, patch) for patch in range(BEFORE)]
        wait(futures)
        futures += [pool.submit(published, anywhere, patch) for patch in range(BEFORE, ALL)]
        turning = pool.submit(rotate_key, anywhere.registry, NEW, "yearly")
        report = [future.result() for future in futures]
        _, change, count = turning.result()
    assert sorted([*report, change.seq]) == list(range(ALL + 1))
    assert count == min(3, change.seq)
    after = replace_key(anywhere, NEW)
    for known in (REGISTRY_KEY, NEW):
        followed = follow_log(after.files, None, FollowOptions(key=known.public_key))
        assert followed.state.keys == (REGISTRY_KEY.public_key, NEW.public_key)
        assert {event.seq: event.issuer_key_id for event in followed.events} == {
            seq: (REGISTRY_KEY if seq < change.seq else NEW).public_key.did for seq in report
        }
    assert verify_log(after.files, FollowOptions(key=REGISTRY_KEY.public_key)).exit_code == 0
    for tool in as_json(after.files.get("tools.json"))["tools"]:
        pointer = strict_json.parse_json(after.files.get(f"pointers/{tool}/stable.json"))
        assert is_document_signature_valid(pointer, pointer["signatures"][0], [NEW.public_key])
    with pytest.raises(PinwardenError) as caught:
        anywhere.publish(bundle(version="2.0.0"))
    assert caught.value.code == "REGISTRY_KEY_MISMATCH"


def test_attack_of_two_concurrent_key_rotations_one_succeeds(anywhere: World) -> None:
    """Two operators, or one and a thief of the key: the log has one line, so the second finds its key ended."""
    anywhere.publish(bundle())

    def turned(key: PrivateKey) -> tuple[Registry, KeyChange, int] | str:
        try:
            return rotate_key(anywhere.registry, key, "yearly")
        except PinwardenError as err:
            return err.code

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(turned, (NEW, NEWER)))
    (done,) = (result for result in answers if not isinstance(result, str))
    assert "REGISTRY_KEY_MISMATCH" in answers
    anywhere.registry = done[0]
    followed = follow_log(anywhere.files, None, FollowOptions(key=REGISTRY_KEY.public_key))
    assert (followed.state.edge.size, followed.state.key) == (2, done[1].new)
