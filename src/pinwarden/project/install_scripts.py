"""Install scripts of locked packages: which packages have one, what it runs, and who approved it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pinwarden.artifacts.environments import node
from pinwarden.artifacts.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.lock import closure as closure_document
from pinwarden.lock.closure import (
    Closure,
    ClosurePackage,
    list_approved_digests,
    list_packages_with_scripts,
    list_unapproved_packages,
)
from pinwarden.lock.extension import LockExtension, ScriptApproval, read_extension
from pinwarden.lock.lockfile import Lock

SKIPPED = "install_script_left_out"
UNKNOWN = "install_script_unknown"
LOST = "script_approval_lost"
SCRIPT_KINDS: FindingKinds = build_kind_table(
    review=(
        (
            UNKNOWN,
            "A script was named for approval, but no locked package of that name and version has an install script.",
        ),
        (LOST, "An install script was approved for other bytes of the package, so Pinwarden does not run it."),
    ),
    info=((SKIPPED, "A package has an install script that is not approved. It is not run."),),
)


class AllowedScripts(Record):
    """Packages whose install scripts are approved now."""

    names: tuple[str, ...] = ()
    """The packages, each as NAME@VERSION."""
    by: str = ""

    def build_approvals(self, closure: Closure, now: str) -> tuple[ScriptApproval, ...]:
        """Return the approvals for the bytes of a closure."""
        return tuple(
            ScriptApproval(package=format_package_label(package), digest=package.files[0].digest, by=self.by, at=now)
            for package in list_packages_with_scripts(closure)
            if format_package_label(package) in self.names
        )


def format_package_label(package: ClosurePackage) -> str:
    """Return the name of a package with its version, as npm writes it."""
    return f"{package.name}@{package.version}"


def add_approvals(known: LockExtension, fresh: Iterable[ScriptApproval]) -> tuple[ScriptApproval, ...]:
    """Add approvals; an earlier approval of the same bytes keeps its approver."""
    have = {approval.digest for approval in known.install_scripts}
    return (*known.install_scripts, *(approval for approval in fresh if approval.digest not in have))


def report_skipped_scripts(server: str, closure: Closure, approved: frozenset[Digest], store: Store) -> Iterator[Row]:
    """Report install scripts that are not run, with their commands if the archive is in the store."""
    for package in list_unapproved_packages(closure, approved):
        yield _build_row(server, package, _describe_scripts(package, store))


def report_unknown_scripts(allowed: AllowedScripts, closures: Sequence[Closure]) -> Iterator[Row]:
    """Report names that were to be approved, although no checked package of that name has a script."""
    known = {format_package_label(package) for closure in closures for package in list_packages_with_scripts(closure)}
    for name in allowed.names:
        if name not in known:
            message = f"no package {name[:120]!a} with an install script is locked; nothing was approved for it"
            yield Row(code=UNKNOWN, severity="review", entity="closure", name="", path="", message=message)


def report_lost_approvals(server: str, known: LockExtension | None, closure: Closure) -> Iterator[Row]:
    """Report script approvals that end with a newer closure, because the bytes of the package differ."""
    current = {package.files[0].digest for package in list_packages_with_scripts(closure)}
    for approval in known.install_scripts if known is not None else ():
        if approval.digest not in current:
            message = f"the install script of {approval.package[:120]} was approved for other bytes; it is not run"
            yield Row(code=LOST, severity="review", entity="closure", name=server, path="", message=message)


def check_script_approvals(lock: Lock, files: Mapping[str, bytes]) -> Iterator[Row]:
    """Report every locked package whose install script is not approved, once for each server."""
    reported: set[tuple[str, Digest]] = set()
    for entry in lock.entries:
        extension = read_extension(entry)
        data = files.get(extension.closure.path, b"") if extension is not None and extension.closure else b""
        if b'"installScripts": true' not in data:  # as Pinwarden writes it; the digest was checked
            continue
        for package in list_unapproved_packages(closure_document.parse(data), list_approved_digests(extension)):
            key = entry.name, package.files[0].digest
            if key not in reported:
                reported.add(key)
                yield _build_row(entry.name, package)


def _describe_scripts(package: ClosurePackage, store: Store) -> str:
    archive = store.find(package.files[0].digest)
    lines = node.read_install_scripts(archive) if archive is not None else {}
    return "".join(f"; {event}: {line[:200]!a}" for event, line in lines.items())


def _build_row(server: str, package: ClosurePackage, details: str = "") -> Row:
    return Row(
        code=SKIPPED,
        severity="info",
        entity="closure",
        name=server,
        path="",
        message=f"{format_package_label(package)} has an unapproved install script, which is not run{details}",
    )
