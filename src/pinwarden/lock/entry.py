"""One entry of a lockfile: a server, for a client, with the bytes and the configuration that were approved.

An entry keeps every member of the file in its order. ToolPin 0.5.4 hashes only the members that it knows, with defaults
filled in. `build_integrity_payload` returns these members, and `list_uncovered_paths` lists all others. `check_shape`
refuses entries that ToolPin could not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

from pinwarden.clients.table import GENERIC_CLIENT
from pinwarden.core.canonical import canonicalize, is_number
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.strict_json import Limits

EXTENSION = "pinwarden"
"""Pinwarden's member of ``capabilityManifest``. ToolPin keeps unknown members there, and does not hash them."""
LOCK_LIMITS = Limits(max_bytes=256 * 1024 * 1024)
"""Limits for reading a lock, which allow fifty thousand entries of about 4 kB."""
LOCK_INTEGRITY_EVIDENCE: Mapping[str, Any] = {
    "code": "lock_integrity",
    "status": "passed",
    "message": "Lock entry integrity digest is computed over the reviewed install plan.",
    "source": "local-lockfile",
    "claim": "install plan integrity",
    "verificationMethod": "canonical-json-sha256",
    "verifiedByToolPin": True,
}
"""The evidence that ToolPin adds to every entry it writes. ToolPin hashes the message."""
Tier = Literal["verified", "conditional", "unverified", "blocked"]
TIERS_WORST_FIRST: tuple[Tier, ...] = ("blocked", "unverified", "conditional", "verified")
LOCK_CLIENTS = (
    "claude",
    "cursor",
    "vscode",
    "codex",
    "opencode",
    "windsurf",
    "cline",
    "continue",
    "gemini",
    "zed",
    "roo",
    GENERIC_CLIENT,
)
"""The ids of ToolPin's clients. An entry for another client is stored under the generic id."""
ToolPinScope = Literal["project", "global"]
"""Whose servers an entry is about, in ToolPin's words: the project's, or the user's own."""
TOOLPIN_SCOPES: tuple[ToolPinScope, ...] = ("project", "global")
TOOL_HASHES = {
    "toolDescriptionHash": ("algorithm", "value", "toolCount"),
    "toolSurfaceHash": ("algorithm", "coverage", "value", "toolCount"),
    "toolManifestHash": ("algorithm", "value", "toolCount"),
}
"""The three tool hashes in a manifest, and the members of each that the entry's integrity covers."""
_EPOCH = "1970-01-01T00:00:00.000Z"  # hashed by ToolPin for an entry without resolvedAt
_ENTRY_ORDER = (
    "name",
    "version",
    "client",
    "scope",
    "selectedTarget",
    "trust",
    "config",
    "notes",
    "capabilityManifest",
    "resolvedAt",
    "lockedAt",
    "resolved",
    "original",
    "locked",
    "integrity",
)
_SCORES = ("score", "overallScore", "metadataCompleteness", "tier", "capReason")
_TRUST_ORDER = (
    *_SCORES,
    "vetoes",
    "gates",
    "gatedBy",
    "verifiedProvenance",
    "pillars",
    "evidence",
    "badges",
    "issues",
)
TRUST_REREAD_ORDER = (
    *_SCORES,
    "verifiedProvenance",
    "gates",
    "vetoes",
    "pillars",
    "gatedBy",
    "evidence",
    "badges",
    "issues",
)
_EVIDENCE_ORDER = (
    "code",
    "status",
    "message",
    "source",
    "claim",
    "verificationMethod",
    "verifiedByToolPin",
    "trustedAnchor",
    "trustAnchor",
    "verifiedAt",
    "failureReason",
    "required",
)
_ISSUE_ORDER = ("severity", "code", "message")
_RESOLVED_ORDER = ("source", "name", "version")
_ORIGINAL_ORDER = ("name", "version", "client")
_LOCKED_ORDER = ("selectedTarget", "config", "capabilityManifest")
HASHED_MANIFEST_MEMBERS = (
    "version",
    "serverName",
    "serverVersion",
    "registrySource",
    "packageTypes",
    "transports",
    "remoteHosts",
    "secrets",
)
_MANIFEST_ORDER = (*HASHED_MANIFEST_MEMBERS, "generatedAt", *TOOL_HASHES, "toolDescriptionScan")


