"""Look up external calls in the catalogue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pinwarden.contract.entitlements import catalogue
from pinwarden.core.record import Record

_READING_SQL: Final = ("select", "pragma table", "pragma index", "pragma foreign", "with", "explain", "values")


class Effect(Record):
    """The entitlements that one call needs."""

    kinds: tuple[str, ...]
    """Entitlements, or one rule ``mode@N`` or ``sql@N`` that depends on an argument."""
    stated: bool
    """The catalogue names exactly this path, not only a prefix of it."""
    known: bool = True
    """Whether the catalogue or the standard library covers the path."""


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
_ALIASES: Final = {name: kinds[0] for kinds, name in _pairs(catalogue.ALIASES)}
_METHODS: Final = {name: kinds for kinds, name in _pairs(catalogue.METHODS)}
_NEEDS_NO_CALL: Final = frozenset(catalogue.NEEDS_NO_CALL.split())
_NEVER_CALLS: Final = frozenset(catalogue.NEVER_CALLS.split())
_MAX_STEPS: Final = 8
MAX_REMEMBERED: Final = 20_000
"""Limit of cached paths, because a hostile source can contain any number of different ones."""


def _prefixes(path: str) -> Iterator[str]:
    """The path and all its prefixes, longest first."""
    while path:
        yield path
        path = path[:-2] if path.endswith("()") else path.rpartition(".")[0]


_PREFIXES_WITH_KINDS: Final = frozenset(above for row, kinds in _ROWS.items() if kinds for above in _prefixes(row))
"""All prefixes of paths that need an entitlement."""
_PREFIXES: Final = frozenset(above for row in _ROWS for above in _prefixes(row))


def is_covered(package: str) -> bool:
    """Whether the catalogue or the standard library covers a package, so its source is not analysed."""
    return package in sys.stdlib_module_names or package in _PACKAGES


_PACKAGES: Final = frozenset(name.partition(".")[0].removesuffix("()") for name in _ROWS)


_REEXPORTED: Final = frozenset(
    ("os", "sys", "subprocess", "socket", "ctypes", "shutil", "builtins", "importlib", "pickle", "posix", "pty")
)
"""Modules that many others import, so that they can be accessed through those: ``logging.os``."""


@lru_cache(MAX_REMEMBERED)
def canonical_path(path: str) -> str:
    """The form of a path that the catalogue uses."""
    if canonical := _ALIASES.get(path):
        return canonical
    if path in _PREFIXES:  # ``socket.socket`` is a class, not the module again
        return path
    head, dot, last = path.rpartition(".")
    if last in _REEXPORTED and "(" not in head:
        return last
    if dot and (shorter := _ALIASES.get(head)):
        return f"{shorter}.{last}"
    if "(" in head and not is_covered(path.partition(".")[0]):  # the result is unknown
        return path.partition("(")[0] + "()"
    if path.count(".") > _MAX_STEPS or head.endswith(f".{last}"):  # a chain that grows by itself, as in a loop
        return head
    if path.count("(") > _MAX_STEPS:
        return path.partition("(")[0] + "()"
    return path


@lru_cache(MAX_REMEMBERED)
def effect_of(path: str) -> Effect:
    """What calling ``path`` needs, according to its longest prefix in the catalogue."""
    for prefix in _prefixes(path):
        kinds = _ROWS.get(prefix)
        if kinds is not None:
            stated = prefix == path
            if not stated and _only_constructs(path, kinds):
                kinds = ()
            return Effect(kinds=kinds, stated=stated)
    package = path.partition(".")[0].removesuffix("()")
    return Effect(kinds=(), stated=False, known=package in sys.stdlib_module_names or package in _PACKAGES)


def _only_constructs(path: str, kinds: tuple[str, ...]) -> bool:
    """Whether the call only constructs an exception, or an object that has not connected yet."""
    last = path.rpartition(".")[2]
    if last.endswith(("Error", "Exception", "Warning")):
        return True
    return kinds == ("network",) and last[:1].isupper() and not last.isupper()


@lru_cache(MAX_REMEMBERED)
def has_reach(path: str) -> bool:
    """Whether ``path`` or something below it may need an entitlement."""
    package = path.partition(".")[0].removesuffix("()")
    if not is_covered(package):
        return True
    if package not in _PACKAGES:
        return False
    if effect_of(path).kinds or effect_of(path + ".x").kinds or f"{path}()" in _ALIASES:
        return True
    if package in ("mcp", "fastmcp"):  # only methods that register handlers matter
        return "()." not in path or path.rpartition(".")[2] in REGISTERING
    return path in _PREFIXES_WITH_KINDS


@lru_cache(MAX_REMEMBERED)
def result_of(path: str) -> str | None:
    """The path of the object that a call returns; None if it returns data."""
    after = canonical_path(f"{path}()")
    if not has_reach(after):
        return None
    package, last = path.partition(".")[0], path.rpartition(".")[2]
    returns_data = package in sys.stdlib_module_names or package in _RETURN_DATA
    if returns_data and not last[:1].isupper() and after not in _PREFIXES:
        return None
    return after


_RETURN_DATA: Final = frozenset(("requests", "httpx", "httpx2", "aiohttp", "urllib3", "curl_cffi", "dotenv", "jwt"))
"""Packages whose functions return data; only objects of their classes can send further requests."""

REGISTERING: Final = (
    *("tool", "call_tool", "list_tools", "add_tool"),
    *("prompt", "get_prompt", "add_prompt"),
    *("resource", "read_resource", "add_resource", "add_template"),
)
"""Methods of servers that register functions."""

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


def is_modelled(path: str) -> bool:
    """Whether the interpreter models what functions of this module do with their arguments."""
    return path.partition(".")[0] in _INTERPRETED


def needs_no_call(path: str) -> bool:
    """Whether reading the attribute already needs the entitlement, without a call."""
    return path in _NEEDS_NO_CALL


@lru_cache(MAX_REMEMBERED)
def never_calls(path: str) -> bool:
    """Whether a function never calls the functions passed to it."""
    return path in _NEVER_CALLS or path.partition(".")[0] in _NEVER_CALLS


_PASSIVE_BASES: Final = frozenset(catalogue.PASSIVE_BASES.split())


def may_call_methods(base: str) -> bool:
    """Whether an external base class may call the methods that a subclass adds."""
    last = base.rpartition(".")[2]
    shape = last in _PASSIVE_BASES and not base.startswith("asyncio.")
    return not shape and not last.endswith(("Error", "Exception", "Warning"))


def kinds_of_method(name: str) -> tuple[str, ...]:
    """The entitlements that a method of an unknown object needs, according to the method's name."""
    return _METHODS.get(name, ())


def kinds_of_mode(mode: str | None) -> tuple[str, ...]:
    """What opening a file needs; ``None`` is an unknown mode."""
    if mode is None:
        return ("filesystem:read", "filesystem:write")
    writes = any(letter in mode for letter in "wax+")
    reads = "r" in mode or "+" in mode or not writes
    return (("filesystem:read",) if reads else ()) + (("filesystem:write",) if writes else ())


def kinds_of_sql(text: str | None) -> tuple[str, ...]:
    """What a SQL statement on a database file needs; ``None`` is an unknown statement."""
    if (
        text is not None
        and text.lstrip().lower().startswith(_READING_SQL)
        and "=" not in text.lower().partition("pragma")[2]
    ):
        return ("filesystem:read",)
    return ("filesystem:read", "filesystem:write")
