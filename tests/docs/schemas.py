"""The published JSON Schemas, as validators.

jsonschema is imported when it is used: it compiles grammars for two seconds, in every worker that collects tests.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas"


def problems(name: str, value: Any, *, closed: bool = False) -> list[str]:
    """What a schema says is wrong with a value; ``closed`` also names members that the schema does not."""
    return [f"{error.json_path}: {error.message[:200]}" for error in _validator(name, closed).iter_errors(value)]


@cache
def _validator(name: str, closed: bool) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    schema = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return Draft202012Validator(
        _closed(schema) if closed else schema, format_checker=Draft202012Validator.FORMAT_CHECKER
    )


def _closed(schema: Any, *, is_schema: bool = True) -> Any:
    """The schema with every object closed whose members it names, so that what it forgot shows."""
    if isinstance(schema, list):
        return [_closed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _closed(value, is_schema=name not in ("properties", "$defs")) for name, value in schema.items()}
    # What a server sent, and how it was asked, is as it is: the lists of a surface only name the key of an item.
    if is_schema and len(schema.get("properties", ())) > 1:
        inner.setdefault("additionalProperties", False)
    return inner
