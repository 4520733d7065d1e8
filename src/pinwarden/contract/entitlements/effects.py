"""Look up external calls in the catalogue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pinwarden.contract.entitlements import catalogue
from pinwarden.core.record import Record

_READS_ONLY: Final = ("select", "pragma table", "pragma index", "pragma foreign", "with", "explain", "values")


class Effect(Record):
    """What one call needs."""

    kinds: tuple[str, ...]
    """Entitlements, or one rule ``mode@N`` or ``sql@N`` that looks at an argument."""
    stated: bool
    """The table names exactly this, and not only something above it."""
    known: bool = True
    """Whether the table, or the standard library, has it at all."""


def _pairs(text: str) -> list[tuple[tuple[str, ...], str]]:
    pairs = []
    for line in text.strip().splitlines():
        stated, _, names = line.partition(": ")
        kinds = () if stated == "-" else tuple(stated.split())
        pairs += [(kinds, name) for name in names.split()]
    return pairs


_ROWS: Final = {
    name: kinds for text in (catalogue.STANDARD_LIBRARY, catalogue.PACKAGES) for kinds, name in _pairs(text)
}
_SAME: Final = {name: kinds[0] for kinds, name in _pairs(catalogue.SAME)}
_METHODS: Final = {name: kinds for kinds, name in _pairs(catalogue.METHODS)}
_ON_SIGHT: Final = frozenset(catalogue.ON_SIGHT.split())
_NEVER_CALLS: Final = frozenset(catalogue.NEVER_CALLS.split())
_MAX_STEPS: Final = 8
MAX_REMEMBERED: Final = 20_000
"""Paths whose answer is kept; a hostile source can make up any number of them."""


def _above(path: str) -> Iterator[str]:
    """The path and everything that it is below of."""
    while path:
        yield path
        path = path[:-2] if path.endswith("()") else path.rpartition(".")[0]


_LEADING: Final = frozenset(above for row, kinds in _ROWS.items() if kinds for above in _above(row))
"""What something with an entitlement is below of."""
_LEADING_ANYWHERE: Final = frozenset(above for row in _ROWS for above in _above(row))


def tabled(package: str) -> bool:
    """Whether the catalogue or the standard library covers a package, so its source is not analysed."""
    return package in sys.stdlib_module_names or package in _PACKAGES


_PACKAGES: Final = frozenset(name.partition(".")[0].removesuffix("()") for name in _ROWS)


_REEXPORTED: Final = frozenset(
    ("os", "sys", "subprocess", "socket", "ctypes", "shutil", "builtins", "importlib", "pickle", "posix", "pty")
)
"""Modules that many others import, so that they can be reached through those: ``logging.os``."""


@lru_cache(MAX_REMEMBERED)
def spelt(path: str) -> str:
    """The spelling under which the table knows something."""
    if canonical_path := _SAME.get(path):
        return canonical_path
    if path in _LEADING_ANYWHERE:  # ``socket.socket`` is no other way to the module
        return path
    head, dot, last = path.rpartition(".")
    if last in _REEXPORTED and "(" not in head:
        return last
    if dot and (shorter := _SAME.get(head)):
        return f"{shorter}.{last}"
    if "(" in head and not tabled(path.partition(".")[0]):  # nothing is known about what comes back
        return path.partition("(")[0] + "()"
    if path.count(".") > _MAX_STEPS or head.endswith(f".{last}"):  # a chain that grows by itself, as in a loop
        return head
    if path.count("(") > _MAX_STEPS:
        return path.partition("(")[0] + "()"
    return path


@lru_cache(MAX_REMEMBERED)
def effect_of(path: str) -> Effect:
    """What calling ``path`` needs, by the longest name that the table has for it."""
    for at in _above(path):
        kinds = _ROWS.get(at)
        if kinds is not None:
            stated = at == path
            if not stated and _only_makes(path, kinds):
                kinds = ()
            return Effect(kinds=kinds, stated=stated)
    package = path.partition(".")[0].removesuffix("()")
    return Effect(kinds=(), stated=False, known=package in sys.stdlib_module_names or package in _PACKAGES)


def _only_makes(path: str, kinds: tuple[str, ...]) -> bool:
    """Whether this makes an error, or an object that has not connected to anything yet."""
    last = path.rpartition(".")[2]
    if last.endswith(("Error", "Exception", "Warning")):
        return True
    return kinds == ("network",) and last[:1].isupper() and not last.isupper()


@lru_cache(MAX_REMEMBERED)
def has_reach(path: str) -> bool:
    """Whether it is worth following what ``path`` stands for: something below it may need an entitlement."""
    package = path.partition(".")[0].removesuffix("()")
    if not tabled(package):
        return True
    if package not in _PACKAGES:
        return False
    if effect_of(path).kinds or effect_of(path + ".x").kinds or f"{path}()" in _SAME:
        return True
    if package in ("mcp", "fastmcp"):  # of what a server has, only that matters by which it is given tools
        return "()." not in path or path.rpartition(".")[2] in REGISTERING
    return path in _LEADING


@lru_cache(MAX_REMEMBERED)
def result_of(path: str) -> str | None:
    """What a call returns, if that can do anything; data cannot."""
    after = spelt(f"{path}()")
    if not has_reach(after):
        return None
    package, last = path.partition(".")[0], path.rpartition(".")[2]
    gives_data = package in sys.stdlib_module_names or package in _GIVE_DATA
    if gives_data and not last[:1].isupper() and after not in _LEADING_ANYWHERE:
        return None
    return after


_GIVE_DATA: Final = frozenset(("requests", "httpx", "httpx2", "aiohttp", "urllib3", "curl_cffi", "dotenv", "jwt"))
"""Packages whose functions return what was asked for; only their classes make objects that ask again."""

REGISTERING: Final = (
    *("tool", "call_tool", "list_tools", "add_tool"),
    *("prompt", "get_prompt", "add_prompt"),
    *("resource", "read_resource", "add_resource", "add_template"),
)
"""Methods of servers that take functions."""

_INTERPRETED: Final = frozenset(
    (
        "builtins",
        "functools",
        "importlib",
        "contextlib",
        "operator",
        "sys",
        "types",
        "asyncio",
        "abc",
        "copy",
        "inspect",
    )
)


def interpreted(path: str) -> bool:
    """Whether the interpreter knows what functions of this module do with their arguments."""
    return path.partition(".")[0] in _INTERPRETED


def on_sight(path: str) -> bool:
    """Whether touching it needs its entitlement, without a call."""
    return path in _ON_SIGHT


@lru_cache(MAX_REMEMBERED)
def never_calls(path: str) -> bool:
    """Whether functions that it is given stay uncalled."""
    return path in _NEVER_CALLS or path.partition(".")[0] in _NEVER_CALLS


_SHAPES: Final = frozenset(catalogue.SHAPES.split())


def calls_back(base: str) -> bool:
    """Whether a base class that is not looked into may call the methods that a class adds to it."""
    last = base.rpartition(".")[2]
    shape = last in _SHAPES and not base.startswith("asyncio.")
    return not shape and not last.endswith(("Error", "Exception", "Warning"))


def kinds_of_method(name: str) -> tuple[str, ...]:
    """What a method of an unknown object needs, if its name tells."""
    return _METHODS.get(name, ())


def kinds_of_mode(mode: str | None) -> tuple[str, ...]:
    """What opening a file needs; ``None`` is a mode that is not known."""
    if mode is None:
        return ("filesystem:read", "filesystem:write")
    writes = any(letter in mode for letter in "wax+")
    reads = "r" in mode or "+" in mode or not writes
    return (("filesystem:read",) if reads else ()) + (("filesystem:write",) if writes else ())


def kinds_of_sql(text: str | None) -> tuple[str, ...]:
    """What a statement on a database file needs; ``None`` is one that is not known."""
    if (
        text is not None
        and text.lstrip().lower().startswith(_READS_ONLY)
        and "=" not in text.lower().partition("pragma")[2]
    ):
        return ("filesystem:read",)
    return ("filesystem:read", "filesystem:write")
