"""Pinwarden's extension of the lockfile: the member ``pinwarden``, which MCP Fusion ignores.

The extension has the verbatim surface, so that a reviewer sees each change, and the complete contracts, so that two
files can be compared. It records how each fact is known. ``bodyDigest`` covers the entire file, and ``surfaceDigest``
equals the digest of the same surface in a user's lock (``surface/surface.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from pinwarden.contract.contract import Contracts, ToolContract, contracts_from_json
from pinwarden.contract.dialect import detect_dialects
from pinwarden.contract.digests import LOCKFILE_LIMITS, compute_tool_digest
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.normal_form import compute_normalised_digest
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, PublicKey, sign_dsse, verify_dsse
from pinwarden.core.record import Record, field, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, SERVER_MEMBERS, TOOL, ItemKind, Surface, surface_from_listing

KEY = "pinwarden"
FORMAT = "pinwarden-contract/1"
PAYLOAD_TYPE = "application/vnd.pinwarden.contract+json"
SOURCE, IN_MEMORY, LIVE, UNKNOWN = "source", "in-memory", "live", "unknown"
EVIDENCE = (SOURCE, IN_MEMORY, LIVE, UNKNOWN)
"""How a fact is known: from source code, from the imported server object, from the running server, or unknown."""
_SURFACE_MEMBERS = frozenset({*SERVER_MEMBERS, *(kind.member for kind in ITEM_KINDS)})
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class ToolExtension(Record):
    """The part of the extension about one tool, besides its definition and contract."""

    evidence: Mapping[str, str] = field(default_factory=dict)
    """How each fact is known: maps ``entitlements``, ``middlewareChain``, ``inputSchema``, … to one of ``EVIDENCE``."""
    entitlements: Mapping[str, Any] = field(default_factory=dict)
    """The findings of the source analysis, as JSON. They are more detailed than the five flags of the contract."""
    middleware: tuple[Mapping[str, Any], ...] = ()
    """The middleware, outermost first: ``{"name": …, "sourceDigest": … or None}``."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Timeout, auth and the location of the handler, as JSON."""