class Entry(Record):
    """One entry of the file, under its key."""

    key: str
    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The server's name."""
        return str(self.document["name"])

    @property
    def version(self) -> str:
        """The locked version."""
        return str(self.document["version"])

    @property
    def client(self) -> str:
        """The client that the configuration is for."""
        return str(self.document["client"])

    @property
    def scope(self) -> str:
        """``project`` (the default) or ``global``."""
        return str(self.document.get("scope", "project"))

    @property
    def selected_target(self) -> Mapping[str, Any]:
        """The package or remote that was chosen."""
        return _object_or_empty(self.document["selectedTarget"])

    @property
    def trust(self) -> Mapping[str, Any]:
        """The trust report that was approved."""
        return _object_or_empty(self.document["trust"])

    @property
    def config(self) -> Any:
        """The fragment for the client's configuration file."""
        return self.document.get("config")

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The capability manifest; empty if the entry has none."""
        return _object_or_empty(self.document.get("capabilityManifest"))

    @property
    def has_tool_hashes(self) -> bool:
        """Whether the entry has ToolPin's hashes of a server's tools."""
        return any(member in self.manifest for member in TOOL_HASHES)

    @property
    def source(self) -> str | None:
        """The registry that the server was resolved from."""
        source = _object_or_empty(self.document.get("resolved")).get("source")
        return source if isinstance(source, str) else None

    @property
    def resolved_at(self) -> str | None:
        """When the target was resolved."""
        return _string_or_none(self.document.get("resolvedAt"))

    @property
    def locked_at(self) -> str | None:
        """When the entry was written."""
        return _string_or_none(self.document.get("lockedAt"))

    @property
    def integrity(self) -> str | None:
        """The integrity value that the file states."""
        return _string_or_none(self.document.get("integrity"))


def to_toolpin_scope(scope: str | None) -> ToolPinScope:
    """Return ToolPin's word for the scope of a client's file, or of a lock (``user``). ``local`` counts as project."""
    return "global" if scope in ("global", "user") else "project"


def build_entry_key(name: str, client: str) -> str:
    """Return the key of an entry: the server's name and the client's."""
    return f"{name}:{client}"


def find_client(entry: Entry) -> str:
    """Return the client's own name, even if lockfileVersion 2 calls the client ``generic``."""
    value: Any = entry.document
    for step in ("capabilityManifest", EXTENSION, "configuredIn", "client"):
        value = value.get(step) if type(value) is dict else None
    return value if type(value) is str else entry.client


def is_for_client(entry: Entry, client: str | None) -> bool:
    """Whether an entry is for this client, by the client's own name or its name in the lock. None is every client."""
    return client is None or client in (entry.client, find_client(entry))


def has_expected_key(entry: Entry) -> bool:
    """Whether the key of an entry names its server and its client.

    ToolPin looks entries up by name and client, so it would not find an entry under another key. There is one
    exception: if two clients that the format calls ``generic`` have a server of the same name, the key of the second
    entry has the client's own name.
    """
    if entry.key == build_entry_key(entry.name, entry.client):
        return True
    client = find_client(entry)
    is_second = entry.client == GENERIC_CLIENT and client not in LOCK_CLIENTS
    return is_second and entry.key == build_entry_key(entry.name, client)


def rank_tier(tier: object) -> int:
    """Return the rank of a trust tier; higher is better, and -1 is an unknown tier."""
    return next((rank for rank, name in enumerate(TIERS_WORST_FIRST) if name == tier), -1)


