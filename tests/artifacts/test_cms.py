"""Signatures of bundles: every verdict beside openssl's, and where ours is stricter, the test says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwarden.artifacts import cms
from pinwarden.artifacts.artifact import FileSignature
from pinwarden.artifacts.cms import load_anchors
from pinwarden.artifacts.cms_signed_data import parse_signed_data
from pinwarden.core import der
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from tests.support.bundles import (
    Identity,
    Wish,
    authority,
    issue,
    issued_with_sha1,
    needs_openssl,
    openssl_says,
    rsa_key,
    sign_with_openssl,
)

pytestmark = needs_openssl
CONTENT = b"PK the content of a bundle"


def now() -> str:
    return datetime.now(UTC).isoformat()


def judge(
    folder: Path, signature: bytes, *anchors: Identity, content: bytes = CONTENT, at: str | None = None
) -> FileSignature:
    trusted = load_anchors(each.pem.decode() for each in anchors)
    return cms.verify_signature(
        signature, lambda name: Digest.of_bytes(content, name), anchors=trusted, now=at or now()
    )


def both(folder: Path, signature: bytes, *anchors: Identity, content: bytes = CONTENT) -> tuple[str, str, str]:
    """Our state and reason, and openssl's state."""
    found = judge(folder, signature, *anchors, content=content)
    return found.state, found.reason, openssl_says(folder, content, signature, anchors)


# Building and taking apart DER, for signatures that no program would make


def tlv(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def rebuilt(signature: bytes, change: Callable[[list[bytes]], None]) -> bytes:
    """The signature with the parts of its one signer changed."""
    outer = list(der.parse_der(signature, 0x30).children())
    body = list(next(iter(outer[1].children())).children())
    signer = [each.encoded for each in next(iter(body[-1].children())).children()]
    change(signer)
    parts = [each.encoded for each in body[:-1]]
    return tlv(0x30, outer[0].encoded, tlv(0xA0, tlv(0x30, *parts, tlv(0x31, tlv(0x30, *signer)))))


def resigned(signature: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """The signature over changed attributes, by the signer's own key."""

    def sign(parts: list[bytes]) -> None:
        attributes = change([each.encoded for each in der.parse_der(parts[3], 0xA0).children()])
        parts[3] = tlv(0xA0, *attributes)
        parts[5] = tlv(0x04, rsa_key().sign(tlv(0x31, *attributes), padding.PKCS1v15(), hashes.SHA256()))

    return rebuilt(signature, sign)


class TestGoodSignatures:
    def test_a_signature_under_a_trusted_authority_is_valid(self, tmp_path: Path) -> None:
        root = authority()
        signer = issue(Wish(), root)
        signature = sign_with_openssl(tmp_path, CONTENT, signer)
        found = judge(tmp_path, signature, root)
        assert (found.state, found.reason) == ("valid", "")
        assert (found.subject, found.issuer) == ("CN=Acme Notes", "CN=Acme Root")
        assert found.fingerprint == Digest.parse(f"sha256:{signer.fingerprint}")
        assert found.signed_at is not None
        assert openssl_says(tmp_path, CONTENT, signature, [root]) == "valid"

    @pytest.mark.parametrize("digest", ["sha256", "sha384", "sha512"])
    @pytest.mark.parametrize("kind", ["rsa", "pss", "p256", "p384", "p521"])
    def test_every_usual_key_and_hash_is_understood(self, tmp_path: Path, digest: str, kind: str) -> None:
        root = authority()
        curves = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}
        key = ec.generate_private_key(curves[kind]) if kind in curves else rsa_key()
        options = ["-md", digest, *(["-keyopt", "rsa_padding_mode:pss"] if kind == "pss" else [])]
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(key=key), root), *options)
        assert both(tmp_path, signature, root) == ("valid", "", "valid")
        assert both(tmp_path, signature, root, content=CONTENT + b"x")[::2] == ("invalid", "invalid")

    def test_ed25519_is_understood_as_rfc_8419_has_it(self, tmp_path: Path) -> None:
        root = authority(key=ed25519.Ed25519PrivateKey.generate())
        key = ed25519.Ed25519PrivateKey.generate()
        signer = issue(Wish(key=key), root)
        # OpenSSL 3.0 makes none: the signature of another key is replaced.
        template = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root), "-md", "sha512")
        raw = signer.certificate.public_bytes(Encoding.DER)

        def change(parts: list[bytes]) -> None:
            attributes = bytes([0x31]) + parts[3][1:]
            parts[1] = tlv(0x30, issuer_der(raw), serial_der(raw))
            parts[4] = tlv(0x30, bytes.fromhex("06032b6570"))
            parts[5] = tlv(0x04, key.sign(attributes))

        signature = with_certificates(rebuilt(template, change), raw)
        assert judge(tmp_path, signature, root).state == "valid"
        assert judge(tmp_path, signature, root, content=b"other").state == "invalid"

    def test_a_signer_named_by_its_key_is_found(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root), "-keyid")
        assert both(tmp_path, signature, root) == ("valid", "", "valid")

    def test_authorities_in_between_come_with_the_signature(self, tmp_path: Path) -> None:
        root = authority()
        between = issue(Wish(name="Acme Issuing", key=rsa_key(2), authority=True, path_length=0), root)
        signer = issue(Wish(), between)
        signature = sign_with_openssl(tmp_path, CONTENT, signer, certificates=[between])
        assert both(tmp_path, signature, root) == ("valid", "", "valid")
        alone = sign_with_openssl(tmp_path, CONTENT, signer)
        reason = "no trusted authority issued the signer's certificate"
        assert both(tmp_path, alone, root) == ("valid-untrusted", reason, "valid-untrusted")

    def test_a_signer_can_be_trusted_directly(self, tmp_path: Path) -> None:
        signer = issue(Wish())
        signature = sign_with_openssl(tmp_path, CONTENT, signer)
        assert both(tmp_path, signature, signer) == ("valid", "", "valid")


