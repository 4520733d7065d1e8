"""Every row of the threat model names a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "threat-model.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| (?P<attack>[^|]+) \| (?P<happens>[^|]+) \| `(?P<file>tests/[\w/]+\.py)::(?P<test>test_\w+)` \|")
ROWS = [row for line in PAGE.partition("## Attacks")[2].splitlines() if (row := ROW.fullmatch(line))]


@cache
def _names_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_bytes())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_every_row_of_the_table_names_a_test_that_exists() -> None:
    assert [f"{row['file']}::{row['test']}" for row in ROWS if row["test"] not in _names_in(row["file"])] == []


def test_every_row_of_the_tables_is_well_formed_and_no_attack_is_listed_twice() -> None:
    lines = [line for line in PAGE.partition("## Attacks")[2].splitlines() if line.startswith("| ")]
    assert len(lines) == len(ROWS) + PAGE.count("| attack | what happens | test |")
    assert len({row["attack"] for row in ROWS}) == len(ROWS) >= 45
