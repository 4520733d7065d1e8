"""What a JavaScript handler reaches, by the original's rules: patterns over its text, comments and strings included.

Kept as they are, because the lockfile's digests depend on every one of them. They find ``/a/.exec(s)`` and miss an
alias; nothing new is judged by them. Python handlers are analysed as programs (``contract/entitlements``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pinwarden.contract.canonical import utf16_sorted
from pinwarden.contract.contract import EntitlementContract
from pinwarden.contract.dialect import Dialect
from pinwarden.core.record import Record

# JavaScript's idea of white space; \w and \b are ASCII there, so the patterns are compiled with re.ASCII.
SPACES = "\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
TRIMMED = "\t\n\x0b\x0c\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
S = f"[{SPACES}]"
_IMPORT = rf"(?:require{S}*\({S}*['\"]|import{S}*\({S}*['\"]|from{S}+['\"])"


class Match(Record):
    """One place where a pattern was found."""

    category: str
    identifier: str
    line: int
    context: str
    """The line, trimmed."""

    def to_json(self) -> dict[str, Any]:
        """The match, ready for JSON."""
        return {
            "category": self.category,
            "identifier": self.identifier,
            "line": self.line,
            "context": self.context,
        }


def _module(name: str) -> str:
    return rf"{_IMPORT}{name}['\"]"


def _builtin(name: str) -> str:
    return _module(f"(?:node:)?{name}")


def _call(name: str) -> str:
    return rf"\b{name}{S}*\("


def _made(name: str) -> str:
    return rf"\bnew{S}+{name}{S}*\("


PATTERNS: Mapping[str, Mapping[str, str]] = {
    "filesystem": {
        "fs": _builtin("fs(?:/promises)?"),
        "fs.*": _call(r"fs\.\w+"),
        **{
            name: _call(f"{name}(?:Sync)?")
            for name in ("readFile", "writeFile", "appendFile", "unlink", "rmdir", "mkdir", "rename", "copyFile")
        },
        "createReadStream": _call("createReadStream"),
        "createWriteStream": _call("createWriteStream"),
    },
    "network": {
        "fetch": _call("fetch"),
        "http": _builtin("https?"),
        "axios": _module("axios"),
        "got": _module("got"),
        "node-fetch": _module("node-fetch"),
        "XMLHttpRequest": _made("XMLHttpRequest"),
        "WebSocket": _made("WebSocket"),
        "net": _builtin("net"),
        "dgram": _builtin("dgram"),
        "undici": _module("undici"),
    },
    "subprocess": {
        "child_process": _builtin("child_process"),
        "exec": _call("exec(?:Sync|File|FileSync)?"),
        "spawn": _call("spawn(?:Sync)?"),
        "fork": _call("fork"),
        "worker_threads": _builtin("worker_threads"),
        "cluster": _builtin("cluster"),
        "Deno.run": _call(r"Deno\.run"),
        "Bun.spawn": _call(r"Bun\.spawn"),
    },
    "crypto": {
        "crypto": _builtin("crypto"),
        "createSign": _call("createSign"),
        "createVerify": _call("createVerify"),
        "createCipher": _call("createCipher(?:iv)?"),
        "createDecipher": _call("createDecipher(?:iv)?"),
        "privateEncrypt": _call("privateEncrypt"),
        "privateDecrypt": _call("privateDecrypt"),
    },
    "codeEvaluation": {
        "eval": _call("eval"),
        "eval-indirect": rf"\({S}*0{S}*,{S}*eval{S}*\){S}*\(",
        "Function": _made("Function"),
        "vm": _builtin("vm"),
        "vm.runInNewContext": _call("runInNewContext"),
        "vm.runInThisContext": _call("runInThisContext"),
        "vm.compileFunction": _call("compileFunction"),
        "vm.Script": _made(r"vm\.Script"),
        "globalThis.eval": _call(rf"globalThis{S}*\.{S}*eval"),
        "Reflect.construct-Function": _call(r"Reflect\.construct") + rf"{S}*Function",
        "process.binding": _call(r"process\.binding"),
        "process.dlopen": _call(r"process\.dlopen"),
    },
}
"""Category to identifier to pattern, in the original's order, which is that of the matches."""


def scan_source(source: str, dialect: Dialect) -> tuple[Match, ...]:
    """Every match in a handler's text, pattern by pattern."""
    lines = Lines(source)
    found: list[Match] = []
    for category, identifier, pattern in _compiled():
        if category == "codeEvaluation" and not dialect.code_evaluation:
            continue
        for place in pattern.finditer(source):
            line, context = lines.at(place.start())
            found.append(Match(category=category, identifier=identifier, line=line, context=context))
    return tuple(found)


def entitlements_of_matches(matches: Iterable[Match]) -> EntitlementContract:
    """The flags and identifiers that the matches amount to."""
    listed = tuple(matches)
    categories = {match.category for match in listed}
    return EntitlementContract(
        filesystem="filesystem" in categories,
        network="network" in categories,
        subprocess="subprocess" in categories,
        crypto="crypto" in categories,
        code_evaluation="codeEvaluation" in categories,
        raw=tuple(utf16_sorted({match.identifier for match in listed})),
    )


def handler_entitlements(sources: Iterable[str], dialect: Dialect) -> EntitlementContract:
    """The entitlements of a tool with these handlers, as that dialect writes them into the lockfile."""
    if not dialect.scans_handlers:
        return EntitlementContract()
    return entitlements_of_matches(scan_source("\n".join(sources), dialect))


class Lines:
    """The lines of a text by offset. Only line feeds end a line, as in the original."""

    def __init__(self, source: str) -> None:
        self._texts = source.split("\n")
        self._starts = [0]
        for text in self._texts[:-1]:
            self._starts.append(self._starts[-1] + len(text) + 1)

    def at(self, offset: int) -> tuple[int, str]:
        """The number, from 1, and the trimmed text of the line that holds the offset."""
        from bisect import bisect_right

        line = bisect_right(self._starts, offset)
        return line, self._texts[line - 1].strip(TRIMMED)


@cache
def _compiled() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    def rows() -> Iterator[tuple[str, str, re.Pattern[str]]]:
        for category, patterns in PATTERNS.items():
            for identifier, pattern in patterns.items():
                yield category, identifier, re.compile(pattern, re.ASCII)

    return tuple(rows())
