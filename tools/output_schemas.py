"""JSON Schemas of what each command prints under --format json. Every object is closed: a schema names all members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from pinwarden.core.errors import CODES
from pinwarden.core.record import field_names
from pinwarden.core.tool_digest import TOOL_PROFILES
from pinwarden.documents import gateway_event, server_entry, surface
from pinwarden.documents.bundle import attestation as bundle_attestation
from pinwarden.documents.bundle import descriptor as bundle_descriptor
from pinwarden.documents.bundle.trust_store import ALL_ROLES
from pinwarden.documents.clients.table import CLIENTS, Scope
from pinwarden.documents.lock import shape as lock_shape
from pinwarden.documents.lock.verification import PROBLEMS
from pinwarden.documents.registry import version as registry_version
from pinwarden.documents.sbom import cyclonedx as cyclonedx_bill
from pinwarden.documents.sbom import spdx as spdx_bill
from pinwarden.documents.tier import TIERS_WORST_FIRST
from pinwarden.flows.artifacts.bill import Kind as BillKind
from pinwarden.flows.bundle.signing import FIELDS as SIGNED_DOCUMENTS
from pinwarden.flows.config.decisions import State
from pinwarden.rules import audit_chain, proposal
from pinwarden.rules.acceptance.steps import FAILED, NOT_REACHED, PASSED
from pinwarden.rules.advisories import scan as advisories
from pinwarden.rules.advisories import toolpin as toolpin_advisories
from pinwarden.rules.config.doctor import IssueKind
from pinwarden.rules.config.drift import ENTITY
from pinwarden.rules.config.findings import FINDING_KINDS
from pinwarden.rules.config.kinds import CONFIG_KINDS
from pinwarden.rules.config.secrets import SecretKind
from pinwarden.rules.drift.changes import CHANGE_KINDS, SEVERITIES
from pinwarden.store import publishers, reviews
from tools import contract_schemas
from tools.document_schemas import any_digest, lock_body, lock_definitions, manifest, surface_body
from tools.output_parts import DID, LEVEL, output, report_row
from tools.schema_words import (
    ANYTHING,
    BARE_SHA256,
    CODE,
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
    document,
    exactly,
    mapping,
    members,
    one_of,
    or_null,
    ref,
)

DOCUMENT_CID: Schema = {"type": "string", "pattern": "^bafyrei[a-z2-7]{52}$"}
BLOB_CID: Schema = {"type": "string", "pattern": "^bafkrei[a-z2-7]{52}$"}
CLIENT = one_of(CLIENTS)
LOCK_CLIENT = one_of(lock_shape.CLIENTS)
SCOPE = one_of(get_args(Scope))
LOCK_SCOPE = one_of(lock_shape.SCOPES)
TIER = one_of(TIERS_WORST_FIRST)
NAMED: Schema = exactly({"code": CODE, "message": TEXT})
POINTER: Schema = {"type": "string", "pattern": "^(?:/.*)?$"}
KEY: Schema = {"type": "string", "pattern": ":"}
"""The key of an entry in a lock: name and client."""


# Parts that several commands print


def change(entities: Iterable[str], kinds: Iterable[str]) -> Schema:
    return exactly(
        {
            "entity": one_of(entities),
            "name": TEXT,
            "field": TEXT,
            "path": TEXT,
            "kind": one_of(kinds),
            "severity": one_of(SEVERITIES),
            "reason": TEXT,
        },
        {"before": ANYTHING, "after": ANYTHING},
    )


def surface_change() -> Schema:
    return change((*(kind.entity for kind in surface.KINDS), "server"), CHANGE_KINDS)


def problem() -> Schema:
    """Something that is wrong with a lock."""
    return exactly(
        {
            "code": one_of(PROBLEMS),
            "path": POINTER,
            "message": TEXT,
            "server": or_null(TEXT),
            "client": or_null(TEXT),
        }
    )


def diff_members() -> dict[str, Schema]:
    return {
        "changes": array(ref("change")),
        "blocked_by_default": TRUTH,
        "counts": exactly(dict.fromkeys(SEVERITIES, COUNT)),
        "digests": exactly({"before": or_null(SHA256), "after": or_null(SHA256)}),
        "notes": array(TEXT),
    }


def locked_members() -> dict[str, Schema]:
    return {
        "entries": array(exactly({"key": KEY, "integrity": SRI}), minItems=1),
        "tier": TIER,
        "surface": or_null(SHA256),
        "findings": array(NAMED),
    }


def config_action(*actions: str) -> Schema:
    return exactly({"client": CLIENT, "file": FULL_TEXT, "action": one_of(actions)})


def evidence_row() -> Schema:
    """One thing that was proved, claimed, or not found, in ToolPin's words."""
    texts = ("source", "claim", "verificationMethod", "trustAnchor", "verifiedAt", "failureReason")
    return exactly(
        {"code": CODE, "status": one_of(("passed", "declared", "failed", "unavailable")), "message": TEXT},
        {
            **dict.fromkeys(("verifiedByToolPin", "trustedAnchor", "required"), TRUTH),
            **dict.fromkeys(texts, TEXT),
        },
    )


