"""The plan of an install over a registry that is honest, and over registries that are not."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import zstandard

from pinwarden.bundle import attestation
from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.bundle import log_documents as pointer_document
from pinwarden.bundle.acceptance import FAILED, NOT_REACHED, PASSED
from pinwarden.bundle.attestation import list_current_attestations
from pinwarden.bundle.bundle_documents import CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE, ManifestEntry
from pinwarden.bundle.document import add_signature, encode_document
from pinwarden.bundle.trust import InstallerPolicy, TrustStore, revoke_key
from pinwarden.bundle.trust_files import change_trust, log_state_path
from pinwarden.core.digest import blob_cid, document_cid, manifest_root_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Note, TlogProof, WitnessKey
from pinwarden.core.tlog import hash_leaf
from pinwarden.install.decision import InstallChecks, InstallRefusedError
from pinwarden.registry import registry_documents
from pinwarden.registry.access import authenticate
from pinwarden.registry.changes import add_attestation
from pinwarden.registry.log_writer import PointerChange, append_pointer_changes
from pinwarden.registry.registry_documents import YANK
from pinwarden.registry.store import pointer_log, publications
from tests.install.world import (
    CHECKPOINT,
    EVENT,
    POINTER,
    PROOF,
    VERA,
    VIEW,
    User,
    copy_of,
    showing,
    smuggle,
)
from tests.registry.test_log_following import entries_of, forge, resigned
from tests.registry.world import MALLORY, REGISTRY_KEY, Bundle, as_json, attested, bundle

FIRST, SECOND = bundle(), bundle(version="1.1.0", content=b"print(2)\n")


def test_a_valid_bundle_passes_every_step_and_each_is_listed(user: User) -> None:
    user.publish(FIRST)
    decision = user.decide(floor="1.0.0")
    assert decision.accepted is not None
    assert [(line.step, line.result) for line in decision.checks] == [
        *((step, "passed") for step in range(1, 9)),
        *((None, "passed") for _ in range(3)),
        (9, "passed"),
    ]
    assert decision.accepted.provenance.attestations_used == (VERA.public_key.did,)
    assert decision.accepted.log_position is not None
    assert (decision.accepted.log_position.index, decision.accepted.log_position.size) == (0, 1)
    assert decision.checks[0].detail == "acme"
    assert decision.checks[5].detail == "vera"


def test_a_second_install_reads_only_what_is_new_in_the_log(user: User) -> None:
    user.publish(FIRST)
    assert user.accepts()
    files = user.world.files
    assert user.accepts(files)
    assert not any("entries" in path for path in files.asked)


# Attacks on what is pointed to


def test_attack_a_pointer_of_an_untrusted_registry_causes_no_further_request(user: User) -> None:
    user.publish(FIRST)
    change_trust(user.trust, lambda store: replace(store, registries=()))
    files = user.world.files
    assert user.code(files) == "POINTER_SIGNATURE_INVALID"
    assert files.asked == [POINTER]
    assert user.seen == {}


def test_attack_a_tampered_blob_is_refused(user: User) -> None:
    user.publish(FIRST)
    path = f"blobs/{FIRST.archive_cid}"
    for data in (FIRST.archive.replace(b"pass", b"fail"), FIRST.archive + b"x", b""):
        assert user.code(showing(user.world, **{path: data})) == "ARTIFACT_MISMATCH"


def test_attack_an_archive_with_other_files_is_refused_although_the_version_page_names_it(user: User) -> None:
    """The registry itself may lie in the page of a version; the archive must hold the files of the manifest."""
    user.publish(FIRST)
    evil = bundle(content=b"evil\n")
    cid = user.world.registry.blobs.put(evil.archive)
    page = json.loads(user.world.files.get("versions/acme.notes/1.0.0.json"))
    page["archive"]["cid"] = cid
    shown = showing(user.world, **{"versions/acme.notes/1.0.0.json": page_signed(page)})
    assert user.code(shown) == "ARCHIVE_UNSAFE"
    page["archive"] = {**page["archive"], "cid": FIRST.archive_cid, "content_hash": hash_of(evil)}
    shown = showing(user.world, **{"versions/acme.notes/1.0.0.json": page_signed(page)})
    assert user.code(shown) == "ARTIFACT_MISMATCH"


def page_signed(page: dict[str, Any]) -> bytes:
    return encode_document(add_signature(page, registry_documents.VERSION_SIGNED_FIELDS, REGISTRY_KEY))


def test_attack_a_mirror_that_swaps_the_recorded_surface_is_refused(user: User) -> None:
    """The page of a version names the text that an install approves, so the registry signs it."""
    user.publish(FIRST)
    path = "versions/acme.notes/1.0.0.json"
    page = json.loads(user.world.files.get(path))
    page["surface"] = {"api_surface": hash_of(FIRST), "cid": FIRST.descriptor_cid, "problem": None}
    unsigned = {name: value for name, value in page.items() if name != "signatures"}
    partly = add_signature(
        unsigned, [field for field in registry_documents.VERSION_SIGNED_FIELDS if field != "/surface"], REGISTRY_KEY
    )
    for lie in (page, partly, add_signature(unsigned, registry_documents.VERSION_SIGNED_FIELDS, MALLORY)):
        assert user.code(showing(user.world, **{path: encode_document(lie)})) == "SIGNATURE_INVALID"
    assert user.code(showing(user.world, **{path: encode_document(unsigned)})) == "DOCUMENT_INVALID"


def make_attestation(issued: str, expires: str, key: PrivateKey = VERA) -> dict[str, Any]:
    made = attested(FIRST, VERA, "verifier")
    made["claims"][0].update(issued_at_utc=issued, expires_at_utc=expires)
    return add_signature({**made, "signatures": []}, attestation.ATTESTATION_SIGNED_FIELDS, key)


def test_only_its_issuer_can_renew_an_expired_claim(user: User) -> None:
    old = make_attestation("2026-01-01T00:00:00Z", "2026-11-17T00:00:00Z")
    user.publish(FIRST, attestations=[old])
    user.world.clock.pass_by(days=2)
    assert user.code() == "ATTESTATION_EXPIRED"
    renewed = make_attestation("2026-11-18T00:00:00Z", "2027-11-18T00:00:00Z")
    add_attestation(
        user.world.registry, authenticate(user.world.registry, user.world.token, "attest"), encode_document(renewed)
    )
    assert user.accepts()
    forged = make_attestation("2026-11-18T00:00:00Z", "2027-11-18T00:00:00Z", MALLORY)
    assert list_current_attestations(
        {"old": attestation.attestation_from_json(old), "forged": attestation.attestation_from_json(forged)}
    ) == ["old", "forged"]
    assert list_current_attestations(
        {"old": attestation.attestation_from_json(old), "new": attestation.attestation_from_json(renewed)}
    ) == ["new"]


def test_attack_a_swapped_manifest_is_refused(user: User) -> None:
    user.publish(FIRST)
    other = {**bundle(content=b"evil\n").manifest, "descriptor_cid": FIRST.descriptor_cid}
    path = f"manifests/{FIRST.root_cid}/{FIRST.descriptor_cid}.json"
    assert user.code(showing(user.world, **{path: encode_document(other)})) == "MANIFEST_CID_MISMATCH"


def test_attack_a_swapped_descriptor_is_refused(user: User) -> None:
    user.publish(FIRST)
    loose = {**FIRST.descriptor, "security": {"policy": {"network": "allow", "filesystem": "deny", "exec": "deny"}}}
    path = f"documents/{FIRST.descriptor_cid}.json"
    assert user.code(showing(user.world, **{path: encode_document(loose)})) == "DESCRIPTOR_CID_MISMATCH"


def test_attack_a_bundle_of_another_name_is_refused(user: User) -> None:
    smuggle(user.world, bundle(name="acme.other"), tool="acme.notes")
    assert user.code() == "TOOL_NAME_MISMATCH"
    *steps, check = user.decide().checks
    assert [(step.step, step.result) for step in steps] == [(number, PASSED) for number in range(1, 9)]
    assert (check.step, check.result) == (None, FAILED), "the rulebook has no code for this"


def test_an_error_without_a_code_of_the_rulebook_before_any_step_passed_fails_the_first_step(user: User) -> None:
    checks = InstallChecks(user.request())
    with pytest.raises(InstallRefusedError):
        checks.fail_step(PinwardenError("DOCUMENT_INVALID", "the pointer is not an object"), 1)
    assert [check.result for check in checks.results] == [FAILED, *[NOT_REACHED] * 7]


# Attacks on attestations


def test_attack_forged_attestations_do_not_count(user: User) -> None:
    user.publish(FIRST, attestations=[attested(FIRST, MALLORY, "verifier")])
    assert user.code() == "NO_VALID_ATTESTATIONS"
    made = attested(FIRST, VERA, "verifier")
    listed = f"attestations/{FIRST.root_cid}/{FIRST.descriptor_cid}.json"
    for forged in (
        {**made, "signatures": attested(FIRST, MALLORY, "verifier")["signatures"]},
        {**made, "claims": [{**made["claims"][0], "issuer": {"key_id": VERA.public_key.did, "role": "auditor"}}]},
        attested(SECOND, VERA, "verifier"),
        attested(FIRST, VERA, "auditor"),
    ):
        cid = str(document_cid(forged))
        shown = showing(
            user.world,
            **{listed: encode_document({"attestations": [cid]}), f"documents/{cid}.json": encode_document(forged)},
        )
        assert user.code(shown) == "NO_VALID_ATTESTATIONS"


def test_attack_a_list_of_attestations_with_paths_instead_of_cids_is_refused(user: User) -> None:
    user.publish(FIRST)
    listed = f"attestations/{FIRST.root_cid}/{FIRST.descriptor_cid}.json"
    files = showing(user.world, **{listed: encode_document({"attestations": ["../../registry.key"]})})
    assert user.code(files) == "CID_INVALID"
    assert not any("registry.key" in path for path in files.asked)


def test_an_expired_claim_stops_the_install(user: User) -> None:
    expired = attested(FIRST, VERA, "verifier")
    expired["claims"][0]["expires_at_utc"] = "2026-11-01T00:00:00Z"
    expired = add_signature({**expired, "signatures": []}, ("/subject", "/claims"), VERA)
    user.publish(FIRST, attestations=[expired])
    assert user.code() == "ATTESTATION_EXPIRED"


def test_attestations_and_pointers_by_revoked_keys_are_refused(user: User) -> None:
    user.publish(FIRST)
    vera, acme = load(user).keys[0].key, load(user).registries[0].key
    change_trust(user.trust, lambda store: revoke_key(store, vera, user.world.clock(), "stolen"))
    assert user.code() == "NO_VALID_ATTESTATIONS"
    change_trust(user.trust, lambda store: revoke_key(store, acme, user.world.clock(), "stolen"))
    assert user.code() == "POINTER_SIGNATURE_INVALID"


def load(user: User) -> TrustStore:
    return user.request().trusted


# Attacks on freshness


def test_attack_a_replayed_old_pointer_is_refused(user: User) -> None:
    """The old pointer with its own old proof, over the log as it is now."""
    user.publish(FIRST)
    old = copy_of(user.world, POINTER, EVENT, PROOF)
    user.publish(SECOND)
    assert user.code(showing(user.world, **old)) == "POINTER_STALE"
    assert user.accepts()


def test_attack_a_replayed_pointer_with_an_old_head_is_refused_after_a_newer_head_was_seen(user: User) -> None:
    user.publish(FIRST)
    old = copy_of(user.world, POINTER, EVENT, PROOF, CHECKPOINT, VIEW)
    user.publish(SECOND)
    assert user.accepts()
    kept = user.seen
    assert user.code(showing(user.world, **old)) == "LOG_ROLLBACK"
    assert user.seen == kept


def test_attack_a_frozen_log_is_refused_after_the_maximum_age(user: User) -> None:
    """The same old head again and again, which follows from everything that was seen."""
    user.publish(FIRST)
    old = copy_of(user.world, POINTER, EVENT, PROOF, CHECKPOINT, VIEW)
    assert user.accepts(showing(user.world, **old))
    user.publish(SECOND)
    user.world.clock.pass_by(days=13)
    assert user.accepts(showing(user.world, **old))
    user.world.clock.pass_by(days=2)
    assert user.code(showing(user.world, **old)) == "LOG_FROZEN"


def test_attack_a_fresh_signed_checkpoint_does_not_cover_an_old_head(user: User) -> None:
    user.publish(FIRST)
    old = copy_of(user.world, POINTER, EVENT, PROOF, CHECKPOINT)
    user.publish(SECOND)
    assert user.code(showing(user.world, **old)) == "LOG_FROZEN"


def test_attack_a_signed_checkpoint_from_the_future_or_by_another_key_is_refused(user: User) -> None:
    user.publish(FIRST)
    now = user.world.clock()
    user.world.clock.pass_by(days=100)
    ahead = copy_of(user.world, VIEW)
    assert user.code(showing(user.world, **ahead), now=now) == "LOG_FROZEN"
    view = json.loads(user.world.files.get(VIEW))
    forged = add_signature({**view, "signatures": []}, view["signatures"][0]["signed_fields"], MALLORY)
    assert user.code(showing(user.world, **{VIEW: encode_document(forged)})) == "SIGNATURE_INVALID"


def test_attack_a_forked_log_is_refused(user: User) -> None:
    """The registry signs two histories: this user saw the other one."""
    user.publish(FIRST)
    user.publish(SECOND)
    assert user.accepts()
    kept = user.seen
    first, second = entries_of(user.world)
    other = resigned(second, new_root_cid=bundle(content=b"evil").root_cid)
    assert user.code(forge(user.world, [first, other])) == "LOG_PROOF_INVALID"
    assert user.seen == kept


def test_attack_a_proof_from_another_history_is_refused(user: User) -> None:
    """The log is the public one; the proof is from a log that the registry made for this user only."""
    user.publish(FIRST)
    user.publish(SECOND)
    first, second = entries_of(user.world)
    other = resigned(second, reason="in secret")
    head = Note.parse(forge(user.world, [first, other]).get(CHECKPOINT))
    proof = bytes(TlogProof(index=1, path=(hash_leaf(first),), checkpoint=head))
    shown = {EVENT: other, PROOF: proof}
    assert user.code(showing(user.world, **shown)) == "LOG_PROOF_INVALID"
    user.publish(SECOND, channel="beta")
    assert user.code(showing(user.world, **shown)) == "LOG_PROOF_INVALID"
    assert user.accepts()


def test_attack_a_proof_for_a_longer_log_than_the_one_served_is_refused(user: User) -> None:
    user.publish(FIRST)
    old = copy_of(user.world, CHECKPOINT, VIEW)
    user.publish(SECOND, channel="beta")
    assert user.code(showing(user.world, **old)) == "LOG_ROLLBACK"


def pointer_to(made: Bundle, key: PrivateKey = REGISTRY_KEY) -> bytes:
    """A pointer that is signed with the registry's key but not logged."""
    point = pointer_document.Pointer(
        tool="acme.notes",
        channel="stable",
        root_cid=made.root_cid,
        descriptor_cid=made.descriptor_cid,
        cid_profile=made.descriptor["artifact"]["cid_profile"],
        updated_at_utc="2026-11-16T12:00:00Z",
    )
    value = pointer_document.build_unsigned_pointers("acme", key.public_key.did, "2026-11-16T12:00:00Z", [point])
    return encode_document(add_signature(value, pointer_document.POINTER_SIGNED_FIELDS, key))


