"""Strict JSON: what is refused, with which code, and that nothing else ever escapes."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinwarden import Limits, PinwardenError, parse_json
from pinwarden.core import strict_json


def code_of(data: bytes, limits: Limits | None = None) -> str:
    with pytest.raises(PinwardenError) as caught:
        parse_json(data, limits or Limits())
    return caught.value.code


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b' {"a" : [1, -2.5e3, true] }\n', {"a": [1, -2500.0, True]}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b"9" * 1000, int("9" * 1000)),
        (b'"' + b"7" * 5000 + b'"', "7" * 5000),
        (b'{"hash":"1e999","n":1}', {"hash": "1e999", "n": 1}),
        (b"1e-9999", 0.0),
        (b"0." + b"0" * 400 + b"1e401", 1.0),
        (b"1" * 308 + b".5", float("1" * 308 + ".5")),
    ],
)
def test_strict_json_is_read_with_its_exact_values(data: bytes, value: Any) -> None:
    assert parse_json(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1,]",
        b"NaN",
        b"[-Infinity]",
        b"1e400",
        b"-1E+400",
        b'{"a":1e400}',
        b"9" * 400 + b".0",
        b"9" * 300 + b"e10",
        b"1" * 100 + b"E+250",
        b"0.0001e9999",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'"\xed\xa0\x80"',
        b'"\xc0\xaf"',
        b"'a'",
        b"01",
        b'"a\nb"',
        b"{} {}",
        b'{"a":1,"a":2',
        b'{"a":1,"a":2} x',
    ],
)
def test_text_that_is_not_json_is_a_parse_error(data: bytes) -> None:
    assert code_of(data) == "JSON_PARSE_ERROR"


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":[{"c":1,"\\u0063":2}]}}',
        b'"\\ud800"',
        b'{"\\udc00":1}',
        b'["\\ude00\\ud83d"]',
    ],
)
def test_well_formed_text_without_a_single_meaning_is_a_canonicalization_error(data: bytes) -> None:
    assert code_of(data) == "JSON_CANONICALIZATION_ERROR"


def test_a_syntax_error_is_reported_before_a_repeated_member() -> None:
    assert code_of(b'{"a":1,"a":2,}') == "JSON_PARSE_ERROR"
    assert code_of(b'{"a":1,"a":1e400}') == "JSON_PARSE_ERROR"


def test_the_repeated_member_is_named_with_its_invisible_characters_shown() -> None:
    with pytest.raises(PinwardenError, match=r"'a\\u200b' occurs more than once"):
        parse_json('{"a\u200b":1,"a\u200b":2}'.encode())


def test_only_bytes_are_json_text() -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_json("{}")  # type: ignore[arg-type]
    assert caught.value.code == "JSON_PARSE_ERROR"


LONG = b"1" * 300


@pytest.mark.parametrize(
    ("data", "exactly"),
    [
        (b'["%b"]' % LONG, False),
        (b'{"%b":"%b","a":1}' % (LONG, LONG), False),
        (b'["\\"%b"]' % LONG, False),
        (b'["\\\\\\"%b"]' % LONG, False),
        (b'["a","\\\\%b","%b"]' % (LONG, LONG), False),
        (b"[%b]" % LONG, True),
        (b'["%b",%b]' % (LONG, LONG), True),
        (b'["\\\\",%b]' % LONG, True),
        (b'{"a\\"":-%b}' % LONG, True),
        (b"[1.%b]" % LONG, True),
    ],
)
def test_attack_only_long_numbers_are_read_slowly_and_not_long_strings_of_digits(
    data: bytes, exactly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a string of 209 digits before half a million members, so that all of them are read the slow way."""
    slow: list[bytes] = []
    exact = strict_json._parse_exactly

    def noted(data: bytes, limits: Limits) -> Any:
        slow.append(data)
        return exact(data, limits)

    monkeypatch.setattr(strict_json, "_parse_exactly", noted)
    assert parse_json(data) == json.loads(data)
    assert bool(slow) == exactly


@pytest.mark.parametrize("member", [b'"k7":0', b'"\\u006b7":0', b'"x":{"a":1,"a":2}', b'"x":[{"":1,"":1}]'])
def test_a_member_that_occurs_twice_among_very_many_is_refused(member: bytes) -> None:
    members = b",".join(b'"k%d":":\\":"' % number for number in range(60_000))
    value = parse_json(b'[{%b},[{"y":{}}]]' % members)
    assert (len(value[0]), value[0]["k59999"], value[1]) == (60_000, ':":', [{"y": {}}])
    assert code_of(b"{%b,%b}" % (members, member)) == "JSON_CANONICALIZATION_ERROR"


