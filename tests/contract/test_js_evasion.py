"""The two signs that are searched by hand, because the patterns take quadratic time on hostile text."""

from __future__ import annotations

import re
from random import Random

from pinwarden.contract.js_evasion import evasion_signs

_COMPUTED = re.compile(r"(?:globalThis|global|window|self)\s*\[\s*[^\]]*(?:\+|\()")
_BUFFER = re.compile(r"\bBuffer\.from\s*\([^)]*['\"]base64['\"]\s*\)")
_PIECES = (
    "self",
    "window",
    "globalThis",
    "[",
    "]",
    "(",
    ")",
    "+",
    " ",
    "\n",
    "a",
    "Buffer.from",
    "'base64'",
    ",",
    "'x'",
)


def lines_of(pattern: re.Pattern[str], source: str) -> list[int]:
    return [source.count("\n", 0, found.start()) + 1 for found in pattern.finditer(source)]


def test_what_is_found_by_hand_is_what_the_patterns_find() -> None:
    random = Random(7)
    for _ in range(3000):
        source = "".join(random.choice(_PIECES) for _ in range(random.randrange(1, 25)))
        signs = evasion_signs(source)
        computed = [sign.line for sign in signs if sign.description.startswith("Computed property access")]
        buffers = [sign.line for sign in signs if sign.description.startswith("Buffer.from")]
        assert (source, computed) == (source, lines_of(_COMPUTED, source))
        assert (source, buffers) == (source, lines_of(_BUFFER, source))


def test_text_made_to_keep_the_scanner_busy_is_read_once() -> None:
    """With the patterns themselves this takes minutes."""
    assert evasion_signs("self[" * 100_000) == ()
    assert evasion_signs("Buffer.from(" * 50_000) == ()


def test_dense_escapes_and_long_random_literals_are_signs() -> None:
    (dense,) = evasion_signs("\\x41\\x42")
    assert (dense.type, dense.confidence, dense.context) == (
        "encoding-density",
        "high",
        "2 escape sequences in 8 characters",
    )
    assert dense.description.startswith("High density of hex/unicode escapes (25.0%)")
    assert evasion_signs(f"'{'ab' * 50}'") == ()