def test_attack_a_signed_pointer_that_is_not_logged_is_refused(user: User) -> None:
    """A stolen registry key can sign anything, but what it signs in secret is not in the public log."""
    user.publish(FIRST)
    user.publish(SECOND, channel="beta")
    assert user.code(showing(user.world, **{POINTER: pointer_to(SECOND)})) == "POINTER_UNLOGGED"
    assert user.code(showing(user.world, **{PROOF: None})) == "POINTER_UNLOGGED"
    assert user.code(showing(user.world, **{EVENT: None})) == "POINTER_UNLOGGED"
    beta = copy_of(user.world, "pointers/acme.notes/beta.event", "pointers/acme.notes/beta.tlog-proof")
    event, proof = beta.values()
    shown = showing(user.world, **{POINTER: pointer_to(SECOND), EVENT: event, PROOF: proof})
    assert user.code(shown) == "POINTER_UNLOGGED"


def test_attack_a_yanked_version_is_refused_whatever_points_to_it(user: User) -> None:
    user.publish(FIRST)
    with user.world.registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        registry_documents = publications.find_version(transaction, "acme.notes", "1.0.0")
        append_pointer_changes(
            transaction,
            user.world.registry,
            [PointerChange(tool="acme.notes", channel="yanked-1.0.0", version=registry_documents, reason="bad")],
        )
    assert user.code() == "VERSION_YANKED"