class TestLimits:
    def test_200_levels_are_read_and_202_are_not(self) -> None:
        assert parse_json(b"[" * 200 + b"1" + b"]" * 200) is not None
        for data in (b"[" * 202 + b"]" * 202, b"[" * 201 + b"1" + b"]" * 201, b'{"a":' * 202 + b"1" + b"}" * 202):
            assert code_of(data) == "JSON_PARSE_ERROR"

    def test_a_lower_depth_limit_is_exact(self) -> None:
        limits = Limits(max_depth=3)
        assert parse_json(b'[{"a":[1]}]', limits) == [{"a": [1]}]
        assert code_of(b'[{"a":[[]]}]', limits) == "JSON_PARSE_ERROR"

    def test_a_depth_limit_above_the_parsers_has_no_effect(self) -> None:
        assert code_of(b"[" * 202 + b"]" * 202, Limits(max_depth=10_000)) == "JSON_PARSE_ERROR"

    def test_the_same_depth_holds_for_lenient_readers(self) -> None:
        assert strict_json.parse_last_wins(b"[" * 200 + b"1" + b"]" * 200) is not None
        with pytest.raises(PinwardenError):
            strict_json.parse_last_wins(b"[" * 202 + b"]" * 202)

    @pytest.mark.parametrize("number", [b"9" * 1001, b"0." + b"1" * 5000, b"1e" + b"0" * 1001, b"-" + b"1" * 5000])
    def test_a_very_long_number_is_refused_unread(self, number: bytes) -> None:
        with pytest.raises(PinwardenError, match="digits in a row") as caught:
            parse_json(b"[" + number + b"]")
        assert caught.value.code == "JSON_PARSE_ERROR"

    def test_a_string_of_50_megabytes_is_refused_in_bounded_memory(self) -> None:
        data = b'"' + b"a" * 50_000_000 + b'"'
        tracemalloc.start()
        try:
            with pytest.raises(PinwardenError, match="too many bytes"):
                parse_json(data)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("bomb", [b"[" * 30_000_000, b'{"a":' * 6_000_000, b"[[],{}," * 4_000_000])
    def test_a_depth_bomb_ends_in_an_error(self, bomb: bytes) -> None:
        assert code_of(bomb) == "JSON_PARSE_ERROR"

    @pytest.mark.parametrize(
        ("unit", "weight"),
        [(b"[],", 3), (b"{   },", 6), (b'{"a":0},', 7), (b"7,", 1), (b'"a,[{",', 1), (b'"\\"{\\\\",', 1)],
    )
    def test_values_are_counted_by_memory_use_and_only_outside_of_strings(self, unit: bytes, weight: int) -> None:
        data = b"[" + unit * 50_000 + b"1]"
        within = Limits(max_values=2 + weight * 50_000)
        assert len(parse_json(data, within)) == 50_001
        with pytest.raises(PinwardenError, match="too many values") as caught:
            parse_json(data, Limits(max_values=1 + weight * 50_000))
        assert caught.value.code == "JSON_PARSE_ERROR"
        assert caught.value.data == {"limit": "values", "found": 2 + weight * 50_000, "allowed": 1 + weight * 50_000}
        with pytest.raises(PinwardenError, match="too many values"):
            strict_json.parse_last_wins(data, Limits(max_values=1 + weight * 50_000))

    def test_a_long_string_full_of_commas_is_one_value(self) -> None:
        data = b'["' + b'[{,\\"' * 2_000_000 + b'"]'
        assert parse_json(data) == ['[{,"' * 2_000_000]

    def test_many_repeated_members_do_not_cost_quadratic_time(self) -> None:
        members = b",".join(b'"k%d":0' % (n // 2) for n in range(400_000))
        assert code_of(b"{" + members + b"}") == "JSON_CANONICALIZATION_ERROR"


def test_a_memory_bomb_of_empty_arrays_is_refused_before_it_takes_memory() -> None:
    # 64 MiB that would become 1.3 GiB; the process may have 512 MiB in all.
    code = """
import resource
from pinwarden import Limits, PinwardenError, parse_json
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
try:
    parse_json(b"[" + b"[]," * ((64 << 20) // 3) + b"[]]", Limits(max_bytes=128 << 20))
except PinwardenError as err:
    print(err.code, err.data["limit"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("JSON_PARSE_ERROR values\n", "")


json_like = st.text(alphabet='{}[]",:\\ue0123456789.+-E\ud800\u200baN', max_size=60).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)


@given(st.binary(max_size=200) | json_like)
@example(b"\x00")
@example(b'{"a":1e309}')
def test_for_any_bytes_only_a_pinwarden_error_escapes(data: bytes) -> None:
    for read in (parse_json, strict_json.parse_last_wins):
        try:
            read(data)
        except PinwardenError as err:
            assert err.code in ("JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR")


@given(json_like)
def test_the_standard_library_agrees_with_the_strict_parser(data: bytes) -> None:
    try:
        value = parse_json(data)
    except PinwardenError:
        return
    assert value == json.loads(data.decode())


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_json_of_the_standard_library_is_parsed_to_equal_values(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse_json(text.encode()) == value
