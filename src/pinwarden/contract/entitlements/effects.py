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
    """Entitlements, or one rule that depends on the argument with index N: ``mode@N`` or ``sql@N``."""
    stated: bool
    """Whether the catalogue has exactly this path and not only a prefix of it."""
    known: bool = True
    """Whether the catalogue or the standard library covers the path."""


def _parse_rows(text: str) -> list[tuple[tuple[str, ...], str]]:
    pairs = []
    for line in text.strip().splitlines():
        stated, _, names = line.partition(": ")
        kinds = () if stated == "-" else tuple(stated.split())
        pairs += [(kinds, name) for name in names.split()]
    return pairs


_KINDS_BY_PATH: Final = {
    name: kinds for text in (catalogue.STANDARD_LIBRARY, catalogue.PACKAGES) for kinds, name in _parse_rows(text)
}
_ALIASES: Final = {name: kinds[0] for kinds, name in _parse_rows(catalogue.ALIASES)}
_METHODS: Final = {name: kinds for kinds, name in _parse_rows(catalogue.METHODS)}
_SENSITIVE_READS: Final = frozenset(catalogue.SENSITIVE_READS.split())
_NEVER_CALLS: Final = frozenset(catalogue.NEVER_CALLS.split())
_MAX_STEPS: Final = 8
MAX_CACHED_PATHS: Final = 20_000
"""The maximum number of cached paths, because hostile source code can contain any number of different paths."""


def _list_prefixes(path: str) -> Iterator[str]:
    """Yield the path and all its prefixes, longest first."""
    while path:
        yield path
        path = path[:-2] if path.endswith("()") else path.rpartition(".")[0]


_PREFIXES_WITH_KINDS: Final = frozenset(
    above for row, kinds in _KINDS_BY_PATH.items() if kinds for above in _list_prefixes(row)
)
"""The prefixes of all paths that need an entitlement."""
_PREFIXES: Final = frozenset(above for row in _KINDS_BY_PATH for above in _list_prefixes(row))


def is_covered(package: str) -> bool:
    """Whether the catalogue or the standard library covers a package, so its source is not analysed."""
    return package in sys.stdlib_module_names or package in _PACKAGES


_PACKAGES: Final = frozenset(name.partition(".")[0].removesuffix("()") for name in _KINDS_BY_PATH)


_OFTEN_IMPORTED: Final = frozenset(
    ("os", "sys", "subprocess", "socket", "ctypes", "shutil", "builtins", "importlib", "pickle", "posix", "pty")
)
"""Modules that many other modules import, so that code can access them indirectly, as in ``logging.os``."""


@lru_cache(MAX_CACHED_PATHS)
def canonicalize_path(path: str) -> str:
    """Return the form of a path that the catalogue uses."""
    if canonical := _ALIASES.get(path):
        return canonical
    if path in _PREFIXES:  # ``socket.socket`` is a class, not the module again
        return path
    head, dot, last = path.rpartition(".")
    if last in _OFTEN_IMPORTED and "(" not in head:
        return last
    if dot and (shorter := _ALIASES.get(head)):
        return f"{shorter}.{last}"
    if "(" in head and not is_covered(path.partition(".")[0]):  # the catalogue does not know the result of this call
        return path.partition("(")[0] + "()"
    if path.count(".") > _MAX_STEPS or head.endswith(f".{last}"):  # a loop in the source makes the path ever longer
        return head
    if path.count("(") > _MAX_STEPS:
        return path.partition("(")[0] + "()"
    return path


@lru_cache(MAX_CACHED_PATHS)
def find_effect(path: str) -> Effect:
    """Return the entitlements that a call of ``path`` needs, according to its longest prefix in the catalogue."""
    for prefix in _list_prefixes(path):
        kinds = _KINDS_BY_PATH.get(prefix)
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


@lru_cache(MAX_CACHED_PATHS)
def has_reach(path: str) -> bool:
    """Whether a call of ``path``, or of one of its attributes, may need an entitlement."""
    package = path.partition(".")[0].removesuffix("()")
    if not is_covered(package):
        return True
    if package not in _PACKAGES:
        return False
    if find_effect(path).kinds or find_effect(path + ".x").kinds or f"{path}()" in _ALIASES:
        return True
    if package in ("mcp", "fastmcp"):  # only methods that register handlers matter
        return "()." not in path or path.rpartition(".")[2] in REGISTRATION_METHODS
    return path in _PREFIXES_WITH_KINDS


@lru_cache(MAX_CACHED_PATHS)
def find_result(path: str) -> str | None:
    """Return the path of the object that a call returns; None if it returns data."""
    after = canonicalize_path(f"{path}()")
    if not has_reach(after):
        return None
    package, last = path.partition(".")[0], path.rpartition(".")[2]
    returns_data = package in sys.stdlib_module_names or package in _PACKAGES_RETURNING_DATA
    if returns_data and not last[:1].isupper() and after not in _PREFIXES:
        return None
    return after


_PACKAGES_RETURNING_DATA: Final = frozenset(
    ("requests", "httpx", "httpx2", "aiohttp", "urllib3", "curl_cffi", "dotenv", "jwt")
)
"""Packages whose functions return data; only objects of their classes can send further requests."""

REGISTRATION_METHODS: Final = (
    *("tool", "call_tool", "list_tools", "add_tool"),
    *("prompt", "get_prompt", "add_prompt"),
    *("resource", "read_resource", "add_resource", "add_template"),
)
"""The methods of MCP servers that register handlers."""

_MODELLED_MODULES: Final = frozenset(
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
    """Whether the interpreter models how functions in the module of this path use their arguments."""
    return path.partition(".")[0] in _MODELLED_MODULES


def needs_no_call(path: str) -> bool:
    """Whether reading the attribute already needs the entitlement, without a call."""
    return path in _SENSITIVE_READS


@lru_cache(MAX_CACHED_PATHS)
def never_calls(path: str) -> bool:
    """Whether a function never calls the functions passed to it."""
    return path in _NEVER_CALLS or path.partition(".")[0] in _NEVER_CALLS


_PASSIVE_BASES: Final = frozenset(catalogue.PASSIVE_BASES.split())


def may_call_methods(base: str) -> bool:
    """Whether an external base class may call the methods that a subclass adds."""
    last = base.rpartition(".")[2]
    shape = last in _PASSIVE_BASES and not base.startswith("asyncio.")
    return not shape and not last.endswith(("Error", "Exception", "Warning"))


def find_method_kinds(name: str) -> tuple[str, ...]:
    """Return the entitlements that a method of an unknown object needs, according to the method's name."""
    return _METHODS.get(name, ())


def find_mode_kinds(mode: str | None) -> tuple[str, ...]:
    """Return the entitlements for opening a file in this mode. None means that the mode is unknown."""
    if mode is None:
        return ("filesystem:read", "filesystem:write")
    writes = any(letter in mode for letter in "wax+")
    reads = "r" in mode or "+" in mode or not writes
    return (("filesystem:read",) if reads else ()) + (("filesystem:write",) if writes else ())


def find_sql_kinds(text: str | None) -> tuple[str, ...]:
    """Return the entitlements for a SQL statement on a database file. None means that the statement is unknown."""
    if (
        text is not None
        and text.lstrip().lower().startswith(_READING_SQL)
        and "=" not in text.lower().partition("pragma")[2]
    ):
        return ("filesystem:read",)
    return ("filesystem:read", "filesystem:write")
