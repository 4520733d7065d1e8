"""Follow statements, definitions and imports: bind names, and find out which code is reached."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from pinwarden.contract.entitlements.effects import is_modelled, may_call_methods
from pinwarden.contract.entitlements.interpreter.base import remove_marks
from pinwarden.contract.entitlements.interpreter.branches import Branches
from pinwarden.contract.entitlements.interpreter.objects import (
    EMPTY,
    AbstractValue,
    Class,
    Container,
    ExternalName,
    Function,
    ImportedName,
    Instance,
    ModuleItem,
    Namespace,
    ParameterMark,
    Registrar,
    Text,
    WrappedMethod,
)
from pinwarden.contract.entitlements.interpreter.program import Module, PythonFrame
from pinwarden.contract.entitlements.interpreter.terms import CallArguments

_CALLBACK_DECORATORS = ("validator", "serializer", "computed_field", "validates")
"""Suffixes of model decorators whose functions are called when an object is created or serialised."""

_DECORATORS = ("tool", "call_tool", "list_tools", "prompt", "get_prompt", "read_resource")
"""Methods of servers that can be used as decorators without parentheses."""


class Definitions(Branches):
    """Mixin that binds the names of ``def``, ``class`` and ``import``."""

    def follow_function_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: PythonFrame) -> bool:
        """Bind a function after applying its decorators."""
        function = self.get_function(node, frame, node.name)
        value: AbstractValue = AbstractValue((function,))
        for decorator in reversed(node.decorator_list):
            value = self._apply_decorator(decorator, value, function, frame)
        self.store(frame, node.name, value)
        definitions = self.definitions.setdefault((frame.module.name, function.qualname), [])
        if (node.lineno, value) not in definitions:
            definitions.append((node.lineno, value))
        return True

    def _apply_decorator(
        self, node: ast.expr, value: AbstractValue, function: Function, frame: PythonFrame
    ) -> AbstractValue:
        decorator = self.evaluate(node, frame)
        if not decorator and self._is_register_decorator(node, frame):
            self.record_unknown(frame, "it is called in the place of another function", node, function.qualname)
        if (
            not decorator
            and frame.cls is not None
            and ast.unparse(node).partition("(")[0].endswith(_CALLBACK_DECORATORS)
        ):
            frame.cls.callback_methods.add(function.name)
        if any(isinstance(item, Registrar) for item in decorator) or self._is_bare_registration(node, decorator):
            for kind, name in self._list_registrars(node, decorator):
                self.register(Registrar(kind, name), CallArguments(positional=(AbstractValue((function,)),)))
            return value
        unknown = None if decorator else _guess_registrar(node)
        if unknown is not None:
            self.register(unknown, CallArguments(positional=(AbstractValue((function,)),)))
            return value
        own = AbstractValue(item for item in decorator if not isinstance(item, ExternalName))
        if own:
            return self.invoke(own, CallArguments(positional=(value,)), node, frame) or value
        for item in decorator:
            if isinstance(item, ExternalName):
                form = self.known_calls.get(item.path)
                if form is not None:
                    return form(CallArguments(positional=(value,)), node, frame) or value
                if item.path.endswith(".setter"):
                    return value
                if frame.cls is not None and not is_modelled(item.path):
                    frame.cls.callback_methods.add(function.name)
                self.record_effect(item.path, CallArguments(), node, frame)
        return value

    def _is_register_decorator(self, node: ast.expr, frame: PythonFrame) -> bool:
        """Whether a decorator is ``@function.register``. ``function`` then calls the decorated one for some types."""
        target = node.func if isinstance(node, ast.Call) else node
        if not isinstance(target, ast.Attribute) or target.attr != "register":
            return False
        return any(isinstance(item, Function) for item in self.evaluate(target.value, frame))

    def _is_bare_registration(self, node: ast.expr, decorator: AbstractValue) -> bool:
        """Whether a decorator is ``@server.tool`` without parentheses."""
        if not isinstance(node, ast.Attribute) or node.attr not in _DECORATORS:
            return False
        return not decorator or any(
            isinstance(item, ExternalName) and item.path.partition(".")[0] in ("mcp", "fastmcp") for item in decorator
        )

    def _list_registrars(self, node: ast.expr, decorator: AbstractValue) -> list[tuple[str, str | None]]:
        result = [(item.kind, item.name) for item in decorator if isinstance(item, Registrar)]
        return result or [(node.attr, None)] if isinstance(node, ast.Attribute) else result

    def follow_class_definition(self, node: ast.ClassDef, frame: PythonFrame) -> bool:
        """Follow the body of a class, and bind the name of the class."""
        cls = frame.classes.get(id(node))
        if cls is None:
            body = PythonFrame(frame.module, frame, f"{frame.qualname}{node.name}.")
            body.activation = frame.activation
            cls = frame.classes[id(node)] = Class(node, frame.module, frame.qualname + node.name, body)
            body.cls = cls
        for base in node.bases:
            target = base.value if isinstance(base, ast.Subscript) else base
            result = self.evaluate(target, frame)
            cls.has_external_base |= not any(isinstance(item, Class) for item in result) and may_call_methods(
                ast.unparse(target)
            )
            for item in result:
                if isinstance(item, Class | ExternalName) and item not in cls.bases and item is not cls:
                    cls.bases.append(item)
                    if isinstance(item, Class):
                        item.children.append(cls)
        cls.body.activation = frame.activation
        self.run(node.body, cls.body)
        self._follow_metaclass(cls, node, frame)
        value: AbstractValue = AbstractValue((cls,))
        for decorator in reversed(node.decorator_list):
            decorators = AbstractValue(
                item for item in self.evaluate(decorator, frame) if not isinstance(item, ExternalName)
            )
            if decorators:
                value |= self.invoke(decorators, CallArguments(positional=(value,)), node, frame)
        self.store(frame, node.name, value)
        self._call_init_subclass(cls, node, frame)
        return True

    def _call_init_subclass(self, cls: Class, node: ast.ClassDef, frame: PythonFrame) -> None:
        """Follow ``__init_subclass__`` of the bases, which Python calls when it creates a subclass."""
        for base in cls.bases:
            if isinstance(base, Class):
                for item in self.find_in_class(base, "__init_subclass__", set()):
                    if isinstance(item, Function):
                        self.call_function(item, CallArguments(positional=(AbstractValue((cls,)),)), node, frame)

    def _follow_metaclass(self, cls: Class, node: ast.ClassDef, frame: PythonFrame) -> None:
        """Follow the methods of a metaclass, which runs when the class is created, called, inspected or compared."""
        args = CallArguments(positional=(AbstractValue((cls,)),))
        methods = [self.find_in_class(cls, "__class_getitem__", set())]
        for keyword in node.keywords:
            for item in self.evaluate(keyword.value, frame) if keyword.arg == "metaclass" else ():
                if isinstance(item, Class):
                    special = [name for name in item.body.all_values if name.startswith("__")]
                    methods += [self.find_in_class(item, name, set()) for name in special]
        for method in (item for value in methods for item in value):
            for function in method.value if isinstance(method, WrappedMethod) else (method,):
                if isinstance(function, Function):
                    self.call_function(function, args, node, frame)

    # Imports

    def follow_import(self, node: ast.Import, frame: PythonFrame) -> bool:
        """Bind imported modules, and follow them."""
        for alias in node.names:
            value = self.import_module(alias.name, frame, node)
            if alias.asname is None:
                root = alias.name.partition(".")[0]
                value = value if root == alias.name else self.import_module(root, frame, node)
                self.store(frame, root, value)
            else:
                self.store(frame, alias.asname, value)
        return True

    def follow_import_from(self, node: ast.ImportFrom, frame: PythonFrame) -> bool:
        """Bind the names imported from a module, and follow that module."""
        name = self._resolve_import_name(node, frame.module)
        module = self.load_module(name) if name else None
        if module is not None:
            self.record_call(frame, module.activation, node)
        for alias in node.names:
            if alias.name == "*":
                frame.module.star_imports.append(module if module is not None else name)
            elif module is not None:
                self._import_member(module, alias, node, frame)
            else:
                self.store(frame, alias.asname or alias.name, self.import_external(f"{name}.{alias.name}", node, frame))
        return True

    def import_external(self, path: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the value of an import from an external module."""
        below = self.load_module(path)
        if below is not None:
            self.record_call(frame, below.activation, node)
            return AbstractValue((ModuleItem(below),))
        return self.evaluate_external(path, node, frame)

    def _import_member(self, module: Module, alias: ast.alias, node: ast.AST, frame: PythonFrame) -> None:
        bound = alias.asname or alias.name
        below = None if alias.name in module.frame.all_values else self.load_module(f"{module.name}.{alias.name}")
        if below is not None:
            self.record_call(frame, below.activation, node)
            self.store(frame, bound, AbstractValue((ModuleItem(below),)))
        else:
            self.store(frame, bound, AbstractValue((ImportedName(module, alias.name),)))

    def _resolve_import_name(self, node: ast.ImportFrom, module: Module) -> str:
        if not node.level:
            return node.module or ""
        parts = module.name.split(".")
        keep = len(parts) - node.level + (1 if module.source.package else 0)
        return ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])


