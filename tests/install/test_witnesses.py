"""Who has seen a registry's log: witnesses that count, and those that count no longer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pinwarden.bundle.trust import TrustedKey, TrustedRegistry, encode_trust_store, parse_trust_store, revoke_key
from pinwarden.bundle.trust_files import change_trust, load_trust
from pinwarden.cli.main import main
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Note, NoteKey, WitnessKey
from pinwarden.registry.export import export_registry
from pinwarden.registry.log_verification import verify_head
from tests.install.world import CHECKPOINT, User, showing
from tests.registry.world import REGISTRY_KEY, LiveFiles, bundle
from tests.support.witnesses import cosign

WENDY, WILL = (PrivateKey.from_seed(letter * 32) for letter in (b"1", b"2"))
WITNESSES = tuple(
    WitnessKey(name=name, key=key.public_key) for name, key in (("wendy.example", WENDY), ("will.example", WILL))
)
LONG_AGO = 1000000000


@pytest.fixture
def demanding(user: User, monkeypatch: pytest.MonkeyPatch) -> User:
    """A user who demands that two witnesses have seen the log."""
    user.publish(bundle())
    change_trust(user.trust, lambda store: replace(store, registries=(_demanded(store.registries[0], 2),)))
    monkeypatch.setenv("PINWARDEN_TRUST", str(user.trust))
    return user


def _demanded(root: TrustedRegistry, needed: int) -> TrustedRegistry:
    return replace(root, witnesses=WITNESSES, witnesses_needed=needed)


def cosigned(user: User, *keys: PrivateKey, time: int = 1800000000) -> LiveFiles:
    note = Note.parse(user.world.files.get(CHECKPOINT))
    lines = [
        cosign(note, witness.name, key, time) for witness in WITNESSES for key in keys if witness.key == key.public_key
    ]
    return showing(user.world, **{CHECKPOINT: bytes(Note(text=note.text, signatures=(*note.signatures, *lines)))})


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value.code


def test_a_log_with_all_required_cosignatures_is_accepted(demanding: User) -> None:
    assert demanding.accepts(cosigned(demanding, WENDY, WILL))
    assert demanding.code(cosigned(demanding, WENDY)) == "LOG_WITNESS_MISSING"


@pytest.mark.parametrize("named", [WITNESSES[1].name, str(WITNESSES[1]), WILL.public_key.did])
def test_attack_the_cosignature_of_a_revoked_witness_does_not_count(
    demanding: User, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stolen key can backdate cosignatures, so none of them counts."""
    assert main(["trust", "remove", named, "--revoke", "--why", "stolen", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["registries"][0]["witnesses"] == [str(WITNESSES[0])]
    assert report["registries"][0]["witnesses_revoked"] == [str(WITNESSES[1])]
    assert [row["key_id"] for row in report["revoked"]] == [WILL.public_key.did]
    for time in (LONG_AGO, 1800000000):
        assert demanding.code(cosigned(demanding, WENDY, WILL, time=time)) == "LOG_WITNESS_MISSING"


def test_a_cosignature_of_a_revoked_witness_is_ignored(demanding: User) -> None:
    change_trust(demanding.trust, lambda store: replace(store, registries=(_demanded(store.registries[0], 1),)))
    gone = TrustedKey(key=WILL.public_key)
    change_trust(demanding.trust, lambda store: revoke_key(store, gone, demanding.world.clock(), "stolen"))
    assert demanding.accepts(cosigned(demanding, WENDY, WILL))
    assert demanding.code(cosigned(demanding, WILL)) == "LOG_WITNESS_MISSING"


def test_attack_a_revoked_witness_cannot_be_added_again(
    demanding: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither for a registry that is added again, nor by a script that verifies its log."""
    assert main(["trust", "remove", WITNESSES[1].name, "--revoke"]) == 0
    before = demanding.trust.read_bytes()
    export_registry(demanding.world.registry, tmp_path / "export")
    log = str(NoteKey(name=demanding.world.registry.identity.log_id, key=REGISTRY_KEY.public_key))
    for command in (
        ("trust", "add", log, "--role", "registry", "--name", "acme"),
        ("log", "verify", str(tmp_path / "export")),
        ("log", "monitor", str(tmp_path / "export"), "--state", str(tmp_path / "state.json")),
    ):
        capsys.readouterr()
        assert main([*command, "--witness", str(WITNESSES[1]), "--format", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "KEY_REVOKED"
    assert demanding.trust.read_bytes() == before
    assert not (tmp_path / "state.json").exists()


def test_attack_one_key_under_two_names_counts_once_and_the_registry_is_no_witness(demanding: User) -> None:
    origin = demanding.world.registry.identity.log_id
    key = NoteKey(name=origin, key=REGISTRY_KEY.public_key)
    note = Note.parse(demanding.world.files.get(CHECKPOINT))
    signers = (("a.example", WENDY), ("b.example", WENDY), ("c.example", REGISTRY_KEY))
    lines = [cosign(note, name, key, 1800000000) for name, key in signers]
    data = bytes(Note(text=note.text, signatures=(*note.signatures, *lines)))
    known = [WitnessKey(name=name, key=key.public_key) for name, key in signers]
    assert len(verify_head(data, origin, key, known, 1).cosignatures) == 3
    assert code_of(lambda: verify_head(data, origin, key, known, 2)) == "LOG_WITNESS_MISSING"


def test_attack_revoking_the_log_key_removes_the_registry(demanding: User) -> None:
    """Its pointers have another key, which is not revoked; but only the log proves what that key points to."""
    store = load_trust(demanding.trust)
    split = replace(
        store.registries[0], key=TrustedKey(key=WENDY.public_key, name="acme", roles=("registry",)), witnesses=()
    )
    stolen = TrustedKey(key=REGISTRY_KEY.public_key)
    left = revoke_key(replace(store, registries=(split,)), stolen, demanding.world.clock(), "stolen")
    assert left.registries == ()
    both = replace(left, registries=(split,))
    assert code_of(lambda: parse_trust_store(encode_trust_store(both))) == "TRUST_INVALID"
