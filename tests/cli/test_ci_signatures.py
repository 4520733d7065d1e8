"""``ci`` that demands signatures: by known keys, over this very lock, under the policy that holds here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Outcome, pinwarden
from tests.conformance.vectors import vectors_dir

TOOLPIN = vectors_dir() / "toolpin"
PUBLIC = str(TOOLPIN / "signing/fixture-public.pem")


class Signed:
    """A project whose lock Ada signed, as a whole file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir()
        shutil.copy(TOOLPIN / "locks/npm.claude.mcp-lock.json", root / "mcp-lock.json")
        self.key("ada")

    def run(self, *arguments: str) -> Outcome:
        return pinwarden(*arguments, cwd=self.root, env={"HOME": str(self.home)})

    def key(self, name: str) -> None:
        assert self.run("keygen", name).code == 0

    def sign(self, *arguments: str) -> None:
        assert self.run("lock", "sign", "--dsse", *arguments).code == 0

    def gate(self, *arguments: str) -> Outcome:
        return self.run("ci", "--format", "json", *arguments)

    def check(self, *arguments: str) -> tuple[int, list[str], str]:
        outcome = self.gate(*arguments)
        report: dict[str, Any] = json.loads(outcome.out)
        return outcome.code, [row["code"] for row in report["failures"]], report["checks"]["signature"]


CLEAN: tuple[int, list[str], str] = (0, [], "ok")
REFUSED = (1, ["signature_missing"], "failed")


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    project = Signed(tmp_path)
    project.sign("--key", "ada")
    return project


def test_a_good_signature_by_a_known_key_passes(signed: Signed) -> None:
    assert signed.check("--public-key", "ada.pub") == CLEAN
    (signed.root / "mcp-lock.sig").rename(signed.root / "elsewhere.sig")
    assert signed.check("--public-key", "ada.pub", "--signature", "elsewhere.sig") == CLEAN


def test_no_signature_is_required_without_a_key(signed: Signed) -> None:
    (signed.root / "mcp-lock.sig").unlink()
    assert signed.check() == (0, [], "skipped")


def test_a_missing_signature_is_a_finding_and_not_a_failure_to_check(signed: Signed) -> None:
    (signed.root / "mcp-lock.sig").unlink()
    assert signed.check("--public-key", "ada.pub") == REFUSED
    assert "the signature file mcp-lock.sig is missing" in signed.gate("--public-key", "ada.pub").out


@pytest.mark.parametrize("content", [b"", b"{}", b"not JSON", b'{"payloadType": "x", "payload": "", "signatures": []}'])
def test_a_file_that_is_not_a_signature_does_not_count(signed: Signed, content: bytes) -> None:
    (signed.root / "mcp-lock.sig").write_bytes(content)
    assert signed.check("--public-key", "ada.pub") == REFUSED


def test_the_signature_of_an_unknown_key_does_not_count(signed: Signed) -> None:
    """Attack: edit the lock and sign it with a key of one's own."""
    signed.key("eve")
    signed.sign("--key", "eve")
    assert signed.check("--public-key", "ada.pub") == REFUSED


def test_a_lock_changed_after_signing_is_refused_even_if_its_seal_is_valid(signed: Signed) -> None:
    """Attack: another lock with good integrity values, under the old signature."""
    shutil.copy(TOOLPIN / "locks/pypi.claude.mcp-lock.json", signed.root / "mcp-lock.json")
    assert signed.check("--public-key", "ada.pub") == REFUSED


def test_a_damaged_lock_is_reported_besides_its_signature(signed: Signed) -> None:
    lock = signed.root / "mcp-lock.json"
    lock.write_bytes(lock.read_bytes().replace(b"@acme/mcp-notes@1.2.3", b"@acme/mcp-notez@1.2.3", 1))
    code, failures, status = signed.check("--public-key", "ada.pub")
    assert (code, status) == (1, "failed")
    assert {"integrity_mismatch", "signature_missing"} <= set(failures)


