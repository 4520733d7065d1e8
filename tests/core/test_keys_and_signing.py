"""Keys, signatures over fields, and DSSE envelopes: strict where common libraries are lax."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError, PrivateKey, PublicKey, signing_preimage, verify_signature
from pinwarden.core.keys import (
    decode_base64url,
    dsse_preimage,
    encode_base64url,
    is_document_signature_valid,
    sign_document,
    sign_dsse,
    verify_dsse,
)
from tests.support.needs import needs

KEY = PrivateKey.from_seed(bytes(range(32)))
OTHER = PrivateKey.from_seed(bytes(32))
PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493


class TestPublicKeys:
    def test_every_encoding_reads_back(self) -> None:
        key = KEY.public_key
        for text in (key.did, key.base64url, key.pem().decode()):
            assert PublicKey.parse(text) == key
        assert key.did.startswith("did:key:z6Mk")

    @needs("openssl", install="apt-get install openssl")
    def test_pem_and_fingerprint_are_those_of_openssl(self, tmp_path: Path) -> None:
        (tmp_path / "key.pem").write_bytes(KEY.pem())
        der = subprocess.run(
            ["openssl", "pkey", "-in", "key.pem", "-pubout", "-outform", "DER"],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        ).stdout
        assert der == KEY.public_key.spki

    def test_all_points_of_small_order_are_refused(self) -> None:
        """Under such a key one signature fits many messages."""
        points = small_order_points()
        assert len(points) == 8
        for x, y in points:
            with pytest.raises(PinwardenError, match="small order") as caught:
                PublicKey(encode_point(x, y))
            assert caught.value.code == "KEY_INVALID"

    @pytest.mark.parametrize("y", [PRIME, PRIME + 1, 2**255 - 1])
    @pytest.mark.parametrize("sign", [0, 1 << 255])
    def test_encodings_outside_the_field_are_refused(self, y: int, sign: int) -> None:
        with pytest.raises(PinwardenError, match="canonical encoding"):
            PublicKey((y | sign).to_bytes(32, "little"))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "did:key:z6MkDIFFERENTKEY123456789",
            "did:web:example.com",
            KEY.public_key.did + "1",
            KEY.public_key.did[:-1],
            KEY.public_key.base64url + "=",
            b64encode(KEY.public_key.raw).decode(),
            KEY.public_key.base64url[:-1] + "B",
            "-----BEGIN PUBLIC KEY-----",
            "did:key:z" + "1" * 5000,
            None,
        ],
    )
    def test_anything_else_is_refused(self, text: Any) -> None:
        with pytest.raises(PinwardenError) as caught:
            PublicKey.parse(text)
        assert caught.value.code == "KEY_INVALID"


def small_order_points() -> list[tuple[int, int]]:
    """The points whose eightfold is the neutral element, found by curve arithmetic and not from a list."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME

    def add(p: tuple[int, int], q: tuple[int, int]) -> tuple[int, int]:
        (x1, y1), (x2, y2) = p, q
        k = d * x1 * x2 * y1 * y2 % PRIME
        x3 = (x1 * y2 + x2 * y1) * pow(1 + k, -1, PRIME)
        y3 = (y1 * y2 + x1 * x2) * pow(1 - k, -1, PRIME)
        return x3 % PRIME, y3 % PRIME

    def times(n: int, p: tuple[int, int]) -> tuple[int, int]:
        total = (0, 1)
        while n:
            total = add(total, p) if n & 1 else total
            p, n = add(p, p), n >> 1
        return total

    def on_curve(y: int) -> tuple[int, int] | None:
        square = (y * y - 1) * pow(d * y * y + 1, -1, PRIME) % PRIME
        x = pow(square, (PRIME + 3) // 8, PRIME)
        if x * x % PRIME != square:
            x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
        return (x, y) if x * x % PRIME == square else None

    low_order: set[tuple[int, int]] = set()
    y = 2
    while len(low_order) < 8:  # any point times the large prime order lands in the small subgroup
        point = on_curve(y)
        if point is not None:
            corner = times(ORDER, point)
            low_order |= {times(n, corner) for n in range(8)}
        y += 1
    return sorted(low_order)


def encode_point(x: int, y: int) -> bytes:
    return (y | (x & 1) << 255).to_bytes(32, "little")


class TestPrivateKeys:
    def test_an_encrypted_key_opens_only_with_its_passphrase(self) -> None:
        pem = KEY.pem(b"correct horse")
        assert b"ENCRYPTED" in pem
        assert PrivateKey.from_pem(pem, b"correct horse").public_key == KEY.public_key
        for passphrase in (None, b"", b"wrong"):
            with pytest.raises(PinwardenError) as caught:
                PrivateKey.from_pem(pem, passphrase)
            assert caught.value.code == "KEY_PASSPHRASE_REQUIRED"

    def test_a_key_of_another_type_is_refused(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

        foreign = X25519PrivateKey.generate()
        private = foreign.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = foreign.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(PinwardenError, match="not an Ed25519 key") as refused_private:
            PrivateKey.from_pem(private)
        with pytest.raises(PinwardenError, match="not an Ed25519 key") as refused_public:
            PublicKey.from_pem(public)
        assert refused_private.value.code == refused_public.value.code == "KEY_INVALID"

    def test_garbage_and_short_seeds_are_refused(self) -> None:
        for read in (PrivateKey.from_pem, PrivateKey.from_seed):
            with pytest.raises(PinwardenError) as caught:
                read(b"garbage")
            assert caught.value.code == "KEY_INVALID"

    def test_the_secret_is_not_in_its_repr(self) -> None:
        assert repr(KEY) == f"PrivateKey(of {KEY.public_key.did})"


class TestSignatures:
    def test_a_signature_verifies_in_every_spelling_of_key_and_signature(self) -> None:
        signature = KEY.sign(b"message")
        key = KEY.public_key
        for public in (key, key.raw, key.did, key.base64url, key.pem().decode()):
            assert verify_signature(public, b"message", signature)
            assert verify_signature(public, b"message", encode_base64url(signature))
            assert not verify_signature(public, b"massage", signature)

    def test_a_malleable_signature_is_refused(self) -> None:
        signature = KEY.sign(b"message")
        raised = int.from_bytes(signature[32:], "little") + ORDER
        assert not verify_signature(KEY.public_key, b"message", signature[:32] + raised.to_bytes(32, "little"))

    @pytest.mark.parametrize("signature", [b"", b"\0" * 63, b"\0" * 64, "", "A" * 86, "=" * 88, "é"])
    def test_a_malformed_signature_is_not_valid(self, signature: bytes | str) -> None:
        assert verify_signature(KEY.public_key, b"message", signature) is False

    def test_an_unusable_key_is_an_error_not_an_invalid_signature(self) -> None:
        with pytest.raises(PinwardenError) as caught:
            verify_signature("did:key:zNotAKey", b"", b"")
        assert caught.value.code == "KEY_INVALID"

    def test_a_document_signature_of_an_unknown_key_or_form_is_not_valid(self) -> None:
        document = {"a": 1, "b": 2}
        signature = sign_document(document, ["/a"], KEY)
        assert is_document_signature_valid(document, signature, [OTHER.public_key, KEY.public_key])
        assert is_document_signature_valid({"a": 1, "b": "not covered"}, signature, [KEY.public_key])
        for broken in (
            None,
            {},
            {**signature, "alg": "none"},
            {**signature, "sig": None},
            {**signature, "signed_fields": None},
            {**signature, "signed_fields": "/a"},
            {**signature, "signed_fields": ["/missing"]},
            {**signature, "signed_fields": [1]},
            {**signature, "key_id": OTHER.public_key.did},
        ):
            assert not is_document_signature_valid(document, broken, [OTHER.public_key, KEY.public_key])
        assert not is_document_signature_valid(document, signature, [OTHER.public_key])


class TestPreimage:
    @pytest.mark.parametrize(
        "pointer",
        [
            "a",
            "/a/",
            "/list/2",
            "/list/-1",
            "/list/01",
            "/list/-",
            "/list/\u0661",
            "/~",
            "/~2",
            "/list/0/x",
            "/list/" + "9" * 5000,
        ],
    )
    def test_a_pointer_that_is_malformed_or_names_nothing_is_an_error(self, pointer: str) -> None:
        with pytest.raises(PinwardenError) as caught:
            signing_preimage({"a": 1, "list": [1, 2]}, [pointer])
        assert caught.value.code == "POINTER_PATH_INVALID"

    def test_fields_are_joined_by_single_zero_bytes_in_the_order_given(self) -> None:
        assert signing_preimage(b'{"b":1.0,"a":["x"]}', ["/a", "/b", ""]) == b'["x"]\x001\x00{"a":["x"],"b":1}'


class TestDsse:
    def test_the_preimage_is_that_of_the_specification(self) -> None:
        assert dsse_preimage("http://example.com/HelloWorld", b"hello world") == (
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        )

    def test_an_envelope_names_the_known_keys_that_signed_it(self) -> None:
        envelope = sign_dsse("text/x", b"payload", [KEY, OTHER])
        payload, signers = verify_dsse(envelope, "text/x", [OTHER.public_key])
        assert (payload, signers) == (b"payload", (OTHER.public_key,))

    def test_a_wrong_key_id_does_not_matter_because_it_is_only_a_hint(self) -> None:
        envelope = sign_dsse("text/x", b"payload", [KEY])
        envelope["signatures"][0]["keyid"] = OTHER.public_key.did
        assert verify_dsse(envelope, "text/x", [OTHER.public_key, KEY.public_key])[1] == (KEY.public_key,)

    @pytest.mark.parametrize(
        "change",
        [
            {"payloadType": "text/y"},
            {"payload": b64encode(b"other").decode()},
            {"payload": "!"},
            {"payload": None},
            {"signatures": []},
            {"signatures": None},
            {"signatures": [{"sig": "AAAA"}]},
            {"signatures": [None]},
        ],
    )
    def test_a_changed_envelope_is_refused(self, change: dict[str, Any]) -> None:
        envelope = {**sign_dsse("text/x", b"payload", [KEY]), **change}
        with pytest.raises(PinwardenError) as caught:
            verify_dsse(envelope, "text/x", [KEY.public_key])
        assert caught.value.code == "SIGNATURE_INVALID"


@given(st.binary(max_size=80))
def test_base64url_has_one_spelling_for_each_byte_string(data: bytes) -> None:
    assert decode_base64url(encode_base64url(data)) == data


@given(st.text(max_size=60))
def test_for_any_text_only_a_pinwarden_error_escapes(text: str) -> None:
    for attempt in (text, "did:key:z" + text, "-----BEGIN PUBLIC KEY-----\n" + text):
        try:
            PublicKey.parse(attempt)
        except PinwardenError as err:
            assert err.code == "KEY_INVALID"
