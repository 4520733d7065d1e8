"""The server author's lockfile: generate, serialize and parse it. ``lock_command.py`` reads and writes the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.contract.contract import Contracts, PromptContract, ToolContract
from pinwarden.contract.dialect import DEFAULT_DIALECT, DIALECTS, Dialect
from pinwarden.contract.digests import (
    LOCKFILE_LIMITS,
    build_locked_prompt,
    compute_file_digest,
    compute_server_digest,
    encode_sorted_file,
    sort_by_utf16,
)
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import escape_invisible_json
from pinwarden.core.typed_json import JsonObject

LOCKFILE_VERSION = 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SECTIONS = ("surface", "behavior", "tokenEconomics", "entitlements")
_VERSION_KEYS = tuple(dict.fromkeys(dialect.version_key for dialect in DIALECTS.values()))


class Lockfile(Record):
    """A lockfile as a JSON value. Unknown members are preserved."""

    document: Mapping[str, Any]

    @property
    def server_name(self) -> str:
        """The server's name. Pinwarden's body digest covers it; MCP Fusion's digest does not."""
        name: str = self.document["serverName"]
        return name

    @property
    def integrity_digest(self) -> str:
        """The digest over the digests of all tools and prompts, with the prefix ``sha256:``."""
        digest: str = self.document["integrityDigest"]
        return digest

    @property
    def tools(self) -> Mapping[str, Any]:
        """The locked tools by name."""
        return _map_by_name(self.document["capabilities"]["tools"])

    @property
    def prompts(self) -> Mapping[str, Any]:
        """The locked prompts by name."""
        return _map_by_name(self.document["capabilities"].get("prompts") or {})

    @property
    def extension(self) -> Mapping[str, Any] | None:
        """Pinwarden's extension (``contract/extension.py``); None if the lockfile has none."""
        member = self.document.get("pinwarden")
        return member if isinstance(member, Mapping) else None


class LockfileCheckResult(Record):
    """Which tools and prompts were added, removed, changed or left unchanged since the lockfile was written."""

    ok: bool
    message: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    added_prompts: tuple[str, ...] = ()
    removed_prompts: tuple[str, ...] = ()
    changed_prompts: tuple[str, ...] = ()
    unchanged_prompts: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    """Changes of instructions, resources and code, which MCP Fusion does not check."""

    def to_json(self) -> dict[str, Any]:
        """Return the result with the member names of MCP Fusion, plus ``other`` if it is not empty."""
        fusion_result = {
            "ok": self.ok,
            "message": self.message,
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "unchanged": list(self.unchanged),
            "addedPrompts": list(self.added_prompts),
            "removedPrompts": list(self.removed_prompts),
            "changedPrompts": list(self.changed_prompts),
            "unchangedPrompts": list(self.unchanged_prompts),
        }
        return {**fusion_result, "other": list(self.other)} if self.other else fusion_result


# Generate


def generate_lockfile(  # noqa: PLR0913  all but the first two have a default
    server_name: str,
    contracts: Contracts,
    prompts: Iterable[PromptContract] = (),
    *,
    generated_at: str,
    dialect: Dialect = DEFAULT_DIALECT,
    framework_version: str | None = None,
    compat: bool = False,
) -> Lockfile:
    """Generate the lockfile of a server, without extension (``extension.with_extension`` adds it).

    Raises ``TOOL_NAME_DUPLICATE`` if two prompts have the same name. ``compat`` handles them like MCP Fusion instead.
    """
    digests = compute_server_digest(contracts, dialect)
    tools = {
        name: _build_locked_tool(contracts[name], digests.tools[name].digest, dialect)
        for name in sort_by_utf16(contracts)
    }
    sorted_prompts = _sort_prompts(list(prompts), dialect, compat=compat)
    locked = [(prompt.name, build_locked_prompt(prompt)) for prompt in sorted_prompts]
    digest = compute_file_digest(digests.digest, ((name, entry["integrityDigest"]) for name, entry in locked))
    return Lockfile(
        document={
            "lockfileVersion": LOCKFILE_VERSION,
            "serverName": server_name,
            dialect.version_key: dialect.framework_version if framework_version is None else framework_version,
            "generatedAt": generated_at,
            "integrityDigest": f"sha256:{digest}",
            "capabilities": {"tools": tools, **({"prompts": dict(locked)} if locked else {})},
        }
    )


def _sort_prompts(listed: list[PromptContract], dialect: Dialect, *, compat: bool) -> list[PromptContract]:
    """Sort the prompts by name. Raises for two of the same name, unless ``compat`` is set."""
    by_name = {item.name: item for item in listed}  # the last one registered wins
    if len(by_name) == len(listed) or (compat and dialect.one_prompt_per_name):
        return [by_name[name] for name in sort_by_utf16(by_name)]
    if not compat:
        duplicate = next(item.name for item in listed if item is not by_name[item.name])
        raise PinwardenError("TOOL_NAME_DUPLICATE", f"two prompts have the name {duplicate[:80]!a}")
    return [item for name in sort_by_utf16(by_name) for item in listed if item.name == name]


