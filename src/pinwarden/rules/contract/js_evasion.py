"""Signs that a JavaScript handler hides what it does, by the original's rules. They change no flag and no digest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import log2
from typing import Any

from pinwarden.core.numbers import ecmascript_fixed
from pinwarden.core.record import Record
from pinwarden.rules.contract.js_scanner import SPACES, Lines, S

_GLOBAL = rf"(?:globalThis|global|window|self){S}*\[{S}*"
_COMPUTED = rf"{S}*\({S}*(?!['\"])[^{SPACES}]"
_SIGNS = tuple(
    (kind, confidence, re.compile(pattern, re.ASCII), told)
    for kind, confidence, pattern, told in (
        (
            "string-construction",
            "high",
            rf"\bString\.fromCharCode{S}*\(",
            "String.fromCharCode() can build API names at runtime to evade static detection",
        ),
        (
            "string-construction",
            "medium",
            rf"\bString\.raw{S}*`",
            "String.raw template can encode obfuscated identifiers",
        ),
        ("string-construction", "low", rf"\batob{S}*\(", "atob() decodes base64 — can hide module names or code"),
        (
            "string-construction",
            "low",
            rf"\bBuffer\.from{S}*\([^)]*['\"]base64['\"]{S}*\)",
            'Buffer.from(…, "base64") can decode hidden payloads',
        ),
        (
            "indirect-access",
            "high",
            _GLOBAL + r"[^\]]*(?:\+|\()",
            "Computed property access on global object with dynamic expression",
        ),
        (
            "indirect-access",
            "medium",
            _GLOBAL + r"['\"]",
            "Bracket-notation access on global object — bypasses dot-notation detection",
        ),
        (
            "indirect-access",
            "high",
            rf"\bprocess{S}*\[{S}*['\"]",
            "Bracket-notation access on process object — potential binding/dlopen bypass",
        ),
        (
            "computed-import",
            "high",
            rf"\brequire{_COMPUTED}",
            "Dynamic require() with non-literal argument — module name computed at runtime",
        ),
        (
            "computed-import",
            "high",
            rf"\bimport{_COMPUTED}",
            "Dynamic import() with non-literal argument — module name computed at runtime",
        ),
    )
)
_ESCAPE = re.compile(r"\\x[0-9a-fA-F]{2}|\\u(?:[0-9a-fA-F]{4}|\{[0-9a-fA-F]+\})")
_ESCAPED = r"\\[^\n\r\u2028\u2029]"
_LITERAL = re.compile("|".join(rf"{quote}(?:[^{quote}\\]|{_ESCAPED}){{40,}}{quote}" for quote in "'\"`"))
_DENSE = 0.15  # of all characters
_LONG, _RANDOM = 64, 5.0  # of a literal: UTF-16 units, and bits per unit
_SHOWN = 60


class EvasionSign(Record):
    """One sign of hiding."""

    type: str
    confidence: str
    description: str
    context: str
    line: int

    def to_json(self) -> dict[str, Any]:
        """The sign, ready for JSON."""
        return {
            "type": self.type,
            "confidence": self.confidence,
            "description": self.description,
            "context": self.context,
            "line": self.line,
        }


def evasion_signs(source: str) -> tuple[EvasionSign, ...]:
    """Every sign in a handler's text."""
    lines = Lines(source)
    return (*_patterns(source, lines), *_density(source), *_entropies(source, lines))


def _patterns(source: str, lines: Lines) -> Iterator[EvasionSign]:
    for kind, confidence, pattern, told in _SIGNS:
        for found in pattern.finditer(source):
            line, context = lines.at(found.start())
            yield EvasionSign(type=kind, confidence=confidence, description=told, context=context, line=line)


def _density(source: str) -> Iterator[EvasionSign]:
    count, length = len(_ESCAPE.findall(source)), _units(source)
    density = count / length if length else 0.0
    if density > _DENSE:
        share = ecmascript_fixed(density * 100, 1)
        yield EvasionSign(
            type="encoding-density",
            confidence="high",
            description=f"High density of hex/unicode escapes ({share}%) — likely obfuscated code",
            context=f"{count} escape sequences in {length} characters",
            line=1,
        )


def _entropies(source: str, lines: Lines) -> Iterator[EvasionSign]:
    for found in _LITERAL.finditer(source):
        literal = found[0][1:-1]
        length = _units(literal)
        bits = -sum(count / length * log2(count / length) for count in Counter(literal).values())
        if length >= _LONG and bits > _RANDOM:
            told = ecmascript_fixed(bits, 2)
            yield EvasionSign(
                type="entropy-anomaly",
                confidence="medium",
                description=f"High-entropy string literal (Shannon entropy: {told}) — possible encoded payload",
                context=_first(literal) + ("…" if length > _SHOWN else ""),
                line=lines.at(found.start())[0],
            )


def _units(text: str) -> int:
    """The length as JavaScript counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _first(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass")[: 2 * _SHOWN].decode("utf-16-le", "surrogatepass")