class TestRequiredSigners:
    KEYS = ("--public-key", "ada.pub", "bob.pub")

    @pytest.fixture(autouse=True)
    def another(self, signed: Signed) -> None:
        signed.key("bob")

    @pytest.mark.parametrize("demand", [("--require-signer", "bob"), ("--require-signatures", "2")])
    def test_a_required_signer_is_reported_until_it_signed(self, signed: Signed, demand: tuple[str, str]) -> None:
        assert signed.check(*self.KEYS) == CLEAN
        assert signed.check(*self.KEYS, *demand) == REFUSED
        signed.sign("--key", "bob", "--add")
        assert signed.check(*self.KEYS, *demand) == CLEAN

    def test_one_key_under_two_names_is_one_signature(self, signed: Signed) -> None:
        """Attack: meet a threshold of two with the same key."""
        twice = ("--public-key", "one=ada.pub", "two=ada.pub", "--require-signatures", "2")
        assert signed.check(*twice) == REFUSED


class TestThePolicy:
    @pytest.fixture(autouse=True)
    def policy(self, signed: Signed) -> None:
        (signed.root / ".toolpin").mkdir()
        shutil.copy(TOOLPIN / "policies/recommended.json", signed.root / ".toolpin/policy.json")

    def test_a_signature_must_cover_the_projects_policy(self, signed: Signed) -> None:
        assert signed.check("--public-key", "ada.pub") == REFUSED
        signed.sign("--key", "ada", "--policy", ".toolpin/policy.json")
        assert signed.check("--public-key", "ada.pub") == CLEAN

    def test_a_loosened_policy_voids_the_signature(self, signed: Signed) -> None:
        """Attack: leave the signed lock as it is, and take rules out of the policy."""
        signed.sign("--key", "ada", "--policy", ".toolpin/policy.json")
        (signed.root / ".toolpin/policy.json").write_text('{"version": 1, "minTrustTier": "unverified"}')
        assert signed.check("--public-key", "ada.pub") == REFUSED

    def test_with_two_policies_one_must_be_named(self, signed: Signed) -> None:
        (signed.root / "pinwarden.toml").write_text('[policy]\nservers.deny = ["io.example/*"]\n')
        signed.sign("--key", "ada", "--policy", ".toolpin/policy.json")
        assert signed.gate("--public-key", "ada.pub").code == 2
        named = ("--signed-policy", ".toolpin/policy.json")
        assert signed.check("--public-key", "ada.pub", *named)[2] == "ok"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("--signature", "mcp-lock.sig"), 2, "USAGE"),
        (("--require-signer", "ada"), 2, "USAGE"),
        (("--signed-policy", "x.json"), 2, "USAGE"),
        (("--public-key", "ada.pub", "--require-signer", "nobody"), 2, "USAGE"),
        (("--public-key", "ada.pub", "--require-signatures", "0"), 2, "USAGE"),
        (("--public-key", "ada.pub", "ada.pub"), 2, "USAGE"),
        (("--public-key", "missing.pub"), 3, "FILE_UNREADABLE"),
        (("--public-key", "mcp-lock.json"), 3, "KEY_INVALID"),
        (("--public-key", "did:web:example.org"), 3, "KEY_INVALID"),
        (("--public-key", "ada.pub", "--signed-policy", "missing.json"), 3, "FILE_UNREADABLE"),
        (("--public-key", "ada.pub", "--signature", "home"), 3, "FILE_UNREADABLE"),
    ],
)
def test_wrong_arguments_and_unreadable_files_are_errors(
    signed: Signed, arguments: tuple[str, ...], code: int, error: str
) -> None:
    outcome = signed.gate(*arguments)
    assert (outcome.code, json.loads(outcome.out)["error"]["code"]) == (code, error)


def test_a_toolpin_signature_of_a_pinwarden_lock_needs_accept_partial(signed: Signed) -> None:
    shutil.copytree(TOOLPIN / "dot-toolpin", signed.root / ".toolpin")
    assert signed.run("lock", "io.github.acme/npm-notes", "--offline", "--by", "ada").code == 0
    assert signed.run("lock", "sign", "--key", "ada").code == 0
    assert signed.check("--public-key", "ada.pub") == REFUSED
    assert signed.check("--public-key", "ada.pub", "--accept-partial") == CLEAN
