"""Install scripts of locked packages: which there are, what they would do, and who let them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pinwarden.artifacts.environments import node
from pinwarden.artifacts.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Row, kind_table
from pinwarden.lock import closure as closure_document
from pinwarden.lock.closure import Closure, ClosurePackage, approved_digests, not_approved, with_scripts
from pinwarden.lock.extension import Extension, ScriptApproval, extension_of
from pinwarden.lock.lockfile import Lock

LEFT_OUT = "install_script_left_out"
UNKNOWN = "install_script_unknown"
LOST = "script_approval_lost"
SCRIPT_KINDS: FindingKinds = kind_table(
    review=(
        (UNKNOWN, "A script was to be approved, and no locked package of that name and version has one."),
        (LOST, "A script was approved for other bytes than the newer ones, so it will not be run."),
    ),
    info=((LEFT_OUT, "A package has an install script that nobody approved. It is not run."),),
)


class AllowedScripts(Record):
    """The packages whose install scripts somebody approves now."""

    names: tuple[str, ...] = ()
    """Each is a name with its version."""
    by: str = ""

    def approvals(self, closure: Closure, now: str) -> tuple[ScriptApproval, ...]:
        """The approvals that this comes to for the bytes of a closure."""
        return tuple(
            ScriptApproval(package=label(package), digest=package.files[0].digest, by=self.by, at=now)
            for package in with_scripts(closure)
            if label(package) in self.names
        )


def label(package: ClosurePackage) -> str:
    """The name of a package with its version, as npm writes it."""
    return f"{package.name}@{package.version}"


def with_new(known: Extension, fresh: Iterable[ScriptApproval]) -> tuple[ScriptApproval, ...]:
    """The approvals of a record and new ones; who approved the same bytes before stays who approved them."""
    have = {each.digest for each in known.install_scripts}
    return (*known.install_scripts, *(each for each in fresh if each.digest not in have))


def left_out_rows(server: str, closure: Closure, approved: frozenset[Digest], store: Store) -> Iterator[Row]:
    """The scripts that are not run, with what they would do where the archive is at hand."""
    for package in not_approved(closure, approved):
        yield _row(server, package, _told(package, store))


def _told(package: ClosurePackage, store: Store) -> str:
    archive = store.find(package.files[0].digest)
    lines = node.declared_scripts(archive) if archive is not None else {}
    return "".join(f"; {event}: {line[:200]!a}" for event, line in lines.items())


def _row(server: str, package: ClosurePackage, told: str = "") -> Row:
    return Row(
        code=LEFT_OUT,
        severity="info",
        entity="closure",
        name=server,
        path="",
        message=f"{label(package)} has an install script that nobody approved, so it is not run{told}",
    )


def unknown_rows(allowed: AllowedScripts, closures: Sequence[Closure]) -> Iterator[Row]:
    """Names that were to be approved, and that no looked-at package with a script has."""
    known = {label(package) for closure in closures for package in with_scripts(closure)}
    for name in allowed.names:
        if name not in known:
            message = f"no package {name[:120]!a} with an install script is locked; nothing was approved for it"
            yield Row(code=UNKNOWN, severity="review", entity="closure", name="", path="", message=message)


def lost_rows(server: str, known: Extension | None, closure: Closure) -> Iterator[Row]:
    """Approvals that a newer closure would end, because it has other bytes."""
    here = {package.files[0].digest for package in with_scripts(closure)}
    for each in known.install_scripts if known is not None else ():
        if each.digest not in here:
            message = f"the install script of {each.package[:120]} was approved for other bytes; it will not be run"
            yield Row(code=LOST, severity="review", entity="closure", name=server, path="", message=message)


def gate_rows(lock: Lock, files: Mapping[str, bytes]) -> Iterator[Row]:
    """Every locked package with a script that nobody approved, once for each server that has it."""
    told: set[tuple[str, Digest]] = set()
    for entry in lock.entries:
        extension = extension_of(entry)
        data = files.get(extension.closure.path, b"") if extension is not None and extension.closure else b""
        if b'"installScripts": true' not in data:  # as our own writer has it; the digest of the file was checked
            continue
        for package in not_approved(closure_document.parse(data), approved_digests(extension)):
            key = entry.name, package.files[0].digest
            if key not in told:
                told.add(key)
                yield _row(entry.name, package)
