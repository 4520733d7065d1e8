"""Evaluate calls of code outside the analysed source.

The catalogue says which entitlements such a call needs. A function that is passed to external code counts as called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.base import remove_marks
from pinwarden.contract.entitlements.interpreter.calls import Registrations
from pinwarden.contract.entitlements.interpreter.objects import (
    EMPTY,
    AbstractValue,
    BoundMethod,
    Class,
    Container,
    ContainerMethod,
    ExternalName,
    Function,
    Instance,
    ModuleItem,
    Namespace,
    Partial,
    PythonObject,
    Text,
    WrappedMethod,
)
from pinwarden.contract.entitlements.interpreter.program import PythonFrame
from pinwarden.contract.entitlements.interpreter.terms import NO_ARGUMENTS, CallArguments

_FRAMEWORKS = ("mcp", "fastmcp")
_DEFERRED_GET, _DEFERRED_CALL = "operator.attrgetter()", "operator.methodcaller()"
_DYNAMIC = "the name of what is used is computed"
_CALLABLE = (Function, BoundMethod, Partial, ExternalName, Container, Class)
_RETURNS_ARGUMENTS = frozenset(terms.RETURNS_ARGUMENTS.split())


class ExternalCalls(Registrations):
    """Mixin that evaluates calls of external code."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # passed on to InterpreterBase
        special = self._make_method_wrapper
        self.known_calls: dict[str, Callable[[CallArguments, ast.AST, PythonFrame], AbstractValue]] = {
            "builtins.getattr": self.evaluate_getattr,
            "builtins.setattr": self._evaluate_setattr,
            "builtins.__import__": self.import_by_name,
            "importlib.import_module": self.import_by_name,
            "builtins.super": lambda _, __, frame: self.evaluate_super(frame),
            "builtins.globals": lambda _, __, frame: AbstractValue((Namespace(frame.module),)),
            "builtins.locals": lambda _, __, frame: AbstractValue((Namespace(frame.module),)),
            "builtins.vars": self._evaluate_vars,
            "builtins.next": lambda args, _, __: self.list_elements(args.get_argument(0) or EMPTY),
            "builtins.type": self._evaluate_type,
            "builtins.staticmethod": special("static"),
            "builtins.classmethod": special("class"),
            "builtins.property": special("property"),
            "functools.cached_property": special("property"),
            "inspect.getattr_static": self.evaluate_getattr,
            "functools.wraps": lambda _, __, ___: AbstractValue((ExternalName("functools.wraps()"),)),
            "functools.wraps()": lambda args, _, __: args.get_argument(0) or EMPTY,
            "functools.update_wrapper": lambda args, _, __: args.get_argument(0) or EMPTY,
            "functools.partial": lambda args, _, __: _build_partial(args),
            "functools.partialmethod": lambda args, _, __: _build_partial(args),
            "operator.attrgetter": lambda args, _, __: _build_deferred(_DEFERRED_GET, args),
            "operator.methodcaller": lambda args, _, __: _build_deferred(_DEFERRED_CALL, args),
            _DEFERRED_GET: self._evaluate_attrgetter_call,
            _DEFERRED_CALL: self._evaluate_methodcaller_call,
            "builtins.map": self._evaluate_map,
            "builtins.filter": self._evaluate_map,
        }

    def call_external(self, path: str, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Evaluate a call of an external function or class."""
        form = self.known_calls.get(path)
        if form is not None:
            return form(args, node, frame)
        if path in _RETURNS_ARGUMENTS:
            return self._return_arguments(path, args, node, frame)
        if path.partition(".")[0] in _FRAMEWORKS:
            registered = self.call_framework(path, args)
            if registered is not None:
                return registered
        self.record_effect(path, args, node, frame)
        result = EMPTY if effects.never_calls(path) else self.call_passed_functions(args, node, frame)
        after = effects.find_result(path)
        return result | AbstractValue((ExternalName(after),)) if after is not None else result

    def record_effect(self, path: str, args: CallArguments, node: ast.AST, frame: PythonFrame) -> None:
        """Record the entitlements that a call needs according to the catalogue."""
        effect = effects.find_effect(path)
        if not effect.known:
            package = path.partition(".")[0]
            self.record_unknown(frame, f"the package {package} is not in the table and was not scanned", node, path)
            return
        kinds = effect.kinds
        if kinds and "@" in kinds[0]:
            rule, _, index = kinds[0].partition("@")
            kinds = self._resolve_rule(rule, int(index), args)
        elif not kinds and not effect.stated and "(" in path:
            kinds = effects.find_method_kinds(path.rpartition(".")[2])
        for kind in kinds:
            self.record_entitlement(frame, kind, node, path)

    def _resolve_rule(self, rule: str, index: int, args: CallArguments) -> tuple[str, ...]:
        value = args.get_argument(index, "mode" if rule == "mode" else "sql")
        if value is None and rule == "mode":
            return effects.find_mode_kinds(None if args.spread else "r")
        texts = self.list_texts(value) if value is not None else []
        if value is None or not texts or (rule == "mode" and not all(text.complete for text in texts)):
            return effects.find_mode_kinds(None) if rule == "mode" else effects.find_sql_kinds(None)
        kinds_of = effects.find_mode_kinds if rule == "mode" else effects.find_sql_kinds
        kinds = {kind for text in texts for kind in kinds_of(text.text)}
        return tuple(sorted(kinds))

    def call_passed_functions(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Follow the functions among the arguments, which external code may call. Returns their possible results."""
        result: AbstractValue = EMPTY
        for index, value in enumerate(args.positional):
            for item in value:
                if isinstance(item, _CALLABLE):
                    rest = CallArguments(positional=args.positional[index + 1 :], keywords=args.keywords)
                    result |= self._call_passed(item, rest, node, frame)
        for name, value in args.keywords.items():
            for item in value:
                if isinstance(item, _CALLABLE):
                    rest = self._select_thread_arguments(args) if name == "target" else NO_ARGUMENTS
                    self._call_passed(item, rest, node, frame)
        for item in args.spread:
            self._call_passed(item, NO_ARGUMENTS, node, frame)
        return result

    def _select_thread_arguments(self, args: CallArguments) -> CallArguments:
        positional: tuple[AbstractValue, ...] = ()
        for item in args.keywords.get("args", EMPTY):
            if isinstance(item, Container):
                positional = tuple(item.keys[key] for key in sorted(item.keys) if key.isdigit())
        return CallArguments(positional=positional)

    def _call_passed(self, item: PythonObject, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if isinstance(item, Function | BoundMethod | Partial):
            return self.invoke(AbstractValue((item,)), args, node, frame) | AbstractValue((item,))
        if isinstance(item, Class) and item.has_external_base:
            return self.invoke(AbstractValue((item,)), NO_ARGUMENTS, node, frame)
        if isinstance(item, Container):
            for inner in item.merge_values():
                if isinstance(inner, Function | BoundMethod | Partial | ExternalName):
                    self._call_passed(inner, NO_ARGUMENTS, node, frame)
        if isinstance(item, ExternalName) and not item.path.endswith(")"):
            effect = effects.find_effect(item.path)
            last = item.path.rpartition(".")[2]
            if effect.kinds and (effect.stated or last[:1].islower()):
                return self.call_external(item.path, args, node, frame)
        return EMPTY

    def _return_arguments(self, path: str, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        result = remove_marks(args.merge_values())
        if path == "builtins.iter" and len(args.positional) > 1:  # iter(function, sentinel)
            return result | self.invoke(args.positional[0], NO_ARGUMENTS, node, frame)
        if path in ("builtins.sorted", "builtins.max", "builtins.min") and "key" in args.keywords:
            self.invoke(args.keywords["key"], CallArguments(positional=(self.list_elements(result),)), node, frame)
        if path in ("builtins.enumerate", "builtins.zip"):
            pair, outer = self.get_container(frame, node, "pair"), self.get_container(frame, node, "pairs")
            shift = 1 if path.endswith("enumerate") else 0
            for index, value in enumerate(args.positional):
                self.put(pair, str(index + shift), self.list_elements(value))
            self.put(outer, None, AbstractValue((pair,)))
            return AbstractValue((outer,))
        if path in ("builtins.max", "builtins.min"):
            return self.list_elements(result)
        if path == "builtins.dict" and args.keywords:
            table = self.get_container(frame, node, "dict")
            for name, value in args.keywords.items():
                self.put(table, name, value)
            return AbstractValue((table,)) | (args.get_argument(0) or EMPTY)
        return result

    # Functions that the analysis models

    def _make_method_wrapper(self, kind: str) -> Callable[[CallArguments, ast.AST, PythonFrame], AbstractValue]:
        def wrap(args: CallArguments, _: ast.AST, __: PythonFrame) -> AbstractValue:
            value = args.get_argument(0, "fget")
            return AbstractValue((WrappedMethod(kind, value),)) if value else EMPTY

        return wrap

    def evaluate_getattr(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Evaluate ``getattr``. If the name of the attribute is computed, the result is every method of the object."""
        value, name = args.get_argument(0) or EMPTY, args.get_argument(1) or EMPTY
        texts = self.list_texts(name)
        result = args.get_argument(2) or EMPTY
        if texts and all(text.complete for text in texts):
            for text in texts:
                result |= self.read_attribute(value, text.text, node, frame)
            return result
        for item in value:
            if isinstance(item, ModuleItem | Class | Instance):
                self.record_unknown(frame, _DYNAMIC, node, "getattr")
                result |= self.list_methods(item, node, frame)
            elif isinstance(item, ExternalName):
                self.record_unknown(frame, _DYNAMIC, node, f"getattr({item.path}, …)")
        return result

    def list_methods(self, item: PythonObject, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the functions of a module, class or object in the source, except those named ``__…``."""
        names: dict[str, AbstractValue] = {}
        if isinstance(item, ModuleItem):
            names = item.module.frame.all_values
        elif isinstance(item, Class):
            names = item.body.all_values
        elif isinstance(item, Instance):
            names = {**item.cls.body.all_values, **item.cls.attributes}
        result: AbstractValue = EMPTY
        for name in list(names):
            if not name.startswith("__"):
                for inner in self.read_attribute(AbstractValue((item,)), name, node, frame):
                    if isinstance(inner, Function | BoundMethod):
                        result |= AbstractValue((inner,))
        return result

    def _evaluate_setattr(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        value, name, content = (
            args.get_argument(0) or EMPTY,
            self.list_texts(args.get_argument(1) or EMPTY),
            args.get_argument(2) or EMPTY,
        )
        for item in value:
            for part in name:
                if isinstance(item, Instance):
                    self.add_attribute(item.cls, part.text, content)
                elif isinstance(item, ModuleItem):
                    self.store(item.module.frame, part.text, remove_marks(content))
            if not name and content and isinstance(item, Instance | ModuleItem | Class):
                self.record_unknown(frame, _DYNAMIC, node, "setattr")
        return EMPTY

    def import_by_name(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Evaluate ``importlib.import_module`` and ``__import__``. A computed name is recorded as unknown."""
        texts = self.list_texts(args.get_argument(0, "name") or EMPTY)
        if not texts or not all(text.complete for text in texts):
            self.record_unknown(frame, "the module that is imported is computed", node, "import")
            return EMPTY
        result: AbstractValue = EMPTY
        for text in texts:
            name = text.text
            if name.startswith("."):
                package = self.list_texts(args.get_argument(1, "package") or EMPTY)
                base = package[0].text if package else frame.module.name.rpartition(".")[0]
                name = base + name
            result |= self.import_module(name, frame, node)
        return result

    def import_module(self, name: str, frame: PythonFrame, node: ast.AST) -> AbstractValue:
        """Return the module with this full name, and record the import."""
        module = self.load_module(name)
        if module is None:
            self.evaluate_external(name, node, frame)
            return AbstractValue((ExternalName(effects.canonicalize_path(name)),))
        self.record_call(frame, module.activation, node)
        return AbstractValue((ModuleItem(module),))

    def _evaluate_vars(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if not args.positional:
            return AbstractValue((Namespace(frame.module),))
        return self.read_attribute(args.positional[0], "__dict__", node, frame)

    def _evaluate_type(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if len(args.positional) == 3:
            self.record_unknown(frame, "a class is made at run time", node, "type")
            return EMPTY
        return AbstractValue(item.cls for item in args.get_argument(0) or EMPTY if isinstance(item, Instance))

    def _evaluate_attrgetter_call(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        *names, value = args.positional
        result: AbstractValue = EMPTY
        for name in names:
            result |= self.evaluate_getattr(CallArguments(positional=(value, name)), node, frame)
        return result

    def _evaluate_methodcaller_call(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        name, *arguments, value = args.positional
        method = self.evaluate_getattr(CallArguments(positional=(value, name)), node, frame)
        return self.invoke(method, CallArguments(positional=tuple(arguments), keywords=args.keywords), node, frame)

    def _evaluate_map(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        elements = tuple(self.list_elements(value) for value in args.positional[1:])
        result = self.invoke(args.get_argument(0) or EMPTY, CallArguments(positional=elements), node, frame)
        table = self.get_container(frame, node, "map")
        self.put(table, None, result.union(*elements))
        return AbstractValue((table,))


def _build_partial(args: CallArguments) -> AbstractValue:
    if not args.positional:
        return EMPTY
    keywords = tuple(sorted(((name, remove_marks(value)) for name, value in args.keywords.items()), key=_get_pair_name))
    return AbstractValue((Partial(args.positional[0], tuple(map(remove_marks, args.positional[1:])), keywords),))


def _build_deferred(form: str, args: CallArguments) -> AbstractValue:
    keywords = tuple(sorted(args.keywords.items(), key=_get_pair_name))
    return AbstractValue((Partial(AbstractValue((ExternalName(form),)), args.positional, keywords),))


def _get_pair_name(pair: tuple[str, AbstractValue]) -> str:
    return pair[0]


class Containers(ExternalCalls):
    """Mixin that evaluates methods and subscripts of containers."""

    def call_container(
        self, method: ContainerMethod, args: CallArguments, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        """Evaluate a call of a container's method."""
        table, name = method.table, method.name
        first, second = args.get_argument(0) or EMPTY, args.get_argument(1, "default") or EMPTY
        if name in ("append", "add", "appendleft", "push"):
            self.put(table, None, first)
        elif name in ("insert", "__setitem__"):
            self.put(table, self.get_single_text(first), second)
        elif name in ("extend", "update", "extendleft", "union"):
            self._merge_arguments(table, args)
        elif name in ("get", "pop", "setdefault", "__getitem__"):
            if name == "setdefault":
                self.put(table, self.get_single_text(first), second)
            return self.evaluate_subscript_of(AbstractValue((table,)), first, node, frame) | second
        elif name == "items":
            return self._evaluate_items(table, node, frame)
        elif name == "keys":
            keys = self.get_container(frame, node, "keys")
            for key in table.keys:
                self.put(keys, None, AbstractValue((Text(key),)))
            return AbstractValue((keys,))
        elif name in ("values", "copy", "__iter__"):
            return AbstractValue((table,))
        elif name in ("popleft", "popitem"):
            return self.list_elements(AbstractValue((table,)))
        elif name == "sort":
            self.invoke(
                args.get_argument(0, "key") or EMPTY, CallArguments(positional=(table.merge_values(),)), node, frame
            )
        return EMPTY

    def _merge_arguments(self, table: Container, args: CallArguments) -> None:
        for item in args.merge_values():
            if isinstance(item, Container):
                item.readers[self.current] = None
                for key, value in list(item.keys.items()):
                    self.put(table, key, value)
                self.put(table, None, item.values_of_unknown_keys)
        for name, value in args.keywords.items():
            self.put(table, name, value)

    def _evaluate_items(self, table: Container, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        pair, outer = self.get_container(frame, node, "item"), self.get_container(frame, node, "items")
        table.readers[self.current] = None
        self.put(pair, "0", AbstractValue(Text(key) for key in table.keys))
        self.put(pair, "1", table.merge_values())
        self.put(outer, None, AbstractValue((pair,)))
        return AbstractValue((outer,))

    def evaluate_subscript_of(
        self, value: AbstractValue, key: AbstractValue, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        """Return the value of ``value[key]``."""
        result: AbstractValue = EMPTY
        for item in value:
            if isinstance(item, Container):
                item.readers[self.current] = None
                text = self.get_single_text(key)
                result |= (
                    item.keys.get(text, EMPTY) | item.values_of_unknown_keys
                    if text is not None
                    else item.merge_values()
                )
            elif isinstance(item, Namespace):
                result |= self._look_up_in_namespace(item, key, node, frame)
            elif isinstance(item, ExternalName):
                result |= self._look_up_in_external(item, key, node, frame)
            elif isinstance(item, Instance):
                method = self.read_attribute(AbstractValue((item,)), "__getitem__", node, frame)
                if method:
                    result |= self.invoke(method, CallArguments(positional=(key,)), node, frame)
            elif isinstance(item, Class) and item.enumeration:
                result |= self.list_elements(AbstractValue((item,)))
        return result

    def _look_up_in_namespace(
        self, item: Namespace, key: AbstractValue, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        text = self.get_single_text(key)
        if text is None:
            self.record_unknown(frame, "looks names up by a computed text", node, "globals()")
            return self.list_methods(ModuleItem(item.module), node, frame)
        return self.look_up_global(text, item.module)

    def _look_up_in_external(
        self, item: ExternalName, key: AbstractValue, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        if item.path == "sys.modules":
            return self.import_by_name(CallArguments(positional=(key,)), node, frame)
        if item.path == "builtins.__builtins__":
            return self.evaluate_getattr(
                CallArguments(positional=(AbstractValue((ExternalName("builtins"),)), key)), node, frame
            )
        return AbstractValue((item,))
