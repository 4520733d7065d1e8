"""Signatures of lockfiles: three forms, several keys, and how many are enough."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pinwarden import PinwardenError, PrivateKey, PublicKey
from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.lock import lockfile
from pinwarden.lock import signature as lock_signature
from pinwarden.lock.lockfile import put_entries
from pinwarden.lock.signature import RequiredSigners, ToolPinEnvelope, verify_signatures
from tests.support.locks import LATER, NOON, entry, our_entry

ADA, BOB, EVE = (PrivateKey.from_seed(letter * 32) for letter in (b"a", b"b", b"e"))
KEYS = {"ada": ADA.public_key, "bob": BOB.public_key}
PLAIN = lockfile.to_bytes(put_entries(None, [entry()], NOON, plain_v2=True))
SEALED = lockfile.to_bytes(put_entries(None, [our_entry()], NOON))
POLICY = Digest.of_bytes(b"policy").sri
ONE = RequiredSigners()


def toolpin_envelope(data: bytes, key: PrivateKey, policy: str | None = None) -> bytes:
    digest = lockfile.compute_lock_digest(lockfile.parse(data))
    return lock_signature.to_bytes(lock_signature.sign(digest, key, NOON, policy_digest=policy))


def dsse(data: bytes, *keys: PrivateKey, policy: str | None = None) -> bytes:
    return lock_signature.encode_dsse(lock_signature.sign_file(data, keys, NOON, policy_digest=policy))


def edited(data: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(data), **changes}).encode()


class TestOneKey:
    def test_each_form_is_valid_for_the_lock_that_was_signed_and_for_no_other(self) -> None:
        other = lockfile.to_bytes(put_entries(None, [entry(version="1.2.4")], NOON, plain_v2=True))
        for envelope in (toolpin_envelope(PLAIN, ADA), dsse(PLAIN, ADA)):
            report = verify_signatures(PLAIN, [envelope], KEYS, ONE)
            assert (report.ok, report.signers, report.rejected) == (True, ("ada",), ())
            report = verify_signatures(other, [envelope], KEYS, ONE)
            assert (report.ok, report.signers, len(report.rejected)) == (False, (), 1)

    def test_a_signature_under_a_policy_counts_only_under_that_policy(self) -> None:
        for make in (toolpin_envelope, dsse):
            bound, unbound = make(PLAIN, ADA, policy=POLICY), make(PLAIN, ADA)
            assert verify_signatures(PLAIN, [bound], KEYS, ONE, policy_digest=POLICY).ok
            assert not verify_signatures(PLAIN, [bound], KEYS, ONE).ok
            assert not verify_signatures(PLAIN, [unbound], KEYS, ONE, policy_digest=POLICY).ok

    @pytest.mark.parametrize(
        "changes",
        [
            {"signedAt": LATER},
            {"policyDigest": POLICY},
            {"publicKeyFingerprint": BOB.public_key.fingerprint},
            {"algorithm": "rsa"},
            {"version": 1},
            {"version": 2.0},
            {"schema": "dev.toolpin.other"},
            {"schema": ["x"]},
            {"schema": "mcp-lock-signature", "version": 1},
            {"signature": "AAAA"},
            {"signature": None},
            {"comment": "not covered by anything"},
            {"lockfileDigest": "sha256-AAAA"},
            {"signedAt": 5},
        ],
        ids=str,
    )
    def test_an_edited_envelope_does_not_count(self, changes: dict[str, Any]) -> None:
        envelope = edited(toolpin_envelope(PLAIN, ADA), **changes)
        report = verify_signatures(PLAIN, [envelope], KEYS, ONE)
        assert (report.ok, report.signers) == (False, ())

    def test_a_key_that_is_not_ed25519_is_refused(self) -> None:
        """ToolPin signs and verifies with an RSA key under the name ed25519."""
        rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
        with pytest.raises(PinwardenError) as caught:
            PublicKey.from_pem(rsa_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        assert caught.value.code == "KEY_INVALID"

    def test_a_rejected_signature_has_a_reason(self) -> None:
        envelope = lock_signature.parse(toolpin_envelope(PLAIN, ADA))
        assert isinstance(envelope, ToolPinEnvelope)
        digest = envelope.lock_digest
        assert lock_signature.verify(envelope, digest, ADA.public_key) is None
        for problem, word in (
            (lock_signature.verify(envelope, POLICY, ADA.public_key), "for the lock"),
            (lock_signature.verify(envelope, digest, ADA.public_key, policy_digest=POLICY), "for the policy"),
            (lock_signature.verify(envelope, digest, BOB.public_key), "by the key"),
            (lock_signature.verify(replace(envelope, signature=b"\0" * 64), digest, ADA.public_key), "did not make"),
        ):
            assert word in str(problem)


class TestSeveralKeys:
    def test_all_named_signers_must_have_signed_in_one_envelope_or_several(self) -> None:
        both = RequiredSigners(names=("ada", "bob"), threshold=2)
        assert verify_signatures(SEALED, [dsse(SEALED, ADA, BOB)], KEYS, both).ok
        assert verify_signatures(SEALED, [dsse(SEALED, ADA), dsse(SEALED, BOB)], KEYS, both).ok
        assert verify_signatures(PLAIN, [toolpin_envelope(PLAIN, ADA), dsse(PLAIN, BOB)], KEYS, both).ok
        report = verify_signatures(SEALED, [dsse(SEALED, ADA)], KEYS, both)
        assert report.missing == ("the signature of bob", "2 signatures by different keys; found 1")

    def test_a_second_signature_can_be_added_later(self) -> None:
        first = lock_signature.sign_file(SEALED, [ADA], NOON)
        second = lock_signature.countersign(first, SEALED, BOB)
        twice = lock_signature.countersign(second, SEALED, BOB)
        assert twice == second
        both = RequiredSigners(threshold=2)
        assert verify_signatures(SEALED, [lock_signature.encode_dsse(second)], KEYS, both).ok

    def test_a_statement_about_another_file_is_not_countersigned(self) -> None:
        with pytest.raises(PinwardenError) as caught:
            lock_signature.countersign(lock_signature.sign_file(PLAIN, [EVE], NOON), SEALED, BOB)
        assert caught.value.code == "SIGNATURE_INVALID"

    def test_one_key_under_two_names_is_one_signature(self) -> None:
        keys = {"ada": ADA.public_key, "ada again": ADA.public_key}
        report = verify_signatures(SEALED, [dsse(SEALED, ADA)], keys, RequiredSigners(threshold=2))
        assert (report.ok, report.signers) == (False, ("ada", "ada again"))

    def test_an_unknown_key_and_a_repeated_signature_do_not_count(self) -> None:
        envelopes = [dsse(SEALED, EVE), dsse(SEALED, ADA), dsse(SEALED, ADA)]
        report = verify_signatures(SEALED, envelopes, KEYS, RequiredSigners(threshold=2))
        assert (report.ok, report.signers, len(report.rejected)) == (False, ("ada",), 1)

    def test_a_required_signer_without_a_key_is_never_met(self) -> None:
        report = verify_signatures(SEALED, [dsse(SEALED, ADA, BOB)], KEYS, RequiredSigners(names=("carol",)))
        assert report.missing == ("the signature of carol",)

    def test_an_invalid_envelope_beside_a_valid_one_is_reported_and_ignored(self) -> None:
        bad = [b"", b"[]", b"{}", b'{"payloadType":"text/plain"}', edited(dsse(SEALED, ADA), payload="e30=")]
        report = verify_signatures(SEALED, [*bad, dsse(SEALED, ADA)], KEYS, ONE)
        assert (report.ok, len(report.rejected)) == (True, len(bad))

    def test_no_envelope_or_a_policy_that_requires_nothing_is_refused(self) -> None:
        assert not verify_signatures(SEALED, [], KEYS, ONE).ok
        with pytest.raises(PinwardenError) as caught:
            RequiredSigners(threshold=0)
        assert caught.value.code == "SIGNATURE_INVALID"


class TestCoverage:
    def test_a_changed_byte_anywhere_in_the_file_breaks_the_dsse_form(self) -> None:
        for changed in (SEALED + b"\n", SEALED.replace(b"  ", b" ", 1), SEALED.replace(b"ada@", b"eve@", 1)):
            assert not verify_signatures(changed, [dsse(SEALED, ADA)], KEYS, ONE).ok

    def test_toolpins_envelope_does_not_count_for_an_extended_lock_unless_allowed(self) -> None:
        """It would still be valid after the extension was rewritten and resealed."""
        envelope = toolpin_envelope(SEALED, ADA)
        assert not verify_signatures(SEALED, [envelope], KEYS, ONE).ok
        assert verify_signatures(SEALED, [envelope], KEYS, RequiredSigners(accept_partial=True)).ok
