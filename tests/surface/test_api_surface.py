"""The API surface hash: what it sees, what it does not, and that two implementations agree on it."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import Digest, PinwardenError, canonicalize, parse_json
from pinwarden.surface.interop import compute_api_surface_hash, compute_api_surface_leaves, encode_leaf, hash_leaves
from tests.support.javascript import needs_node, run_node
from tools import api_surface_vectors

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
VECTORS = json.loads((REFERENCE / "api-surface-hash.vectors.json").read_bytes())
CASES = {case["id"]: case for case in VECTORS["cases"]}
ORACLE = str(Path(__file__).with_name("api_surface_oracle.mjs"))

TOOL: dict[str, Any] = {
    "name": "search",
    "description": "Find notes.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": ["string", "null"], "description": "Words", "maxLength": 100},
            "sort": {"enum": ["new", "old"], "default": "new"},
            "filter": {"$ref": "#/$defs/filter"},
        },
        "required": ["query", "sort"],
        "additionalProperties": False,
        "$defs": {"filter": {"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "null"}]}},
    },
}


# The vectors


@pytest.mark.parametrize("case", VECTORS["cases"], ids=list(CASES))
def test_hash_leaves_and_errors_are_as_the_vectors_say(case: dict[str, Any]) -> None:
    text = case["tools_json"].encode()
    if "error" in case:
        with pytest.raises(PinwardenError) as caught:
            compute_api_surface_hash(parse_json(text))
        assert caught.value.code == case["error"]
        return
    tools = parse_json(text)
    assert str(compute_api_surface_hash(tools)) == case["hash"]
    assert {name: str(leaf) for name, leaf in compute_api_surface_leaves(tools).items()} == case["leaves"]


def test_the_vectors_relate_to_each_other_as_their_notes_say() -> None:
    for case in CASES.values():
        if "same_as" in case:
            assert case["hash"] == CASES[case["same_as"]]["hash"], case["id"]
        if "differs_from" in case:
            assert case["hash"] != CASES[case["differs_from"]]["hash"], case["id"]


def test_the_vectors_file_is_what_the_code_writes() -> None:
    assert api_surface_vectors.vectors() == api_surface_vectors.TARGET.read_bytes()


@needs_node
def test_a_second_implementation_finds_the_same_for_every_vector() -> None:
    answers = run_node(ORACLE, question=[{"text": case["tools_json"]} for case in CASES.values()])
    for case, answer in zip(CASES.values(), answers, strict=True):
        expected = {"error": case["error"]} if "error" in case else {"hash": case["hash"], "leaves": case["leaves"]}
        assert {**answer, **({"leaves": dict(answer["leaves"])} if "leaves" in answer else {})} == expected, case["id"]


@needs_node
def test_a_second_implementation_finds_the_same_for_every_real_server() -> None:
    listings = VECTORS["listings"]
    texts = [(api_surface_vectors.VECTORS / row["file"]).read_text(encoding="utf-8") for row in listings]
    answers = run_node(ORACLE, question=[{"text": text, "member": "tools"} for text in texts])
    assert len(listings) >= 18
    assert [answer["hash"] for answer in answers] == [row["hash"] for row in listings]
    for text, answer in zip(texts, answers, strict=True):
        leaves = compute_api_surface_leaves(parse_json(text.encode())["tools"])
        assert [[name, str(leaf)] for name, leaf in leaves.items()] == answer["leaves"]


def test_every_byte_of_the_worked_example_is_true() -> None:
    page = (REFERENCE / "api-surface-hash.md").read_text(encoding="utf-8")
    example = page[page.index("## Worked example") : page.index("## Rationale")]
    tools = parse_json(re.findall(r"```json\n(.*?)```", example, re.DOTALL)[0].encode())
    search, ping, whole = (text.encode() for text in re.findall(r"```text\n(.*?)\n```", example, re.DOTALL))
    digests = re.findall(r"`(sha256:[0-9a-f]{64})`", example)
    assert [encode_leaf(tool) for tool in tools] == [search, ping]
    assert digests == [str(Digest.of_bytes(preimage)) for preimage in (search, ping, whole)]
    assert digests[2] == str(compute_api_surface_hash(tools))
    assert all(canonicalize(preimage) == preimage for preimage in (search, ping, whole))


# What counts


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every scalar."""
    if isinstance(value, dict):
        return [leaf for name, inner in value.items() for leaf in leaves_of(inner, (*path, name))]
    if isinstance(value, list):
        return [leaf for index, inner in enumerate(value) for leaf in leaves_of(inner, (*path, index))]
    return [path]


