"""Finds known vulnerabilities of the packages in a lock, and builds the SBOM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pinwarden.artifacts.artifact import PackageRef
from pinwarden.artifacts.osv import VulnerablePackage, find_vulnerable_packages
from pinwarden.artifacts.osv_export import read_osv_export
from pinwarden.artifacts.sbom import cyclonedx, spdx
from pinwarden.artifacts.sbom.contents import collect_contents
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons
from pinwarden.core.text import plural
from pinwarden.lock import closure as closure_document
from pinwarden.lock.closure import Closure
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.lock.lockfile import Lock, list_file_pins, refuse_if_tampered
from pinwarden.project.lock_documents import read_lock
from pinwarden.project.project import Project
from pinwarden.project.run import is_bundle
from pinwarden.system.masking import mask_url

VULNERABLE = "vulnerable_package"
UNCERTAIN = "vulnerability_unclear"
NOT_CHECKED = "dependencies_not_looked_up"
VULNERABILITY_KINDS: FindingKinds = build_kind_table(
    critical=((VULNERABLE, "According to an OSV record, a locked version is vulnerable or malicious."),),
    review=(
        (
            UNCERTAIN,
            "An OSV record is about this package, but its versions cannot be compared with the locked version.",
        ),
    ),
    warning=((NOT_CHECKED, "The dependencies of this server are not locked, so they were not checked."),),
)
_ECOSYSTEMS: Mapping[str, Literal["npm", "pypi", "nuget", "cargo"]] = {
    "npm": "npm",
    "pypi": "pypi",
    "nuget": "nuget",
    "cargo": "cargo",
}

_LOCKABLE_TYPES = ("npm", "pypi", "oci", "mcpb")
_DEPENDENCIES_NOT_LOCKED = (
    "its dependencies are not locked, so the SBOM does not list them; lock them with pinwarden prove"
)
_LOCAL_PROGRAM_INCOMPLETE = "it is a local program with unknown dependencies, so the SBOM does not list them"


def find_advisories(project: Project, export: Path) -> Report:
    """Return the report of ``pinwarden advisories``. Raises if the lock was tampered with."""
    document = read_lock(project.lock)
    lock = document.lock
    refuse_if_tampered(document.problems)
    packages = list_locked_packages(lock, document.files)
    vulnerabilities = find_vulnerable_packages(read_osv_export(export), packages)
    rows = (*build_vulnerability_rows(vulnerabilities, packages), *_build_unchecked_rows(lock))
    return Report(
        command="advisories",
        subject=project.lock.name,
        summary=f"{plural(len(packages), 'locked package')} checked, {plural(len(vulnerabilities), 'record')} found",
        exit_code=EXIT_REFUSED if vulnerabilities else EXIT_CLEAN,
        rows=rows,
        facts={
            "packages": len(packages),
            "findings": [_vulnerability_to_json(vulnerable, packages) for vulnerable in vulnerabilities],
            "not_looked_up": [row.name for row in rows if row.code == NOT_CHECKED],
        },
        rule_texts=collect_kind_reasons(VULNERABILITY_KINDS),
    )


def list_locked_packages(lock: Lock, files: Mapping[str, bytes]) -> dict[PackageRef, tuple[str, ...]]:
    """Return every package in the lock that has an exact version, with the servers that need it.

    ``files`` are the files next to the lock, by their path in the lock.
    """
    closures = {
        pin.path: closure_document.parse(files[pin.path])
        for _, member, pin in list_file_pins(lock)
        if member == "closure"
    }
    servers_by_package: dict[PackageRef, set[str]] = {}
    for entry in lock.entries:
        for package in _list_packages(entry, closures):
            servers_by_package.setdefault(package, set()).add(entry.name)
    return {package: tuple(sorted(servers)) for package, servers in servers_by_package.items()}


def build_vulnerability_rows(
    vulnerabilities: tuple[VulnerablePackage, ...], packages: Mapping[PackageRef, tuple[str, ...]]
) -> tuple[Row, ...]:
    """Return one row per pair of package and OSV record."""
    return tuple(
        Row(
            code=VULNERABLE if vulnerable.certain else UNCERTAIN,
            severity="critical" if vulnerable.certain else "review",
            entity="package",
            name=str(vulnerable.package),
            path="",
            message=_describe_vulnerability(vulnerable, packages[vulnerable.package]),
        )
        for vulnerable in vulnerabilities
    )


class SbomDocument(Record):
    """The bytes of an SBOM, and the report of ``pinwarden sbom``."""

    data: bytes = field(repr=False)
    report: Report


def build_sbom(lock_path: Path, sbom_format: SbomFormat, now: str, tool_version: str) -> SbomDocument:
    """Build the SBOM and the report of ``pinwarden sbom``. Raises if the lock was tampered with."""
    document = read_lock(lock_path)
    lock = document.lock
    refuse_if_tampered(document.problems)
    closures = {
        pin.path: closure_document.parse(document.files[pin.path])
        for _, member, pin in list_file_pins(lock)
        if member == "closure"
    }
    contents = collect_contents(lock, closures, mask_url)
    bundled = {entry.name for entry in lock.entries if is_bundle(entry)}  # a bundle contains its dependencies
    packaged = {entry.name for entry in lock.entries if entry.selected_target.get("registryType") in _LOCKABLE_TYPES}
    to_bytes = cyclonedx.to_bytes if sbom_format == "cyclonedx" else spdx.to_bytes
    rows = tuple(
        Row(
            code=NO_CLOSURE,
            severity="warning",
            entity="server",
            name=server.name,
            path="",
            message=_DEPENDENCIES_NOT_LOCKED if server.name in packaged else _LOCAL_PROGRAM_INCOMPLETE,
        )
        for server in contents.servers
        if server.dependencies is None and server.is_installed and server.name not in bundled
    )
    servers, packages = plural(len(contents.servers), "server"), plural(len(contents.packages), "package")
    report = Report(
        command="sbom",
        subject=lock_path.name,
        summary=f"{servers}, {packages} they depend on",
        exit_code=EXIT_CLEAN,
        rows=rows,
        facts={
            "kind": sbom_format,
            "servers": len(contents.servers),
            "packages": len(contents.packages),
            "serial": contents.serial.urn,
            "incomplete": [row.name for row in rows],
        },
        rule_texts=collect_kind_reasons(SBOM_KINDS),
    )
    return SbomDocument(data=to_bytes(contents, lock_path.name, now, tool_version), report=report)


def _list_packages(entry: Entry, closures: Mapping[str, Closure]) -> Iterator[PackageRef]:
    own = _find_own_package(entry)
    if own is not None:
        yield own
    extension = read_extension(entry)
    if extension is not None and extension.closure is not None:
        closure = closures[extension.closure.path]
        for package in closure.packages:
            yield PackageRef(ecosystem=closure.ecosystem, name=package.name, version=package.version)


def _find_own_package(entry: Entry) -> PackageRef | None:
    """Return the package of the server itself; None if it has no exact version."""
    try:
        launch = read_locked_launch(entry).parsed
    except PinwardenError:  # a remote server, or a command that Pinwarden cannot interpret
        target = entry.selected_target
        kind, name, version = (str(target.get(member) or "") for member in ("registryType", "identifier", "version"))
    else:
        package = launch.via or launch
        kind, name, version = package.kind, package.identity, (package.version or "") if package.pinned else ""
    if kind not in _ECOSYSTEMS or not name or not version:
        return None
    return PackageRef(
        ecosystem=_ECOSYSTEMS[kind], name=name, version=version.removeprefix("v") if kind == "npm" else version
    )


def _build_unchecked_rows(lock: Lock) -> Iterator[Row]:
    """Yield a row per local server whose dependencies were not checked, because the lock does not have them."""
    for entry in lock.entries:
        extension = read_extension(entry)
        if (extension is not None and extension.closure is not None) or entry.selected_target.get("kind") == "remote":
            continue
        checked = (
            "its dependencies are not locked, and it has no package with an exact version, so nothing was checked"
            if _find_own_package(entry) is None
            else "its dependencies are not locked, so only its own package was checked"
        )
        yield Row(
            code=NOT_CHECKED,
            severity="warning",
            entity="server",
            name=entry.name,
            path="",
            message=checked,
        )


def _describe_vulnerability(vulnerable: VulnerablePackage, servers: tuple[str, ...]) -> str:
    names = ", ".join((vulnerable.id, *vulnerable.aliases[:5]))
    text = f"{names}: {vulnerable.summary}" if vulnerable.summary else names
    if not vulnerable.certain:
        text = f"{text}; the record's versions cannot be compared with {vulnerable.package.version}"
    fixed = f"; fixed in {', '.join(vulnerable.fixed[:5])}" if vulnerable.fixed else ""
    return f"{text}{fixed}; needed by {', '.join(servers[:5])}"


def _vulnerability_to_json(
    vulnerable: VulnerablePackage, packages: Mapping[PackageRef, tuple[str, ...]]
) -> dict[str, Any]:
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


SbomFormat = Literal["cyclonedx", "spdx"]
SBOM_FORMATS: tuple[SbomFormat, ...] = get_args(SbomFormat)
NO_CLOSURE = "closure_not_locked"
SBOM_KINDS: FindingKinds = build_kind_table(warning=((NO_CLOSURE, "The dependencies of this server are not locked."),))
