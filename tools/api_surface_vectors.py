"""Generate the test vectors of the API surface hash, ``docs/reference/api-surface-hash.vectors.json``.

This file has the cases, and Pinwarden's code computes the expected values. A test compares them with a second
implementation, ``tests/surface/api_surface_oracle.mjs``. With ``--check``, nothing is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import encode_json_file
from pinwarden.surface.interop import compute_api_surface_leaves, hash_leaves

REPOSITORY = Path(__file__).resolve().parents[1]
VECTORS = REPOSITORY / "tests" / "vectors"
TARGET = REPOSITORY / "docs" / "reference" / "api-surface-hash.vectors.json"


def schema_of(text: str) -> str:
    """Return the JSON text of a list with one tool ``t`` that has this input schema."""
    return '[{"name":"t","inputSchema":' + text + "}]"


def every_place(required: str) -> str:
    """Return the JSON text of one tool with this ``required`` in every keyword that can contain a schema."""
    inner = f'{{"required":{required}}}'
    one = "additionalItems additionalProperties contains contentSchema else if items not propertyNames then"
    several = "allOf anyOf oneOf prefixItems"
    named = "$defs definitions dependencies dependentSchemas patternProperties properties"
    members = [f'"{word}":{inner}' for word in f"{one} unevaluatedItems unevaluatedProperties".split()]
    members += [f'"{word}":[true,{inner}]' for word in several.split()]
    members += [f'"{word}":{{"n":{inner}}}' for word in named.split()]
    return schema_of("{" + ",".join(members) + "}")


TWO = r'[{"name":"b","description":"B","inputSchema":{"type":"object"}},{"name":"a","inputSchema":{"type":"object"}}]'
OBJECT = schema_of('{"type":"object"}')
REQUIRED = schema_of('{"type":"object","required":["a","b"]}')

# id, note, text of the tools, and the relation to an earlier case
CASES: list[tuple[str, str, str, dict[str, str]]] = [
    ("empty", "no tools at all", "[]", {}),
    ("one", "one tool with a schema only", OBJECT, {"differs_from": "empty"}),
    ("two", "two tools, one without description", TWO, {}),
    (
        "tool-order",
        "the same two the other way round",
        '[{"name":"a","inputSchema":{"type":"object"}},{"name":"b","description":"B","inputSchema":{"type":"object"}}]',
        {"same_as": "two"},
    ),
    (
        "member-order-and-space",
        "members in another order, white space, escapes in ASCII text",
        '[ {"inputSchema":{ "type" : "object"} , "n\\u0061me":"a"},\n\t'
        '{"inputSchema":{"type":"\\u006fbject"},"description":"B","name":"\\u0062"} ]',
        {"same_as": "two"},
    ),
    (
        "uncovered",
        "title, annotations, outputSchema, icons, _meta and unknown members do not count",
        '[{"name":"t","title":"T","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},'
        '"outputSchema":{"type":"object"},"icons":[],"_meta":{"a":1},"execution":{},"x":null}]',
        {"same_as": "one"},
    ),
    ("no-schema", "a tool with a name and nothing else", '[{"name":"t"}]', {"differs_from": "one"}),
    ("schema-null", "null is not absent", '[{"name":"t","inputSchema":null}]', {"differs_from": "no-schema"}),
    ("schema-empty", "empty is not absent", '[{"name":"t","inputSchema":{}}]', {"differs_from": "no-schema"}),
    ("schema-true", "a schema can be a boolean", '[{"name":"t","inputSchema":true}]', {"differs_from": "schema-empty"}),
    ("description-null", "null is not absent", '[{"name":"t","description":null}]', {"differs_from": "no-schema"}),
    ("description-empty", "empty is not null", '[{"name":"t","description":""}]', {"differs_from": "description-null"}),
    (
        "description-object",
        "whatever stands there is kept",
        '[{"name":"t","description":{"required":["b","a"]}}]',
        {"differs_from": "description-empty"},
    ),
    (
        "description-space",
        "a space at the end counts",
        '[{"name":"t","description":" "}]',
        {"differs_from": "description-empty"},
    ),
    (
        "zero-width",
        "an invisible character counts",
        '[{"name":"t","description":"\\u200b"}]',
        {"differs_from": "description-empty"},
    ),
    ("nfc", "one code point", '[{"name":"t","description":"\\u00e9"}]', {}),
    ("nfd", "the same letter in two code points", '[{"name":"t","description":"e\\u0301"}]', {"differs_from": "nfc"}),
    ("utf8", "the same as nfc, not escaped", '[{"name":"t","description":"é"}]', {"same_as": "nfc"}),
    (
        "controls",
        "every kind of escape that JCS writes, and DEL and U+2028, which it does not escape",
        r'[{"name":"t","description":"\u0000\b\t\n\u000b\f\r\u001f\"\\\/\u007f\u2028"}]',
        {},
    ),
    (
        "name-order-utf16",
        "U+1F600 sorts before U+FB01 in UTF-16, after it by code point; B before a",
        '[{"name":"\\ufb01"},{"name":"\\ud83d\\ude00"},{"name":"a"},{"name":"B"},{"name":"a\\u0301"},{"name":"10"},{"name":"9"}]',
        {},
    ),
    (
        "names-alike",
        "names that look alike or are canonically equivalent are different names",
        '[{"name":"\\u00e9"},{"name":"e\\u0301"},{"name":"a"},{"name":"\\u0430"},{"name":"a "},{"name":"A"}]',
        {},
    ),
    (
        "property-order-utf16",
        "member names are sorted by UTF-16, also those that look like array indexes; __proto__ is a name",
        schema_of('{"properties":{"\\ufb01":{},"\\ud83d\\ude00":{},"10":{},"9":{},"__proto__":{},"":{}}}'),
        {},
    ),
    ("required", "two required parameters", REQUIRED, {"differs_from": "one"}),
    (
        "required-order",
        "their order does not count",
        schema_of('{"type":"object","required":["b","a"]}'),
        {"same_as": "required"},
    ),
    (
        "required-less",
        "one of them is now optional",
        schema_of('{"type":"object","required":["a"]}'),
        {"differs_from": "required"},
    ),
    (
        "required-twice",
        "a repeated name is kept",
        schema_of('{"type":"object","required":["b","a","b"]}'),
        {"differs_from": "required"},
    ),
    ("required-utf16", "sorted by UTF-16", schema_of('{"required":["\\ufb01","\\ud83d\\ude00"]}'), {}),
    (
        "required-utf16-order",
        "the other way round",
        schema_of('{"required":["\\ud83d\\ude00","\\ufb01"]}'),
        {"same_as": "required-utf16"},
    ),
    ("required-boolean", "draft 3 spelling, kept", schema_of('{"properties":{"a":{"required":true}}}'), {}),
    ("required-mixed", "not only strings: kept in order", schema_of('{"required":["b",1,"a"]}'), {}),
    (
        "required-mixed-order",
        "so the order counts",
        schema_of('{"required":["a",1,"b"]}'),
        {"differs_from": "required-mixed"},
    ),
    (
        "property-named-required",
        "a property may be called required or type; inside it, keywords count again",
        schema_of('{"properties":{"required":{"type":["string","null"]},"type":{"required":["b","a"]}}}'),
        {},
    ),
    (
        "property-named-required-order",
        "order does not count there",
        schema_of('{"properties":{"required":{"type":["null","string"]},"type":{"required":["a","b"]}}}'),
        {"same_as": "property-named-required"},
    ),
    (
        "property-no-schema",
        "a property whose value is no schema is data",
        schema_of('{"properties":{"required":["b","a"]}}'),
        {},
    ),
    (
        "property-no-schema-order",
        "so the order counts",
        schema_of('{"properties":{"required":["a","b"]}}'),
        {"differs_from": "property-no-schema"},
    ),
    ("type-array", "a type array", schema_of('{"properties":{"a":{"type":["string","null"]}}}'), {}),
    (
        "type-array-order",
        "its order does not count",
        schema_of('{"properties":{"a":{"type":["null","string"]}}}'),
        {"same_as": "type-array"},
    ),
    ("type-array-one", "an array with one type", schema_of('{"type":["object"]}'), {"differs_from": "one"}),
    ("enum", "an enum", schema_of('{"properties":{"a":{"enum":["b","a"]}}}'), {}),
    ("enum-order", "its order counts", schema_of('{"properties":{"a":{"enum":["a","b"]}}}'), {"differs_from": "enum"}),
    (
        "data",
        "inside enum, const, default and examples nothing is a keyword",
        schema_of(
            '{"enum":[{"required":["b","a"]}],"const":{"type":["b","a"]},"default":{"properties":{"p":{"required":["b","a"]}}},'
            '"examples":[{"type":["b","a"]}]}'
        ),
        {},
    ),
    (
        "data-default-order",
        "so an order in default counts",
        schema_of(
            '{"enum":[{"required":["b","a"]}],"const":{"type":["b","a"]},"default":{"properties":{"p":{"required":["a","b"]}}},'
            '"examples":[{"type":["b","a"]}]}'
        ),
        {"differs_from": "data"},
    ),
    ("unknown-keyword", "an unknown keyword is data", schema_of('{"x-schema":{"required":["b","a"]}}'), {}),
    (
        "unknown-keyword-order",
        "so the order counts",
        schema_of('{"x-schema":{"required":["a","b"]}}'),
        {"differs_from": "unknown-keyword"},
    ),
    ("dependent-required", "not on the list", schema_of('{"dependentRequired":{"p":["b","a"]}}'), {}),
    (
        "dependent-required-order",
        "so the order counts",
        schema_of('{"dependentRequired":{"p":["a","b"]}}'),
        {"differs_from": "dependent-required"},
    ),
    ("every-place", "required inside every place where a schema can stand", every_place('["b","a"]'), {}),
    (
        "every-place-order",
        "its order counts in none of them",
        every_place('["a","b"]'),
        {"same_as": "every-place"},
    ),
    (
        "nested-definitions",
        "definitions inside definitions, with references that are not followed",
        schema_of(
            '{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","required":["y","x"],"$defs":{"b":{"items":[{"type":'
            '["null","string"]}]}},"properties":{"x":{"$ref":"#/$defs/a"},"y":{"$ref":"https://schemas.example/y.json"}}}}}'
        ),
        {},
    ),
    (
        "nested-definitions-order",
        "order of sets does not count there",
        schema_of(
            '{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","required":["x","y"],"$defs":{"b":{"items":[{"type":'
            '["string","null"]}]}},"properties":{"x":{"$ref":"#/$defs/a"},"y":{"$ref":"https://schemas.example/y.json"}}}}}'
        ),
        {"same_as": "nested-definitions"},
    ),
    (
        "any-of",
        "the order of alternatives counts",
        schema_of('{"anyOf":[{"type":"string"},{"type":"null"}]}'),
        {},
    ),
    (
        "any-of-order",
        "the other way round",
        schema_of('{"anyOf":[{"type":"null"},{"type":"string"}]}'),
        {"differs_from": "any-of"},
    ),
    ("number", "an integer", schema_of('{"minimum":1}'), {}),
    ("number-fraction", "the same number", schema_of('{"minimum":1.0}'), {"same_as": "number"}),
    ("number-exponent", "the same number", schema_of('{"minimum":10E-1}'), {"same_as": "number"}),
    ("number-string", "not a number", schema_of('{"minimum":"1"}'), {"differs_from": "number"}),
    (
        "number-forms",
        "how ECMAScript prints",
        schema_of(
            '{"enum":[-0,-0.0,1e21,1E20,1e-6,1e-7,0.1,5e-324,1.7976931348623157e308,123456789012345680000,333333333.33333329]}'
        ),
        {},
    ),
    ("integer-safe", "the largest safe integer", schema_of('{"maximum":9007199254740991}'), {}),
    (
        "integer-power",
        "beyond it, but a double holds it and prints the same digits",
        schema_of('{"maximum":9007199254740992}'),
        {"differs_from": "integer-safe"},
    ),
    ("integer-lost", "a double cannot hold this one", schema_of('{"maximum":9007199254740993}'), {}),
    ("integer-huge", "400 digits", schema_of('{"maximum":' + "9" * 400 + "}"), {}),
    (
        "integer-lost-uncovered",
        "where it is not covered it does not matter",
        '[{"name":"t","inputSchema":{"type":"object"},"_meta":{"n":9007199254740993}}]',
        {"same_as": "one"},
    ),
    ("number-overflow", "too large for a double", schema_of('{"maximum":1e400}'), {}),
    ("duplicate-name", "two tools of one name", '[{"name":"t"},{"name":"u"},{"name":"\\u0074"}]', {}),
    ("duplicate-equal", "even if they are equal", '[{"name":"t"},{"name":"t"}]', {}),
    ("duplicate-member", "a member twice", '[{"name":"t","description":"a","description":"a"}]', {}),
    (
        "duplicate-member-uncovered",
        "also where the hash does not look",
        '[{"name":"t","_meta":{"a":1,"\\u0061":1}}]',
        {},
    ),
    ("lone-surrogate", "not Unicode", '[{"name":"t","description":"\\ud800"}]', {}),
    ("no-name", "a tool without name", '[{"description":"d"}]', {}),
    ("name-empty", "an empty name", '[{"name":""}]', {}),
    ("name-number", "a name that is not a string", '[{"name":1}]', {}),
    ("not-an-object", "a tool that is not an object", '["t"]', {}),
    ("no-json", "not JSON", '[{"name":"t"},]', {}),
    (
        "errors-name-first",
        "three faults at once: the missing name is reported",
        '[{"name":"t","inputSchema":{"maximum":9007199254740993}},{"name":"t"},{}]',
        {},
    ),
    (
        "errors-duplicate-next",
        "two faults at once: the duplicate is reported",
        '[{"name":"t","inputSchema":{"maximum":9007199254740993}},{"name":"t"}]',
        {},
    ),
    (
        "errors-text-before-all",
        "a member twice is a fault of the text, found before any tool is looked at",
        '[{"name":"t"},{"name":"t"},{},{"a":1,"a":1}]',
        {},
    ),
]


def expected(tools: bytes, member: str | None = None) -> dict[str, Any]:
    try:
        value = strict_json.parse_json(tools)
        leaves = compute_api_surface_leaves(value if member is None else value[member])
    except PinwardenError as err:
        return {"error": err.code}
    return {"hash": str(hash_leaves(leaves)), "leaves": {name: str(leaf) for name, leaf in leaves.items()}}


def vectors() -> bytes:
    listings = sorted((VECTORS / "real-servers").glob("*.json"))
    return encode_json_file(
        {
            "format": "pinwarden-api-surface-vectors/1",
            "cases": [
                {"id": name, "note": note, "tools_json": text, **relation, **expected(text.encode())}
                for name, note, text, relation in CASES
            ],
            "listings": [
                {"file": f"real-servers/{path.name}", "hash": expected(path.read_bytes(), "tools")["hash"]}
                for path in listings
            ],
        }
    )


def main(arguments: list[str]) -> int:
    if TARGET.is_file() and TARGET.read_bytes() == vectors():
        return 0
    if "--check" in arguments:
        print(f"stale: {TARGET.name}; run: python tools/api_surface_vectors.py", file=sys.stderr)
        return 1
    TARGET.write_bytes(vectors())
    print(f"wrote {TARGET.relative_to(REPOSITORY)}: {len(json.loads(TARGET.read_bytes())['cases'])} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