def _guess_registrar(node: ast.expr) -> Registrar | None:
    """Guess from the name of a decorator, such as ``@server.prompt(…)``, what an unknown object registers."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    kind = node.func.attr
    if kind not in ("prompt", "resource", "get_prompt", "read_resource"):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    argument = node.args[0] if node.args else keywords.get("uri" if kind == "resource" else "name")
    text = argument.value if isinstance(argument, ast.Constant) else None
    return Registrar(kind, text if isinstance(text, str) else None)


class Statements(Definitions):
    """Mixin that follows statements."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.actions: dict[type[ast.stmt], Callable[[Any, PythonFrame], bool]] = {
            ast.Expr: self._follow_expression,
            ast.Assign: self._follow_assignment,
            ast.AnnAssign: self._follow_annotated_assignment,
            ast.AugAssign: self._follow_augmented_assignment,
            ast.Return: self._follow_return,
            ast.If: self.follow_if,
            ast.For: self.follow_for,
            ast.AsyncFor: self.follow_for,
            ast.While: self.follow_while,
            ast.Try: self.follow_try,
            ast.With: self.follow_with,
            ast.AsyncWith: self.follow_with,
            ast.FunctionDef: self.follow_function_definition,
            ast.AsyncFunctionDef: self.follow_function_definition,
            ast.ClassDef: self.follow_class_definition,
            ast.Import: self.follow_import,
            ast.ImportFrom: self.follow_import_from,
            ast.Match: self.follow_match,
            ast.Raise: self._follow_raise,
            ast.Assert: self._follow_assert,
            ast.Global: self._follow_global,
            ast.Nonlocal: self._follow_nonlocal,
            ast.Continue: lambda _, __: False,
            ast.Break: lambda _, __: False,
            ast.Pass: lambda _, __: True,
            ast.Delete: lambda _, __: True,
        }
        self.actions[ast.TryStar] = self.follow_try

    def run(self, body: Sequence[ast.stmt], frame: PythonFrame) -> bool:
        """Follow statements. Returns whether the code after them is reached."""
        actions = self.actions
        for statement in body:
            action = actions.get(type(statement))
            if action is None:
                self.record_unknown(frame, "a statement of a newer Python", statement, type(statement).__name__)
            elif not action(statement, frame):
                return False
        return True

    # Simple statements

    def _follow_expression(self, node: ast.Expr, frame: PythonFrame) -> bool:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, frame)
        return True

    def _follow_return(self, node: ast.Return, frame: PythonFrame) -> bool:
        if node.value is not None:
            frame.activation.returns = self.limit_value(
                frame.activation.returns | remove_marks(self.evaluate(node.value, frame))
            )
        return False

    def _follow_raise(self, node: ast.Raise, frame: PythonFrame) -> bool:
        for part in (node.exc, node.cause):
            if part is not None:
                self.evaluate(part, frame)
        return False

    def _follow_assert(self, node: ast.Assert, frame: PythonFrame) -> bool:
        self.evaluate(node.test, frame)
        if node.msg is not None:
            self.evaluate(node.msg, frame)
        return True

    def _follow_global(self, node: ast.Global, frame: PythonFrame) -> bool:
        for name in node.names:
            frame.outer_names[name] = frame.module.frame
        return True

    def _follow_nonlocal(self, node: ast.Nonlocal, frame: PythonFrame) -> bool:
        for name in node.names:
            outer = frame.parent
            while outer is not None and name not in outer.all_values:
                outer = outer.parent
            if outer is not None:
                frame.outer_names[name] = outer
        return True

    # Binding

    def _follow_assignment(self, node: ast.Assign, frame: PythonFrame) -> bool:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return True

    def _follow_annotated_assignment(self, node: ast.AnnAssign, frame: PythonFrame) -> bool:
        value = self.evaluate(node.value, frame) if node.value is not None else EMPTY
        if not any(not isinstance(item, Text | ParameterMark) for item in value):
            value |= self.evaluate_annotation(node.annotation, frame)
        if node.value is not None or value:
            self.assign(node.target, value, frame)
        return True

    def _follow_augmented_assignment(self, node: ast.AugAssign, frame: PythonFrame) -> bool:
        value = self.evaluate(node.value, frame)
        if isinstance(node.target, ast.Name):
            known = self.look_up(node.target.id, frame)
            if known:
                for item in known:
                    if isinstance(item, Container):
                        self.put(item, None, self.list_elements(value))
                changed = AbstractValue(
                    Text(item.text, complete=False) if isinstance(item, Text) else item for item in known
                )
                self.store(frame, node.target.id, changed)
        else:
            self.assign(node.target, value, frame)
        return True

    def assign(self, target: ast.expr, value: AbstractValue, frame: PythonFrame) -> None:
        """Bind a target of an assignment."""
        if isinstance(target, ast.Name):
            self.store(frame, target.id, value)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value, frame)
        elif isinstance(target, ast.Subscript):
            self._assign_subscript(target, value, frame)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, value, frame)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, frame)

    def _assign_attribute(self, target: ast.Attribute, value: AbstractValue, frame: PythonFrame) -> None:
        owner = self.evaluate(target.value, frame)
        if not owner:  # the object is unknown, so its class may call the assigned function
            self.call_passed_functions(CallArguments(positional=(value,)), target, frame)
        for item in owner:
            if isinstance(item, Instance):
                self.add_attribute(item.cls, target.attr, value)
            elif isinstance(item, Class):
                self.add_attribute(item, target.attr, value)
            elif isinstance(item, ModuleItem):
                self.store(item.module.frame, target.attr, remove_marks(value))
            elif isinstance(item, Function):
                table = self.get_container(item.defining_frame, item.node, f"attribute {target.attr}")
                self.put(table, None, value)
            elif isinstance(item, ExternalName):
                self.call_passed_functions(
                    CallArguments(positional=(value,)), target, frame
                )  # external code may call it

    def _assign_subscript(self, target: ast.Subscript, value: AbstractValue, frame: PythonFrame) -> None:
        key = self.evaluate(target.slice, frame)
        for item in self.evaluate(target.value, frame):
            if isinstance(item, Container):
                self.put(item, self.get_single_text(key), value)
            elif isinstance(item, Namespace):
                text = self.get_single_text(key)
                if text is not None:
                    self.store(item.module.frame, text, remove_marks(value))
            elif isinstance(item, Instance):
                method = self.read_attribute(AbstractValue((item,)), "__setitem__", target, frame)
                if method:
                    self.invoke(method, CallArguments(positional=(key, value)), target, frame)

    def _unpack(self, target: ast.Tuple | ast.List, value: AbstractValue, frame: PythonFrame) -> None:
        for index, element in enumerate(target.elts):
            result: AbstractValue = EMPTY
            for item in value:
                if isinstance(item, Container):
                    item.readers[self.current] = None
                    result |= item.keys.get(str(index), EMPTY) | item.values_of_unknown_keys
                elif isinstance(item, ExternalName):
                    result |= AbstractValue((item,))
            self.assign(element, result, frame)
