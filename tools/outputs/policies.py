"""Output schemas of the commands about policies."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.lock import policy_proposal as proposal
from pinwarden.lock.call_rules import HINT_NAMES
from tools.outputs.parts import ENTITIES, KEY, LOCK_CLIENT, output
from tools.schema_words import CODE, COUNT, FULL_TEXT, SHA256, SRI, TEXT, TRUTH, Schema, array, exactly, one_of, or_null


def config_check() -> Schema:
    problem = exactly({"table": FULL_TEXT, "code": CODE, "message": TEXT})
    return output("config check", exactly({"file": FULL_TEXT, "tables": array(FULL_TEXT), "problems": array(problem)}))


def config_explain() -> Schema:
    setting = exactly({"key": FULL_TEXT, "value": TEXT, "from": one_of(("file", "default"))})
    return output("config explain", exactly({"file": FULL_TEXT, "settings": array(setting)}))


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
    left = exactly({**seen, "code": one_of(proposal.OMISSION_REASONS), "reason": FULL_TEXT})
    body = exactly({"policy": FULL_TEXT, "digest": SRI, "allow": array(exactly(seen)), "left_out": array(left)})
    return output("policy generate", body, "The policy as TOML, the values it allows, and omitted values with reasons.")


def policy_explain() -> Schema:
    limit = exactly({"calls": COUNT, "per": one_of(("second", "minute", "hour", "day")), "rule": FULL_TEXT})
    decision = exactly(
        {
            "server": TEXT,
            **dict.fromkeys(("approved", *HINT_NAMES, "allowed"), TRUTH),
            "rule": or_null(FULL_TEXT),
            "limits": array(limit),
        }
    )
    body = {"client": TEXT, "teams": array(TEXT), "tool": TEXT, "decisions": array(decision, minItems=1)}
    return output("policy explain", exactly(body))


def policy_what_if() -> Schema:
    action = one_of(("allow", "audit", "warn", "block"))
    outcome = exactly({"action": action, "refused": COUNT, "code": or_null(TEXT), "reason": or_null(FULL_TEXT)})
    named = dict.fromkeys(("server", "client", "entity", "item"), TEXT)
    difference = exactly({**named, "calls": COUNT, "before": outcome, "after": outcome})
    body = {
        "days": COUNT,
        "calls": COUNT,
        "complete": TRUTH,
        "newly_refused": COUNT,
        "differences": array(difference),
    }
    return output("policy what-if", exactly(body), "Items whose verdict would change, with their recorded calls.")


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "config check": config_check,
    "config explain": config_explain,
    "policy init": policy_init,
    "policy check": policy_check,
    "policy digest": policy_digest,
    "policy generate": policy_generate,
    "policy explain": policy_explain,
    "policy what-if": policy_what_if,
}
