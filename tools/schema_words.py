"""Building blocks of the JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FULL_TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "number"}
CODE: Schema = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]*$"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TRUTH: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}
SHA256: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
BARE_SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
SRI: Schema = {"type": "string", "pattern": "^sha256-[A-Za-z0-9+/]{43}=$"}


def one_of(values: Iterable[str]) -> Schema:
    return {"enum": list(values)}


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(values: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": values, **more}


def members(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    known = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": known, **more}


def exactly(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    """Return the schema of an object with exactly these members."""
    return members(required, optional, additionalProperties=False, **more)


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def document(name: str, title: str, description: str, body: Schema, **definitions: Schema) -> Schema:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pinwarden:schema:{name}",
        "title": title,
        "description": description,
    }
    return {**head, **body, **({"$defs": definitions} if definitions else {})}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