def _build_locked_tool(contract: ToolContract, digest: str, dialect: Dialect) -> dict[str, Any]:
    surface, behavior, tokens = contract.surface, contract.behavior, contract.token_economics
    actions = sort_by_utf16(surface.actions)
    egress = behavior.egress_schema_digest
    flags = contract.entitlements.flags()
    if not dialect.code_evaluation:
        del flags["codeEvaluation"]
    return {
        "integrityDigest": f"sha256:{digest}",
        "surface": {
            "description": surface.description,
            "actions": actions,
            "inputSchemaDigest": f"sha256:{surface.input_schema_digest}",
            "tags": sort_by_utf16(surface.tags),
        },
        "behavior": {
            "egressSchemaDigest": None if egress is None else f"sha256:{egress}",
            "systemRulesFingerprint": behavior.system_rules_fingerprint,
            "destructiveActions": [key for key in actions if surface.actions[key].destructive],
            "readOnlyActions": [key for key in actions if surface.actions[key].read_only],
            "middlewareChain": list(behavior.middleware_chain),
            "affordanceTopology": list(behavior.affordance_topology),
            "cognitiveGuardrails": {
                "agentLimitMax": behavior.agent_limit_max,
                "egressMaxBytes": behavior.egress_max_bytes,
            },
        },
        "tokenEconomics": {
            "inflationRisk": tokens.inflation_risk,
            "schemaFieldCount": tokens.schema_field_count,
            "unboundedCollection": tokens.unbounded_collection,
        },
        "entitlements": flags,
    }


# Serialize


def serialize_lockfile(lockfile: Lockfile, *, compat: bool = False) -> bytes:
    """Return the bytes of the file: sorted members, two spaces, a final newline. The same value gives the same bytes.

    In a lockfile with Pinwarden's extension, invisible characters are escaped for reviewers. Without the extension, the
    bytes are the same as MCP Fusion's. ``compat`` drops members named ``__proto__``, as MCP Fusion does.
    """
    data = encode_sorted_file(dict(lockfile.document), keep_proto=not compat)
    return data if compat or lockfile.extension is None else escape_invisible_json(data.decode()).encode()


# Parse


def parse_lockfile(data: bytes, *, compat: Dialect | None = None, limits: Limits = LOCKFILE_LIMITS) -> Lockfile:
    """Parse a lockfile of any dialect.

    The JSON must be strict, and every member that a check needs must be present with the right type. With ``compat``,
    the rules of that dialect's own parser apply instead.
    """
    if compat is not None:
        return _parse_like(compat, data, limits)
    document = strict_json.parse_json(data, limits)
    root = JsonObject(document, "", _build_error, separator=".")
    _check_version(document)
    for name in ("serverName", "generatedAt"):
        root.string(name)
    if not any(isinstance(document.get(key), str) for key in _VERSION_KEYS):
        raise _build_error("", f"has none of {', '.join(_VERSION_KEYS)}")
    _check_digest(root)
    _check_capabilities(root.object("capabilities"))
    return Lockfile(document=document)


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("lockfileVersion")
    if type(version) not in (int, float):
        raise _build_error("lockfileVersion", "is not a number")
    if version != LOCKFILE_VERSION:
        raise PinwardenError(
            "LOCK_VERSION_UNSUPPORTED",
            f"lockfileVersion is {version!r}; supported: {LOCKFILE_VERSION}",
            hint="Use a newer pinwarden, or lock the server again with: pinwarden contract lock",
        )


def _check_capabilities(capabilities: JsonObject) -> None:
    for _, tool in capabilities.object("tools").members():
        _check_digest(tool)
        for section in _SECTIONS:
            tool.object(section)
    if "prompts" in capabilities:
        for _, prompt in capabilities.object("prompts").members():
            _check_digest(prompt)


def _check_digest(entry: JsonObject) -> None:
    entry.string("integrityDigest", _DIGEST, kind="a digest (sha256: and 64 hex digits)")


def _parse_like(dialect: Dialect, data: bytes, limits: Limits) -> Lockfile:
    """Parse like MCP Fusion: the last duplicate member wins, digests are not checked, and lists count as objects."""
    document = strict_json.parse_last_wins(data, limits)
    root = JsonObject(document, "", _build_error, separator=".")
    if type(document.get("lockfileVersion")) not in (int, float) or document["lockfileVersion"] != LOCKFILE_VERSION:
        root.fail("lockfileVersion", f"is not {LOCKFILE_VERSION}")
    for name in ("serverName", "integrityDigest", "generatedAt", dialect.version_key):
        root.string(name)
    capabilities = root.object("capabilities")
    if not isinstance(capabilities.value.get("tools"), dict | list):
        capabilities.fail("tools", "is not an object")
    return Lockfile(document=document)


def _map_by_name(entries: Any) -> Mapping[str, Any]:
    """Map entries by name. As in JavaScript, the names of list items are their indexes."""
    if isinstance(entries, list):
        return {str(index): entry for index, entry in enumerate(entries)}
    return entries if isinstance(entries, Mapping) else {}


def _build_error(path: str, problem: str) -> PinwardenError:
    message = f"{path or 'the lockfile'} {problem}"[:300]
    return PinwardenError(
        "LOCK_INVALID", message, hint="Restore the file from version control, or lock the server again."
    )
