"""The surface document: verbatim, honest on screen, readable in a diff, and refused once it was edited."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError, tool_digest
from pinwarden.core.record import replace
from pinwarden.core.text import INVISIBLE
from pinwarden.surface import surface as surfaces
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, RESOURCE, TEMPLATE, TOOL, Item, Surface
from tests.conformance.vectors import vectors_dir

LISTINGS = sorted((vectors_dir() / "real-servers").glob("*.json"))

LISTING: dict[str, Any] = {
    "serverInfo": {"name": "notes", "version": "1.0.0"},
    "capabilities": {"tools": {"listChanged": True}},
    "instructions": "Ask before you delete.",
    "tools": [
        {
            "name": "write",
            "description": "Write a note to the shared folder.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            "annotations": {"readOnlyHint": False},
            "unknownToAnySdk": {"kept": [1, None, ""]},
        },
        {"name": "read", "description": "Read a note.", "inputSchema": {"type": "object"}},
    ],
    "prompts": [{"name": "summary", "arguments": [{"name": "topic", "required": True}]}],
    "resources": [{"uri": "file:///notes/a.md", "name": "a"}],
    "resourceTemplates": [{"uriTemplate": "file:///notes/{name}.md", "name": "any note"}],
}


def written(listing: dict[str, Any]) -> bytes:
    return surfaces.encode_surface(surfaces.surface_from_listing(listing))


def with_tool(**members: Any) -> dict[str, Any]:
    return {"tools": [{"name": "t", **members}]}


def refusal(data: bytes) -> str:
    with pytest.raises(PinwardenError) as caught:
        surfaces.parse_surface(data)
    return caught.value.code


# Round trip


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_a_real_listing_survives_the_file_unchanged(path: Any) -> None:
    listing = json.loads(path.read_bytes())
    surface = surfaces.parse_surface(written(listing))
    for kind in ITEM_KINDS:
        sent = listing.get(kind.member, [])
        assert sorted(map(dump, (item.value for item in surface.items_of_kind(kind)))) == sorted(map(dump, sent))
    for member in surfaces.SERVER_MEMBERS:
        assert (surface.server or {}).get(member) == listing["initialize"].get(member)
    assert surface.digest == surfaces.surface_from_listing(listing).digest
    assert surfaces.encode_surface(surface) == written(listing)


def dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def test_every_item_is_kept_complete_including_unknown_members() -> None:
    surface = surfaces.parse_surface(written(LISTING))
    items = {item.key: item for item in surface.all_items()}
    assert items["write"].value == LISTING["tools"][0]
    assert items["write"].digest == tool_digest(LISTING["tools"][0])
    assert set(items["write"].field_digests()) == set(LISTING["tools"][0])
    assert [items[key].kind for key in ("summary", "file:///notes/a.md", "file:///notes/{name}.md")] == [
        PROMPT,
        RESOURCE,
        TEMPLATE,
    ]
    assert surface.server == {member: LISTING[member] for member in surfaces.SERVER_MEMBERS}


def test_a_plain_listing_and_a_surface_file_are_both_read() -> None:
    plain = surfaces.parse_surface_or_listing(json.dumps(LISTING).encode())
    assert surfaces.parse_surface_or_listing(written(LISTING)).digest == plain.digest


def test_how_a_surface_was_observed_is_kept_and_is_not_part_of_its_digest() -> None:
    plain = surfaces.surface_from_listing(LISTING)
    seen = Surface(server=plain.server, items=plain.items, observed={"protocol": "2025-06-18", "pages": {"tools": 2}})
    read = surfaces.parse_surface(surfaces.encode_surface(seen))
    assert read.observed == {"protocol": "2025-06-18", "pages": {"tools": 2}}
    assert read.digest == plain.digest


def test_order_of_tools_and_of_members_is_no_difference() -> None:
    turned = {
        name: [dict(reversed(item.items())) for item in reversed(value)] if isinstance(value, list) else value
        for name, value in reversed(LISTING.items())
    }
    assert written(turned) == written(LISTING)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=4), st.text())
def test_whatever_a_server_sends_is_read_back_as_it_was_sent(tools: list[dict[str, Any]], instructions: str) -> None:
    named = [{**tool, "name": f"t{place}"} for place, tool in enumerate(tools)]
    surface = surfaces.surface_from_listing({"instructions": instructions, "tools": named})
    data = surfaces.encode_surface(surface)
    read = surfaces.parse_surface(data)
    assert {item.key: item.value for item in read.items_of_kind(TOOL)} == {tool["name"]: tool for tool in named}
    assert read.server == {"instructions": instructions}
    assert read.digest == surface.digest
    assert surfaces.encode_surface(read) == data
    assert not INVISIBLE.search(data.decode().replace("\n", ""))


# Absence


def test_absent_null_and_empty_are_three_different_things() -> None:
    listings = [with_tool(), with_tool(description=None), with_tool(description=""), with_tool(description=[])]
    read = [surfaces.parse_surface(written(listing)) for listing in listings]
    assert [surface.items_of_kind(TOOL)[0].value for surface in read] == [listing["tools"][0] for listing in listings]
    assert len({surface.digest for surface in read}) == 4


def test_a_list_that_is_not_offered_differs_from_an_empty_one() -> None:
    absent, empty = (
        surfaces.parse_surface(written({"tools": []})),
        surfaces.parse_surface(written({"tools": [], "prompts": []})),
    )
    assert "prompts" not in absent.items
    assert empty.items["prompts"] == ()
    assert absent.digest != empty.digest


def test_a_server_answer_that_was_not_recorded_differs_from_one_without_instructions() -> None:
    assert surfaces.parse_surface(written({"tools": []})).server is None
    assert surfaces.parse_surface(written({"tools": [], "capabilities": {}})).server == {"capabilities": {}}


# What a person sees


@pytest.mark.parametrize(
    ("character", "escape"),
    [
        ("\u200b", "\\u200b"),  # zero width
        ("\u202e", "\\u202e"),  # right-to-left override
        ("\u2066", "\\u2066"),  # isolate
        ("\U000e0041", "\\udb40\\udc41"),  # tag block
        ("\ufe0f", "\\ufe0f"),  # variation selector
        ("\U000e0101", "\\udb40\\udd01"),  # variation selector supplement
        ("\u001b", "\\u001b"),  # escape, the start of terminal commands
        ("\u007f", "\\u007f"),
        ("\u0085", "\\u0085"),
        ("\u2028", "\\u2028"),
        ("\u00a0", "\\u00a0"),
        ("\u00ad", "\\u00ad"),
        ("\ufeff", "\\ufeff"),
        ("\ue000", "\\ue000"),  # private use
        ("\r", "\\r"),
        ("\n", "\\n"),
    ],
)
@pytest.mark.parametrize("place", ["description", "member name", "instructions", "tool name"])
def test_a_character_that_cannot_be_seen_is_spelt_out_in_the_file(character: str, escape: str, place: str) -> None:
    text = f"a\\{character}b"  # after a backslash, where a careless escape would change the meaning
    listings: dict[str, dict[str, Any]] = {
        "description": {"tools": [{"name": "t", "description": text}]},
        "member name": {"tools": [{"name": "t", text: 1}]},
        "instructions": {"instructions": text, "tools": []},
        "tool name": {"tools": [{"name": text}]},
    }
    listing = listings[place]
    data = written(listing)
    assert f"a\\\\{escape}b" in data.decode()
    assert character == "\n" or character not in data.decode()
    read = surfaces.parse_surface(data)
    assert [item.value for item in read.items_of_kind(TOOL)] == listing["tools"]
    assert (read.server or {}).get("instructions") == listing.get("instructions")


def test_visible_text_of_any_script_stays_readable() -> None:
    text = "Größe · 大きさ · размер · גודל · 😀"
    assert text in written(with_tool(description=text)).decode()


# What a diff shows


def changed_lines(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = difflib.unified_diff(written(before).decode().split("\n"), written(after).decode().split("\n"), n=0)
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


def test_one_changed_word_shows_as_one_line_of_text_and_four_of_digests() -> None:
    after = json.loads(json.dumps(LISTING).replace("shared folder", "public folder"))
    lines = changed_lines(LISTING, after)
    assert len(lines) == 10
    assert [line for line in lines if "sha256:" not in line] == [
        '-      "description": "Write a note to the shared folder.",',
        '+      "description": "Write a note to the public folder.",',
    ]


def test_a_hidden_instruction_is_visible_in_the_diff() -> None:
    """Attack: text in the Unicode tag block, which a model reads and a terminal does not show."""
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm")
    after = json.loads(json.dumps(LISTING))
    after["tools"][1]["description"] += hidden
    assert '+      "description": "Read a note.\\udb40\\udc72\\udb40\\udc6d",' in changed_lines(LISTING, after)


def test_an_added_tool_leaves_the_lines_of_the_others_alone() -> None:
    after = {**LISTING, "tools": [{"name": "move"}, *LISTING["tools"]]}
    removed = [line for line in changed_lines(LISTING, after) if line[0] == "-"]
    assert [line.split('"')[1] for line in removed] == ["surface", "integrity"]


def test_the_file_is_sorted_indented_by_two_and_ends_with_one_newline() -> None:
    data = written(LISTING)
    assert json.dumps(json.loads(data), indent=2, sort_keys=True).encode() + b"\n" == data


# Edited files


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shared folder", "public folder"),
        ('"readOnlyHint": false', '"readOnlyHint": true'),
        ("Ask before you delete.", "Delete without asking."),
        ('"version": "1.0.0"', '"version": "1.0.1"'),
        ('"name": "topic"', '"name": "topics"'),
        ("file:///notes/a.md", "file:///notes/b.md"),
        ('"required": true', '"required": 1'),
        ('"listChanged": true', '"listChanged": 1'),
        ('"key": "read"', '"key": "reed"'),
        ('"tools": [', '"tool": ['),
    ],
)
def test_an_edited_text_is_refused(old: str, new: str) -> None:
    data = written(LISTING).decode()
    assert old in data
    assert refusal(data.replace(old, new).encode()) == "SURFACE_INVALID"


def test_an_edited_digest_is_refused_wherever_it_stands() -> None:
    data = written(LISTING).decode()
    places = [place for place in range(len(data)) if data.startswith("sha256:", place)]
    assert len(places) > 15
    for place in places:
        digit = data[place + 7]
        edited = data[: place + 7] + ("0" if digit != "0" else "1") + data[place + 8 :]
        assert refusal(edited.encode()) == "SURFACE_INVALID"


def test_an_item_moved_to_another_list_is_refused() -> None:
    document = json.loads(written(LISTING))
    document["prompts"].append(document["tools"].pop())
    assert refusal(json.dumps(document).encode()) == "SURFACE_INVALID"


@pytest.mark.parametrize("member", ["digests", "tools", "prompts", "server", "observed", "format"])
def test_a_file_without_one_of_its_parts_is_refused(member: str) -> None:
    document = json.loads(written(LISTING))
    del document[member]
    assert refusal(json.dumps(document).encode()) == "SURFACE_INVALID"


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("format", "pinwarden-surface/2"),
        ("server", []),
        ("observed", None),
        ("tools", {}),
        ("undigestable", {}),
        ("undigestable", [{"kind": "spoon", "problem": "p"}]),
        ("undigestable", [{"kind": "tool"}]),
        ("undigestable", []),
    ],
)
def test_a_malformed_part_is_refused(member: str, value: Any) -> None:
    document = {**json.loads(written(LISTING)), member: value}
    assert refusal(json.dumps(document).encode()) == "SURFACE_INVALID"


def test_a_member_twice_in_the_file_is_refused() -> None:
    """Attack: the reader of the diff sees one text, the reader of the file takes the other."""
    data = written(LISTING).replace(b'"observed": {}', b'"observed": {}, "observed": {}')
    assert refusal(data) == "JSON_CANONICALIZATION_ERROR"


def test_white_space_and_member_order_of_the_file_are_no_edit() -> None:
    document = json.loads(written(LISTING))
    assert surfaces.parse_surface(json.dumps(dict(reversed(document.items()))).encode()) == surfaces.parse_surface(
        written(LISTING)
    )


@pytest.mark.parametrize("listing", [None, [], "x", {"tools": {}}, {"tools": None}, {"initialize": []}])
def test_what_is_no_listing_is_refused(listing: Any) -> None:
    with pytest.raises(PinwardenError) as caught:
        surfaces.surface_from_listing(listing)
    assert caught.value.code == "SURFACE_INVALID"


# Undigestable items

UNDIGESTABLE = [
    b'{"name":"bad","description":"\\ud800"}',
    b'{"name":"bad","inputSchema":{"maximum":' + b"9" * 400 + b"}}",
    b'{"name":"bad","name":"good"}',
    b'{"name":"bad","description":"\xff"}',
    b'{"name":"bad",',
    b'{"description":"no name"}',
    b'{"name":""}',
    b'{"name":7}',
    b"null",
    b'["bad"]',
]


@pytest.mark.parametrize("text", UNDIGESTABLE)
def test_an_undigestable_item_survives_the_file_and_never_hides_the_others(text: bytes) -> None:
    bad, good = Item.from_json_text(TOOL, text), Item.from_value(TOOL, {"name": "good"})
    surface = Surface(server={"instructions": "i"}, items={"tools": (bad, good)}, observed={})
    assert bad.digest is None
    assert bad.problem
    data = surfaces.encode_surface(surface)
    read = surfaces.parse_surface(data)
    assert read.undigestable == (bad,)
    assert [item.value for item in read.items_of_kind(TOOL) if item.digest] == [{"name": "good"}]
    assert read.digest is None
    assert json.loads(data)["digests"]["surface"] is None
    assert surfaces.encode_surface(read) == data


def test_undigestable_items_of_every_kind_keep_their_kind() -> None:
    items = {kind.member: (Item.from_json_text(kind, b'{"\\ud800":1}'),) for kind in ITEM_KINDS}
    read = surfaces.parse_surface(surfaces.encode_surface(Surface(server=None, items=items, observed={})))
    assert [item.kind for item in read.undigestable] == list(ITEM_KINDS)
    assert read.items == items


def test_a_huge_undigestable_item_is_cut_and_still_reported() -> None:
    bad = Item.from_json_text(TOOL, b'{"name":"\\ud800","description":"' + b"x" * 1_000_000 + b'"}')
    data = surfaces.encode_surface(Surface(server=None, items={"tools": (bad,)}, observed={}))
    assert len(data) < 10_000
    assert surfaces.parse_surface(data).undigestable == (bad,)


def test_an_undigestable_item_that_was_removed_or_moved_to_the_good_ones_is_refused() -> None:
    bad = Item.from_value(TOOL, {"description": "no name"})
    document = json.loads(surfaces.encode_surface(Surface(server=None, items={"tools": (bad,)}, observed={})))
    removed = {name: value for name, value in document.items() if name != "undigestable"}
    assert refusal(json.dumps(removed).encode()) == "SURFACE_INVALID"
    assert refusal(json.dumps({**removed, "tools": [{"description": "no name"}]}).encode()) == "SURFACE_INVALID"


def test_two_items_of_one_name_are_both_kept() -> None:
    listing = {"tools": [{"name": "t", "description": "one"}, {"name": "t", "description": "two"}]}
    read = surfaces.parse_surface(written(listing))
    assert sorted(item.value["description"] for item in read.items_of_kind(TOOL)) == ["one", "two"]
    assert read.digest == surfaces.surface_from_listing(listing).digest


def test_edited_instructions_are_refused_even_beside_an_undigestable_item() -> None:
    listing = {**LISTING, "tools": [{"name": "bad", "inputSchema": {"maximum": 10**400}}]}
    text = written(listing).decode()
    assert surfaces.parse_surface(text.encode()).digest is None
    for before, after in (('"instructions": "', '"instructions": "Also. '), ("beyond 2^53-1", "fine")):
        assert before in text
        with pytest.raises(PinwardenError) as caught:
            surfaces.parse_surface(text.replace(before, after, 1).encode())
        assert caught.value.code == "SURFACE_INVALID"


def test_an_item_nested_too_deeply_for_the_file_is_undigestable_and_the_file_can_be_read() -> None:
    deep: Any = {}
    for _ in range(190):
        deep = {"p": deep}
    surface = surfaces.surface_from_listing({"tools": [{"name": "deep", "inputSchema": deep}, {"name": "good"}]})
    assert [(item.name, item.problem) for item in surface.undigestable] == [
        ("deep", "it is nested more than 150 levels deep")
    ]
    assert [
        item.name for item in surfaces.parse_surface(surfaces.encode_surface(surface)).items_of_kind(ITEM_KINDS[0])
    ] == [
        "good",
        "deep",
    ]


def test_a_server_answer_without_a_canonical_form_leaves_the_surface_without_a_digest() -> None:
    surface = surfaces.surface_from_listing({"capabilities": {"x": 10**400}, "tools": []})
    assert surface.digest is None
    assert surface.problem == f"serverInfo, capabilities or instructions: {surface.server_problem}"
    assert surfaces.parse_surface(surfaces.encode_surface(surface)).server == surface.server


def test_undigestable_items_keep_their_own_names() -> None:
    surface = surfaces.surface_from_listing({"tools": [{"name": name, "maximum": 10**400} for name in ("a", "b")]})
    assert [item.key for item in surface.undigestable] == ["a", "b"]
    nameless = surfaces.surface_from_listing({"tools": [{"maximum": 10**5000}]})
    assert surfaces.parse_surface(surfaces.encode_surface(nameless)).undigestable == nameless.undigestable


def test_members_of_a_later_release_survive() -> None:
    surface = surfaces.parse_surface(written(LISTING))
    later = surfaces.encode_surface(replace(surface, extra={"later": [1, "two"]}))
    assert surfaces.encode_surface(surfaces.parse_surface(later)) == later
