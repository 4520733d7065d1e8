"""Lists, dicts and what is looked up in them."""

from __future__ import annotations

import ast

from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Class,
    Instance,
    ModuleItem,
    Namespace,
    Outside,
    Table,
    TableMethod,
    Text,
    Value,
)
from pinwarden.contract.entitlements.interpreter.outside import OutsideCalls
from pinwarden.contract.entitlements.interpreter.program import Frame
from pinwarden.contract.entitlements.interpreter.terms import Given


class Tables(OutsideCalls):
    """What goes into containers, and what comes out."""

    def call_table(self, method: TableMethod, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call a method of a list or dict."""
        table, name = method.table, method.name
        first, second = given.at(0) or EMPTY, given.at(1, "default") or EMPTY
        if name in ("append", "add", "appendleft", "push"):
            self.put(table, None, first)
        elif name in ("insert", "__setitem__"):
            self.put(table, self.one_text(first), second)
        elif name in ("extend", "update", "extendleft", "union"):
            self._merge(table, given)
        elif name in ("get", "pop", "setdefault", "__getitem__"):
            if name == "setdefault":
                self.put(table, self.one_text(first), second)
            return self.subscript(Value((table,)), first, node, frame) | second
        elif name == "items":
            return self._items(table, node, frame)
        elif name == "keys":
            keys = self.table(frame, node, "keys")
            for key in table.keys:
                self.put(keys, None, Value((Text(key),)))
            return Value((keys,))
        elif name in ("values", "copy", "__iter__"):
            return Value((table,))
        elif name in ("popleft", "popitem"):
            return self.elements(Value((table,)))
        elif name == "sort":
            self.invoke(given.at(0, "key") or EMPTY, Given(positional=(table.everything(),)), node, frame)
        return EMPTY

    def _merge(self, table: Table, given: Given) -> None:
        for item in given.everything():
            if isinstance(item, Table):
                item.readers[self.current] = None
                for key, value in list(item.keys.items()):
                    self.put(table, key, value)
                self.put(table, None, item.rest)
        for name, value in given.keywords.items():
            self.put(table, name, value)

    def _items(self, table: Table, node: ast.AST, frame: Frame) -> Value:
        pair, outer = self.table(frame, node, "item"), self.table(frame, node, "items")
        table.readers[self.current] = None
        self.put(pair, "0", Value(Text(key) for key in table.keys))
        self.put(pair, "1", table.everything())
        self.put(outer, None, Value((pair,)))
        return Value((outer,))

    def subscript(self, value: Value, key: Value, node: ast.AST, frame: Frame) -> Value:
        """What ``value[key]`` can stand for."""
        found: Value = EMPTY
        for item in value:
            if isinstance(item, Table):
                item.readers[self.current] = None
                text = self.one_text(key)
                found |= item.keys.get(text, EMPTY) | item.rest if text is not None else item.everything()
            elif isinstance(item, Namespace):
                found |= self._in_namespace(item, key, node, frame)
            elif isinstance(item, Outside):
                found |= self._in_outside(item, key, node, frame)
            elif isinstance(item, Instance):
                method = self.attribute(Value((item,)), "__getitem__", node, frame)
                if method:
                    found |= self.invoke(method, Given(positional=(key,)), node, frame)
            elif isinstance(item, Class) and item.enumeration:
                found |= self.elements(Value((item,)))
        return found

    def _in_namespace(self, item: Namespace, key: Value, node: ast.AST, frame: Frame) -> Value:
        text = self.one_text(key)
        if text is None:
            self.cannot_see(frame, "looks names up by a computed text", node, "globals()")
            return self.all_methods(ModuleItem(item.module), node, frame)
        return self.global_name(text, item.module)

    def _in_outside(self, item: Outside, key: Value, node: ast.AST, frame: Frame) -> Value:
        if item.path == "sys.modules":
            return self.import_by_name(Given(positional=(key,)), node, frame)
        if item.path == "builtins.__builtins__":
            return self.getattr(Given(positional=(Value((Outside("builtins"),)), key)), node, frame)
        return Value((item,))
