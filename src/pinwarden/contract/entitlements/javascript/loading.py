"""Resolve imports and follow modules: ES modules, CommonJS, TypeScript paths and packages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from pinwarden.contract.entitlements.javascript.effects import get_package, import_external, is_built_in, is_covered
from pinwarden.contract.entitlements.javascript.statements import JsStatements
from pinwarden.contract.entitlements.javascript.syntax import (
    JsNode,
    UnreadableSourceError,
    decode_text,
    parse,
    read_string,
)
from pinwarden.contract.entitlements.javascript.values import (
    ANY_DATA,
    EMPTY,
    AbstractValue,
    External,
    JsActivation,
    JsModule,
    Slot,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import parse_last_wins

MAX_MODULES: Final = 3_000
MAX_PACKAGE_MODULES: Final = 400
"""The maximum number of modules of dependencies that the analysis follows."""
UNREADABLE: Final = "the source cannot be read"
NATIVE_CODE: Final = "compiled code is loaded"
_ENDINGS: Final = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".tsx", ".jsx", ".json")
_FROM_TYPESCRIPT: Final = {".js": (".ts", ".tsx"), ".mjs": (".mts",), ".cjs": (".cts",), ".jsx": (".tsx",)}
_COMMENTS: Final = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMAS: Final = re.compile(r",(\s*[}\]])")
_CONDITIONS: Final = ("node", "import", "module", "default", "require")


class Loading(JsStatements):
    """The modules of the program."""

    def __init__(self, files: Mapping[str, str], *, scan_packages: bool = False) -> None:
        super().__init__()
        self.files = files
        """The text of each file by its path from the server's folder."""
        self.scan_packages = scan_packages
        self.modules: dict[str, JsModule] = {}
        self._package_modules = 0
        self._manifests: dict[str, dict[str, Any]] = {}
        self.unreadable: dict[str, str] = {}
        """The modules that cannot be read, with the reason."""

    # Resolving.

    def _read_json(self, path: str) -> dict[str, Any]:
        if path not in self._manifests:
            text, _ = self._read_text(path)
            value: Any = {}
            if text:
                plain = _TRAILING_COMMAS.sub(r"\1", _COMMENTS.sub(lambda match: match[1] or "", text))
                try:
                    value = parse_last_wins(plain.encode("utf-8", "replace"))
                except PinwardenError:
                    value = {}
            self._manifests[path] = value if isinstance(value, dict) else {}
        return self._manifests[path]

    def _read_text(self, path: str) -> tuple[str, str]:
        """Return the text of a file, and the reason if it cannot be read."""
        try:
            return (self.files[path], "") if path in self.files else ("", "")
        except UnreadableSourceError as err:
            return "", str(err)

    def find_file(self, path: str) -> str | None:
        """Return the file that a path without its ending or ``index`` names."""
        path = posixpath.normpath(path)
        if path.startswith("../"):
            return None
        stem, ending = posixpath.splitext(path)
        candidates = [path, *(stem + other for other in _FROM_TYPESCRIPT.get(ending, ()))]
        candidates += [path + other for other in _ENDINGS]
        for candidate in candidates:
            if candidate in self.files:
                return candidate
        main = self._read_json(f"{path}/package.json").get("main")
        if isinstance(main, str) and main.strip("./"):
            found = self.find_file(f"{path}/{main}")
            if found is not None:
                return found
        for candidate in (f"{path}/index{other}" for other in _ENDINGS):
            if candidate in self.files:
                return candidate
        return None

    def _find_by_alias(self, specifier: str) -> str | None:
        """Return the file of an import through ``imports`` of package.json, or ``paths`` of tsconfig.json."""
        imports = self._read_json("package.json").get("imports")
        if specifier.startswith("#") and isinstance(imports, dict):
            for pattern, target in imports.items():
                file = self._match_pattern(pattern, [_choose_condition(target)], specifier, "")
                if file is not None:
                    return file
        options = self._read_json("tsconfig.json").get("compilerOptions")
        if isinstance(options, dict):
            base = options.get("baseUrl")
            folder = base if isinstance(base, str) else "."
            paths = options.get("paths")
            for pattern, targets in (paths if isinstance(paths, dict) else {}).items():
                file = self._match_pattern(pattern, targets if isinstance(targets, list) else [], specifier, folder)
                if file is not None:
                    return file
            if isinstance(base, str):
                return self.find_file(f"{base}/{specifier}")
        return None

    def _match_pattern(self, pattern: str, targets: list[Any], specifier: str, folder: str) -> str | None:
        before, star, after = pattern.partition("*")
        if star:
            if not (specifier.startswith(before) and specifier.endswith(after)):
                return None
            middle = specifier[len(before) : len(specifier) - len(after)]
        elif specifier != pattern:
            return None
        else:
            middle = ""
        for target in targets:
            if isinstance(target, str):
                file = self.find_file(posixpath.join(folder, target.replace("*", middle)))
                if file is not None:
                    return file
        return None

    def _find_in_packages(self, specifier: str, module: JsModule) -> str | None:
        """Return the file of a package in ``node_modules``."""
        package = get_package(specifier)
        folder = posixpath.dirname(module.name)
        while True:
            root = posixpath.join(folder, "node_modules", package)
            if f"{root}/package.json" in self.files:
                return self._find_package_entry(root, specifier[len(package) :])
            if not folder:
                return None
            folder = posixpath.dirname(folder)

    def _find_package_entry(self, root: str, subpath: str) -> str | None:
        manifest = self._read_json(f"{root}/package.json")
        exports = manifest.get("exports")
        if exports is not None:
            key = f".{subpath}"
            table = (
                exports
                if isinstance(exports, dict) and any(name.startswith(".") for name in exports)
                else {".": exports}
            )
            for pattern, target in table.items():
                file = self._match_pattern(pattern, [_choose_condition(target)], key, root)
                if file is not None:
                    return file
        if subpath:
            return self.find_file(root + subpath)
        entry = manifest.get("module") or manifest.get("main") or "index.js"
        return self.find_file(f"{root}/{entry}" if isinstance(entry, str) else root)

    def load_specifier(self, specifier: str, node: JsNode) -> AbstractValue:
        """Return the exports of a module that the current module loads."""
        importer = self.current.module
        if specifier.startswith(("file:", "data:")) or posixpath.isabs(specifier):
            return frozenset((External(specifier[:80]),))
        if is_built_in(specifier):
            return frozenset((import_external(specifier),))
        if specifier.endswith(".node"):
            self.add_effect("native", node.line, specifier[:80])
            return ANY_DATA
        if specifier.startswith("."):
            path = self.find_file(posixpath.join(posixpath.dirname(importer.name), specifier))
            if path is None:
                return frozenset((External(specifier[:80]),))
            return self.load(path, node, third_party=importer.third_party)
        own_name = self._read_json("package.json").get("name")
        if not importer.third_party:
            path = self._find_by_alias(specifier)
            if path is None and isinstance(own_name, str) and get_package(specifier) == own_name:
                path = self._find_package_entry(".", specifier[len(own_name) :])
            if path is not None:
                return self.load(path, node, third_party=False)
            if self.scan_packages and not is_covered(specifier):
                path = self._find_in_packages(specifier, importer)
                if path is not None and self._package_modules < MAX_PACKAGE_MODULES:
                    return self.load(path, node, third_party=True)
        return frozenset((import_external(specifier),))

    def load(self, path: str, node: JsNode, *, third_party: bool) -> AbstractValue:
        """Follow a module, and return its exports."""
        module = self.open_module(path, third_party=third_party)
        if path.endswith(".json"):
            return ANY_DATA
        self.current.calls.setdefault(module.activation, node.line)
        if not module.activation.runs:
            self.run(module.activation)
        return self.read(module.holder.slots["exports"])

    def open_module(self, path: str, *, third_party: bool) -> JsModule:
        """Return the module at a path, which is parsed when it is needed first."""
        module = self.modules.get(path)
        if module is not None:
            return module
        if len(self.modules) >= MAX_MODULES:
            self.exhausted = True
        text, problem = self._read_text(path)
        module = JsModule(path, text, third_party=third_party)
        module.problem = problem or ("" if path in self.files else "the file is missing")
        self.modules[path] = module
        self._package_modules += third_party
        module.holder.slots["exports"] = Slot(frozenset((module.exports,)))
        names = module.frame.names
        names["module"] = Slot(frozenset((module.holder,)))
        names["exports"] = Slot(frozenset((module.exports,)))
        names["require"] = Slot(frozenset((External("global", ("require",)),)))
        module.frame.this = Slot(frozenset((module.exports,)))
        return module

    # Following.

    def run_module(self, activation: JsActivation) -> None:
        """Follow the code of a module."""
        module = activation.module
        if module.name.endswith(".json"):
            return
        if module.problem:
            self._skip_module(module, module.problem)
            return
        if module.tree is None:
            try:
                module.tree = parse(module.name, module.source.text)
            except UnreadableSourceError as err:
                module.problem = str(err)
                self._skip_module(module, module.problem)
                return
        statements = module.tree.children
        self.declare_variables(module.tree, module.frame)
        for statement in statements:
            if statement.kind == "import_statement":
                self._follow_import(statement, module)
        self.execute_block(statements, module.frame)

    def _skip_module(self, module: JsModule, problem: str) -> None:
        """Report a module that cannot be read. Everything imported from it counts as unknown."""
        self.add_unknown(UNREADABLE, 1, problem)
        self.unreadable[module.name] = problem

    def _execute_import_statement(self, node: JsNode, frame: object) -> bool:  # noqa: ARG002  one signature for all
        return False  # followed before the other statements

    def _follow_import(self, node: JsNode, module: JsModule) -> None:
        source = node.get("source")
        clause = next((child for child in node.children if child.kind == "import_clause"), None)
        if "type" in node.text.split():
            return
        if source is None:
            self._follow_import_assignment(node, module)
            return
        specifiers = [] if clause is None else _list_import_specifiers(clause)
        if clause is not None and not specifiers:
            return  # only types
        exports = self.load_specifier(read_string(source), node)
        for local, imported in specifiers:
            value = exports if imported is None else self.get_member(exports, imported, node.line)
            self.write(module.frame.names.setdefault(local, Slot()), value)

    def _follow_import_assignment(self, node: JsNode, module: JsModule) -> None:
        """Follow ``import x = require("y")`` of TypeScript."""
        for child in node.children:
            if child.kind == "import_require_clause" and child.get("source") is not None:
                value = self.load_specifier(read_string(child.fields["source"]), node)
                name = next(part for part in child.children if part.kind == "identifier")
                self.write(module.frame.names.setdefault(decode_text(name.text), Slot()), value)

    def _execute_export_statement(self, node: JsNode, frame: Any) -> bool:
        module = frame.module
        source, declaration = node.get("source"), node.get("declaration")
        words = node.text.split()
        if "type" in words:
            return False
        if source is not None:
            self._re_export(node, self.load_specifier(read_string(source), node), module)
        elif declaration is not None:
            self.execute(declaration, frame)
            for name in _list_declared(declaration):
                slot = frame.names.get(name)
                if slot is not None:
                    self.set_object_member(module.exports, "default" if "default" in words else name, self.read(slot))
            if "default" in words and "name" not in declaration.fields:
                self.set_object_member(module.exports, "default", self.evaluate(declaration, frame))
        elif "default" in words:
            value = node.get("value")
            if value is not None:
                self.set_object_member(module.exports, "default", self.evaluate(value, frame))
        else:
            self._export_names(node, frame, module)
        return False

    def _re_export(self, node: JsNode, exports: AbstractValue, module: JsModule) -> None:
        target: AbstractValue = frozenset((module.exports,))
        for child in node.children:
            if child.kind == "namespace_export":
                self.set_object_member(module.exports, _read_name(child.children[0]), exports)
                return
            if child.kind == "export_clause":
                for specifier in child.children:
                    name = _read_name(specifier.fields["name"])
                    alias = specifier.get("alias")
                    value = self.get_member(exports, name, node.line)
                    self.set_object_member(module.exports, name if alias is None else _read_name(alias), value)
                return
        self.copy_members(target, exports)

    def _export_names(self, node: JsNode, frame: Any, module: JsModule) -> None:
        for child in node.children:
            for specifier in child.children if child.kind == "export_clause" else ():
                if "name" not in specifier.fields:
                    continue
                alias = specifier.get("alias")
                slot = self.look_up(_read_name(specifier.fields["name"]), frame)
                name = _read_name(specifier.fields["name"] if alias is None else alias)
                self.set_object_member(module.exports, name, EMPTY if slot is None else self.read(slot))


