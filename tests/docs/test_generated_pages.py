"""Pages that are generated from the code are never older than it."""

from __future__ import annotations

import re
from pathlib import Path

from pinwarden.core.errors import CODES
from tools import reference_docs

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_reference_pages_are_up_to_date() -> None:
    assert reference_docs.main(["--check"]) == 0


def test_every_code_in_the_table_is_raised_somewhere_and_no_other_is() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    for code in CODES:
        assert source.count(f'"{code}"') >= 2, f"{code} stands in the table but nothing raises it"
    raised = set(re.findall(r'PinwardenError\(\s*"([A-Z_]+)"', source))
    assert raised <= set(CODES)
