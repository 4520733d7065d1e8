"""What npm resolved: ``package-lock.json`` with ``lockfileVersion`` 3, read as hostile text."""

from __future__ import annotations

from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import LIMITS, is_node_path


class ResolvedPackage(Record):
    """One row of the lockfile: what npm would put into one folder."""

    name: str
    version: str
    path: str
    url: str
    """Where npm would download it; empty if its settings leave that out."""
    integrity: tuple[Digest, ...]
    """What the registry claims of the bytes: any of the strongest algorithm counts."""
    systems: tuple[str, ...] = ()
    processors: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    optional: bool = False
    install_scripts: bool = False


def parse_npm_lock(data: bytes) -> tuple[ResolvedPackage, ...]:
    """Every package that npm would install, in the order of their folders."""
    document = strict_json.parse(data, LIMITS)
    packages = document.get("packages") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("lockfileVersion") != 3 or not isinstance(packages, dict):
        _invalid("is not a package-lock.json of lockfileVersion 3")
    # What lies inside its parent's archive is installed with that, and has no bytes of its own.
    rows = [(path, row) for path, row in sorted(packages.items()) if path and not _get(row, "inBundle")]
    return tuple(_resolved(path, row) for path, row in rows)


def _resolved(path: str, row: Any) -> ResolvedPackage:
    if not isinstance(row, dict) or not is_node_path(path):
        _invalid(f"has a package in {path[:200]!a}")
    if row.get("link"):
        _invalid(f"links {path[:200]!a} to a folder of this machine")
    name = row.get("name") or path.rpartition("node_modules/")[2]
    version, url, integrity = row.get("version"), row.get("resolved", ""), row.get("integrity")
    if not isinstance(name, str) or not isinstance(version, str) or not isinstance(url, str):
        _invalid(f"does not say what is in {path[:200]!a}")
    if url and not url.startswith(("https://", "http://")):
        _invalid(f"takes {name[:120]!a} from somewhere other than a registry")
    if not isinstance(integrity, str) or not integrity:
        _invalid(f"has no integrity value for {name[:120]!a}")
    return ResolvedPackage(
        name=name,
        version=version,
        path=path,
        url=url,
        integrity=strongest(integrity),
        systems=_names(row, "os"),
        processors=_names(row, "cpu"),
        libraries=_names(row, "libc"),
        optional=bool(row.get("optional") or row.get("devOptional")),
        install_scripts=bool(row.get("hasInstallScript")),
    )


def strongest(integrity: str) -> tuple[Digest, ...]:
    """The digests of a Subresource Integrity text that count: those of its strongest algorithm.

    SHA-1 is none: anybody with some money can make two archives that share it.
    """
    found: list[Digest] = []
    for word in integrity.split():
        try:
            found.append(Digest.parse(word.partition("?")[0]))
        except PinwardenError:
            continue
    best = max((each.algorithm for each in found), default="")
    return tuple(each for each in found if each.algorithm == best)


def _get(row: Any, member: str) -> Any:
    return row.get(member) if isinstance(row, dict) else None


def _names(row: dict[str, Any], member: str) -> tuple[str, ...]:
    value = row.get(member, [])
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        _invalid(f"has a member {member} that is not a list of names")
    return tuple(names)


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("CLOSURE_INVALID", f"what npm resolved {why}")
