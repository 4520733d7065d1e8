"""Evaluate attributes of modules, objects, classes and external values."""

from __future__ import annotations

import ast

from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.base import EngineBase
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Bound,
    Class,
    Descriptor,
    External,
    Function,
    Instance,
    Item,
    Mark,
    ModuleItem,
    Namespace,
    Partial,
    Request,
    Returns,
    Super,
    Table,
    TableMethod,
    Text,
    Value,
)
from pinwarden.contract.entitlements.interpreter.program import Frame, walk
from pinwarden.contract.entitlements.interpreter.terms import NO_ARGUMENTS, CallArguments

BACK_DOORS = frozenset(terms.BACK_DOORS.split())

_TEXT_TO_TEXT = frozenset(terms.TEXT_METHODS.split())


class Attributes(EngineBase):
    """Attribute access."""

    def attribute(self, value: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        """The value of an attribute."""
        if name in BACK_DOORS:
            self.note_unknown(frame, "reaches into the interpreter", node, name)
            return EMPTY
        result: Value = EMPTY
        for item in value:
            result |= self._of_item(item, name, node, frame)
        return result

    def _of_item(self, item: Item, name: str, node: ast.AST, frame: Frame) -> Value:
        if isinstance(item, External):
            return self._of_external(item, name, node, frame)
        if isinstance(item, Instance):
            return self._of_instance(item, name, node, frame)
        if isinstance(item, ModuleItem):
            return self._of_module(item, name, node, frame)
        if isinstance(item, Class):
            return self._of_class(item, name, node, frame)
        if isinstance(item, Super):
            return self._of_super(item, name, node, frame)
        if isinstance(item, Table):
            return Value((TableMethod(item, name),))
        if isinstance(item, Text | Mark):
            return self._of_text(item, name)
        if isinstance(item, Request):
            return Value((Text(item.tool), Mark(_TOOL_REQUEST, "name"))) if name == "name" else Value((item,))
        if isinstance(item, Function | Bound | Partial):
            return self._of_function(item, name)
        return EMPTY

    def _of_external(self, item: External, name: str, node: ast.AST, frame: Frame) -> Value:
        if name == "__dict__":
            self.note_unknown(frame, "looks names up by a computed text", node, f"{item.path}.__dict__")
            return EMPTY
        if name in ("__wrapped__", "__func__", "__self__"):
            return Value((item,))
        return self.external_value(f"{item.path}.{name}", node, frame)

    def _of_module(self, item: ModuleItem, name: str, node: ast.AST, frame: Frame) -> Value:
        if name == "__dict__":
            return Value((Namespace(item.module),))
        result = self.member(item.module, name, frame)
        if not result and (fallback := item.module.frame.all_values.get("__getattr__")):
            return self.invoke(fallback, CallArguments(positional=(Value((Text(name),)),)), node, frame)
        return result

    def _of_text(self, item: Item, name: str) -> Value:
        """Members of enumerations, and methods of constant texts."""
        if name in ("value", "name", "_value_"):
            return Value((item,))
        if isinstance(item, Text) and name in _TEXT_TO_TEXT:
            item = Text(str(getattr(item.text, name)()), complete=item.complete)
        if name in _TEXT_TO_TEXT:
            return Value((Returns(Value((item,))),))
        return EMPTY

    def _of_function(self, item: Function | Bound | Partial, name: str) -> Value:
        if name in ("__call__", "__wrapped__", "__func__", "__get__", "func"):
            return item.target if isinstance(item, Partial) and name == "func" else Value((item,))
        function = item.function if isinstance(item, Bound) else item
        if name == "__name__" and isinstance(function, Function):
            return Value((Text(function.name),))
        if name == "__self__" and isinstance(item, Bound):
            return Value((item.receiver,))
        if isinstance(function, Function):  # attributes set on a function
            stored = function.defining_frame.tables.get((id(function.node), f"attribute {name}"))
            if stored is not None:
                return self.content(stored)
        return EMPTY

    # Classes in the source

    def _of_instance(self, item: Instance, name: str, node: ast.AST, frame: Frame) -> Value:
        cls = item.cls
        if name == "__class__":
            return Value((cls,))
        if name == "__dict__":
            return Value((Namespace(cls.module),))
        result = self._stored(cls, name, node, frame, set())
        for child in cls.children:
            self.note_read(child.readers, name)
            result |= child.attributes.get(name, EMPTY)
        in_class = self.in_class(cls, name, set())
        if self._is_abstract(in_class):
            for child in cls.children:
                result |= self._of_instance(Instance(child), name, node, frame)
        for function in in_class:
            result |= self._bound(function, item, node, frame)
        if not result:
            result = self._of_outer_bases(cls, name, node, frame, set())
        if not result and name == "start":  # of a thread or process
            run = self.in_class(cls, "run", set())
            result = Value(Bound(function, item) for function in run if isinstance(function, Function))
        if not result and (fallback := self.in_class(cls, "__getattr__", set())):
            args = CallArguments(positional=(Value((Text(name),)),))
            for candidate in fallback:
                result |= self.invoke(self._bound(candidate, item, node, frame), args, node, frame)
        return result

    def _is_abstract(self, value: Value) -> bool:
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

    def _stored(self, cls: Class, name: str, node: ast.AST, frame: Frame, seen: set[Class]) -> Value:
        if cls in seen:
            return EMPTY
        seen.add(cls)
        self.note_read(cls.readers, name)
        if name not in cls.setters_followed:
            cls.setters_followed.add(name)
            self.follow_setters(cls, name, node, frame)
        value = cls.attributes.get(name, EMPTY)
        for base in cls.bases:
            if isinstance(base, Class):
                value |= self._stored(base, name, node, frame, seen)
        return value

    def follow_setters(self, cls: Class, name: str, node: ast.AST, frame: Frame) -> None:
        """Follow the methods that set ``self.name``, with arguments according to their annotations."""
        for method in methods_that_set(cls, name):
            for item in cls.body.all_values.get(method, EMPTY):
                for candidate in self._plain(item):
                    self._follow_stores(candidate, Instance(cls), node, frame)

    def _plain(self, item: Item) -> list[Function]:
        if isinstance(item, Descriptor):
            return [inner for inner in item.value if isinstance(inner, Function)]
        return [item] if isinstance(item, Function) else []

    def _follow_stores(self, function: Function, receiver: Item, node: ast.AST, frame: Frame) -> None:
        """Follow a function for what it stores, without recording a call."""
        detached = Frame(frame.module, frame, frame.qualname)
        detached.activation = type(frame.activation)("<aside>", frame.module, detached)
        self.call_function(function, CallArguments(positional=(Value((receiver,)),)), node, detached)

    def in_class(self, cls: Class, name: str, seen: set[Class]) -> Value:
        """The value of a name in a class or its nearest base that has it."""
        if cls in seen:
            return EMPTY
        seen.add(cls)
        value = cls.body.all_values.get(name)
        if value is not None:
            return value
        for base in cls.bases:
            if isinstance(base, Class) and (value := self.in_class(base, name, seen)):
                return value
        return EMPTY

    def _of_outer_bases(self, cls: Class, name: str, node: ast.AST, frame: Frame, seen: set[Class]) -> Value:
        if cls in seen:
            return EMPTY
        seen.add(cls)
        result: Value = EMPTY
        for base in cls.bases:
            if isinstance(base, External):
                result |= self.external_value(f"{base.path}().{name}", node, frame)
            elif isinstance(base, Class):
                result |= self._of_outer_bases(base, name, node, frame, seen)
        return result

    def _bound(self, item: Item, receiver: Item, node: ast.AST, frame: Frame) -> Value:
        """A class attribute accessed through an object or the class."""
        if isinstance(item, Function):
            return Value((Bound(item, receiver),))
        if isinstance(item, Descriptor):
            if item.kind == "static":
                return item.value
            if item.kind == "class":
                owner = receiver.cls if isinstance(receiver, Instance) else receiver
                return Value(Bound(value, owner) for value in item.value if isinstance(value, Function))
            result: Value = EMPTY
            for inner in item.value:
                if isinstance(inner, Function):
                    result |= self.invoke(Value((Bound(inner, receiver),)), NO_ARGUMENTS, node, frame)
            return result
        return Value((item,))

    def _of_class(self, cls: Class, name: str, node: ast.AST, frame: Frame) -> Value:
        if name == "__dict__":
            return Value((Namespace(cls.module),))
        if name == "__name__":
            return Value((Text(cls.node.name),))
        result: Value = EMPTY
        for item in self.in_class(cls, name, set()):
            if isinstance(item, Descriptor):
                result |= self._bound(item, cls, node, frame) if item.kind != "property" else Value((item,))
            else:
                result |= Value((item,))
        self.note_read(cls.readers, name)
        result |= cls.attributes.get(name, EMPTY)
        if result:
            return result
        for base in cls.bases:
            if isinstance(base, External):
                result |= self.external_value(f"{base.path}.{name}", node, frame)
        return result

    def super_value(self, frame: Frame) -> Value:
        """The value of ``super()`` in a frame."""
        method: Frame | None = frame
        while method is not None and (method.function is None or method.function.in_class is None):
            method = method.parent
        if method is None or method.function is None or method.function.in_class is None:
            return EMPTY
        cls = method.function.in_class
        parameters = method.function.parameters
        first = method.names.get(parameters[0], EMPTY) if parameters else EMPTY
        receivers = [item for item in first if isinstance(item, Instance | Class)]
        return Value(Super(cls, receiver) for receiver in receivers or [Instance(cls)])

    def _of_super(self, item: Super, name: str, node: ast.AST, frame: Frame) -> Value:
        result: Value = EMPTY
        for base in item.cls.bases:
            if isinstance(base, External):
                result |= self.external_value(f"{base.path}().{name}", node, frame)
            elif isinstance(base, Class):
                for function in self.in_class(base, name, {item.cls}):
                    result |= self._bound(function, item.receiver, node, frame)
        return result


def methods_that_set(cls: Class, name: str) -> list[str]:
    """The methods of a class that assign ``self.name``."""
    return [
        method.name
        for method in cls.node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and method.args.args
        and cls.module.mentions(name, method)
        and name in _set_by(cls, method)
    ]


def _set_by(cls: Class, method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
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
