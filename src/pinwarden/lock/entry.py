"""One entry of a lockfile: a server, for a client, with the bytes and the configuration that were approved.

An entry keeps every member of the file in its order. ToolPin 0.5.4 hashes only a *view* of it: known members, with
defaults filled in. `integrity_payload` is that view, and `uncovered` lists what it leaves out. `check_shape` refuses
entries that ToolPin could not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

from pinwarden.core.canonical import canonicalize, is_number
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.strict_json import Limits

EXTENSION = "pinwarden"
"""Pinwarden's member of ``capabilityManifest``, the only object that ToolPin neither hashes nor drops."""
LOCK_LIMITS = Limits(max_bytes=256 * 1024 * 1024)
"""Enough for fifty thousand entries of about 4 kB."""
LOCK_INTEGRITY_EVIDENCE: Mapping[str, Any] = {
    "code": "lock_integrity",
    "status": "passed",
    "message": "Lock entry integrity digest is computed over the reviewed install plan.",
    "source": "local-lockfile",
    "claim": "install plan integrity",
    "verificationMethod": "canonical-json-sha256",
    "verifiedByToolPin": True,
}
"""The evidence that ToolPin adds to every entry it writes. The sentence is part of the hash."""
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
    "generic",
)
LOCK_SCOPES = ("project", "global")
TOOL_HASHES = {
    "toolDescriptionHash": ("algorithm", "value", "toolCount"),
    "toolSurfaceHash": ("algorithm", "coverage", "value", "toolCount"),
    "toolManifestHash": ("algorithm", "value", "toolCount"),
}
"""The hashed members of the three tool hashes in a manifest."""
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
HASHED_MANIFEST = (
    "version",
    "serverName",
    "serverVersion",
    "registrySource",
    "packageTypes",
    "transports",
    "remoteHosts",
    "secrets",
)
_MANIFEST_ORDER = (*HASHED_MANIFEST, "generatedAt", *TOOL_HASHES, "toolDescriptionScan")


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
        return _object(self.document["selectedTarget"])

    @property
    def trust(self) -> Mapping[str, Any]:
        """The trust report that was approved."""
        return _object(self.document["trust"])

    @property
    def config(self) -> Any:
        """The fragment for the client's configuration file."""
        return self.document.get("config")

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The capability manifest; empty if the entry has none."""
        return _object(self.document.get("capabilityManifest"))

    @property
    def source(self) -> str | None:
        """The registry that the server was resolved from."""
        source = _object(self.document.get("resolved")).get("source")
        return source if isinstance(source, str) else None

    @property
    def resolved_at(self) -> str | None:
        """When the target was resolved."""
        return _text(self.document.get("resolvedAt"))

    @property
    def locked_at(self) -> str | None:
        """When the entry was written."""
        return _text(self.document.get("lockedAt"))

    @property
    def integrity(self) -> str | None:
        """The integrity value that the file states."""
        return _text(self.document.get("integrity"))


def entry_key(name: str, client: str) -> str:
    """The key that an entry must have."""
    return f"{name}:{client}"


def tier_rank(tier: object) -> int:
    """Higher is better; -1 for an unknown tier."""
    return next((rank for rank, name in enumerate(TIERS_WORST_FIRST) if name == tier), -1)


# Digests


def with_integrity(entry: Entry) -> Entry:
    """The entry with its integrity value computed. An existing member keeps its position."""
    document = {**entry.document, "integrity": integrity_of(entry.document)}
    return Entry(key=entry.key, document=document)


def integrity_of(document: Mapping[str, Any]) -> str:
    """ToolPin's entry integrity: ``sha256-<base64>`` over the hashed view."""
    return integrity_of_payload(integrity_payload(document))


def integrity_of_payload(payload: Mapping[str, Any]) -> str:
    """The same, from an `integrity_payload`."""
    return Digest.of_bytes(canonicalize(payload, "toolpin", LOCK_LIMITS)).sri