def test_a_yanked_version_is_reported_with_time_and_reason(user: User) -> None:
    user.publish(FIRST)
    assert user.world.change(YANK, tool="acme.notes", version="1.0.0", reason="it leaks").changed
    decision = user.decide()
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.exit_code, decision.checks[0].result) == ("VERSION_YANKED", 1, "failed")
    why = decision.refusal.why
    assert (why["version"], why["reason"], why["index"]) == ("1.0.0", "it leaks", 1)
    assert decision.refusal.what == (
        f"acme.notes 1.0.0 was yanked by its publisher at {why['yanked_at_utc']}: it leaks (event 1 of its log)"
    )
    assert user.code(tool="acme.nothing") == "POINTER_NOT_FOUND"
    assert user.code(literal=True) == "POINTER_NOT_FOUND"


def test_attack_a_mirror_cannot_claim_that_a_version_was_yanked(user: User) -> None:
    """Only what the log proves is reported: a mirror that hides a pointer only hides a pointer."""
    user.publish(FIRST)
    decision = user.decide(showing(user.world, **{POINTER: None}))
    assert decision.refusal is not None
    assert (decision.refusal.code, "log" in decision.refusal.why) == ("POINTER_NOT_FOUND", False)
    user.world.change(YANK, tool="acme.notes", version="1.0.0", reason="it leaks")
    path = next(path for path in copy_of(user.world, "log/tile/entries/000.p/3"))
    entries = copy_of(user.world, path)[path]
    swapped = entries.replace(b"it leaks", b"it shine")
    assert swapped != entries
    decision = user.decide(showing(user.world, **{path: swapped}))
    assert decision.refusal is not None
    assert (decision.refusal.code, "shine" in decision.refusal.what) == ("POINTER_NOT_FOUND", False)
    assert decision.refusal.why["log"] in ("LOG_EVENT_INVALID", "LOG_PROOF_INVALID")


