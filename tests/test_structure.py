"""The rules of the code's structure, checked on the code itself."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pinwarden
from pinwarden.cli.commands import COMMANDS, load_command
from pinwarden.clients.table import CLIENTS
from pinwarden.core.errors import CODES
from pinwarden.lock.lockfile import PROBLEMS
from tools import architecture

REPOSITORY = Path(__file__).resolve().parents[1]
MAX_LINES = 60
"""A function of more lines than a screen has holds more than one level of thought."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    paths = [path for each in _folders(REPOSITORY / folder) for path in each.glob("*.py")]
    with whole():
        return {str(path.relative_to(REPOSITORY)): architecture.tree(path) for path in sorted(paths)}


@contextmanager
def whole() -> Iterator[None]:
    """Trees have millions of nodes and no garbage: looking for some again and again would take most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _folders(folder: Path) -> Iterator[Path]:
    """A folder and those below it, without walking through the thousands of other people's."""
    yield folder
    for each in folder.iterdir():
        if each.is_dir() and each.name not in {"vectors", "node_modules"}:
            yield from _folders(each)


def test_no_module_imports_itself_through_others() -> None:
    known = architecture.modules()
    order = TopologicalSorter[str](dict.fromkeys(known, ()))
    with whole():
        found = architecture.imports(known)
    for module, imported in found:
        order.add(module, imported)
    try:
        order.prepare()
    except CycleError as err:
        raise AssertionError(" -> ".join(err.args[1])) from None


_LOADED_BY_NAME = ("pinwarden.cli.commands", "pinwarden.cli.render", "pinwarden.cli.completion")
"""Packages whose modules are imported by the name of a command, an output format or a shell."""
_STARTED_AS_PROGRAM = {
    "pinwarden.__main__",
    "pinwarden.contract.introspector",
    "pinwarden.contract.javascript_worker",
    "pinwarden.demo.notes_server",
    "pinwarden.gateway.remote_bridge",
    "pinwarden.system.exec_guard",
}
_HOOKS = {"render", "render_error", "render_script"}
"""What the modules in those packages define, and their package calls by name."""


def test_every_module_is_reached_from_an_entry_point() -> None:
    known = architecture.modules()
    reached: set[str] = set()
    below = ["pinwarden", "pinwarden.cli.main", "pinwarden.pytest_plugin", *_STARTED_AS_PROGRAM]
    below += [module for module in known if module.startswith(_LOADED_BY_NAME)]
    below += [f"pinwarden.{module}" for module in pinwarden._MODULES.values()]
    with whole():
        imports: dict[str, list[str]] = {}
        for module, imported in architecture.imports(known):
            imports.setdefault(module, []).append(imported)
    while below:
        module = below.pop()
        if module not in reached:
            reached.add(module)
            parent = module.rpartition(".")[0]
            below += [*imports.get(module, ()), *([parent] if parent else [])]
    assert sorted(known.keys() - reached) == []


def test_every_public_function_and_class_is_used_in_the_program() -> None:
    """What only tests call is dead code. A helper of tests belongs into ``tests/support``."""
    known = architecture.modules()
    with whole():
        used = {name for module, path in known.items() for name in _used_names(module, architecture.tree(path), known)}
    unused = [
        f"{module}.{node.name}"
        for module, path in known.items()
        for node in architecture.tree(path).body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
        if (module, node.name) not in used and not _is_hook(module, node.name)
    ]
    assert unused == []


def _is_hook(module: str, name: str) -> bool:
    if module.startswith("pinwarden.cli.commands."):
        return (module, name) in _commands()
    return module == "pinwarden.pytest_plugin" or (module.startswith(_LOADED_BY_NAME) and name in _HOOKS)


@cache
def _commands() -> set[tuple[str, str]]:
    """The module and function of every command."""
    functions = [load_command(name).run for name in COMMANDS]
    return {(function.__module__, function.__name__) for function in functions}


