"""Evaluate expressions to the set of values they can have."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter.attributes import BACK_DOORS
from pinwarden.contract.entitlements.interpreter.base import remove_marks
from pinwarden.contract.entitlements.interpreter.external import Containers
from pinwarden.contract.entitlements.interpreter.objects import (
    EMPTY,
    AbstractValue,
    Class,
    Container,
    ExternalName,
    Function,
    Instance,
    Registrar,
    Text,
)
from pinwarden.contract.entitlements.interpreter.program import PythonFrame
from pinwarden.contract.entitlements.interpreter.terms import CallArguments

MAX_TEXT = 400
"""The maximum length of a tracked string constant. A longer one is prose, not a name, a file mode or SQL."""

MAX_LITERAL = 512
"""The maximum number of elements of an evaluated list or dict literal. A longer one is treated as data."""

_REGISTERING = {"tool": "tool", "call_tool": "call_tool", "list_tools": "list_tools"}


class Expressions(Containers):
    """Mixin that evaluates expressions."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.kinds: dict[type[ast.expr], Callable[[Any, PythonFrame], AbstractValue]] = {
            ast.Name: self._evaluate_name,
            ast.Constant: self._evaluate_constant,
            ast.Attribute: self._evaluate_attribute,
            ast.Call: self._evaluate_call,
            ast.JoinedStr: self._evaluate_f_string,
            ast.FormattedValue: self._evaluate_formatted,
            ast.Subscript: self._evaluate_subscript,
            ast.Dict: self._evaluate_dict,
            ast.List: self._evaluate_list,
            ast.Tuple: self._evaluate_list,
            ast.Set: self._evaluate_list,
            ast.BinOp: self._evaluate_binary,
            ast.BoolOp: self._evaluate_boolean,
            ast.Compare: self._evaluate_compare,
            ast.UnaryOp: self._evaluate_unary,
            ast.IfExp: self._evaluate_conditional,
            ast.Await: self._evaluate_await,
            ast.Lambda: self._evaluate_lambda,
            ast.NamedExpr: self._evaluate_walrus,
            ast.Starred: self._evaluate_starred,
            ast.ListComp: self._evaluate_comprehension,
            ast.SetComp: self._evaluate_comprehension,
            ast.GeneratorExp: self._evaluate_comprehension,
            ast.DictComp: self._evaluate_comprehension,
            ast.Yield: self._evaluate_yield,
            ast.YieldFrom: self._evaluate_yield_from,
            ast.Slice: self._evaluate_slice,
        }

    def evaluate(self, node: ast.expr, frame: PythonFrame) -> AbstractValue:
        """Return the value of an expression."""
        return self.kinds[type(node)](node, frame)

    # Leaves

    def _evaluate_name(self, node: ast.Name, frame: PythonFrame) -> AbstractValue:
        return self.look_up(node.id, frame)

    def _evaluate_constant(self, node: ast.Constant, _: PythonFrame) -> AbstractValue:
        value = node.value
        if type(value) is str and len(value) <= MAX_TEXT:
            return AbstractValue((Text(value),))
        return EMPTY

    def _evaluate_attribute(self, node: ast.Attribute, frame: PythonFrame) -> AbstractValue:
        value = self.evaluate(node.value, frame)
        if value or node.attr in BACK_DOORS:
            return self.read_attribute(value, node.attr, node, frame)
        return EMPTY

    def _evaluate_f_string(self, node: ast.JoinedStr, frame: PythonFrame) -> AbstractValue:
        """Return the value of an f-string: its text up to the first unknown part."""
        prefix, complete = "", True
        for part in node.values:
            value = self.evaluate(part, frame)
            if complete:
                text = self._read_known_text(part, value)
                if text is None:
                    complete = False
                else:
                    prefix += text
        if not prefix or len(prefix) > MAX_TEXT:
            return EMPTY
        return AbstractValue((Text(prefix, complete=complete),))

    def _read_known_text(self, part: ast.expr, value: AbstractValue) -> str | None:
        if isinstance(part, ast.Constant):
            return str(part.value)
        texts = [item for item in value if type(item) is Text]
        return texts[0].text if len(texts) == 1 and texts[0].complete and len(value) == 1 else None

    def _evaluate_formatted(self, node: ast.FormattedValue, frame: PythonFrame) -> AbstractValue:
        value = self.evaluate(node.value, frame)
        if node.format_spec is not None:
            self.evaluate(node.format_spec, frame)
        return value

    # Calls

    def _evaluate_call(self, node: ast.Call, frame: PythonFrame) -> AbstractValue:
        function = node.func
        if isinstance(function, ast.Attribute):
            receiver = self.evaluate(function.value, frame)
            known = receiver or function.attr in BACK_DOORS
            callee = self.read_attribute(receiver, function.attr, function, frame) if known else EMPTY
            if not remove_marks(receiver):
                for kind in effects.find_method_kinds(function.attr):
                    self.record_entitlement(frame, kind, node, f"….{function.attr}")
        else:
            callee = self.evaluate(function, frame)
        args = self._evaluate_arguments(node, frame)
        if not callee:
            unknown = self._call_unknown(node, args)
            if unknown is not None:
                return unknown
        return self.invoke(callee, args, node, frame)

    def _call_unknown(self, node: ast.Call, args: CallArguments) -> AbstractValue | None:
        """Evaluate a method call on an unknown object, if the name of the method identifies it, as for ``str.join``."""
        function = node.func
        if not isinstance(function, ast.Attribute):
            return None
        if function.attr in _REGISTERING and not args.positional:
            name = self.get_single_text(args.keywords.get("name", EMPTY))
            return AbstractValue((Registrar(_REGISTERING[function.attr], name),))
        if function.attr == "add_tool" and args.positional:
            name = self.get_single_text(args.get_argument(1, "name") or EMPTY)
            return self.register(Registrar("tool", name), args)
        if function.attr == "join" and isinstance(function.value, ast.Constant) and args.positional:
            return self._join_texts(function.value.value, args.positional[0])
        return None

    def _join_texts(self, separator: object, value: AbstractValue) -> AbstractValue:
        for item in value:
            if (
                isinstance(item, Container)
                and item.keys
                and not item.values_of_unknown_keys
                and isinstance(separator, str)
            ):
                parts = [self.get_single_text(key) for key in item.keys.values()]
                known = [part for part in parts if part is not None]
                if len(known) == len(parts):
                    return AbstractValue((Text(separator.join(known)),))
        return EMPTY

    def _evaluate_arguments(self, node: ast.Call, frame: PythonFrame) -> CallArguments:
        if not node.args and not node.keywords:
            return CallArguments()
        positional: list[AbstractValue] = []
        spread: AbstractValue = EMPTY
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                spread |= self._expand_starred(self.evaluate(argument.value, frame), positional)
            else:
                positional.append(self.evaluate(argument, frame))
        keywords: dict[str, AbstractValue] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
                continue
            for item in value:
                if isinstance(item, Container):
                    item.readers[self.current] = None
                    keywords.update(item.keys)
                    spread |= item.values_of_unknown_keys
        return CallArguments(positional=tuple(positional), keywords=keywords, spread=spread)

    def _expand_starred(self, value: AbstractValue, positional: list[AbstractValue]) -> AbstractValue:
        """Append the elements of ``*value`` whose position is known, and return the elements whose position is not."""
        tables = [item for item in value if isinstance(item, Container)]
        if len(tables) == 1 and len(value) == 1:
            table = tables[0]
            table.readers[self.current] = None
            index = 0
            while str(index) in table.keys:
                positional.append(table.keys[str(index)])
                index += 1
            return table.values_of_unknown_keys
        return self.list_elements(value)

    # Containers

    def _evaluate_dict(self, node: ast.Dict, frame: PythonFrame) -> AbstractValue:
        table = self.get_container(frame, node)
        if len(node.keys) > MAX_LITERAL:
            return AbstractValue((table,))
        for key, content in zip(node.keys, node.values, strict=True):
            value = self.evaluate(content, frame)
            if key is None:
                for item in value:
                    if isinstance(item, Container):
                        self._copy_into(table, item)
                continue
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                name: str | None = key.value
            else:
                name = self.get_single_text(self.evaluate(key, frame))
            if value or name is not None:
                self.put(table, name, value)
        return AbstractValue((table,))

    def _copy_into(self, table: Container, source: Container) -> None:
        source.readers[self.current] = None
        for key, value in list(source.keys.items()):
            self.put(table, key, value)
        self.put(table, None, source.values_of_unknown_keys)

    def _evaluate_list(self, node: ast.List | ast.Tuple | ast.Set, frame: PythonFrame) -> AbstractValue:
        table = self.get_container(frame, node)
        if len(node.elts) > MAX_LITERAL:
            return AbstractValue((table,))
        fresh = not table.keys and not table.values_of_unknown_keys
        only_texts = bool(node.elts)
        for index, element in enumerate(node.elts):
            value = self.evaluate(element, frame)
            if isinstance(element, ast.Starred):
                self.put(table, None, self.list_elements(value))
                only_texts = False
                continue
            only_texts = only_texts and len(value) == 1 and all(type(item) is Text for item in value)
            self.put(table, str(index), value)
        if fresh:
            table.closed = only_texts
        return AbstractValue((table,))

    def _evaluate_starred(self, node: ast.Starred, frame: PythonFrame) -> AbstractValue:
        return self.evaluate(node.value, frame)

    def _evaluate_slice(self, node: ast.Slice, frame: PythonFrame) -> AbstractValue:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.evaluate(part, frame)
        return EMPTY

    def _evaluate_subscript(self, node: ast.Subscript, frame: PythonFrame) -> AbstractValue:
        value = self.evaluate(node.value, frame)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            key: AbstractValue = AbstractValue((Text(str(node.slice.value)),))
        else:
            key = self.evaluate(node.slice, frame)
            if isinstance(node.slice, ast.Slice):
                return value
        return self.evaluate_subscript_of(value, key, node, frame) if value else EMPTY

    # Operators

    def _evaluate_binary(self, node: ast.BinOp, frame: PythonFrame) -> AbstractValue:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.right, frame)
        if isinstance(node.op, ast.Div):
            return AbstractValue(item for item in left | right if isinstance(item, ExternalName | Instance))
        if not isinstance(node.op, ast.Add | ast.BitOr | ast.Mod):
            return EMPTY
        known = [item for item in left if type(item) is Text]
        if isinstance(node.op, ast.Add) and len(known) == 1:
            after = [item for item in right if type(item) is Text]
            if known[0].complete and len(after) == 1:
                return AbstractValue((Text(known[0].text + after[0].text, complete=after[0].complete),))
            return AbstractValue((Text(known[0].text, complete=False),))
        return AbstractValue(item for item in left | right if isinstance(item, Container | Class | ExternalName))

    def _evaluate_boolean(self, node: ast.BoolOp, frame: PythonFrame) -> AbstractValue:
        result: AbstractValue = EMPTY
        for part in node.values:
            result |= self.evaluate(part, frame)
        return result

    def _evaluate_compare(self, node: ast.Compare, frame: PythonFrame) -> AbstractValue:
        self.evaluate(node.left, frame)
        for part in node.comparators:
            self.evaluate(part, frame)
        return EMPTY

    def _evaluate_unary(self, node: ast.UnaryOp, frame: PythonFrame) -> AbstractValue:
        self.evaluate(node.operand, frame)
        return EMPTY

    def _evaluate_conditional(self, node: ast.IfExp, frame: PythonFrame) -> AbstractValue:
        decided = self.evaluate_condition(node.test, frame)
        if decided is True:
            return self.evaluate(node.body, frame)
        if decided is False:
            return self.evaluate(node.orelse, frame)
        return self.evaluate(node.body, frame) | self.evaluate(node.orelse, frame)

    def evaluate_condition(self, node: ast.expr, frame: PythonFrame) -> bool | None:
        """Evaluate a condition by the texts that the caller passed. Returns None if they do not determine it."""
        raise NotImplementedError

    # Functions, comprehensions and generators

    def _evaluate_await(self, node: ast.Await, frame: PythonFrame) -> AbstractValue:
        return self.evaluate(node.value, frame)

    def _evaluate_lambda(self, node: ast.Lambda, frame: PythonFrame) -> AbstractValue:
        return AbstractValue((self.get_function(node, frame, "<lambda>"),))

    def get_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: PythonFrame, name: str
    ) -> Function:
        """Return the function that a node defines in a frame."""
        function = frame.functions.get(id(node))
        if function is None:
            function = Function(node, frame.module, frame, name, frame.qualname + name)
            if frame.cls is not None:
                function.in_class = frame.cls
            frame.functions[id(node)] = function
        return function

    def _evaluate_walrus(self, node: ast.NamedExpr, frame: PythonFrame) -> AbstractValue:
        value = self.evaluate(node.value, frame)
        self.store(frame, node.target.id, value)
        return value

    def _evaluate_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: PythonFrame
    ) -> AbstractValue:
        before = dict(frame.names)
        for loop in node.generators:
            self.assign(loop.target, self.list_iterated(self.evaluate(loop.iter, frame), loop, frame), frame)
            for condition in loop.ifs:
                self.evaluate(condition, frame)
        table = self.get_container(frame, node)
        if isinstance(node, ast.DictComp):
            key = self.list_texts(self.evaluate(node.key, frame))
            value = self.evaluate(node.value, frame)
            self.put(table, key[0].text if len(key) == 1 and key[0].complete else None, value)
        else:
            self.put(table, None, self.evaluate(node.elt, frame))
        frame.names = before
        return AbstractValue((table,))

    def list_iterated(self, value: AbstractValue, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the elements of a value in a loop, including those of iterators in the source."""
        result = self.list_elements(value)
        for item in value:
            if isinstance(item, Instance):
                for name in ("__iter__", "__aiter__", "__next__", "__anext__"):
                    if self.find_in_class(item.cls, name, set()):
                        method = self.read_attribute(AbstractValue((item,)), name, node, frame)
                        result |= self.list_elements(self.invoke(method, CallArguments(), node, frame))
        return result

    def assign(self, target: ast.expr, value: AbstractValue, frame: PythonFrame) -> None:
        """Bind a target of an assignment."""
        raise NotImplementedError

    def _evaluate_yield(self, node: ast.Yield, frame: PythonFrame) -> AbstractValue:
        if node.value is not None:
            frame.activation.yields |= remove_marks(self.evaluate(node.value, frame))
        return EMPTY

    def _evaluate_yield_from(self, node: ast.YieldFrom, frame: PythonFrame) -> AbstractValue:
        value = self.evaluate(node.value, frame)
        frame.activation.yields |= self.list_elements(value)
        return value