def integrity_payload(document: Mapping[str, Any]) -> dict[str, Any]:
    """The view of an entry that ToolPin hashes, without members that ToolPin does not know."""
    payload: dict[str, Any] = {
        "name": document["name"],
        "version": document["version"],
        "client": document["client"],
        "scope": document.get("scope", "project"),
        "selectedTarget": document["selectedTarget"],
        "trust": _hashed_trust(document["trust"]),
        "notes": [note for note in document["notes"] if isinstance(note, str)],
        "resolvedAt": document["resolvedAt"] if isinstance(document.get("resolvedAt"), str) else _EPOCH,
        "locked": _hashed_locked(document.get("locked")),
    }
    if "config" in document:
        payload["config"] = document["config"]
    if "capabilityManifest" in document:
        payload["capabilityManifest"] = hashed_manifest(document["capabilityManifest"])
    if isinstance(document.get("lockedAt"), str):
        payload["lockedAt"] = document["lockedAt"]
    resolved, original = _object(document.get("resolved")), _object(document.get("original"))
    if all_text(resolved, _RESOLVED_ORDER):
        payload["resolved"] = _only(resolved, _RESOLVED_ORDER)
    if all_text(original, _ORIGINAL_ORDER) and original["client"] in LOCK_CLIENTS:
        payload["original"] = _only(original, _ORIGINAL_ORDER)
    return payload


def _hashed_trust(trust: Mapping[str, Any]) -> dict[str, Any]:
    hashed = _only(trust, _TRUST_ORDER)
    hashed["issues"] = [_only(row, _ISSUE_ORDER) for row in trust["issues"]]
    if "evidence" in trust:
        hashed["evidence"] = [_only(row, _EVIDENCE_ORDER) for row in trust["evidence"]]
    return hashed


def _hashed_locked(locked: Any) -> dict[str, Any]:
    if not isinstance(locked, dict):
        return {}
    if "capabilityManifest" not in locked:
        return _only(locked, ("selectedTarget", "config"))
    if not is_manifest(locked["capabilityManifest"]):
        return {}  # then ToolPin ignores the whole copy
    return {
        **_only(locked, ("selectedTarget", "config")),
        "capabilityManifest": hashed_manifest(locked["capabilityManifest"]),
    }


def hashed_manifest(manifest: Any) -> dict[str, Any]:
    """The part of a capability manifest that ToolPin hashes."""
    hashed = _only(manifest, HASHED_MANIFEST)
    for member, parts in TOOL_HASHES.items():
        if member in manifest:
            hashed[member] = _only(manifest[member], parts)
    return hashed


