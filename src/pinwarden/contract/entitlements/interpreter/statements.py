"""Statements: how they bind names, and which of them are reached."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from pinwarden.contract.entitlements.interpreter.base import unmarked
from pinwarden.contract.entitlements.interpreter.definitions import Definitions
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Class,
    Function,
    Instance,
    Mark,
    ModuleItem,
    Namespace,
    Outside,
    Table,
    Text,
    Value,
)
from pinwarden.contract.entitlements.interpreter.program import Frame
from pinwarden.contract.entitlements.interpreter.terms import Given


class Statements(Definitions):
    """What statements do to the names of a frame."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.actions: dict[type[ast.stmt], Callable[[Any, Frame], bool]] = {
            ast.Expr: self._expression,
            ast.Assign: self._assign_statement,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.Return: self._return,
            ast.If: self.if_statement,
            ast.For: self.for_statement,
            ast.AsyncFor: self.for_statement,
            ast.While: self.while_statement,
            ast.Try: self.try_statement,
            ast.With: self.with_statement,
            ast.AsyncWith: self.with_statement,
            ast.FunctionDef: self.function_definition,
            ast.AsyncFunctionDef: self.function_definition,
            ast.ClassDef: self.class_definition,
            ast.Import: self.import_statement,
            ast.ImportFrom: self.import_from,
            ast.Match: self.match_statement,
            ast.Raise: self._raise,
            ast.Assert: self._assert,
            ast.Global: self._global,
            ast.Nonlocal: self._nonlocal,
            ast.Continue: lambda _, __: False,
            ast.Break: lambda _, __: False,
            ast.Pass: lambda _, __: True,
            ast.Delete: lambda _, __: True,
        }
        self.actions[ast.TryStar] = self.try_statement

    def run(self, body: Sequence[ast.stmt], frame: Frame) -> bool:
        """Follow statements; whether the code after them is reached."""
        actions = self.actions
        for statement in body:
            action = actions.get(type(statement))
            if action is None:
                self.cannot_see(frame, "a statement of a newer Python", statement, type(statement).__name__)
            elif not action(statement, frame):
                return False
        return True

    # Simple statements

    def _expression(self, node: ast.Expr, frame: Frame) -> bool:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, frame)
        return True

    def _return(self, node: ast.Return, frame: Frame) -> bool:
        if node.value is not None:
            frame.activation.returns = self.limited(
                frame.activation.returns | unmarked(self.evaluate(node.value, frame))
            )
        return False

    def _raise(self, node: ast.Raise, frame: Frame) -> bool:
        for part in (node.exc, node.cause):
            if part is not None:
                self.evaluate(part, frame)
        return False

    def _assert(self, node: ast.Assert, frame: Frame) -> bool:
        self.evaluate(node.test, frame)
        if node.msg is not None:
            self.evaluate(node.msg, frame)
        return True

    def _global(self, node: ast.Global, frame: Frame) -> bool:
        for name in node.names:
            frame.elsewhere[name] = frame.module.frame
        return True

    def _nonlocal(self, node: ast.Nonlocal, frame: Frame) -> bool:
        for name in node.names:
            outer = frame.parent
            while outer is not None and name not in outer.every:
                outer = outer.parent
            if outer is not None:
                frame.elsewhere[name] = outer
        return True

    # Binding

    def _assign_statement(self, node: ast.Assign, frame: Frame) -> bool:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return True

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> bool:
        value = self.evaluate(node.value, frame) if node.value is not None else EMPTY
        if not any(not isinstance(item, Text | Mark) for item in value):
            value |= self.meaning_of_annotation(node.annotation, frame)
        if node.value is not None or value:
            self.assign(node.target, value, frame)
        return True

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> bool:
        value = self.evaluate(node.value, frame)
        if isinstance(node.target, ast.Name):
            known = self.look_up(node.target.id, frame)
            if known:
                for item in known:
                    if isinstance(item, Table):
                        self.put(item, None, self.elements(value))
                kept = Value(Text(item.text, whole=False) if isinstance(item, Text) else item for item in known)
                self.store(frame, node.target.id, kept)
        else:
            self.assign(node.target, value, frame)
        return True

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
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

    def _assign_attribute(self, target: ast.Attribute, value: Value, frame: Frame) -> None:
        held = self.evaluate(target.value, frame)
        if not held:  # nothing is known of what it is put into, or of who takes it out there
            self.hand_over(Given(positional=(value,)), target, frame)
        for item in held:
            if isinstance(item, Instance):
                self.remember(item.cls, target.attr, value)
            elif isinstance(item, Class):
                self.remember(item, target.attr, value)
            elif isinstance(item, ModuleItem):
                self.store(item.module.frame, target.attr, unmarked(value))
            elif isinstance(item, Function):
                table = self.table(item.home, item.node, f"attribute {target.attr}")
                self.put(table, None, value)
            elif isinstance(item, Outside):
                self.hand_over(Given(positional=(value,)), target, frame)  # a hook: it will be called there

    def _assign_subscript(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        key = self.evaluate(target.slice, frame)
        for item in self.evaluate(target.value, frame):
            if isinstance(item, Table):
                self.put(item, self.one_text(key), value)
            elif isinstance(item, Namespace):
                text = self.one_text(key)
                if text is not None:
                    self.store(item.module.frame, text, unmarked(value))
            elif isinstance(item, Instance):
                method = self.attribute(Value((item,)), "__setitem__", target, frame)
                if method:
                    self.invoke(method, Given(positional=(key, value)), target, frame)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value, frame: Frame) -> None:
        for place, each in enumerate(target.elts):
            found: Value = EMPTY
            for item in value:
                if isinstance(item, Table):
                    item.readers[self.current] = None
                    found |= item.keys.get(str(place), EMPTY) | item.rest
                elif isinstance(item, Outside):
                    found |= Value((item,))
            self.assign(each, found, frame)
