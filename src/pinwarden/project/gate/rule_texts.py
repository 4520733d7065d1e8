"""The meaning of every code that a row of ``pinwarden ci`` can have, for formats that list their rules, such as SARIF.

Each table is in the module that reports its codes. A module is imported only if a row has one of its codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

from pinwarden.core.errors import CODES
from pinwarden.core.report import COULD_NOT_CHECK, FindingKind

RULE_TABLES = (
    ("lock.lockfile", "PROBLEMS"),
    ("lock.policy", "RULE_KINDS"),
    ("lock.toolpin_pins", "PIN_FINDINGS"),
    ("project.gate.integrity", "LOCK_KINDS"),
    ("project.gate.check", "POLICY_KINDS"),
    ("project.gate.check", "LOCK_REQUIRED_KINDS"),
    ("project.gate.gate_report", "LIVE_KINDS"),
    ("project.gate.repository_check", "COVERAGE_KINDS"),
    ("project.configs", "FLOATING_KINDS"),
    ("clients.findings", "FINDING_KINDS"),
    ("clients.drift", "CONFIG_KINDS"),
    ("surface.drift.changes", "CHANGE_KINDS"),
    ("skills.skill_drift", "SKILL_KINDS"),
    ("skills.skill_scan", "MESSAGES"),
    ("project.gate.online", "REGISTRY_KINDS"),
    ("project.installed_bundles", "YANK_KINDS"),
    ("project.lock_signatures", "SIGNATURE_KINDS"),
    ("project.install_scripts", "SCRIPT_KINDS"),
    ("project.locked_packages", "VULNERABILITY_KINDS"),
    ("artifacts.artifact_drift", "ARTIFACT_KINDS"),
    ("artifacts.provenance_drift", "PROVENANCE_KINDS"),
)
"""Module and name of each table, with the tables of the most frequent codes first."""
_PREFIXES = {"MESSAGES": "It "}
"""The text that turns the phrases of a table into sentences."""
_TEXTS = {COULD_NOT_CHECK: "A check could not be completed, so its result is unknown."}


def find_rule_texts(codes: Iterable[str]) -> dict[str, str]:
    """Return the meaning of each of these codes that has one."""
    texts: dict[str, str] = {}
    missing = set(codes)
    for module, name in RULE_TABLES:
        if not missing:
            break
        table: Mapping[str, FindingKind | str] = getattr(import_module(f"pinwarden.{module}"), name)
        for code in missing & table.keys():
            row = table[code]
            texts[code] = row.reason if isinstance(row, FindingKind) else _PREFIXES.get(name, "") + row
        missing -= texts.keys()
    for code in missing:
        if code in _TEXTS:
            texts[code] = _TEXTS[code]
        elif code.upper() in CODES:  # a row about an error has the code of the error
            texts[code] = CODES[code.upper()].meaning
    return texts
