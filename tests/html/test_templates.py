"""Templates of all packages: text is escaped by default, and attributes are written with the filter for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "pinwarden"
TEMPLATES = sorted(SOURCE.glob("**/templates/*"))
ATTRIBUTE = re.compile(r'=\s*"([^"]*\{\{[^"]*)"')
SAFE = re.compile(
    r"\{\{ (?:link\(.*\)|[\w.]+\|attribute|level|policy|before|after|newer|older|(?:query|kind|server)\|urlencode) \}\}"
)

SCRIPT = """<script src="{{ link('assets/dashboard.js') }}" defer></script>"""
"""The only script: a file that the Content Security Policy of the dashboard allows."""


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_writes_text_from_others_into_an_attribute(path: Path) -> None:
    text = path.read_text().replace(SCRIPT, "")
    values = re.findall(r"\{\{[^}]*\}\}", " ".join(ATTRIBUTE.findall(text)))
    assert [value for value in values if not SAFE.fullmatch(value)] == []
    assert not re.search(r"\|\s*safe|autoescape|<script|\son[a-z]+=|style=|javascript:", text)
