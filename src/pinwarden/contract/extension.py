"""Pinwarden's member of the lockfile, which the original accepts and ignores.

It holds what a client sees, verbatim, so that a reviewer sees what moved and not only that it moved; the contracts
with their hidden parts, so that two files can be compared; what is known of each fact and how; and two digests that
make the file checkable by others: ``bodyDigest`` over the whole file, and ``surfaceDigest``, equal to the consumer's
lock digest of the same server (``surface/surface.py``).
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
from pinwarden.core.keys import PrivateKey, PublicKey, dsse_sign, dsse_verify
from pinwarden.core.record import Record, field, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, TOOL, Surface, surface_from_listing

KEY = "pinwarden"
FORMAT = "pinwarden-contract/1"
PAYLOAD_TYPE = "application/vnd.pinwarden.contract+json"
SOURCE, IN_MEMORY, LIVE, UNKNOWN = "source", "in-memory", "live", "unknown"
EVIDENCE = (SOURCE, IN_MEMORY, LIVE, UNKNOWN)
"""How a fact is known: read in source, asked of the server object, asked over the wire, or not at all."""
_SURFACE_MEMBERS = frozenset({*SERVER_MEMBERS, *(kind.member for kind in ITEM_KINDS)})
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class ToolFacts(Record):
    """What the extension says of one tool beside its wire definition and contract."""

    evidence: Mapping[str, str] = field(default_factory=dict)
    """Fact (``entitlements``, ``middlewareChain``, ``inputSchema``, …) to one of ``EVIDENCE``."""
    entitlements: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the source analysis, ready for JSON; more kinds than the format's five flags."""
    middleware: tuple[Mapping[str, Any], ...] = ()
    """Outermost first: ``{"name": …, "sourceDigest": … or None}``."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Timeout, auth, handler location and the like, ready for JSON."""