class ContractExtension(Record):
    """The content of the extension, without its digests."""

    surface: Surface
    """The verbatim surface: tools, prompts, resources, templates, server info and instructions."""
    contracts: Contracts
    """The contracts from which the lockfile was generated."""
    evidence: str
    """The most detailed way in which the server was observed: one of ``EVIDENCE``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Framework and protocol versions by name, e.g. ``{"python": …, "mcp": …, "fastmcp": …, "protocol": …}``."""
    tools: Mapping[str, ToolExtension] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the server as a whole, as JSON."""


def with_extension(lockfile: Lockfile, extension: ContractExtension) -> Lockfile:
    """Add the extension and its digests to a lockfile. This removes an existing signature."""
    surface = extension.surface
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"the surface has no digest, so it cannot be locked: {surface.problem}")
    member: dict[str, Any] = {
        "format": FORMAT,
        "surfaceDigest": str(surface.digest),
        "normalisedDigest": str(compute_normalised_digest(surface)),
        "evidence": extension.evidence,
        "versions": dict(extension.versions),
        "surface": _build_listing(surface),
        "tools": _tools_to_json(extension),
        "details": dict(extension.details),
    }
    _remove_repeated_descriptions(lockfile, member)
    document = {**lockfile.document, KEY: member}
    member["bodyDigest"] = str(compute_body_digest(Lockfile(document=document)))
    return Lockfile(document=document)


def _remove_repeated_descriptions(lockfile: Lockfile, member: dict[str, Any]) -> None:
    """Remove each description that the part of MCP Fusion has too, so that a reviewer sees a change of it once.

    `_restore_descriptions` puts them back.
    """
    listed = member["surface"]
    for kind, described in _iter_descriptions(lockfile):
        if kind.member in listed:
            listed[kind.member] = [
                _without(item, "description") if item.get("description") == described.get(item.get("name")) else item
                for item in listed[kind.member]
            ]
    tools = dict(_iter_descriptions(lockfile))[TOOL]
    for name, entry in member["tools"].items():
        contract = entry["contract"]
        if name in tools and contract["surface"].get("description") == tools[name]:
            entry["contract"] = {**contract, "surface": _without(contract["surface"], "description")}


def _restore_descriptions(lockfile: Lockfile, listing: Any) -> Any:
    """Return the surface of the extension with the descriptions that `_remove_repeated_descriptions` removed."""
    if not isinstance(listing, Mapping):
        return listing
    restored = dict(listing)
    for kind, described in _iter_descriptions(lockfile):
        if isinstance(listing.get(kind.member), list):
            restored[kind.member] = [_with_description(item, described) for item in listing[kind.member]]
    return restored


def _iter_descriptions(lockfile: Lockfile) -> Iterator[tuple[ItemKind, dict[str, str]]]:
    """Yield the descriptions of tools and prompts in the part of MCP Fusion, by name."""
    for kind, entries in ((TOOL, lockfile.tools), (PROMPT, lockfile.prompts)):
        parts = {name: _get_member(entry, "surface") if kind is TOOL else entry for name, entry in entries.items()}
        texts = {name: _get_member(part, "description") for name, part in parts.items()}
        yield kind, {name: text for name, text in texts.items() if isinstance(text, str)}


def _with_description(item: Any, described: Mapping[str, str]) -> Any:
    name = _get_member(item, "name")
    missing = isinstance(name, str) and name in described and "description" not in item
    return {**item, "description": described[name]} if missing else item


def _get_member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: member for key, member in value.items() if key != name}


def compute_body_digest(lockfile: Lockfile) -> Digest:
    """Return the digest of the entire lockfile, except ``bodyDigest`` itself and the signature."""
    document = dict(lockfile.document)
    if lockfile.extension is not None:
        excluded = ("bodyDigest", "signature")
        document[KEY] = {name: value for name, value in lockfile.extension.items() if name not in excluded}
    return Digest.of_bytes(canonicalize(document, "jcs", LOCKFILE_LIMITS))


def check_body(lockfile: Lockfile) -> bool:
    """Verify the digests of the extension; return False if the lockfile has no extension.

    Raises ``LOCK_TAMPERED`` if the lockfile was edited.
    """
    if KEY not in lockfile.document:
        return False
    extension = _require_extension(lockfile)
    if extension.get("bodyDigest") != str(compute_body_digest(lockfile)):
        _raise_tampered("the lockfile was edited: its body does not match its bodyDigest")
    _check_members(extension)
    surface = surface_from_listing(_restore_descriptions(lockfile, extension["surface"]))
    if extension.get("surfaceDigest") != str(surface.digest):
        _raise_tampered("the lockfile was edited: its surface does not match its surfaceDigest")
    if extension.get("normalisedDigest") != str(compute_normalised_digest(surface)):
        _raise_tampered("the lockfile was edited: its surface does not match its normalisedDigest")
    _check_summaries(extension, surface)
    _check_contracts(lockfile, surface)
    return True


def _check_members(extension: Mapping[str, Any]) -> None:
    """Check that the surface has only known members, and that every evidence level is valid."""
    surface = extension.get("surface")
    if not isinstance(surface, Mapping) or not surface.keys() <= _SURFACE_MEMBERS:
        _raise_unreadable("surface is not an object, or has unknown members")
    levels = [extension.get("evidence")]
    for entry in _read_tool_entries(extension).values():
        evidence = entry.get("evidence")
        if not isinstance(evidence, Mapping):
            _raise_unreadable("a tool has no evidence")
        levels += evidence.values()
    if not all(level in EVIDENCE for level in levels):
        _raise_unreadable("an evidence level is unknown")


def _check_contracts(lockfile: Lockfile, surface: Surface) -> None:
    """Check that lockfile, surface and extension list the same tools, and that each contract matches its digest."""
    names = {item.key for item in surface.items_of_kind(TOOL)}
    if not names == lockfile.tools.keys() == _read_tool_entries(_require_extension(lockfile)).keys():
        _raise_tampered("the lockfile was edited: its tools differ from the tools in its surface")
    read_contracts(lockfile)


def _check_summaries(extension: Mapping[str, Any], surface: Surface) -> None:
    """Check that the summary of each tool matches its definition."""
    definitions = {item.key: item.value for item in surface.items_of_kind(TOOL)}
    for name, entry in _read_tool_entries(extension).items():
        definition = definitions.get(name, {})
        if any(entry.get(member) != value for member, value in _summarize_definition(definition).items()):
            _raise_tampered(
                f"the lockfile was edited: the summary of the tool {name[:80]!a} contradicts its definition"
            )


def read_surface(lockfile: Lockfile) -> Surface | None:
    """Return the surface in the extension, with recomputed digests; None if the lockfile has no extension."""
    if KEY not in lockfile.document:
        return None
    return surface_from_listing(_restore_descriptions(lockfile, _require_extension(lockfile).get("surface")))


def read_contracts(lockfile: Lockfile) -> dict[str, ToolContract] | None:
    """Return the complete contracts in the extension; None if the lockfile has no extension.

    Raises ``LOCK_TAMPERED`` if a contract does not match its digest.
    """
    if KEY not in lockfile.document:
        return None
    described = dict(_iter_descriptions(lockfile))[TOOL]
    value = {
        name: _restore_contract(entry.get("contract"), described.get(name))
        for name, entry in _read_tool_entries(_require_extension(lockfile)).items()
    }
    contracts = contracts_from_json(value, f"{KEY}.tools")
    dialect = detect_dialects(lockfile.document)[0]  # all possible dialects of a file digest contracts in the same way
    for name, contract in contracts.items():
        if (
            lockfile.tools.get(name, {}).get("integrityDigest")
            != f"sha256:{compute_tool_digest(contract, dialect).digest}"
        ):
            _raise_tampered(
                f"the lockfile was edited: the contract of the tool {name[:80]!a} does not match its digest"
            )
    entries = _read_tool_entries(_require_extension(lockfile))
    return {name: _with_unknown_flags(contract, entries[name]) for name, contract in contracts.items()}


def _restore_contract(contract: Any, description: str | None) -> Any:
    surface = _get_member(contract, "surface")
    if description is None or not isinstance(surface, Mapping) or "description" in surface:
        return contract
    return {**contract, "surface": {**surface, "description": description}}


def _with_unknown_flags(contract: ToolContract, entry: Mapping[str, Any]) -> ToolContract:
    """Return a contract with None for unknown flags. Older lockfiles wrote false for them."""
    evidence, facts = entry.get("evidence"), entry.get("entitlements")
    analysed = isinstance(evidence, Mapping) and evidence.get("entitlements") != UNKNOWN
    if analysed and not (isinstance(facts, Mapping) and facts.get("unknown")):
        return contract
    return replace(contract, entitlements=contract.entitlements.with_unknown_flags())


def sign_lockfile(lockfile: Lockfile, keys: Iterable[PrivateKey]) -> Lockfile:
    """Add a DSSE signature (Ed25519) over the body digest and the surface digest. Replaces an earlier signature."""
    if not check_body(lockfile):
        raise PinwardenError("LOCK_INVALID", "the lockfile has no extension, so there is no body digest to sign")
    extension = _require_extension(lockfile)
    envelope = sign_dsse(PAYLOAD_TYPE, canonicalize(_build_statement(lockfile)), keys)
    return Lockfile(document={**lockfile.document, KEY: {**extension, "signature": envelope}})


def verify_lockfile(lockfile: Lockfile, known_keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """Return the known keys that signed the lockfile. Raises ``SIGNATURE_INVALID`` or ``LOCK_TAMPERED``."""
    if not check_body(lockfile) or "signature" not in _require_extension(lockfile):
        raise PinwardenError("SIGNATURE_INVALID", "the lockfile is not signed")
    payload, signers = verify_dsse(_require_extension(lockfile)["signature"], PAYLOAD_TYPE, known_keys)
    if parse_json(payload) != _build_statement(lockfile):
        raise PinwardenError("SIGNATURE_INVALID", "the signature is for another lockfile")
    return signers


def _build_statement(lockfile: Lockfile) -> dict[str, Any]:
    extension = _require_extension(lockfile)
    return {
        "format": FORMAT,
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        "bodyDigest": extension.get("bodyDigest"),
        "surfaceDigest": extension.get("surfaceDigest"),
    }


def _build_listing(surface: Surface) -> dict[str, Any]:
    """Return the surface as JSON, from which ``surface_from_listing`` builds a surface with the same digest."""
    lists = {
        kind.member: [
            item.value for item in sorted(surface.items_of_kind(kind), key=lambda item: (item.key, str(item.digest)))
        ]
        for kind in ITEM_KINDS
        if kind.member in surface.items
    }
    return {**(surface.server or {}), **lists}


def _tools_to_json(extension: ContractExtension) -> dict[str, Any]:
    definitions = {item.key: item.value for item in extension.surface.items_of_kind(TOOL)}
    rows: dict[str, Any] = {}
    for name, contract in extension.contracts.items():
        facts = extension.tools.get(name, ToolExtension())
        definition = definitions.get(name, {})
        rows[name] = {
            "contract": contract.to_json(),
            **_summarize_definition(definition),
            "evidence": dict(facts.evidence),
            "entitlements": dict(facts.entitlements),
            "middleware": [dict(layer) for layer in facts.middleware],
            "details": dict(facts.details),
        }
    return rows


def _summarize_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize a tool's definition: its hints, and the digest of its output schema."""
    return {
        "annotations": read_hints(definition.get("annotations")),
        "outputSchemaDigest": _hash_optional(definition.get("outputSchema")),
    }


def _read_tool_entries(extension: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    tools = extension.get("tools")
    if not isinstance(tools, Mapping) or not all(isinstance(entry, Mapping) for entry in tools.values()):
        _raise_unreadable("tools is not an object of objects")
    return tools


def read_hints(annotations: Any) -> dict[str, bool | None]:
    """Return the boolean hints of a tool. A hint is None if the author did not declare it."""
    declared = annotations if isinstance(annotations, Mapping) else {}
    return {hint: declared[hint] if isinstance(declared.get(hint), bool) else None for hint in HINTS}


def _hash_optional(value: Any) -> str | None:
    return None if value is None else str(Digest.of_bytes(canonicalize(value)))


def _require_extension(lockfile: Lockfile) -> Mapping[str, Any]:
    extension = lockfile.extension
    if extension is None or extension.get("format") != FORMAT:
        _raise_unreadable(f"the member is not an object of format {FORMAT}")
    return extension


def _raise_unreadable(problem: str) -> NoReturn:
    raise PinwardenError("LOCK_INVALID", f"{KEY}: {problem}", hint="Lock the server again, or use a newer pinwarden.")


def _raise_tampered(problem: str) -> NoReturn:
    raise PinwardenError("LOCK_TAMPERED", problem)
