"""JSON Schemas for the ``--format json`` output of each command. A schema lists all members of every object."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.core.errors import CODES
from tools.outputs import (
    artifacts,
    bundles,
    census,
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
        "Printed on stdout instead of the command's own output if the command fails.",
        exactly({"error": error}),
    )


_GROUPS = (
    surfaces,
    locks,
    artifacts,
    checks,
    signing,
    bundles,
    installing,
    policies,
    gateway,
    registry,
    contracts,
    census,
)
_BY_COMMAND: dict[str, Callable[[], Schema]] = {
    command: schema for group in _GROUPS for command, schema in group.BY_COMMAND.items()
}

OUTPUTS: dict[str, Callable[[], Schema]] = {
    **{command.replace(" ", "-"): schema for command, schema in _BY_COMMAND.items()},
    "error": error,
}
"""The function that builds each schema, by file name: the name of the command, with dashes for spaces."""
