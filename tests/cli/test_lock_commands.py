"""lock digest, lock sign, lock verify-signature, lock convert and keygen as a user meets them."""

from __future__ import annotations

import json
import stat
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pinwarden import PrivateKey
from pinwarden.core.digest import Digest
from pinwarden.lock import lockfile
from pinwarden.lock.lockfile import Lock, seal_lock
from pinwarden.surface import surface
from tests.cli.run import Outcome, pinwarden
from tests.conformance.vectors import load, vectors_dir
from tests.support.locks import NOON, SURFACE, new_entry, our_entry, plan

TOOLPIN = vectors_dir() / "toolpin"
WHOLE = "locks/whole.mcp-lock.json"
NOON_EPOCH = {"SOURCE_DATE_EPOCH": "1784548800"}  # 2026-07-20T12:00:00Z, when the vectors were made
ANSI = "\x1b[2Kio.github.acme/notes\u202e"


def project(folder: Path, lock: str = WHOLE) -> Path:
    """A folder with one of ToolPin's locks."""
    (folder / "mcp-lock.json").write_bytes((TOOLPIN / lock).read_bytes())
    return folder


def our_project(folder: Path) -> Path:
    """A folder with a lock of ours and its approved surface."""
    entry = our_entry()
    lock = seal_lock(Lock(generated_at=NOON, updated_at=NOON, entries=(entry,)))
    (folder / "mcp-lock.json").write_bytes(lockfile.to_bytes(lock))
    text = folder / entry.manifest["pinwarden"]["surface"]["file"]["path"]
    text.parent.mkdir()
    text.write_bytes(surface.encode_surface(SURFACE))
    return folder


def hostile_project(folder: Path) -> Path:
    """A folder with a lock whose one server has a name that moves the cursor, and which was tampered with."""
    entry = new_entry(plan(ANSI), NOON)
    document: dict[str, Any] = {**entry.document, "version": "6.6.6"}
    lock = {"lockfileVersion": 2, "generatedAt": NOON, "updatedAt": NOON, "servers": {entry.key: document}}
    (folder / "mcp-lock.json").write_text(json.dumps(lock))
    return folder


def fixture_key(folder: Path) -> str:
    """The key that made ToolPin's signatures."""
    seed = bytes.fromhex(load("toolpin/signing/fixture-seed.json")["ed25519_seed_hex"])
    path = folder / "fixture"
    path.write_bytes(PrivateKey.from_seed(seed).pem())
    path.chmod(0o600)
    return str(path)


def new_key(folder: Path, name: str) -> str:
    assert pinwarden("keygen", name, cwd=folder).code == 0
    return name


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def parse_report(outcome: Outcome) -> Any:
    return json.loads(outcome.out)


