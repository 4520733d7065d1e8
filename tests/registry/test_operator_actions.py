"""Takedowns, transfers, recoveries and requirements: what each changes, and that the log shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.main import main
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.registry import access as operating
from pinwarden.registry import ownership
from pinwarden.registry.checkpoint_file import open_append_transaction
from pinwarden.registry.export import export_registry
from pinwarden.registry.log_client import FollowOptions, follow_log, verify_log
from pinwarden.registry.log_writer import append_action
from pinwarden.registry.operator_documents import OperatorAction, sign_action
from pinwarden.registry.read_api import find_file
from pinwarden.registry.registry_documents import KEYS, OBJECT, POINT
from pinwarden.registry.takedowns import reinstate, take_down
from tests.docs.schemas import problems
from tests.registry.world import ACME, MALLORY, REGISTRY_KEY, World, as_json, bundle

HEIR = PrivateKey.from_seed(b"h" * 32)


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value.code


def served(world: World, path: str) -> bool:
    return find_file(world.registry, path) is not None


def actions_of(world: World, *names: str) -> list[tuple[str, str]]:
    followed = follow_log(world.files, None, FollowOptions(watch=names or None))
    return [(action.action, action.subject) for action in followed.actions]


def test_a_takedown_removes_pointers_and_the_archive_and_stops_publishing(anywhere: World) -> None:
    first, second = bundle(), bundle(version="1.1.0", content=b"next\n")
    anywhere.publish(first)
    anywhere.publish(second)
    anywhere.publish(first, channel="old")
    report = take_down(anywhere.registry, "acme.notes", "1.1.0", "it sends notes away")
    assert report.facts["pointers"] == 1
    assert not served(anywhere, "pointers/acme.notes/stable.json")
    assert not served(anywhere, f"blobs/{second.archive_cid}")
    assert served(anywhere, "pointers/acme.notes/old.json")
    assert served(anywhere, f"blobs/{first.archive_cid}")
    version = as_json(anywhere.files.get("versions/acme.notes/1.1.0.json"))
    assert version["taken_down"] == "it sends notes away"
    move: dict[str, Any] = {"tool": "acme.notes", "version": "1.1.0", "channel": "beta"}
    assert code_of(lambda: anywhere.change(POINT, **move)) == "VERSION_TAKEN_DOWN"
    assert code_of(lambda: anywhere.publish(second)) == "VERSION_TAKEN_DOWN"
    assert take_down(anywhere.registry, "acme.notes", "1.1.0", "again").facts["changed"] is False

    reinstate(anywhere.registry, "acme.notes", "1.1.0", "a false alarm")
    assert served(anywhere, f"blobs/{second.archive_cid}")
    assert anywhere.change(POINT, **move).changed
    assert actions_of(anywhere) == [("takedown", "acme.notes 1.1.0"), ("reinstate", "acme.notes 1.1.0")]
    assert verify_log(anywhere.files, FollowOptions()).exit_code == 0


def test_a_bundle_that_was_taken_down_gets_no_new_version(world: World) -> None:
    world.publish(bundle())
    take_down(world.registry, "acme.notes", None, "impersonates globex")
    assert not served(world, "pointers/acme.notes/stable.json")
    assert code_of(lambda: world.publish(bundle(version="2.0.0", content=b"2"))) == "VERSION_TAKEN_DOWN"
    assert world.publish(bundle(name="acme.other")).version == "1.0.0"
    listed = as_json(world.files.get("tools/acme.notes.json"))
    assert [row["taken_down"] for row in listed["versions"]] == ["impersonates globex"]


def test_an_export_has_no_archive_that_was_taken_down(world: World, tmp_path: Path) -> None:
    made = bundle()
    world.publish(made)
    export_registry(world.registry, tmp_path / "site")
    assert (tmp_path / "site" / "blobs" / made.archive_cid).is_file()
    take_down(world.registry, "acme.notes", "1.0.0", "malware")
    export_registry(world.registry, tmp_path / "site")
    assert not (tmp_path / "site" / "blobs" / made.archive_cid).exists()


def test_a_transfer_ends_the_old_keys_and_tokens(anywhere: World) -> None:
    anywhere.publish(bundle())
    ownership.transfer_namespace(anywhere.registry, "acme", HEIR.public_key.did, "sold")
    assert code_of(lambda: anywhere.publish(bundle(version="1.1.0"))) == "PUBLISHER_UNKNOWN"
    token = str(operating.add_token(anywhere.registry, "acme", "", 30).facts["token"])
    assert code_of(lambda: anywhere.publish(bundle(version="1.1.0"), token=token)) == "NAMESPACE_REFUSED"
    assert anywhere.publish(bundle(version="1.1.0"), token=token, key=HEIR).published_by == HEIR.public_key.did
    assert actions_of(anywhere, "acme") == [("namespace-transfer", "acme")]


def test_a_recovery_waits_and_every_member_can_end_it(anywhere: World) -> None:
    registry, key = anywhere.registry, HEIR.public_key.did
    anywhere.change(KEYS, namespace="acme", add=[{"key_id": MALLORY.public_key.did, "role": "publisher"}], remove=[])
    ownership.start_recovery(registry, "acme", key, "key lost", 7)
    assert code_of(lambda: ownership.start_recovery(registry, "acme", key, "key lost", 7)) == "RECOVERY_WAITING"
    assert anywhere.publish(bundle()).version == "1.0.0"  # the old keys work while it waits
    anywhere.clock.pass_by(days=6)
    assert code_of(lambda: ownership.complete_recovery(registry, "acme", "done")) == "RECOVERY_WAITING"
    assert anywhere.change(OBJECT, key=MALLORY, namespace="acme", reason="we have the key").changed
    anywhere.clock.pass_by(days=2)
    assert code_of(lambda: ownership.complete_recovery(registry, "acme", "done")) == "RECOVERY_UNKNOWN"

    ownership.start_recovery(registry, "acme", key, "really lost", 7)
    anywhere.clock.pass_by(days=8)
    ownership.complete_recovery(registry, "acme", "nobody objected")
    assert code_of(lambda: anywhere.publish(bundle(version="1.1.0"))) == "PUBLISHER_UNKNOWN"
    assert [action for action, _ in actions_of(anywhere, "acme")] == [
        *("recovery-start", "recovery-objection", "recovery-start", "recovery-complete")
    ]


def test_attack_a_stranger_cannot_object_to_a_recovery(world: World) -> None:
    ownership.start_recovery(world.registry, "acme", HEIR.public_key.did, "key lost", 7)
    assert code_of(lambda: world.change(OBJECT, key=MALLORY, namespace="acme", reason="x")) == "NAMESPACE_REFUSED"
    other = world.add_namespace("globex", MALLORY)
    assert (
        code_of(lambda: world.change(OBJECT, key=MALLORY, token=other, namespace="acme", reason="x"))
        == "NAMESPACE_REFUSED"
    )


@pytest.mark.parametrize("action", ["early", "without announcement", "other key"])
def test_attack_followers_refuse_a_recovery_that_skips_its_waiting_period(world: World, action: str) -> None:
    """A dishonest operator writes the entry itself instead of waiting."""
    world.publish(bundle())
    if action != "without announcement":
        ownership.start_recovery(world.registry, "acme", HEIR.public_key.did, "key lost", 7)
    world.clock.pass_by(days=8 if action == "other key" else 1)
    key = ACME if action == "other key" else HEIR
    entry = OperatorAction(
        log_id=world.registry.identity.log_id,
        seq=0,
        action="recovery-complete",
        name="acme",
        details={"new_key_id": key.public_key.did},
        reason="hurry",
        issued_at_utc=world.clock(),
    )
    with open_append_transaction(world.registry) as transaction:
        append_action(transaction, world.registry, entry)
    assert code_of(lambda: follow_log(world.files, None, FollowOptions())) == "LOG_EVENT_INVALID"


@pytest.mark.parametrize("due", ["2020-01-01T00:00:00Z", None, "soon"])
def test_attack_followers_refuse_a_recovery_without_a_waiting_period(world: World, due: str | None) -> None:
    """A dishonest operator announces a recovery that is due at once."""
    world.publish(bundle())
    entry = OperatorAction(
        log_id=world.registry.identity.log_id,
        seq=0,
        action="recovery-start",
        name="acme",
        details={"new_key_id": HEIR.public_key.did, "due_at_utc": due if due is not None else world.clock()},
        reason="hurry",
        issued_at_utc=world.clock(),
    )
    with open_append_transaction(world.registry) as transaction:
        append_action(transaction, world.registry, entry)
    assert code_of(lambda: follow_log(world.files, None, FollowOptions())) == "LOG_EVENT_INVALID"


def test_attack_an_action_signed_by_another_key_is_refused(world: World) -> None:
    world.publish(bundle())
    entry = OperatorAction(
        log_id=world.registry.identity.log_id,
        seq=0,
        action="takedown",
        name="acme.notes",
        reason="x",
        issued_at_utc=world.clock(),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pinwarden.registry.log_writer.sign_action", lambda action, _: sign_action(action, MALLORY))
        with open_append_transaction(world.registry) as transaction:
            append_action(transaction, world.registry, entry)
    assert code_of(lambda: follow_log(world.files, None, FollowOptions())) == "LOG_EVENT_INVALID"


def test_point_does_not_move_a_channel_back_without_allow_older(world: World) -> None:
    world.publish(bundle())
    world.publish(bundle(version="1.1.0", content=b"2"))
    move: dict[str, Any] = {"tool": "acme.notes", "version": "1.0.0", "channel": "stable"}
    assert code_of(lambda: world.change(POINT, **move)) == "VERSION_OLDER"
    assert world.change(POINT, **move, allow_older=True).changed


@pytest.mark.parametrize(
    ("name", "similar"), [("acrne", "acme"), ("acme-", "acme"), ("acmee", "acme"), ("goble", None), ("acme.sub", None)]
)
def test_a_namespace_that_looks_like_another_one_gets_a_warning(world: World, name: str, similar: str | None) -> None:
    report = operating.add_namespace(world.registry, name, MALLORY.public_key.did)
    assert [similar in note for note in report.notes if similar] == ([True] if similar else [])
    assert bool(report.notes) == bool(similar)


def test_the_operator_acts_from_the_command_line(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINWARDEN_TRUST", str(tmp_path / "trust.json"))
    world.publish(bundle())
    world.registry.close()
    monkeypatch.setenv("REGISTRY_KEY", REGISTRY_KEY.pem().decode())
    storage = ("--data", str(tmp_path / "registry"), "--key-env", "REGISTRY_KEY")
    heir = HEIR.public_key.did

    def run(*arguments: str, schema: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--format", "json"]) == code
        report = json.loads(capsys.readouterr().out)
        assert problems("error" if "error" in report else schema, report) == []
        return report

    signed = ("--signer", ACME.public_key.did, "--min-attestations", "2", "--verifier")
    run("registry", "require", "set", "acme", *signed, "--reason", "audit", *storage, schema="registry-require")
    listed = run("registry", "require", "list", *storage, schema="registry-require")
    assert [row["min_attestations"] for row in listed["requirements"]] == [2]
    run("registry", "takedown", "acme.notes", "1.0.0", "--reason", "bad", *storage, schema="registry-takedown")
    run(
        *("registry", "takedown", "acme.notes", "1.0.0", "--undo", "--reason", "good", *storage),
        schema="registry-takedown",
    )
    recover = ("registry", "recover")
    run(*recover, "start", "acme", "--to", heir, "--reason", "lost", *storage, schema="registry-recover")
    assert run(*recover, "list", *storage, schema="registry-recover")["waiting"][0]["new_key_id"] == heir
    early = run(*recover, "complete", "acme", "--reason", "x", *storage, schema="registry-recover", code=1)
    assert early["error"]["code"] == "RECOVERY_WAITING"
    run(*recover, "cancel", "acme", "--reason", "found", *storage, schema="registry-recover")
    run("registry", "transfer", "acme", "--to", heir, "--reason", "sold", *storage, schema="registry-transfer")
    run("registry", "export", str(tmp_path / "site"), *storage, schema="registry-export")
    page = (tmp_path / "site" / "log" / "index.html").read_text()
    words = ("required attestations changed", "taken down by the operator", "takedown reversed", "recovery cancelled")
    for shown in (
        *words,
        "recovery of the namespace announced",
        "namespace given to another key",
        "<bdi>acme</bdi>",
    ):
        assert shown in page, shown
    assert "other entry" not in page
    shown = run("log", "show", str(tmp_path / "site"), "acme", schema="log-show")
    assert [row["action"] for row in shown["actions"]] == [
        *("require", "takedown", "reinstate", "recovery-start", "recovery-cancel", "namespace-transfer")
    ]
    state = ("--state", str(tmp_path / "state.json"), "--watch", "acme.notes")
    assert len(run("log", "monitor", str(tmp_path / "site"), *state, schema="log-monitor")["actions"]) == 6
