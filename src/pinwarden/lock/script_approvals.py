"""Install scripts that somebody approved: of one package, and of exactly the bytes that were looked at.

They stand in our record of an entry under ``installScripts``. An approval names the digest of the package's archive, so
it says nothing about any other release, and nothing about other bytes under the same version.
"""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.digest import Digest
from pinwarden.lock.closure import Closure, ClosurePackage
from pinwarden.lock.extension import Extension, ScriptApproval


def approved_digests(extension: Extension | None) -> frozenset[Digest]:
    """The archives whose install scripts may run."""
    return frozenset(each.digest for each in extension.install_scripts) if extension is not None else frozenset()


def still_approved(approvals: Iterable[ScriptApproval], closure: Closure) -> tuple[ScriptApproval, ...]:
    """The approvals that are about packages of a closure, sorted. The others are dropped."""
    present = {package.files[0].digest for package in with_scripts(closure)}
    kept = {approval.digest: approval for approval in approvals if approval.digest in present}
    return tuple(sorted(kept.values(), key=lambda approval: (approval.package, str(approval.digest))))


def with_scripts(closure: Closure) -> tuple[ClosurePackage, ...]:
    """The packages of which an ordinary client would run scripts. Only npm's have any: wheels bring none."""
    return tuple(each for each in closure.packages if each.install_scripts) if closure.ecosystem == "npm" else ()


def not_approved(closure: Closure, approved: frozenset[Digest]) -> tuple[ClosurePackage, ...]:
    """The packages whose scripts are left out, each once, however often it is installed."""
    found = {each.files[0].digest: each for each in with_scripts(closure) if each.files[0].digest not in approved}
    return tuple(found.values())