def test_a_damaged_log_state_is_an_error_and_is_not_overwritten(user: User) -> None:
    user.publish(FIRST)
    assert user.accepts()
    path = log_state_path(user.trust, load(user).registries[0].log)
    path.write_bytes(path.read_bytes().replace(b'"size": 1', b'"size": 0'))
    spoilt = path.read_bytes()
    assert user.code() == "LOG_STATE_CORRUPT"
    assert path.read_bytes() == spoilt


def test_a_log_without_the_required_witness_is_refused(user: User) -> None:
    user.publish(FIRST)
    witness = WitnessKey(name="witness.example", key=MALLORY.public_key)

    def demand(store: TrustStore) -> TrustStore:
        return replace(store, registries=(replace(store.registries[0], witnesses=(witness,), witnesses_needed=1),))

    change_trust(user.trust, demand)
    assert user.code() == "LOG_WITNESS_MISSING"


# Attacks with what is inside


def smuggled(
    entries: list[ManifestEntry], archive: bytes, media_type: str = CAR_MEDIA_TYPE, **described: Any
) -> Bundle:
    """Documents that fit each other, whatever is in them."""
    unlinked = manifest_document.build_unlinked_manifest(entries)
    descriptor = {
        **FIRST.descriptor,
        "artifact": {
            **FIRST.descriptor["artifact"],
            "root_cid": str(manifest_root_cid(unlinked)),
            "media_type": media_type,
            "size_bytes": len(archive),
        },
        **described,
    }
    linked = manifest_document.link_manifest(unlinked, str(document_cid(descriptor)))
    return Bundle(descriptor=descriptor, manifest=linked, archive=archive)


