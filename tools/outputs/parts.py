"""Parts that the outputs of several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from pinwarden.cli.commands import COMMANDS
from pinwarden.clients.table import CLIENTS, FileScope
from pinwarden.core.report import ROW_SEVERITIES
from pinwarden.lock import entry as lock_shape
from pinwarden.lock.entry import TIERS_WORST_FIRST
from pinwarden.lock.lockfile import PROBLEMS
from pinwarden.surface import surface
from pinwarden.surface.drift.changes import CHANGE_KINDS, SEVERITIES
from tools.schema_words import (
    ANYTHING,
    CODE,
    COUNT,
    FULL_TEXT,
    SHA256,
    TEXT,
    TRUTH,
    Schema,
    array,
    document,
    exactly,
    one_of,
    or_null,
    ref,
)

DID: Schema = {"type": "string", "pattern": "^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$"}
LEVEL = one_of(ROW_SEVERITIES)
DOCUMENT_CID: Schema = {"type": "string", "pattern": "^bafyrei[a-z2-7]{52}$"}
BLOB_CID: Schema = {"type": "string", "pattern": "^bafkrei[a-z2-7]{52}$"}
CLIENT = one_of(CLIENTS)
LOCK_CLIENT = one_of(lock_shape.LOCK_CLIENTS)
SCOPE = one_of(get_args(FileScope))
LOCK_SCOPE = one_of(lock_shape.TOOLPIN_SCOPES)
TIER = one_of(TIERS_WORST_FIRST)
NAMED: Schema = exactly({"code": CODE, "message": TEXT})
POINTER: Schema = {"type": "string", "pattern": "^(?:/.*)?$"}
KEY: Schema = {"type": "string", "pattern": ":"}
"""The key of an entry in a lock: name and client."""
ENTITIES = (*(kind.entity for kind in surface.ITEM_KINDS), "server")
"""The values of ``entity`` in changes and findings."""


WITH_NEXT_COMMAND = ("status", "list", "init", "ci", "doctor", "prove", "update", "scan", "review list")
NEXT_COMMAND: Schema = {"type": "string", "description": "The command to run next, quoted for a shell."}


def output(command: str, body: Schema, description: str | None = None, **definitions: Schema) -> Schema:
    """Return the schema of a command's output. The default description is the command's line in ``--help``."""
    name = command.replace(" ", "-")
    description = description or f"{COMMANDS[command]}."
    if command in WITH_NEXT_COMMAND:
        body = _with_next_command(body)
    return document(f"{name}:1", f"pinwarden {command} --format json", description, body, **definitions)


def _with_next_command(body: Schema) -> Schema:
    if "oneOf" in body:
        return {"oneOf": [_with_next_command(alternative) for alternative in body["oneOf"]]}
    return {**body, "properties": {**body["properties"], "next_command": NEXT_COMMAND}}


def undone() -> Schema:
    """Return the schema of ``--undo``: what happens to each server, and the edits of the clients' files."""
    entry = exactly(
        {
            "server": FULL_TEXT,
            "client": CLIENT,
            "action": one_of(("restored", "edited", "lock only", "not undone")),
        },
        {"file": FULL_TEXT},
    )
    return exactly(
        {
            "undone": array(entry),
            "files": array(exactly({"file": FULL_TEXT, "diff": TEXT})),
            "locks": array(exactly({"file": FULL_TEXT, "removed": array(FULL_TEXT), "added": array(FULL_TEXT)})),
            "written": TRUTH,
            "findings": array(ref("row")),
        }
    )


def report_row() -> Schema:
    """Return the schema of a finding."""
    return exactly(
        {"code": CODE, "severity": LEVEL, "entity": FULL_TEXT, "name": TEXT, "path": TEXT, "message": TEXT},
        {"before": TEXT, "after": TEXT, "file": FULL_TEXT, "line": {"type": "integer", "minimum": 1}},
    )


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
        {"before": ANYTHING, "after": ANYTHING, "sentence": FULL_TEXT},
    )


def surface_change() -> Schema:
    return change(ENTITIES, CHANGE_KINDS)


def problem() -> Schema:
    """Return the schema of a problem in a lock."""
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
    item = exactly({"entity": one_of(ENTITIES), "name": TEXT, "path": TEXT})
    decision = exactly({"topic": TEXT, "severity": one_of(SEVERITIES), "changes": array(item)})
    return {
        "changes": array(ref("change")),
        "decisions": array(decision),
        "blocked_by_default": TRUTH,
        "counts": exactly(dict.fromkeys(SEVERITIES, COUNT)),
        "digests": exactly({"before": or_null(SHA256), "after": or_null(SHA256)}),
        "notes": array(TEXT),
    }


def config_action(*actions: str) -> Schema:
    return exactly({"client": CLIENT, "file": FULL_TEXT, "action": one_of(actions)})


def evidence_row() -> Schema:
    """Return the schema of one piece of evidence, which ToolPin calls verified, claimed or missing."""
    texts = ("source", "claim", "verificationMethod", "trustAnchor", "verifiedAt", "failureReason")
    return exactly(
        {"code": CODE, "status": one_of(("passed", "declared", "failed", "unavailable")), "message": TEXT},
        {
            **dict.fromkeys(("verifiedByToolPin", "trustedAnchor", "required"), TRUTH),
            **dict.fromkeys(texts, TEXT),
        },
    )
