"""JSON Schemas (draft 2020-12) of the documents that Pinwarden reads and the JSON that it prints.

Written to docs/reference/schemas by tools/reference_docs.py. Everything that the code enumerates is taken from the
code. Objects are open: a later release may add members, and documents keep those that are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from pinwarden.core.digest import _SIZES
from pinwarden.core.errors import CODES
from pinwarden.core.tool_digest import TOOL_PROFILES
from pinwarden.documents import policy, surface
from pinwarden.documents.lock import extension as lock_extension
from pinwarden.documents.lock import lockfile
from pinwarden.documents.lock import shape as lock_shape
from pinwarden.rules.advisories import scan as advisories
from pinwarden.rules.advisories import toolpin as toolpin_advisories
from pinwarden.rules.drift.changes import CHANGE_KINDS, SEVERITIES

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FULL_TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TRUTH: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}
SHA256: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
BARE_SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
SRI: Schema = {"type": "string", "pattern": "^sha256-[A-Za-z0-9+/]{43}=$"}


def one_of(values: Iterable[str]) -> Schema:
    return {"enum": list(values)}


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(values: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": values, **more}


def members(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    known = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": known, **more}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def document(name: str, title: str, description: str, body: Schema, **definitions: Schema) -> Schema:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pinwarden:schema:{name}",
        "title": title,
        "description": description,
    }
    return {**head, **body, **({"$defs": definitions} if definitions else {})}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


# Documents


def surface_body() -> Schema:
    lists = {kind.member: array(members({kind.key: FULL_TEXT})) for kind in surface.KINDS}
    digests = array(members({"key": FULL_TEXT, "item": SHA256, "fields": mapping(SHA256)}))
    undigestable = members(
        {
            "kind": one_of(kind.entity for kind in surface.KINDS),
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


def surface_schema() -> Schema:
    return document(
        "surface:1",
        "Surface document",
        "Everything a server told about itself, as it was sent, with a digest of each item (pinwarden inspect -o).",
        surface_body(),
    )


def lock_schema() -> Schema:
    body = members(
        {"lockfileVersion": {"const": lockfile.VERSION}, "generatedAt": TEXT, "servers": mapping(ref("entry"))},
        {"updatedAt": TEXT, "pinwarden": ref("seal")},
    )
    return document(
        "mcp-lock:2",
        "mcp-lock.json, lockfileVersion 2",
        "ToolPin's lockfile, and the two members that Pinwarden adds to it: a record in each entry and a seal.",
        body,
        entry=_entry(),
        trust=_trust(),
        manifest=_manifest(),
        record=_record(),
        seal=members(
            {"format": {"const": lockfile.SEAL_FORMAT}, "entries": mapping(SRI), "integrity": SRI},
        ),
        digest=_any_digest(),
    )


def _entry() -> Schema:
    return members(
        {
            "name": TEXT,
            "version": TEXT,
            "client": one_of(lock_shape.CLIENTS),
            "selectedTarget": OBJECT,
            "trust": ref("trust"),
            "notes": array(ANYTHING),
        },
        {"scope": one_of(lock_shape.SCOPES), "capabilityManifest": ref("manifest"), "integrity": TEXT},
    )


def _trust() -> Schema:
    gates = array(members({"code": TEXT, "message": TEXT, "tier": one_of(("unverified", "blocked"))}))
    evidence = members(
        {"code": TEXT, "message": TEXT, "status": one_of(("passed", "declared", "failed", "unavailable"))},
        {member: _TRUST_KINDS[kind] for member, kind in lock_shape._EVIDENCE_SHAPE.items()},
    )
    issue = members({"code": TEXT, "message": TEXT, "severity": one_of(("info", "warning", "critical"))})
    rows = {"evidence": array(evidence), "issues": array(issue)}
    kinds = {
        **_TRUST_KINDS,
        "gates": gates,
        "pillars": members(dict.fromkeys(lock_shape._PILLARS, NUMBER)),
    }
    shape = {member: rows.get(member) or kinds[kind] for member, kind in lock_shape._TRUST_SHAPE.items()}
    return {"type": "object", "required": ["score", "badges", "issues"], "properties": shape}


_TRUST_KINDS: dict[str, Schema] = {
    "number": NUMBER,
    "tier": one_of(lock_shape.TIERS),
    "text": TEXT,
    "truth": TRUTH,
    "texts": array(TEXT),
}


def _manifest() -> Schema:
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
    items = {kind.member: mapping(digest) for kind in surface.KINDS}
    path = lock_extension._SURFACE_PATH.pattern.replace('\\"', '"')  # with that escape not every dialect reads it
    file = members({"path": {"type": "string", "pattern": f"^{path}$"}, "digest": digest})
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
            "dependencies": array(
                members({"ecosystem": TEXT, "name": TEXT, "version": TEXT}, {"digest": digest}),
            ),
            "provenance": OBJECT,
            "registry": TEXT,
            "approval": members({"by": TEXT, "at": TEXT, "why": TEXT}),
            "integrity": SRI,
        },
    )


def _any_digest() -> Schema:
    hexes = [f"{name}:[0-9A-Fa-f]{{{2 * size}}}" for name, size in _SIZES.items()]
    base64 = [f"{name}-[A-Za-z0-9+/]{{{-(-size * 8 // 6)}}}{'=' * (-size % 3)}" for name, size in _SIZES.items()]
    return {"type": "string", "pattern": f"^(?:{'|'.join([*hexes, *base64])})$"}


def policy_schema() -> Schema:
    patterns = array(ref("pattern"), minItems=1)
    choice = members({}, {"allow": patterns, "deny": patterns}, minProperties=1, additionalProperties=False)
    tier = one_of(tier for tier in lock_shape.TIERS if tier != "blocked")
    evidence = array(one_of(policy.EVIDENCE_CODES), minItems=1)
    age = members({}, {"minimum-days": _whole(3650), "exempt": patterns}, minProperties=1, additionalProperties=False)
    waiver = members(
        {
            "server": ref("pattern"),
            "code": one_of(policy.WAIVABLE_CODES),
            "reason": ref("said"),
            "owner": ref("said"),
            "expires": {"type": "string", "format": "date"},
        },
        additionalProperties=False,
    )
    rules: dict[str, Schema] = {
        **dict.fromkeys(policy._CHOICES, choice),
        "minimum-tier": {
            "anyOf": [tier, {**mapping(tier), "required": ["default"]}, {"type": "object", "maxProperties": 0}]
        },
        "minimum-score": _whole(100),
        "evidence": members({}, {"require": evidence}, minProperties=1, additionalProperties=False),
        "release-age": age,
        "require": members({}, dict.fromkeys(policy._REQUIRE, TRUTH), minProperties=1, additionalProperties=False),
    }
    others: dict[str, Schema] = {"version": {"const": 1}, "waivers": array(waiver)}
    return document(
        "policy:1",
        "The table [policy] of pinwarden.toml, as JSON",
        "Dates are text. Not said here: a pattern may not be both allowed and denied, and some rule must be in force.",
        members({}, {**others, **rules}, additionalProperties=False, anyOf=[{"required": [rule]} for rule in rules]),
        pattern={"type": "string", "minLength": 1, "maxLength": 300, "pattern": r"^(?:[^*]*\*){0,8}[^*]*$"},
        said={"type": "string", "pattern": r"\S"},
    )


def _whole(largest: int) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": largest}


# What commands print


def change() -> Schema:
    return members(
        {
            "entity": one_of((*(kind.entity for kind in surface.KINDS), "server")),
            "name": TEXT,
            "field": TEXT,
            "path": TEXT,
            "kind": one_of(CHANGE_KINDS),
            "severity": one_of(SEVERITIES),
            "reason": TEXT,
        },
        {"before": ANYTHING, "after": ANYTHING},
    )


def diff_schema() -> Schema:
    body = members(
        {
            "changes": array(ref("change")),
            "blocked_by_default": TRUTH,
            "counts": members(dict.fromkeys(SEVERITIES, COUNT)),
            "digests": members({"before": or_null(SHA256), "after": or_null(SHA256)}),
            "notes": array(TEXT),
        }
    )
    return document(
        "diff:1", "pinwarden diff --format json", "What changed between two surfaces.", body, change=change()
    )


def inspect_schema() -> Schema:
    each = mapping(or_null(SHA256))
    toolpin = members(
        {
            **dict.fromkeys(("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash"), BARE_SHA256),
            "localeDependent": TRUTH,
        }
    )
    digests = members(
        {
            "pinwarden": members({"surface": or_null(SHA256)}, {kind.member: each for kind in surface.KINDS}),
            "api-surface": or_null(members({"hash": SHA256, "tools": mapping(SHA256)})),
            "hangar-1.2": each,
            "hangar": each,
            "toolpin": or_null(toolpin),
            "fusion": each,
            "unavailable": array(members({"digest": TEXT, "item": or_null(TEXT), "reason": TEXT})),
        }
    )
    two_clients = members({"differs_per_client": TRUTH, "changes": array(ref("change"))})
    return document(
        "inspect:1",
        "pinwarden inspect --format json",
        "The surface and its digests; with --compare-client, how the answers to two clients differ.",
        {"oneOf": [members({"surface": ref("surface"), "digests": ref("digests")}), two_clients]},
        surface=surface_body(),
        digests=digests,
        change=change(),
    )


def scan_schema() -> Schema:
    severities = get_args(advisories.Severity)
    finding = members(
        {
            "server": TEXT,
            "code": one_of(finding_codes()),
            "severity": one_of(severities),
            "entity": one_of((*(kind.entity for kind in surface.KINDS), "server")),
            "name": TEXT,
            "path": TEXT,
            "message": TEXT,
            "excerpt": TEXT,
        }
    )
    body = members({"findings": array(finding), "counts": members(dict.fromkeys(severities, COUNT))})
    return document("scan:1", "pinwarden scan --format json", "What a person should look at.", body)


def finding_codes() -> list[str]:
    named = [
        value.code for value in vars(toolpin_advisories).values() if isinstance(value, toolpin_advisories.Advisory)
    ]
    made = [toolpin_advisories.duplicate_name(2).code, toolpin_advisories.cross_tool("name").code]
    return [*advisories.MESSAGES, *named, *made]


def digest_schema() -> Schema:
    good = members({"name": TEXT, "digest": SHA256})
    bad = members({"name": ANYTHING, "error": members({"code": one_of(CODES), "message": TEXT})})
    body = members({"profile": one_of(TOOL_PROFILES), "tools": array({"oneOf": [good, bad]})})
    return document("digest:1", "pinwarden digest --format json", "The digest of each tool, or why it has none.", body)


def error_schema() -> Schema:
    error = members({"code": one_of(CODES), "message": TEXT, "hint": TEXT, "data": OBJECT})
    return document(
        "error:1",
        "An error of any command under --format json",
        "Printed on stdout in place of the command's own output; the exit code tells more.",
        members({"error": error}),
    )


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "surface": surface_schema,
    "mcp-lock": lock_schema,
    "policy": policy_schema,
    "inspect": inspect_schema,
    "diff": diff_schema,
    "scan": scan_schema,
    "digest": digest_schema,
    "error": error_schema,
}
"""By the name of the file under docs/reference/schemas, without ``.schema.json``."""
