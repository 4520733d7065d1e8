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
"""A lockfile of ten thousand tools with their schemas has some tens of megabytes."""


def hex_of(value: Any) -> str:
    """SHA-256 in bare hex of a value in MCP Fusion's canonical JSON."""
    return sha256(canonicalize(value, "fusion", LOCKFILE_LIMITS)).hexdigest()


def hex_of_text(text: str) -> str:
    """SHA-256 in bare hex of text as JavaScript encodes it: a lone surrogate becomes U+FFFD."""
    try:
        return sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        return sha256(_SURROGATE.sub("\ufffd", text).encode()).hexdigest()


def utf16_sorted(names: Iterable[str]) -> list[str]:
    """Names in the order of ``Array.prototype.sort``: UTF-16 code units."""
    listed = list(names)
    if all(name.isascii() for name in listed):
        return sorted(listed)
    return sorted(listed, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def to_sorted_file(document: Any, *, keep_proto: bool = True) -> bytes:
    """The text of a file with members sorted at every level, two spaces and a final newline.

    MCP Fusion drops a member named ``__proto__``. Reviewers must see it, so it is kept by default.
    """
    return encode_javascript_json(_sorted(document, keep_proto=keep_proto))


def _sorted(value: Any, *, keep_proto: bool) -> Any:
    if isinstance(value, dict):
        names = [name for name in utf16_sorted(value) if keep_proto or name != _PROTO]
        return {name: _sorted(value[name], keep_proto=keep_proto) for name in names}
    if isinstance(value, list | tuple):
        return [_sorted(item, keep_proto=keep_proto) for item in value]
    return value


_PROMPTS_FOLLOW = "\n---prompts---\n"


class ToolDigest(Record):
    """The digest of one tool and of each of its sections, in bare hex."""

    digest: str
    surface: str
    behavior: str
    token_economics: str
    entitlements: str

    def components(self) -> dict[str, str]:
        """The digests of the sections, by MCP Fusion's names."""
        return {
            "surface": self.surface,
            "behavior": self.behavior,
            "tokenEconomics": self.token_economics,
            "entitlements": self.entitlements,
        }


class ServerDigest(Record):
    """The digest of all tools, and of each tool. Prompts are not included."""

    digest: str
    tools: Mapping[str, ToolDigest]


def required_fields_digest(names: Iterable[str]) -> str:
    """MCP Fusion's ``inputSchemaDigest`` of an action, which covers only the names, in order."""
    return hex_of(list(names))


def tool_digest(contract: ToolContract, dialect: Dialect) -> ToolDigest:
    """The digest of one tool."""
    document = contract.to_json()
    parts = (
        hex_of(_surface(contract.surface)),
        hex_of(document["behavior"]),
        hex_of(document["tokenEconomics"]),
        hex_of(_entitlements(contract.entitlements, dialect)),
    )
    return ToolDigest(
        digest=hex_of_text(":".join(parts)),
        surface=parts[0],
        behavior=parts[1],
        token_economics=parts[2],
        entitlements=parts[3],
    )


def server_digest(contracts: Contracts, dialect: Dialect) -> ServerDigest:
    """The digest of all tools by exported name, in any order."""
    tools = {name: tool_digest(contract, dialect) for name, contract in contracts.items()}
    return ServerDigest(digest=server_digest_of({name: tool.digest for name, tool in tools.items()}), tools=tools)


def server_digest_of(tools: Mapping[str, str]) -> str:
    """The server's digest from those of its tools, in bare hex."""
    return hex_of_text("\n".join(f"{name}:{tools[name]}" for name in utf16_sorted(tools)))


def file_digest(server: str, prompts: Iterable[tuple[str, str]]) -> str:
    """The file's digest in bare hex, from the server's and the prompts' (name and ``sha256:`` digest, sorted)."""
    lines = [f"{name}:{digest}" for name, digest in prompts]
    return hex_of_text(server + _PROMPTS_FOLLOW + "\n".join(lines)) if lines else server


def locked_prompt(prompt: PromptContract) -> dict[str, Any]:
    """A prompt's entry in the file, with its digests."""
    ordered, _ = sort_by_locale(prompt.arguments, lambda argument: argument.name)
    arguments = [
        {"name": argument.name, "description": argument.description or None, "required": argument.required}
        for argument in ordered
    ]
    visible = {
        "description": prompt.description or None,
        "title": prompt.title or None,
        "tags": utf16_sorted(prompt.tags),
        "arguments": arguments,
        "hasMiddleware": prompt.has_middleware,
        "hydrationTimeout": prompt.hydration_timeout,
    }
    return {
        **visible,
        "argumentsDigest": f"sha256:{hex_of(arguments)}",
        "integrityDigest": f"sha256:{hex_of({'name': prompt.name, **visible})}",
    }


def _surface(surface: SurfaceContract) -> dict[str, Any]:
    return {
        "name": surface.name,
        **({} if surface.description is None else {"description": surface.description}),
        "tags": utf16_sorted(surface.tags),
        "inputSchemaDigest": surface.input_schema_digest,
        "actions": [_action(key, surface.actions[key]) for key in utf16_sorted(surface.actions)],
    }


def _action(key: str, action: ActionContract) -> dict[str, Any]:
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


def _entitlements(entitlements: EntitlementContract, dialect: Dialect) -> dict[str, Any]:
    """The format hashes only true and false, so an unknown flag is hashed as false; the file has null."""
    flags: dict[str, Any] = {name: flag is True for name, flag in entitlements.flags().items()}
    if not dialect.code_evaluation:
        del flags["codeEvaluation"]
    return {**flags, "raw": utf16_sorted(entitlements.raw)}