class TestDigest:
    @pytest.mark.parametrize("path", sorted((TOOLPIN / "locks").glob("*.digest.json")), ids=lambda path: path.stem)
    def test_every_lock_has_the_digest_that_toolpin_prints(self, path: Path) -> None:
        lock = path.with_name(path.name.replace(".digest.", ".mcp-lock."))
        outcome = pinwarden("lock", "digest", "--file", str(lock))
        assert (outcome.code, outcome.out) == (0, json.loads(path.read_bytes())["digest"] + "\n")

    def test_the_json_says_what_was_counted(self, tmp_path: Path) -> None:
        outcome = pinwarden("lock", "digest", "--format", "json", cwd=project(tmp_path))
        digest = load("toolpin/locks/whole.digest.json")["digest"]
        assert parse_report(outcome) == {"digest": digest, "seal": None, "entries": 16, "ok": True, "problems": []}

    def test_a_tampered_lock_is_refused_without_printing_its_digest(self, tmp_path: Path) -> None:
        here = project(tmp_path, "tamper/entry_config.mcp-lock.json")
        text, report = pinwarden("lock", "digest", cwd=here), pinwarden("lock", "digest", "--format", "json", cwd=here)
        assert (text.code, report.code) == (1, 1)
        assert "sha256-" not in text.out
        facts = parse_report(report)
        assert facts["ok"] is False
        assert "integrity_mismatch" in [problem["code"] for problem in facts["problems"]]
        assert facts["digest"] == load("toolpin/tamper/entry_config.digest.json")["digest"]

    def test_an_entry_under_a_wrong_key_is_refused_although_toolpin_accepts_it(self, tmp_path: Path) -> None:
        outcome = pinwarden("lock", "digest", cwd=project(tmp_path, "tamper/key_renamed.mcp-lock.json"))
        assert outcome.code == 1
        assert "entry_key_mismatch" in outcome.out

    def test_a_changed_approved_text_is_refused(self, tmp_path: Path) -> None:
        here = our_project(tmp_path)
        assert pinwarden("lock", "digest", cwd=here).code == 0
        (text,) = (here / "mcp-lock.surfaces").iterdir()
        text.write_bytes(text.read_bytes().replace(b"Keep notes.", b"Send notes."))
        outcome = pinwarden("lock", "digest", cwd=here)
        assert outcome.code == 1
        assert "surface_mismatch" in outcome.out

    def test_a_hostile_name_cannot_reach_the_terminal(self, tmp_path: Path) -> None:
        """Attack: escape codes and a direction override in the name of a tampered entry."""
        for form in ("text", "json", "sarif", "markdown"):
            outcome = pinwarden("lock", "digest", "--format", form, cwd=hostile_project(tmp_path))
            assert outcome.code == 1
            assert not set("\x1b\u202e") & set(outcome.out + outcome.err), form

    @pytest.mark.parametrize(
        ("content", "code", "error"),
        [
            (None, 3, "LOCK_MISSING"),
            (b'{"lockfileVersion": 2,', 3, "JSON_PARSE_ERROR"),
            (b'{"lockfileVersion": 1, "servers": {}}', 3, "LOCK_VERSION_UNSUPPORTED"),
            (b'{"lockfileVersion": 2, "lockfileVersion": 2}', 3, "JSON_CANONICALIZATION_ERROR"),
            (b'{"specVersion": 7, "entries": []}', 3, "LOCK_VERSION_UNSUPPORTED"),
        ],
    )
    def test_a_file_that_is_not_a_lock_is_not_digested(
        self, tmp_path: Path, content: bytes | None, code: int, error: str
    ) -> None:
        if content is not None:
            (tmp_path / "mcp-lock.json").write_bytes(content)
        outcome = pinwarden("lock", "digest", "--format", "json", cwd=tmp_path)
        assert (outcome.code, parse_report(outcome)["error"]["code"]) == (code, error)
        assert outcome.err.startswith("error: ")
        assert "hint: " in outcome.err

    def test_a_lock_that_is_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        real = project(tmp_path / "elsewhere") / "mcp-lock.json"
        (tmp_path / "mcp-lock.json").symlink_to(real)
        outcome = pinwarden("lock", "digest", cwd=tmp_path)
        assert outcome.code == 3
        assert "symbolic link" in outcome.err


