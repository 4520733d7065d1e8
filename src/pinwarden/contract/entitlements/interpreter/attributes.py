"""Evaluate attributes of modules, objects, classes and external values."""

from __future__ import annotations

import ast

from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.base import InterpreterBase
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
    KnownResult,
    ModuleItem,
    Namespace,
    ParameterMark,
    Partial,
    PythonObject,
    Super,
    Text,
    ToolCallParams,
    WrappedMethod,
)
from pinwarden.contract.entitlements.interpreter.program import PythonFrame, walk
from pinwarden.contract.entitlements.interpreter.terms import NO_ARGUMENTS, CallArguments

BACK_DOORS = frozenset(terms.BACK_DOORS.split())

_TEXT_TO_TEXT = frozenset(terms.TEXT_METHODS.split())


class Attributes(InterpreterBase):
    """Mixin that evaluates attribute access."""

    def read_attribute(self, value: AbstractValue, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the value of an attribute."""
        if name in BACK_DOORS:
            self.record_unknown(frame, "reaches into the interpreter", node, name)
            return EMPTY
        result: AbstractValue = EMPTY
        for item in value:
            result |= self._read_from_item(item, name, node, frame)
        return result

    def _read_from_item(self, item: PythonObject, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if isinstance(item, ExternalName):
            return self._read_from_external(item, name, node, frame)
        if isinstance(item, Instance):
            return self._read_from_instance(item, name, node, frame)
        if isinstance(item, ModuleItem):
            return self._read_from_module(item, name, node, frame)
        if isinstance(item, Class):
            return self._read_from_class(item, name, node, frame)
        if isinstance(item, Super):
            return self._read_from_super(item, name, node, frame)
        if isinstance(item, Container):
            return AbstractValue((ContainerMethod(item, name),))
        if isinstance(item, Text | ParameterMark):
            return self._read_from_text(item, name)
        if isinstance(item, ToolCallParams):
            return (
                AbstractValue((Text(item.tool), ParameterMark(_TOOL_REQUEST, "name")))
                if name == "name"
                else AbstractValue((item,))
            )
        if isinstance(item, Function | BoundMethod | Partial):
            return self._read_from_function(item, name)
        return EMPTY

    def _read_from_external(self, item: ExternalName, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if name == "__dict__":
            self.record_unknown(frame, "looks names up by a computed text", node, f"{item.path}.__dict__")
            return EMPTY
        if name in ("__wrapped__", "__func__", "__self__"):
            return AbstractValue((item,))
        return self.evaluate_external(f"{item.path}.{name}", node, frame)

    def _read_from_module(self, item: ModuleItem, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if name == "__dict__":
            return AbstractValue((Namespace(item.module),))
        result = self.read_member(item.module, name, frame)
        if not result and (fallback := item.module.frame.all_values.get("__getattr__")):
            return self.invoke(fallback, CallArguments(positional=(AbstractValue((Text(name),)),)), node, frame)
        return result

    def _read_from_text(self, item: PythonObject, name: str) -> AbstractValue:
        """Evaluate members of enumerations, and methods of constant texts."""
        if name in ("value", "name", "_value_"):
            return AbstractValue((item,))
        if isinstance(item, Text) and name in _TEXT_TO_TEXT:
            item = Text(str(getattr(item.text, name)()), complete=item.complete)
        if name in _TEXT_TO_TEXT:
            return AbstractValue((KnownResult(AbstractValue((item,))),))
        return EMPTY

    def _read_from_function(self, item: Function | BoundMethod | Partial, name: str) -> AbstractValue:
        if name in ("__call__", "__wrapped__", "__func__", "__get__", "func"):
            return item.target if isinstance(item, Partial) and name == "func" else AbstractValue((item,))
        function = item.function if isinstance(item, BoundMethod) else item
        if name == "__name__" and isinstance(function, Function):
            return AbstractValue((Text(function.name),))
        if name == "__self__" and isinstance(item, BoundMethod):
            return AbstractValue((item.receiver,))
        if isinstance(function, Function):  # attributes set on a function
            stored = function.defining_frame.tables.get((id(function.node), f"attribute {name}"))
            if stored is not None:
                return self.read_content(stored)
        return EMPTY

    # Classes in the source

    def _read_from_instance(self, item: Instance, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        cls = item.cls
        if name == "__class__":
            return AbstractValue((cls,))
        if name == "__dict__":
            return AbstractValue((Namespace(cls.module),))
        result = self._read_stored(cls, name, node, frame, set())
        for child in cls.children:
            self.record_read(child.readers, name)
            result |= child.attributes.get(name, EMPTY)
        in_class = self.find_in_class(cls, name, set())
        if self._is_abstract(in_class):
            for child in cls.children:
                result |= self._read_from_instance(Instance(child), name, node, frame)
        for function in in_class:
            result |= self._bind_to_receiver(function, item, node, frame)
        if not result:
            result = self._read_from_external_bases(cls, name, node, frame, set())
        if not result and name == "start":  # starts a thread or process, which calls ``run``
            run = self.find_in_class(cls, "run", set())
            result = AbstractValue(BoundMethod(function, item) for function in run if isinstance(function, Function))
        if not result and (fallback := self.find_in_class(cls, "__getattr__", set())):
            args = CallArguments(positional=(AbstractValue((Text(name),)),))
            for candidate in fallback:
                result |= self.invoke(self._bind_to_receiver(candidate, item, node, frame), args, node, frame)
        return result

    def _is_abstract(self, value: AbstractValue) -> bool:
        """Whether a method is a placeholder that subclasses override."""
        for item in value:
            if type(item) is Function and not isinstance(item.node, ast.Lambda):
                last = item.node.body[-1]
                if len(item.node.body) <= 2 and (
                    isinstance(last, ast.Raise | ast.Pass)
                    or (isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant))
                ):
                    return True
        return False

    def _read_stored(self, cls: Class, name: str, node: ast.AST, frame: PythonFrame, seen: set[Class]) -> AbstractValue:
        if cls in seen:
            return EMPTY
        seen.add(cls)
        self.record_read(cls.readers, name)
        if name not in cls.setters_followed:
            cls.setters_followed.add(name)
            self.follow_setters(cls, name, node, frame)
        value = cls.attributes.get(name, EMPTY)
        for base in cls.bases:
            if isinstance(base, Class):
                value |= self._read_stored(base, name, node, frame, seen)
        return value

    def follow_setters(self, cls: Class, name: str, node: ast.AST, frame: PythonFrame) -> None:
        """Follow the methods that set ``self.name``, with arguments according to their annotations."""
        for method in find_setters(cls, name):
            for item in cls.body.all_values.get(method, EMPTY):
                for candidate in self._unwrap_functions(item):
                    self._follow_stores(candidate, Instance(cls), node, frame)

    def _unwrap_functions(self, item: PythonObject) -> list[Function]:
        if isinstance(item, WrappedMethod):
            return [inner for inner in item.value if isinstance(inner, Function)]
        return [item] if isinstance(item, Function) else []

    def _follow_stores(self, function: Function, receiver: PythonObject, node: ast.AST, frame: PythonFrame) -> None:
        """Follow a function to find the values it stores, without recording a call of it."""
        detached = PythonFrame(frame.module, frame, frame.qualname)
        detached.activation = type(frame.activation)("<aside>", frame.module, detached)
        self.call_function(function, CallArguments(positional=(AbstractValue((receiver,)),)), node, detached)

    def find_in_class(self, cls: Class, name: str, seen: set[Class]) -> AbstractValue:
        """Return the value of a name in a class or its nearest base that has it."""
        if cls in seen:
            return EMPTY
        seen.add(cls)
        value = cls.body.all_values.get(name)
        if value is not None:
            return value
        for base in cls.bases:
            if isinstance(base, Class) and (value := self.find_in_class(base, name, seen)):
                return value
        return EMPTY

    def _read_from_external_bases(
        self, cls: Class, name: str, node: ast.AST, frame: PythonFrame, seen: set[Class]
    ) -> AbstractValue:
        if cls in seen:
            return EMPTY
        seen.add(cls)
        result: AbstractValue = EMPTY
        for base in cls.bases:
            if isinstance(base, ExternalName):
                result |= self.evaluate_external(f"{base.path}().{name}", node, frame)
            elif isinstance(base, Class):
                result |= self._read_from_external_bases(base, name, node, frame, seen)
        return result

    def _bind_to_receiver(
        self, item: PythonObject, receiver: PythonObject, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        """Return the value of a class attribute that is read through an object or through the class."""
        if isinstance(item, Function):
            return AbstractValue((BoundMethod(item, receiver),))
        if isinstance(item, WrappedMethod):
            if item.kind == "static":
                return item.value
            if item.kind == "class":
                owner = receiver.cls if isinstance(receiver, Instance) else receiver
                return AbstractValue(BoundMethod(value, owner) for value in item.value if isinstance(value, Function))
            result: AbstractValue = EMPTY
            for inner in item.value:
                if isinstance(inner, Function):
                    result |= self.invoke(AbstractValue((BoundMethod(inner, receiver),)), NO_ARGUMENTS, node, frame)
            return result
        return AbstractValue((item,))

    def _read_from_class(self, cls: Class, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if name == "__dict__":
            return AbstractValue((Namespace(cls.module),))
        if name == "__name__":
            return AbstractValue((Text(cls.node.name),))
        result: AbstractValue = EMPTY
        for item in self.find_in_class(cls, name, set()):
            if isinstance(item, WrappedMethod):
                result |= (
                    self._bind_to_receiver(item, cls, node, frame)
                    if item.kind != "property"
                    else AbstractValue((item,))
                )
            else:
                result |= AbstractValue((item,))
        self.record_read(cls.readers, name)
        result |= cls.attributes.get(name, EMPTY)
        if result:
            return result
        for base in cls.bases:
            if isinstance(base, ExternalName):
                result |= self.evaluate_external(f"{base.path}.{name}", node, frame)
        return result

    def evaluate_super(self, frame: PythonFrame) -> AbstractValue:
        """Return the value of ``super()`` in a frame."""
        method: PythonFrame | None = frame
        while method is not None and (method.function is None or method.function.in_class is None):
            method = method.parent
        if method is None or method.function is None or method.function.in_class is None:
            return EMPTY
        cls = method.function.in_class
        parameters = method.function.parameters
        first = method.names.get(parameters[0], EMPTY) if parameters else EMPTY
        receivers = [item for item in first if isinstance(item, Instance | Class)]
        return AbstractValue(Super(cls, receiver) for receiver in receivers or [Instance(cls)])

    def _read_from_super(self, item: Super, name: str, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        result: AbstractValue = EMPTY
        for base in item.cls.bases:
            if isinstance(base, ExternalName):
                result |= self.evaluate_external(f"{base.path}().{name}", node, frame)
            elif isinstance(base, Class):
                for function in self.find_in_class(base, name, {item.cls}):
                    result |= self._bind_to_receiver(function, item.receiver, node, frame)
        return result


def find_setters(cls: Class, name: str) -> list[str]:
    """Return the methods of a class that assign ``self.name``."""
    return [
        method.name
        for method in cls.node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and method.args.args
        and cls.module.mentions(name, method)
        and name in _list_assigned_attributes(cls, method)
    ]


def _list_assigned_attributes(cls: Class, method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    names = cls.attributes_set.get(id(method))
    if names is None:
        receiver = method.args.args[0].arg
        names = cls.attributes_set[id(method)] = {
            node.attr
            for node in walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == receiver
        }
    return names


_TOOL_REQUEST = Function.__new__(Function)
_TOOL_REQUEST.text_sensitive = {}
