"""Output schemas of the commands about contracts of server authors."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.contract.dialect import DIALECTS
from pinwarden.contract.diff import SEVERITIES
from pinwarden.contract.entitlements.values import KINDS
from pinwarden.contract.extension import EVIDENCE
from tools.outputs.parts import DID, output, report_row
from tools.schema_words import (
    COUNT,
    FULL_TEXT,
    OBJECT,
    SHA256,
    TEXT,
    TRUTH,
    Schema,
    array,
    exactly,
    mapping,
    one_of,
    or_null,
    ref,
)

NAMES = array(TEXT)
_SEALED = {"bodyDigest": SHA256, "surfaceDigest": SHA256, "normalisedDigest": SHA256}
_IDENTITY = {"serverName": TEXT, "integrityDigest": SHA256}


def lock() -> Schema:
    body = {
        **_IDENTITY,
        **_SEALED,
        "path": FULL_TEXT,
        "written": TRUTH,
        "dialect": one_of(DIALECTS),
        "findings": array(ref("row")),
    }
    return output(
        "contract lock", exactly(body), "The locked tools, and code that contradicts its annotations.", row=report_row()
    )


def check() -> Schema:
    lists = ("added", "removed", "changed", "unchanged")
    prompts = tuple(f"{name}Prompts" for name in lists)
    result = exactly({"ok": TRUTH, "message": TEXT, **dict.fromkeys((*lists, *prompts), NAMES)}, {"other": NAMES})
    body = {
        "ok": TRUTH,
        "check": result,
        **_IDENTITY,
        "path": FULL_TEXT,
        "tokens": _tokens(),
        "findings": array(ref("row")),
        "notes": array(TEXT),
    }
    return output(
        "contract check",
        exactly(body, _SEALED),
        "Whether the server matches its contract: MCP Fusion's result, all changes, and the token costs.",
        row=report_row(),
    )


def _tokens() -> Schema:
    return exactly(
        {
            "total": COUNT,
            "before": or_null(COUNT),
            "countedBy": FULL_TEXT,
            "instructions": COUNT,
            "tools": mapping(COUNT),
        }
    )


def tokens() -> Schema:
    whole = _tokens()["properties"]
    return output(
        "contract tokens",
        exactly({**whole, "findings": array(ref("row"))}),
        "The tokens that each tool costs in every conversation, and the tools that exceed the budget.",
        row=report_row(),
    )


def explain() -> Schema:
    reach = exactly(
        {
            "kinds": array(one_of(KINDS)),
            "findings": array(exactly({"kind": one_of(KINDS), "where": FULL_TEXT})),
            "unknown": array(exactly({"reason": FULL_TEXT, "where": FULL_TEXT})),
        }
    )
    tool = exactly({"evidence": mapping(one_of(EVIDENCE)), "entitlements": or_null(ref("reach")), "details": OBJECT})
    body = {
        "evidence": one_of(EVIDENCE),
        "versions": mapping(TEXT),
        "tools": mapping(tool),
        "prompts": mapping(or_null(ref("reach"))),
        "resources": mapping(or_null(ref("reach"))),
        "startup": or_null(ref("reach")),
        "findings": array(ref("row")),
    }
    return output(
        "contract explain",
        exactly(body),
        "How each fact is known, and the entitlements of each tool's code.",
        row=report_row(),
        reach=reach,
    )


def verify_signature() -> Schema:
    return output(
        "contract verify-signature",
        exactly({"signers": array(DID, minItems=1), "serverName": TEXT}),
        "The keys that signed the contract.",
    )


def diff() -> Schema:
    side = exactly({**_IDENTITY, "surfaceDigest": or_null(SHA256), "normalisedDigest": or_null(SHA256)})
    change = exactly(
        {
            "entity": FULL_TEXT,
            "name": TEXT,
            "category": FULL_TEXT,
            "field": TEXT,
            "severity": one_of(SEVERITIES),
            "description": FULL_TEXT,
            "before": or_null(TEXT),
            "after": or_null(TEXT),
        }
    )
    body = {
        "before": side,
        "after": side,
        "changes": array(change),
        "maxSeverity": one_of(SEVERITIES),
        "counts": exactly(dict.fromkeys(SEVERITIES, COUNT)),
        "frameworkChanged": TRUTH,
        "sameMeaning": TRUTH,
        "digestsOnly": TRUTH,
        "tokens": or_null(_tokens()),
        "notes": array(FULL_TEXT),
    }
    return output("contract diff", exactly(body), "The changes with their severity, and the change of token costs.")


def verified_contract() -> Schema:
    """Return the schema of the output of ``pinwarden verify --contract``."""
    return exactly(
        {
            "contract": exactly({"serverName": TEXT, "surfaceDigest": SHA256}),
            "surfaceDigest": or_null(SHA256),
            "signers": array(DID),
            "matches": TRUTH,
            "findings": array(ref("row")),
        }
    )


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "contract lock": lock,
    "contract check": check,
    "contract diff": diff,
    "contract tokens": tokens,
    "contract explain": explain,
    "contract verify-signature": verify_signature,
}
