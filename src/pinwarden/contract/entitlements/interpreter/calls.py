"""Calls of functions and classes in the source, and registration with MCP frameworks."""

from __future__ import annotations

import ast

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter.attributes import Attributes
from pinwarden.contract.entitlements.interpreter.base import unmarked, with_reach
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Bound,
    Class,
    Descriptor,
    Function,
    Instance,
    Item,
    Mark,
    Outside,
    Partial,
    Registrar,
    Returns,
    Table,
    TableMethod,
    Text,
    Value,
    order,
)
from pinwarden.contract.entitlements.interpreter.program import Activation, Frame
from pinwarden.contract.entitlements.interpreter.terms import (
    MAX_ACTIVATIONS,
    MAX_DEPTH,
    MAX_RUNS,
    MAX_RUNS_ALTOGETHER,
    NOTHING_GIVEN,
    Given,
    Registration,
    most_shapes,
)

Arguments = dict[str, Value]
_MAKING = frozenset(("__new__", "__init__", "__post_init__", "model_post_init", "__init_subclass__"))
"""Special methods that are followed where they are called."""


class Calls(Attributes):
    """Who is called, with what, and what comes back."""

    def invoke(self, callee: Value, given: Given, node: ast.AST, frame: Frame) -> Value:
        """What a call can return, noting what it needs."""
        result: Value = EMPTY
        if not callee:
            return self.hand_over(given, node, frame)
        for item in callee if len(callee) == 1 else sorted(callee, key=order):
            result |= self._invoke_item(item, given, node, frame)
        return result

    def _invoke_item(self, item: Item, given: Given, node: ast.AST, frame: Frame) -> Value:
        if isinstance(item, Function):
            return self.enter(item, given, node, frame)
        if isinstance(item, Bound):
            return self.enter(item.function, _before(given, item.receiver), node, frame)
        if isinstance(item, Outside):
            return self.call_outside(item.path, given, node, frame)
        if isinstance(item, Class):
            return self._construct(item, given, node, frame)
        if isinstance(item, Instance):
            return self._call_object(item, given, node, frame)
        if isinstance(item, TableMethod):
            return self.call_table(item, given, node, frame)
        if isinstance(item, Partial):
            merged = Given(
                positional=item.positional + given.positional,
                keywords={**dict(item.keywords), **given.keywords},
                spread=given.spread,
            )
            return self.invoke(item.target, merged, node, frame)
        if isinstance(item, Returns):
            return item.value
        if isinstance(item, Registrar):
            return self.register(item, given)
        if isinstance(item, Descriptor):
            return self.invoke(item.value, given, node, frame)
        return EMPTY

    # What other parts answer

    def call_outside(self, path: str, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call something that is not looked into."""
        raise NotImplementedError

    def call_table(self, method: TableMethod, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call a method of a list or dict."""
        raise NotImplementedError

    def register(self, registrar: Registrar, given: Given) -> Value:
        """Hand a function to a server."""
        raise NotImplementedError

    def hand_over(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call the functions among the arguments, as unknown code may."""
        raise NotImplementedError

    # Objects

    def _construct(self, cls: Class, given: Given, node: ast.AST, frame: Frame) -> Value:
        made = Instance(cls)
        self._follow_unasked(cls, made, node, frame)
        if cls.enumeration:
            return given.at(0) or Value((made,))
        for name in ("__new__", "__init__", "__post_init__", "model_post_init"):
            for item in self.in_class(cls, name, set()):
                if isinstance(item, Function):
                    first: Item = cls if name == "__new__" else made
                    plain = given if name in ("__new__", "__init__") else NOTHING_GIVEN
                    self.enter(item, _before(plain, first), node, frame)
        if not self.in_class(cls, "__init__", set()):
            self._fill_fields(cls, given)
            for base in cls.bases:
                if isinstance(base, Outside):
                    self.call_outside(base.path, given, node, frame)
        return Value((made,))

    def _follow_unasked(self, cls: Class, made: Instance, node: ast.AST, frame: Frame) -> None:
        """What is called without a call in the source, by the language or by a base class that is not looked into.

        An operator, a format, a loop or the end of an object calls a method, at places where nothing is known of the
        object any more. So whoever makes an object is taken to have all of them called.
        """
        for name in sorted(self._unasked_names(cls, set())):
            for item in self.in_class(cls, name, set()):
                value = item.value if isinstance(item, Descriptor) else (item,)
                for method in value:
                    if isinstance(method, Function):
                        result = self.enter(method, _before(NOTHING_GIVEN, made), node, frame)
                        if name.startswith("__reduce"):  # which says what is called to make the object again
                            self.hand_over(Given(positional=(result,)), node, frame)

    def _unasked_names(self, cls: Class, seen: set[Class]) -> set[str]:
        if cls in seen:
            return set()
        seen.add(cls)
        names = {name for name in cls.body.every if cls.outer or (name[:2] == "__" == name[-2:])}
        names |= cls.called_back | ({"_missing_"} & cls.body.every.keys())
        for base in cls.bases:
            if isinstance(base, Class):
                names |= self._unasked_names(base, seen)
        return names - _MAKING

    def _fill_fields(self, cls: Class, given: Given) -> None:
        """Arguments of a class without ``__init__`` are its fields, as for dataclasses and models."""
        for name, value in given.keywords.items():
            self.remember(cls, name, value)
        if given.positional:
            fields = [
                statement.target.id
                for statement in cls.node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            ]
            for name, value in zip(fields, given.positional, strict=False):
                self.remember(cls, name, value)

    def _call_object(self, item: Instance, given: Given, node: ast.AST, frame: Frame) -> Value:
        result: Value = EMPTY
        for function in self.in_class(item.cls, "__call__", set()):
            if isinstance(function, Function):
                result |= self.enter(function, _before(given, item), node, frame)
        return result

    # Functions

    def enter(self, function: Function, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call a function of the source."""
        if self.exhausted:
            return EMPTY
        bound = self._bind(function, given)
        for _ in range(4):  # the first run learns which text arguments distinguish the calls
            told_by = len(function.told_by)
            activation = self._activation(function, bound)
            self._ensure_run(activation)
            if len(function.told_by) == told_by:
                break
        for name in tuple(function.told_by):
            if name in bound:
                self.texts(bound[name])  # the caller that passed it on is distinguished by it too
        self.calls(frame, activation, node)
        activation.callers[self.current] = None
        if activation.yields:
            table = self.table(activation.frame, function.node, "yields")
            self.put(table, None, activation.yields)
            return activation.returns | Value((table,))
        return activation.returns

    def _bind(self, function: Function, given: Given) -> Arguments:
        names = function.parameters
        bound: Arguments = dict(zip(names, given.positional, strict=False))
        arguments = function.node.args
        spread = with_reach(given.spread)
        if arguments.vararg and len(given.positional) > len(names):
            for place, value in enumerate(given.positional[len(names) :]):
                bound[f"*{place}"] = value
        named = dict.fromkeys((*names, *(argument.arg for argument in arguments.kwonlyargs)))
        for name, value in given.keywords.items():
            if name in named:
                bound[name] = value
            elif arguments.kwarg:
                bound[f"**{name}"] = value
        if spread:
            for name in named:
                bound.setdefault(name, spread)
            if arguments.vararg:
                bound["*"] = spread
        return bound

    def _activation(self, function: Function, bound: Arguments) -> Activation:
        """The activation for arguments like these. Tables do not tell calls apart: each adds its own to the others'."""
        shape: list[tuple[str, Value]] = []
        tables: Arguments = {}
        for name, value in sorted(bound.items()):
            texts_count = name.strip("*") in function.told_by or name[0] == "*"
            telling = Value(item for item in value if _tells_apart(item, texts_count))
            if telling:
                shape.append((name, telling))
            if held := Value(item for item in value if type(item) is Table):
                tables[name] = held
        key: object = (function, tuple(shape))
        activation = self.activations.get(key)
        if activation is None:
            shapes = self.shapes[id(function.node)] = self.shapes.get(id(function.node), 0) + 1
            if shapes > most_shapes(len(self.activations)):
                key = (function, "merged")
                activation = self.activations.get(key)
            if activation is None:
                activation = self._new_activation(function, key)
            self._give(activation, dict(shape))
        self._give(activation, tables)
        return activation

    def _give(self, activation: Activation, arguments: Arguments) -> None:
        """Add to what a function is called with; if that is news, it is followed again."""
        given = activation.frame.given
        for name, value in arguments.items():
            known = given.get(name)
            if known is None or not value <= known:
                given[name] = value if known is None else known | value
                if activation.runs:
                    self.again[activation] = None

    def _new_activation(self, function: Function, key: object) -> Activation:
        frame = Frame(function.module, function.home, f"{function.qualname}.<locals>.", function)
        activation = Activation(function.qualname, function.module, frame)
        activation.function = function
        frame.activation = activation
        self.activations[key] = activation
        if len(self.activations) > MAX_ACTIVATIONS:
            self.exhausted = True
        return activation

    def _ensure_run(self, activation: Activation) -> None:
        if activation.running or activation.runs:
            return
        if self.depth >= MAX_DEPTH:
            self.again[activation] = None
        else:
            self.follow_activation(activation)

    def follow_activation(self, activation: Activation) -> None:
        """Follow the body of a function; if it returns more than before, its callers are followed again."""
        function = activation.function
        if function is None or activation.running:
            return
        if activation.runs >= MAX_RUNS:
            self.cannot_see(activation.frame, "too tangled to be followed to its end", function.node, activation.label)
            return
        before = activation.returns, activation.yields
        caller, self.current = self.current, activation
        activation.runs += 1
        self.runs += 1
        if self.runs > MAX_RUNS_ALTOGETHER:
            self.exhausted = True
        activation.running = True
        self.depth += 1
        try:
            self._set_parameters(activation.frame, function)
            if isinstance(function.node, ast.Lambda):
                activation.returns |= unmarked(self.evaluate(function.node.body, activation.frame))
            else:
                self.run(function.node.body, activation.frame)
        except RecursionError:
            self.cannot_see(activation.frame, "nested too deeply to be followed", function.node, function.qualname)
        finally:
            self.depth -= 1
            activation.running = False
            self.current = caller
        if (activation.returns, activation.yields) != before:
            self.again.update(activation.callers)

    def _set_parameters(self, frame: Frame, function: Function) -> None:
        given = frame.given
        frame.names = {}
        arguments = function.node.args
        plain = (*arguments.posonlyargs, *arguments.args)
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
        pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        for place, (parameter, default) in enumerate(pairs):
            value = given.get(parameter.arg)
            if value is None:
                value = self.evaluate(default, function.home) if default is not None else EMPTY
                value = with_reach(value)
                if not value and place == 0 and function.in_class is not None and parameter.annotation is None:
                    value = Value((Instance(function.in_class),))
                if not value:
                    value = self.meaning_of_annotation(parameter.annotation, function.home)
            self.store(frame, parameter.arg, value | Value((Mark(function, parameter.arg),)))
        self._set_rest(frame, function, given)

    def _set_rest(self, frame: Frame, function: Function, given: Arguments) -> None:
        for star, parameter in (("**", function.node.args.kwarg), ("*", function.node.args.vararg)):
            if parameter is None:
                continue
            table = self.table(frame, function.node, star)
            for name, value in given.items():
                if name.startswith(star) and (star == "**" or not name.startswith("**")):
                    self.put(table, name[len(star) :] or None, value)
            self.store(frame, parameter.arg, Value((table,)))


def _tells_apart(item: Item, texts_count: bool) -> bool:
    kind = type(item)
    return kind is not Table and kind is not Mark and (texts_count or kind is not Text)


def _before(given: Given, first: Item) -> Given:
    return Given(positional=(Value((first,)), *given.positional), keywords=given.keywords, spread=given.spread)


_HANDLER_OPTIONS = (
    ("call_request", "on_call_tool"),
    ("list_tools", "on_list_tools"),
    ("get_prompt", "on_get_prompt"),
    ("read_resource", "on_read_resource"),
)
"""Arguments of the low-level server that take a handler."""
_ADDED = {"add_tool": "tool", "add_prompt": "prompt", "add_resource": "resource", "add_template": "resource"}
_DIRECT = ("tool", "prompt", "resource")


class Servers(Calls):
    """Which functions are handed to a server, under which name."""

    def framework(self, path: str, given: Given) -> Value | None:
        """What a call of the SDK or of fastmcp registers or returns; ``None`` where it does neither."""
        last = path.rpartition(".")[2]
        name = self._name_of(given)
        if last in ("Tool", "types.Tool") and name is not None:
            self.tool_names.setdefault(name)
        if last in ("from_function", "from_tool"):
            known = self._address_of(given) or name or ""
            return Value((Partial(given.at(0, "fn") or EMPTY, (), (("name", Value((Text(known),))),)),))
        if last in ("FunctionResource", "FunctionPrompt") and "fn" in given.keywords:
            known = self._address_of(given) or name or ""
            return Value((Partial(given.keywords["fn"], (), (("name", Value((Text(known),))),)),))
        for kind, keyword in _HANDLER_OPTIONS:
            if keyword in given.keywords:
                self.register(Registrar(kind, None), Given(positional=(given.keywords[keyword],)))
        if last not in effects.REGISTERING or "(" not in path:
            return None
        if last in ("get_prompt", "read_resource") and (given.positional or given.keywords):
            return None  # a client asks for one; a server's decorator has no arguments
        kind = _ADDED.get(last, last)
        first = given.at(0, "fn") or given.at(0, kind) or EMPTY
        if kind in _DIRECT and any(not isinstance(item, Text) for item in unmarked(first)):
            name = self.one_text(given.at(1, "name") or EMPTY)
            return self.register(Registrar(kind, name), Given(positional=(first,)))
        return Value((Registrar(kind, self._address_of(given) or name if kind == "resource" else name),))

    def _address_of(self, given: Given) -> str | None:
        """The URI or URI template of a resource; its ``name`` is only for display."""
        for keyword in ("uri", "uri_template"):
            if keyword in given.keywords:
                return self.one_text(given.keywords[keyword])
        return self.one_text(given.positional[0]) if given.positional else None

    def _name_of(self, given: Given) -> str | None:
        value = given.keywords.get("name")
        if value is None and given.positional:
            value = given.positional[0]
        return self.one_text(value) if value else None

    def register(self, registrar: Registrar, given: Given) -> Value:
        """Hand a function to a server."""
        value = unmarked(given.at(0) or EMPTY)
        for item in value:
            name, target = registrar.name, item
            if isinstance(item, Partial) and item.target:
                named = dict(item.keywords).get("name", EMPTY)
                name = name or next(
                    (handler.text for handler in named if isinstance(handler, Text) and handler.text), None
                )
                target = next(iter(item.target))
            function = target.function if isinstance(target, Bound) else target
            if isinstance(function, Function):
                line = getattr(function.node, "lineno", 0)
                key = (function.module.name, function.qualname, line, name)
                self.registrations.setdefault(
                    key,
                    Registration(
                        kind=registrar.kind,
                        name=name,
                        value=Value((target,)),
                        module=function.module.name,
                        qualname=function.qualname,
                        line=line,
                    ),
                )
        return value
