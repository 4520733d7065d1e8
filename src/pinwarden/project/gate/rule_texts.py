"""The meaning of every code that a row of ``pinwarden ci`` can have, for formats that list their rules, such as SARIF.

Each table is in the module that reports its codes. `RULE_TEXTS` imports that module when a format looks up the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    ("project.gate.integrity", "LIVE_KINDS"),
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


class _RuleTexts(Mapping[str, str]):
    """The meaning of each code. Tables are imported in the order of ``RULE_TABLES``, until one has the code."""

    def __getitem__(self, code: str) -> str:
        for module, name in RULE_TABLES:
            table = _load_table(module)[name]
            if code in table:
                row = table[code]
                return row.reason if isinstance(row, FindingKind) else _PREFIXES.get(name, "") + row
        if code in _TEXTS:
            return _TEXTS[code]
        return CODES[code.upper()].meaning  # a row about an error has the code of the error

    def __iter__(self) -> Iterator[str]:
        codes = (code for module, name in RULE_TABLES for code in _load_table(module)[name])
        yield from dict.fromkeys((*codes, *_TEXTS, *map(str.lower, CODES)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


RULE_TEXTS: Mapping[str, str] = _RuleTexts()


def _load_table(module: str) -> Mapping[str, Mapping[str, FindingKind | str]]:
    return vars(import_module(f"pinwarden.{module}"))