class TestKeygen:
    def test_a_key_pair_is_readable_only_by_its_owner(self, tmp_path: Path) -> None:
        outcome = pinwarden("keygen", "ada", "--format", "json", cwd=tmp_path)
        facts = parse_report(outcome)
        assert outcome.code == 0
        assert stat.S_IMODE((tmp_path / "ada").stat().st_mode) == 0o600
        key = PrivateKey.from_pem((tmp_path / "ada").read_bytes())
        assert (tmp_path / "ada.pub").read_bytes() == key.public_key.pem()
        assert (facts["did"], facts["fingerprint"]) == (key.public_key.did, key.public_key.fingerprint)
        assert facts["encrypted"] is False

    def test_the_report_names_both_files_and_never_the_secret(self, tmp_path: Path) -> None:
        outcome = pinwarden("keygen", "ada", cwd=tmp_path)
        key = PrivateKey.from_pem((tmp_path / "ada").read_bytes()).public_key
        assert key.did in outcome.out
        assert key.fingerprint in outcome.out
        assert "PRIVATE KEY" not in outcome.out + outcome.err

    def test_a_passphrase_from_the_environment_encrypts_the_key(self, tmp_path: Path) -> None:
        secret = "correct horse battery"
        outcome = pinwarden("keygen", "ada", "--passphrase-env", "WORDS", cwd=tmp_path, env={"WORDS": secret})
        assert outcome.code == 0
        assert b"ENCRYPTED" in (tmp_path / "ada").read_bytes()
        assert secret not in outcome.out + outcome.err
        PrivateKey.from_pem((tmp_path / "ada").read_bytes(), secret.encode())

    @pytest.mark.parametrize("existing", ["ada", "ada.pub"])
    def test_existing_files_are_kept_and_either_both_keys_are_written_or_none(
        self, tmp_path: Path, existing: str
    ) -> None:
        (tmp_path / existing).write_text("mine")
        outcome = pinwarden("keygen", "ada", cwd=tmp_path)
        assert (outcome.code, files(tmp_path)) == (1, {existing: b"mine"})
        assert "[FILE_EXISTS]" in outcome.err

    @pytest.mark.parametrize(
        ("arguments", "code"), [((), 2), (("a", "--passphrase-env", "UNSET_WORDS"), 2), (("no/such/folder/a",), 3)]
    )
    def test_wrong_arguments_create_no_files(self, tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
        assert pinwarden("keygen", *arguments, cwd=tmp_path).code == code
        assert files(tmp_path) == {}


class TestSign:
    @pytest.mark.parametrize(
        ("policy", "recorded"), [("policies/recommended.json", "mcp-lock.sig"), (None, "no-policy.sig")]
    )
    def test_the_envelope_is_identical_to_toolpins(self, tmp_path: Path, policy: str | None, recorded: str) -> None:
        named = ["--policy", str(TOOLPIN / policy)] if policy else []
        outcome = pinwarden(
            "lock", "sign", "--key", fixture_key(tmp_path), *named, cwd=project(tmp_path), env=NOON_EPOCH
        )
        assert outcome.code == 0
        assert (tmp_path / "mcp-lock.sig").read_bytes() == (TOOLPIN / "signing" / recorded).read_bytes()

    def test_a_missing_policy_file_is_an_error(self, tmp_path: Path) -> None:
        key = fixture_key(tmp_path)
        before = files(project(tmp_path))
        outcome = pinwarden("lock", "sign", "--key", key, "--policy", "missing.json", cwd=tmp_path)
        assert outcome.code == 3
        assert files(tmp_path) == before

    @pytest.mark.parametrize("form", [(), ("--dsse",)])
    def test_a_tampered_lock_is_not_signed(self, tmp_path: Path, form: tuple[str, ...]) -> None:
        key = fixture_key(tmp_path)
        before = files(project(tmp_path, "tamper/entry_config.mcp-lock.json"))
        outcome = pinwarden("lock", "sign", "--key", key, *form, cwd=tmp_path)
        assert outcome.code == 1
        assert "[LOCK_TAMPERED]" in outcome.err
        assert files(tmp_path) == before

    def test_dsse_signs_the_bytes_of_the_file_with_every_key(self, tmp_path: Path) -> None:
        here = our_project(tmp_path)
        keys = [new_key(here, "ada"), new_key(here, "bob")]
        outcome = pinwarden("lock", "sign", "--dsse", "--key", keys[0], "--key", keys[1], cwd=here)
        assert outcome.code == 0
        envelope = json.loads((here / "mcp-lock.sig").read_bytes())
        assert len(envelope["signatures"]) == 2
        statement = json.loads(b64decode(envelope["payload"]))
        assert statement["subject"][0]["digest"]["sha256"] == Digest.of_bytes((here / "mcp-lock.json").read_bytes()).hex

    def test_a_signature_is_added_to_existing_ones(self, tmp_path: Path) -> None:
        here = our_project(tmp_path)
        ada, bob = new_key(here, "ada"), new_key(here, "bob")
        pinwarden("lock", "sign", "--dsse", "--key", ada, cwd=here)
        assert pinwarden("lock", "sign", "--dsse", "--add", "--key", bob, cwd=here).code == 0
        both = ("--public-key", "ada.pub", "bob.pub", "--require", "ada", "bob")
        assert pinwarden("lock", "verify-signature", *both, cwd=here).code == 0

    def test_nothing_is_added_to_an_envelope_about_another_file(self, tmp_path: Path) -> None:
        """Attack: an old envelope is left in place, so that a second signer signs what they never saw."""
        here = our_project(tmp_path)
        ada, bob = new_key(here, "ada"), new_key(here, "bob")
        pinwarden("lock", "sign", "--dsse", "--key", ada, cwd=here)
        before = files(project(here))
        outcome = pinwarden("lock", "sign", "--dsse", "--add", "--key", bob, cwd=here)
        assert outcome.code == 1
        assert "[SIGNATURE_INVALID]" in outcome.err
        assert files(here) == before

    def test_an_encrypted_key_is_opened_only_with_the_variable(self, tmp_path: Path) -> None:
        here, secret = project(tmp_path), "correct horse battery"
        pinwarden("keygen", "ada", "--passphrase-env", "WORDS", cwd=here, env={"WORDS": secret})
        before = files(here)
        for variables in ({}, {"PINWARDEN_KEY_PASSPHRASE": "wrong"}):
            refused = pinwarden("lock", "sign", "--key", "ada", cwd=here, env=variables)
            assert (refused.code, files(here)) == (2, before)
            assert "[KEY_PASSPHRASE_REQUIRED]" in refused.err
            assert "PINWARDEN_KEY_PASSPHRASE" in refused.err
        signed = pinwarden("lock", "sign", "--key", "ada", cwd=here, env={"PINWARDEN_KEY_PASSPHRASE": secret})
        assert signed.code == 0
        assert secret not in signed.out + signed.err

    def test_a_key_of_another_kind_does_not_sign_as_ed25519(self, tmp_path: Path) -> None:
        """Attack: ToolPin signs with RSA and calls it ed25519."""
        rsa = generate_private_key(65537, 2048)
        path = tmp_path / "rsa"
        path.write_bytes(rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        path.chmod(0o600)
        before = files(project(tmp_path))
        outcome = pinwarden("lock", "sign", "--key", "rsa", cwd=tmp_path)
        assert outcome.code == 3
        assert "[KEY_INVALID]" in outcome.err
        assert files(tmp_path) == before

    def test_a_key_that_others_can_read_is_not_used(self, tmp_path: Path) -> None:
        key = Path(fixture_key(tmp_path))
        key.chmod(0o644)
        outcome = pinwarden("lock", "sign", "--key", str(key), cwd=project(tmp_path))
        assert outcome.code == 3
        assert "[KEY_FILE_UNSAFE]" in outcome.err

    @pytest.mark.parametrize("arguments", [(), ("--key", "a", "--key", "b"), ("--key", "a", "--add")])
    def test_wrong_arguments_are_a_usage_error(self, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        before = files(project(tmp_path))
        assert pinwarden("lock", "sign", *arguments, cwd=tmp_path).code == 2
        assert files(tmp_path) == before

    def test_a_toolpin_signature_reports_what_it_does_not_cover(self, tmp_path: Path) -> None:
        here = our_project(tmp_path)
        outcome = pinwarden("lock", "sign", "--key", new_key(here, "ada"), cwd=here)
        assert outcome.code == 0
        assert "a signature with --dsse does" in outcome.out


class TestVerifySignature:
    PUBLIC = str(TOOLPIN / "signing/fixture-public.pem")
    SIGNATURE = str(TOOLPIN / "signing/mcp-lock.sig")

    @pytest.mark.parametrize(
        ("recorded", "lock", "policy"),
        [
            ("verify-ok", WHOLE, "recommended"),
            ("verify-other-lock", "locks/npm.claude.mcp-lock.json", "recommended"),
            ("verify-other-policy", WHOLE, "strict"),
        ],
    )
    def test_a_signature_is_judged_as_by_toolpin(self, recorded: str, lock: str, policy: str) -> None:
        report = load(f"toolpin/signing/{recorded}.json")["report"]
        outcome = pinwarden(
            *("lock", "verify-signature", "--file", str(TOOLPIN / lock), "--signature", self.SIGNATURE),
            *("--public-key", self.PUBLIC, "--policy", str(TOOLPIN / f"policies/{policy}.json"), "--format", "json"),
        )
        facts = parse_report(outcome)
        assert (outcome.code, facts["ok"]) == (0 if report["ok"] else 1, report["ok"])
        assert facts["digest"] == report["lockfileDigest"]
        assert bool(facts["rejected"]) is not report["ok"]

    def test_a_key_is_named_by_its_did_as_well(self, tmp_path: Path) -> None:
        here = project(tmp_path)
        did = parse_report(pinwarden("keygen", "ada", "--format", "json", cwd=here))["did"]
        pinwarden("lock", "sign", "--key", "ada", cwd=here)
        assert pinwarden("lock", "verify-signature", "--public-key", did, cwd=here).code == 0
        named = ("--public-key", f"ada={did}", "--require", "ada")
        assert pinwarden("lock", "verify-signature", *named, cwd=here).code == 0

    def test_a_signature_by_another_key_does_not_count(self, tmp_path: Path) -> None:
        here = project(tmp_path)
        pinwarden("lock", "sign", "--key", new_key(here, "ada"), cwd=here)
        new_key(here, "eve")
        outcome = pinwarden("lock", "verify-signature", "--public-key", "eve.pub", cwd=here)
        assert outcome.code == 1
        assert "signature_rejected" in outcome.out

    def test_one_key_under_two_names_is_one_signature(self, tmp_path: Path) -> None:
        """Attack: the threshold of two is met by giving the same key twice."""
        here = our_project(tmp_path)
        pinwarden("lock", "sign", "--dsse", "--key", new_key(here, "ada"), cwd=here)
        twice = ("--public-key", "one=ada.pub", "two=ada.pub", "--threshold", "2")
        assert pinwarden("lock", "verify-signature", *twice, cwd=here).code == 1

    def test_a_changed_byte_is_not_signed(self, tmp_path: Path) -> None:
        here = our_project(tmp_path)
        pinwarden("lock", "sign", "--dsse", "--key", new_key(here, "ada"), cwd=here)
        lock = here / "mcp-lock.json"
        lock.write_bytes(lock.read_bytes() + b"\n")
        assert pinwarden("lock", "verify-signature", "--public-key", "ada.pub", cwd=here).code == 1

    def test_a_valid_signature_of_a_tampered_lock_is_refused(self, tmp_path: Path) -> None:
        """Attack: what ToolPin does not hash is changed after signing; its signature still fits."""
        here = project(tmp_path)
        pinwarden("lock", "sign", "--key", fixture_key(here), cwd=here)
        document = json.loads((here / "mcp-lock.json").read_bytes())
        next(iter(document["servers"].values()))["autoApprove"] = ["*"]
        (here / "mcp-lock.json").write_text(json.dumps(document))
        asked = ("lock", "verify-signature", "--public-key", f"toolpin={self.PUBLIC}", "--format", "json")
        outcome = pinwarden(*asked, cwd=here)
        facts = parse_report(outcome)
        assert (outcome.code, facts["ok"], facts["missing"]) == (1, False, [])
        assert [signer["name"] for signer in facts["signers"]] == ["toolpin"]
        assert [problem["code"] for problem in facts["problems"]] == ["member_unprotected"]

    def test_a_toolpin_signature_counts_for_a_pinwarden_lock_only_with_accept_partial(self, tmp_path: Path) -> None:
        here = our_project(tmp_path)
        pinwarden("lock", "sign", "--key", new_key(here, "ada"), cwd=here)
        asked = ("lock", "verify-signature", "--public-key", "ada.pub")
        assert pinwarden(*asked, cwd=here).code == 1
        assert pinwarden(*asked, "--accept-partial", cwd=here).code == 0

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ((), 2),
            (("--public-key", PUBLIC, "--threshold", "0"), 2),
            (("--public-key", PUBLIC, "--require", "nobody"), 2),
            (("--public-key", PUBLIC, PUBLIC), 2),
            (("--public-key", PUBLIC, "--signature", "missing.sig"), 3),
            (("--public-key", "missing.pub"), 3),
            (("--public-key", "did:web:example.org"), 3),
            (("--public-key", "mcp-lock.json"), 3),
        ],
    )
    def test_wrong_arguments_and_missing_files(self, tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
        here = project(tmp_path)
        (here / "mcp-lock.sig").write_bytes((TOOLPIN / "signing/no-policy.sig").read_bytes())
        assert pinwarden("lock", "verify-signature", *arguments, cwd=here).code == code