# Surfaces


def diff() -> Schema:
    return output("diff", exactly(diff_members()), "What changed between two surfaces.", change=surface_change())


def inspect() -> Schema:
    each = mapping(or_null(SHA256))
    toolpin = exactly(
        {
            **dict.fromkeys(("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash"), BARE_SHA256),
            "localeDependent": TRUTH,
        }
    )
    digests = exactly(
        {
            "pinwarden": exactly({"surface": or_null(SHA256)}, {kind.member: each for kind in surface.KINDS}),
            "api-surface": or_null(exactly({"hash": SHA256, "tools": mapping(SHA256)})),
            "hangar-1.2": each,
            "hangar": each,
            "toolpin": or_null(toolpin),
            "fusion": each,
            "unavailable": array(exactly({"digest": TEXT, "item": or_null(TEXT), "reason": TEXT})),
        }
    )
    two_clients = exactly({"differs_per_client": TRUTH, "changes": array(ref("change"))})
    return output(
        "inspect",
        {"oneOf": [exactly({"surface": ref("surface"), "digests": ref("digests")}), two_clients]},
        "The surface and its digests; with --compare-client, how the answers to two clients differ.",
        surface=surface_body(),
        digests=digests,
        change=surface_change(),
    )


def scan() -> Schema:
    severities = get_args(advisories.Severity)
    finding = exactly(
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
    body = exactly({"findings": array(finding), "counts": exactly(dict.fromkeys(severities, COUNT))})
    return output("scan", body, "What a person should look at.")


def finding_codes() -> list[str]:
    named = [
        value.code for value in vars(toolpin_advisories).values() if isinstance(value, toolpin_advisories.Advisory)
    ]
    made = [toolpin_advisories.duplicate_name(2).code, toolpin_advisories.cross_tool("name").code]
    return [*advisories.MESSAGES, *named, *made]


def digest() -> Schema:
    good = exactly({"name": TEXT, "digest": SHA256})
    bad = exactly({"name": ANYTHING, "error": exactly({"code": one_of(CODES), "message": TEXT})})
    body = exactly({"profile": one_of(TOOL_PROFILES), "tools": array({"oneOf": [good, bad]})})
    return output("digest", body, "The digest of each tool, or why it has none.")


# Locking


def init() -> Schema:
    server = exactly(
        {
            "name": TEXT,
            "client": CLIENT,
            "scope": SCOPE,
            "file": FULL_TEXT,
            "runs": or_null(TEXT),
            "pinned": TRUTH,
            "state": one_of(get_args(State)),
            "locked": TRUTH,
            "surface": or_null(SHA256),
            "reason": or_null(TEXT),
        }
    )
    finding = exactly(
        {
            "code": one_of((*FINDING_KINDS, "not_locked")),
            "severity": LEVEL,
            "server": TEXT,
            "file": FULL_TEXT,
            "pointer": POINTER,
            "message": TEXT,
        }
    )
    file = exactly({"client": CLIENT, "scope": SCOPE, "path": FULL_TEXT})
    body = exactly(
        {
            "files": array(file),
            "servers": array(server),
            "undecided": array(ref("row")),
            "findings": array(finding),
        }
    )
    told = "What is configured, what of it is locked, what somebody has to decide about, and what stands out."
    return output("init", body, told, row=report_row())


def lock() -> Schema:
    return output("lock", exactly(locked_members()))


def add() -> Schema:
    installed = array(config_action("created", "updated", "unchanged"), minItems=1)
    return output("add", exactly({**locked_members(), "installed": installed}))


def remove() -> Schema:
    return output(
        "remove", exactly({"removed": array(KEY, minItems=1), "configs": array(config_action("removed", "missing"))})
    )


def approve() -> Schema:
    shown = exactly(diff_members())
    done = exactly({**diff_members(), "approved": {"const": True}, "by": FULL_TEXT, "why": TEXT, "surface": SHA256})
    return output(
        "approve",
        {"oneOf": [shown, done]},
        "What would be approved, or with --yes what was, by whom and why.",
        change=surface_change(),
    )


def verify() -> Schema:
    issue = exactly({"severity": one_of(("info", "warning", "critical")), "code": CODE, "message": TEXT})
    verdict = exactly({"verdict": one_of(("verified", "needs-review", "blocked")), "reason": TEXT, "detailTier": TIER})
    body = exactly(
        {
            "ok": TRUTH,
            "serverName": FULL_TEXT,
            "capabilityManifest": ref("manifest"),
            "attestations": array(members({"type": TEXT})),
            "badges": array(TEXT),
            "evidence": array(evidence_row()),
            "issues": array(issue),
            "verifiedProvenance": TRUTH,
            "verdict": verdict,
            "tier": TIER,
            "reasons": array(TEXT),
            "remedies": array(TEXT),
            "findings": array(NAMED),
        },
        {"serverVersion": TEXT},
    )
    definitions = lock_definitions()
    used = {name: definitions[name] for name in ("record", "digest")}
    return output(
        "verify",
        {"oneOf": [body, contract_schemas.verified_contract()]},
        "What the metadata proves, what it only claims, what is missing; with --contract, how the server differs.",
        manifest=manifest(),
        row=report_row(),
        **used,
    )


def outdated() -> Schema:
    row = exactly(
        {
            "name": FULL_TEXT,
            "client": LOCK_CLIENT,
            "locked": TEXT,
            "latest": or_null(TEXT),
            "outdated": TRUTH,
            "problem": or_null(TEXT),
        }
    )
    return output("outdated", exactly({"entries": array(row)}))


def update() -> Schema:
    newer = exactly({"name": FULL_TEXT, "client": LOCK_CLIENT, "from": TEXT, "to": TEXT})
    told = exactly({"code": CODE, "name": FULL_TEXT, "message": TEXT})
    failed = exactly({"name": FULL_TEXT, "message": TEXT})
    members = {
        "updates": array(newer),
        "renewals": array(FULL_TEXT),
        "written": TRUTH,
        "changes": array(told),
        "unchecked": array(failed),
    }
    return output("update", exactly(members, {"configs": array(failed)}))


# Bytes


def prove() -> Schema:
    image = exactly({"reference": FULL_TEXT, "digest": SHA256, "platforms": mapping(SHA256)})
    server = exactly(
        {
            "server": FULL_TEXT,
            "package": FULL_TEXT,
            "registry": or_null(TEXT),
            "files": array(exactly({"name": FULL_TEXT, "digest": SHA256, "size": COUNT})),
            "evidence": array(evidence_row()),
            "packages": COUNT,
            "scripts": array(FULL_TEXT),
        },
        {"image": image},
    )
    body = exactly({"servers": array(server), "findings": array(ref("row"))})
    told = "Which bytes were pinned, from where and with what evidence; what is wrong, and what has no bytes to pin."
    return output("prove", body, told, row=report_row())


def fetch() -> Schema:
    server = exactly(
        {"server": FULL_TEXT, "packages": COUNT, "environment": FULL_TEXT, "scripts": array(FULL_TEXT)},
    )
    body = exactly({"servers": array(server), "findings": array(ref("row"))})
    return output("fetch", body, "Which servers are ready to run, and why others are not.", row=report_row())


def enforce() -> Schema:
    actions = one_of(("created", "updated", "unchanged", "locked only"))
    entry = exactly({"server": FULL_TEXT, "client": LOCK_CLIENT, "action": actions}, {"file": FULL_TEXT})
    body = exactly({"entries": array(entry), "findings": array(ref("row"))})
    return output("enforce", body, "What is started through pinwarden run now, and what is not.", row=report_row())


def sbom() -> Schema:
    report = exactly(
        {
            "kind": one_of(get_args(BillKind)),
            "servers": COUNT,
            "packages": COUNT,
            "serial": {"type": "string", "pattern": "^urn:uuid:"},
            "incomplete": array(TEXT),
        }
    )
    cyclonedx = members({"bomFormat": {"const": "CycloneDX"}, "specVersion": {"const": cyclonedx_bill.SPEC_VERSION}})
    spdx = members({"spdxVersion": {"const": spdx_bill.SPEC_VERSION}, "packages": array(OBJECT)})
    return output(
        "sbom",
        {"oneOf": [report, ref("cyclonedx"), ref("spdx")]},
        "With --output, what was exported; without it, the document itself, which CycloneDX or SPDX define.",
        cyclonedx=cyclonedx,
        spdx=spdx,
    )


def advisories_() -> Schema:
    finding = exactly(
        {
            "ecosystem": one_of(("npm", "pypi", "nuget", "cargo")),
            "package": FULL_TEXT,
            "version": FULL_TEXT,
            "id": FULL_TEXT,
            "aliases": array(TEXT),
            "summary": TEXT,
            "severity": TEXT,
            "fixed": array(TEXT),
            "certain": TRUTH,
            "servers": array(FULL_TEXT, minItems=1),
        }
    )
    body = exactly({"packages": COUNT, "findings": array(finding), "not_looked_up": array(TEXT)})
    return output(
        "advisories", body, "What was looked up, which records are about it, and what could not be looked up."
    )


# Checking


def ci() -> Schema:
    status = one_of(("ok", "failed", "skipped", "none"))
    checks = ("integrity", "signature", "configs", "policy", "registry", "bytes", "scripts", "advisories", "live")
    body = exactly(
        {
            "ok": TRUTH,
            "checkedEntries": COUNT,
            "checks": exactly(dict.fromkeys(checks, status)),
            "failures": array(ref("row")),
            "asked": exactly({"registry": COUNT, "bytes": COUNT, "live": COUNT}),
            "unchecked": array(ref("row")),
            "remarks": array(ref("row")),
            "notes": array(TEXT),
        }
    )
    return output(
        "ci",
        body,
        "What was checked, what failed, what could not be checked, what is only noted, and what was not looked at.",
        row=report_row(),
    )


def doctor() -> Schema:
    issue = exactly(
        {
            "key": KEY,
            "kind": one_of(get_args(IssueKind)),
            "client": CLIENT,
            "serverName": TEXT,
            "file": TEXT,
            "message": TEXT,
            "changes": array(change((ENTITY,), CONFIG_KINDS)),
        },
        {"scope": SCOPE},
    )
    found = {
        "client": CLIENT,
        "scope": SCOPE,
        "file": FULL_TEXT,
        "pointer": POINTER,
        "severity": LEVEL,
        "message": TEXT,
    }
    stranger = exactly({"server": TEXT, **found, "code": one_of(CONFIG_KINDS)})
    finding = exactly({"server": TEXT, **found, "code": one_of(FINDING_KINDS)})
    file = exactly(
        {
            "client": CLIENT,
            "scope": SCOPE,
            "path": FULL_TEXT,
            "servers": COUNT,
            "fault": or_null(one_of(("unreadable", "invalid"))),
        }
    )
    program = exactly({"name": FULL_TEXT, "path": or_null(FULL_TEXT), "needed_by": array(TEXT)})
    body = exactly(
        {
            "ok": TRUTH,
            "checked": COUNT,
            "issues": array(issue),
            "strangers": array(stranger),
            "findings": array(finding),
            "files": array(file),
            "programs": array(program),
            "lock": exactly({"found": TRUTH, "problems": array(ref("problem"))}),
        }
    )
    return output("doctor", body, problem=problem())


def secrets_audit() -> Schema:
    secret: dict[str, Schema] = {
        "secretName": TEXT,
        "secretSource": one_of(("env", "header", "args", "url", "input")),
        "redactedValue": {"const": "[REDACTED]"},
    }
    finding = exactly(
        {
            "kind": one_of(get_args(SecretKind)),
            "key": TEXT,
            "client": CLIENT,
            "serverName": TEXT,
            "file": TEXT,
            "message": TEXT,
        },
        {"scope": SCOPE, **secret},
        dependentRequired={name: [other for other in secret if other != name] for name in secret},
    )
    body = exactly({"ok": TRUTH, "checked": COUNT, "servers": COUNT, "findings": array(finding)})
    return output("secrets audit", body, "Where secrets lie open. No value is ever part of it.")


def list_() -> Schema:
    entry = exactly(
        {
            "name": FULL_TEXT,
            "version": or_null(TEXT),
            "client": LOCK_CLIENT,
            "scope": LOCK_SCOPE,
            "target": TEXT,
            "tier": or_null(TIER),
            "surface_pinned": TRUTH,
            "approved_by": or_null(TEXT),
            "locked_at": or_null(TEXT),
        }
    )
    body = exactly({"ok": TRUTH, "entries": array(entry), "problems": array(ref("problem"))})
    return output("list", body, problem=problem())


def explain() -> Schema:
    trust: dict[str, Schema] = {
        "tier": TIER,
        "overall_score": NUMBER,
        "meaning": TEXT,
        "reasons": array(TEXT),
        "remedies": array(TEXT),
    }
    sections = array(exactly({"heading": FULL_TEXT, "lines": array(TEXT)}), minItems=1)
    config = exactly(
        {}, {"command": array(TEXT), "url": TEXT, "env": array(TEXT), "headers": array(TEXT), "entry": TEXT}
    )
    locked = exactly(
        {
            "key": KEY,
            "version": or_null(TEXT),
            "client": LOCK_CLIENT,
            "scope": LOCK_SCOPE,
            "source": or_null(TEXT),
            "locked_at": or_null(TEXT),
            "target": TEXT,
            "config": or_null(config),
            "surface": or_null(any_digest()),
            "approval": or_null(exactly({"by": TEXT, "at": TEXT, "why": TEXT})),
            "trust": exactly({**trust, "locked_tier": TIER}),
            "sections": sections,
        }
    )
    finding = exactly({"severity": one_of(("info", "warning", "critical")), "code": CODE, "message": TEXT})
    registered = exactly(
        {
            "version": or_null(TEXT),
            "source": FULL_TEXT,
            "status": one_of(get_args(server_entry.Status)),
            "target": or_null(TEXT),
            "trust": exactly(trust),
            "findings": array(finding),
            "sections": sections,
        }
    )

    def told(origin: str, entry: Schema, problems: Schema) -> Schema:
        return exactly(
            {
                "server": FULL_TEXT,
                "origin": {"const": origin},
                "entries": array(entry, minItems=1),
                "problems": problems,
            }
        )

    body = {"oneOf": [told("lock", locked, array(ref("problem"))), told("registry", registered, {"const": []})]}
    return output("explain", body, problem=problem())


# Signing


def lock_digest() -> Schema:
    body = exactly(
        {
            "digest": or_null(SRI),
            "seal": or_null(SRI),
            "entries": COUNT,
            "ok": TRUTH,
            "problems": array(NAMED_PROBLEM),
        }
    )
    return output("lock digest", body)


NAMED_PROBLEM: Schema = exactly(
    {"code": CODE, "path": POINTER, "message": TEXT, "server": or_null(TEXT), "client": or_null(TEXT)}
)
"""The same for locks of the mcp-lock/1 draft, whose problems have codes of their own."""


def lock_sign() -> Schema:
    body = exactly(
        {
            "file": FULL_TEXT,
            "signature": FULL_TEXT,
            "form": one_of(("dsse", "dev.toolpin.lock-signature", "mcp-lock-signature")),
            "digest": or_null(SRI),
            "policy_digest": or_null(SRI),
            "signed_at": FULL_TEXT,
            "signers": array(exactly({"did": DID, "fingerprint": SRI}), minItems=1),
            "notes": array(TEXT),
        }
    )
    return output("lock sign", body)


def lock_verify_signature() -> Schema:
    signer = exactly({"name": FULL_TEXT, "did": DID, "fingerprint": SRI})
    body = exactly(
        {
            "ok": TRUTH,
            "digest": or_null(SRI),
            "policy_digest": or_null(SRI),
            "signers": array(signer),
            "missing": array(TEXT),
            "rejected": array(TEXT),
            "problems": array(NAMED_PROBLEM),
        }
    )
    return output("lock verify-signature", body)


def lock_convert() -> Schema:
    report = exactly(
        {"to": one_of(("v2", "mcp-lock/1")), "entries": COUNT, "digest": or_null(SRI), "set_aside": array(TEXT)}
    )
    neutral = members({"specVersion": {"const": 1}, "entries": array(OBJECT)})
    return output(
        "lock convert",
        {"oneOf": [report, ref("lock"), ref("neutral")]},
        "With --output, what was converted; without it, the converted lockfile itself.",
        lock=lock_body(),
        neutral=neutral,
        **lock_definitions(),
    )


def keygen() -> Schema:
    body = exactly(
        {"private_key": FULL_TEXT, "public_key": FULL_TEXT, "did": DID, "fingerprint": SRI, "encrypted": TRUTH}
    )
    return output("keygen", body, "Where the keys are and what the public one is called. No private key is printed.")


# Bundles


def bundle_identity() -> dict[str, Schema]:
    return {
        "tool": TEXT,
        "version": TEXT,
        "root_cid": DOCUMENT_CID,
        "descriptor_cid": DOCUMENT_CID,
        "media_type": one_of(bundle_descriptor.MEDIA_TYPES),
        "size_bytes": COUNT,
    }


def bundle_start() -> dict[str, Schema]:
    permission = one_of(("deny", "allow"))
    files = one_of(("deny", "read_only", "read_write"))
    return {
        "runtime": one_of(bundle_descriptor.RUNTIMES),
        "target": TEXT,
        "policy": exactly({"network": permission, "filesystem": files, "exec": permission}),
    }


def bundle_pack() -> Schema:
    places = {"archive": FULL_TEXT, "descriptor": FULL_TEXT, "manifest": FULL_TEXT, "left_out": array(FULL_TEXT)}
    return output("bundle pack", exactly({**bundle_identity(), "content_hash": SHA256, "files": COUNT, **places}))


def bundle_inspect() -> Schema:
    entry = exactly({"path": FULL_TEXT, "size_bytes": COUNT, "executable": TRUTH, "blob_cid": BLOB_CID})
    return output("bundle inspect", exactly({**bundle_identity(), **bundle_start(), "entries": array(entry)}))


def bundle_verify() -> Schema:
    found = {"content_hash": SHA256, "files": COUNT, "unpacked_bytes": COUNT}
    return output("bundle verify", exactly({**bundle_identity(), **bundle_start(), **found}))


def bundle_in_oci() -> dict[str, Schema]:
    return {
        "reference": TEXT,
        "digest": SHA256,
        "tool": TEXT,
        "version": TEXT,
        "root_cid": DOCUMENT_CID,
        "descriptor_cid": DOCUMENT_CID,
        "attestations": COUNT,
        "pointer": TRUTH,
    }


def bundle_push() -> Schema:
    return output("bundle push", exactly(bundle_in_oci()))


def bundle_pull() -> Schema:
    more = {"files": array(FULL_TEXT), "provenance": or_null(bundle_provenance()), "unpacked": or_null(FULL_TEXT)}
    return output("bundle pull", exactly({**bundle_in_oci(), **more}))


def sign() -> Schema:
    schemas = one_of(SIGNED_DOCUMENTS)
    fields = array(POINTER)
    return output(
        "sign",
        exactly(
            {"file": FULL_TEXT, "schema_version": schemas, "key_id": DID, "signed_fields": fields, "signatures": COUNT}
        ),
    )


def attest() -> Schema:
    return output(
        "attest",
        exactly(
            {
                "file": FULL_TEXT,
                "root_cid": DOCUMENT_CID,
                "descriptor_cid": DOCUMENT_CID,
                "key_id": DID,
                "role": one_of(bundle_attestation.ROLES),
                "claims": array(one_of(bundle_attestation.CLAIM_TYPES)),
                "expires_at_utc": or_null(TEXT),
            }
        ),
    )


def bundle_provenance() -> Schema:
    return exactly(
        {
            "tool": TEXT,
            "channel": TEXT,
            "root_cid": TEXT,
            "descriptor_cid": TEXT,
            "attestations_used": array(TEXT),
            "constraints_enforced": exactly({"require_verifier_attestation": TRUTH, "min_attestations": COUNT}),
        }
    )


def bundle_refusal() -> Schema:
    return exactly({"code": one_of(CODES), "what": TEXT, "why": OBJECT, "fix": TEXT})


def bundle_accept() -> Schema:
    accepted = exactly({"result": one_of(["ACCEPT"]), "provenance": bundle_provenance()})
    refused = exactly({"result": one_of(["REJECT"]), "error": bundle_refusal()})
    return output("bundle accept", {"oneOf": [accepted, refused]})


# Installing


def trust_command(command: str) -> Callable[[], Schema]:
    """What every trust command prints: the whole store."""
    who = {"key_id": DID, "name": TEXT, "roles": array(one_of(ALL_ROLES))}
    registry = exactly(
        {
            **who,
            "added_at": TEXT,
            "log_id": TEXT,
            "checkpoint_key": TEXT,
            "url": or_null(FULL_TEXT),
            "witnesses": array(TEXT),
            "witnesses_revoked": array(TEXT),
            "witnesses_needed": COUNT,
            "max_age_days": COUNT,
            "ended_keys": array(exactly({"key_id": DID, "log_index": COUNT, "seen_at": TEXT})),
        }
    )
    known = exactly({**who, "added_at": TEXT})
    roles = array(one_of((*ALL_ROLES, "witness")))
    revoked = exactly({**who, "roles": roles, "revoked_at": TEXT, "why": TEXT})
    body = exactly({"registries": array(registry), "keys": array(known), "revoked": array(revoked)})
    return lambda: output(command, body)


def install() -> Schema:
    results = one_of((PASSED, FAILED, NOT_REACHED, "not checked"))
    step = or_null({"type": "integer", "minimum": 1, "maximum": 9})
    line = exactly({"step": step, "check": TEXT, "result": results, "detail": TEXT})
    log = exactly({"id": TEXT, "index": COUNT, "size": COUNT})
    entries = array(exactly({"key": KEY, "integrity": SRI}), minItems=1)
    accepted = exactly(
        {
            "result": one_of(["ACCEPT"]),
            "provenance": bundle_provenance(),
            "plan": array(ref("line")),
            "literal": TRUTH,
            "version": TEXT,
            "registry": FULL_TEXT,
            "content_hash": SHA256,
            "api_surface": or_null(SHA256),
            "surface": or_null(SHA256),
            "surface_from": or_null(one_of(("here", "registry"))),
            "policy": bundle_start()["policy"],
            "log": or_null(log),
            "entries": entries,
            "configs": array(config_action("created", "updated", "unchanged")),
        }
    )
    refused = exactly(
        {"result": one_of(["REJECT"]), "error": bundle_refusal(), "plan": array(ref("line")), "literal": TRUTH}
    )
    image = exactly(
        {
            "image": FULL_TEXT,
            "digest": SHA256,
            "platforms": mapping(SHA256),
            "api_surface": or_null(SHA256),
            "entries": entries,
        }
    )
    told = "What was installed, or the one reason why not, with every step that was taken; of an image, its digest."
    return output("install", {"oneOf": [accepted, refused, image]}, told, line=line)


# Policies


def policy_init() -> Schema:
    return output(
        "policy init",
        exactly({"file": FULL_TEXT, "action": one_of(("written", "changed")), "recommended": TRUTH, "digest": SRI}),
    )


def policy_check() -> Schema:
    waiver = exactly({"owner": FULL_TEXT, "reason": FULL_TEXT, "expires": {"type": "string", "format": "date"}})
    finding = exactly({"code": CODE, "message": TEXT}, {"waiver": waiver, "expired_waiver": waiver})
    entry = exactly({"key": KEY, "server": FULL_TEXT, "client": LOCK_CLIENT, "ok": TRUTH, "findings": array(finding)})
    policies = exactly({}, {"pinwarden": SRI, "toolpin": SRI}, minProperties=1)
    return output(
        "policy check",
        exactly({"ok": TRUTH, "environment": TEXT, "policies": policies, "entries": array(entry)}),
    )


def policy_digest() -> Schema:
    return output("policy digest", exactly({"file": FULL_TEXT, "digest": SRI}))


def policy_generate() -> Schema:
    seen = {
        "server": TEXT,
        "entity": one_of(ENTITIES),
        "item": TEXT,
        "digest": or_null(SHA256),
        "first_seen": FULL_TEXT,
        "last_seen": FULL_TEXT,
        "sessions": COUNT,
        "calls": COUNT,
        "last_called": or_null(FULL_TEXT),
    }
    left = exactly({**seen, "code": one_of(proposal.REASONS), "reason": FULL_TEXT})
    body = exactly({"policy": FULL_TEXT, "digest": SRI, "allow": array(exactly(seen)), "left_out": array(left)})
    return output("policy generate", body, "The policy as TOML, what it allows, and what was left out and why.")


# The gateway

ENTITIES = (*(kind.entity for kind in surface.KINDS), "server")


def review() -> Schema:
    """A change that waits, or that somebody decided about."""
    texts = ("server", "baseline", "item", "level", "code", "reason", "opened", "last_seen")
    return exactly(
        {
            "name": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            **dict.fromkeys(texts, TEXT),
            "entity": one_of(ENTITIES),
            "digest": or_null(SHA256),
            "expected": array(any_digest()),
            "state": one_of(reviews.STATES),
            **dict.fromkeys(("decided", "decided_by", "why"), TEXT),
        }
    )


def review_list() -> Schema:
    return output("review list", exactly({"reviews": array(ref("review"))}), review=review())


def review_show() -> Schema:
    body = exactly(
        {
            "review": ref("review"),
            "definition": ANYTHING,
            "approval_goes_to": or_null(FULL_TEXT),
            "changes": array(ref("change")),
        }
    )
    return output("review show", body, review=review(), change=surface_change())


def review_approve() -> Schema:
    written = exactly({"kind": one_of(("lock", "store")), "place": FULL_TEXT})
    decided = {"reviews": array(ref("review"), minItems=1), "by": FULL_TEXT, "why": TEXT}
    return output("review approve", exactly({**decided, "written": array(written, minItems=1)}), review=review())


def review_reject() -> Schema:
    body = exactly({"reviews": array(ref("review"), minItems=1), "by": FULL_TEXT, "why": TEXT})
    return output("review reject", body, review=review())


def audit_verify() -> Schema:
    broken = exactly({"number": COUNT, "code": one_of(audit_chain.MESSAGES), "message": FULL_TEXT})
    body = exactly(
        {
            "ok": TRUTH,
            "entries": COUNT,
            "head": exactly({"number": COUNT, "hash": SHA256}),
            "breaks": array(broken),
            "heads_checked": COUNT,
        }
    )
    return output("audit verify", body)


def audit_tail() -> Schema:
    texts = (name for name in field_names(gateway_event.Fact) if name not in ("kind", "expected"))
    fact = exactly(
        {"kind": one_of(gateway_event.KINDS)}, {**dict.fromkeys(texts, FULL_TEXT), "expected": array(TEXT, minItems=1)}
    )
    count: Schema = {"type": "integer", "minimum": 1}
    entry = exactly(
        {"number": count, "at": FULL_TEXT, "gateway": TEXT, "source": FULL_TEXT, "nth": count, "fact": ref("fact")}
    )
    return output("audit tail", exactly({"entries": array(entry)}), fact=fact)


def audit_export() -> Schema:
    head = exactly({"number": COUNT, "hash": SHA256})
    told = "Printed about an export into a file. The export itself is JSON Lines, each an entry as it is kept."
    return output("audit export", exactly({"file": FULL_TEXT, "entries": COUNT, "head": head}), told)


# The gateway over HTTP


def gateway() -> Schema:
    body = exactly(
        {
            "servers": mapping(FULL_TEXT),
            "merged": FULL_TEXT,
            "not_served": mapping(FULL_TEXT),
            "unapproved": array(FULL_TEXT),
        },
    )
    return output("gateway", body, "Printed when the gateway begins to serve: the addresses, and what is not served.")


def gateway_token() -> Schema:
    row = exactly(
        {
            "id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
            "client": FULL_TEXT,
            "servers": array(FULL_TEXT),
            "made_at": FULL_TEXT,
            "revoked_at": or_null(FULL_TEXT),
        }
    )
    told = "The tokens that were added, listed or revoked. A token itself is told only when it is added."
    return output("gateway token", exactly({"tokens": array(row)}, {"token": FULL_TEXT}), told)


# Errors


def error() -> Schema:
    told = exactly({"code": one_of(CODES), "message": TEXT, "hint": TEXT, "data": OBJECT})
    return document(
        "error:1",
        "An error of any command under --format json",
        "Printed on stdout in place of the command's own output; the exit code tells more.",
        exactly({"error": told}),
    )


# The registry


MOMENT: Schema = {"type": "string", "format": "date-time"}


def published_version() -> Schema:
    archive = {"cid": BLOB_CID, "size_bytes": COUNT, "media_type": TEXT, "content_hash": SHA256}
    surface = {"api_surface": or_null(SHA256), "cid": or_null(DOCUMENT_CID), "problem": or_null(TEXT)}
    return exactly(
        {
            "schema_version": one_of((registry_version.VERSION_SCHEMA,)),
            "tool": TEXT,
            "version": TEXT,
            "namespace": TEXT,
            "description": TEXT,
            "root_cid": DOCUMENT_CID,
            "descriptor_cid": DOCUMENT_CID,
            "archive": exactly(archive),
            "surface": exactly(surface),
            "published_at_utc": MOMENT,
            "published_by": DID,
            "log_index": COUNT,
            "yanked": or_null(TEXT),
            "attestations": array(DOCUMENT_CID),
        }
    )


def publish() -> Schema:
    return output("publish", exactly({"registry": TEXT, "channel": TEXT, "published": published_version()}))


def registry_export() -> Schema:
    return output("registry export", exactly({"folder": FULL_TEXT, "written": COUNT, "log_size": COUNT}))


def registry_namespace() -> Schema:
    each = exactly({"namespace": TEXT, "keys": mapping(one_of(publishers.ROLES))})
    return output("registry namespace", exactly({"namespaces": array(each)}))


def registry_token() -> Schema:
    texts = dict.fromkeys(("id", "namespace", "label"), TEXT)
    each = exactly({**texts, "created_at_utc": MOMENT, "expires_ms": COUNT, "revoked": TRUTH})
    return output("registry token", exactly({"tokens": array(each)}, {"token": TEXT}))


def registry_rotate_key() -> Schema:
    keys = {"old_key_id": DID, "new_key_id": DID}
    return output(
        "registry rotate-key", exactly({"log_id": TEXT, "seq": COUNT, **keys, "reason": TEXT, "pointers": COUNT})
    )


def registry_audit() -> Schema:
    texts = dict.fromkeys(("action", "namespace", "subject", "outcome"), TEXT)
    each = exactly({**texts, "at_ms": COUNT, "token": or_null(TEXT), "key_id": or_null(DID), "size": COUNT})
    return output("registry audit", exactly({"requests": array(each)}))


def registry_change(command: str) -> Callable[[], Schema]:
    return lambda: output(command, exactly({"registry": TEXT, "subject": TEXT, "changed": TRUTH}))


def registry_attest() -> Schema:
    return output("registry attest", exactly({"registry": TEXT, "sent": COUNT, "new": COUNT}))


def log_members() -> dict[str, Schema]:
    witness = exactly({"name": TEXT, "time": COUNT})
    ended = array(exactly({"key_id": DID, "seq": COUNT}))
    return {
        "log_id": TEXT,
        "key_id": DID,
        "ended_keys": ended,
        "size": COUNT,
        "root": BARE_SHA256,
        "witnesses": array(witness),
    }


def log_verify() -> Schema:
    return output("log verify", exactly({**log_members(), "issued_at_utc": MOMENT, "tools": COUNT}))


def log_monitor() -> Schema:
    cids = dict.fromkeys(("prev_root_cid", "new_root_cid", "descriptor_cid"), or_null(DOCUMENT_CID))
    texts = dict.fromkeys(("tool", "channel", "reason"), TEXT)
    event = exactly({"seq": COUNT, **texts, **cids, "issued_at_utc": MOMENT})
    return output("log monitor", exactly({**log_members(), "new": COUNT, "events": array(event)}))


_BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "init": init,
    "ci": ci,
    "lock": lock,
    "add": add,
    "remove": remove,
    "approve": approve,
    "verify": verify,
    "outdated": outdated,
    "update": update,
    "prove": prove,
    "fetch": fetch,
    "enforce": enforce,
    "sbom": sbom,
    "advisories": advisories_,
    "inspect": inspect,
    "scan": scan,
    "diff": diff,
    "digest": digest,
    "lock digest": lock_digest,
    "lock sign": lock_sign,
    "lock verify-signature": lock_verify_signature,
    "lock convert": lock_convert,
    "keygen": keygen,
    "bundle pack": bundle_pack,
    "bundle inspect": bundle_inspect,
    "bundle verify": bundle_verify,
    "bundle push": bundle_push,
    "bundle pull": bundle_pull,
    "sign": sign,
    "attest": attest,
    "bundle accept": bundle_accept,
    "publish": publish,
    "registry export": registry_export,
    "registry namespace": registry_namespace,
    "registry token": registry_token,
    "registry rotate-key": registry_rotate_key,
    "registry audit": registry_audit,
    "registry point": registry_change("registry point"),
    "registry yank": registry_change("registry yank"),
    "registry attest": registry_attest,
    "registry keys": registry_change("registry keys"),
    "log verify": log_verify,
    "log monitor": log_monitor,
    "trust add": trust_command("trust add"),
    "trust remove": trust_command("trust remove"),
    "trust list": trust_command("trust list"),
    "install": install,
    "policy init": policy_init,
    "policy check": policy_check,
    "policy digest": policy_digest,
    "policy generate": policy_generate,
    "review list": review_list,
    "review show": review_show,
    "review approve": review_approve,
    "review reject": review_reject,
    "gateway": gateway,
    "gateway token": gateway_token,
    "audit verify": audit_verify,
    "audit tail": audit_tail,
    "audit export": audit_export,
    "explain": explain,
    "list": list_,
    "doctor": doctor,
    "secrets audit": secrets_audit,
    **contract_schemas.BY_COMMAND,
}

OUTPUTS: dict[str, Callable[[], Schema]] = {
    **{command.replace(" ", "-"): schema for command, schema in _BY_COMMAND.items()},
    "error": error,
}
"""By the name of the file: that of the command, with dashes."""