class TestUntrustedSigners:
    """A valid signature by an untrusted signer."""

    def verdict(self, folder: Path, signer: Identity, root: Identity, *between: Identity) -> tuple[str, str, str]:
        return both(folder, sign_with_openssl(folder, CONTENT, signer, certificates=between), root)

    def test_a_self_signed_signer_is_unknown(self, tmp_path: Path) -> None:
        reason = "the signer's certificate is self-signed"
        untrusted = ("valid-untrusted", reason, "valid-untrusted")
        assert self.verdict(tmp_path, issue(Wish()), authority()) == untrusted

    def test_without_trusted_certificates_no_signer_is_trusted(self, tmp_path: Path) -> None:
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), authority()))
        reason = "the policy names no trusted certificate"
        assert both(tmp_path, signature) == ("valid-untrusted", reason, "valid-untrusted")

    def test_attack_another_authority_of_the_same_name_is_not_trusted(self, tmp_path: Path) -> None:
        signer = issue(Wish(), authority(number=2))
        reason = "the signature of a certificate in the path does not match its issuer's key"
        assert self.verdict(tmp_path, signer, authority()) == ("valid-untrusted", reason, "valid-untrusted")

    @pytest.mark.parametrize("days", [(-20, -10), (10, 20)], ids=["expired", "not yet valid"])
    def test_attack_a_certificate_outside_its_time_is_not_trusted(self, tmp_path: Path, days: tuple[int, int]) -> None:
        state, reason, oracle = self.verdict(tmp_path, issue(Wish(days=days), authority()), authority())
        assert (state, oracle) == ("valid-untrusted", "valid-untrusted")
        assert "valid" in reason  # signed outside its time, too

    def test_attack_a_key_that_expired_cannot_date_its_signature_back(self, tmp_path: Path) -> None:
        root = authority(days=(-10, 1000))
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(days=(-10, 10)), root))
        later = (datetime.now(UTC) + timedelta(days=20)).isoformat()
        found = judge(tmp_path, signature, root, at=later)
        assert found.state == "valid-untrusted"
        assert found.reason.startswith("a certificate in the path expired on ")

    def test_attack_a_signature_from_the_future_is_not_trusted(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root))
        earlier = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        assert judge(tmp_path, signature, root, at=earlier).reason == "the signing time is in the future"

    def test_attack_an_expired_authority_is_not_trusted(self, tmp_path: Path) -> None:
        root = authority(days=(-20, -1))
        state, reason, oracle = self.verdict(tmp_path, issue(Wish(), root), root)
        assert (state, oracle) == ("valid-untrusted", "valid-untrusted")
        assert reason.startswith("a certificate in the path expired on ")

    def test_attack_an_ordinary_certificate_does_not_issue_others(self, tmp_path: Path) -> None:
        root = authority()
        no_authority = issue(Wish(name="Somebody", key=rsa_key(2)), root)
        signer = issue(Wish(), no_authority)
        reason = "an issuer in the certificate path is not a certificate authority"
        untrusted = ("valid-untrusted", reason, "valid-untrusted")
        assert self.verdict(tmp_path, signer, root, no_authority) == untrusted

    def test_attack_an_authority_without_the_right_to_issue_is_not_trusted(self, tmp_path: Path) -> None:
        root = authority(may_sign=False)
        reason = "the key usage of an issuer in the certificate path does not allow signing certificates"
        untrusted = ("valid-untrusted", reason, "valid-untrusted")
        assert self.verdict(tmp_path, issue(Wish(), root), root) == untrusted

    def test_attack_an_authority_deeper_than_allowed_is_not_trusted(self, tmp_path: Path) -> None:
        root = authority(path_length=0)
        between = issue(Wish(name="Deeper", key=rsa_key(2), authority=True), root)
        reason = "the certificate path is longer than the path length constraint of an authority allows"
        untrusted = ("valid-untrusted", reason, "valid-untrusted")
        assert self.verdict(tmp_path, issue(Wish(), between), root, between) == untrusted

    def test_attack_a_condition_that_is_not_understood_is_not_passed_over(self, tmp_path: Path) -> None:
        root = authority()
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
        signer = issue(Wish(extra=[(unknown, True)]), root)
        reason = "a certificate in the path has an unsupported extension (1.2.3.4.5)"
        assert self.verdict(tmp_path, signer, root) == ("valid-untrusted", reason, "valid-untrusted")

    @pytest.mark.parametrize("critical", [True, False])
    def test_attack_name_constraints_are_not_trusted_stricter_than_openssl(
        self, tmp_path: Path, critical: bool
    ) -> None:
        limits = x509.NameConstraints(permitted_subtrees=[x509.DNSName("example.org")], excluded_subtrees=None)
        root = authority()
        between = issue(Wish(name="Limited", key=rsa_key(2), authority=True, extra=[(limits, critical)]), root)
        state, reason, oracle = self.verdict(tmp_path, issue(Wish(), between), root, between)
        assert (state, oracle) == ("valid-untrusted", "valid")
        assert reason == "a certificate in the path has an unsupported extension (2.5.29.30)"

    def test_attack_the_certificate_of_a_web_server_signs_no_code_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        signer = issue(Wish(purposes=[ExtendedKeyUsageOID.SERVER_AUTH]), root)
        reason = "the extended key usage of a certificate in the path does not allow code signing"
        assert self.verdict(tmp_path, signer, root) == ("valid-untrusted", reason, "valid")

    def test_attack_a_key_for_encryption_signs_nothing_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        signer = issue(Wish(may_sign=False, purposes=None), root)
        reason = "the key usage of the signer's certificate does not allow signatures"
        assert self.verdict(tmp_path, signer, root) == ("valid-untrusted", reason, "valid")

    def test_attack_a_certificate_signed_with_sha1_proves_nothing_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        state, reason, oracle = self.verdict(tmp_path, issued_with_sha1(tmp_path, root), root)
        assert (state, reason, oracle) == (
            "valid-untrusted",
            "a certificate in the path is signed with the weak hash sha1",
            "valid",
        )

    def test_attack_authorities_in_a_circle_end(self, tmp_path: Path) -> None:
        first = authority("First", 2)
        second = authority("Second", 3)
        one = issue(Wish(name="First", key=rsa_key(2), authority=True), second)
        two = issue(Wish(name="Second", key=rsa_key(3), authority=True), first)
        signer = issue(Wish(), one)
        state, _, oracle = self.verdict(tmp_path, signer, authority(), one, two)
        assert (state, oracle) == ("valid-untrusted", "valid-untrusted")


