"""Pinwarden's member of the lockfile, which MCP Fusion accepts and ignores.

It has the surface verbatim, so that a reviewer sees each change; the complete contracts, so that two files can be
compared; how each fact is known; and two digests that others can check: ``bodyDigest`` over the entire file, and
``surfaceDigest``, which equals the surface digest of the same server in a user's lock (``surface/surface.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.contract.contract import Contracts, ToolContract, contracts_from_json
from pinwarden.contract.dialect import dialects_of
from pinwarden.contract.digests import LOCKFILE_LIMITS, tool_digest
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.normal_form import normalised_digest
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, PublicKey, sign_dsse, verify_dsse
from pinwarden.core.record import Record, field, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, TOOL, Surface, surface_from_listing

KEY = "pinwarden"
FORMAT = "pinwarden-contract/1"
PAYLOAD_TYPE = "application/vnd.pinwarden.contract+json"
SOURCE, IN_MEMORY, LIVE, UNKNOWN = "source", "in-memory", "live", "unknown"
EVIDENCE = (SOURCE, IN_MEMORY, LIVE, UNKNOWN)
"""How a fact is known: from source, from the server object, from the live server, or unknown."""
_SURFACE_MEMBERS = frozenset({*SERVER_MEMBERS, *(kind.member for kind in ITEM_KINDS)})
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class ToolFacts(Record):
    """What the extension records about one tool besides its definition and contract."""

    evidence: Mapping[str, str] = field(default_factory=dict)
    """Fact (``entitlements``, ``middlewareChain``, ``inputSchema``, …) to one of ``EVIDENCE``."""
    entitlements: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the source analysis, ready for JSON; more kinds than the format's five flags."""
    middleware: tuple[Mapping[str, Any], ...] = ()
    """Outermost first: ``{"name": …, "sourceDigest": … or None}``."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Timeout, auth, handler location and the like, ready for JSON."""


class ContractExtension(Record):
    """The extension before its digests are computed."""

    surface: Surface
    """What a client sees: tools, prompts, resources, templates, serverInfo, instructions, all verbatim."""
    contracts: Contracts
    """The contracts from which the lockfile was generated."""
    evidence: str
    """The best source of facts that was available: one of ``EVIDENCE``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Framework and protocol versions by name, e.g. ``{"python": …, "mcp": …, "fastmcp": …, "protocol": …}``."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    """Server-wide facts, ready for JSON."""


def with_extension(lockfile: Lockfile, extension: ContractExtension) -> Lockfile:
    """The lockfile with our member and its body digest. An existing signature is dropped."""
    surface = extension.surface
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"the surface has no digest, so it cannot be locked: {surface.problem}")
    member: dict[str, Any] = {
        "format": FORMAT,
        "surfaceDigest": str(surface.digest),
        "normalisedDigest": str(normalised_digest(surface)),
        "evidence": extension.evidence,
        "versions": dict(extension.versions),
        "surface": _listing(surface),
        "tools": _tools(extension),
        "details": dict(extension.details),
    }
    document = {**lockfile.document, KEY: member}
    member["bodyDigest"] = str(body_digest(Lockfile(document=document)))
    return Lockfile(document=document)


def body_digest(lockfile: Lockfile) -> Digest:
    """The digest of the entire document except the digest itself and the signature."""
    document = dict(lockfile.document)
    if lockfile.extension is not None:
        excluded = ("bodyDigest", "signature")
        document[KEY] = {name: value for name, value in lockfile.extension.items() if name not in excluded}
    return Digest.of_bytes(canonicalize(document, "jcs", LOCKFILE_LIMITS))


def check_body(lockfile: Lockfile) -> bool:
    """Raise ``LOCK_TAMPERED`` if the body was edited. Returns False if the file has no extension."""
    if KEY not in lockfile.document:
        return False
    extension = _member(lockfile)
    if extension.get("bodyDigest") != str(body_digest(lockfile)):
        _tampered("the lockfile was edited: its body does not match its bodyDigest")
    _check_members(extension)
    surface = surface_from_listing(extension["surface"])
    if extension.get("surfaceDigest") != str(surface.digest):
        _tampered("the lockfile was edited: its surface does not match its surfaceDigest")
    if extension.get("normalisedDigest") != str(normalised_digest(surface)):
        _tampered("the lockfile was edited: its surface does not match its normalisedDigest")
    _check_derived(extension, surface)
    _check_contracts(lockfile, surface)
    return True


def _check_members(extension: Mapping[str, Any]) -> None:
    """Check that the surface has only known members, and that every evidence level is valid."""
    surface = extension.get("surface")
    if not isinstance(surface, Mapping) or not surface.keys() <= _SURFACE_MEMBERS:
        _unreadable("surface is not an object, or has unknown members")
    levels = [extension.get("evidence")]
    for entry in _tool_entries(extension).values():
        evidence = entry.get("evidence")
        if not isinstance(evidence, Mapping):
            _unreadable("a tool has no evidence")
        levels += evidence.values()
    if not all(level in EVIDENCE for level in levels):
        _unreadable("it has an unknown evidence level")


def _check_contracts(lockfile: Lockfile, surface: Surface) -> None:
    """Check that lockfile, surface and extension have the same tools, and that each contract matches its digest."""
    names = {item.key for item in surface.items_of_kind(TOOL)}
    if not names == lockfile.tools.keys() == _tool_entries(_member(lockfile)).keys():
        _tampered("the lockfile was edited: its tools are not those in its surface")
    contracts_of(lockfile)


def _check_derived(extension: Mapping[str, Any], surface: Surface) -> None:
    """Check that a tool's summary agrees with its definition."""
    wire = {item.key: item.value for item in surface.items_of_kind(TOOL)}
    for name, entry in _tool_entries(extension).items():
        definition = wire.get(name, {})
        if any(entry.get(member) != value for member, value in _derived(definition).items()):
            _tampered(f"the lockfile was edited: the summary of the tool {name[:80]!a} contradicts its definition")


