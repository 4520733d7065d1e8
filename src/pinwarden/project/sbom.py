"""The bill of materials of a lock: every locked server and every package of every closure."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pinwarden.artifacts.sbom import cyclonedx, spdx
from pinwarden.artifacts.sbom.bill import bill_of
from pinwarden.core.errors import EXIT_CLEAN
from pinwarden.core.finding_kinds import Kinds, kind_table, reasons_of
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report, Row, counted
from pinwarden.lock import closure as closure_document
from pinwarden.lock.verification import file_pins, refuse_if_tampered
from pinwarden.project.lock_documents import read_v2
from pinwarden.project.run import is_bundle
from pinwarden.system.masking import shown_address

Kind = Literal["cyclonedx", "spdx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NO_CLOSURE = "closure_not_locked"
BILL_KINDS: Kinds = kind_table(warning=((NO_CLOSURE, "Nobody has worked out yet what this server depends on."),))


class BillOfMaterials(Record):
    """The document, and the report about it."""

    data: bytes = field(repr=False)
    report: Report


_PROVED = ("npm", "pypi", "oci", "mcpb")
_MISSING = "its dependencies are not locked, so they are missing here; pinwarden prove locks them"
_MISSING_OF_SCRIPT = "it is a program of this machine, so nobody can list what it needs, and that is missing here"


def bill_of_materials(lock_path: Path, kind: Kind, now: str, tool_version: str) -> BillOfMaterials:
    """The bytes and the report of ``pinwarden sbom``. A lock that is not whole is refused."""
    lock, document = read_v2(lock_path)
    refuse_if_tampered(document.problems)
    closures = {
        pin.path: closure_document.parse(document.files[pin.path])
        for _, member, pin in file_pins(lock)
        if member == "closure"
    }
    bill = bill_of(lock, closures, shown_address)
    bundled = {each.name for each in lock.entries if is_bundle(each)}  # a bundle brings everything along
    packaged = {each.name for each in lock.entries if each.selected_target.get("registryType") in _PROVED}
    writer = cyclonedx if kind == "cyclonedx" else spdx
    rows = tuple(
        Row(
            code=NO_CLOSURE,
            level="warning",
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
        summary=f"{counted(len(bill.servers), 'server')}, {counted(len(bill.packages), 'package')} that they depend on",
        exit_code=EXIT_CLEAN,
        rows=rows,
        facts={
            "kind": kind,
            "servers": len(bill.servers),
            "packages": len(bill.packages),
            "serial": bill.serial.urn,
            "incomplete": [row.name for row in rows],
        },
        rule_texts=reasons_of(BILL_KINDS),
    )
    return BillOfMaterials(data=writer.to_bytes(bill, lock_path.name, now, tool_version), report=report)
