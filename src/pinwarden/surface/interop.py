"""Digests and advisories that other lock tools compute for a surface, and Pinwarden's own digests next to them.

Pinwarden reproduces each tool's algorithm including its defects, so that a lock written by that tool can be checked
against a live server. None of these digests covers as much as the ``pinwarden`` digest.

================  ==========================================================================================
name              covers
================  ==========================================================================================
``pinwarden``     every member of every item; ``surface`` also serverInfo, capabilities and instructions
``api-surface``   name, description and inputSchema of all tools (docs/reference/api-surface-hash.md)
``hangar-1.2``    name, description, inputSchema, outputSchema of one tool, as MCP Hangar 1.2.0 did
``hangar``        the same members, as MCP Hangar does since 1.2.1
``toolpin``       three hashes over all tools, as ToolPin 0.5 writes them into mcp-lock.json
``fusion``        inputSchema of one tool, as MCP Fusion and Vurb write it into their lockfiles
================  ==========================================================================================

The second half of this module finds the six advisories of ToolPin 0.5.4. ToolPin is written in JavaScript, so the
patterns spell out JavaScript's definitions of white space and word boundaries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest, tool_digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import sort_by_locale
from pinwarden.core.record import Record
from pinwarden.core.strict_json import JITER_DEPTH
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
    """Whether the description hash and the manifest hash may differ from ToolPin's own.

    ToolPin sorts tools by locale, and for some names Pinwarden can only approximate that order.
    """

    def to_json(self) -> dict[str, str | bool]:
        """Return the hashes in hex, under the member names that ToolPin uses."""
        return {
            "toolDescriptionHash": self.tool_description_hash.hex,
            "toolManifestHash": self.tool_manifest_hash.hex,
            "toolSurfaceHash": self.tool_surface_hash.hex,
            "localeDependent": self.locale_dependent,
        }


def compute_toolpin_hashes(tools: Iterable[Mapping[str, Any]]) -> ToolPinHashes:
    """Compute ToolPin's hashes. Tools must be in the order sent, which decides between tools with the same name."""
    tool_list = list(tools)
    if not all(isinstance(tool.get("name"), str) for tool in tool_list):
        raise PinwardenError("TOOL_INVALID", "every tool must have a name")
    by_locale, exact = sort_by_locale(tool_list, _get_tool_name)
    by_utf16 = sorted(tool_list, key=lambda tool: _get_tool_name(tool).encode("utf-16-be", "surrogatepass"))
    return ToolPinHashes(
        tool_description_hash=_hash_for_toolpin([_select_name_and_description(tool) for tool in by_locale]),
        tool_manifest_hash=_hash_for_toolpin(
            [_select_name_and_description(tool) | _select_input_schema(tool) for tool in by_locale]
        ),
        tool_surface_hash=_hash_for_toolpin(
            [{member: tool[member] for member in TOOLPIN_COVERAGE if member in tool} for tool in by_utf16]
        ),
        locale_dependent=not exact,
    )


def _hash_for_toolpin(rows: list[dict[str, Any]]) -> Digest:
    return Digest.of_bytes(canonicalize(rows, "toolpin"))


def _get_tool_name(tool: Mapping[str, Any]) -> str:
    name: str = tool["name"]
    return name


def _select_name_and_description(tool: Mapping[str, Any]) -> dict[str, Any]:
    description = tool.get("description")
    return {"name": tool["name"], "description": "" if description is None else description}


def _select_input_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    return {"inputSchema": {} if schema is None else schema}


def compute_fusion_digest(tool: Mapping[str, Any]) -> Digest:
    """Compute Fusion's ``inputSchemaDigest`` of a tool. Raises TOOL_INVALID if the tool has no input schema."""
    if "inputSchema" not in tool:
        raise PinwardenError("TOOL_INVALID", "the tool has no inputSchema")
    return Digest.of_bytes(canonicalize(tool["inputSchema"], "fusion"))


def compute_surface_digests(surface: Surface) -> dict[str, Any]:
    """Compute all digests of a surface, as a JSON object with one member per algorithm.

    A digest that cannot be computed is None, and a row in ``unavailable`` says why. This happens, for example, if two
    items share a name. In these rows, ``item`` is None if the digest covers the complete list.
    """
    unavailable = _UnavailableDigests()
    return {
        "pinwarden": {
            "surface": unavailable.compute_or_record("pinwarden", None, lambda: _require_surface_digest(surface)),
            **{
                member: _digest_items("pinwarden", items, _compute_item_digest, unavailable)
                for member, items in surface.items.items()
            },
        },
        "api-surface": unavailable.compute_or_record("api-surface", None, lambda: _compute_api_surface(surface)),
        "hangar-1.2": _digest_items(
            "hangar-1.2", surface.items_of_kind(TOOL), _make_hangar_digest("hangar-1.2"), unavailable
        ),
        "hangar": _digest_items("hangar", surface.items_of_kind(TOOL), _make_hangar_digest("hangar"), unavailable),
        "toolpin": unavailable.compute_or_record(
            "toolpin", None, lambda: compute_toolpin_hashes(_require_tools(surface)).to_json()
        ),
        "fusion": _digest_items("fusion", surface.items_of_kind(TOOL), compute_fusion_digest, unavailable),
        "unavailable": unavailable.rows,
    }