def uncovered(document: Mapping[str, Any], payload: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The paths in an entry that its hashed view does not cover, apart from those that version 2 itself leaves out."""
    for path in _not_in(document, payload):
        if not _left_out_by_v2(path):
            yield path


def _left_out_by_v2(path: tuple[str, ...]) -> bool:
    if path == ("integrity",):
        return True
    inner = path[1:] if path[0] == "locked" else path
    if not inner or inner[0] != "capabilityManifest":
        return False
    member = inner[1:]
    if member == (EXTENSION,):
        return path[0] != "locked"  # covered by its own integrity value; has no copy
    return member in (("generatedAt",), ("toolDescriptionScan",)) or (
        len(member) == 2 and member[0] in TOOL_HASHES and member[1] == "generatedAt"
    )


def _not_in(document: Any, covered: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(document, Mapping) and isinstance(covered, Mapping):
        for member, value in document.items():
            if member not in covered:
                yield (member,)
            elif value is not covered[member]:
                for path in _not_in(value, covered[member]):
                    yield (member, *path)
    elif isinstance(document, list) and isinstance(covered, list) and len(document) == len(covered):
        for index, (value, counterpart) in enumerate(zip(document, covered, strict=True)):
            for path in _not_in(value, counterpart):
                yield (str(index), *path)
    elif document != covered:
        yield ()


def whole_digest(entry: Entry) -> str:
    """The digest of an entry's key and all members."""
    content = {"key": entry.key, "entry": entry.document}
    return Digest.of_bytes(canonicalize(content, "jcs", LOCK_LIMITS)).sri


def seal_of(entry: Entry) -> str:
    """The seal of an entry: the digest of its key and all members except the seal itself."""
    record = {member: value for member, value in entry.manifest[EXTENSION].items() if member != "integrity"}
    return whole_digest(with_record(entry, record))


# Rewriting


def with_record(entry: Entry, record: Mapping[str, Any]) -> Entry:
    """The entry with this Pinwarden extension."""
    manifest = {**entry.manifest, EXTENSION: record}
    return replace(entry, document={**entry.document, "capabilityManifest": manifest})


def without_approval_time(record: Mapping[str, Any]) -> dict[str, Any]:
    """The Pinwarden extension without what changes when the same content is approved again: seal and time."""
    remaining = {member: value for member, value in record.items() if member != "integrity"}
    if isinstance(remaining.get("approval"), dict):
        remaining["approval"] = {member: value for member, value in remaining["approval"].items() if member != "at"}
    return remaining


def as_reread(entry: Entry) -> Entry:
    """The entry in the order in which ToolPin writes entries that it has read. Members that ToolPin drops are kept."""
    document = in_order(entry.document, _ENTRY_ORDER)
    document["trust"] = in_order(entry.trust, TRUST_REREAD_ORDER)
    for member, order in (("evidence", _EVIDENCE_ORDER), ("issues", _ISSUE_ORDER)):
        if member in document["trust"]:
            document["trust"][member] = [in_order(row, order) for row in document["trust"][member]]
    for member, order in (("resolved", _RESOLVED_ORDER), ("original", _ORIGINAL_ORDER), ("locked", _LOCKED_ORDER)):
        if isinstance(document.get(member), dict):
            document[member] = in_order(document[member], order)
    return Entry(key=entry.key, document=document)


def plain(entry: Entry) -> Entry:
    """The entry with the members of version 2 only."""
    document = _only(entry.document, _ENTRY_ORDER)
    trust = _only(entry.trust, tuple(member for member in entry.trust if member in _TRUST_ORDER))
    for member, order in (("evidence", _EVIDENCE_ORDER), ("issues", _ISSUE_ORDER)):
        if member in trust:
            trust[member] = [{name: row[name] for name in row if name in order} for row in trust[member]]
    document["trust"] = trust
    document["notes"] = [note for note in document["notes"] if isinstance(note, str)]
    if "capabilityManifest" in document:
        document["capabilityManifest"] = _plain_manifest(entry.manifest)
    for member, order in (("resolved", _RESOLVED_ORDER), ("original", _ORIGINAL_ORDER), ("locked", _LOCKED_ORDER)):
        if isinstance(document.get(member), dict):
            document[member] = _only(document[member], order)
    locked = document.get("locked")
    if isinstance(locked, dict) and isinstance(locked.get("capabilityManifest"), dict):
        locked["capabilityManifest"] = _plain_manifest(locked["capabilityManifest"])
    return Entry(key=entry.key, document=document)


def _plain_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    plain_members = {name: value for name, value in manifest.items() if name in _MANIFEST_ORDER}
    for member, parts in TOOL_HASHES.items():
        if member in plain_members:
            plain_members[member] = {
                name: value for name, value in plain_members[member].items() if name in (*parts, "generatedAt")
            }
    return plain_members


def in_order(value: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    """The members in ``order`` first, then the others in their own order."""
    ordered = {member: value[member] for member in order if member in value}
    return {**ordered, **{member: inner for member, inner in value.items() if member not in ordered}}


def _only(value: Mapping[str, Any], members: Iterable[str]) -> dict[str, Any]:
    return {member: value[member] for member in members if member in value}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# Shape: what ToolPin 0.5.4 requires of an entry, member by member


def check_shape(document: Any, path: str) -> None:
    """Raise LOCK_INVALID with the path if ToolPin could not read the entry."""
    if not isinstance(document, dict):
        invalid(path, "is not an object")
    for member in ("name", "version"):
        _require(isinstance(document.get(member), str), f"{path}/{member}", "is not text")
    client = document.get("client")
    if client not in LOCK_CLIENTS:
        known = ", ".join(LOCK_CLIENTS)
        invalid(f"{path}/client", f"names the unknown client {str(client)[:40]!a}; known: {known}")
    if "scope" in document and document["scope"] not in LOCK_SCOPES:
        invalid(f"{path}/scope", "is neither project nor global")
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
        invalid(path, "is not an object")
    for member in ("score", "badges", "issues"):
        _require(member in trust, f"{path}/{member}", "is missing")
    for member, kind in TRUST_SHAPE.items():
        if member in trust and not _is_kind(trust[member], kind):
            invalid(f"{path}/{member}", f"has the wrong type for a trust report ({kind})")
    for index, row in enumerate(trust["issues"]):
        valid = all_text(row, ("code", "message")) and row.get("severity") in ("info", "warning", "critical")
        _require(valid, f"{path}/issues/{index}", "is not an issue")
    for index, row in enumerate(trust.get("evidence", [])):
        statuses = ("passed", "declared", "failed", "unavailable")
        valid = all_text(row, ("code", "message")) and row.get("status") in statuses
        valid = valid and all(_is_kind(row[member], kind) for member, kind in EVIDENCE_SHAPE.items() if member in row)
        _require(valid, f"{path}/evidence/{index}", "is not evidence")


def _is_kind(value: Any, kind: str) -> bool:
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
                all_text(gate, ("code", "message")) and gate.get("tier") in ("unverified", "blocked") for gate in value
            )


def _check_manifest(manifest: Any, path: str) -> None:
    if not isinstance(manifest, dict):
        invalid(path, "is not an object")
    member = _invalid_member(manifest)
    if member is not None:
        invalid(f"{path}/{member}", "is invalid in a capability manifest of version 1")


def is_manifest(manifest: Any) -> bool:
    """Whether a value is a capability manifest as ToolPin reads it."""
    return isinstance(manifest, dict) and _invalid_member(manifest) is None


def _invalid_member(manifest: dict[str, Any]) -> str | None:
    """The first invalid member of a manifest."""
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
    return scanned if scanned in manifest and not _is_scan(manifest[scanned]) else None


def _is_scan(scan: Any) -> bool:
    return (
        all_text(scan, ("generatedAt",))
        and is_number(scan.get("version"))
        and scan["version"] == 1
        and is_number(scan.get("scannedDescriptions"))
        and isinstance(scan.get("findings"), list)
    )


def _is_tool_hash(value: Any, parts: Sequence[str]) -> bool:
    if not all_text(value, ("algorithm", "value", "generatedAt")) or value["algorithm"] != "sha256":
        return False
    coverage = value.get("coverage", []) if "coverage" in parts else []
    fields = ("name", "description", "inputSchema")
    covered = isinstance(coverage, list) and all(field in fields for field in coverage)
    return is_number(value.get("toolCount")) and covered and ("coverage" in value or "coverage" not in parts)


def all_text(value: Any, members: Iterable[str]) -> bool:
    """Whether a value is an object in which all these members are strings."""
    return isinstance(value, dict) and all(isinstance(value.get(member), str) for member in members)


def _require(condition: bool, path: str, why: str) -> None:
    if not condition:
        invalid(path, why)


def invalid(path: str, why: str) -> NoReturn:
    """Raise LOCK_INVALID for a path in the lockfile."""
    raise lock_error(path, why)


def lock_error(path: str, problem: str) -> PinwardenError:
    """The error LOCK_INVALID for a path in the lockfile."""
    return PinwardenError("LOCK_INVALID", f"{path[:300]!a} {problem}", data={"path": path})
