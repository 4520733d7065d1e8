"""Parts of surfaces and locks that the schemas of documents and of outputs share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pinwarden.core.digest import DIGEST_SIZES
from pinwarden.lock import entry as lock_shape
from pinwarden.lock import extension as lock_extension
from pinwarden.lock import lockfile
from pinwarden.lock.entry import TIERS_WORST_FIRST
from pinwarden.surface import surface
from tools.schema_words import (
    ANYTHING,
    COUNT,
    FULL_TEXT,
    NUMBER,
    OBJECT,
    SHA256,
    SRI,
    TEXT,
    TRUTH,
    Schema,
    array,
    mapping,
    members,
    one_of,
    or_null,
    ref,
)


def lock_body() -> Schema:
    return members(
        {"lockfileVersion": {"const": lockfile.VERSION}, "generatedAt": TEXT, "servers": mapping(ref("entry"))},
        {"updatedAt": TEXT, "pinwarden": ref("seal")},
    )


def lock_definitions() -> dict[str, Schema]:
    """Return the definitions that the schema of a lock refers to."""
    return {
        "entry": _entry(),
        "trust": _trust(),
        "manifest": manifest(),
        "record": _record(),
        "seal": members(
            {"format": {"const": lockfile.SEAL_FORMAT}, "entries": mapping(SRI), "integrity": SRI},
            {"skills": members({"path": FULL_TEXT, "digest": SHA256})},
        ),
        "digest": any_digest(),
    }


def surface_body() -> Schema:
    lists = {kind.member: array(members({kind.key: FULL_TEXT})) for kind in surface.ITEM_KINDS}
    digests = array(members({"key": FULL_TEXT, "item": SHA256, "fields": mapping(SHA256)}))
    undigestable = members(
        {
            "kind": one_of(kind.entity for kind in surface.ITEM_KINDS),
            "key": TEXT,
            "problem": TEXT,
            "seen": ANYTHING,
        }
    )
    server = dict(zip(surface.SERVER_MEMBERS, (ANYTHING, ANYTHING, ANYTHING), strict=True))
    return members(
        {
            "format": {"const": surface.FORMAT},
            "observed": OBJECT,
            "digests": members({"surface": or_null(SHA256)}, dict.fromkeys(lists, digests)),
            "integrity": SHA256,
        },
        {"server": members({}, server), **lists, "undigestable": array(undigestable, minItems=1)},
    )


def _entry() -> Schema:
    return members(
        {
            "name": TEXT,
            "version": TEXT,
            "client": one_of(lock_shape.LOCK_CLIENTS),
            "selectedTarget": OBJECT,
            "trust": ref("trust"),
            "notes": array(ANYTHING),
        },
        {"scope": one_of(lock_shape.TOOLPIN_SCOPES), "capabilityManifest": ref("manifest"), "integrity": TEXT},
    )


def _trust() -> Schema:
    gates = array(members({"code": TEXT, "message": TEXT, "tier": one_of(("unverified", "blocked"))}))
    evidence = members(
        {"code": TEXT, "message": TEXT, "status": one_of(("passed", "declared", "failed", "unavailable"))},
        {member: _TRUST_KINDS[kind] for member, kind in lock_shape.EVIDENCE_SHAPE.items()},
    )
    issue = members({"code": TEXT, "message": TEXT, "severity": one_of(("info", "warning", "critical"))})
    rows = {"evidence": array(evidence), "issues": array(issue)}
    kinds = {
        **_TRUST_KINDS,
        "gates": gates,
        "pillars": members(dict.fromkeys(lock_shape.PILLARS, NUMBER)),
    }
    shape = {member: rows.get(member) or kinds[kind] for member, kind in lock_shape.TRUST_SHAPE.items()}
    return {"type": "object", "required": ["score", "badges", "issues"], "properties": shape}


_TRUST_KINDS: dict[str, Schema] = {
    "number": NUMBER,
    "tier": one_of(TIERS_WORST_FIRST),
    "text": TEXT,
    "truth": TRUTH,
    "texts": array(TEXT),
}


def manifest() -> Schema:
    required: dict[str, Schema] = {
        "version": {"const": 1},
        **dict.fromkeys(("serverName", "serverVersion", "registrySource", "generatedAt"), TEXT),
        **dict.fromkeys(("packageTypes", "transports", "remoteHosts", "secrets"), array(ANYTHING)),
    }
    scan = members(
        {"version": {"const": 1}, "generatedAt": TEXT, "scannedDescriptions": NUMBER, "findings": array(ANYTHING)}
    )
    hashes = {member: _tool_hash(parts) for member, parts in lock_shape.TOOL_HASHES.items()}
    return members(required, {**hashes, "toolDescriptionScan": scan, "pinwarden": ref("record")})


def _tool_hash(parts: Iterable[str]) -> Schema:
    kinds: dict[str, Schema] = {
        "algorithm": {"const": "sha256"},
        "coverage": array(one_of(("name", "description", "inputSchema"))),
        "value": TEXT,
        "toolCount": NUMBER,
    }
    return members({**{part: kinds[part] for part in parts}, "generatedAt": TEXT})


def _record() -> Schema:
    digest = ref("digest")
    items = {kind.member: mapping(digest) for kind in surface.ITEM_KINDS}
    file, closure = _file(lock_extension._SURFACE_PATH), _file(lock_extension._CLOSURE_PATH)
    pin = members(
        {
            "digest": digest,
            "items": {"type": "object", "properties": items, "additionalProperties": False},
            "file": file,
        }
    )
    return members(
        {"format": {"const": lock_extension.FORMAT}},
        {
            "surface": pin,
            "apiSurface": TEXT,
            "artifacts": array(members({"name": TEXT, "digest": digest}, {"size": or_null(COUNT)})),
            "image": members({"platforms": mapping(digest)}, {"index": digest}),
            "closure": members({"packages": {"type": "integer", "minimum": 1}, "file": closure}),
            "provenance": OBJECT,
            "registry": TEXT,
            "approval": members({"by": TEXT, "at": TEXT, "why": TEXT}),
            "integrity": SRI,
        },
    )


def _file(path: re.Pattern[str]) -> Schema:
    """Return the schema of a reference in the lock to a file next to it, with the digest of that file."""
    pattern = path.pattern.replace('\\"', '"')  # some regex dialects do not support this escape
    return members({"path": {"type": "string", "pattern": f"^{pattern}$"}, "digest": ref("digest")})


def any_digest() -> Schema:
    hexes = [f"{name}:[0-9A-Fa-f]{{{2 * size}}}" for name, size in DIGEST_SIZES.items()]
    base64 = [f"{name}-[A-Za-z0-9+/]{{{-(-size * 8 // 6)}}}{'=' * (-size % 3)}" for name, size in DIGEST_SIZES.items()]
    return {"type": "string", "pattern": f"^(?:{'|'.join([*hexes, *base64])})$"}