# Digests


def with_integrity(entry: Entry) -> Entry:
    """Return the entry with its integrity value computed. An existing member keeps its position."""
    document = {**entry.document, "integrity": compute_integrity(entry.document)}
    return Entry(key=entry.key, document=document)


def compute_integrity(document: Mapping[str, Any]) -> str:
    """Return ToolPin's entry integrity: ``sha256-<base64>`` over `build_integrity_payload`."""
    return compute_payload_integrity(build_integrity_payload(document))


def compute_payload_integrity(payload: Mapping[str, Any]) -> str:
    """Return ToolPin's entry integrity for the result of `build_integrity_payload`."""
    return Digest.of_bytes(canonicalize(payload, "toolpin", LOCK_LIMITS)).sri


def build_integrity_payload(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an entry that ToolPin hashes, with ToolPin's defaults filled in."""
    payload: dict[str, Any] = {
        "name": document["name"],
        "version": document["version"],
        "client": document["client"],
        "scope": document.get("scope", "project"),
        "selectedTarget": document["selectedTarget"],
        "trust": _select_hashed_trust(document["trust"]),
        "notes": [note for note in document["notes"] if isinstance(note, str)],
        "resolvedAt": document["resolvedAt"] if isinstance(document.get("resolvedAt"), str) else _EPOCH,
        "locked": _select_hashed_copy(document.get("locked")),
    }
    if "config" in document:
        payload["config"] = document["config"]
    if "capabilityManifest" in document:
        payload["capabilityManifest"] = select_hashed_members(document["capabilityManifest"])
    if isinstance(document.get("lockedAt"), str):
        payload["lockedAt"] = document["lockedAt"]
    resolved, original = _object_or_empty(document.get("resolved")), _object_or_empty(document.get("original"))
    if has_string_members(resolved, _RESOLVED_ORDER):
        payload["resolved"] = _select_members(resolved, _RESOLVED_ORDER)
    if has_string_members(original, _ORIGINAL_ORDER) and original["client"] in LOCK_CLIENTS:
        payload["original"] = _select_members(original, _ORIGINAL_ORDER)
    return payload


def _select_hashed_trust(trust: Mapping[str, Any]) -> dict[str, Any]:
    hashed = _select_members(trust, _TRUST_ORDER)
    hashed["issues"] = [_select_members(row, _ISSUE_ORDER) for row in trust["issues"]]
    if "evidence" in trust:
        hashed["evidence"] = [_select_members(row, _EVIDENCE_ORDER) for row in trust["evidence"]]
    return hashed


def _select_hashed_copy(locked: Any) -> dict[str, Any]:
    if not isinstance(locked, dict):
        return {}
    if "capabilityManifest" not in locked:
        return _select_members(locked, ("selectedTarget", "config"))
    if not is_capability_manifest(locked["capabilityManifest"]):
        return {}  # ToolPin ignores the whole copy if its manifest is invalid
    return {
        **_select_members(locked, ("selectedTarget", "config")),
        "capabilityManifest": select_hashed_members(locked["capabilityManifest"]),
    }


def select_hashed_members(manifest: Any) -> dict[str, Any]:
    """Return the members of a capability manifest that ToolPin hashes."""
    hashed = _select_members(manifest, HASHED_MANIFEST_MEMBERS)
    for member, parts in TOOL_HASHES.items():
        if member in manifest:
            hashed[member] = _select_members(manifest[member], parts)
    return hashed


def list_uncovered_paths(document: Mapping[str, Any], payload: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the paths in an entry that ``payload``, the result of `build_integrity_payload`, does not cover.

    Members of the format that ToolPin never hashes, such as ``integrity`` and timestamps, are not reported.
    """
    for path in _list_missing_paths(document, payload):
        if not _is_outside_v2_hash(path):
            yield path


def _is_outside_v2_hash(path: tuple[str, ...]) -> bool:
    if path == ("integrity",):
        return True
    inner = path[1:] if path[0] == "locked" else path
    if not inner or inner[0] != "capabilityManifest":
        return False
    member = inner[1:]
    if member == (EXTENSION,):
        return path[0] != "locked"  # the extension has its own integrity value, and no locked copy
    return member in (("generatedAt",), ("toolDescriptionScan",)) or (
        len(member) == 2 and member[0] in TOOL_HASHES and member[1] == "generatedAt"
    )


def _list_missing_paths(document: Any, covered: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(document, Mapping) and isinstance(covered, Mapping):
        for member, value in document.items():
            if member not in covered:
                yield (member,)
            elif value is not covered[member]:
                for path in _list_missing_paths(value, covered[member]):
                    yield (member, *path)
    elif isinstance(document, list) and isinstance(covered, list) and len(document) == len(covered):
        for index, (value, counterpart) in enumerate(zip(document, covered, strict=True)):
            for path in _list_missing_paths(value, counterpart):
                yield (str(index), *path)
    elif document != covered:
        yield ()


def compute_entry_digest(entry: Entry) -> str:
    """Return the digest of an entry's key and all members."""
    content = {"key": entry.key, "entry": entry.document}
    return Digest.of_bytes(canonicalize(content, "jcs", LOCK_LIMITS)).sri


def compute_entry_integrity(entry: Entry) -> str:
    """Return the ``integrity`` of an entry: the digest of its key and all members except ``integrity`` itself."""
    record = {member: value for member, value in entry.manifest[EXTENSION].items() if member != "integrity"}
    return compute_entry_digest(with_extension_json(entry, record))


# Rewriting


def with_extension_json(entry: Entry, record: Mapping[str, Any]) -> Entry:
    """Return the entry with this Pinwarden extension."""
    manifest = {**entry.manifest, EXTENSION: record}
    return replace(entry, document={**entry.document, "capabilityManifest": manifest})


def remove_approval_time(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Pinwarden extension without ``integrity`` and approval time, which change with every approval."""
    remaining = {member: value for member, value in record.items() if member != "integrity"}
    if isinstance(remaining.get("approval"), dict):
        remaining["approval"] = {member: value for member, value in remaining["approval"].items() if member != "at"}
    return remaining


def reorder_like_toolpin(entry: Entry) -> Entry:
    """Order an entry as ToolPin writes entries that it has read. Members that ToolPin drops are kept."""
    document = reorder_members(entry.document, _ENTRY_ORDER)
    document["trust"] = reorder_members(entry.trust, TRUST_REREAD_ORDER)
    for member, order in (("evidence", _EVIDENCE_ORDER), ("issues", _ISSUE_ORDER)):
        if member in document["trust"]:
            document["trust"][member] = [reorder_members(row, order) for row in document["trust"][member]]
    for member, order in (("resolved", _RESOLVED_ORDER), ("original", _ORIGINAL_ORDER), ("locked", _LOCKED_ORDER)):
        if isinstance(document.get(member), dict):
            document[member] = reorder_members(document[member], order)
    return Entry(key=entry.key, document=document)


def to_plain_entry(entry: Entry) -> Entry:
    """Return the entry without members that lockfileVersion 2 does not define."""
    document = _select_members(entry.document, _ENTRY_ORDER)
    trust = _select_members(entry.trust, tuple(member for member in entry.trust if member in _TRUST_ORDER))
    for member, order in (("evidence", _EVIDENCE_ORDER), ("issues", _ISSUE_ORDER)):
        if member in trust:
            trust[member] = [{name: row[name] for name in row if name in order} for row in trust[member]]
    document["trust"] = trust
    document["notes"] = [note for note in document["notes"] if isinstance(note, str)]
    if "capabilityManifest" in document:
        document["capabilityManifest"] = _to_plain_manifest(entry.manifest)
    for member, order in (("resolved", _RESOLVED_ORDER), ("original", _ORIGINAL_ORDER), ("locked", _LOCKED_ORDER)):
        if isinstance(document.get(member), dict):
            document[member] = _select_members(document[member], order)
    locked = document.get("locked")
    if isinstance(locked, dict) and isinstance(locked.get("capabilityManifest"), dict):
        locked["capabilityManifest"] = _to_plain_manifest(locked["capabilityManifest"])
    return Entry(key=entry.key, document=document)


def _to_plain_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    plain_members = {name: value for name, value in manifest.items() if name in _MANIFEST_ORDER}
    for member, parts in TOOL_HASHES.items():
        if member in plain_members:
            plain_members[member] = {
                name: value for name, value in plain_members[member].items() if name in (*parts, "generatedAt")
            }
    return plain_members


def reorder_members(value: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    """Return the members in ``order`` first, then the others in their own order."""
    ordered = {member: value[member] for member in order if member in value}
    return {**ordered, **{member: inner for member, inner in value.items() if member not in ordered}}


def _select_members(value: Mapping[str, Any], members: Iterable[str]) -> dict[str, Any]:
    return {member: value[member] for member in members if member in value}


def _object_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _string_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# Shape: the members that ToolPin 0.5.4 requires, and their types


def check_shape(document: Any, path: str) -> None:
    """Raise LOCK_INVALID with the path if ToolPin could not read the entry."""
    if not isinstance(document, dict):
        raise_invalid(path, "is not an object")
    for member in ("name", "version"):
        _require(isinstance(document.get(member), str), f"{path}/{member}", "is not text")
    client = document.get("client")
    if client not in LOCK_CLIENTS:
        known = ", ".join(LOCK_CLIENTS)
        raise_invalid(f"{path}/client", f"names the unknown client {str(client)[:40]!a}; known: {known}")
    if "scope" in document and document["scope"] not in TOOLPIN_SCOPES:
        raise_invalid(f"{path}/scope", "is neither project nor global")
    _require(isinstance(document.get("selectedTarget"), dict), f"{path}/selectedTarget", "is not an object")
    _check_trust(document.get("trust"), f"{path}/trust")
    _require(isinstance(document.get("notes"), list), f"{path}/notes", "is not a list")
    if "capabilityManifest" in document:
        _check_manifest(document["capabilityManifest"], f"{path}/capabilityManifest")
    if "integrity" in document:
        _require(isinstance(document["integrity"], str), f"{path}/integrity", "is not text")


TRUST_SHAPE = {
    "score": "number",
    "overallScore": "number",
    "metadataCompleteness": "number",
    "tier": "tier",
    "capReason": "text",
    "verifiedProvenance": "truth",
    "vetoes": "gates",
    "gates": "gates",
    "gatedBy": "texts",
    "badges": "texts",
    "pillars": "pillars",
    "evidence": "rows",
    "issues": "rows",
}
EVIDENCE_SHAPE = {
    "verifiedByToolPin": "truth",
    "trustedAnchor": "truth",
    "required": "truth",
    **dict.fromkeys(("source", "claim", "verificationMethod", "trustAnchor", "verifiedAt", "failureReason"), "text"),
}
PILLARS = ("provenance", "integrity", "reputation", "metadataCompleteness")


def _check_trust(trust: Any, path: str) -> None:
    if not isinstance(trust, dict):
        raise_invalid(path, "is not an object")
    for member in ("score", "badges", "issues"):
        _require(member in trust, f"{path}/{member}", "is missing")
    for member, kind in TRUST_SHAPE.items():
        if member in trust and not _has_type(trust[member], kind):
            raise_invalid(f"{path}/{member}", f"has the wrong type for a trust report ({kind})")
    for index, row in enumerate(trust["issues"]):
        valid = has_string_members(row, ("code", "message")) and row.get("severity") in ("info", "warning", "critical")
        _require(valid, f"{path}/issues/{index}", "is not an issue")
    for index, row in enumerate(trust.get("evidence", [])):
        statuses = ("passed", "declared", "failed", "unavailable")
        valid = has_string_members(row, ("code", "message")) and row.get("status") in statuses
        valid = valid and all(_has_type(row[member], kind) for member, kind in EVIDENCE_SHAPE.items() if member in row)
        _require(valid, f"{path}/evidence/{index}", "is not evidence")


def _has_type(value: Any, kind: str) -> bool:
    match kind:
        case "number":
            return is_number(value)
        case "tier":
            return value in TIERS_WORST_FIRST
        case "text":
            return isinstance(value, str)
        case "truth":
            return isinstance(value, bool)
        case "texts":
            return isinstance(value, list) and all(isinstance(text, str) for text in value)
        case "rows":
            return isinstance(value, list)
        case "pillars":
            return isinstance(value, dict) and all(is_number(value.get(pillar)) for pillar in PILLARS)
        case _:
            return isinstance(value, list) and all(
                has_string_members(gate, ("code", "message")) and gate.get("tier") in ("unverified", "blocked")
                for gate in value
            )


def _check_manifest(manifest: Any, path: str) -> None:
    if not isinstance(manifest, dict):
        raise_invalid(path, "is not an object")
    member = _find_invalid_member(manifest)
    if member is not None:
        raise_invalid(f"{path}/{member}", "is invalid in a capability manifest of version 1")


def is_capability_manifest(manifest: Any) -> bool:
    """Whether a value is a capability manifest as ToolPin reads it."""
    return isinstance(manifest, dict) and _find_invalid_member(manifest) is None


def _find_invalid_member(manifest: dict[str, Any]) -> str | None:
    """Return the first invalid member of a manifest."""
    if not is_number(manifest.get("version")) or manifest["version"] != 1:
        return "version"
    for member in ("serverName", "serverVersion", "registrySource", "generatedAt"):
        if not isinstance(manifest.get(member), str):
            return member
    for member in ("packageTypes", "transports", "remoteHosts", "secrets"):
        if not isinstance(manifest.get(member), list):
            return member
    for member, parts in TOOL_HASHES.items():
        if member in manifest and not _is_tool_hash(manifest[member], parts):
            return member
    scanned = "toolDescriptionScan"
    return scanned if scanned in manifest and not _is_description_scan(manifest[scanned]) else None


def _is_description_scan(scan: Any) -> bool:
    return (
        has_string_members(scan, ("generatedAt",))
        and is_number(scan.get("version"))
        and scan["version"] == 1
        and is_number(scan.get("scannedDescriptions"))
        and isinstance(scan.get("findings"), list)
    )


def _is_tool_hash(value: Any, parts: Sequence[str]) -> bool:
    if not has_string_members(value, ("algorithm", "value", "generatedAt")) or value["algorithm"] != "sha256":
        return False
    coverage = value.get("coverage", []) if "coverage" in parts else []
    fields = ("name", "description", "inputSchema")
    covered = isinstance(coverage, list) and all(field in fields for field in coverage)
    return is_number(value.get("toolCount")) and covered and ("coverage" in value or "coverage" not in parts)


def has_string_members(value: Any, members: Iterable[str]) -> bool:
    """Whether a value is an object in which all these members are strings."""
    return isinstance(value, dict) and all(isinstance(value.get(member), str) for member in members)


def _require(condition: bool, path: str, why: str) -> None:
    if not condition:
        raise_invalid(path, why)


def raise_invalid(path: str, why: str) -> NoReturn:
    """Raise LOCK_INVALID for a path in the lockfile."""
    raise lock_error(path, why)


def lock_error(path: str, problem: str) -> PinwardenError:
    """Return the error LOCK_INVALID for a path in the lockfile."""
    return PinwardenError("LOCK_INVALID", f"{path[:300]!a} {problem}", data={"path": path})