def _choose_condition(target: Any) -> Any:
    """Return the file for Node from the conditions in ``exports``."""
    for _ in range(8):
        if isinstance(target, list):
            target = target[0] if target else None
        if not isinstance(target, dict):
            return target
        target = next((target[name] for name in _CONDITIONS if name in target), None)
    return None


def _read_name(node: JsNode) -> str:
    return read_string(node) if node.kind == "string" else decode_text(node.text)


def _list_import_specifiers(clause: JsNode) -> list[tuple[str, str | None]]:
    """Return the local name and the imported name of each import; None stands for the whole module."""
    found: list[tuple[str, str | None]] = []
    for child in clause.children:
        if child.kind == "identifier":
            found.append((decode_text(child.text), "default"))
        elif child.kind == "namespace_import":
            found.append((decode_text(child.children[0].text), None))
        elif child.kind == "named_imports":
            for specifier in child.children:
                if specifier.kind == "import_specifier" and "type" not in specifier.text.split():
                    name = _read_name(specifier.fields["name"])
                    alias = specifier.get("alias")
                    found.append((name if alias is None else decode_text(alias.text), name))
    return found


def _list_declared(declaration: JsNode) -> list[str]:
    if "name" in declaration.fields:
        return [decode_text(declaration.fields["name"].text)]
    names: list[str] = []
    for child in declaration.children:
        if child.kind == "variable_declarator":
            pending = [child.fields["name"]]
            while pending:
                node = pending.pop()
                if node.kind in ("identifier", "shorthand_property_identifier_pattern"):
                    names.append(decode_text(node.text))
                elif node.kind == "pair_pattern":
                    pending.append(node.fields["value"])
                else:
                    pending += node.children
    return names
