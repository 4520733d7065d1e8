"""DER: one encoding for each value, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.core import der
from pinwarden.core.errors import PinwardenError


def number(content: str) -> int:
    return der.parse_der(bytes([2, len(content) // 2]) + bytes.fromhex(content), der.INTEGER).integer


@given(st.integers(-(2**200), 2**200))
def test_integers_round_trip(value: int) -> None:
    size = (value + (value < 0)).bit_length() // 8 + 1
    assert number(value.to_bytes(size, "big", signed=True).hex()) == value


@pytest.mark.parametrize("content", ["", "0001", "007f", "ff80", "ffff"])
def test_attack_numbers_longer_than_needed(content: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        number(content)
    assert caught.value.code == "SIGNATURE_INVALID"


@pytest.mark.parametrize(
    ("encoded", "dotted"),
    [
        ("06092a864886f70d010702", "1.2.840.113549.1.7.2"),
        ("0603550403", "2.5.4.3"),
        ("0603883703", "2.999.3"),
        ("06032b6570", "1.3.101.112"),
    ],
)
def test_object_identifiers_are_read(encoded: str, dotted: str) -> None:
    assert der.parse_der(bytes.fromhex(encoded), der.OID).oid == dotted


@pytest.mark.parametrize("encoded", ["0600", "06028001", "060188", "0603558003"])
def test_attack_object_identifiers_with_a_second_spelling(encoded: str) -> None:
    with pytest.raises(PinwardenError):
        _ = der.parse_der(bytes.fromhex(encoded), der.OID).oid


@pytest.mark.parametrize(
    "encoded",
    [
        "3080",
        "308100",
        "30817f" + "00" * 127,
        "3082007f" + "00" * 127,
        "308500000000",
        "30",
        "3001",
        "300000",
        "1f0100",
    ],
)
def test_attack_lengths_and_tags_that_der_forbids(encoded: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        list(der.parse_der(bytes.fromhex(encoded), der.SEQUENCE).children())
    assert caught.value.code == "SIGNATURE_INVALID"


@given(st.binary(max_size=60))
def test_parsed_values_cover_all_bytes(data: bytes) -> None:
    try:
        values = list(der.DerReader(data))
    except PinwardenError:
        return
    assert b"".join(each.encoded for each in values) == data
