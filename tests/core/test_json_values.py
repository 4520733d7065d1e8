"""Line and column of a value in a JSON text."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_values import locate_pointers, resolve_pointer

LOCK = """{
  "lockfileVersion": 2,
  "servers": {
    "io.github.acme/notes:claude": {
      "name": "notes", "a~b": [10, {"": null}],
      "été": {"𝄞𝄞": true}
    }
  }
}
"""


def test_each_value_is_located_by_line_and_column() -> None:
    positions = locate_pointers(
        LOCK.encode(),
        (
            "",
            "/lockfileVersion",
            "/servers/io.github.acme~1notes:claude",
            "/servers/io.github.acme~1notes:claude/name",
            "/servers/io.github.acme~1notes:claude/a~0b/1",
            "/servers/io.github.acme~1notes:claude/a~0b/1/",
            "/servers/io.github.acme~1notes:claude/été/𝄞𝄞",
        ),
    )
    assert positions == {
        "": (1, 1),
        "/lockfileVersion": (2, 22),
        "/servers/io.github.acme~1notes:claude": (4, 36),
        "/servers/io.github.acme~1notes:claude/name": (5, 15),
        "/servers/io.github.acme~1notes:claude/a~0b/1": (5, 36),
        "/servers/io.github.acme~1notes:claude/a~0b/1/": (5, 41),
        "/servers/io.github.acme~1notes:claude/été/𝄞𝄞": (6, 21),
    }


@pytest.mark.parametrize(
    ("text", "pointer", "place"),
    [
        ('{"a": 1, "a": 2}', "/a", (1, 7)),
        ('{"a": {"b": 1}, "a": {"b": 2, "c": 3}}', "/a/b", (1, 13)),
        ('{"a": {"b": 1}, "a": {"c": 3}}', "/a/c", None),
        ('{"\\u0061": 1, "a": 2}', "/a", (1, 12)),
        ("[0, 1]", "/01", None),
        ("[0, 1]", "/-", None),
        ("[0, 1]", "/2", None),
        ('{"1": 5}', "/1", (1, 7)),
        ("[]", "/0", None),
        ("{}", "/", None),
        ("7", "/0", None),
        ("  7", "", (1, 3)),
        ('["]", "}\\"{", [[]], 3]', "/3", (1, 21)),
        ('{"a":\r\n\r\n 1}', "/a", (3, 2)),
        ('["\\n\\n",\n2]', "/1", (2, 1)),
    ],
)
def test_edge_cases_are_located_as_a_strict_parser_reads_them(
    text: str, pointer: str, place: tuple[int, int] | None
) -> None:
    assert locate_pointers(text.encode(), [pointer]).get(pointer) == place


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b'{"a"', b'{"a":', b"[1", b'["', b"{1:2}", b"[1 2]", b'{"a" 1}', b"[,]"]
)
def test_invalid_json_before_the_value_is_an_error_and_never_an_endless_loop(text: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        locate_pointers(text, ["/a", "/1"])
    assert caught.value.code == "JSON_PARSE_ERROR"


def test_a_malformed_pointer_is_an_error() -> None:
    for pointer in ("a", "/~2", "/a~"):
        with pytest.raises(PinwardenError) as caught:
            locate_pointers(b"{}", [pointer])
        assert caught.value.code == "POINTER_PATH_INVALID"


def test_deep_nesting_is_supported() -> None:
    depth = 50_000
    assert locate_pointers(b"[" * depth + b"]" * depth, ["", "/0", "/1"]) == {"": (1, 1), "/0": (1, 2)}
    pointer = "/0" * 3_000
    assert locate_pointers(b"[" * depth + b"]" * depth, [pointer]) == {pointer: (1, 3_001)}


def test_many_pointers_into_one_long_line_take_linear_time() -> None:
    def seconds(count: int) -> float:
        data = json.dumps([{"name": f"server {number}", "notes": ["x"] * 20} for number in range(count)]).encode()
        pointers = [f"/{number}/notes/3" for number in range(count)]
        started = time.process_time()
        assert len(locate_pointers(data, pointers)) == count
        return time.process_time() - started

    # Ten times the work; a hundred times if it were quadratic. A slow moment of the machine is given another chance.
    small = min(seconds(1_000) for _ in range(3))
    assert any(seconds(10_000) < 50 * small for _ in range(3))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=5),
    max_leaves=30,
)


@given(values, st.sampled_from([None, 0, 1, 3]), st.booleans())
def test_every_value_of_any_text_is_located(value: Any, indent: int | None, ascii_only: bool) -> None:
    """The text from the place on begins with the value: read by the standard library, which knows where it ends."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    pointers = list(_pointers(value))
    positions = locate_pointers(text.encode(), pointers)
    assert list(positions) == pointers
    lines = text.split("\n")
    for pointer, (line, column) in positions.items():
        rest = "\n".join(lines[line - 1 :])[column - 1 :]
        assert json.JSONDecoder().raw_decode(rest)[0] == resolve_pointer(value, pointer)


def _pointers(value: Any, path: str = "") -> Any:
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _pointers(inner, f"{path}/" + str(step).replace("~", "~0").replace("/", "~1"))
