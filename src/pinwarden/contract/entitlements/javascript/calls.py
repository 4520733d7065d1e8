"""Follow calls: functions by combination of arguments, classes, and external functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinwarden.contract.entitlements.javascript.catalogue import BROWSER_METHODS, PASSIVE_METHODS, SDK, VALIDATORS
from pinwarden.contract.entitlements.javascript.effects import (
    constructs_only,
    extend,
    find_flag_kinds,
    find_kinds,
    find_sql_kinds,
    get_package,
    is_sql,
    keeps_result,
)
from pinwarden.contract.entitlements.javascript.engine import (
    COMPUTED_IMPORT,
    COMPUTED_MODULE,
    MAX_DEPTH,
    MAX_RUNS,
    MISSING_FILE,
    UNKNOWN_PACKAGE,
    Engine,
)
from pinwarden.contract.entitlements.javascript.syntax import JsNode
from pinwarden.contract.entitlements.javascript.values import (
    ANY_DATA,
    DATA,
    EMPTY,
    AbstractValue,
    Bound,
    ClassValue,
    External,
    Frame,
    JsActivation,
    JsFunction,
    JsItem,
    JsObject,
    JsText,
    Resolver,
    Slot,
    read_texts,
)

MAX_CONTEXTS: Final = 120
"""The maximum number of combinations of arguments for which one function is followed separately."""
MAX_ACTIVATIONS: Final = 40_000
_MAX_ARGUMENTS: Final = 24
_CALLBACK_ARGUMENTS: Final = (ANY_DATA,) * 4
_MAX_OPTION_DEPTH: Final = 3


class JsCalls(Engine):
    """Calls of functions, classes and external code."""

    def __init__(self) -> None:
        super().__init__()
        self.activations: dict[tuple[object, ...], JsActivation] = {}
        self._contexts: dict[int, int] = {}

    # Implemented by the other parts of the interpreter.

    def run_body(self, activation: JsActivation) -> None:
        """Follow the code of an activation."""
        raise NotImplementedError

    def call_known_external(
        self, item: External, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue | None:
        """Follow a function of the language or of Node whose result depends on its arguments."""
        raise NotImplementedError

    def call_value(
        self, callee: AbstractValue, this: AbstractValue, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        """Call every function that the value may be, and return the possible results."""
        result: set[JsItem] = set()
        for item in callee:
            result |= self.call_item(item, this, arguments, node)
        return frozenset(result)

    def call_item(
        self, item: JsItem, this: AbstractValue, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        """Call one function."""
        if isinstance(item, JsFunction):
            return self.call_function(item, this, arguments, node.line)
        if isinstance(item, Bound):
            return self.call_item(item.function, item.this or this, (*item.arguments, *arguments), node)
        if isinstance(item, ClassValue):
            return self.construct_class(item, arguments, node)
        if isinstance(item, Resolver):
            self.write(item.slot, arguments[0] if arguments else ANY_DATA)
            return ANY_DATA
        if isinstance(item, External):
            return self.call_external(item, arguments, node)
        self.call_callbacks(arguments, node)
        return ANY_DATA

    # Functions.

    def call_function(
        self, function: JsFunction, this: AbstractValue, arguments: Sequence[AbstractValue], line: int
    ) -> AbstractValue:
        """Follow a function with these arguments, and return its result."""
        activation = self.activate(function, this, arguments)
        self.current.calls.setdefault(activation, line)
        if not activation.runs:
            if self.depth < MAX_DEPTH:
                self.run(activation)
            else:
                self.enqueue(activation)
        result = self.read(activation.returns)
        if function.is_generator and result:
            generator = self.make_object(activation.frame, id(function.node), "generator", "array")
            self.set_object_member(generator, "*", result)
            return result | {generator}
        return result

    def activate(
        self, function: JsFunction, this: AbstractValue, arguments: Sequence[AbstractValue], detail: str = ""
    ) -> JsActivation:
        """Return the activation for a combination of arguments, with the arguments added to it."""
        key = self._build_key(function, this, arguments, detail)
        activation = self.activations.get(key)
        if activation is None and len(self.activations) >= MAX_ACTIVATIONS:
            self.exhausted = True
            key = (function, "", EMPTY)
            activation = self.activations.get(key)
        if activation is None:
            self._contexts[id(function.node)] = self._contexts.get(id(function.node), 0) + 1
            frame = Frame(function.module, function.frame)
            frame.function = function
            if not function.is_arrow:
                frame.this = Slot()
            activation = self.activations[key] = JsActivation(function.name, function.module, frame, function)
        if activation.frame.this is not None:
            self.write(activation.frame.this, this or ANY_DATA)
        self._add_arguments(activation, arguments)
        return activation

    def _add_arguments(self, activation: JsActivation, arguments: Sequence[AbstractValue]) -> None:
        slots = activation.arguments
        for index in range(max(len(arguments), len(slots))):
            if index >= _MAX_ARGUMENTS:
                break
            if index >= len(slots):
                slots.append(Slot())
                if activation.runs:
                    self.enqueue(activation)
                    self.write(slots[index], ANY_DATA)
            given = arguments[index] if index < len(arguments) else ANY_DATA
            slots[index].readers.setdefault(activation)
            self.write(slots[index], given)

    def _build_key(
        self, function: JsFunction, this: AbstractValue, arguments: Sequence[AbstractValue], detail: str
    ) -> tuple[object, ...]:
        count = self._contexts.get(id(function.node), 0)
        if count >= 2 * MAX_CONTEXTS:
            return (function, detail, EMPTY)
        receivers = EMPTY if function.is_arrow else frozenset(item for item in this if isinstance(item, JsObject))
        if count >= MAX_CONTEXTS:
            return (function, detail, receivers)
        keys = [self._select_key_items(argument, function) for argument in arguments[:_MAX_ARGUMENTS]]
        while keys and not keys[-1]:
            keys.pop()
        return (function, detail, receivers, *keys)

    def _select_key_items(self, value: AbstractValue, function: JsFunction) -> AbstractValue:
        """Return the items for which a function is followed separately.

        Functions that a call of the same function made are none of them; otherwise their number would have no limit.
        """
        return frozenset(
            item
            for item in value
            if self._distinguishes(item, 2) and not (isinstance(item, JsFunction) and _is_made_in(item, function.node))
        )

    def _distinguishes(self, item: JsItem, depth: int) -> bool:
        if isinstance(item, JsText):
            return item.text in self.tool_names or is_sql(item.text)
        if isinstance(item, JsFunction | Bound | ClassValue | Resolver):
            return True
        if isinstance(item, JsObject):
            if item.cls is not None or item.exports:
                return True
            return depth > 0 and any(
                self._distinguishes(inner, depth - 1)
                for slot in list(item.slots.values())[:40]
                for inner in list(slot.value)[:40]
            )
        return False

    def run(self, activation: JsActivation) -> None:
        """Follow the code of an activation from its beginning."""
        activation.runs += 1
        if activation.runs > MAX_RUNS:
            self.exhausted = True
            return
        before, self.current = getattr(self, "current", activation), activation
        self.depth += 1
        activation.effects.clear()
        activation.unknown.clear()
        activation.calls.clear()
        try:
            self.run_body(activation)
        finally:
            self.depth -= 1
            self.current = before

    def drain(self) -> None:
        """Follow queued activations until nothing changes."""
        while self.queue:
            activation = self.queue.popleft()
            activation.queued = False
            self.run(activation)

    # Classes.

    def construct(self, callee: AbstractValue, arguments: Sequence[AbstractValue], node: JsNode) -> AbstractValue:
        """Follow ``new`` for every class that the value may be."""
        result: set[JsItem] = set()
        for item in callee:
            if isinstance(item, ClassValue):
                result |= self.construct_class(item, arguments, node)
            elif isinstance(item, JsFunction):
                instance = self.make_object(self.current.frame, id(node), f"new {hash(item)}")
                for prototype in self.get_object_member(item, "prototype", node.line):
                    if isinstance(prototype, JsObject):
                        instance.prototypes[prototype] = None
                returned = self.call_function(item, frozenset((instance,)), arguments, node.line)
                result.add(instance)
                result |= frozenset(value for value in returned if isinstance(value, JsObject))
            elif isinstance(item, External):
                result |= self.call_external(item, arguments, node, is_new=True)
            elif isinstance(item, Bound):
                result |= self.construct(frozenset((item.function,)), (*item.arguments, *arguments), node)
            else:
                self.call_callbacks(arguments, node)
                result.add(DATA)
        return frozenset(result)

    def construct_class(self, cls: ClassValue, arguments: Sequence[AbstractValue], node: JsNode) -> AbstractValue:
        """Return the object that ``new`` makes at a node, after its constructors were followed."""
        instance = self.make_object(self.current.frame, id(node), f"new {hash(cls)}")
        instance.cls = cls
        self.initialize(cls, instance, arguments, node)
        return frozenset((instance,))

    def initialize(self, cls: ClassValue, instance: JsObject, arguments: Sequence[AbstractValue], node: JsNode) -> None:
        """Follow the constructor and the fields of a class for an object."""
        this: AbstractValue = frozenset((instance,))
        if cls.fields:
            self.call_function(cls.initializer, this, (), node.line)
        if cls.constructor is not None:
            self.call_function(cls.constructor, this, arguments, node.line)
            for base in cls.base:
                if isinstance(base, External):
                    instance.bases[base] = None
        else:
            self.initialize_base(cls, instance, arguments, node)

    def initialize_base(
        self, cls: ClassValue, instance: JsObject, arguments: Sequence[AbstractValue], node: JsNode
    ) -> None:
        """Follow the constructor of the base class for an object."""
        for base in cls.base:
            if isinstance(base, ClassValue):
                if base is not cls:
                    self.initialize(base, instance, arguments, node)
            elif isinstance(base, External):
                instance.bases[base] = None
                self.call_external(base, arguments, node, is_new=True)
            elif isinstance(base, JsFunction):
                self.call_function(base, frozenset((instance,)), arguments, node.line)

    # External code.

    def call_external(
        self, item: External, arguments: Sequence[AbstractValue], node: JsNode, *, is_new: bool = False
    ) -> AbstractValue:
        """Record the entitlements of an external function, and follow the callbacks that it gets."""
        known = self.call_known_external(item, arguments, node)
        if known is not None:
            return known
        method = item.members[-1] if item.members else ""
        self._record_kinds(item, method, arguments, node, is_new=is_new)
        package = get_package(item.root)
        if package in VALIDATORS:
            return self.make_schema(item, arguments, node)
        if package in SDK:
            self.call_callbacks(arguments, node)
            if is_new:
                holder = self.make_object(self.current.frame, id(node), "sdk")
                holder.bases[item] = None
                for argument in arguments:
                    self.set_object_member(holder, "*arguments", argument)
                return frozenset((holder,))
            return frozenset((extend(item, "()"),))
        if method not in BROWSER_METHODS:
            self.call_callbacks(arguments, node)
        return frozenset((extend(item, "()"),)) if keeps_result(item) else ANY_DATA

    def _record_kinds(
        self, item: External, method: str, arguments: Sequence[AbstractValue], node: JsNode, *, is_new: bool
    ) -> None:
        kinds = find_kinds(item)
        what = item.describe()
        if kinds is None:
            if method not in PASSIVE_METHODS or "()" not in item.members:
                is_file = item.root.startswith((".", "/", "file:", "data:"))
                reason = COMPUTED_IMPORT if item == COMPUTED_MODULE else MISSING_FILE if is_file else UNKNOWN_PACKAGE
                self.add_unknown(reason, node.line, what.partition("(")[0])
            return
        if not kinds or (is_new and constructs_only(item, kinds)):
            return
        if method in PASSIVE_METHODS and len(item.members) > 1 and "()" in item.members:
            return
        for kind in kinds:
            rule, mark, position = kind.partition("@")
            if not mark:
                self.add_effect(kind, node.line, what)
                continue
            argument = arguments[int(position)] if int(position) < len(arguments) else EMPTY
            for found in self._apply_rule(rule, argument):
                self.add_effect(found, node.line, what)

    @staticmethod
    def _apply_rule(rule: str, argument: AbstractValue) -> tuple[str, ...]:
        if rule == "sql":
            return find_sql_kinds(read_texts(argument))
        if rule == "flags":
            return find_flag_kinds(read_texts(argument) if argument else ["r"])
        if rule == "document":
            return () if argument and all(map(_has_only_data, argument)) else ("filesystem:read", "network")
        return () if argument and all(isinstance(item, JsObject) for item in argument) else ("filesystem:read",)

    def call_callbacks(self, arguments: Sequence[AbstractValue], node: JsNode) -> None:
        """Follow functions that external code gets, directly or in options."""
        for argument in arguments:
            for function in self.collect_callbacks(argument, 0):
                self.call_item(function, EMPTY, _CALLBACK_ARGUMENTS, node)

    def collect_callbacks(self, value: AbstractValue, depth: int) -> list[JsItem]:
        """Return the functions in a value, also those in objects without a class."""
        found: list[JsItem] = []
        for item in value:
            if isinstance(item, JsFunction | Bound):
                found.append(item)
            elif not isinstance(item, JsObject) or isinstance(item, ClassValue) or depth >= _MAX_OPTION_DEPTH:
                continue
            elif item.cls is None and not item.exports:
                self.read(item.keys)
                for slot in list(item.slots.values()):
                    found += self.collect_callbacks(self.read(slot), depth + 1)
                found += item.getters.values()
        return found

    # Schemas keep the functions that they call when they validate.

    def make_schema(self, item: External, arguments: Sequence[AbstractValue], node: JsNode) -> AbstractValue:
        """Return a schema that holds the arguments of the call that made it."""
        schema = self.make_object(self.current.frame, id(node), "schema")
        schema.bases[External(item.root, item.members[:1])] = None
        for argument in arguments:
            self.set_object_member(schema, "*parts", frozenset(part for part in argument if isinstance(part, JsObject)))
        return frozenset((schema,))

    def call_schema(self, value: AbstractValue, node: JsNode) -> None:
        """Follow all functions that a schema may call."""
        pending, seen = list(value), set[JsItem]()
        while pending:
            item = pending.pop()
            if item in seen or not isinstance(item, JsObject) or len(seen) > 5_000:
                continue
            seen.add(item)
            if isinstance(item, JsFunction):
                self.call_function(item, EMPTY, _CALLBACK_ARGUMENTS, node.line)
            elif item.cls is None and not item.exports:
                for slot in list(item.slots.values()):
                    pending += self.read(slot)


def _has_only_data(options: JsItem) -> bool:
    """Whether an object certainly holds the bytes of a document, and no address of one."""
    if not isinstance(options, JsObject) or options.prototypes or "*" in options.slots:
        return False
    return "data" in options.slots and "url" not in options.slots


def _is_made_in(item: JsFunction, node: JsNode) -> bool:
    """Whether a function was created while the function of a node was followed."""
    frame: Frame | None = item.frame
    while frame is not None:
        if frame.function is not None and frame.function.node is node:
            return True
        frame = frame.parent
    return False
