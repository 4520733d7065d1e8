"""Print metrics of the size and structure of the code: ``python -m tools.code_metrics [CHECKOUT ...]``.

With several checkouts, for example of an older commit, there is one column for each. ``tools/trace_flows.py`` counts
the modules that a command or a call uses at run time.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Container
from pathlib import Path
from statistics import median

PACKAGE = "pinwarden"
ENTRY_POINTS = {
    PACKAGE,
    f"{PACKAGE}.__main__",
    f"{PACKAGE}.cli.main",
    f"{PACKAGE}.pytest_plugin",
    f"{PACKAGE}.contract.introspector",  # this one and the next four are started as programs
    f"{PACKAGE}.contract.javascript_worker",
    f"{PACKAGE}.demo.notes_server",
    f"{PACKAGE}.gateway.remote_bridge",
    f"{PACKAGE}.system.exec_guard",
}
LOADED_BY_NAME = tuple(f"{PACKAGE}.cli.{folder}." for folder in ("commands", "completion", "render"))
"""Packages whose modules are imported dynamically, by the name of a command, a shell or an output format."""
SHORT_MODULE = 40
COLUMN = 12


def main() -> None:
    """Print one column per checkout."""
    checkouts = [Path(argument) for argument in sys.argv[1:]] or [Path(__file__).resolve().parents[1]]
    columns = [measure(checkout / "src") for checkout in checkouts]
    if len(columns) > 1:
        print(" " * 36 + "".join(f"{checkout.name[-COLUMN:]:>{COLUMN + 1}}" for checkout in checkouts))
    for label in columns[0]:
        print(f"{label:36}" + "".join(f"{column[label]:>{COLUMN + 1}}" for column in columns))


def measure(source: Path) -> dict[str, str]:
    """Compute the metrics of the package below ``source``, by label."""
    texts = {_module_name(path, source): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    imports = {name: imported_modules(tree, trees.keys()) for name, tree in trees.items()}
    inside, total = _imports_inside_packages(trees)
    unreachable = trees.keys() - reachable_modules(imports)
    return {
        "modules": f"{len(trees):,}",
        "lines": f"{sum(lines.values()):,}",
        "median lines of a module": f"{median(lines.values()):g}",
        f"modules under {SHORT_MODULE} lines": f"{sum(size < SHORT_MODULE for size in lines.values()):,}",
        "functions referenced once": f"{_functions_referenced_once(trees):,}",
        "lines in unreachable modules": f"{sum(lines[name] for name in unreachable):,}",
        "imports inside a package": f"{inside:,}/{total:,}",
        "share of imports inside a package": f"{inside / total:.0%}",
    }


def imported_modules(tree: ast.Module, known: Container[str]) -> set[str]:
    """Return the known modules that a module imports, at its top level or inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name in known}


def reachable_modules(imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that the entry points import, directly or indirectly."""
    reached: set[str] = set()
    pending = [name for name in imports if name in ENTRY_POINTS or name.startswith(LOADED_BY_NAME)]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(imports.get(name, ()))
            if "." in name:
                pending.append(name.rpartition(".")[0])  # importing a module runs its package first
    return reached


def _module_name(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def _imports_inside_packages(trees: dict[str, ast.Module]) -> tuple[int, int]:
    """Count imports within one package, and all imports. Imports of ``core`` and ``system`` are left out."""
    inside = total = 0
    for name, tree in trees.items():
        package = name.split(".")[1:2]
        for target in imported_modules(tree, trees.keys()):
            other = target.split(".")[1:2]
            if not other or other[0] in ("core", "system", "platform") or target + ".__init__" == name:
                continue
            total += 1
            inside += package == other
    return inside, total


def _functions_referenced_once(trees: dict[str, ast.Module]) -> int:
    """Count functions and methods whose name occurs only once apart from their definition.

    Names are compared without their class, so this is a lower bound.
    """
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                defined[node.name] += 1
            elif isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
    return sum(1 for name, count in defined.items() if count == 1 and used[name] == 1)


if __name__ == "__main__":
    main()
