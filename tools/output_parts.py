"""What the schemas of several commands' outputs have in common."""

from __future__ import annotations

from pinwarden.cli.main import COMMANDS
from pinwarden.flows.report import LEVELS
from tools.schema_words import CODE, FULL_TEXT, TEXT, Schema, document, exactly, one_of

DID: Schema = {"type": "string", "pattern": "^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$"}
LEVEL = one_of(LEVELS)


def output(command: str, body: Schema, description: str | None = None, **definitions: Schema) -> Schema:
    """The schema of a command. The line that --help has for it is the description unless there is more to say."""
    name = command.replace(" ", "-")
    told = description or f"{COMMANDS[command][:1].upper()}{COMMANDS[command][1:]}."
    return document(f"{name}:1", f"pinwarden {command} --format json", told, body, **definitions)


def report_row() -> Schema:
    """One thing that a person should look at."""
    return exactly(
        {"code": CODE, "severity": LEVEL, "entity": FULL_TEXT, "name": TEXT, "path": TEXT, "message": TEXT},
        {"before": TEXT, "after": TEXT, "file": FULL_TEXT, "line": {"type": "integer", "minimum": 1}},
    )