class TestFalseSignatures:
    @pytest.fixture
    def made(self, tmp_path: Path) -> tuple[bytes, Identity]:
        root = authority()
        return sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root)), root

    def refused(self, folder: Path, signature: bytes, root: Identity) -> str:
        state, reason, oracle = both(folder, signature, root)
        assert (state, oracle) == ("invalid", "invalid")
        return reason

    def test_attack_one_more_byte_of_content(self, tmp_path: Path, made: tuple[bytes, Identity]) -> None:
        signature, root = made
        state, reason, oracle = both(tmp_path, signature, root, content=CONTENT + b"\0")
        assert (state, reason, oracle) == ("invalid", "the signature is for different content", "invalid")

    def test_attack_a_message_digest_changed_to_fit(self, tmp_path: Path, made: tuple[bytes, Identity]) -> None:
        signature, root = made
        old, new = hashlib.sha256(CONTENT).digest(), hashlib.sha256(b"evil").digest()
        forged = signature.replace(old, new)
        state, reason, oracle = both(tmp_path, forged, root, content=b"evil")
        assert (state, reason, oracle) == ("invalid", "the signature was not made by the signer's key", "invalid")

    def test_attack_signed_attributes_stripped(self, tmp_path: Path, made: tuple[bytes, Identity]) -> None:
        signature, root = made
        assert self.refused(tmp_path, rebuilt(signature, lambda parts: parts.__delitem__(3)), root) == (
            "the signature has no signed attributes"
        )

    def test_attack_the_attributes_of_a_signature_passed_off_as_a_content_stricter_than_openssl(
        self, tmp_path: Path, made: tuple[bytes, Identity]
    ) -> None:
        signature, root = made
        taken: list[bytes] = []
        forged = rebuilt(signature, lambda parts: taken.append(parts.pop(3)))
        content = bytes([0x31]) + taken[0][1:]
        state, reason, oracle = both(tmp_path, forged, root, content=content)
        assert (state, reason) == ("invalid", "the signature has no signed attributes")
        assert oracle == "valid"  # the very attack: openssl believes that this was signed

    def test_attack_attributes_in_another_order(self, tmp_path: Path, made: tuple[bytes, Identity]) -> None:
        signature, root = made

        def change(parts: list[bytes]) -> None:
            attributes = [each.encoded for each in der.parse_der(parts[3], 0xA0).children()]
            parts[3] = tlv(0xA0, *reversed(attributes))

        assert self.refused(tmp_path, rebuilt(signature, change), root)

    def test_attack_signature_by_another_key(self, tmp_path: Path) -> None:
        root = authority()
        honest, other = issue(Wish(), root), issue(Wish(), root)
        mixed = Identity(key=rsa_key(5), certificate=honest.certificate)
        theirs = Identity(key=rsa_key(5), certificate=issue(Wish(key=rsa_key(5)), root).certificate)
        raw = mixed.certificate.public_bytes(Encoding.DER)
        signature = sign_with_openssl(tmp_path, CONTENT, theirs)

        def change(parts: list[bytes]) -> None:
            parts[1] = tlv(0x30, issuer_der(raw), serial_der(raw))

        forged = with_certificates(rebuilt(signature, change), raw)
        assert self.refused(tmp_path, forged, root) == "the signature was not made by the signer's key"
        assert other.fingerprint != honest.fingerprint

    def test_attack_no_certificate_of_the_signer(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root), "-nocerts")
        reason = self.refused(tmp_path, signature, root)
        assert reason == "the signature must have one certificate for its signer, but has 0"

    def test_attack_sha1_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root), "-md", "sha1")
        state, reason, oracle = both(tmp_path, signature, root)
        assert (state, oracle) == ("invalid", "valid")
        assert reason.startswith("the signature uses an unsupported hash algorithm")

    def test_attack_an_rsa_key_of_1024_bits_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(key=rsa_key(9, 1024)), root))
        state, reason, oracle = both(tmp_path, signature, root)
        assert (state, reason) == ("invalid", "the signature uses an RSA key of 1024 bits")
        assert oracle in ("valid", "valid-untrusted")

    def test_attack_embedded_content_is_refused_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root), "-nodetach")
        assert judge(tmp_path, signature, root).reason == "the signature includes content, but must be detached"

    def test_a_signature_without_attributes_is_refused_stricter_than_openssl(self, tmp_path: Path) -> None:
        root = authority()
        signature = sign_with_openssl(tmp_path, CONTENT, issue(Wish(), root), "-noattr")
        assert both(tmp_path, signature, root) == ("invalid", "the signature has no signed attributes", "valid")

    def test_attack_two_signers_stricter_than_openssl(self, tmp_path: Path, made: tuple[bytes, Identity]) -> None:
        signature, root = made
        outer = list(der.parse_der(signature, 0x30).children())
        body = list(next(iter(outer[1].children())).children())
        signer = next(iter(body[-1].children())).encoded
        parts = [each.encoded for each in body[:-1]]
        doubled = tlv(0x30, outer[0].encoded, tlv(0xA0, tlv(0x30, *parts, tlv(0x31, signer, signer))))
        assert judge(tmp_path, doubled, root).reason == "the signature must have one signer, but has 2"

    def test_attack_a_content_type_that_is_not_the_signed_one_stricter_than_openssl(
        self, tmp_path: Path, made: tuple[bytes, Identity]
    ) -> None:
        signature, root = made
        data_oid, other = bytes.fromhex("06092a864886f70d010701"), bytes.fromhex("06092a864886f70d010702")
        forged = resigned(signature, lambda attributes: [each.replace(data_oid, other) for each in attributes])
        reason = "the signature has a signed content type other than data"
        assert both(tmp_path, forged, root) == ("invalid", reason, "valid")

    def test_attack_an_attribute_twice_stricter_than_openssl(
        self, tmp_path: Path, made: tuple[bytes, Identity]
    ) -> None:
        signature, root = made
        doubled = resigned(signature, lambda attributes: [*attributes, attributes[-1]])
        assert judge(tmp_path, doubled, root).reason == "the signature has a signed attribute twice"
        honest = resigned(signature, lambda attributes: attributes)
        assert both(tmp_path, honest, root) == ("valid", "", "valid")

    def test_attack_a_hash_that_was_not_announced_stricter_than_openssl(
        self, tmp_path: Path, made: tuple[bytes, Identity]
    ) -> None:
        signature, root = made
        outer = list(der.parse_der(signature, 0x30).children())
        body = [each.encoded for each in next(iter(outer[1].children())).children()]
        body[1] = tlv(0x31)
        silent = tlv(0x30, outer[0].encoded, tlv(0xA0, tlv(0x30, *body)))
        reason = "the signature does not list the hash algorithm that its signer used"
        assert judge(tmp_path, silent, root).reason == reason

    def test_attack_a_certificate_of_a_version_that_does_not_exist_is_refused_and_not_a_crash(
        self, tmp_path: Path, made: tuple[bytes, Identity]
    ) -> None:
        signature, root = made
        third, fourth = bytes.fromhex("a003020102"), bytes.fromhex("a003020103")
        assert third in signature
        assert judge(tmp_path, signature.replace(third, fourth), root).state == "invalid"

    @given(st.data())
    @settings(max_examples=60)
    def test_attack_any_changed_byte_is_noticed_or_unsigned(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder, signature, root = _made_once(tmp_path_factory)
        at = data.draw(st.integers(0, len(signature) - 1))
        bit = data.draw(st.integers(0, 7))
        changed = signature[:at] + bytes([signature[at] ^ 1 << bit]) + signature[at + 1 :]
        found = judge(folder, changed, root)
        if found.state == "valid":
            # Nothing that was signed has changed, and openssl agrees.
            assert parse_signed_data(changed).attributes == parse_signed_data(signature).attributes
            assert openssl_says(folder, CONTENT, changed, [root]) == "valid"

    def test_attack_a_certificate_signature_with_unused_bits_is_refused(self) -> None:
        """openssl refuses it too; cryptography ignores the byte."""
        certificates = (issue(Wish(), authority()).certificate.public_bytes(Encoding.DER) for _ in range(200))
        encoded = next(certificate for certificate in certificates if certificate[-1] & 1 == 0)
        length = len(x509.load_der_x509_certificate(encoded).signature)
        changed = encoded[: -length - 1] + b"\x01" + encoded[-length:]
        with pytest.raises(PinwardenError) as caught:
            cms.load_certificate(changed)
        assert caught.value.code == "SIGNATURE_INVALID"

    @given(st.binary(max_size=300))
    def test_attack_any_bytes_are_judged_and_never_crash(self, data: bytes) -> None:
        assert cms.verify_signature(data, lambda name: Digest.of_bytes(CONTENT, name), now=now()).state == "invalid"

    @pytest.mark.parametrize(
        "encoded",
        ["3080020101", "308103020101", "30820003020101", "30030201", "3f0100", "30040202007f00", "2403040100", ""],
        ids=["indefinite", "long length", "zero in length", "cut", "long tag", "trailing", "pieces", "nothing"],
    )
    def test_attack_encodings_that_der_forbids(self, encoded: str) -> None:
        found = cms.verify_signature(bytes.fromhex(encoded), lambda name: Digest.of_bytes(CONTENT, name), now=now())
        assert found.state == "invalid"


class TestAnchors:
    def test_a_text_without_certificates_is_an_error_and_not_an_empty_list(self) -> None:
        for text in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "hello"):
            with pytest.raises(PinwardenError) as caught:
                load_anchors([text])
            assert caught.value.code == "POLICY_INVALID"

    def test_every_certificate_of_every_text_is_read(self) -> None:
        first, second = authority("First", 1), authority("Second", 2)
        assert len(load_anchors([(first.pem + second.pem).decode(), first.pem.decode()])) == 3


_MADE: list[tuple[Path, bytes, Identity]] = []


def _made_once(factory: pytest.TempPathFactory) -> tuple[Path, bytes, Identity]:
    if not _MADE:
        folder, root = factory.mktemp("made"), authority()
        _MADE.append((folder, sign_with_openssl(folder, CONTENT, issue(Wish(), root)), root))
    return _MADE[0]


def issuer_der(certificate: bytes) -> bytes:
    parts = list(next(iter(der.parse_der(certificate, 0x30).children())).children())
    return parts[3].encoded


def serial_der(certificate: bytes) -> bytes:
    parts = list(next(iter(der.parse_der(certificate, 0x30).children())).children())
    return parts[1].encoded


def with_certificates(signature: bytes, *certificates: bytes) -> bytes:
    outer = list(der.parse_der(signature, 0x30).children())
    body = [each.encoded for each in next(iter(outer[1].children())).children()]
    body[3] = tlv(0xA0, *certificates)
    return tlv(0x30, outer[0].encoded, tlv(0xA0, tlv(0x30, *body)))
