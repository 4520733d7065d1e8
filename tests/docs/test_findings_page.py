"""Every code in a report is on the page of findings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pinwarden.core.errors import CODES
from pinwarden.core.report import ROW_SEVERITIES
from pinwarden.project.api_surfaces import API_SURFACE_KINDS
from pinwarden.project.client_install import CLIENT_UPDATE_KINDS
from pinwarden.project.doctor import ISSUE_KINDS, PROGRAM_KINDS
from pinwarden.project.gate.rule_texts import RULE_TEXTS
from pinwarden.project.init_decisions import LOCKING_KINDS
from pinwarden.project.locked_packages import SBOM_KINDS
from pinwarden.project.newer_dependencies import DEPENDENCY_KINDS
from pinwarden.project.newer_releases import UPDATE_KINDS
from pinwarden.project.pin import PIN_KINDS
from pinwarden.surface.drift.changes import CHANGE_KINDS
from tools import architecture
from tools.findings_page import SECTIONS, findings_page

SOURCE = Path(__file__).resolve().parents[2] / "src" / "pinwarden"
REPORTING = ("bundle", "contract", "gateway", "project")
"""The packages whose reports have rows with codes of their own."""
GATE = sorted((SOURCE / "project" / "gate").glob("*.py"))


def codes_of_rows(tree: ast.Module) -> set[str]:
    """The codes that are spelt out where a row of a report is made."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    rows = [call for call in calls if isinstance(call.func, ast.Name) and re.fullmatch("Row|_.*row", call.func.id)]
    given = [word.value for call in rows for word in call.keywords if word.arg == "code"]
    given += [argument for call in rows if getattr(call.func, "id", "") != "Row" for argument in call.args[:2]]
    named = {node.value for node in given if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {code for code in named if re.fullmatch("[a-z]+(?:_[a-z]+)+", code)}


def test_every_code_of_a_report_row_is_on_a_page() -> None:
    modules = [path for package in REPORTING for path in (SOURCE / package).rglob("*.py")]
    made = {code for path in modules for code in codes_of_rows(architecture.tree(path))}
    assert len(made) > 15
    shown = {kind for section in SECTIONS for table in section.tables for kind in table} | CHANGE_KINDS.keys()
    assert made - shown - {code.lower() for code in CODES} == set()


def test_every_code_of_ci_has_a_text_for_formats_that_list_their_rules() -> None:
    sections = [section for section in SECTIONS if re.search(r"`ci[ `]", section.commands)]
    listed = {kind for section in sections for table in section.tables for kind in table} | CHANGE_KINDS.keys()
    # These are reported only by the other commands of their sections.
    elsewhere = {*ISSUE_KINDS, *LOCKING_KINDS, *PROGRAM_KINDS, *UPDATE_KINDS, *CLIENT_UPDATE_KINDS, *PIN_KINDS}
    elsewhere |= {*DEPENDENCY_KINDS, *SBOM_KINDS, *API_SURFACE_KINDS}
    codes = (listed - elsewhere) | {code for path in GATE for code in codes_of_rows(architecture.tree(path))}
    assert len(codes) > 200
    assert sorted(code for code in codes if not RULE_TEXTS.get(code)) == []
    assert codes <= set(RULE_TEXTS)
    assert "no_such_code" not in RULE_TEXTS


def test_every_row_of_the_page_has_a_known_level_and_a_sentence() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (.+) \|$", findings_page(), flags=re.MULTILINE)
    assert len(rows) == sum(len(table) for section in SECTIONS for table in section.tables)
    assert {level for _, level, _ in rows} == set(ROW_SEVERITIES)
    assert [code for code, _, sentence in rows if not sentence.endswith(".") or "|" in sentence] == []