class _UnavailableDigests:
    """Collects the digests that cannot be computed, each with the reason."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str | None]] = []

    def compute_or_record(self, digest: str, item: str | None, compute: Callable[[], _Result]) -> _Result | None:
        """Return the computed value. If it cannot be computed, record the reason and return None."""
        try:
            return compute()
        except PinwardenError as err:
            self.rows.append({"digest": digest, "item": item, "reason": err.message})
            return None


def _digest_items(
    name: str, items: Iterable[Item], digest: Callable[[Any], Digest], unavailable: _UnavailableDigests
) -> dict[str, str | None]:
    by_key: dict[str, list[Item]] = {}
    for item in items:
        by_key.setdefault(item.key, []).append(item)
    return {
        key: unavailable.compute_or_record(name, key, partial(_digest_single_item, items_with_key, digest))
        for key, items_with_key in by_key.items()
    }


def _digest_single_item(items_with_key: list[Item], digest: Callable[[Any], Digest]) -> str:
    if len(items_with_key) > 1:
        raise PinwardenError("SURFACE_INVALID", f"{len(items_with_key)} items share this name")
    return str(digest(_require_value(items_with_key[0])))


def _require_value(item: Item) -> Any:
    if item.digest is None:
        raise PinwardenError("SURFACE_INVALID", f"the item is undigestable: {item.problem}")
    return item.value


def _require_tools(surface: Surface) -> list[Any]:
    if TOOL.member not in surface.items:
        raise PinwardenError("SURFACE_INVALID", "the server offers no tools")
    return [_require_value(item) for item in surface.items_of_kind(TOOL)]


def _require_surface_digest(surface: Surface) -> str:
    if surface.digest is None:
        raise PinwardenError("SURFACE_INVALID", "an item is undigestable")
    return str(surface.digest)


def _compute_item_digest(value: Any) -> Digest:
    return Digest.of_bytes(canonicalize(value))


def _make_hangar_digest(profile: str) -> Callable[[Any], Digest]:
    return lambda tool: tool_digest(tool, profile)


def _compute_api_surface(surface: Surface) -> dict[str, Any]:
    leaves = compute_api_surface_leaves(_require_tools(surface))
    return {"hash": str(hash_leaves(leaves)), "tools": {name: str(leaf) for name, leaf in leaves.items()}}


COVERED_MEMBERS = ("name", "description", "inputSchema")
_TOOL_TAG = b'["pinwarden:api-surface-tool:v1",'
_LIST_TAG = b'["pinwarden:api-surface:v1",'


def compute_api_surface_hash(tools: Iterable[Any]) -> Digest:
    """Compute the API surface hash over all tools of a server. The tools must be strictly parsed JSON values."""
    return hash_leaves(compute_api_surface_leaves(tools))


def hash_leaves(leaves: Mapping[str, Digest]) -> Digest:
    """Combine the leaf digests of all tools into the API surface hash."""
    pairs = [[name, str(leaves[name])] for name in sorted(leaves, key=_utf16_sort_key)]
    return Digest.of_bytes(_LIST_TAG + canonicalize(pairs) + b"]")


def compute_api_surface_leaves(tools: Iterable[Any]) -> dict[str, Digest]:
    """Compute the digest of every tool, by name and in the order in which the hash combines them.

    The checks run in this order, so that the error does not depend on the order in which the server sent the tools:
    1. every tool is an object with a name (TOOL_INVALID);
    2. no name occurs twice (TOOL_NAME_DUPLICATE);
    3. every covered member has a canonical form (JSON_CANONICALIZATION_ERROR).
    """
    tool_list = list(tools)
    names = [_require_name(tool) for tool in tool_list]
    _refuse_duplicates(names)
    leaves = {name: Digest.of_bytes(encode_leaf(tool)) for name, tool in zip(names, tool_list, strict=True)}
    return {name: leaves[name] for name in sorted(leaves, key=_utf16_sort_key)}


def encode_leaf(tool: Mapping[str, Any]) -> bytes:
    """Encode a tool as the bytes whose SHA-256 is its leaf digest. Absent members are omitted."""
    covered = {member: tool[member] for member in COVERED_MEMBERS if member in tool}
    if "inputSchema" in covered:
        covered["inputSchema"] = _normalize_schema(covered["inputSchema"], JITER_DEPTH)
    # These bytes are the canonical form of the array ["pinwarden:api-surface-tool:v1", covered].
    return _TOOL_TAG + canonicalize(covered) + b"]"


def _require_name(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        raise PinwardenError("TOOL_INVALID", "every tool must be an object with a name")
    return name


def _refuse_duplicates(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PinwardenError(
                "TOOL_NAME_DUPLICATE", f"more than one tool is named {name[:80]!a}", data={"name": name}
            )
        seen.add(name)


def _utf16_sort_key(name: str) -> bytes:
    # Lone surrogates are refused later, when the name is canonicalized.
    return name.encode("utf-16-be", "surrogatepass")


# ``required`` and ``type`` arrays are sorted, because their order has no meaning. This holds only where they are JSON
# Schema keywords (draft 4 to 2020-12): a property may be named "required", and the content of enum, const, default,
# examples and unknown keywords is data, which stays as it is.


def _normalize_schema(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    if depth == 0:
        raise PinwardenError("JSON_CANONICALIZATION_ERROR", f"nested more than {JITER_DEPTH} levels deep")
    normal = dict(schema)
    for keyword in _KEYWORDS.keys() & schema.keys():
        normal[keyword] = _KEYWORDS[keyword](schema[keyword], depth - 1)
    return normal


def _normalize_schema_or_list(value: Any, depth: int) -> Any:
    return _normalize_schema_list(value, depth) if isinstance(value, list | tuple) else _normalize_schema(value, depth)


def _normalize_schema_list(value: Any, depth: int) -> Any:
    return [_normalize_schema(item, depth) for item in value] if isinstance(value, list | tuple) else value


def _normalize_schema_map(value: Any, depth: int) -> Any:
    return {name: _normalize_schema(item, depth) for name, item in value.items()} if isinstance(value, dict) else value


def _sort_strings(value: Any, _depth: int) -> Any:
    """Sort an array of strings, keeping repeated strings; other values are unchanged."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return value
    return sorted(value, key=_utf16_sort_key)


