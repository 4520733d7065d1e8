"""The abstract interpreter: imports modules, discovers handlers and follows them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter.objects import (
    EMPTY,
    AbstractValue,
    BoundMethod,
    Class,
    Function,
    Instance,
    Text,
    ToolCallParams,
    WrappedMethod,
)
from pinwarden.contract.entitlements.interpreter.program import Activation, Module, PythonFrame, walk
from pinwarden.contract.entitlements.interpreter.statements import Statements
from pinwarden.contract.entitlements.interpreter.terms import MAX_RUNS, CallArguments
from pinwarden.contract.entitlements.values import Handler

MAX_PACKAGE_MODULES = 400
"""Modules of packages that are analysed for one server. The largest packages in use have several thousand."""
_NODE = ast.Pass(lineno=0, col_offset=0)
_REGISTRATION_HINTS = (
    ".tool",
    "call_tool",
    "add_tool",
    "list_tools",
    ".prompt",
    "get_prompt",
    ".resource",
    "read_resource",
    "add_prompt",
    "add_resource",
)


class AbstractInterpreter(Statements):
    """Finds out which entitlements the code of a program needs, without running it."""

    discovered = False

    # Modules

    def load_module(self, name: str) -> Module | None:
        """Return a module of the server or of an analysed package. The first call follows its code, like an import."""
        known = self.modules.get(name)
        if known is not None or name in self.modules:
            return known
        source, third_party = self.sources.get(name), False
        if source is None and self.packages is not None and not effects.is_covered(name.partition(".")[0]):
            if not self._follows_package(name):
                return None  # not remembered: the server itself may import it later
            source, third_party = self.packages.get(name), True
            self.package_modules += source is not None
        if source is None:
            self.modules[name] = None
            return None
        module = self.modules[name] = Module(name, source, third_party=third_party)
        parent, _, _ = name.rpartition(".")
        above = self.load_module(parent) if parent else None
        if above is not None:
            module.activation.calls.setdefault(above.activation, 1)
        module.parse()
        self._follow_module(module)
        return module

    def _follows_package(self, name: str) -> bool:
        """Whether a module of a package is analysed: only packages that the server itself imports, up to a limit."""
        importer = self.current.module
        is_direct = not importer.third_party or importer.name.partition(".")[0] == name.partition(".")[0]
        return is_direct and self.package_modules < MAX_PACKAGE_MODULES

    def _follow_module(self, module: Module) -> None:
        if module.tree is None:
            self.record_unknown(module.frame, module.parse_error, _NODE, module.name)
            return
        depth, self.depth = self.depth, 0
        importer, self.current = self.current, module.activation
        module.activation.runs += 1
        module.activation.running = True
        try:
            self.run(module.tree.body, module.frame)
        except RecursionError:
            self.record_unknown(module.frame, "nested too deeply to be followed", _NODE, module.name)
        finally:
            self.depth, self.current = depth, importer
            module.activation.running = False

    def follow_global_writers(self, name: str, module: Module) -> bool:
        """Follow the functions that declare ``global name``. Returns whether there are any."""
        writers = module.global_writers
        if writers is None:
            writers = module.global_writers = _list_global_writers(module)
        names = writers.get(name)
        if not names:
            return False
        writers[name] = []  # follow each writer only once here; later changes queue it again
        for function in names:
            value = module.frame.all_values.get(function, EMPTY)
            self._follow_detached(value, module)
        return True

    def _follow_detached(self, value: AbstractValue, module: Module, args: CallArguments | None = None) -> None:
        """Follow functions to find the values they store or register, without recording a call of them."""
        detached = PythonFrame(module, module.frame, "")
        detached.activation = Activation("<aside>", module, detached)
        for item in value:
            if isinstance(item, Function | BoundMethod | WrappedMethod):
                self.invoke(AbstractValue((item,)), args or CallArguments(), _NODE, detached)

    # Handlers

    def discover(self) -> None:
        """Load every module that seems to register handlers, and follow the functions that register them."""
        for name, source in self.sources.items():
            if any(sign in source.text for sign in _REGISTRATION_HINTS):
                module = self.load_module(name)
                if module is not None and module.tree is not None:
                    self._follow_registering(module, module.tree)
        self._follow_pending()
        for registration in list(self.registrations.values()):
            if registration.kind == "list_tools":
                module = self.load_module(registration.module)
                if module is not None:
                    self._follow_detached(self.find_value(registration.module, registration.qualname), module)

    def _follow_registering(self, module: Module, tree: ast.Module) -> None:
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                for method in statement.body:
                    if name := _find_registering_function(method):
                        self._follow_detached(self.find_value(module.name, f"{statement.name}.{name}"), module)
            elif name := _find_registering_function(statement):
                self._follow_detached(self.find_value(module.name, name), module)

    def find_value(self, module_name: str, qualname: str, line: int = 0) -> AbstractValue:
        """Return the value of a qualified name, after following the functions that enclose its definition."""
        module = self.load_module(module_name)
        if module is None:
            return EMPTY
        parts = qualname.split(".<locals>.")
        for depth in range(1, len(parts)):
            self._follow_detached(self._find_defined_value(module, ".<locals>.".join(parts[:depth]), 0), module)
        return self._find_defined_value(module, qualname, line)

    def _find_defined_value(self, module: Module, qualname: str, line: int) -> AbstractValue:
        definitions = self.definitions.get((module.name, qualname), [])
        same_line = [value for lineno, value in definitions if lineno == line]
        values = same_line or [value for _, value in definitions]
        result: AbstractValue = AbstractValue().union(*values) if values else EMPTY
        if not result and "." not in qualname:
            result = self.read_member(module, qualname, module.frame)
        return AbstractValue(_bind_method(item) for item in result)

    def find_roots(self, handler: Handler) -> dict[Activation, None]:
        """Return the activations that a call of the handler starts."""
        module = self.load_module(handler.module)
        if module is None:
            return {}
        value = self.find_value(handler.module, handler.function, handler.line)
        if not value and not self.discovered:
            self.discovered = True
            self.discover()
            value = self.find_value(handler.module, handler.function, handler.line)
        for registration in self.registrations.values():
            if (registration.module, registration.qualname) == (handler.module, handler.function):
                bound = AbstractValue(item for item in registration.value if isinstance(item, BoundMethod))
                value = bound or value
        begin = PythonFrame(module, module.frame, "")
        begin.activation = Activation("<begin>", module, begin)
        if value:
            self.invoke(value, self._build_call_arguments(handler, value), _NODE, begin)
        return dict.fromkeys(begin.activation.calls)

    def _build_call_arguments(self, handler: Handler, value: AbstractValue) -> CallArguments:
        if handler.case is None:
            return CallArguments()
        request: AbstractValue = AbstractValue((ToolCallParams(handler.case),))
        name: AbstractValue = AbstractValue((Text(handler.case),))
        for item in value:
            function = item.function if isinstance(item, BoundMethod) else item
            if isinstance(function, Function):
                names = [parameter for parameter in function.parameters if parameter not in ("self", "cls")]
                if names and names[0] in ("ctx", "context", "_ctx", "_", "req", "request"):
                    return CallArguments(positional=(EMPTY, request) if len(names) > 1 else (request,))
        return CallArguments(positional=(name,))

    # The complete analysis

    def follow(self, handlers: Iterable[Handler]) -> dict[Handler, dict[Activation, None]]:
        """Follow all handlers. Functions that read a changed value are followed again, until no value changes.

        Returns the activations that a call of each handler starts.
        """
        roots = {handler: self.find_roots(handler) for handler in handlers}
        self._follow_pending()
        return roots

    def clear(self) -> None:
        """Break the reference cycles of the analysis, so that its memory is freed immediately."""
        modules = [module for module in self.modules.values() if module is not None]
        for activation in [*self.activations.values(), *(module.activation for module in modules)]:
            activation.calls.clear()
            activation.callers.clear()
            activation.function = None
            _clear_frame(activation.frame)
        for module in modules:
            module.tree = None
            module.star_imports.clear()
        self.activations.clear()
        self.modules.clear()
        self.definitions.clear()
        self.registrations.clear()
        self.pending.clear()

    def _follow_pending(self) -> None:
        while self.pending and not self.exhausted:
            activation = next(iter(self.pending))
            del self.pending[activation]
            if activation.function is not None:
                self.follow_activation(activation)
            elif activation is activation.module.activation and not activation.running and activation.runs < MAX_RUNS:
                self._follow_module(activation.module)


def _clear_frame(frame: PythonFrame) -> None:
    for cls in frame.classes.values():
        cls.attributes.clear()
        cls.readers.clear()
        cls.children.clear()
        _clear_frame(cls.body)
    for table in frame.tables.values():
        table.keys.clear()
        table.values_of_unknown_keys = EMPTY
        table.readers.clear()
    for mapping in (frame.names, frame.all_values, frame.arguments, frame.readers, frame.outer_names):
        mapping.clear()
    frame.functions.clear()
    frame.classes.clear()
    frame.tables.clear()


def _bind_method(item: object) -> Function | BoundMethod | Class | WrappedMethod | Instance:
    if isinstance(item, WrappedMethod):
        inner = next((value for value in item.value if isinstance(value, Function)), None)
        if inner is not None and item.kind != "static" and inner.in_class is not None:
            return BoundMethod(inner, inner.in_class if item.kind == "class" else Instance(inner.in_class))
        return inner or item
    if isinstance(item, Function) and item.in_class is not None:
        return BoundMethod(item, Instance(item.in_class))
    return item  # type: ignore[return-value]  # other objects are called unchanged


def _find_registering_function(node: ast.stmt) -> str:
    """Return the name of a function that registers handlers with a server; an empty string for other statements."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    for statement in node.body:
        for part in walk(statement):
            if isinstance(part, ast.Attribute) and part.attr in effects.REGISTRATION_METHODS:
                return node.name
            if isinstance(part, ast.keyword) and part.arg in ("on_call_tool", "on_get_prompt", "on_read_resource"):
                return node.name
    return ""


def _list_global_writers(module: Module) -> dict[str, list[str]]:
    """Map each global name of a module to the top-level functions that assign it."""
    writers: dict[str, list[str]] = {}
    if module.tree is None or "global" not in module.source.text:
        return writers
    for statement in module.tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and module.mentions("global", statement):
            for part in walk(statement):
                if isinstance(part, ast.Global):
                    for name in part.names:
                        writers.setdefault(name, []).append(statement.name)
    return writers
