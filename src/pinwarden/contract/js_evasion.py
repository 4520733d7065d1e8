"""Signs that a JavaScript handler hides what it does, by the original's rules. They change no flag and no digest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from math import log2
from typing import Any

from pinwarden.contract.js_scanner import SPACES, TRIMMED, Lines, S
from pinwarden.core.numbers import ecmascript_fixed
from pinwarden.core.record import Record

_GLOBAL = rf"(?:globalThis|global|window|self){S}*\[{S}*"
_GLOBAL_HEAD = re.compile(_GLOBAL)
_BUFFER_HEAD = re.compile(rf"\bBuffer\.from{S}*\(", re.ASCII)
_BASE64 = tuple(f"{opening}base64{closing}" for opening in "'\"" for closing in "'\"")
_COMPUTED = rf"{S}*\({S}*(?!['\"])[^{SPACES}]"


def _computed_globals(source: str) -> Iterator[int]:
    """Where a bracket after a global object holds ``+`` or ``(`` before it closes; in time linear in the text."""
    place, close, last = 0, -1, -1
    while head := _GLOBAL_HEAD.search(source, place):
        if close < head.end():
            close = source.find("]", head.end())
            close = len(source) if close < 0 else close
            last = max(source.rfind("+", head.end(), close), source.rfind("(", head.end(), close))
        if last >= head.end():
            yield head.start()
        place = last + 1 if last >= head.end() else head.start() + 1


def _base64_buffers(source: str) -> Iterator[int]:
    """Where the last argument of ``Buffer.from`` is ``'base64'``; in time linear in the text."""
    place = 0
    while head := _BUFFER_HEAD.search(source, place):
        close = source.find(")", head.end())
        if close < 0:
            return
        end = close
        while end > head.end() and source[end - 1] in TRIMMED:
            end -= 1
        found = end - len(_BASE64[0]) >= head.end() and source.startswith(_BASE64, end - len(_BASE64[0]))
        if found:
            yield head.start()
        place = close + 1 if found else head.end()


def _places(pattern: str) -> Callable[[str], Iterator[int]]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda source: (found.start() for found in compiled.finditer(source))


_SIGNS = tuple(
    (kind, confidence, _places(finder) if isinstance(finder, str) else finder, told)
    for kind, confidence, finder, told in (
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
            _base64_buffers,
            'Buffer.from(…, "base64") can decode hidden payloads',
        ),
        (
            "indirect-access",
            "high",
            _computed_globals,
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
    for kind, confidence, places, told in _SIGNS:
        for place in places(source):
            line, context = lines.at(place)
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