def entry(path: str, data: bytes = b"pass\n", size: int | None = None) -> ManifestEntry:
    return ManifestEntry(path=path, blob_cid=str(blob_cid(data)), size_bytes=len(data) if size is None else size)


@pytest.mark.parametrize("path", ["../evil", "/etc/cron.d/evil", "a/../../evil", "a\\..\\evil", "con", "a\0b"])
def test_attack_a_path_traversal_is_refused(user: User, path: str) -> None:
    smuggle(user.world, smuggled([entry("main.py"), entry(path)], FIRST.archive))
    assert user.code() == "MANIFEST_PATH_INVALID"


def tar_bomb() -> tuple[bytes, str]:
    return zstandard.ZstdCompressor(level=19).compress(bytes(200 * 1024 * 1024)), TAR_ZSTD_MEDIA_TYPE


def car_bomb() -> tuple[bytes, str]:
    return b"\xff" * 9 + b"\x7f" + FIRST.archive, CAR_MEDIA_TYPE


def zip_bomb() -> tuple[bytes, str]:
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as made:
        made.writestr("main.py", bytes(10_000_000))
    return buffer.getvalue(), TAR_ZSTD_MEDIA_TYPE


@pytest.mark.parametrize("bomb", [tar_bomb, car_bomb, zip_bomb])
def test_attack_decompression_bombs_are_refused(user: User, bomb: Callable[[], tuple[bytes, str]]) -> None:
    archive, media_type = bomb()
    smuggle(user.world, smuggled([entry("main.py")], archive, media_type))
    assert user.code() == "ARCHIVE_UNSAFE"