class Extension(Record):
    """The extension as a value, before its digests are made."""

    surface: Surface
    """What a client saw: tools, prompts, resources, templates, serverInfo, instructions, all verbatim."""
    contracts: Contracts
    """The contracts that the lockfile was generated from."""
    evidence: str
    """The highest level at which the server was seen: one of ``EVIDENCE``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Framework and protocol versions by name, e.g. ``{"python": …, "mcp": …, "fastmcp": …, "protocol": …}``."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    """Server-wide facts, ready for JSON."""


def with_extension(lockfile: Lockfile, extension: Extension) -> Lockfile:
    """The lockfile with our member in it, its body digest over everything. An older signature goes."""
    surface = extension.surface
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"what cannot be digested cannot be locked: {surface.problem}")
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
    """The digest of the whole document but the digest itself and the signature."""
    document = dict(lockfile.document)
    if lockfile.extension is not None:
        left_out = ("bodyDigest", "signature")
        document[KEY] = {name: each for name, each in lockfile.extension.items() if name not in left_out}
    return Digest.of_bytes(canonicalize(document, "jcs", LOCKFILE_LIMITS))


def check_body(lockfile: Lockfile) -> bool:
    """Raises ``LOCK_TAMPERED`` if the body is not the one that was written. False if the file has no extension."""
    if KEY not in lockfile.document:
        return False
    extension = _member(lockfile)
    if extension.get("bodyDigest") != str(body_digest(lockfile)):
        _tampered("the body of the lockfile is not the one that was written: its digest is another")
    _check_members(extension)
    surface = surface_from_listing(extension["surface"])
    if extension.get("surfaceDigest") != str(surface.digest):
        _tampered("the surface in the lockfile has another digest than the one beside it")
    if extension.get("normalisedDigest") != str(normalised_digest(surface)):
        _tampered("the surface in the lockfile has another normalised digest than the one beside it")
    _check_derived(extension, surface)
    _check_contracts(lockfile, surface)
    return True


def _check_members(extension: Mapping[str, Any]) -> None:
    """Nothing stands in the surface that a reader would take for something else, and no level is made up."""
    surface = extension.get("surface")
    if not isinstance(surface, Mapping) or not surface.keys() <= _SURFACE_MEMBERS:
        _unreadable("surface holds something else than what a client sees")
    levels = [extension.get("evidence")]
    for entry in _tool_entries(extension).values():
        evidence = entry.get("evidence")
        if not isinstance(evidence, Mapping):
            _unreadable("a tool does not say how its facts are known")
        levels += evidence.values()
    if not all(level in EVIDENCE for level in levels):
        _unreadable("it holds a level of evidence that is not known")


def _check_contracts(lockfile: Lockfile, surface: Surface) -> None:
    """The three places that speak of tools speak of the same ones, and each contract is the one that is pinned."""
    names = {item.key for item in surface.items_of_kind(TOOL)}
    if not names == lockfile.tools.keys() == _tool_entries(_member(lockfile)).keys():
        _tampered("the tools of the lockfile are not those of the surface in it")
    contracts_of(lockfile)


def _check_derived(extension: Mapping[str, Any], surface: Surface) -> None:
    """Check that the summary beside a definition agrees with the definition itself."""
    wire = {item.key: item.value for item in surface.items_of_kind(TOOL)}
    for name, entry in _tool_entries(extension).items():
        definition = wire.get(name, {})
        if any(entry.get(member) != value for member, value in _derived(definition).items()):
            _tampered(f"what the lockfile says of tool {name[:80]!a} is not what its definition says")


def surface_of(lockfile: Lockfile) -> Surface | None:
    """The surface that the extension holds, if there is one; its digests are recomputed, never believed."""
    if KEY not in lockfile.document:
        return None
    return surface_from_listing(_member(lockfile).get("surface"))


def contracts_of(lockfile: Lockfile) -> dict[str, ToolContract] | None:
    """The complete contracts, if the extension holds them; each is checked against its digest."""
    if KEY not in lockfile.document:
        return None
    value = {name: entry.get("contract") for name, entry in _tool_entries(_member(lockfile)).items()}
    contracts = contracts_from_json(value, f"{KEY}.tools")
    dialect = dialects_of(lockfile.document)[0]  # those that a file may be in digest a contract alike
    for name, contract in contracts.items():
        if lockfile.tools.get(name, {}).get("integrityDigest") != f"sha256:{tool_digest(contract, dialect).digest}":
            _tampered(f"the contract of tool {name[:80]!a} is not the one that its digest stands for")
    entries = _tool_entries(_member(lockfile))
    return {name: _with_unknown_flags(contract, entries[name]) for name, contract in contracts.items()}


def _with_unknown_flags(contract: ToolContract, entry: Mapping[str, Any]) -> ToolContract:
    """The contract as it is written today: older files say false of what was not analysed."""
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
    envelope = dsse_sign(PAYLOAD_TYPE, canonicalize(_statement(lockfile)), keys)
    return Lockfile(document={**lockfile.document, KEY: {**extension, "signature": envelope}})


def verify_lockfile(lockfile: Lockfile, known_keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """Who of the known keys signed this very body. Raises ``SIGNATURE_INVALID`` or ``LOCK_TAMPERED``."""
    if not check_body(lockfile) or "signature" not in _member(lockfile):
        raise PinwardenError("SIGNATURE_INVALID", "the lockfile is not signed")
    payload, signers = dsse_verify(_member(lockfile)["signature"], PAYLOAD_TYPE, known_keys)
    if parse_json(payload) != _statement(lockfile):
        raise PinwardenError("SIGNATURE_INVALID", "the signature is over another lockfile")
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
    """A plain listing, which ``surface_from_listing`` reads back to a surface of the same digest."""
    lists = {
        kind.member: [
            item.value for item in sorted(surface.items_of_kind(kind), key=lambda item: (item.key, str(item.digest)))
        ]
        for kind in ITEM_KINDS
        if kind.member in surface.items
    }
    return {**(surface.server or {}), **lists}


def _tools(extension: Extension) -> dict[str, Any]:
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
    """What is said of a tool in other words than its definition's own."""
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
    """Each hint as declared: true, false, or null where the author did not declare it. A default is no claim."""
    given = annotations if isinstance(annotations, Mapping) else {}
    return {hint: given[hint] if isinstance(given.get(hint), bool) else None for hint in HINTS}


def _digest_or_none(value: Any) -> str | None:
    return None if value is None else str(Digest.of_bytes(canonicalize(value)))


def _member(lockfile: Lockfile) -> Mapping[str, Any]:
    extension = lockfile.extension
    if extension is None or extension.get("format") != FORMAT:
        _unreadable(f"it is not an object of format {FORMAT}")
    return extension


def _unreadable(why: str) -> NoReturn:
    raise PinwardenError("LOCK_INVALID", f"{KEY}: {why}", hint="Lock the server again, or use a newer pinwarden.")


def _tampered(why: str) -> NoReturn:
    raise PinwardenError("LOCK_TAMPERED", why)
