"""The trust store: trusted registries and keys, their roles, and revocations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle import trust
from pinwarden.bundle.document import encode_document
from pinwarden.bundle.trust_files import load_trust
from pinwarden.cli.main import main
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.signed_note import NoteKey, WitnessKey
from pinwarden.registry.registry_documents import RegistryIdentity, identity_to_json
from tests.docs.schemas import problems
from tests.install.world import VERA
from tests.registry.world import ACME, MALLORY, REGISTRY_KEY

LOG = str(NoteKey(name="log.example/acme", key=REGISTRY_KEY.public_key))
DID = VERA.public_key.did
NEW = PrivateKey.from_seed(b"n" * 32).public_key
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings" / "trust.json"
    monkeypatch.setenv("PINWARDEN_TRUST", str(path))
    return path


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, Any]:
        code = main(["trust", *arguments, "--format", "json"])
        report = json.loads(capsys.readouterr().out)
        schema = "error" if "error" in report else f"trust-{arguments[0]}"
        assert problems(schema, report) == []
        return code, report

    return command


def test_registries_and_attesters_are_trusted_in_their_roles(run: Run, store: Path) -> None:
    assert run("list") == (0, {"registries": [], "keys": [], "revoked": []})
    assert run("add", LOG, "--role", "registry", "--name", "acme", "--url", "https://r.example/")[0] == 0
    code, report = run("add", DID, "--role", "verifier", "--role", "auditor", "--name", "vera")
    assert code == 0
    assert [(row["key_id"], row["roles"]) for row in report["keys"]] == [(DID, ["verifier", "auditor"])]
    assert (report["registries"][0]["log_id"], report["registries"][0]["url"]) == (
        "log.example/acme",
        "https://r.example/",
    )
    assert run("list") == (0, report)
    # The file is what bundle accept takes as --trust.
    known = trust.parse_trust(store.read_bytes())
    assert [key.key_id for key in known.registry_keys] == [REGISTRY_KEY.public_key.did]
    assert known == load_trust(store).trust


def test_a_registry_may_have_a_separate_pointer_key_and_witnesses(run: Run, store: Path) -> None:
    witness = str(WitnessKey(name="witness.example", key=MALLORY.public_key))
    options = ("--role", "registry", "--pointer-key", ACME.public_key.did, "--witness", witness)
    assert run("add", LOG, *options)[1]["registries"][0]["key_id"] == ACME.public_key.did
    root = load_trust(store).registries[0]
    assert (root.log.key, root.witnesses_needed) == (REGISTRY_KEY.public_key, 1)


@pytest.mark.parametrize("url", ["https://me:secret@r.example/", "oci://me:secret@r.example/tools"])
def test_a_password_in_a_registry_url_is_refused(run: Run, store: Path, url: str) -> None:
    code, report = run("add", LOG, "--role", "registry", "--name", "acme", "--url", url)
    assert (code, report["error"]["code"]) == (2, "USAGE")
    assert "secret" not in json.dumps(report)
    assert not store.exists()


def test_a_registry_can_be_added_from_its_identity_file(run: Run, tmp_path: Path) -> None:
    identity = RegistryIdentity(name="Acme", log_id="log.example/acme", key=REGISTRY_KEY.public_key)
    own = tmp_path / "registry.json"
    own.write_bytes(encode_document(identity_to_json(identity)))
    assert run("add", str(own), "--role", "registry")[1]["registries"][0]["checkpoint_key"] == LOG
    own.write_bytes(encode_document({**identity_to_json(identity), "key_id": DID}))
    assert run("add", str(own), "--role", "registry")[1]["error"]["code"] == "DOCUMENT_INVALID"


def test_replacing_a_key_revokes_the_old_one(run: Run) -> None:
    run("add", DID, "--role", "verifier", "--name", "vera")
    code, report = run("add", NEW.did, "--replaces", "vera", "--why", "yearly")
    assert code == 0
    assert [(row["key_id"], row["name"], row["roles"]) for row in report["keys"]] == [(NEW.did, "vera", ["verifier"])]
    assert [(row["key_id"], row["why"]) for row in report["revoked"]] == [(DID, "yearly")]
    run("add", LOG, "--role", "registry", "--name", "acme", "--url", "https://r.example/")
    other = str(NoteKey(name="log.example/acme-2", key=ACME.public_key))
    report = run("add", other, "--replaces", "acme")[1]
    assert [(row["log_id"], row["url"]) for row in report["registries"]] == [
        ("log.example/acme-2", "https://r.example/")
    ]


def test_a_revoked_key_is_never_trusted_again(run: Run, store: Path) -> None:
    run("add", DID, "--role", "verifier", "--name", "vera")
    assert run("remove", "vera", "--revoke", "--why", "stolen")[1]["keys"] == []
    kept = store.read_bytes()
    code, report = run("add", DID, "--role", "verifier")
    assert (code, report["error"]["code"]) == (1, "KEY_REVOKED")
    assert store.read_bytes() == kept
    assert run("remove", MALLORY.public_key.did, "--revoke")[0] == 0
    assert run("add", MALLORY.public_key.did, "--role", "auditor")[1]["error"]["code"] == "KEY_REVOKED"


def test_a_removed_key_can_be_added_again(run: Run) -> None:
    run("add", DID, "--role", "verifier")
    assert run("remove", DID)[1] == {"registries": [], "keys": [], "revoked": []}
    assert run("remove", DID)[1]["error"]["code"] == "TRUST_UNKNOWN"
    assert run("add", DID, "--role", "verifier")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (DID,),
        (DID, "--role", "registry"),
        (LOG, "--role", "verifier"),
        (LOG, "--role", "registry", "--role", "verifier"),
        (REGISTRY_KEY.public_key.did, "--role", "verifier"),
        (NEW.did, "--role", "verifier", "--name", "acme"),
        (LOG, "--role", "registry", "--witnesses-needed", "1"),
        (LOG, "--role", "registry", "--max-age-days", "0"),
    ],
)
def test_contradictory_roles_names_and_limits_are_refused(run: Run, store: Path, arguments: tuple[str, ...]) -> None:
    run("add", LOG, "--role", "registry", "--name", "acme")
    kept = store.read_bytes()
    code, report = run("add", *arguments)
    assert (code, report["error"]["code"]) == (2, "USAGE")
    assert store.read_bytes() == kept


def test_a_damaged_trust_store_is_an_error_and_is_not_treated_as_empty(run: Run, store: Path) -> None:
    run("add", DID, "--role", "verifier", "--name", "vera")
    whole = store.read_bytes()
    for spoilt in (
        b"",
        b"{}",
        whole[:-20],
        whole.replace(b"verifier", b"auditor"),
        whole.replace(b'"known_keys"', b'"known_keys": [], "known_keys"'),
    ):
        store.write_bytes(spoilt)
        for arguments in (("list",), ("add", NEW.did, "--role", "auditor"), ("remove", "vera")):
            code, report = run(*arguments)
            assert (code, report["error"]["code"]) == (3, "TRUST_INVALID")
        assert store.read_bytes() == spoilt


def test_a_symlink_instead_of_the_trust_store_is_refused(run: Run, store: Path, tmp_path: Path) -> None:
    store.parent.mkdir()
    store.symlink_to(tmp_path / "elsewhere")
    assert run("add", DID, "--role", "verifier")[1]["error"]["code"] == "FILE_UNREADABLE"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\x00\xff\x80", "is binary data, not a key"),
        (b"hello", "is text, but not a key"),
        (b"ssh-ed25519 AAAAC3Nza someone", "is an OpenSSH public key"),
        (b"-----BEGIN CERTIFICATE-----\nAA==\n", "is a certificate"),
        (b'{"kty": "OKP", "x": "AAAA"}', "is JSON"),
        (LOG.encode(), "is the verifier key of a log, which must be given as text"),
        (b"x" * 70000, "is too large for a key"),
    ],
)
def test_a_file_that_is_not_a_key_gets_a_specific_error(
    run: Run, store: Path, tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "given"
    file.write_bytes(content)
    exit_code, error = run("add", str(file), "--role", "verifier")
    assert (exit_code, error["error"]["code"], error["error"]["message"].partition("' ")[2]) == (
        3,
        "KEY_INVALID",
        problem,
    )
    assert error["error"]["hint"].startswith("Give an Ed25519 public key")
    assert not store.exists()


def test_folders_missing_files_and_other_json_get_specific_errors(run: Run, store: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.json").write_text("{}")
    for given, report in (
        ("folder", "is a folder, not a key"),
        ("none", "there is no file"),
        ("other.json", "is JSON"),
    ):
        code, error = run("add", str(tmp_path / given), "--role", "verifier")
        assert (code, report in error["error"]["message"]) == (3, True), error
    assert run("add", "a+b", "--role", "registry")[1]["error"]["hint"].startswith("Give a registry as name+id+key")
    assert not store.exists()


SECRET = MALLORY.pem().decode()


@pytest.mark.parametrize("form", ["k.pem", "k.json", "with+plus", "as text", "pointer key", "jwk"])
def test_attack_a_private_key_given_as_public_key_is_neither_stored_nor_shown(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    secret = '{"kty": "OKP", "d": "c2VjcmV0IHNlY3JldA", "x": "AAAA"}' if form == "jwk" else SECRET
    file = tmp_path / form
    file.write_text(secret)
    words = [SECRET] if form == "as text" else [str(file)]
    if form == "pointer key":
        words = [LOG, "--pointer-key", str(file)]
    assert main(["trust", "add", *words, "--role", "verifier"]) == 3
    report = "".join(capsys.readouterr())
    assert "is a private key" in report
    assert "[KEY_INVALID]" in report
    for line in (*SECRET.splitlines()[1:-1], "c2VjcmV0"):
        assert line not in report
    assert not store.exists()


def test_the_error_names_the_public_key_beside_a_private_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.pem").write_text(SECRET)
    (tmp_path / "k.pem.pub").write_bytes(MALLORY.public_key.pem())
    hint = run("add", str(tmp_path / "k.pem"), "--role", "verifier")[1]["error"]["hint"]
    assert hint.endswith(f"Its public key is in {tmp_path / 'k.pem.pub'}.")


def test_the_trust_store_belongs_to_the_user_not_to_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PINWARDEN_TRUST", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["trust", "add", DID, "--role", "verifier"]) == 0
    assert load_trust(tmp_path / ".config" / "pinwarden" / "trust.json").keys[0].key.key_id == DID


def test_a_trust_store_that_trusts_a_revoked_key_is_refused(store: Path) -> None:
    from pinwarden.bundle import trust as document
    from pinwarden.bundle.trust import AttestationKey, RevokedKey, TrustedKey, TrustStore

    moment = "2026-01-01T00:00:00Z"
    known = AttestationKey(key=TrustedKey(key=VERA.public_key, roles=("verifier",)), added_at=moment)
    gone = RevokedKey(key_id=DID, name="", roles=(), revoked_at=moment, why="")
    store.parent.mkdir()
    for contradiction in (TrustStore(keys=(known,), revoked=(gone,)), TrustStore(keys=(known, known))):
        store.write_bytes(document.encode_trust_store(contradiction))
        with pytest.raises(PinwardenError) as caught:
            load_trust(store)
        assert caught.value.code == "TRUST_INVALID"