def test_attack_a_manifest_above_the_limits_is_refused(user: User) -> None:
    smuggle(user.world, smuggled([entry("main.py"), entry("x", size=10**12)], FIRST.archive))
    assert user.code() == "ARCHIVE_UNSAFE"


def test_attack_duplicate_keys_in_any_document_are_refused(user: User) -> None:
    user.publish(FIRST)
    twice = b'{"schema_version":"x",'
    pointer = user.world.files.get(POINTER)
    assert user.code(showing(user.world, **{POINTER: pointer.replace(b"{", twice, 1)})) == "JSON_CANONICALIZATION_ERROR"
    for path in (f"documents/{FIRST.descriptor_cid}.json", f"manifests/{FIRST.root_cid}/{FIRST.descriptor_cid}.json"):
        data = user.world.files.get(path).replace(b"{", twice, 1)
        decision = user.decide(showing(user.world, **{path: data}))
        assert decision.refusal is not None
        assert (decision.refusal.code, decision.checks[2].result) == ("JSON_CANONICALIZATION_ERROR", "failed")


# Requested versions and permissions, and the order of checks


def test_a_version_below_the_floor_is_refused(user: User) -> None:
    user.publish(FIRST)
    assert user.code(floor="1.0.1") == "VERSION_BELOW_FLOOR"


def test_attack_a_version_that_cannot_be_compared_is_refused_by_the_floor(user: User) -> None:
    """A descriptor may have such a version, and nothing that compares versions has a place for it."""
    user.publish(bundle(version="0.0.1-01"))
    assert user.code(floor="1.0.0") == "VERSION_BELOW_FLOOR"
    assert user.accepts()