def _used_names(module: str, tree: ast.Module, known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Every name that a module uses, with the module that defines it: imported, through a module, or its own."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    imported[alias.asname or alias.name] = inner
                else:
                    yield node.module, alias.name
    for top in tree.body:
        own = getattr(top, "name", "")
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and node.id != own:
                yield module, node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
                yield imported[node.value.id], node.attr


def test_packages_import_only_packages_below_and_pure_modules_touch_nothing_outside() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-logo", "--no-cache"], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_function_of_more_than_sixty_lines_says_why() -> None:
    long = [
        f"{path}:{node.lineno} {node.name} has {_length(node)} lines"
        for path, tree in trees("src").items()
        for node in ast.walk(tree)
        if isinstance(node, Function) and _length(node) > MAX_LINES and not _says_why(node)
    ]
    assert long == []


def _length(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _says_why(node: Function) -> bool:
    said = ast.get_docstring(node) or ""
    return "because" in said.lower().split() or any(line.startswith("Long:") for line in said.splitlines())


def test_every_public_name_says_what_it_is_for() -> None:
    unsaid = [
        f"{path}: {name}"
        for path, tree in trees("src").items()
        for name, node in _public(tree, path)
        if not ast.get_docstring(node)
    ]
    assert unsaid == []


def _public(
    node: ast.Module | ast.ClassDef, name: str
) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    yield name, node
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            if isinstance(child, ast.ClassDef):
                yield from _public(child, child.name)
            else:
                yield child.name, child


def test_every_error_code_and_every_problem_of_a_lock_is_provoked_by_a_test() -> None:
    expected = {text for tree in trees("tests").values() for text in _expected(tree)}
    assert (set(CODES) - expected, set(PROBLEMS) - expected) == (set(), set())


def _expected(tree: ast.Module) -> Iterator[str]:
    """Every text in a test, except in errors that the test itself makes: those prove nothing about the program."""
    below: list[ast.AST] = [tree]
    while below:
        node = below.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "PinwardenError":
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            if node.value.endswith("]"):  # as the command line prints it: "error: … [CODE]"
                yield node.value[:-1].rpartition("[")[2]
            if "_" in node.value and node.value.islower():  # as a row of a report names it
                yield node.value.upper()
        below.extend(ast.iter_child_nodes(node))


_STARTS = {
    # who may call it: the one step before every start, and programs that are not servers of a project
    "build_sandbox_command": {"project/server_start.py", "surface/probe/probe.py", "artifacts/environments/node.py"},
    "ServerCommand": {"project/server_start.py"},
    "start_server": {"gateway/gated_server.py", "gateway/http/process_transport.py"},
    "probe_all": {"project/server_start.py"},
    # an author's own server, and what is submitted to a registry, which has no project and a sandbox of its own
    "probe": {
        "project/server_start.py",
        "surface/probe/probe.py",
        "contract/python_server.py",
        "contract/observation.py",
        "registry/publish.py",
    },
    "probe_as_two_clients": {"cli/commands/surface.py"},
}
"""What starts servers, and the only modules that call it."""


def test_every_start_of_a_server_goes_through_the_one_step_that_reads_the_policy_and_chooses_the_sandbox() -> None:
    found: dict[str, set[str]] = {name: set() for name in _STARTS}
    for path, tree in trees("src").items():
        imported = _starting_names(path, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
                found[node.func.id].add(path.removeprefix("src/pinwarden/"))
    allowed = {name: sorted(modules - _STARTS[name]) for name, modules in found.items()}
    assert allowed == {name: [] for name in _STARTS}
    assert all(found.values())  # what is called by no module any more is not checked any more


def _starting_names(path: str, tree: ast.Module) -> set[str]:
    """Which of those names a module has from the modules that define them, or is one of these and defines."""
    homes = ("system.sandbox", "surface.probe.probe", "project.server_start")
    defines = path.removesuffix(".py").replace("/", ".").endswith(homes)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(homes):
            names |= {(alias.asname or alias.name) for alias in node.names if alias.name in _STARTS}
        elif defines and isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in _STARTS:
            names.add(node.name)
    return names


_CLIENT_IDS_IN = {
    "clients/instruction_files.py",  # which instruction files each client reads
    "clients/skill_folders.py",  # where each client has its skills
    "clients/risky_settings.py",  # a member that has the name of a client
    "clients/table.py",
    "lock/entry.py",  # the clients that ToolPin's format has
    "lock/install_plan.py",  # what ToolPin writes for each of them
    "cli/commands/lock.py",  # the default of --client
}
"""The only modules that name a client. What differs between clients is a field of ``Client`` or ``EntryFormat``."""
_ALSO_A_JSON_MEMBER = {"cursor"}


def test_only_the_table_of_clients_and_toolpins_format_name_a_client() -> None:
    ids = CLIENTS.keys() - _ALSO_A_JSON_MEMBER
    named: dict[str, set[str]] = {}
    for path, tree in trees("src").items():
        used = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        if used & ids:
            named[path.removeprefix("src/pinwarden/")] = used & ids
    assert {path: names for path, names in named.items() if path not in _CLIENT_IDS_IN} == {}
    assert sorted(_CLIENT_IDS_IN - named.keys()) == []


def test_no_two_public_classes_share_a_name() -> None:
    modules: dict[str, list[str]] = {}
    for path in sorted((REPOSITORY / "src" / "pinwarden").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(path.name)
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}
