"""The digests of contracts, from the sections of one tool up to the entire file.

As in MCP Fusion, an absent description of a tool or action is omitted, and an absent description of a prompt is hashed
as null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from pinwarden.contract.contract import (
    ActionContract,
    Contracts,
    EntitlementContract,
    PromptContract,
    SurfaceContract,
    ToolContract,
)
from pinwarden.contract.dialect import Dialect
from pinwarden.core.canonical import canonicalize
from pinwarden.core.javascript import encode_javascript_json, sort_by_locale
from pinwarden.core.record import Record, replace
from pinwarden.core.strict_json import DEFAULT_LIMITS, Limits

_SURROGATE = re.compile("[\ud800-\udfff]")
_PROTO = "__proto__"

LOCKFILE_LIMITS: Limits = replace(DEFAULT_LIMITS, max_bytes=128 * 1024 * 1024)
"""Limits for reading a lockfile. A lockfile with ten thousand tools and their schemas has tens of megabytes."""


def hash_value(value: Any) -> str:
    """Return SHA-256 of a value in MCP Fusion's canonical JSON, as hex without a prefix."""
    return sha256(canonicalize(value, "fusion", LOCKFILE_LIMITS)).hexdigest()


def hash_text(text: str) -> str:
    """Return SHA-256 of text as JavaScript encodes it (a lone surrogate becomes U+FFFD), as hex without a prefix."""
    try:
        return sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        return sha256(_SURROGATE.sub("\ufffd", text).encode()).hexdigest()


def sort_by_utf16(names: Iterable[str]) -> list[str]:
    """Sort names like JavaScript's ``Array.prototype.sort``: by UTF-16 code units."""
    unsorted = list(names)
    if all(name.isascii() for name in unsorted):
        return sorted(unsorted)
    return sorted(unsorted, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def encode_sorted_file(document: Any, *, keep_proto: bool = True) -> bytes:
    """Return the bytes of a JSON file with members sorted at every level, indented by two spaces, with a final newline.

    MCP Fusion drops a member named ``__proto__``. Reviewers must see it, so it is kept by default.
    """
    return encode_javascript_json(_sort_members(document, keep_proto=keep_proto))


def _sort_members(value: Any, *, keep_proto: bool) -> Any:
    if isinstance(value, dict):
        names = [name for name in sort_by_utf16(value) if keep_proto or name != _PROTO]
        return {name: _sort_members(value[name], keep_proto=keep_proto) for name in names}
    if isinstance(value, list | tuple):
        return [_sort_members(item, keep_proto=keep_proto) for item in value]
    return value


_PROMPTS_SEPARATOR = "\n---prompts---\n"


class ToolDigest(Record):
    """The digest of one tool and of each of its sections, as hex without a prefix."""

    digest: str
    surface: str
    behavior: str
    token_economics: str
    entitlements: str

    def components(self) -> dict[str, str]:
        """Return the digests of the sections, by MCP Fusion's names."""
        return {
            "surface": self.surface,
            "behavior": self.behavior,
            "tokenEconomics": self.token_economics,
            "entitlements": self.entitlements,
        }


class ServerDigest(Record):
    """The digest of all tools together, and of each tool. Prompts are not included."""

    digest: str
    tools: Mapping[str, ToolDigest]


def hash_required_fields(names: Iterable[str]) -> str:
    """Compute MCP Fusion's ``inputSchemaDigest`` of an action: a hash over its required field names, in order."""
    return hash_value(list(names))


def compute_tool_digest(contract: ToolContract, dialect: Dialect) -> ToolDigest:
    """Hash the four sections of a tool, and combine them."""
    document = contract.to_json()
    parts = (
        hash_value(_build_surface_preimage(contract.surface)),
        hash_value(document["behavior"]),
        hash_value(document["tokenEconomics"]),
        hash_value(_build_entitlements_preimage(contract.entitlements, dialect)),
    )
    return ToolDigest(
        digest=hash_text(":".join(parts)),
        surface=parts[0],
        behavior=parts[1],
        token_economics=parts[2],
        entitlements=parts[3],
    )


def compute_server_digest(contracts: Contracts, dialect: Dialect) -> ServerDigest:
    """Hash the tools of a server. The order of the tools does not matter."""
    tools = {name: compute_tool_digest(contract, dialect) for name, contract in contracts.items()}
    return ServerDigest(digest=combine_tool_digests({name: tool.digest for name, tool in tools.items()}), tools=tools)


def combine_tool_digests(tools: Mapping[str, str]) -> str:
    """Return the server's digest, from the digests of its tools. All are hex without a prefix."""
    return hash_text("\n".join(f"{name}:{tools[name]}" for name in sort_by_utf16(tools)))


def compute_file_digest(server: str, prompts: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a lockfile, as hex without a prefix.

    ``server`` is the digest of all tools. ``prompts`` are pairs of a name and a ``sha256:`` digest, sorted by name.
    """
    lines = [f"{name}:{digest}" for name, digest in prompts]
    return hash_text(server + _PROMPTS_SEPARATOR + "\n".join(lines)) if lines else server


def build_locked_prompt(prompt: PromptContract) -> dict[str, Any]:
    """Return the entry of a prompt in the lockfile, with its digests."""
    ordered, _ = sort_by_locale(prompt.arguments, lambda argument: argument.name)
    arguments = [
        {"name": argument.name, "description": argument.description or None, "required": argument.required}
        for argument in ordered
    ]
    visible = {
        "description": prompt.description or None,
        "title": prompt.title or None,
        "tags": sort_by_utf16(prompt.tags),
        "arguments": arguments,
        "hasMiddleware": prompt.has_middleware,
        "hydrationTimeout": prompt.hydration_timeout,
    }
    return {
        **visible,
        "argumentsDigest": f"sha256:{hash_value(arguments)}",
        "integrityDigest": f"sha256:{hash_value({'name': prompt.name, **visible})}",
    }


def _build_surface_preimage(surface: SurfaceContract) -> dict[str, Any]:
    return {
        "name": surface.name,
        **({} if surface.description is None else {"description": surface.description}),
        "tags": sort_by_utf16(surface.tags),
        "inputSchemaDigest": surface.input_schema_digest,
        "actions": [_build_action_preimage(key, surface.actions[key]) for key in sort_by_utf16(surface.actions)],
    }


def _build_action_preimage(key: str, action: ActionContract) -> dict[str, Any]:
    preimage: dict[str, Any] = {
        "key": key,
        "destructive": action.destructive,
        "idempotent": action.idempotent,
        "readOnly": action.read_only,
        "requiredFields": list(action.required_fields),
        "inputSchemaDigest": action.input_schema_digest,
        "hasMiddleware": action.has_middleware,
    }
    if action.description is not None:
        preimage["description"] = action.description
    if action.presenter_name is not None:
        preimage["presenterName"] = action.presenter_name
    return preimage


def _build_entitlements_preimage(entitlements: EntitlementContract, dialect: Dialect) -> dict[str, Any]:
    """Return the flags to hash. An unknown flag is hashed as false, because MCP Fusion hashes only true and false."""
    flags: dict[str, Any] = {name: flag is True for name, flag in entitlements.flags().items()}
    if not dialect.code_evaluation:
        del flags["codeEvaluation"]
    return {**flags, "raw": sort_by_utf16(entitlements.raw)}