def surface_of(lockfile: Lockfile) -> Surface | None:
    """The surface in the extension, if there is one. Its digests are recomputed."""
    if KEY not in lockfile.document:
        return None
    return surface_from_listing(_member(lockfile).get("surface"))


def contracts_of(lockfile: Lockfile) -> dict[str, ToolContract] | None:
    """The complete contracts, if the file has the extension. Each is checked against its digest."""
    if KEY not in lockfile.document:
        return None
    value = {name: entry.get("contract") for name, entry in _tool_entries(_member(lockfile)).items()}
    contracts = contracts_from_json(value, f"{KEY}.tools")
    dialect = dialects_of(lockfile.document)[0]  # all possible dialects of a file digest contracts in the same way
    for name, contract in contracts.items():
        if lockfile.tools.get(name, {}).get("integrityDigest") != f"sha256:{tool_digest(contract, dialect).digest}":
            _tampered(f"the lockfile was edited: the contract of the tool {name[:80]!a} does not match its digest")
    entries = _tool_entries(_member(lockfile))
    return {name: _with_unknown_flags(contract, entries[name]) for name, contract in contracts.items()}


def _with_unknown_flags(contract: ToolContract, entry: Mapping[str, Any]) -> ToolContract:
    """The contract with None for unknown flags. Older files have false there."""
    evidence, facts = entry.get("evidence"), entry.get("entitlements")
    analysed = isinstance(evidence, Mapping) and evidence.get("entitlements") != UNKNOWN
    if analysed and not (isinstance(facts, Mapping) and facts.get("unknown")):
        return contract
    return replace(contract, entitlements=contract.entitlements.with_unknown_flags())


def sign_lockfile(lockfile: Lockfile, keys: Iterable[PrivateKey]) -> Lockfile:
    """The lockfile with a DSSE envelope (Ed25519) over its body and surface digests."""
    if not check_body(lockfile):
        raise PinwardenError("LOCK_INVALID", "the lockfile has no extension, so there is no body digest to sign")
    extension = _member(lockfile)
    envelope = sign_dsse(PAYLOAD_TYPE, canonicalize(_statement(lockfile)), keys)
    return Lockfile(document={**lockfile.document, KEY: {**extension, "signature": envelope}})


def verify_lockfile(lockfile: Lockfile, known_keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """The known keys that signed this body. Raises ``SIGNATURE_INVALID`` or ``LOCK_TAMPERED``."""
    if not check_body(lockfile) or "signature" not in _member(lockfile):
        raise PinwardenError("SIGNATURE_INVALID", "the lockfile is not signed")
    payload, signers = verify_dsse(_member(lockfile)["signature"], PAYLOAD_TYPE, known_keys)
    if parse_json(payload) != _statement(lockfile):
        raise PinwardenError("SIGNATURE_INVALID", "the signature is for another lockfile")
    return signers


def _statement(lockfile: Lockfile) -> dict[str, Any]:
    extension = _member(lockfile)
    return {
        "format": FORMAT,
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        "bodyDigest": extension.get("bodyDigest"),
        "surfaceDigest": extension.get("surfaceDigest"),
    }


def _listing(surface: Surface) -> dict[str, Any]:
    """A plain listing, from which ``surface_from_listing`` makes a surface with the same digest."""
    lists = {
        kind.member: [
            item.value for item in sorted(surface.items_of_kind(kind), key=lambda item: (item.key, str(item.digest)))
        ]
        for kind in ITEM_KINDS
        if kind.member in surface.items
    }
    return {**(surface.server or {}), **lists}


def _tools(extension: ContractExtension) -> dict[str, Any]:
    wire = {item.key: item.value for item in extension.surface.items_of_kind(TOOL)}
    rows: dict[str, Any] = {}
    for name, contract in extension.contracts.items():
        facts = extension.tools.get(name, ToolFacts())
        definition = wire.get(name, {})
        rows[name] = {
            "contract": contract.to_json(),
            **_derived(definition),
            "evidence": dict(facts.evidence),
            "entitlements": dict(facts.entitlements),
            "middleware": [dict(layer) for layer in facts.middleware],
            "details": dict(facts.details),
        }
    return rows


def _derived(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a tool's definition."""
    return {
        "annotations": tri_state(definition.get("annotations")),
        "outputSchemaDigest": _digest_or_none(definition.get("outputSchema")),
    }


def _tool_entries(extension: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    tools = extension.get("tools")
    if not isinstance(tools, Mapping) or not all(isinstance(entry, Mapping) for entry in tools.values()):
        _unreadable("tools is not an object of objects")
    return tools


def tri_state(annotations: Any) -> dict[str, bool | None]:
    """Each hint as declared, or None if the author did not declare it."""
    declared = annotations if isinstance(annotations, Mapping) else {}
    return {hint: declared[hint] if isinstance(declared.get(hint), bool) else None for hint in HINTS}


def _digest_or_none(value: Any) -> str | None:
    return None if value is None else str(Digest.of_bytes(canonicalize(value)))


def _member(lockfile: Lockfile) -> Mapping[str, Any]:
    extension = lockfile.extension
    if extension is None or extension.get("format") != FORMAT:
        _unreadable(f"it is not an object of format {FORMAT}")
    return extension


def _unreadable(problem: str) -> NoReturn:
    raise PinwardenError("LOCK_INVALID", f"{KEY}: {problem}", hint="Lock the server again, or use a newer pinwarden.")


def _tampered(problem: str) -> NoReturn:
    raise PinwardenError("LOCK_TAMPERED", problem)
