"""Locked versions that a local export of known vulnerabilities is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pinwarden.artifacts.artifact import PackageRef
from pinwarden.artifacts.osv import VulnerablePackage, vulnerable_packages
from pinwarden.artifacts.osv_export import read_export
from pinwarden.artifacts.sbom import cyclonedx, spdx
from pinwarden.artifacts.sbom.bill import make_bill
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import FindingKinds, Report, Row, kind_reasons, kind_table, plural
from pinwarden.lock import closure as closure_document
from pinwarden.lock.closure import Closure
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_launch import locked_launch
from pinwarden.lock.lockfile import Lock, file_pins, refuse_if_tampered
from pinwarden.project.lock_documents import read_lock
from pinwarden.project.project import Project
from pinwarden.project.run import is_bundle
from pinwarden.system.masking import mask_url

VULNERABLE = "vulnerable_package"
UNCERTAIN = "vulnerability_unclear"
NOT_CHECKED = "dependencies_not_looked_up"
VULNERABILITY_KINDS: FindingKinds = kind_table(
    critical=((VULNERABLE, "A locked version is one that a published record calls vulnerable or malicious."),),
    review=(
        (
            UNCERTAIN,
            "A published record is about this package, and its versions cannot be compared with the locked one.",
        ),
    ),
    warning=((NOT_CHECKED, "The dependencies of this server are not locked, so they were not looked up."),),
)
_ECOSYSTEMS: Mapping[str, Literal["npm", "pypi", "nuget", "cargo"]] = {
    "npm": "npm",
    "pypi": "pypi",
    "nuget": "nuget",
    "cargo": "cargo",
}


def find_advisories(project: Project, export: Path) -> Report:
    """The report of ``pinwarden advisories``. A lock that is not whole is refused."""
    document = read_lock(project.lock)
    lock = document.lock
    refuse_if_tampered(document.problems)
    packages = locked_packages(lock, document.files)
    vulnerabilities = vulnerable_packages(read_export(export), packages)
    rows = (*vulnerable_rows(vulnerabilities, packages), *_unchecked_rows(lock))
    return Report(
        command="advisories",
        subject=project.lock.name,
        summary=f"{plural(len(packages), 'locked package')} checked, {plural(len(vulnerabilities), 'record')} found",
        exit_code=EXIT_REFUSED if vulnerabilities else EXIT_CLEAN,
        rows=rows,
        facts={
            "packages": len(packages),
            "findings": [_facts(found_one, packages) for found_one in vulnerabilities],
            "not_looked_up": [row.name for row in rows if row.code == NOT_CHECKED],
        },
        rule_texts=kind_reasons(VULNERABILITY_KINDS),
    )


def locked_packages(lock: Lock, files: Mapping[str, bytes]) -> dict[PackageRef, tuple[str, ...]]:
    """Every package with one version that the lock holds, with the servers that need it.

    ``files`` are the files beside the lock, by the path that the lock pins.
    """
    closures = {
        pin.path: closure_document.parse(files[pin.path]) for _, member, pin in file_pins(lock) if member == "closure"
    }
    vulnerabilities: dict[PackageRef, set[str]] = {}
    for entry in lock.entries:
        for package in _packages_of(entry, closures):
            vulnerabilities.setdefault(package, set()).add(entry.name)
    return {package: tuple(sorted(servers)) for package, servers in vulnerabilities.items()}


def _packages_of(entry: Entry, closures: Mapping[str, Closure]) -> Iterator[PackageRef]:
    own = _own_package(entry)
    if own is not None:
        yield own
    extension = extension_of(entry)
    if extension is not None and extension.closure is not None:
        closure = closures[extension.closure.path]
        for package in closure.packages:
            yield PackageRef(ecosystem=closure.ecosystem, name=package.name, version=package.version)


def _own_package(entry: Entry) -> PackageRef | None:
    """The package of the server itself. An open version is not looked up: it can be any."""
    try:
        runs = locked_launch(entry).runs
    except PinwardenError:  # an address, or a configuration that only its own client understands
        target = entry.selected_target
        kind, name, version = (str(target.get(member) or "") for member in ("registryType", "identifier", "version"))
    else:
        package = runs.via or runs
        kind, name, version = package.kind, package.identity, (package.version or "") if package.pinned else ""
    if kind not in _ECOSYSTEMS or not name or not version:
        return None
    return PackageRef(
        ecosystem=_ECOSYSTEMS[kind], name=name, version=version.removeprefix("v") if kind == "npm" else version
    )


def _unchecked_rows(lock: Lock) -> Iterator[Row]:
    """Servers of which something was not looked up. An address has nothing that could be."""
    for entry in lock.entries:
        extension = extension_of(entry)
        if (extension is not None and extension.closure is not None) or entry.selected_target.get("kind") == "remote":
            continue
        what = "its version is open, or it is no package" if _own_package(entry) is None else "only its own version was"
        yield Row(
            code=NOT_CHECKED,
            severity="warning",
            entity="server",
            name=entry.name,
            path="",
            message=f"its dependencies are not locked and were not looked up ({what})",
        )


def vulnerable_rows(
    vulnerabilities: tuple[VulnerablePackage, ...], packages: Mapping[PackageRef, tuple[str, ...]]
) -> tuple[Row, ...]:
    """What was found, as rows of a report. What cannot be compared is a row too: it is no all-clear."""
    return tuple(
        Row(
            code=VULNERABLE if found_one.certain else UNCERTAIN,
            severity="critical" if found_one.certain else "review",
            entity="package",
            name=str(found_one.package),
            path="",
            message=_message(found_one, packages[found_one.package]),
        )
        for found_one in vulnerabilities
    )


def _message(vulnerable: VulnerablePackage, servers: tuple[str, ...]) -> str:
    names = ", ".join((vulnerable.id, *vulnerable.aliases[:5]))
    text = f"{names}: {vulnerable.summary}" if vulnerable.summary else names
    if not vulnerable.certain:
        text = f"{text}; its versions cannot be compared with {vulnerable.package.version}"
    fixed = f"; fixed in {', '.join(vulnerable.fixed[:5])}" if vulnerable.fixed else ""
    return f"{text}{fixed}; needed by {', '.join(servers[:5])}"


def _facts(vulnerable: VulnerablePackage, packages: Mapping[PackageRef, tuple[str, ...]]) -> dict[str, Any]:
    return {
        "ecosystem": vulnerable.package.ecosystem,
        "package": vulnerable.package.name,
        "version": vulnerable.package.version,
        "id": vulnerable.id,
        "aliases": list(vulnerable.aliases),
        "summary": vulnerable.summary,
        "severity": vulnerable.severity,
        "fixed": list(vulnerable.fixed),
        "certain": vulnerable.certain,
        "servers": list(packages[vulnerable.package]),
    }


Kind = Literal["cyclonedx", "spdx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NO_CLOSURE = "closure_not_locked"
BILL_KINDS: FindingKinds = kind_table(warning=((NO_CLOSURE, "Nobody has worked out yet what this server depends on."),))


class BillOfMaterials(Record):
    """The document, and the report about it."""

    data: bytes = field(repr=False)
    report: Report


_PROVED = ("npm", "pypi", "oci", "mcpb")
_MISSING = "its dependencies are not locked, so they are missing here; pinwarden prove locks them"
_MISSING_OF_SCRIPT = "it is a program of this machine, so nobody can list what it needs, and that is missing here"


def bill_of_materials(lock_path: Path, kind: Kind, now: str, tool_version: str) -> BillOfMaterials:
    """The bytes and the report of ``pinwarden sbom``. A lock that is not whole is refused."""
    document = read_lock(lock_path)
    lock = document.lock
    refuse_if_tampered(document.problems)
    closures = {
        pin.path: closure_document.parse(document.files[pin.path])
        for _, member, pin in file_pins(lock)
        if member == "closure"
    }
    bill = make_bill(lock, closures, mask_url)
    bundled = {entry.name for entry in lock.entries if is_bundle(entry)}  # a bundle brings everything along
    packaged = {entry.name for entry in lock.entries if entry.selected_target.get("registryType") in _PROVED}
    to_bytes = cyclonedx.to_bytes if kind == "cyclonedx" else spdx.to_bytes
    rows = tuple(
        Row(
            code=NO_CLOSURE,
            severity="warning",
            entity="server",
            name=server.name,
            path="",
            message=_MISSING if server.name in packaged else _MISSING_OF_SCRIPT,
        )
        for server in bill.servers
        if server.needs is None and server.is_installed and server.name not in bundled
    )
    report = Report(
        command="sbom",
        subject=lock_path.name,
        summary=f"{plural(len(bill.servers), 'server')}, {plural(len(bill.packages), 'package')} that they depend on",
        exit_code=EXIT_CLEAN,
        rows=rows,
        facts={
            "kind": kind,
            "servers": len(bill.servers),
            "packages": len(bill.packages),
            "serial": bill.serial.urn,
            "incomplete": [row.name for row in rows],
        },
        rule_texts=kind_reasons(BILL_KINDS),
    )
    return BillOfMaterials(data=to_bytes(bill, lock_path.name, now, tool_version), report=report)
