"""The capability lockfile: generate, serialize, parse.

``generate_lockfile``, ``serialize_lockfile`` and ``parse_lockfile`` are pure. The only side effects are in
``contract/lock_command.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.contract.contract import Contracts, PromptContract, ToolContract
from pinwarden.contract.dialect import DEFAULT_DIALECT, DIALECTS, Dialect
from pinwarden.contract.digests import (
    LOCKFILE_LIMITS,
    file_digest,
    locked_prompt,
    server_digest,
    to_sorted_file,
    utf16_sorted,
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
        """The server's name. Covered by our body digest, but not by MCP Fusion's digest."""
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
        return _by_name(self.document["capabilities"]["tools"])

    @property
    def prompts(self) -> Mapping[str, Any]:
        """The locked prompts by name."""
        return _by_name(self.document["capabilities"].get("prompts") or {})

    @property
    def extension(self) -> Mapping[str, Any] | None:
        """Pinwarden's own member (``contract/extension.py``), if there is one."""
        member = self.document.get("pinwarden")
        return member if isinstance(member, Mapping) else None


class LockfileCheckResult(Record):
    """The result of a check."""

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
    """Other changes, which MCP Fusion does not check: instructions, resources, …"""

    def to_json(self) -> dict[str, Any]:
        """The result with MCP Fusion's names, and ``other`` if it is not empty."""
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
    """The lockfile of a server, without extension (``extension.with_extension`` adds one).

    Two prompts with one name are an error; with ``compat`` they are handled as the dialect does.
    """
    digests = server_digest(contracts, dialect)
    tools = {
        name: _locked_tool(contracts[name], digests.tools[name].digest, dialect) for name in utf16_sorted(contracts)
    }
    listed = _prompts(list(prompts), dialect, compat=compat)
    locked = [(item.name, locked_prompt(item)) for item in listed]
    digest = file_digest(digests.digest, ((name, entry["integrityDigest"]) for name, entry in locked))
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


def _prompts(listed: list[PromptContract], dialect: Dialect, *, compat: bool) -> list[PromptContract]:
    """The prompts, sorted by name."""
    by_name = {item.name: item for item in listed}  # the last one registered wins
    if len(by_name) == len(listed) or (compat and dialect.one_prompt_per_name):
        return [by_name[name] for name in utf16_sorted(by_name)]
    if not compat:
        twice = next(item.name for item in listed if item is not by_name[item.name])
        raise PinwardenError("TOOL_NAME_DUPLICATE", f"two prompts have the name {twice[:80]!a}")
    return [item for name in utf16_sorted(by_name) for item in listed if item.name == name]


def _locked_tool(contract: ToolContract, digest: str, dialect: Dialect) -> dict[str, Any]:
    surface, behavior, tokens = contract.surface, contract.behavior, contract.token_economics
    actions = utf16_sorted(surface.actions)
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
            "tags": utf16_sorted(surface.tags),
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
    """The bytes of the file: sorted members, two spaces, a final newline. The same value gives the same bytes.

    In a file with our extension invisible characters are escaped, because people review it; without the extension the
    bytes equal MCP Fusion's. MCP Fusion drops members named ``__proto__``; so does ``compat``.
    """
    data = to_sorted_file(dict(lockfile.document), keep_proto=not compat)
    return data if compat or lockfile.extension is None else escape_invisible_json(data.decode()).encode()


# Parse


def parse_lockfile(data: bytes, *, compat: Dialect | None = None, limits: Limits = LOCKFILE_LIMITS) -> Lockfile:
    """Parse a lockfile of any dialect.

    By default the JSON must be strict, and every member that a check needs must be present with the right type.
    ``compat`` accepts and rejects exactly what that dialect's reader does.
    """
    if compat is not None:
        return _parse_as(compat, data, limits)
    document = strict_json.parse_json(data, limits)
    root = JsonObject(document, "", _error, separator=".")
    _check_version(document)
    for name in ("serverName", "generatedAt"):
        root.string(name)
    if not any(isinstance(document.get(key), str) for key in _VERSION_KEYS):
        raise _error("", f"has none of {', '.join(_VERSION_KEYS)}")
    _check_digest(root)
    _check_capabilities(root.object("capabilities"))
    return Lockfile(document=document)


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("lockfileVersion")
    if type(version) not in (int, float):
        raise _error("lockfileVersion", "is not a number")
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


def _parse_as(dialect: Dialect, data: bytes, limits: Limits) -> Lockfile:
    """Parse like MCP Fusion: the last duplicate member wins, digests may be anything, lists count as objects."""
    document = strict_json.parse_last_wins(data, limits)
    root = JsonObject(document, "", _error, separator=".")
    if type(document.get("lockfileVersion")) not in (int, float) or document["lockfileVersion"] != LOCKFILE_VERSION:
        root.fail("lockfileVersion", f"is not {LOCKFILE_VERSION}")
    for name in ("serverName", "integrityDigest", "generatedAt", dialect.version_key):
        root.string(name)
    capabilities = root.object("capabilities")
    if not isinstance(capabilities.value.get("tools"), dict | list):
        capabilities.fail("tools", "is not an object")
    return Lockfile(document=document)


def _by_name(entries: Any) -> Mapping[str, Any]:
    """Entries by name. In JavaScript a list is an object whose names are numbers."""
    if isinstance(entries, list):
        return {str(index): entry for index, entry in enumerate(entries)}
    return entries if isinstance(entries, Mapping) else {}


def _error(path: str, problem: str) -> PinwardenError:
    message = f"{path or 'the lockfile'} {problem}"[:300]
    return PinwardenError(
        "LOCK_INVALID", message, hint="Restore the file from version control, or lock the server again."
    )
