"""What a lock says of how a tool's answers may swell."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.contract.contract import TokenContract
from pinwarden.contract.surface_contracts import derive_contracts
from pinwarden.surface.surface import surface_from_listing
from tests.support.contracts import listing, wire_tool

TEXT = {"type": "string"}


def economics_of(output: dict[str, Any] | None) -> TokenContract:
    wire = wire_tool("tool") | ({} if output is None else {"outputSchema": output})
    return derive_contracts(surface_from_listing(listing(wire)), None)["tool"].token_economics


def wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """As the frameworks wrap an answer that is no object."""
    return {"type": "object", "title": "toolOutput", "properties": {"result": schema}, "required": ["result"]}


def of(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, TEXT), **more}


@pytest.mark.parametrize(
    ("output", "unbounded"),
    [
        (wrapped({"type": "array", "items": TEXT}), True),
        (wrapped({"type": "array", "items": TEXT, "maxItems": 5}), False),
        (wrapped({"type": "array", "items": {"type": "array", "items": TEXT}, "maxItems": 5}), True),
        (wrapped(TEXT), False),
        (of("a", "b", "c"), False),
        (of("a", "b", "c", additionalProperties=False), False),
        ({"type": "object", "properties": {"rows": {"type": "array", "items": TEXT}}}, True),
        (
            {"type": "object", "properties": {"rows": {"anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}]}}},
            True,
        ),
        (wrapped({"type": "object", "additionalProperties": TEXT}), True),
        ({**of("a"), "$defs": {"Row": of("x")}, "properties": {"row": {"$ref": "#/$defs/Row"}}}, False),
        (
            {
                "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
                "type": "object",
                "properties": {"first": {"$ref": "#/$defs/Node"}},
            },
            True,
        ),
        (None, False),
    ],
    ids=[
        "list[str]",
        "at most five",
        "lists in a list",
        "a text",
        "three scalars",
        "three scalars and no more",
        "a list in an object",
        "perhaps a list",
        "dict[str, str]",
        "an object in an object",
        "a chain",
        "unknown",
    ],
)
def test_an_answer_is_unbounded_if_a_list_without_bound_is_in_it_and_not_because_it_has_fields(
    output: dict[str, Any] | None, unbounded: bool
) -> None:
    economics = economics_of(output)
    assert economics.unbounded_collection is unbounded
    assert economics.inflation_risk == ("high" if unbounded else "low")


def test_attack_a_schema_that_branches_without_end_is_looked_at_for_a_bounded_time() -> None:
    wide = {f"f{n}": {"$ref": "#/$defs/D1"} for n in range(50)}
    defs = {
        f"D{level}": {"type": "object", "properties": {f"f{n}": {"$ref": f"#/$defs/D{level + 1}"} for n in range(50)}}
        for level in range(1, 20)
    }
    output = {"type": "object", "properties": wide, "$defs": defs}
    assert economics_of(output).unbounded_collection is True