def members_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every member of every object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    members = [(*path, name) for name, _ in inner if isinstance(value, dict)]
    return members + [below for name, item in inner for below in members_of(item, (*path, name))]


def inside(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@pytest.mark.parametrize("path", leaves_of(TOOL), ids=lambda path: "/".join(map(str, path)))
def test_a_change_to_any_covered_value_changes_the_hash(path: tuple[Any, ...]) -> None:
    changed = deepcopy(TOOL)
    old = inside(changed, path)
    inside(changed, path[:-1])[path[-1]] = f"{old}\u200b" if isinstance(old, str) else "other"
    assert compute_api_surface_hash([changed]) != compute_api_surface_hash([TOOL])


@pytest.mark.parametrize(
    "path", [path for path in members_of(TOOL) if path != ("name",)], ids=lambda path: "/".join(map(str, path))
)
def test_a_covered_member_that_is_gone_or_null_changes_the_hash(path: tuple[Any, ...]) -> None:
    gone, null = deepcopy(TOOL), deepcopy(TOOL)
    del inside(gone, path[:-1])[path[-1]]
    inside(null, path[:-1])[path[-1]] = None
    assert len({compute_api_surface_hash([tool]) for tool in (TOOL, gone, null)}) == 3


@pytest.mark.parametrize("name", ["query", "sort", "filter"])
def test_a_parameter_of_another_name_changes_the_hash(name: str) -> None:
    changed = deepcopy(TOOL)
    parameters = changed["inputSchema"]["properties"]
    parameters[f"{name}_"] = parameters.pop(name)
    assert compute_api_surface_hash([changed]) != compute_api_surface_hash([TOOL])


def test_adding_or_removing_a_tool_changes_the_hash_and_no_other_leaf() -> None:
    one, two = compute_api_surface_leaves([TOOL]), compute_api_surface_leaves([TOOL, {"name": "ping"}])
    assert two["search"] == one["search"]
    assert hash_leaves(two) != hash_leaves(one)


def test_the_hash_can_be_checked_from_the_leaves_alone() -> None:
    tools = [TOOL, {"name": "ping"}, {"name": "Äther"}]
    leaves = compute_api_surface_leaves(tools)
    assert hash_leaves(dict(reversed(leaves.items()))) == compute_api_surface_hash(tools)


def test_what_the_hash_does_not_cover_leaves_it_alone() -> None:
    more = {"title": "x", "annotations": {"readOnlyHint": True}, "outputSchema": {}, "_meta": {}, "icons": [], "x": 1}
    assert compute_api_surface_hash([TOOL | more]) == compute_api_surface_hash([TOOL])


# What does not count

words = st.text(st.sampled_from("abé\ufb01\U0001f600 "), min_size=1, max_size=3)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | words
data = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))
sets = st.lists(words, unique=True, max_size=4)


def larger_schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(words | st.sampled_from(["required", "type", "properties"]), inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": sets | words,
            "required": sets,
            "properties": named,
            "$defs": named,
            "items": inner | st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=2),
            "not": inner,
            "default": data,
            "enum": st.lists(data, max_size=3),
            "x-other": data,
        },
    )