_KEYWORDS: Mapping[str, Callable[[Any, int], Any]] = {
    **dict.fromkeys(("required", "type"), _sort_strings),
    **dict.fromkeys(("$defs", "definitions", "dependencies", "dependentSchemas"), _normalize_schema_map),
    **dict.fromkeys(("patternProperties", "properties"), _normalize_schema_map),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _normalize_schema_list),
    **dict.fromkeys(("additionalItems", "additionalProperties", "contains", "contentSchema"), _normalize_schema),
    **dict.fromkeys(("else", "if", "not", "propertyNames", "then"), _normalize_schema),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _normalize_schema),
    "items": _normalize_schema_or_list,  # may be an array of schemas up to draft 2019-09; newer drafts use prefixItems
}


_SPACE = "[\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"


def _compile_pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace(" ", f"{_SPACE}+"), re.IGNORECASE | re.ASCII)


class Advisory(Record):
    """One of ToolPin's advisories: code, severity and message."""

    code: str
    severity: str
    message: str


OVERRIDE = Advisory(
    code="agent_instruction_override",
    severity="warning",
    message="asks the agent to ignore higher-priority instructions",
)
HIDDEN_BEHAVIOR = Advisory(
    code="agent_hidden_behavior", severity="warning", message="asks the agent to hide behavior from the user"
)
FORCED_ORDER = Advisory(
    code="agent_forced_tool_order", severity="info", message="forces tool ordering in descriptive metadata"
)
HIDDEN_CHARACTERS = Advisory(
    code="hidden_control_characters", severity="warning", message="description contains hidden or control characters"
)

