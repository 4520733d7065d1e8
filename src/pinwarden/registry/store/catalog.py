"""Database queries for search and pages: one row for each bundle, the terms under which it is found, and READMEs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinwarden.core.record import Record, field
from pinwarden.system.database import Transaction

_COLUMNS = ("tool", "namespace", "version", "is_yanked", "versions", "description", "published_at")
_LIST = ", ".join(_COLUMNS)
_AFTER_ANY_TEXT = b"\xff"  # greater than each byte of UTF-8


class Package(Record):
    """What a list of bundles shows of one."""

    tool: str
    namespace: str
    version: str
    """The latest version; the last published one if all are yanked."""
    is_yanked: bool
    """Whether all versions are yanked."""
    versions: int
    description: str
    published_at: str


class PackagePage(Record):
    """One page of a list of bundles, and the length of the whole list."""

    packages: tuple[Package, ...]
    total: int


class Readme(Record):
    """A README, with its path in the bundle."""

    path: str
    body: bytes = field(repr=False)


def replace_package(transaction: Transaction, package: Package, terms: Mapping[str, int]) -> None:
    """Write the row and the terms of a bundle, in place of earlier ones."""
    remove_package(transaction, package.tool)
    marks = ", ".join("?" for _ in _COLUMNS)
    values = [getattr(package, name) for name in _COLUMNS]
    transaction.run(f"INSERT INTO packages ({_LIST}) VALUES ({marks})", [_to_value(value) for value in values])  # noqa: S608
    rows = [(term.encode(), package.tool, weight) for term, weight in terms.items()]
    transaction.run_many("INSERT INTO search_terms (term, tool, weight) VALUES (?, ?, ?)", rows)


def remove_package(transaction: Transaction, tool: str) -> None:
    """Remove a bundle from search and lists."""
    transaction.run("DELETE FROM search_terms WHERE tool = ?", (tool,))
    transaction.run("DELETE FROM packages WHERE tool = ?", (tool,))


def list_missing_packages(transaction: Transaction) -> list[str]:
    """Return the published bundles that have no row yet."""
    sql = "SELECT DISTINCT v.tool FROM versions v LEFT JOIN packages p ON p.tool = v.tool WHERE p.tool IS NULL"
    return [str(row[0]) for row in transaction.rows(sql)]


def search_packages(transaction: Transaction, words: Sequence[str], name: str, limit: int, offset: int) -> PackagePage:
    """Return bundles that have a term for every word: a term that is the word or begins with it.

    A bundle with the name ``name`` comes first; the others are ranked by the weights of their terms. A term that equals
    the word counts twice.
    """
    values: list[str | int | bytes] = []
    for word in words:
        term = word.encode()
        values += [term, term, term + _AFTER_ANY_TEXT]
    rows = transaction.rows(build_search_sql(len(words)), [*values, len(words), name, limit, offset])
    return _build_page(rows)


def build_search_sql(words: int) -> str:
    """Return the query for a number of words. Its values are in the order in which `search_packages` gives them."""
    return (
        f"SELECT {_join_columns('p')}, COUNT(*) OVER () FROM (SELECT tool, SUM(best) AS score FROM ("  # noqa: S608
        + " UNION ALL ".join([_MATCHES] * words)
        + ") AS matches GROUP BY tool HAVING COUNT(*) = ?) AS ranked JOIN packages p ON p.tool = ranked.tool "
        "ORDER BY CASE WHEN p.tool = ? THEN 0 ELSE 1 END, ranked.score DESC, p.tool LIMIT ? OFFSET ?"
    )


_MATCHES = (
    "SELECT tool, MAX(CASE WHEN term = ? THEN 2 * weight ELSE weight END) AS best FROM search_terms "
    "WHERE term >= ? AND term < ? GROUP BY tool"
)


def list_packages(transaction: Transaction, limit: int, offset: int, namespace: str | None = None) -> PackagePage:
    """Return one page of all bundles, or of those in a namespace, by name."""
    where, values = ("", ()) if namespace is None else (" WHERE namespace = ?", (namespace,))
    rows = transaction.rows(
        f"SELECT {_LIST}, COUNT(*) OVER () FROM packages{where} ORDER BY tool LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return _build_page(rows)


def list_terms(transaction: Transaction, min_weight: int, prefix: str = "") -> list[tuple[str, str, int]]:
    """Return term, bundle and weight of all terms with at least this weight that begin with a prefix, sorted."""
    start = prefix.encode()
    rows = transaction.rows(
        "SELECT term, tool, weight FROM search_terms WHERE weight >= ? AND term >= ? AND term < ? ORDER BY term, tool",
        (min_weight, start, start + _AFTER_ANY_TEXT),
    )
    return [(bytes(term).decode(), str(tool), int(weight)) for term, tool, weight in rows]


def save_readme(transaction: Transaction, root_cid: str, readme: Readme) -> None:
    """Store the README of a bundle's content, unless it is already stored."""
    if find_readme(transaction, root_cid) is None:
        values = (root_cid, readme.path, readme.body)
        transaction.run("INSERT INTO readmes (root_cid, path, body) VALUES (?, ?, ?)", values)


def find_readme(transaction: Transaction, root_cid: str) -> Readme | None:
    """Return the README of a bundle's content; None if there is none."""
    row = transaction.row("SELECT path, body FROM readmes WHERE root_cid = ?", (root_cid,))
    return None if row is None else Readme(path=row[0], body=bytes(row[1]))


def _build_page(rows: Sequence[tuple[object, ...]]) -> PackagePage:
    packages = [Package(**dict(zip(_COLUMNS, row[:-1], strict=True))) for row in rows]  # type: ignore[arg-type]
    return PackagePage(packages=tuple(packages), total=int(str(rows[0][-1])) if rows else 0)


def _join_columns(table: str) -> str:
    return ", ".join(f"{table}.{name}" for name in _COLUMNS)


def _to_value(value: str | bool | int) -> str | int:
    return int(value) if isinstance(value, bool) else value
