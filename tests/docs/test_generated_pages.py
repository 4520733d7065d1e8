"""Pages that are generated from the code are never older than it."""

from __future__ import annotations

import ast
from pathlib import Path

from pinwarden.core.errors import CODES
from tools import architecture, reference_docs

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_reference_pages_are_up_to_date() -> None:
    assert reference_docs.main(["--check"]) == 0


def test_every_code_in_the_table_is_raised_somewhere_and_no_other_is() -> None:
    paths = [path for path in (REPOSITORY / "src").rglob("*.py") if path.name != "errors.py"]
    nodes = [node for path in paths for node in ast.walk(architecture.tree(path))]
    named = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert set(CODES) - named == set()
    made = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "PinwardenError"]
    raised = {call.args[0].value for call in made if isinstance(call.args[0], ast.Constant)}
    assert len(raised) > len(CODES) / 2  # the others are handed on by a variable
    assert raised - set(CODES) == set()
