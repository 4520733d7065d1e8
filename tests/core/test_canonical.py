"""Canonical forms against independent implementations, and the two paths against each other."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from pinwarden import Limits, PinwardenError, canonicalize, parse_json
from pinwarden.core.canonical import PROFILES, _encode_exactly, encode_without_floats, format_ecmascript_number
from tests.support.needs import needs

text = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
names = text | st.sampled_from(["0", "9", "10", "01", "4294967294", "4294967295", "__proto__", "\ue000", "\U0001f600"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=25,
)


@given(values)
@example([1e20, 12345678901234567168.0, 2.0**53, -0.0, 1e-7, 5e-324])
@example({"\ufb33": 1, "\U0001f600": 2})
def test_jcs_equals_the_rfc8785_package(value: Any) -> None:
    assert canonicalize(value, "jcs") == rfc8785.dumps(value)


@given(values, st.sampled_from(sorted(PROFILES)))
@example([1e20, 12345678901234567168.0], "jcs")
@example({"__proto__": 1}, "fusion")
def test_canonicalizing_twice_changes_nothing(value: Any, profile: str) -> None:
    try:
        once = canonicalize(value, profile)
    except PinwardenError as err:
        assert err.code == "JSON_CANONICALIZATION_ERROR"
        return
    assert canonicalize(once, profile) == once
    if profile == "jcs":
        assert canonicalize(parse_json(once), "jcs") == once


@given(values, st.sampled_from(sorted(PROFILES)))
@example({"a": "\x7f"}, "hangar-1.2")
@example([251, 1.5], "jcs")
@example([251, 1e16], "rulebook")
@example([251, -1e-7], "jcs")
@example([251, {"n": 5e-324}], "jcs")
@example([{"b": 1, "10": 2, "9": 3}], "toolpin")
@example([{"e\u0301": 1}], "toolpin")
def test_the_fast_path_writes_the_bytes_of_the_exact_path(value: Any, profile: str) -> None:
    form = PROFILES[profile]
    plain = encode_without_floats(value)
    if plain is not None and form.matches_orjson(plain[0]):
        assert plain[0] == _encode_exactly(value, form)


@given(values)
@example(1e16)
@example([251, -5e-324])
def test_no_value_with_a_float_is_ever_called_plain(value: Any) -> None:
    def holds_float(item: Any) -> bool:
        if isinstance(item, dict):
            return any(map(holds_float, item.values()))
        return any(map(holds_float, item)) if isinstance(item, list) else isinstance(item, float)

    assert encode_without_floats(value) is None or not holds_float(value)


def test_an_integer_with_the_byte_that_marks_floats_does_not_slow_a_document_down() -> None:
    assert encode_without_floats({"size_bytes": [251, 64251, 16_777_467], "text": "x" * 251}) is not None


@given(values)
def test_the_form_of_hangar_1_2_is_what_json_dumps_writes(value: Any) -> None:
    expected = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    assert canonicalize(value, "hangar-1.2") == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-9, "1.5e-9"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (4.35, "4.35"),
        (333333333.33333329, "333333333.3333333"),
    ],
)
def test_numbers_are_laid_out_as_ecmascript_does(number: float, text: str) -> None:
    assert format_ecmascript_number(number) == text


@needs("node", install="apt-get install nodejs")
def test_numbers_equal_those_of_node_over_random_doubles() -> None:
    import random

    source = random.Random(8785)
    doubles = [struct.unpack("<d", source.randbytes(8))[0] for _ in range(20_000)]
    doubles += [source.uniform(-1e6, 1e6) for _ in range(5_000)]
    doubles += [float(source.randrange(10**n)) for n in range(1, 25) for _ in range(100)]
    doubles += [10.0**n for n in range(-30, 30)] + [2.0**n for n in range(-80, 80)]
    doubles = [number for number in doubles if math.isfinite(number)]
    script = (
        "const b = require('fs').readFileSync(0); const out = [];"
        "for (let i = 0; i < b.length; i += 8) out.push(String(b.readDoubleLE(i)));"
        "process.stdout.write(out.join('\\n'))"
    )
    node = shutil.which("node")
    assert node is not None
    packed = struct.pack(f"<{len(doubles)}d", *doubles)
    answer = subprocess.run([node, "-e", script], input=packed, capture_output=True, check=True)
    for number, expected in zip(doubles, answer.stdout.decode().split("\n"), strict=True):
        assert format_ecmascript_number(number) == expected


class TestIntegersThatADoubleCannotHold:
    @pytest.mark.parametrize("profile", ["jcs", "rulebook"])
    @pytest.mark.parametrize("integer", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 10**21, 10**400])
    def test_they_are_refused_by_the_strict_forms(self, profile: str, integer: int) -> None:
        for data in (integer, str(integer).encode()):
            with pytest.raises(PinwardenError) as caught:
                canonicalize(data, profile)
            assert caught.value.code == "JSON_CANONICALIZATION_ERROR"

    def test_jcs_uses_the_spelling_of_ecmascript(self) -> None:
        assert canonicalize(b"100000000000000000000", "jcs") == b"100000000000000000000"
        with pytest.raises(PinwardenError):
            canonicalize(b"100000000000000000001", "jcs")

    def test_no_two_texts_share_a_form_under_the_rulebook(self) -> None:
        for data in (b"1e20", b"9007199254740992", b"9007199254740992.0"):
            with pytest.raises(PinwardenError):
                canonicalize(data, "rulebook")
        assert canonicalize(b"1e21", "rulebook") == b"1e+21"

    def test_the_collisions_of_hangar_are_reproduced(self) -> None:
        assert canonicalize(2**53 + 1, "hangar") == canonicalize(2**53, "hangar") == b"9007199254740992"

    def test_javascript_forms_turn_overflow_into_null(self) -> None:
        assert canonicalize(b"[1e400,%d]" % 10**400, "toolpin") == b"[null,null]"
        assert canonicalize(b"[-1e400]", "fusion") == b"[null]"


class TestValuesThatAreNotJson:
    @pytest.mark.parametrize("profile", sorted(PROFILES))
    @pytest.mark.parametrize("value", [{1: 2}, {None: 1}, {"a": object()}, {1, 2}, b"x".decode, {"a": b"x"}])
    def test_they_are_refused(self, profile: str, value: Any) -> None:
        with pytest.raises(PinwardenError) as caught:
            canonicalize(value, profile)
        assert caught.value.code == "JSON_CANONICALIZATION_ERROR"

    @pytest.mark.parametrize("profile", ["jcs", "rulebook", "hangar"])
    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_nan_and_infinities_never_become_null(self, profile: str, number: float) -> None:
        with pytest.raises(PinwardenError):
            canonicalize({"default": number}, profile)

    @pytest.mark.parametrize("profile", ["jcs", "rulebook", "hangar"])
    def test_lone_surrogates_are_refused(self, profile: str) -> None:
        for value in ("\ud800", {"\udfff": 1}, ["a\ud800"]):
            with pytest.raises(PinwardenError):
                canonicalize(value, profile)

    @pytest.mark.parametrize("profile", sorted(PROFILES))
    def test_a_value_that_contains_itself_ends_in_an_error(self, profile: str) -> None:
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(PinwardenError) as caught:
            canonicalize(loop, profile)
        assert caught.value.code == "JSON_CANONICALIZATION_ERROR"

    def test_a_value_of_100000_levels_ends_in_an_error(self) -> None:
        value: Any = None
        for _ in range(100_000):
            value = [value]
        with pytest.raises(PinwardenError):
            canonicalize(value)

    def test_a_form_larger_than_the_limit_is_refused(self) -> None:
        with pytest.raises(PinwardenError, match="the limit is 100"):
            canonicalize("a" * 200, "jcs", Limits(max_bytes=100))


def test_an_unknown_profile_is_named_with_the_known_ones() -> None:
    with pytest.raises(PinwardenError, match=r"known: jcs, rulebook, toolpin, fusion, hangar-1\.2, hangar") as caught:
        canonicalize({}, "canonical")
    assert caught.value.code == "PROFILE_UNKNOWN"


def test_profiles_disagree_where_their_originals_do() -> None:
    value = {"10": 1.0, "9": "é", "\U0001f600": 1, "\ue000": 2}
    forms = {name: canonicalize(value, name).decode() for name in PROFILES}
    assert forms == {
        "jcs": '{"10":1,"9":"é","\U0001f600":1,"\ue000":2}',
        "rulebook": '{"10":1,"9":"é","\ue000":2,"\U0001f600":1}',
        "toolpin": '{"9":"é","10":1,"\U0001f600":1,"\ue000":2}',
        "fusion": '{"9":"é","10":1,"\U0001f600":1,"\ue000":2}',
        "hangar-1.2": '{"10":1.0,"9":"\\u00e9","\\ue000":2,"\\ud83d\\ude00":1}',
        "hangar": '{"10":1,"9":"é","\U0001f600":1,"\ue000":2}',
    }
