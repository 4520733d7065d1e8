"""JSON Schemas (draft 2020-12) of the documents that Pinwarden reads and the JSON that it prints.

``tools/reference_docs.py`` writes them to ``docs/reference/schemas``. Lists of allowed values are taken from the code.
Schemas for documents allow unknown members, which Pinwarden preserves. Schemas for printed JSON do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pinwarden.lock import policy
from pinwarden.lock import signature as lock_signature
from pinwarden.lock.entry import TIERS_WORST_FIRST
from tools.bundle_schemas import (
    attestation_schema,
    contract_schema,
    descriptor_schema,
    manifest_schema,
    pointer_schema,
)
from tools.document_schemas import lock_body, lock_definitions, surface_body
from tools.output_schemas import OUTPUTS
from tools.schema_words import (
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
    ref,
)


def surface_schema() -> Schema:
    return document(
        "surface:1",
        "Surface document",
        "Everything a server sends to the model, as sent, with a digest of each item (pinwarden inspect --output).",
        surface_body(),
    )


def lock_schema() -> Schema:
    return document(
        "mcp-lock:2",
        "mcp-lock.json, lockfileVersion 2",
        "ToolPin's lockfile, and the two members that Pinwarden adds to it: a record in each entry and a seal.",
        lock_body(),
        **lock_definitions(),
    )


def policy_schema() -> Schema:
    patterns = array(ref("pattern"), minItems=1)
    choice = members({}, {"allow": patterns, "deny": patterns}, minProperties=1, additionalProperties=False)
    tier = one_of(tier for tier in TIERS_WORST_FIRST if tier != "blocked")
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
    texts = array(TEXT, minItems=1)
    sandbox = members(
        {"server": ref("pattern")}, {"network": TRUTH, "read": texts, "write": texts}, additionalProperties=False
    )
    certificates: Schema = {
        "type": "string",
        "maxLength": policy.MAX_ANCHOR_LENGTH,
        "pattern": re.escape(policy._CERTIFICATE),
    }
    mcpb = members(
        {"server": ref("pattern")},
        {"anchors": array(certificates, minItems=1), "name": ref("said")},
        additionalProperties=False,
        anyOf=[{"required": ["anchors"]}, {"required": ["name"]}],
    )
    rules: dict[str, Schema] = {
        **dict.fromkeys(policy._LIST_TABLES, choice),
        "minimum-tier": {
            "anyOf": [tier, {**mapping(tier), "required": ["default"]}, {"type": "object", "maxProperties": 0}]
        },
        "minimum-score": _whole(100),
        "evidence": members({}, {"require": evidence, "proved": TRUTH}, minProperties=1, additionalProperties=False),
        "release-age": age,
        "sandbox": array(sandbox),
        "mcpb": array(mcpb),
        "skills": {"const": "locked"},
        "instructions": {"const": "locked"},
        "gateway": {"type": "object"},
        "require": members({}, dict.fromkeys(policy._REQUIRE_KEYS, TRUTH), minProperties=1, additionalProperties=False),
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


def signature_schema() -> Schema:
    sha256 = {"lockfileDigest": SRI, "publicKeyFingerprint": SRI}
    signature: Schema = {"type": "string", "pattern": "^[A-Za-z0-9+/]{85}[AQgw]==$"}

    head: dict[str, Schema] = {
        "schema": {"const": lock_signature.ENVELOPE_SCHEMA},
        "version": {"const": lock_signature.ENVELOPE_VERSION},
        "algorithm": {"const": "ed25519"},
    }
    toolpin = exactly({**head, **sha256, "signedAt": TEXT, "signature": signature}, {"policyDigest": SRI})
    dsse = exactly(
        {
            "payloadType": {"const": lock_signature.STATEMENT_TYPE},
            "payload": {
                "type": "string",
                "pattern": "^(?:[A-Za-z0-9+/]{4}){10,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            },
            "signatures": array(exactly({"keyid": TEXT, "sig": signature}), minItems=1),
        }
    )
    return document(
        "lock-signature:1",
        "A detached signature of a lockfile (mcp-lock.sig)",
        "ToolPin's envelope, or DSSE over the bytes of the whole file.",
        {"oneOf": [ref("toolpin"), ref("dsse")]},
        toolpin=toolpin,
        dsse=dsse,
    )


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "surface": surface_schema,
    "mcp-lock": lock_schema,
    "lock-signature": signature_schema,
    "policy": policy_schema,
    "contract": contract_schema,
    "bundle-descriptor": descriptor_schema,
    "bundle-manifest": manifest_schema,
    "bundle-attestation": attestation_schema,
    "registry-pointer": pointer_schema,
    **OUTPUTS,
}
"""By the name of the file under docs/reference/schemas, without ``.schema.json``."""
