"""Install scripts that somebody approved: of one package, and of exactly the bytes that were looked at.

They stand in our record of an entry under ``installScripts``. An approval names the digest of the package's archive, so
it says nothing about any other release, and nothing about other bytes under the same version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.lock.extension import Extension

SCRIPTS = "installScripts"
"""A member of our record."""


class ScriptApproval(Record):
    """One package whose install scripts may run, by whom and since when."""

    package: str
    """Name and version, for people."""
    digest: Digest
    """Of the archive: what the approval is for."""
    by: str
    at: str


def script_approvals(extension: Extension | None) -> tuple[ScriptApproval, ...]:
    """The approvals in a record. What cannot be read is an error: it is never an approval, and never forgotten."""
    rows = extension.others.get(SCRIPTS, []) if extension is not None else []
    if not isinstance(rows, list):
        raise PinwardenError("LOCK_INVALID", f"{SCRIPTS} is not a list of approvals")
    return tuple(_approval(row) for row in rows)


def _approval(row: Any) -> ScriptApproval:
    members = [row.get(name) if isinstance(row, Mapping) else None for name in ("package", "digest", "by", "at")]
    package, digest, by, at = members
    if not (isinstance(package, str) and isinstance(digest, str) and isinstance(by, str) and isinstance(at, str)):
        raise PinwardenError("LOCK_INVALID", f"{SCRIPTS} holds something that is no approval")
    try:
        return ScriptApproval(package=package, digest=Digest.parse(digest), by=by, at=at)
    except PinwardenError as err:
        raise PinwardenError("LOCK_INVALID", f"{SCRIPTS}: {err.message}") from err


def approved_digests(extension: Extension | None) -> frozenset[Digest]:
    """The archives whose install scripts may run."""
    return frozenset(each.digest for each in script_approvals(extension))


def still_approved(approvals: Iterable[ScriptApproval], closure: Closure) -> list[dict[str, str]]:
    """The approvals that are about packages of a closure, as our record keeps them; the others are gone for good."""
    here = {package.files[0].digest for package in with_scripts(closure)}
    kept = {each.digest: each for each in approvals if each.digest in here}
    rows = sorted(kept.values(), key=lambda each: (each.package, str(each.digest)))
    return [{"package": row.package, "digest": str(row.digest), "by": row.by, "at": row.at} for row in rows]


def with_scripts(closure: Closure) -> tuple[ClosurePackage, ...]:
    """The packages of which an ordinary client would run scripts. Only npm's have any: wheels bring none."""
    return tuple(each for each in closure.packages if each.install_scripts) if closure.ecosystem == "npm" else ()


def not_approved(closure: Closure, approved: frozenset[Digest]) -> tuple[ClosurePackage, ...]:
    """The packages whose scripts are left out, each once, however often it is installed."""
    found = {each.files[0].digest: each for each in with_scripts(closure) if each.files[0].digest not in approved}
    return tuple(found.values())