def test_attack_a_signature_that_lists_one_field_a_thousand_times_uses_little_memory(user: User) -> None:
    """A man in the middle needs no key for this, only the id of a trusted one."""
    user.publish(FIRST)
    document = as_json(user.world.files.get(POINTER))
    document["pointers"][0]["filling"] = ["x" * 60_000] * 10
    (signature,) = document["signatures"]
    signature["signed_fields"] += ["/pointers"] * 1000
    tracemalloc.start()
    try:
        assert user.code(showing(user.world, **{POINTER: encode_document(document)})) == "POINTER_SIGNATURE_INVALID"
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_permissions_beyond_the_policy_are_refused(user: User) -> None:
    requested = {"policy": {"network": "allow", "filesystem": "read_write", "exec": "allow"}}
    smuggle(user.world, smuggled([entry("main.py")], FIRST.archive, security=requested), content_hash=hash_of(FIRST))
    policy = InstallerPolicy()
    assert user.code(policy=policy) == "POLICY_BLOCKED_NETWORK"
    policy = replace(policy, network="allow")
    assert user.code(policy=policy) == "POLICY_BLOCKED_FILESYSTEM"
    policy = replace(policy, filesystem="read_write")
    assert user.code(policy=policy) == "POLICY_BLOCKED_EXEC"
    policy = replace(policy, exec="allow")
    assert user.accepts(policy=policy)


def hash_of(made: Bundle) -> str:
    return f"sha256:{sha256(made.archive).hexdigest()}"


def test_an_unknown_tool_or_channel_fails_the_first_step(user: User) -> None:
    user.publish(FIRST)
    for decision in (user.decide(tool="acme.nothing"), user.decide(channel="beta")):
        assert decision.refusal is not None
        assert (decision.refusal.code, decision.checks[0].result) == ("POINTER_NOT_FOUND", "failed")
        assert {line.result for line in decision.checks[1:]} == {"not reached"}


def test_acceptance_is_reported_before_the_log_and_the_log_before_the_bytes(user: User) -> None:
    user.publish(FIRST, attestations=[])
    blob = {f"blobs/{FIRST.archive_cid}": b"other"}
    assert user.code(showing(user.world, **{PROOF: None}, **blob)) == "NO_VALID_ATTESTATIONS"
    user.world.publish(SECOND, attestations=[attested(SECOND, VERA, "verifier")])
    blob = {f"blobs/{SECOND.archive_cid}": b"other"}
    assert user.code(showing(user.world, **{PROOF: None}, **blob)) == "POINTER_UNLOGGED"
    assert user.code(showing(user.world, **blob)) == "ARTIFACT_MISMATCH"


def test_literal_mode_skips_the_log_but_still_unpacks_safely(user: User) -> None:
    user.publish(FIRST)
    assert user.accepts(showing(user.world, **{PROOF: None, CHECKPOINT: None}), literal=True)
    assert user.seen == {}
    other = {**bundle(content=b"evil\n").manifest, "descriptor_cid": FIRST.descriptor_cid}
    path = f"manifests/{FIRST.root_cid}/{FIRST.descriptor_cid}.json"
    decision = user.decide(showing(user.world, **{path: encode_document(other)}), literal=True)
    assert decision.refusal is not None
    assert decision.refusal.code == "MANIFEST_CID_MISMATCH"
    assert [line.result for line in decision.checks[:8]] == ["passed"] * 8


def test_a_channel_that_moves_during_the_checks_is_checked_once_more(user: User) -> None:
    user.publish(FIRST)
    old = copy_of(user.world, POINTER, EVENT, PROOF)
    user.publish(SECOND)
    files = user.world.files
    for path, data in old.items():
        files.instead[path] = first_then(files, path, data)
    decision = user.decide(files)
    assert decision.accepted is not None
    assert decision.accepted.documents.descriptor.version == "1.1.0"


def first_then(files: Any, path: str, data: bytes) -> Callable[[], bytes]:
    def answer() -> bytes:
        files.instead.pop(path)
        return data

    return answer