schemas: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), larger_schema, max_leaves=8)
tool_lists = st.lists(
    st.fixed_dictionaries({"name": words}, optional={"description": words | st.none(), "inputSchema": schemas}),
    unique_by=lambda tool: str(tool["name"]),
    max_size=4,
)


def reordered(value: Any, *, keyword_place: bool) -> Any:
    """The same schema with every member list and every set in reverse. Test-side, by the place of the schema."""
    if not isinstance(value, dict):
        return value
    turned: dict[str, Any] = {}
    for name, inner in reversed(value.items()):
        if not keyword_place or name == "not":
            turned[name] = reordered(inner, keyword_place=True)
        elif name in ("required", "type") and isinstance(inner, list):
            turned[name] = inner[::-1]
        elif name in ("properties", "$defs"):
            turned[name] = reordered(inner, keyword_place=False)
        elif name in ("items", "anyOf"):
            items = [reordered(item, keyword_place=True) for item in inner] if isinstance(inner, list) else None
            turned[name] = reordered(inner, keyword_place=True) if items is None else items
        else:
            turned[name] = inner
    return turned


@given(tool_lists)
def test_order_of_tools_members_and_sets_does_not_change_the_hash(tools: list[dict[str, Any]]) -> None:
    turned = [
        {
            member: reordered(value, keyword_place=True) if member == "inputSchema" else value
            for member, value in reversed(tool.items())
        }
        for tool in reversed(tools)
    ]
    assert compute_api_surface_hash(turned) == compute_api_surface_hash(tools)


@needs_node
def test_both_implementations_agree_on_random_listings() -> None:
    collected: list[list[dict[str, Any]]] = []

    @given(tool_lists)
    def collect(tools: list[dict[str, Any]]) -> None:
        collected.append(tools)

    collect()
    answers = run_node(ORACLE, question=[{"text": json.dumps(tools)} for tools in collected])
    assert [answer["hash"] for answer in answers] == [str(compute_api_surface_hash(tools)) for tools in collected]


@given(tool_lists)
def test_hashing_leaves_the_tools_as_they_were(tools: list[dict[str, Any]]) -> None:
    before = deepcopy(tools)
    compute_api_surface_hash(tools)
    assert tools == before
    assert json.dumps(tools) == json.dumps(before)


# Refusals


def test_a_duplicate_name_is_refused_and_named() -> None:
    with pytest.raises(PinwardenError) as caught:
        compute_api_surface_hash([TOOL, {"name": "ping"}, {**TOOL, "description": "shadow"}])
    assert caught.value.code == "TOOL_NAME_DUPLICATE"
    assert caught.value.data == {"name": "search"}
    assert caught.value.exit_code == 1


def test_one_undigestable_tool_makes_the_hash_unavailable_and_never_a_hash_of_the_rest() -> None:
    with pytest.raises(PinwardenError) as caught:
        compute_api_surface_hash([TOOL, {"name": "x", "description": "\ud800"}])
    assert caught.value.code == "JSON_CANONICALIZATION_ERROR"


@pytest.mark.parametrize("keyword", ["not", "items", "additionalProperties"])
def test_a_schema_nested_without_end_is_refused_and_does_not_exhaust_the_stack(keyword: str) -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {keyword: schema}
    with pytest.raises(PinwardenError) as caught:
        compute_api_surface_hash([{"name": "t", "inputSchema": schema}])
    assert caught.value.code == "JSON_CANONICALIZATION_ERROR"
    while schema:  # taken apart from outside: Python frees nested values recursively
        schema = schema.pop(keyword)


def test_the_deepest_tool_that_can_be_read_can_be_hashed() -> None:
    text = b'[{"name":"t","inputSchema":' + b'{"not":' * 197 + b'{"minimum":0.5}' + b"}" * 197 + b"}]"
    assert compute_api_surface_hash(parse_json(text)) == compute_api_surface_hash(
        parse_json(text.replace(b"0.5", b"5e-1"))
    )