_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_PRINTABLE = bytes(range(0x20, 0x7F))
_PATTERNS = (
    (
        OVERRIDE,
        frozenset((b"ignore", b"disregard", b"override")),
        _compile_pattern(
            r"\b(?:ignore|disregard|override) (?:all )?(?:previous|prior|above|system|developer) instructions?\b"
        ),
    ),
    (
        HIDDEN_BEHAVIOR,
        frozenset((b"tell", b"inform", b"notify", b"mention", b"reveal")),
        _compile_pattern(r"\b(?:do not|don't|never) (?:tell|inform|notify|mention|reveal) (?:the )?user\b"),
    ),
    (
        FORCED_ORDER,
        frozenset((b"always", b"must")),
        # ToolPin's pattern has a single space in "required to".
        re.compile(
            rf"\b(?:always|must|required[ ]to){_SPACE}+(?:call|use|invoke|run){_SPACE}+[a-zA-Z0-9_.:/-]+"
            rf"(?:{_SPACE}+first)?\b",
            re.IGNORECASE | re.ASCII,
        ),
    ),
)
_CALL = _compile_pattern(r"\b(?:call|use|invoke|run) ")
_LOWER_CALL = re.compile(
    rf"(?:call|use|invoke|run){_SPACE}+"
)  # lower case and without a word boundary, because such patterns are much faster
CALL_GATE = frozenset((b"call", b"use", b"invoke", b"run"))
"""Words by which ToolPin recognises an instruction to use a tool. Text without them needs no search."""
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_PREFIX_LENGTH = 4  # the number of letters by which names are indexed
_MAX_NAME = 256  # MCP allows 128 characters; longer names are not searched for


def find_advisories(text: str) -> Iterator[tuple[Advisory, int, int]]:
    """Find the advisories of one text. Yields each with its start and end in the text."""
    hidden = _HIDDEN.search(text)
    if hidden:
        yield HIDDEN_CHARACTERS, *hidden.span()
    for advisory, _, pattern in _PATTERNS:
        match = pattern.search(text)
        if match:
            yield advisory, *match.span()


def may_have_advisories(text: str, has: Callable[[frozenset[bytes]], bool]) -> bool:
    """Check quickly whether ``text`` could have an advisory. False is certain, True is not.

    ``has`` says whether the text contains one of the given words.
    """
    if (not text.isascii() or text.encode().translate(None, _PRINTABLE)) and _HIDDEN.search(text):
        return True
    if "required to" in text.lower():  # checked as a phrase, because "required" alone occurs in nearly every schema
        return True
    return any(has(gate) and pattern.search(text) is not None for _, gate, pattern in _PATTERNS)


def build_duplicate_name_advisory(count: int) -> Advisory:
    """Build the advisory for a name that ``count`` tools of one server share."""
    message = f"tool name appears {count} times in this server's tools/list response"
    return Advisory(code="duplicate_tool_name", severity="warning", message=message)


def build_cross_tool_advisory(name: str) -> Advisory:
    """Build the advisory for text that tells the agent to use the tool ``name``."""
    message = f"description instructs the agent to use sibling tool {name}"
    return Advisory(code="cross_tool_instruction", severity="info", message=message)


class ToolNameFinder:
    """Finds tool names in text after ``call``, ``use``, ``invoke`` and ``run``.

    Names are indexed by their first letters, so the search time hardly depends on the number of names.
    """

    __slots__ = ("_by_folded", "_lengths")

    def __init__(self, names: Iterable[str]) -> None:
        by_folded: dict[str, list[str]] = {}
        lengths: dict[str, set[int]] = {}
        for name in dict.fromkeys(names):
            if 0 < len(name) <= _MAX_NAME:
                folded = _uppercase(name)
                by_folded.setdefault(folded, []).append(name)
                lengths.setdefault(folded[:_PREFIX_LENGTH], set()).add(len(folded))
        self._by_folded = by_folded
        self._lengths = {prefix: sorted(known) for prefix, known in lengths.items()}

    def find_commands(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Find each tool that ``text`` tells the agent to use, with the span of the first occurrence."""
        known: set[str] = set()
        for begin, start in _find_call_verbs(text):
            for length in self._possible_lengths(_uppercase(text[start : start + _PREFIX_LENGTH])):
                for name in self._by_folded.get(_uppercase(text[start : start + length]), ()):
                    if name not in known and _is_word_boundary(text, start + length):
                        known.add(name)
                        yield name, begin, start + length

    def _possible_lengths(self, prefix: str) -> Iterator[int]:
        for size in range(1, len(prefix) + 1):  # a name shorter than the prefix is indexed by the complete name
            for length in self._lengths.get(prefix[:size], ()):
                if size in (_PREFIX_LENGTH, length):
                    yield length


def _find_call_verbs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start of each verb such as ``call``, and the start of the word after it."""
    if not text.isascii():
        for match in _CALL.finditer(text):
            yield match.span()
        return
    for match in _LOWER_CALL.finditer(text.lower()):
        if not match.start() or text[match.start() - 1] not in _WORD:
            yield match.span()


def _is_word_boundary(text: str, position: int) -> bool:
    after = text[position] if position < len(text) else ""
    return (text[position - 1] in _WORD) != (after in _WORD)


def _uppercase(text: str) -> str:
    """Convert to upper case, except characters whose upper case is longer, as JavaScript does to ignore case."""
    if text.isascii():
        return text.upper()
    return "".join(upper if len(upper := character.upper()) == 1 else character for character in text)
