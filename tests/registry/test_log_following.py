"""Following a registry's log as a third party: only what is new is fetched, and no lie goes unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinwarden.bundle import log_documents
from pinwarden.bundle.document import add_signature
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Checkpoint, Note, WitnessKey
from pinwarden.core.tlog import TILE_WIDTH, Frontier, hash_leaf, pack_entries, unpack_entries
from pinwarden.registry.changes import add_cosignatures
from pinwarden.registry.export import export_registry
from pinwarden.registry.log_client import (
    FollowedLog,
    FollowOptions,
    check_consistency,
    follow_log,
    load_log_state,
    monitor_log,
    save_log_state,
    verify_log,
)
from pinwarden.registry.log_verification import LogState, VerifiedHead
from pinwarden.registry.log_writer import PointerChange, append_pointer_changes
from pinwarden.registry.registry_client import FolderRegistry
from pinwarden.registry.store import pointer_log, publications
from tests.registry.world import MALLORY, REGISTRY_KEY, LiveFiles, World, bundle, open_world
from tests.support.witnesses import cosign

WITNESS = PrivateKey.from_seed(b"w" * 32)
WITNESS_KEY = WitnessKey(name="witness.example", key=WITNESS.public_key)
ENTRIES = "log/tile/entries/000.p/3"


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value.code


def publish(world: World, *versions: str) -> None:
    for version in versions:
        world.publish(bundle(version=version))


def followed(world: World, state: LogState | None = None) -> FollowedLog:
    return follow_log(world.files, state, FollowOptions(key=REGISTRY_KEY.public_key))


def grow(world: World, count: int) -> None:
    """Append so many events at once: a few channels, set again and again."""
    with world.registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        version = publications.find_version(transaction, "acme.notes", "1.0.0")
        changes = [
            PointerChange(tool="acme.notes", channel=f"c{index % 5}", version=version, reason="grow")
            for index in range(count)
        ]
        append_pointer_changes(transaction, world.registry, changes)


def forge(world: World, entries: list[bytes], key: PrivateKey = REGISTRY_KEY) -> LiveFiles:
    """What a registry that lies would show: other entries, under a head that it signs just as well."""
    edge = Frontier()
    for entry in entries:
        edge, _ = edge.append(hash_leaf(entry))
    origin = world.registry.identity.log_id
    note = Checkpoint(origin=origin, size=edge.size, root=edge.root).note().sign(origin, key)
    files = world.files
    files.instead["log/checkpoint"] = lambda: bytes(note)
    files.instead[f"log/tile/entries/000.p/{edge.size}"] = lambda: pack_entries(entries)
    return files


def resigned(entry: bytes, key: PrivateKey = REGISTRY_KEY, **changes: object) -> bytes:
    """An event with something changed, signed again."""
    document = {**strict_json.parse_json(entry), **changes}
    document.pop("signatures")
    return log_documents.encode_leaf(add_signature(document, log_documents.HARDENED_LOG_EVENT_FIELDS, key))


def entries_of(world: World) -> list[bytes]:
    size = followed(world).state.edge.size
    return unpack_entries(world.files.get(f"log/tile/entries/000.p/{size}"))


def test_the_whole_log_is_verified_by_a_third_party(world: World) -> None:
    publish(world, "1.0.0", "1.0.1", "1.1.0")
    report = verify_log(world.files, FollowOptions(key=REGISTRY_KEY.public_key))
    assert (report.exit_code, report.facts["size"], report.facts["tools"]) == (0, 3, 1)
    assert verify_log(world.files, FollowOptions()).notes[0].startswith("signed by did:key:")


def test_an_empty_log_is_valid(world: World) -> None:
    assert followed(world).state.edge == Frontier()
    assert verify_log(world.files, FollowOptions()).facts["size"] == 0


def test_only_new_entries_are_downloaded(world: World) -> None:
    publish(world, "1.0.0")
    grow(world, 2 * TILE_WIDTH + 10)
    state = followed(world).state
    publish(world, "1.0.1")
    files = world.files
    again = follow_log(files, state, FollowOptions())
    assert [event.seq for event in again.events] == [2 * TILE_WIDTH + 11]
    assert files.asked == ["log/checkpoint", "log/tile/entries/002.p/12"]
    quiet = world.files
    assert follow_log(quiet, again.state, FollowOptions()).events == ()
    assert quiet.asked == ["log/checkpoint"]


def test_consistency_of_heads_is_verified_from_tiles_alone(world: World) -> None:
    publish(world, "1.0.0")
    heads: list[VerifiedHead] = [followed(world).head]
    for count in (1, 2, TILE_WIDTH - 4, 1, 5, TILE_WIDTH):
        grow(world, count)
        heads.append(followed(world).head)
    newest = heads[-1]
    for old in heads:
        files = world.files
        check_consistency(files, old, newest)
        assert not any("entries" in path for path in files.asked)
    other = replace(heads[2], checkpoint=replace(heads[2].checkpoint, root=heads[1].checkpoint.root))
    assert code_of(lambda: check_consistency(world.files, other, newest)) == "LOG_PROOF_INVALID"


def test_a_monitor_reports_each_new_event_of_watched_names_once(world: World, tmp_path: Path) -> None:
    state = tmp_path / "seen" / "log.json"
    world.add_namespace("globex", MALLORY)
    publish(world, "1.0.0")
    first = monitor_log(world.files, state, FollowOptions(), ["acme"])
    assert (first.exit_code, first.facts["new"], len(first.rows)) == (0, 1, 1)
    assert monitor_log(world.files, state, FollowOptions(), ["acme"]).facts["new"] == 0
    publish(world, "1.0.1")
    assert monitor_log(world.files, state, FollowOptions(), ["acmen"]).exit_code == 0
    publish(world, "1.0.2")
    output = monitor_log(world.files, state, FollowOptions(), ["acme.notes"])
    assert (output.exit_code, [event["seq"] for event in output.facts["events"]]) == (1, [2])
    assert output.facts["events"][0]["new_root_cid"] == bundle(version="1.0.2").root_cid


def test_attack_an_older_head_is_refused_and_the_saved_state_stays(world: World, tmp_path: Path) -> None:
    """A replayed old pointer needs an old head to be proved under; that head is behind the one that was seen."""
    state = tmp_path / "log.json"
    publish(world, "1.0.0")
    old = world.files.get("log/checkpoint")
    publish(world, "1.0.1")
    monitor_log(world.files, state, FollowOptions(), [])
    kept = state.read_bytes()
    files = world.files
    files.instead["log/checkpoint"] = lambda: old
    assert code_of(lambda: monitor_log(files, state, FollowOptions(), [])) == "LOG_ROLLBACK"
    assert state.read_bytes() == kept


def test_attack_a_forked_log_is_not_followed(world: World) -> None:
    """The registry signs two histories: one for most, one for the victim. Of the same length, or longer."""
    publish(world, "1.0.0", "1.0.1")
    state = followed(world).state
    entries = entries_of(world)
    other = resigned(entries[1], new_root_cid=bundle(version="6.6.6", content=b"evil").root_cid)
    assert code_of(lambda: follow_log(forge(world, [entries[0], other]), state, FollowOptions())) == "LOG_PROOF_INVALID"
    third = resigned(entries[1], seq=2, prev_root_cid=strict_json.parse_json(entries[1])["new_root_cid"])
    longer = forge(world, [entries[0], other, third])
    assert code_of(lambda: follow_log(longer, state, FollowOptions())) == "LOG_PROOF_INVALID"
    honest = forge(world, [*entries, third])
    assert follow_log(honest, state, FollowOptions()).state.edge.size == 3


def test_attack_entries_beyond_the_head_are_refused(world: World) -> None:
    publish(world, "1.0.0", "1.0.1", "1.0.2")
    entries = unpack_entries(world.files.get(ENTRIES))
    for shown in (entries[:2], [*entries[:2], entries[1]], []):
        files = world.files
        files.instead[ENTRIES] = lambda shown=shown: pack_entries(shown)  # type: ignore[misc]
        assert code_of(lambda files=files: follow_log(files, None, FollowOptions())) in (  # type: ignore[misc]
            "LOG_PROOF_INVALID",
            "LOG_EVENT_INVALID",
        )
    hidden = world.files
    hidden.instead[ENTRIES] = lambda: None
    assert code_of(lambda: follow_log(hidden, None, FollowOptions())) == "LOG_PROOF_INVALID"


@pytest.mark.parametrize("lie", ["key", "place", "log", "chain", "spelling", "unsigned", "garbage"])
def test_attack_an_event_that_the_registry_did_not_sign_is_refused(world: World, lie: str) -> None:
    publish(world, "1.0.0", "1.0.1")
    first, second = entries_of(world)
    document = strict_json.parse_json(second)
    false = {
        "key": resigned(second, MALLORY),
        "place": resigned(second, seq=7),
        "log": resigned(second, log_id="another.example/log"),
        "chain": resigned(second, prev_root_cid=None),
        "spelling": second.replace(b'{"channel"', b'{ "channel"', 1),
        "unsigned": log_documents.encode_leaf(
            {**document, "signatures": [{**document["signatures"][0], "signed_fields": []}]}
        ),
        "garbage": b"{}",
    }[lie]
    files = forge(world, [first, false])
    assert code_of(lambda: follow_log(files, None, FollowOptions())) == "LOG_EVENT_INVALID"


def test_attack_a_head_signed_by_another_key_is_refused(world: World) -> None:
    publish(world, "1.0.0")
    files = forge(world, entries_of(world), MALLORY)
    assert code_of(lambda: follow_log(files, None, FollowOptions())) == "SIGNATURE_INVALID"
    wanted = FollowOptions(key=MALLORY.public_key)
    assert code_of(lambda: follow_log(world.files, followed(world).state, wanted)) == "REGISTRY_KEY_MISMATCH"


def test_attack_tiles_or_a_signed_checkpoint_of_another_tree_are_refused(world: World) -> None:
    publish(world, "1.0.0", "1.0.1")
    files = world.files
    files.instead["log/tile/0/000.p/2"] = lambda: b"x" * 64
    assert code_of(lambda: verify_log(files, FollowOptions())) == "LOG_PROOF_INVALID"
    other = open_world(Path(str(world.registry.database)).parent / "other", log_id=world.registry.identity.log_id)
    publish(other, "1.0.0", "1.0.5")
    view = other.files.get("log/checkpoint.json")
    lying = world.files
    lying.instead["log/checkpoint.json"] = lambda: view
    assert code_of(lambda: verify_log(lying, FollowOptions())) == "LOG_PROOF_INVALID"
    forged = world.files
    forged.instead["log/checkpoint.json"] = lambda: view.replace(b'"size":2', b'"size":3')
    assert code_of(lambda: verify_log(forged, FollowOptions())) == "SIGNATURE_INVALID"


def test_a_damaged_log_state_is_an_error_and_following_does_not_start_over(world: World, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    publish(world, "1.0.0")
    save_log_state(path, followed(world).state)
    assert load_log_state(path) == followed(world).state
    whole = path.read_bytes()
    for spoilt in (b"{}", whole.replace(b'"size": 1', b'"size": 0'), whole.replace(b'"seq": 0', b'"seq": 1')):
        path.write_bytes(spoilt)
        assert code_of(lambda: monitor_log(world.files, path, FollowOptions(), [])) == "LOG_STATE_CORRUPT"
        assert path.read_bytes() == spoilt


def test_cosignatures_of_witnesses_are_reported_and_missing_ones_refused(tmp_path: Path) -> None:
    world = open_world(tmp_path / "registry", witnesses=(str(WITNESS_KEY),))
    publish(world, "1.0.0")
    wanted = FollowOptions(witnesses=(WITNESS_KEY,), quorum=1)
    assert code_of(lambda: verify_log(world.files, wanted)) == "LOG_WITNESS_MISSING"
    note = Note.parse(world.files.get("log/checkpoint"))
    line = cosign(note, WITNESS_KEY.name, WITNESS, 1800000000)
    brought = bytes(Note(text=note.text, signatures=(*note.signatures, line)))
    assert add_cosignatures(world.registry, brought) == 1
    assert verify_log(world.files, wanted).facts["witnesses"] == [{"name": "witness.example", "time": 1800000000}]
    unknown_witness = cosign(note, "stranger.example", MALLORY, 1800000000)
    unknown = bytes(Note(text=note.text, signatures=(*note.signatures, unknown_witness)))
    assert code_of(lambda: add_cosignatures(world.registry, unknown)) == "SIGNATURE_INVALID"
    publish(world, "1.0.1")
    assert code_of(lambda: add_cosignatures(world.registry, brought)) == "REQUEST_STALE"
    assert code_of(lambda: verify_log(world.files, wanted)) == "LOG_WITNESS_MISSING"


def test_a_static_export_is_the_same_registry(world: World, tmp_path: Path) -> None:
    publish(world, "1.0.0")
    grow(world, TILE_WIDTH + 3)
    publish(world, "1.0.1")
    folder = tmp_path / "export"
    assert export_registry(world.registry, folder, "https://registry.example/").exit_code == 0
    files = FolderRegistry(folder)
    live = verify_log(world.files, FollowOptions()).facts
    assert {**verify_log(files, FollowOptions()).facts, "issued_at_utc": live["issued_at_utc"]} == live
    for path in ("pointers/acme.notes/stable.json", "versions/acme.notes/1.0.1.json", "tools.json", "registry.json"):
        assert files.get(path) == world.files.get(path)
    assert files.get_blob(bundle().archive_cid) == bundle().archive
    assert files.get("v0.1/servers/acme/notes/versions/latest")
    assert files.find("../registry/registry.sqlite") is None
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("blobs/*")}
    publish(world, "1.0.2")
    export_registry(world.registry, folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    state = followed(world).state
    assert follow_log(files, None, FollowOptions()).state.edge == state.edge
