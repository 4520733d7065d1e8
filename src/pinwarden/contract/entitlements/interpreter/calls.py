"""Follow calls of functions and classes in the source, and find functions that are registered with MCP frameworks."""

from __future__ import annotations

import ast

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter.attributes import Attributes
from pinwarden.contract.entitlements.interpreter.base import remove_marks, remove_texts
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
    ParameterMark,
    Partial,
    PythonObject,
    Registrar,
    Text,
    WrappedMethod,
    compute_sort_key,
)
from pinwarden.contract.entitlements.interpreter.program import Activation, PythonFrame
from pinwarden.contract.entitlements.interpreter.terms import (
    MAX_ACTIVATIONS,
    MAX_DEPTH,
    MAX_RUNS,
    MAX_TOTAL_RUNS,
    NO_ARGUMENTS,
    CallArguments,
    Registration,
    compute_max_combinations,
)

Arguments = dict[str, AbstractValue]
_CONSTRUCTORS = frozenset(("__new__", "__init__", "__post_init__", "model_post_init", "__init_subclass__"))
"""Special methods that are followed when an object or subclass is created."""


class Calls(Attributes):
    """Mixin that follows calls of functions and classes."""

    def invoke(self, callee: AbstractValue, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return the result of a call, and record the entitlements that the call needs."""
        result: AbstractValue = EMPTY
        if not callee:
            return self.call_passed_functions(args, node, frame)
        for item in callee if len(callee) == 1 else sorted(callee, key=compute_sort_key):
            result |= self._invoke_item(item, args, node, frame)
        return result

    def _invoke_item(self, item: PythonObject, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        if isinstance(item, Function):
            return self.call_function(item, args, node, frame)
        if isinstance(item, BoundMethod):
            return self.call_function(item.function, _prepend_argument(args, item.receiver), node, frame)
        if isinstance(item, ExternalName):
            return self.call_external(item.path, args, node, frame)
        if isinstance(item, Class):
            return self._construct(item, args, node, frame)
        if isinstance(item, Instance):
            return self._call_object(item, args, node, frame)
        if isinstance(item, ContainerMethod):
            return self.call_container(item, args, node, frame)
        if isinstance(item, Partial):
            merged = CallArguments(
                positional=item.positional + args.positional,
                keywords={**dict(item.keywords), **args.keywords},
                spread=args.spread,
            )
            return self.invoke(item.target, merged, node, frame)
        if isinstance(item, KnownResult):
            return item.value
        if isinstance(item, Registrar):
            return self.register(item, args)
        if isinstance(item, WrappedMethod):
            return self.invoke(item.value, args, node, frame)
        return EMPTY

    # Implemented by other mixins

    def call_external(self, path: str, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Evaluate a call of an external function or class."""
        raise NotImplementedError

    def call_container(
        self, method: ContainerMethod, args: CallArguments, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        """Evaluate a call of a container's method."""
        raise NotImplementedError

    def register(self, registrar: Registrar, args: CallArguments) -> AbstractValue:
        """Record that the source registers a function with a server."""
        raise NotImplementedError

    def call_passed_functions(self, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Follow the functions among the arguments, because unknown code may call them. Returns their results."""
        raise NotImplementedError

    # Objects

    def _construct(self, cls: Class, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        instance = Instance(cls)
        self._call_implicit_methods(cls, instance, node, frame)
        if cls.enumeration:
            return args.get_argument(0) or AbstractValue((instance,))
        for name in ("__new__", "__init__", "__post_init__", "model_post_init"):
            for item in self.find_in_class(cls, name, set()):
                if isinstance(item, Function):
                    first: PythonObject = cls if name == "__new__" else instance
                    plain = args if name in ("__new__", "__init__") else NO_ARGUMENTS
                    self.call_function(item, _prepend_argument(plain, first), node, frame)
        if not self.find_in_class(cls, "__init__", set()):
            self._fill_fields(cls, args)
            for base in cls.bases:
                if isinstance(base, ExternalName):
                    self.call_external(base.path, args, node, frame)
        return AbstractValue((instance,))

    def _call_implicit_methods(self, cls: Class, instance: Instance, node: ast.AST, frame: PythonFrame) -> None:
        """Follow the methods that the language or an external base class calls without a call in the source.

        Operators, formatting, loops and garbage collection call methods at points where the analysis no longer knows
        the object, so creating an object counts as calling all of them.
        """
        for name in sorted(self._list_implicit_methods(cls, set())):
            for item in self.find_in_class(cls, name, set()):
                value = item.value if isinstance(item, WrappedMethod) else (item,)
                for method in value:
                    if isinstance(method, Function):
                        result = self.call_function(method, _prepend_argument(NO_ARGUMENTS, instance), node, frame)
                        if name.startswith("__reduce"):  # returns the function that recreates the object
                            self.call_passed_functions(CallArguments(positional=(result,)), node, frame)

    def _list_implicit_methods(self, cls: Class, seen: set[Class]) -> set[str]:
        if cls in seen:
            return set()
        seen.add(cls)
        names = {name for name in cls.body.all_values if cls.has_external_base or (name[:2] == "__" == name[-2:])}
        names |= cls.callback_methods | ({"_missing_"} & cls.body.all_values.keys())
        for base in cls.bases:
            if isinstance(base, Class):
                names |= self._list_implicit_methods(base, seen)
        return names - _CONSTRUCTORS

    def _fill_fields(self, cls: Class, args: CallArguments) -> None:
        """Store the arguments of a class without ``__init__`` as its fields, as dataclasses and pydantic models do."""
        for name, value in args.keywords.items():
            self.add_attribute(cls, name, value)
        if args.positional:
            fields = [
                statement.target.id
                for statement in cls.node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            ]
            for name, value in zip(fields, args.positional, strict=False):
                self.add_attribute(cls, name, value)

    def _call_object(self, item: Instance, args: CallArguments, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        result: AbstractValue = EMPTY
        for function in self.find_in_class(item.cls, "__call__", set()):
            if isinstance(function, Function):
                result |= self.call_function(function, _prepend_argument(args, item), node, frame)
        return result

    # Functions

    def call_function(
        self, function: Function, args: CallArguments, node: ast.AST, frame: PythonFrame
    ) -> AbstractValue:
        """Follow the call of a function in the source, and return its result."""
        if self.exhausted:
            return EMPTY
        bound = self._bind_arguments(function, args)
        for _ in range(4):  # the first run finds the text-sensitive parameters
            known = len(function.text_sensitive)
            activation = self._find_or_create_activation(function, bound)
            self._follow_if_new(activation)
            if len(function.text_sensitive) == known:
                break
        for name in tuple(function.text_sensitive):
            if name in bound:
                self.list_texts(bound[name])  # a caller that passes its parameter on is text-sensitive too
        self.record_call(frame, activation, node)
        activation.callers[self.current] = None
        if activation.yields:
            table = self.get_container(activation.frame, function.node, "yields")
            self.put(table, None, activation.yields)
            return activation.returns | AbstractValue((table,))
        return activation.returns

    def _bind_arguments(self, function: Function, args: CallArguments) -> Arguments:
        names = function.parameters
        bound: Arguments = dict(zip(names, args.positional, strict=False))
        arguments = function.node.args
        spread = remove_texts(args.spread)
        if arguments.vararg and len(args.positional) > len(names):
            for index, value in enumerate(args.positional[len(names) :]):
                bound[f"*{index}"] = value
        known_names = dict.fromkeys((*names, *(argument.arg for argument in arguments.kwonlyargs)))
        for name, value in args.keywords.items():
            if name in known_names:
                bound[name] = value
            elif arguments.kwarg:
                bound[f"**{name}"] = value
        if spread:
            for name in known_names:
                bound.setdefault(name, spread)
            if arguments.vararg:
                bound["*"] = spread
        return bound

    def _find_or_create_activation(self, function: Function, bound: Arguments) -> Activation:
        """Return the activation for these arguments. Calls that differ only in containers share one activation."""
        shape: list[tuple[str, AbstractValue]] = []
        tables: Arguments = {}
        for name, value in sorted(bound.items()):
            texts_matter = name.strip("*") in function.text_sensitive or name[0] == "*"
            distinguishing = AbstractValue(item for item in value if _distinguishes_calls(item, texts_matter))
            if distinguishing:
                shape.append((name, distinguishing))
            if table_items := AbstractValue(item for item in value if type(item) is Container):
                tables[name] = table_items
        key: object = (function, tuple(shape))
        activation = self.activations.get(key)
        if activation is None:
            shapes = self.shapes[id(function.node)] = self.shapes.get(id(function.node), 0) + 1
            if shapes > compute_max_combinations(len(self.activations)):
                key = (function, "merged")
                activation = self.activations.get(key)
            if activation is None:
                activation = self._create_activation(function, key)
            self._add_arguments(activation, dict(shape))
        self._add_arguments(activation, tables)
        return activation

    def _add_arguments(self, activation: Activation, arguments: Arguments) -> None:
        """Add these values to the arguments of an activation, and queue the activation again if a value is new."""
        merged = activation.frame.arguments
        for name, value in arguments.items():
            known = merged.get(name)
            if known is None or not value <= known:
                merged[name] = value if known is None else known | value
                if activation.runs:
                    self.pending[activation] = None

    def _create_activation(self, function: Function, key: object) -> Activation:
        frame = PythonFrame(function.module, function.defining_frame, f"{function.qualname}.<locals>.", function)
        activation = Activation(function.qualname, function.module, frame)
        activation.function = function
        frame.activation = activation
        self.activations[key] = activation
        if len(self.activations) > MAX_ACTIVATIONS:
            self.exhausted = True
        return activation

    def _follow_if_new(self, activation: Activation) -> None:
        if activation.running or activation.runs:
            return
        if self.depth >= MAX_DEPTH:
            self.pending[activation] = None
        else:
            self.follow_activation(activation)

    def follow_activation(self, activation: Activation) -> None:
        """Follow the body of a function. If it returns more than before, its callers are queued again."""
        function = activation.function
        if function is None or activation.running:
            return
        if activation.runs >= MAX_RUNS:
            self.record_unknown(
                activation.frame, "too tangled to be followed to its end", function.node, activation.label
            )
            return
        before = activation.returns, activation.yields
        caller, self.current = self.current, activation
        activation.runs += 1
        self.runs += 1
        if self.runs > MAX_TOTAL_RUNS:
            self.exhausted = True
        activation.running = True
        self.depth += 1
        try:
            self._set_parameters(activation.frame, function)
            if isinstance(function.node, ast.Lambda):
                activation.returns |= remove_marks(self.evaluate(function.node.body, activation.frame))
            else:
                self.run(function.node.body, activation.frame)
        except RecursionError:
            self.record_unknown(activation.frame, "nested too deeply to be followed", function.node, function.qualname)
        finally:
            self.depth -= 1
            activation.running = False
            self.current = caller
        if (activation.returns, activation.yields) != before:
            self.pending.update(activation.callers)

    def _set_parameters(self, frame: PythonFrame, function: Function) -> None:
        args = frame.arguments
        frame.names = {}
        arguments = function.node.args
        plain = (*arguments.posonlyargs, *arguments.args)
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
        pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        for index, (parameter, default) in enumerate(pairs):
            value = args.get(parameter.arg)
            if value is None:
                value = self.evaluate(default, function.defining_frame) if default is not None else EMPTY
                value = remove_texts(value)
                if not value and index == 0 and function.in_class is not None and parameter.annotation is None:
                    value = AbstractValue((Instance(function.in_class),))
                if not value:
                    value = self.evaluate_annotation(parameter.annotation, function.defining_frame)
            self.store(frame, parameter.arg, value | AbstractValue((ParameterMark(function, parameter.arg),)))
        self._set_star_parameters(frame, function, args)

    def _set_star_parameters(self, frame: PythonFrame, function: Function, args: Arguments) -> None:
        for star, parameter in (("**", function.node.args.kwarg), ("*", function.node.args.vararg)):
            if parameter is None:
                continue
            table = self.get_container(frame, function.node, star)
            for name, value in args.items():
                if name.startswith(star) and (star == "**" or not name.startswith("**")):
                    self.put(table, name[len(star) :] or None, value)
            self.store(frame, parameter.arg, AbstractValue((table,)))


def _distinguishes_calls(item: PythonObject, texts_matter: bool) -> bool:
    kind = type(item)
    return kind is not Container and kind is not ParameterMark and (texts_matter or kind is not Text)


def _prepend_argument(args: CallArguments, first: PythonObject) -> CallArguments:
    return CallArguments(
        positional=(AbstractValue((first,)), *args.positional), keywords=args.keywords, spread=args.spread
    )


_HANDLER_OPTIONS = (
    ("call_request", "on_call_tool"),
    ("list_tools", "on_list_tools"),
    ("get_prompt", "on_get_prompt"),
    ("read_resource", "on_read_resource"),
)
"""Arguments of the low-level server that take a handler."""
_ADDED = {"add_tool": "tool", "add_prompt": "prompt", "add_resource": "resource", "add_template": "resource"}
_DIRECT = ("tool", "prompt", "resource")


class Registrations(Calls):
    """Mixin that records functions registered with MCP servers."""

    def call_framework(self, path: str, args: CallArguments) -> AbstractValue | None:
        """Return the result of an SDK or fastmcp call that registers a handler; None for other calls."""
        last = path.rpartition(".")[2]
        name = self._read_name(args)
        if last in ("Tool", "types.Tool") and name is not None:
            self.tool_names.setdefault(name)
        if last in ("from_function", "from_tool"):
            known = self._read_uri(args) or name or ""
            return AbstractValue(
                (Partial(args.get_argument(0, "fn") or EMPTY, (), (("name", AbstractValue((Text(known),))),)),)
            )
        if last in ("FunctionResource", "FunctionPrompt") and "fn" in args.keywords:
            known = self._read_uri(args) or name or ""
            return AbstractValue((Partial(args.keywords["fn"], (), (("name", AbstractValue((Text(known),))),)),))
        for kind, keyword in _HANDLER_OPTIONS:
            if keyword in args.keywords:
                self.register(Registrar(kind, None), CallArguments(positional=(args.keywords[keyword],)))
        if last not in effects.REGISTRATION_METHODS or "(" not in path:
            return None
        if last in ("get_prompt", "read_resource") and (args.positional or args.keywords):
            return None  # a client sends this request; the server's decorator of the same name has no arguments
        kind = _ADDED.get(last, last)
        first = args.get_argument(0, "fn") or args.get_argument(0, kind) or EMPTY
        if kind in _DIRECT and any(not isinstance(item, Text) for item in remove_marks(first)):
            name = self.get_single_text(args.get_argument(1, "name") or EMPTY)
            return self.register(Registrar(kind, name), CallArguments(positional=(first,)))
        return AbstractValue((Registrar(kind, self._read_uri(args) or name if kind == "resource" else name),))

    def _read_uri(self, args: CallArguments) -> str | None:
        """Return the URI or URI template of a resource; its ``name`` is only for display."""
        for keyword in ("uri", "uri_template"):
            if keyword in args.keywords:
                return self.get_single_text(args.keywords[keyword])
        return self.get_single_text(args.positional[0]) if args.positional else None

    def _read_name(self, args: CallArguments) -> str | None:
        value = args.keywords.get("name")
        if value is None and args.positional:
            value = args.positional[0]
        return self.get_single_text(value) if value else None

    def register(self, registrar: Registrar, args: CallArguments) -> AbstractValue:
        """Record that the source registers a function with a server."""
        value = remove_marks(args.get_argument(0) or EMPTY)
        for item in value:
            name, target = registrar.name, item
            if isinstance(item, Partial) and item.target:
                names = dict(item.keywords).get("name", EMPTY)
                name = name or next((text.text for text in names if isinstance(text, Text) and text.text), None)
                target = next(iter(item.target))
            function = target.function if isinstance(target, BoundMethod) else target
            if isinstance(function, Function):
                line = getattr(function.node, "lineno", 0)
                key = (function.module.name, function.qualname, line, name)
                self.registrations.setdefault(
                    key,
                    Registration(
                        kind=registrar.kind,
                        name=name,
                        value=AbstractValue((target,)),
                        module=function.module.name,
                        qualname=function.qualname,
                        line=line,
                    ),
                )
        return value
