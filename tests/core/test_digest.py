"""Digests: both spellings, and nothing that merely looks like one."""

from __future__ import annotations

import io
import pickle
from hashlib import sha256, sha512

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import Digest, PinwardenError

HEX = sha256(b"abc").hexdigest()
SRI = "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="


def test_both_spellings_name_the_same_digest() -> None:
    digest = Digest.of_bytes(b"abc")
    assert (str(digest), digest.hex, digest.sri) == (f"sha256:{HEX}", HEX, SRI)
    assert Digest.parse(f"sha256:{HEX}") == Digest.parse(f"sha256:{HEX.upper()}") == Digest.parse(SRI) == digest
    assert len({digest, Digest.parse(SRI)}) == 1


def test_longer_algorithms_are_understood_and_never_equal_to_others() -> None:
    digest = Digest.of_bytes(b"abc", "sha512")
    assert digest.raw == sha512(b"abc").digest()
    assert Digest.parse(digest.sri) == digest != Digest.of_bytes(b"abc")


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEX,
        f"md5:{HEX}",
        f"SHA256:{HEX}",
        f"sha256:{HEX[:-1]}",
        f"sha256:{HEX}0",
        f"sha256:{HEX[:-2]} 0",
        f"sha256: {HEX}",
        f"sha512:{HEX}",
        SRI[:-1],
        SRI + "\n",
        SRI.replace("+", "-"),
        "sha256-" + "A" * 42 + "B=",  # stray bits: not the one spelling of its bytes
        "sha256:" + "\u0660" * 64,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        Digest.parse(text)
    assert caught.value.code == "DIGEST_INVALID"


def test_values_other_than_strings_are_refused() -> None:
    with pytest.raises(PinwardenError):
        Digest.parse(None)  # type: ignore[arg-type]
    with pytest.raises(PinwardenError):
        Digest(b"short")
    with pytest.raises(PinwardenError):
        Digest.of_bytes(b"", "md5")


def test_a_stream_is_digested_to_its_end() -> None:
    data = bytes(range(256)) * 20_000
    assert Digest.of_stream(io.BytesIO(data)) == Digest.of_bytes(data)


def test_a_digest_does_not_change_and_survives_copying() -> None:
    digest = Digest.of_bytes(b"abc")
    with pytest.raises(AttributeError):
        digest.raw = b""
    assert pickle.loads(pickle.dumps(digest)) == digest
    assert digest != str(digest)


@given(st.text(max_size=100))
def test_for_any_text_only_a_pinwarden_error_escapes(text: str) -> None:
    for attempt in (text, "sha256:" + text, "sha256-" + text):
        try:
            assert Digest.parse(attempt)
        except PinwardenError as err:
            assert err.code == "DIGEST_INVALID"
