"""A registry takes a new key: who follows its log takes the key over, and the old one is of no use to a thief."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pinwarden.bundle import log_documents as pointer_document
from pinwarden.bundle.document import add_signature, encode_document, read_json
from pinwarden.bundle.log_documents import KeyChange, key_changes_to_json, sign_key_change
from pinwarden.bundle.trust import TrustedKey, TrustStore, add_registry, encode_trust_store, remove_key, revoke_key
from pinwarden.bundle.trust_files import change_trust, load_trust
from pinwarden.cli.main import main
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Checkpoint, NoteKey
from pinwarden.core.tlog import Frontier, hash_leaf, pack_entries, unpack_entries
from pinwarden.registry import names
from pinwarden.registry.export import export_registry
from pinwarden.registry.log_client import FollowOptions, follow_log, load_log_state, monitor_log, verify_log
from pinwarden.registry.log_writer import rotate_key
from pinwarden.registry.registry import RegistrySettings, open_registry, prepare_next_key
from tests.docs.schemas import problems
from tests.install.world import CHECKPOINT, POINTER, VIEW, User, copy_of, new_user, root_of, showing
from tests.registry.world import MALLORY, REGISTRY_KEY, LiveFiles, World, bundle

NEW, NEWER = (PrivateKey.from_seed(letter * 32) for letter in (b"N", b"O"))
OLD_DID, NEW_DID = REGISTRY_KEY.public_key.did, NEW.public_key.did
FIRST, SECOND = bundle(), bundle(version="1.1.0", content=b"print(2)\n")
ALL = (CHECKPOINT, VIEW, POINTER, names.KEY_CHANGES)


def turn(world: World, key: PrivateKey = NEW) -> KeyChange:
    """The registry takes another key."""
    world.registry, change, _ = rotate_key(world.registry, key, "yearly")
    return change


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value.code


def entries_of(world: World) -> list[bytes]:
    size = Checkpoint.parse(world.files.get(CHECKPOINT).decode().partition("\n\n")[0] + "\n").size
    return unpack_entries(world.files.get(f"log/tile/entries/000.p/{size}"))


def lying(world: World, entries: list[bytes], key: PrivateKey, changes: list[KeyChange]) -> LiveFiles:
    """A log of these entries, with a head that the key signed, and the changes of key that are shown beside it."""
    edge = Frontier()
    for entry in entries:
        edge, _ = edge.append(hash_leaf(entry))
    origin = world.registry.identity.log_id
    note = Checkpoint(origin=origin, size=edge.size, root=edge.root).note().sign(origin, key)
    shown = encode_document(key_changes_to_json(origin, changes))
    packed = pack_entries(entries)
    return showing(
        world,
        **{CHECKPOINT: bytes(note), names.KEY_CHANGES: shown, f"log/tile/entries/000.p/{edge.size}": packed},
    )


def change_to(world: World, seq: int, old: PrivateKey, new: PrivateKey, **more: str) -> KeyChange:
    """A key change as the holder of both keys can make it."""
    stated = KeyChange(
        log_id=more.get("log_id", world.registry.identity.log_id),
        seq=seq,
        old=old.public_key,
        new=new.public_key,
        reason="yearly",
        issued_at_utc=world.clock(),
    )
    return sign_key_change(stated, old, new)


def signed_by(world: World, key: PrivateKey) -> bytes:
    """The pointer of the registry, signed by another key."""
    given = pointer_document.pointers_from_json(read_json(world.files.get(POINTER)))
    value = pointer_document.build_unsigned_pointers(given.registry, key.public_key.did, world.clock(), given.pointers)
    return encode_document(add_signature(value, pointer_document.POINTER_SIGNED_FIELDS, key))


def test_following_the_log_adopts_the_new_key(user: User) -> None:
    user.publish(FIRST)
    assert user.accepts()
    change = turn(user.world)
    assert user.accepts()
    (root,) = load_trust(user.trust).registries
    assert (root.key.key, root.log.key, root.key.name) == (NEW.public_key, NEW.public_key, "acme")
    assert [(key.key_id, key.seq) for key in root.replaced_keys] == [(OLD_DID, change.seq)]
    user.publish(SECOND)
    decision = user.decide()
    assert decision.accepted is not None
    assert decision.accepted.log_position is not None
    assert (decision.accepted.log_position.index, decision.accepted.log_position.size) == (2, 3)


def test_two_key_changes_are_followed_at_once_from_any_of_the_keys(user: User, tmp_path: Path) -> None:
    user.publish(FIRST)
    middle = [root_of(user.world, "acme")]
    turn(user.world)
    middle.append(root_of(user.world, "acme"))
    user.publish(SECOND)
    turn(user.world, NEWER)
    middle.append(root_of(user.world, "acme"))
    for index, root in enumerate(middle):
        other_user = new_user(user.world, tmp_path / str(index))
        pinned = TrustStore(registries=(root,), keys=load_trust(other_user.trust).keys)
        other_user.trust.write_bytes(encode_trust_store(pinned))
        assert other_user.accepts()
        (after,) = load_trust(other_user.trust).registries
        assert after.log.key == NEWER.public_key


def test_a_third_party_verifies_a_log_with_two_keys_and_a_monitor_reports_the_change(
    user: User, tmp_path: Path
) -> None:
    state = tmp_path / "log.json"
    user.publish(FIRST)
    monitor_log(user.world.files, state, FollowOptions(key=REGISTRY_KEY.public_key), [])
    turn(user.world)
    report = monitor_log(user.world.files, state, FollowOptions(key=REGISTRY_KEY.public_key), [])
    assert (report.exit_code, [row.code for row in report.rows]) == (1, ["registry_key_changed"])
    assert (report.rows[0].before, report.rows[0].after) == (OLD_DID, NEW_DID)
    assert monitor_log(user.world.files, state, FollowOptions(), []).exit_code == 0
    for key in (REGISTRY_KEY, NEW):
        facts = verify_log(user.world.files, FollowOptions(key=key.public_key)).facts
        assert (facts["key_id"], facts["ended_keys"]) == (NEW_DID, [{"key_id": OLD_DID, "seq": 1}])
    other_key = FollowOptions(key=MALLORY.public_key)
    assert code_of(lambda: verify_log(user.world.files, other_key)) == "SIGNATURE_INVALID"


def test_a_static_export_leads_to_the_new_key(user: User, tmp_path: Path) -> None:
    from pinwarden.registry.registry_client import FolderRegistry

    user.publish(FIRST)
    turn(user.world)
    export_registry(user.world.registry, tmp_path / "export")
    files = FolderRegistry(tmp_path / "export")
    assert follow_log(files, None, FollowOptions(key=REGISTRY_KEY.public_key)).state.key == NEW.public_key


# Attacks


def test_attack_a_pointer_by_a_stolen_old_key_is_refused_after_the_change_was_seen(user: User) -> None:
    user.publish(FIRST)
    turn(user.world)
    assert user.accepts()
    before = user.trust.read_bytes()
    files = showing(user.world, **{POINTER: signed_by(user.world, REGISTRY_KEY)})
    assert user.code(files) == "POINTER_SIGNATURE_INVALID"
    assert user.trust.read_bytes() == before


def test_attack_a_pointer_by_a_stolen_old_key_is_refused_before_the_change_was_seen(user: User) -> None:
    """The pointer is good by the trust store; the log, which is read next, says that its key has ended."""
    user.publish(FIRST)
    assert user.accepts()
    turn(user.world)
    files = showing(user.world, **{POINTER: signed_by(user.world, REGISTRY_KEY)})
    assert user.code(files) == "REGISTRY_KEY_ENDED"
    assert user.accepts()


def test_attack_a_stolen_old_key_cannot_extend_the_log(user: User) -> None:
    user.publish(FIRST)
    turn(user.world)
    assert user.accepts()
    entries, kept = entries_of(user.world), user.seen
    more = change_to(user.world, 2, REGISTRY_KEY, MALLORY)
    for files in (
        lying(user.world, entries, REGISTRY_KEY, []),
        lying(user.world, [*entries, more.leaf], MALLORY, [more]),
        lying(user.world, [entries[0], change_to(user.world, 1, REGISTRY_KEY, MALLORY).leaf], MALLORY, []),
    ):
        assert user.code(files) in ("REGISTRY_KEY_ENDED", "LOG_PROOF_INVALID", "SIGNATURE_INVALID")
        assert user.seen == kept


def test_attack_a_log_from_before_the_change_is_a_rollback(user: User) -> None:
    user.publish(FIRST)
    old = copy_of(user.world, *ALL)
    turn(user.world)
    assert user.accepts()
    kept = user.seen
    assert user.code(showing(user.world, **old)) == "POINTER_SIGNATURE_INVALID"
    log_only = {path: data for path, data in old.items() if path != POINTER}
    assert user.code(showing(user.world, **log_only)) == "LOG_ROLLBACK"
    assert user.seen == kept


@pytest.mark.parametrize("lie", ["nowhere", "elsewhere", "another log", "one signature", "garbage"])
def test_attack_a_key_change_that_is_not_in_the_log_is_refused(user: User, lie: str) -> None:
    """Not even by the holder of the old key: a key change counts only if it is in the public log."""
    user.publish(FIRST)
    user.publish(SECOND)
    assert user.accepts()
    trust, kept, entries = user.trust.read_bytes(), user.seen, entries_of(user.world)
    good = change_to(user.world, 2, REGISTRY_KEY, MALLORY)
    alone = replace(good, document={**good.document, "signatures": good.document["signatures"][1:]})
    files = {
        "nowhere": lying(user.world, entries, MALLORY, [good]),
        "elsewhere": lying(user.world, [*entries, entries[1]], MALLORY, [good]),
        "another log": lying(
            user.world, [*entries, good.leaf], MALLORY, [change_to(user.world, 2, REGISTRY_KEY, MALLORY, log_id="x")]
        ),
        "one signature": lying(user.world, [*entries, alone.leaf], MALLORY, [alone]),
        "garbage": lying(user.world, [*entries, good.leaf], MALLORY, []),
    }[lie]
    files.instead[POINTER] = lambda: signed_by(user.world, MALLORY)
    assert user.code(files) == "POINTER_SIGNATURE_INVALID"
    assert (user.trust.read_bytes(), user.seen) == (trust, kept)


def test_attack_a_key_change_in_an_already_verified_part_of_the_log_is_refused(user: User) -> None:
    user.publish(FIRST)
    user.publish(SECOND)
    state = follow_log(user.world.files, None, FollowOptions()).state
    late = change_to(user.world, 1, REGISTRY_KEY, MALLORY)
    files = lying(user.world, [entries_of(user.world)[0], late.leaf, late.leaf], MALLORY, [late])
    assert code_of(lambda: follow_log(files, state, FollowOptions())) == "LOG_PROOF_INVALID"


def test_attack_a_log_that_leads_to_a_revoked_key_is_refused(user: User) -> None:
    user.publish(FIRST)
    assert user.accepts()
    kept = user.seen
    turn(user.world)
    gone = TrustedKey(key=NEW.public_key)
    change_trust(user.trust, lambda store: revoke_key(store, gone, user.world.clock(), "stolen"))
    decision = user.decide()
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.refusal.why["log"]) == ("POINTER_SIGNATURE_INVALID", "KEY_REVOKED")
    assert user.seen == kept


def test_attack_a_replaced_key_cannot_be_trusted_again(user: User) -> None:
    user.publish(FIRST)
    root = root_of(user.world, "again")
    turn(user.world)
    assert user.accepts()
    store = load_trust(user.trust)
    assert code_of(lambda: add_registry(store, root)) == "REGISTRY_KEY_ENDED"
    # A user who removes the registry and then trusts its old key is led to the new one by the saved log state.
    forgotten = remove_key(store, NEW_DID)
    change_trust(user.trust, lambda _: add_registry(forgotten, root))
    assert load_log_state(next(user.trust.parent.glob("logs/*.json"))).key == NEW.public_key  # type: ignore[union-attr]
    old = showing(user.world, **{POINTER: signed_by(user.world, REGISTRY_KEY)})
    assert user.code(old) == "REGISTRY_KEY_ENDED"
    # Nor does it come back with the revocation of the key that came after it.
    revoked = revoke_key(store, store.registries[0].key, user.world.clock(), "stolen, too")
    assert [key.key_id for key in revoked.revoked] == [NEW_DID, OLD_DID]
    assert code_of(lambda: add_registry(revoked, root)) == "KEY_REVOKED"


def test_attack_a_replica_with_the_old_key_cannot_sign(user: User) -> None:
    user.publish(FIRST)
    old = user.world.registry
    turn(user.world)
    size = len(entries_of(user.world))
    user.world.registry, new = old, user.world.registry
    assert code_of(lambda: user.publish(SECOND)) == "REGISTRY_KEY_MISMATCH"
    for path in (VIEW, names.IDENTITY, "versions/acme.notes/1.0.0.json"):
        assert code_of(partial(user.world.files.get, path)) == "REGISTRY_KEY_MISMATCH"
    assert code_of(lambda: rotate_key(old, NEWER, "again")) == "REGISTRY_KEY_MISMATCH"
    user.world.registry = new
    assert len(entries_of(user.world)) == size
    assert code_of(lambda: rotate_key(new, REGISTRY_KEY, "back")) == "USAGE"


# The command


def test_an_operator_rotates_the_key_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "registry"
    first = open_registry(RegistrySettings(folder=folder))
    first.close()
    assert main(["registry", "rotate-key", "--data", str(folder), "--why", "yearly", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert problems("registry-rotate-key", report) == []
    assert (report["old_key_id"], report["seq"], report["pointers"]) == (first.identity.key.did, 0, 0)
    again = open_registry(RegistrySettings(folder=folder))
    again.close()
    assert (again.identity.key.did, again.identity.log_id) == (report["new_key_id"], first.identity.log_id)
    assert sorted(path.name for path in folder.glob("registry.key*")) == ["registry.key"]
    assert main(["registry", "rotate-key", "--data", str(folder), "--new-key", "x", "--format", "json"]) == 2


def test_an_interrupted_key_rotation_is_completed_when_the_registry_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    first = open_registry(RegistrySettings(folder=folder))
    new = prepare_next_key(folder)
    rotate_key(first, new, "cut short")
    first.close()
    again = open_registry(RegistrySettings(folder=folder))
    again.close()
    assert again.identity.key == new.public_key
    assert not (folder / "registry.key.next").exists()


def test_trust_list_shows_both_keys(
    user: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user.publish(FIRST)
    turn(user.world)
    assert user.accepts()
    monkeypatch.setenv("PINWARDEN_TRUST", str(user.trust))
    assert main(["trust", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("acme")] == [NEW_DID, OLD_DID]
    assert "replaced by entry 1" in next(line for line in lines if OLD_DID in line)
    shown = str(NoteKey(name=user.world.registry.identity.log_id, key=NEW.public_key))
    main(["trust", "list", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["registries"][0]["checkpoint_key"] == shown
