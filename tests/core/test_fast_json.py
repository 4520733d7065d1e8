"""What the quick reader lets pass, the strict reader reads as the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.fast_json import is_strict, loads


def skimmed(text: bytes) -> tuple[bool, Any]:
    """Whether the quick reader lets a text pass, and as what."""
    try:
        value = loads(text)
    except ValueError:
        return False, None
    return is_strict(text, value), value


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{ "a" : 1 , "a" : 1 }',
        b'{"a":{"b":[{"c":1,"c":2}]}}',
        rb'{"a":1,"\u0061":2}',
        rb'{"a":1,"a":"\u003a"}',
        rb'{"a":1,"a":1,"b":"\u003A\u003A"}',
        rb'{"a":":::","a":"\\\":"}',
        b"[1e999]",
        b"[-1e400]",
        b"[0." + b"1" * 1001 + b"]",
        b"[NaN]",
        b"[Infinity]",
        rb'["\ud800"]',
        b'["\xff"]',
        b'["\x01"]',
        b"\xef\xbb\xbf[]",
        b"[" * 202 + b"]" * 202,
        b"[1]\n[2]",
        b'["a\nb"]',
        b"[1,]",
        b"[01]",
    ],
)
def test_ambiguous_text_does_not_pass(text: bytes) -> None:
    assert not skimmed(text)[0]
    with pytest.raises(PinwardenError):
        strict_json.parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"b:c","d":{"e":":"}}',
        b'{"a": "b: c", "d": {"e": ":"}}\n',
        rb'{"a":"\u00e9 \\u003 \/","b":1.50}'.replace(rb"\\u003", b""),
        b"[" * 199 + b"]" * 199,
        b'{"a":1E2,"b":-0,"c":0.10}',
        b"{}",
    ],
)
def test_unambiguous_text_passes_in_any_spelling(text: bytes) -> None:
    assert skimmed(text) == (True, strict_json.parse_json(text))


def test_text_that_passes_is_parsed_to_the_same_value_by_the_strict_parser() -> None:
    chance = random.Random(7)
    seeds = [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x: y"}}}',
        b'{"jsonrpc": "2.0", "id": "7", "result": {"content": [{"type": "text", "text": "hi"}]}}',
        rb'{"a":[1.5,-2e-7,"\u00e9\n\u003a",true,null,{"b":{}}],"c":"\":\\"}',
    ]
    parts = [b"", b"0", b"e", b'"', b'"a":1,', b'"id":7,', b"\\", b"{}", b"[", b"1", b"-", b"\0", b"\xc3\xa9", b" "]
    passed = 0
    for _ in range(20_000):
        text = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(3)):
            place = chance.randrange(len(text))
            text[place : place + chance.randrange(3)] = chance.choice(parts)
        passes, value = skimmed(bytes(text))
        if passes:
            passed += 1
            assert strict_json.parse_json(bytes(text)) == value
            assert json.loads(text) == value
    assert passed > 1000
