"""Output schemas of the commands that install bundles and manage trust."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.bundle.acceptance import FAILED, NOT_REACHED, PASSED
from pinwarden.bundle.trust import ALL_ROLES
from tools.outputs.bundles import bundle_provenance, bundle_refusal, bundle_start
from tools.outputs.parts import DID, KEY, config_action, output, report_row, undone
from tools.schema_words import (
    COUNT,
    FULL_TEXT,
    SHA256,
    SRI,
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


def trust_command(command: str) -> Callable[[], Schema]:
    """Return a function that builds the schema of a trust command's output: the whole trust store."""
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
    skills = exactly(
        {
            "result": one_of(["ACCEPT"]),
            "provenance": bundle_provenance(),
            "plan": array(ref("line")),
            "literal": TRUTH,
            "version": TEXT,
            "registry": FULL_TEXT,
            "content_hash": SHA256,
            "policy": bundle_start()["policy"],
            "log": or_null(log),
            "skills": array(exactly({"name": TEXT, "digest": SHA256}), minItems=1),
            "places": array(FULL_TEXT, minItems=1),
            "written": array(FULL_TEXT),
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
    description = "The installed bundle or image, or the reason of the refusal, with the result of every step."
    return output(
        "install", {"oneOf": [accepted, skills, refused, image, undone()]}, description, line=line, row=report_row()
    )


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "trust add": trust_command("trust add"),
    "trust remove": trust_command("trust remove"),
    "trust list": trust_command("trust list"),
    "install": install,
}
