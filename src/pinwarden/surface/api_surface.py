"""The API surface hash: one digest over what a model is told about how to call a server's tools.

Covered are the members ``name``, ``description`` and ``inputSchema`` of every tool, exact to the character. Not
covered are outputSchema, annotations, title, ``_meta`` and members unknown to us: those are in the ``pinwarden``
digest. The specification is docs/reference/api-surface-hash.md.

There is no hash of a part of a listing: one tool without a leaf digest and the whole hash is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import JITER_DEPTH

COVERED_MEMBERS = ("name", "description", "inputSchema")
_TOOL_TAG = b'["pinwarden:api-surface-tool:v1",'
_LIST_TAG = b'["pinwarden:api-surface:v1",'


def api_surface_hash(tools: Iterable[Any]) -> Digest:
    """The API surface hash of all tools of a server, given as values that were read strictly."""
    return hash_of_leaves(api_surface_leaves(tools))


def hash_of_leaves(leaves: Mapping[str, Digest]) -> Digest:
    """The hash from the leaf digests alone: whoever keeps the leaves can name the tool that changed."""
    pairs = [[name, str(leaves[name])] for name in sorted(leaves, key=_utf16)]
    return Digest.of_bytes(_LIST_TAG + canonicalize(pairs) + b"]")


def api_surface_leaves(tools: Iterable[Any]) -> dict[str, Digest]:
    """The leaf digest of every tool, by name in the order of the hash.

    The steps are in this order, so that the error does not depend on the order in which tools were sent:
    1. every tool is an object with a name (TOOL_INVALID);
    2. no name occurs twice (TOOL_NAME_DUPLICATE);
    3. every covered member has a canonical form (JSON_CANONICALIZATION_ERROR).
    """
    listed = list(tools)
    names = [_name_of(tool) for tool in listed]
    _refuse_duplicates(names)
    leaves = {name: Digest.of_bytes(leaf_preimage(tool)) for name, tool in zip(names, listed, strict=True)}
    return {name: leaves[name] for name in sorted(leaves, key=_utf16)}


def leaf_preimage(tool: Mapping[str, Any]) -> bytes:
    """The bytes whose SHA-256 is the leaf digest of a tool. An absent member is absent here as well."""
    covered = {member: tool[member] for member in COVERED_MEMBERS if member in tool}
    if "inputSchema" in covered:
        covered["inputSchema"] = _normal_schema(covered["inputSchema"], JITER_DEPTH)
    # Put together from canonical parts, which is the same as the canonical form of the array.
    return _TOOL_TAG + canonicalize(covered) + b"]"


def _name_of(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        raise PinwardenError("TOOL_INVALID", "a tool is not an object with a name")
    return name


def _refuse_duplicates(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PinwardenError(
                "TOOL_NAME_DUPLICATE", f"more than one tool is named {name[:80]!a}", data={"name": name}
            )
        seen.add(name)


def _utf16(name: str) -> bytes:
    # A lone surrogate may pass here: it is refused where the name is written.
    return name.encode("utf-16-be", "surrogatepass")


# The order of ``required`` and of a ``type`` array says nothing, but only where they are keywords. The walk enters
# the places where JSON Schema (draft 4 to 2020-12) puts a schema, and no other: a property named "required" is a
# name, and whatever is inside enum, const, default, examples or an unknown keyword is data.


def _normal_schema(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    if depth == 0:
        raise PinwardenError("JSON_CANONICALIZATION_ERROR", f"nested more than {JITER_DEPTH} levels deep")
    normal = dict(schema)
    for keyword in _KEYWORDS.keys() & schema.keys():
        normal[keyword] = _KEYWORDS[keyword](schema[keyword], depth - 1)
    return normal


def _schema_or_list(value: Any, depth: int) -> Any:
    return _list(value, depth) if isinstance(value, list | tuple) else _normal_schema(value, depth)


def _list(value: Any, depth: int) -> Any:
    return [_normal_schema(item, depth) for item in value] if isinstance(value, list | tuple) else value


def _map(value: Any, depth: int) -> Any:
    return {name: _normal_schema(item, depth) for name, item in value.items()} if isinstance(value, dict) else value


def _string_set(value: Any, _depth: int) -> Any:
    """Sorted if it is an array of strings; repeated strings stay, and anything else is not ours to understand."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return value
    return sorted(value, key=_utf16)


_KEYWORDS: Mapping[str, Callable[[Any, int], Any]] = {
    **dict.fromkeys(("required", "type"), _string_set),
    **dict.fromkeys(("$defs", "definitions", "dependencies", "dependentSchemas"), _map),
    **dict.fromkeys(("patternProperties", "properties"), _map),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _list),
    **dict.fromkeys(("additionalItems", "additionalProperties", "contains", "contentSchema"), _normal_schema),
    **dict.fromkeys(("else", "if", "not", "propertyNames", "then"), _normal_schema),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _normal_schema),
    "items": _schema_or_list,  # an array of schemas up to draft 2019-09, prefixItems since
}
