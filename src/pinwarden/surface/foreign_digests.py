"""Every digest of a surface under its own name: ours, and those that other tools keep in their pins.

Each is computed as its owner computes it, defects included, so that their records can be compared with a live
server. None of the foreign ones covers as much as ``pinwarden`` does.

================  ==========================================================================================
name              covers
================  ==========================================================================================
``pinwarden``     every member of every item; ``surface`` also serverInfo, capabilities and instructions
``api-surface``   name, description and inputSchema of all tools (docs/reference/api-surface-hash.md)
``hangar-1.2``    name, description, inputSchema, outputSchema of one tool, as MCP Hangar 1.2.0 did
``hangar``        the same, as MCP Hangar does since 1.2.1
``toolpin``       three hashes over all tools, as ToolPin 0.5 writes them into mcp-lock.json
``fusion``        inputSchema of one tool, as MCP Fusion and Vurb write it into their lockfiles
================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import locale_sorted
from pinwarden.core.record import Record
from pinwarden.core.tool_digest import tool_digest
from pinwarden.surface.api_surface import api_surface_leaves, hash_of_leaves
from pinwarden.surface.surface import TOOL, Item, Surface

_Result = TypeVar("_Result")
TOOLPIN_COVERAGE = ("name", "description", "inputSchema")
"""The members of a tool that ToolPin's ``toolSurfaceHash`` covers."""


class ToolPinHashes(Record):
    """ToolPin's three hashes over a list of tools."""

    tool_description_hash: Digest
    tool_manifest_hash: Digest
    tool_surface_hash: Digest
    locale_dependent: bool
    """The first two sort by locale, and the order of these names could only be approximated: they may differ from
    what ToolPin computed. The third never depends on a locale."""

    def to_json(self) -> dict[str, str | bool]:
        """The hashes as ToolPin spells them: bare hex under its own names."""
        return {
            "toolDescriptionHash": self.tool_description_hash.hex,
            "toolManifestHash": self.tool_manifest_hash.hex,
            "toolSurfaceHash": self.tool_surface_hash.hex,
            "localeDependent": self.locale_dependent,
        }


def toolpin_hashes(tools: Iterable[Mapping[str, Any]]) -> ToolPinHashes:
    """ToolPin's hashes of tools in the order sent, which decides between tools of the same name."""
    listed = list(tools)
    if not all(isinstance(tool.get("name"), str) for tool in listed):
        raise PinwardenError("TOOL_INVALID", "a tool has no name")
    by_locale, exact = locale_sorted(listed, _name)
    by_utf16 = sorted(listed, key=lambda tool: _name(tool).encode("utf-16-be", "surrogatepass"))
    return ToolPinHashes(
        tool_description_hash=_toolpin([_described(tool) for tool in by_locale]),
        tool_manifest_hash=_toolpin([_described(tool) | _schema_or_empty(tool) for tool in by_locale]),
        tool_surface_hash=_toolpin([{m: tool[m] for m in TOOLPIN_COVERAGE if m in tool} for tool in by_utf16]),
        locale_dependent=not exact,
    )


def _toolpin(rows: list[dict[str, Any]]) -> Digest:
    return Digest.of_bytes(canonicalize(rows, "toolpin"))


def _name(tool: Mapping[str, Any]) -> str:
    name: str = tool["name"]
    return name


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    description = tool.get("description")
    return {"name": tool["name"], "description": "" if description is None else description}


def _schema_or_empty(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    return {"inputSchema": {} if schema is None else schema}


def fusion_input_schema_digest(tool: Mapping[str, Any]) -> Digest:
    """Fusion's ``inputSchemaDigest`` of a tool. Fusion has no tool without a schema, so that is an error."""
    if "inputSchema" not in tool:
        raise PinwardenError("TOOL_INVALID", "the tool has no inputSchema")
    return Digest.of_bytes(canonicalize(tool["inputSchema"], "fusion"))


def surface_digests(surface: Surface) -> dict[str, Any]:
    """All digests of a surface by name, ready for JSON.

    What cannot be computed is None, and ``unavailable`` says why, in rows of digest, item (None for the whole list)
    and reason. A name that two items share has no digest of its own.
    """
    missed = _Missed()
    return {
        "pinwarden": {
            "surface": missed.unless("pinwarden", None, lambda: _whole(surface)),
            **{member: _each("pinwarden", items, _own, missed) for member, items in surface.items.items()},
        },
        "api-surface": missed.unless("api-surface", None, lambda: _api_surface(surface)),
        "hangar-1.2": _each("hangar-1.2", surface.list_of(TOOL), _hangar("hangar-1.2"), missed),
        "hangar": _each("hangar", surface.list_of(TOOL), _hangar("hangar"), missed),
        "toolpin": missed.unless("toolpin", None, lambda: toolpin_hashes(_all_tools(surface)).to_json()),
        "fusion": _each("fusion", surface.list_of(TOOL), fusion_input_schema_digest, missed),
        "unavailable": missed.rows,
    }


class _Missed:
    """What could not be computed, and why: a digest that is not there must not look like one that was not asked for."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str | None]] = []

    def unless(self, digest: str, item: str | None, compute: Callable[[], _Result]) -> _Result | None:
        """The computed value, or None with its reason noted."""
        try:
            return compute()
        except PinwardenError as err:
            self.rows.append({"digest": digest, "item": item, "reason": err.message})
            return None


def _each(name: str, items: Iterable[Item], digest: Callable[[Any], Digest], missed: _Missed) -> dict[str, str | None]:
    by_key: dict[str, list[Item]] = {}
    for item in items:
        by_key.setdefault(item.key, []).append(item)
    return {key: missed.unless(name, key, partial(_only_digest, sharing, digest)) for key, sharing in by_key.items()}


def _only_digest(sharing: list[Item], digest: Callable[[Any], Digest]) -> str:
    if len(sharing) > 1:
        raise PinwardenError("SURFACE_INVALID", f"{len(sharing)} items share this name")
    return str(digest(_value(sharing[0])))


def _value(item: Item) -> Any:
    if item.digest is None:
        raise PinwardenError("SURFACE_INVALID", f"undigestable: {item.problem}")
    return item.value


def _all_tools(surface: Surface) -> list[Any]:
    if TOOL.member not in surface.items:
        raise PinwardenError("SURFACE_INVALID", "the server offers no tools")
    return [_value(item) for item in surface.list_of(TOOL)]


def _whole(surface: Surface) -> str:
    if surface.digest is None:
        raise PinwardenError("SURFACE_INVALID", "an item is undigestable")
    return str(surface.digest)


def _own(value: Any) -> Digest:
    return Digest.of_bytes(canonicalize(value))


def _hangar(profile: str) -> Callable[[Any], Digest]:
    return lambda tool: tool_digest(tool, profile)


def _api_surface(surface: Surface) -> dict[str, Any]:
    leaves = api_surface_leaves(_all_tools(surface))
    return {"hash": str(hash_of_leaves(leaves)), "tools": {name: str(leaf) for name, leaf in leaves.items()}}
