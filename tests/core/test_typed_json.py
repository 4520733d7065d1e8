"""A typed reader of JSON returns members of the requested type, or names the path of the invalid one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.typed_json import JsonObject

DIGEST = f"sha256:{'0' * 64}"
DOCUMENT = {
    "text": "a",
    "number": 3,
    "flag": True,
    "null": None,
    "texts": ["a", "b"],
    "rows": [{"digest": DIGEST}, {"digest": "x"}],
    "map": {"a": "b"},
    "objects": {"one": {"text": 1}},
}


def error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("DOCUMENT_INVALID", f"{path} {problem}", data={"path": path})


def reader(separator: str = "/") -> JsonObject:
    return JsonObject(DOCUMENT, "", error, separator=separator)


def test_members_of_the_requested_type_are_returned() -> None:
    document = reader()
    assert (document.string("text"), document.integer("number"), document.boolean("flag")) == ("a", 3, True)
    assert (document.strings("texts"), document.string_map("map")) == (("a", "b"), {"a": "b"})
    assert document.one_of("text", ("a", "b")) == "a"
    assert document.optional_number("number") == 3
    assert document.objects("rows")[0].parse_string("digest", Digest.parse) == Digest.parse(DIGEST)


def test_a_default_replaces_a_missing_member_but_not_null() -> None:
    document = reader()
    assert document.string("missing", default="x") == "x"
    assert document.strings("missing", default=[]) == ()
    assert document.boolean("missing", default=False) is False
    for read in (lambda: document.string("null", default="x"), lambda: document.strings("null", default=[])):
        with pytest.raises(PinwardenError):
            read()


def test_an_optional_member_may_be_missing_or_null() -> None:
    document = reader()
    for name in ("missing", "null"):
        assert document.optional_string(name) is None
        assert document.optional_object(name) is None
        assert document.optional_number(name) is None
        assert document.strings(name, optional=True) == ()
        assert document.string_map(name) == {}


@pytest.mark.parametrize(
    ("read", "path"),
    [
        (lambda document: document.string("number"), "number"),
        (lambda document: document.string("text", re.compile("[0-9]+"), kind="digits"), "text"),
        (lambda document: document.string("missing"), "missing"),
        (lambda document: document.integer("flag"), "flag"),
        (lambda document: document.integer("number", minimum=4), "number"),
        (lambda document: document.integer("number", maximum=2), "number"),
        (lambda document: document.optional_number("flag"), "flag"),
        (lambda document: document.boolean("number"), "number"),
        (lambda document: document.one_of("text", ("b",)), "text"),
        (lambda document: document.strings("rows"), "rows"),
        (lambda document: document.array("rows", max_items=1), "rows"),
        (lambda document: document.array("rows", min_items=3), "rows"),
        (lambda document: document.objects("texts"), "texts/0"),
        (lambda document: document.objects("rows")[1].parse_string("digest", Digest.parse), "rows/1/digest"),
        (lambda document: dict(document.object("objects").members())["one"].string("text"), "objects/one/text"),
        (lambda document: dict(document.object("map").members()), "map/a"),
    ],
)
def test_an_error_names_the_path_of_the_invalid_member(read: Callable[[JsonObject], Any], path: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        read(reader())
    assert (caught.value.code, caught.value.data["path"]) == ("DOCUMENT_INVALID", path)


def test_a_path_with_dots_has_its_indexes_in_brackets() -> None:
    assert reader(".").objects("rows")[1].path_of("digest") == "rows[1].digest"
