"""JSON Schemas of the output of each command with --format json. A schema names all members of every object."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.core.errors import CODES
from tools.outputs import (
    artifacts,
    bundles,
    checks,
    contracts,
    gateway,
    installing,
    locks,
    policies,
    registry,
    signing,
    surfaces,
)
from tools.schema_words import OBJECT, TEXT, Schema, document, exactly, one_of


def error() -> Schema:
    error = exactly({"code": one_of(CODES), "message": TEXT, "hint": TEXT, "data": OBJECT})
    return document(
        "error:1",
        "An error of any command under --format json",
        "Printed on stdout in place of the command's own output; the exit code tells more.",
        exactly({"error": error}),
    )


_GROUPS = (surfaces, locks, artifacts, checks, signing, bundles, installing, policies, gateway, registry, contracts)
_BY_COMMAND: dict[str, Callable[[], Schema]] = {
    command: schema for group in _GROUPS for command, schema in group.BY_COMMAND.items()
}

OUTPUTS: dict[str, Callable[[], Schema]] = {
    **{command.replace(" ", "-"): schema for command, schema in _BY_COMMAND.items()},
    "error": error,
}
"""By the name of the file: that of the command, with dashes."""
