"""Pages that are generated from the code are never older than it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from pinwarden.cli.commands import COMMANDS
from pinwarden.core.errors import CODES
from tests.support.needs import needs
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


@needs("groff", install="tools/system-packages.sh groff-base")
def test_the_manual_page_is_formatted_without_a_warning_and_names_every_command() -> None:
    page = REPOSITORY / "man" / "pinwarden.1"
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-cbou", "-ww", str(page)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = set(re.findall(r"^ +pinwarden ([a-z -]+)$", done.stdout, re.MULTILINE))
    assert set(COMMANDS) <= shown
