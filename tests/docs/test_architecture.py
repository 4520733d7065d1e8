"""The architecture page and its picture match the code."""

from __future__ import annotations

import ast
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools import architecture

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOTS = (REPOSITORY / "src" / "pinwarden", REPOSITORY)
"""Paths on the page begin at the package, or at the repository."""


def named_paths() -> list[str]:
    named = re.findall(r"`([a-z_]+(?:/[A-Za-z_0-9.]+)+)`", PAGE)
    return sorted({*named, *(f"docs/{link}" for link in re.findall(r"\]\(([^)#:]+)\)", PAGE))})


def test_every_path_on_the_page_exists() -> None:
    assert len(named_paths()) > 40
    assert [path for path in named_paths() if not any((root / path).exists() for root in ROOTS)] == []


def test_the_page_lists_every_package_from_the_lowest_to_the_highest() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in contracts["contracts"] if contract["type"] == "layers")
    table = PAGE[PAGE.index("| package |") : PAGE.index("The docstring of each package")]
    listed = re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE)
    assert listed == [layer.removeprefix("pinwarden.") for layer in reversed(layers)]


def test_every_function_and_class_on_the_page_is_in_the_gateway_as_the_page_says() -> None:
    methods: dict[str, set[str]] = {}
    for path in (ROOTS[0] / "gateway").rglob("*.py"):
        for node in architecture.tree(path).body:
            if isinstance(node, ast.ClassDef):
                functions = ast.FunctionDef | ast.AsyncFunctionDef
                methods[node.name] = {member.name for member in node.body if isinstance(member, functions)}
    section = PAGE[PAGE.index("### Over HTTP") : PAGE.index("## One bundle")]
    named = re.findall(r"`([A-Z][A-Za-z]+)\.([a-z_]+)`", section)
    assert len(set(named)) > 20
    assert [f"{owner}.{name}" for owner, name in named if name not in methods.get(owner, ())] == []
    classes = set(re.findall(r"`([A-Z][a-z]+[A-Z]?[A-Za-z]*)`", section))
    assert classes - methods.keys() == set()


def test_every_drift_module_is_on_the_architecture_page() -> None:
    unnamed = {
        path.name for path in (ROOTS[0] / "surface" / "drift").glob("[a-z]*.py") if f"drift/{path.name}" not in PAGE
    }
    assert unnamed == set()


def test_the_picture_shows_every_package_and_no_upward_import() -> None:
    picture = ET.fromstring(architecture.drawing())
    texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    packages = {path.parent.name for path in ROOTS[0].glob("*/__init__.py")}
    assert packages <= texts
    assert not [path for path in picture.iter() if "up" in path.get("class", "").split()]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from pinwarden.core import a", {"pinwarden.core.a"}),
        ("import pinwarden.core.a", {"pinwarden.core.a"}),
        ("from pinwarden.core.a import name", {"pinwarden.core.a"}),
        ("def f():\n    from pinwarden.core.a import name", {"pinwarden.core.a"}),
        ("if TYPE_CHECKING:\n    from pinwarden.core.a import name", set()),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from pinwarden.core.a import name", {"pinwarden.core.a"}),
        ("import os", set()),
    ],
)
def test_an_import_counts_wherever_it_runs(source: str, found: set[str], tmp_path: Path) -> None:
    package = tmp_path / "pinwarden"
    (package / "core").mkdir(parents=True)
    for name, text in (("__init__", ""), ("core/__init__", ""), ("core/a", ""), ("b", source)):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    known = architecture.modules(tmp_path)
    assert {name for module, name in architecture.imports(known) if module == "pinwarden.b"} == found
