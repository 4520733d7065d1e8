"""Output schemas of the commands about the bytes of locked packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from pinwarden.artifacts.sbom import cyclonedx as cyclonedx_bill
from pinwarden.artifacts.sbom import spdx as spdx_bill
from pinwarden.project.locked_packages import SbomFormat
from tools.outputs.parts import CLIENT, evidence_row, output, report_row, undone
from tools.schema_words import (
    COUNT,
    FULL_TEXT,
    OBJECT,
    SHA256,
    TEXT,
    TRUTH,
    Schema,
    array,
    exactly,
    mapping,
    members,
    one_of,
    or_null,
    ref,
)


def api_surfaces() -> Schema:
    """The API surface hashes that a command recorded, or why they are unknown."""
    known = {"hash": or_null(SHA256), "before": or_null(SHA256), "problem": or_null(TEXT)}
    return array(exactly({"server": FULL_TEXT, **known}))


def prove() -> Schema:
    image = exactly({"reference": FULL_TEXT, "digest": SHA256, "platforms": mapping(SHA256)})
    server = exactly(
        {
            "server": FULL_TEXT,
            "package": FULL_TEXT,
            "registry": or_null(TEXT),
            "files": array(exactly({"name": FULL_TEXT, "digest": SHA256, "size": COUNT})),
            "evidence": array(evidence_row()),
            "packages": COUNT,
            "scripts": array(FULL_TEXT),
        },
        {"image": image},
    )
    body = exactly({"servers": array(server), "findings": array(ref("row")), "api_surfaces": api_surfaces()})
    description = "The pinned bytes with their source and evidence, the findings, and servers without bytes to pin."
    return output("prove", body, description, row=report_row())


def fetch() -> Schema:
    server = exactly(
        {"server": FULL_TEXT, "packages": COUNT, "environment": FULL_TEXT, "scripts": array(FULL_TEXT)},
    )
    body = exactly({"servers": array(server), "findings": array(ref("row"))})
    return output("fetch", body, "The servers that are ready to run, and why others are not.", row=report_row())


def enforce() -> Schema:
    entry = exactly(
        {"server": FULL_TEXT, "client": CLIENT, "action": one_of(("updated", "unchanged", "locked only"))},
        {"file": FULL_TEXT},
    )
    edited = exactly(
        {
            "entries": array(entry),
            "files": array(exactly({"file": FULL_TEXT, "diff": TEXT})),
            "written": TRUTH,
            "started": TRUTH,
            "findings": array(ref("row")),
        }
    )
    return output(
        "enforce",
        {"oneOf": [edited, undone()]},
        "The entries that clients start through pinwarden run, or with --undo no longer do, and the edits.",
        row=report_row(),
    )


def sbom() -> Schema:
    report = exactly(
        {
            "kind": one_of(get_args(SbomFormat)),
            "servers": COUNT,
            "packages": COUNT,
            "serial": {"type": "string", "pattern": "^urn:uuid:"},
            "incomplete": array(TEXT),
        }
    )
    cyclonedx = members({"bomFormat": {"const": "CycloneDX"}, "specVersion": {"const": cyclonedx_bill.SPEC_VERSION}})
    spdx = members({"spdxVersion": {"const": spdx_bill.SPEC_VERSION}, "packages": array(OBJECT)})
    return output(
        "sbom",
        {"oneOf": [report, ref("cyclonedx"), ref("spdx")]},
        "With --output, a summary of the export. Without it, the CycloneDX or SPDX document itself.",
        cyclonedx=cyclonedx,
        spdx=spdx,
    )


def advisories_() -> Schema:
    finding = exactly(
        {
            "ecosystem": one_of(("npm", "pypi", "nuget", "cargo")),
            "package": FULL_TEXT,
            "version": FULL_TEXT,
            "id": FULL_TEXT,
            "aliases": array(TEXT),
            "summary": TEXT,
            "severity": TEXT,
            "fixed": array(TEXT),
            "certain": TRUTH,
            "servers": array(FULL_TEXT, minItems=1),
        }
    )
    body = exactly({"packages": COUNT, "findings": array(finding), "not_looked_up": array(TEXT)})
    return output(
        "advisories",
        body,
        "The packages that were looked up, their advisories, and packages that could not be looked up.",
    )


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "prove": prove,
    "fetch": fetch,
    "enforce": enforce,
    "sbom": sbom,
    "advisories": advisories_,
}
