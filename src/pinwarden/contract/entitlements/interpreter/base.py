"""The base class of the interpreter's mixins, which has the analysed program, the limits and the findings."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.objects import (
    EMPTY,
    AbstractValue,
    Class,
    Container,
    ContainerMethod,
    ExternalName,
    Function,
    ImportedName,
    ModuleItem,
    ParameterMark,
    Text,
    compute_sort_key,
)
from pinwarden.contract.entitlements.interpreter.program import Activation, Module, PythonFrame
from pinwarden.contract.entitlements.interpreter.terms import MAX_OBJECTS, CallArguments, Registration
from pinwarden.contract.entitlements.values import Source

_NODE = ast.Pass(lineno=0, col_offset=0)


class InterpreterBase:
    """State and shared operations of the interpreter's mixins."""

    def __init__(self, sources: Mapping[str, Source], packages: Mapping[str, Source] | None) -> None:
        self.sources = sources
        self.packages = packages
        self.modules: dict[str, Module | None] = {}
        self.package_modules = 0
        self.activations: dict[object, Activation] = {}
        self.definitions: dict[tuple[str, str], list[tuple[int, AbstractValue]]] = {}
        """The value of each ``def`` after its decorators, by module and qualified name."""
        self.registrations: dict[tuple[str, str, int, str | None], Registration] = {}
        self.tool_names: dict[str, None] = {}
        """The names in calls of ``Tool(name=…)``, in the order of the source."""
        self.parsed_annotations: dict[str, ast.expr | None] = {}
        """The syntax trees of annotations that are written as strings."""
        self.shapes: dict[int, int] = {}
        """The number of argument combinations of each function, by the id of its syntax node."""
        self.runs = 0
        self.depth = 0
        self.exhausted = False
        self.current = Activation("<none>", NOWHERE, NOWHERE.frame)
        """The activation that the analysis follows now."""
        self.pending: dict[Activation, None] = {}
        """Activations to follow, or to follow again because a value that they read may refer to more objects."""

    # Implemented by the other mixins

    def evaluate(self, node: ast.expr, frame: PythonFrame) -> AbstractValue:
        """Return the value of an expression."""
        raise NotImplementedError

    def run(self, body: Sequence[ast.stmt], frame: PythonFrame) -> bool:
        """Follow statements. Returns whether the code after them is reached."""
        raise NotImplementedError

    def invoke(self, callee: AbstractValue, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the result of a call. Records the entitlements that the call needs."""
        raise NotImplementedError

    def call_function(
        self, function: Function, args: CallArguments, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        """Follow the call of a function in the source, and return its result."""
        raise NotImplementedError

    def read_attribute(self, value: AbstractValue, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the value of an attribute."""
        raise NotImplementedError

    def evaluate_annotation(self, node: ast.expr | None, frame: PythonFrame) -> AbstractValue:
        """Return the value that a type annotation implies."""
        raise NotImplementedError

    def load_module(self, name: str) -> Module | None:
        """Return a module of the server or of an analysed package. Its code is followed once, like an import."""
        raise NotImplementedError

    # Recording

    def record_entitlement(self, frame: PythonFrame, kind: str, node: ast.AST, what: str) -> None:
        """Record that a line needs an entitlement."""
        frame.activation.effects.setdefault((kind, getattr(node, "lineno", 0), what))

    def record_unknown(self, frame: PythonFrame, reason: str, node: ast.AST, what: str) -> None:
        """Record code that the analysis cannot follow."""
        frame.activation.unknown.setdefault((reason, getattr(node, "lineno", 0), what))

    def record_call(self, frame: PythonFrame, activation: Activation, node: ast.AST) -> None:
        """Record the first line on which a function calls an activation."""
        line = getattr(node, "lineno", 0)
        known = frame.activation.calls.get(activation)
        if known is None or line < known:
            frame.activation.calls[activation] = line

    def evaluate_external(self, path: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the value of an external path. Records the entitlements that merely reading it needs."""
        path = effects.canonicalize_path(path)
        if effects.needs_no_call(path):
            for kind in effects.find_effect(path).kinds:
                self.record_entitlement(frame, kind, node, path)
        return AbstractValue((ExternalName(path),)) if effects.has_reach(path) or effects.is_modelled(path) else EMPTY

    # Names

    def store(self, frame: PythonFrame, name: str, value: AbstractValue) -> None:
        """Bind a name, and queue the activations that read it if its value grew."""
        if len(value) > MAX_OBJECTS:
            value = self.limit_value(value)
        owner = frame.outer_names.get(name)
        if owner is None:
            frame.names[name] = value
            owner = frame
        else:
            owner.names[name] = owner.names.get(name, EMPTY) | value
        known = owner.all_values.get(name)
        if known is None or not value <= known:
            owner.all_values[name] = value if known is None else self.limit_value(known | value)
            if readers := owner.readers.get(name):
                self.pending.update(readers)

    def look_up(self, name: str, frame: PythonFrame) -> AbstractValue:
        """Return the value of a name in a frame, resolved through imports."""
        value = frame.names.get(name)
        if value is None or name in frame.outer_names:
            value = self._look_up_outer(name, frame)
        for item in value:
            if type(item) is ImportedName:
                return self.resolve_imports(value, frame)
        return value

    def _look_up_outer(self, name: str, frame: PythonFrame) -> AbstractValue:
        owner = frame.outer_names.get(name)
        outer = owner if owner is not None else frame.parent
        while outer is not None:
            if outer.cls is None:
                self.record_read(outer.readers, name)
                value = outer.all_values.get(name)
                if value is not None and outer.parent is not None:
                    return value
                if outer.parent is None:
                    break
            outer = outer.parent
        return self.look_up_global(name, frame.module)

    def look_up_global(self, name: str, module: Module) -> AbstractValue:
        """Return the value of a module's global name, including builtins."""
        self.record_read(module.frame.readers, name)
        value = module.frame.all_values.get(name)
        writers = self.follow_global_writers(name, module)
        if writers:
            value = module.frame.all_values.get(name, value)
        if value is not None:
            return value
        for star in module.star_imports:
            if isinstance(star, Module):
                if name in star.frame.all_values or any(star.star_imports):
                    return self.look_up_global(name, star)
            elif not name.startswith("_") and name not in _BUILTINS:
                return AbstractValue((ExternalName(effects.canonicalize_path(f"{star}.{name}")),))
        if name in _BUILTINS:
            return AbstractValue((ExternalName(f"builtins.{name}"),))
        if name == "__name__":
            return AbstractValue((Text(module.name), ParameterMark(RUNTIME, "__name__")))
        return EMPTY

    def follow_global_writers(self, name: str, module: Module) -> bool:
        """Follow the functions that declare ``global name``. Returns whether there are any."""
        raise NotImplementedError

    def resolve_imports(self, value: AbstractValue, frame: PythonFrame) -> AbstractValue:
        """Replace imported names by the objects that they refer to."""
        result: AbstractValue = EMPTY
        for item in value:
            if type(item) is ImportedName:
                result |= self.read_member(item.module, item.name, frame)
            else:
                result |= AbstractValue((item,))
        return result

    def read_member(self, module: Module, name: str, frame: PythonFrame) -> AbstractValue:
        """Return the value of a global name of a module, or its submodule of that name."""
        self.record_read(module.frame.readers, name)
        # A function may assign the name although the module does, too. So its writers are followed first, in any case.
        has_writers = self.follow_global_writers(name, module)
        if has_writers or name in module.frame.all_values:
            value = module.frame.all_values.get(name, EMPTY)
            if any(type(item) is ImportedName and item.module is module and item.name == name for item in value):
                below = self.load_module(f"{module.name}.{name}")
                return AbstractValue((ModuleItem(below),)) if below else EMPTY
            return self.resolve_imports(value, frame)
        below = self.load_module(f"{module.name}.{name}")
        if below is not None:
            return AbstractValue((ModuleItem(below),))
        for star in module.star_imports:
            if isinstance(star, Module):
                if star is not module and (value := self.read_member(star, name, frame)):
                    return value
            elif not name.startswith("_"):
                return AbstractValue((ExternalName(effects.canonicalize_path(f"{star}.{name}")),))
        return EMPTY

    # Texts and containers

    def list_texts(self, value: AbstractValue) -> list[Text]:
        """Return the constant texts in a value, and mark the parameters they come from as text-sensitive."""
        result = []
        for item in value:
            if type(item) is ParameterMark:
                item.function.text_sensitive[item.parameter] = None
            elif type(item) is Text:
                result.append(item)
        return result

    def get_single_text(self, value: AbstractValue) -> str | None:
        """Return the text of a value that is exactly one complete text; otherwise None."""
        result = self.list_texts(value)
        if len(result) == 1 and result[0].complete and all(isinstance(item, Text | ParameterMark) for item in value):
            return result[0].text
        return None

    def get_container(self, frame: PythonFrame, node: ast.AST, use: str = "") -> Container:
        """Return the container that a node creates in a frame."""
        table = frame.tables.get((id(node), use))
        if table is None:
            table = frame.tables[id(node), use] = Container()
        return table

    def put(self, table: Container, key: str | None, value: AbstractValue) -> None:
        """Add a value to a container, under a constant key or, with None, under an unknown key."""
        value = remove_marks(value)
        known = table.values_of_unknown_keys if key is None else table.keys.get(key)
        if known is not None and value <= known:
            return
        more = self.limit_value(value if known is None else known | value)
        if more == known:
            return
        if key is None:
            table.values_of_unknown_keys = more
        else:
            table.keys[key] = more
        if not all(type(item) is Text for item in value) or not value:
            table.closed = False
        if table.readers:
            self.pending.update(table.readers)

    def limit_value(self, value: AbstractValue) -> AbstractValue:
        """Reduce a value to at most ``MAX_OBJECTS`` objects."""
        if len(value) <= MAX_OBJECTS:
            return value
        value = AbstractValue(item for item in value if type(item) is not Text)  # treat as an unknown text
        if len(value) <= MAX_OBJECTS:
            return value
        self.record_unknown(self.current.frame, "a variable can stand for too many things", _NODE, self.current.label)
        kept = [item for item in value if not isinstance(item, Container | ContainerMethod)]
        return AbstractValue(sorted(kept, key=compute_sort_key)[:MAX_OBJECTS])

    def read_content(self, table: Container) -> AbstractValue:
        """Return all values in a container, and record that the current activation depends on them."""
        table.readers[self.current] = None
        return table.merge_values()

    def record_read(self, readers: dict[str, dict[Activation, None]], name: str) -> None:
        """Record that the current activation depends on a name."""
        known = readers.get(name)
        if known is None:
            readers[name] = {self.current: None}
        else:
            known[self.current] = None

    def list_elements(self, value: AbstractValue) -> AbstractValue:
        """Return the elements of an iterable value."""
        result: AbstractValue = EMPTY
        for item in value:
            if type(item) is Container:
                result |= self.read_content(item)
            elif type(item) is ExternalName:
                result |= AbstractValue((item,))
            elif type(item) is Class:
                result |= AbstractValue().union(*(v for v in item.body.all_values.values()))
        return result

    def add_attribute(self, cls: Class, name: str, value: AbstractValue) -> None:
        """Add a value to the possible values of an attribute of the class's objects."""
        self.list_texts(value)  # a stored text distinguishes the calls that passed it
        value = remove_marks(value)
        known = cls.attributes.get(name)
        if known is None or not value <= known:
            cls.attributes[name] = value if known is None else self.limit_value(known | value)
            if readers := cls.readers.get(name):
                self.pending.update(readers)


def remove_marks(value: AbstractValue) -> AbstractValue:
    """Remove parameter marks, which have no meaning outside the call."""
    for item in value:
        if type(item) is ParameterMark:
            return AbstractValue(item for item in value if type(item) is not ParameterMark)
    return value


def remove_texts(value: AbstractValue) -> AbstractValue:
    """Remove texts and parameter marks, which need no entitlement."""
    for item in value:
        if type(item) is Text or type(item) is ParameterMark:
            return AbstractValue(item for item in value if type(item) is not Text and type(item) is not ParameterMark)
    return value


_BUILTINS = frozenset(terms.BUILTINS.split())
NOWHERE = Module("", Source(path="", text=""), third_party=False)
RUNTIME = Function(
    ast.Lambda(
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=ast.Constant(value=None),
    ),
    NOWHERE,
    NOWHERE.frame,
    "",
    "",
)
"""A placeholder for the Python interpreter, which sets ``__name__``."""
