"""Look up external names in the catalogue."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pinwarden.contract.entitlements.javascript import catalogue
from pinwarden.contract.entitlements.javascript.values import External

Kinds = tuple[str, ...]


def _parse_rows(text: str) -> dict[tuple[str, tuple[str, ...]], Kinds]:
    rows: dict[tuple[str, tuple[str, ...]], Kinds] = {}
    for line in text.strip().splitlines():
        stated, _, names = line.partition(": ")
        kinds = () if stated == "-" else tuple(stated.split())
        for name in names.split():
            root, _, members = name.partition(":")
            rows[root, _split_members(members)] = kinds
    return rows


def _split_members(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.replace("()", ".()").split(".") if part)


_BUILT_IN: Final = _parse_rows(catalogue.BUILT_IN)
_ROWS: Final = {**_parse_rows(catalogue.PACKAGES), **_BUILT_IN}
BUILT_IN_MODULES: Final = frozenset(root for root, _ in _BUILT_IN if root != "global") | {"fs/promises", "dns/promises"}
_WILDCARDS: Final = {root[:-1]: kinds for (root, _), kinds in _ROWS.items() if root.endswith("*")}
_PREFIXES: Final = frozenset(
    (root, members[:length]) for (root, members), kinds in _ROWS.items() if kinds for length in range(len(members))
)
_KEPT_RESULTS: Final = frozenset(
    (
        *("child_process", "net", "tls", "http", "https", "http2", "dgram", "crypto", "sqlite", "worker_threads", "vm"),
        *("fs:createWriteStream", "fs:createReadStream", "fs:open", "fs:opendir", "global:WebSocket", "fs:watch"),
        *("global:Function", "global:eval"),
    )
)
"""Built-in modules and functions whose results have methods with effects."""
MAX_MEMBERS: Final = 10
_GLOBAL_OBJECTS: Final = ("globalThis", "global", "window", "self")
_MAX_CACHED: Final = 20_000


def get_package(specifier: str) -> str:
    """Return the package of an import: ``@scope/name`` of ``@scope/name/file.js``."""
    parts = specifier.split("/")
    return "/".join(parts[:2] if specifier.startswith("@") else parts[:1])


def import_external(specifier: str) -> External:
    """Return the module that an import of a package or built-in module gives."""
    name = specifier.removeprefix("node:")
    if name == "process":
        return External("global", ("process",))
    if name.endswith("/promises") and name.removesuffix("/promises") in ("fs", "dns"):
        return External(name.removesuffix("/promises"))
    return External(name)


def is_built_in(specifier: str) -> bool:
    """Whether Node has the module itself."""
    return specifier.startswith("node:") or specifier in BUILT_IN_MODULES


@lru_cache(_MAX_CACHED)
def extend(item: External, name: str) -> External:
    """Return a member of an external object, or with ``()`` the result of calling it."""
    if name == "default" or (item.root == "fs" and name == "promises"):
        return item
    if item.root == "global" and name in _GLOBAL_OBJECTS and not item.members:
        return item
    if item.root in ("fs", "child_process", "crypto") and name.endswith("Sync") and len(name) > len("Sync"):
        name = name.removesuffix("Sync")
    if name == "()" and (item.root, *item.members) in catalogue.RETURN_THEIR_MODULE:
        return External(item.root)
    if len(item.members) >= MAX_MEMBERS:
        return item
    return External(item.root, (*item.members, name))


@lru_cache(_MAX_CACHED)
def find_kinds(item: External) -> Kinds | None:
    """Return the entitlements that a call of this name needs; None if the catalogue does not cover it."""
    package = get_package(item.root)
    for root in dict.fromkeys((item.root, package)):
        needed = _ROWS.get((root, ())) or _ROWS.get((package, ()))
        for length in range(len(item.members), -1, -1):
            kinds = _ROWS.get((root, item.members[:length]))
            if kinds is None or (not kinds and length and needed and "()" in item.members[length:]):
                continue  # a factory that needs nothing may return a client that does
            return kinds
    for prefix, kinds in _WILDCARDS.items():
        if item.root.startswith(prefix):
            return kinds
    return () if is_built_in(item.root) else None


def is_covered(specifier: str) -> bool:
    """Whether the catalogue covers a package, so that its source is not analysed."""
    return find_kinds(External(specifier)) is not None


@lru_cache(_MAX_CACHED)
def keeps_result(item: External) -> bool:
    """Whether the result of a call has methods that may need an entitlement."""
    first = f"{item.root}:{item.members[0]}" if item.members else item.root
    if item.root == "global" or is_built_in(item.root):
        return item.root in _KEPT_RESULTS or first in _KEPT_RESULTS
    called = (*item.members, "()")
    return find_kinds(External(item.root, (*called, ""))) != () or any(
        root == item.root and members[: len(called)] == called for root, members in _PREFIXES
    )


def constructs_only(item: External, kinds: Kinds) -> bool:
    """Whether ``new`` only makes an object that has not connected yet, or an error."""
    last = item.members[-1] if item.members else item.root
    if last.endswith(("Error", "Exception")):
        return True
    return kinds == ("network",) and item.root not in ("global", "ws")


READING_SQL: Final = ("select", "pragma", "with", "explain", "values", "show", "describe")
_SQL: Final = (*READING_SQL, "insert", "update", "delete", "create", "drop", "alter", "replace", "begin", "commit")


def is_sql(text: str) -> bool:
    """Whether a text begins like a SQL statement."""
    return text.lstrip()[:10].lower().startswith(_SQL)


def find_sql_kinds(texts: list[str] | None) -> Kinds:
    """Return the entitlements of SQL statements on a database file; None means that they are unknown."""
    if texts is not None and all(_only_reads(text) for text in texts):
        return ("filesystem:read",)
    return ("filesystem:read", "filesystem:write")


def _only_reads(text: str) -> bool:
    lowered = text.strip().lower()
    return lowered.startswith(READING_SQL) and not ("pragma" in lowered and "=" in lowered)


def find_flag_kinds(texts: list[str] | None) -> Kinds:
    """Return the entitlements for opening a file with these flags; None means that they are unknown."""
    if texts is None:
        return ("filesystem:read", "filesystem:write")
    writes = any(letter in text for text in texts for letter in "wa+")
    reads = any("r" in text or "+" in text for text in texts)
    return (("filesystem:read",) if reads else ()) + (("filesystem:write",) if writes else ())
