"""Functions and methods of the language whose results depend on their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinwarden.contract.entitlements.javascript.calls import JsCalls
from pinwarden.contract.entitlements.javascript.effects import import_external, is_built_in
from pinwarden.contract.entitlements.javascript.engine import COMPUTED_IMPORT, COMPUTED_MODULE
from pinwarden.contract.entitlements.javascript.syntax import JsNode
from pinwarden.contract.entitlements.javascript.values import (
    ALWAYS,
    ANY_DATA,
    DATA,
    EITHER,
    EMPTY,
    NEVER,
    AbstractValue,
    Bound,
    ClassValue,
    External,
    JsFunction,
    JsItem,
    JsObject,
    JsText,
    Resolver,
    find_truth,
    read_texts,
)

_RETURNS_ARGUMENT: Final = frozenset(
    (
        *("Promise.resolve", "Promise.all", "Promise.race", "Promise.any", "Promise.allSettled", "Object.freeze"),
        *("Object.seal", "structuredClone", "Array.from", "Object.preventExtensions", "Object.setPrototypeOf"),
        *("util.promisify", "util.callbackify", "util.deprecate", "Object", "Object.create", "Reflect.ownKeys"),
        *("Promise.try", "queueMicrotask.x"),
    )
)
_SAME_ELEMENTS: Final = frozenset(
    (
        *("slice", "filter", "sort", "reverse", "concat", "flat", "splice", "toSorted", "toReversed", "values", "fill"),
        *("entries.x", "with", "copyWithin", "toSpliced"),
    )
)
_ONE_ELEMENT: Final = frozenset(("find", "pop", "shift", "at", "findLast"))
_CALLS_WITH_ELEMENTS: Final = frozenset(
    (
        *("map", "forEach", "filter", "find", "findIndex", "some", "every", "flatMap", "sort", "findLast", "toSorted"),
        *("findLastIndex",),
    )
)
_PARSING_METHODS: Final = frozenset(
    ("parse", "safeParse", "parseAsync", "safeParseAsync", "validate", "validateSync", "spa", "decode", "encode")
)


class Builtins(JsCalls):
    """Methods of arrays, maps, objects, promises and functions."""

    def load_specifier(self, specifier: str, node: JsNode) -> AbstractValue:
        """Return the exports of a module that the current module loads."""
        raise NotImplementedError

    def load_computed(self, value: AbstractValue, node: JsNode) -> AbstractValue:
        """Load the modules that ``require`` or ``import()`` names."""
        texts = read_texts(value)
        if texts is None:
            self.add_unknown(COMPUTED_IMPORT, node.line, "import")
            return frozenset((COMPUTED_MODULE,))
        result: set[JsItem] = set()
        for text in texts:
            result |= self.load_specifier(text, node)
        return frozenset(result)

    def call_known_external(
        self, item: External, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue | None:
        """Follow a function of the language or of Node whose result depends on its arguments."""
        name = item.describe()
        first = arguments[0] if arguments else EMPTY
        if name in ("require", "module.require", "module.createRequire()", "process.mainModule.require"):
            return self.load_computed(first, node)
        if name == "process.getBuiltinModule":
            texts = read_texts(first)
            if texts is None:
                return self.load_computed(first, node)
            return frozenset(import_external(text) for text in texts if is_built_in(text)) or ANY_DATA
        if name in ("module.createRequire", "module.Module.createRequire"):
            return frozenset((External("global", ("require",)),))
        if name in _RETURNS_ARGUMENT:
            return first or ANY_DATA
        if name == "Promise":
            return self._make_promise(first, node)
        if name.startswith(("Object.", "Reflect.", "Array.")) or name in ("Map", "Set", "WeakMap", "Array", "Proxy"):
            return self._call_object_function(name, arguments, node)
        if item.members[-1:] in (("call",), ("apply",), ("bind",)) and len(item.members) > (item.root == "global"):
            return self._call_indirectly(External(item.root, item.members[:-1]), item.members[-1], arguments, node)
        if item.root == "worker_threads" and item.members == ("Worker",):
            self.add_unknown("a worker thread runs other code", node.line, name)
            return ANY_DATA
        return None

    def _make_promise(self, executor: AbstractValue, node: JsNode) -> AbstractValue:
        frame = self.current.frame
        resolver = frame.objects.get((id(node), "promise"))
        if not isinstance(resolver, Resolver):
            resolver = frame.objects[id(node), "promise"] = Resolver()
        self.call_value(executor, EMPTY, (frozenset((resolver,)), ANY_DATA), node)
        return self.read(resolver.slot) or ANY_DATA

    def _call_object_function(
        self, name: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue | None:
        first = arguments[0] if arguments else EMPTY
        frame = self.current.frame
        objects = [item for item in first if isinstance(item, JsObject)]
        if name == "Object.assign":
            for source in arguments[1:]:
                self.copy_members(first, source)
            return first
        if name in ("Object.values", "Array.of"):
            return self.make_array(frame, node, self.list_elements(first), "values")
        if name == "Object.entries":
            pairs = frozenset(pair for item in objects for pair in self.list_entries(item))
            return self.make_array(frame, node, pairs or ANY_DATA, "entries")
        if name in ("Object.keys", "Object.getOwnPropertyNames"):
            keys = frozenset(JsText(key) for item in objects for key in item.slots if key != "*")
            for item in objects:
                self.read(item.keys)
            return self.make_array(frame, node, keys | (EMPTY if objects else ANY_DATA), "keys")
        if name == "Object.fromEntries":
            return self._make_map(first, node, "")
        if name in ("Map", "WeakMap"):
            return self._make_map(first, node, "map")
        if name in ("Set", "Array"):
            return self.make_array(frame, node, self.list_elements(first) if first else EMPTY, "set")
        if name == "Object.defineProperty":
            self._define_property(arguments, node)
            return first
        if name == "Reflect.apply":
            rest = self._spread(arguments[2]) if len(arguments) > 2 else []
            return self.call_value(first, arguments[1] if len(arguments) > 1 else EMPTY, rest, node)
        if name == "Reflect.construct":
            return self.construct(first, self._spread(arguments[1]) if len(arguments) > 1 else [], node)
        if name == "Reflect.get" and len(arguments) > 1:
            return self.get_members(first, arguments[1], node.line)
        if name == "Proxy":
            self.call_callbacks(arguments[1:], node)
            return first
        return None

    def get_members(self, value: AbstractValue, names: AbstractValue, line: int) -> AbstractValue:
        """Return the members with these names."""
        texts = read_texts(names)
        if texts is None:
            return self.get_member(value, None, line)
        return frozenset(item for text in texts for item in self.get_member(value, text, line))

    def copy_members(self, target: AbstractValue, source: AbstractValue) -> None:
        """Copy all members, as ``Object.assign`` and ``...`` do."""
        for item in source:
            for owner in target:
                if not isinstance(owner, JsObject):
                    continue
                if isinstance(item, JsObject) and item is not owner:
                    self.read(item.keys)
                    for name, slot in list(item.slots.items()):
                        self.set_object_member(owner, name, self.read(slot))
                    owner.getters.update(item.getters)
                elif isinstance(item, External):
                    owner.bases[item] = None
                elif item is DATA:
                    self.set_object_member(owner, "*", ANY_DATA)

    def _make_map(self, pairs: AbstractValue, node: JsNode, label: str) -> AbstractValue:
        result = self.make_object(self.current.frame, id(node), "map", label)
        for pair in self.list_elements(pairs):
            if not isinstance(pair, JsObject):
                continue
            names = read_texts(self.get_object_member(pair, "0", node.line))
            value = self.get_object_member(pair, "1", node.line)
            for name in names or ("*",):
                self.set_object_member(result, name, value)
        return frozenset((result,))

    def _define_property(self, arguments: Sequence[AbstractValue], node: JsNode) -> None:
        if len(arguments) < 3:
            return
        names = read_texts(arguments[1]) or ("*",)
        for descriptor in arguments[2]:
            if not isinstance(descriptor, JsObject):
                continue
            value = EMPTY
            if "value" in descriptor.slots:
                value |= self.get_object_member(descriptor, "value", node.line)
            if "get" in descriptor.slots:
                getter = self.get_object_member(descriptor, "get", node.line)
                value |= self.call_value(getter, arguments[0], (), node)
            for name in names:
                for item in arguments[0]:
                    if isinstance(item, JsObject):
                        self.set_object_member(item, name, value)

    def _spread(self, value: AbstractValue) -> list[AbstractValue]:
        """Return the elements of an arguments array by position, as far as they are known."""
        arrays = [item for item in value if isinstance(item, JsObject)]
        count = max((int(name) + 1 for item in arrays for name in item.slots if name.isdigit()), default=0)
        if not count:
            return [self.list_elements(value)] * 3
        return [
            frozenset(part for item in arrays for part in self.get_object_member(item, str(index), 0))
            for index in range(min(count, 20))
        ]

    def _call_indirectly(
        self, item: JsItem, method: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        """Follow ``call``, ``apply`` and ``bind``."""
        this = arguments[0] if arguments else EMPTY
        rest = list(arguments[1:])
        if method == "bind":
            return frozenset((Bound(item, this, tuple(rest)),))
        if method == "apply":
            rest = self._spread(rest[0]) if rest else []
        return self.call_item(item, this, rest, node)

    # Methods.

    def call_method(
        self, receiver: AbstractValue, name: str | None, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        """Call a method of every object that the receiver may be. None stands for a computed name."""
        result: set[JsItem] = set()
        for item in receiver:
            result |= self._call_method_of(item, name, arguments, node)
        return frozenset(result)

    def _call_method_of(
        self, item: JsItem, name: str | None, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        this: AbstractValue = frozenset((item,))
        if isinstance(item, External):
            if name in ("then", "catch", "finally"):
                return self._call_promise_method(this, name, arguments, node)
            members = self.get_member(this, name, node.line)
            return self.call_value(members, this, arguments, node)
        if isinstance(item, JsFunction | Bound | ClassValue | Resolver) and name in ("call", "apply", "bind"):
            return self._call_indirectly(item, name, arguments, node)
        if isinstance(item, JsObject):
            return self._call_object_method(item, name, arguments, node)
        if name in ("then", "catch", "finally"):
            return self._call_promise_method(this, name, arguments, node)
        known = self._call_text_method(item, name, arguments)
        if known is not None:
            return known
        self.call_callbacks(arguments, node)
        return ANY_DATA

    @staticmethod
    def _call_text_method(item: JsItem, name: str | None, arguments: Sequence[AbstractValue]) -> AbstractValue | None:
        texts = read_texts(arguments[0]) if arguments else None
        if not isinstance(item, JsText):
            return None
        if name in ("toLowerCase", "trim", "toString", "toUpperCase"):
            return frozenset((JsText(_change_text(item.text, name)),))
        if texts is None or len(texts) != 1:
            return None
        if name in ("startsWith", "endsWith", "includes"):
            found = {
                "startsWith": item.text.startswith(texts[0]),
                "endsWith": item.text.endswith(texts[0]),
                "includes": texts[0] in item.text,
            }
            return ALWAYS if found[name] else NEVER
        return None

    def _call_object_method(
        self, item: JsObject, name: str | None, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        this: AbstractValue = frozenset((item,))
        if item.label and name is not None and name not in item.slots:
            return self._call_collection_method(item, name, arguments, node)
        members = self.get_object_member(item, name, node.line)
        callables = members - ANY_DATA
        if any(not isinstance(member, JsText | External) for member in callables):
            return self.call_value(callables, this, arguments, node)
        if name in ("then", "catch", "finally"):
            return self._call_promise_method(this, name, arguments, node)
        if name in _PARSING_METHODS and any("*parts" in part.slots or part.bases for part in (item,)):
            self.call_schema(this, node)
            return ANY_DATA
        if any(isinstance(member, External) for member in callables):
            result = self.call_value(callables, this, arguments, node)
            return self._chain_schema(item, result)
        self.call_callbacks(arguments, node)
        return ANY_DATA

    def _chain_schema(self, item: JsObject, result: AbstractValue) -> AbstractValue:
        """Let a schema that a method of another schema made hold that one."""
        for made in result:
            if isinstance(made, JsObject) and made is not item and item.bases and made.bases and not made.cls:
                self.set_object_member(made, "*parts", frozenset((item,)))
        return result

    def _call_promise_method(
        self, value: AbstractValue, name: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        if name == "then":
            result = self.call_value(arguments[0] if arguments else EMPTY, EMPTY, (value,), node)
            for handler in arguments[1:]:
                result |= self.call_value(handler, EMPTY, (ANY_DATA,), node)
            return result or ANY_DATA
        for handler in arguments:
            value |= self.call_value(handler, EMPTY, (ANY_DATA,), node)
        return value

    def _call_collection_method(
        self, item: JsObject, name: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        first = arguments[0] if arguments else EMPTY
        if item.label == "map" and name in ("get", "set", "has", "delete"):
            return self._call_map_method(item, name, arguments, node)
        if name in ("push", "unshift", "add", "set", "fill", "splice"):
            for argument in arguments:
                self.set_object_member(item, "*", argument)
            return frozenset((item,)) if name in ("add", "set") else ANY_DATA
        if name in ("includes", "has"):
            return self._find_membership(item, first)
        this: AbstractValue = frozenset((item,))
        elements = self.list_elements(this)
        if name == "keys" and item.label == "map":
            keys = frozenset(JsText(key) for key in item.slots if key != "*")
            return self.make_array(self.current.frame, node, keys, "keys")
        if item.label == "map" and name in ("values", "forEach"):
            elements = self.get_object_member(item, None, node.line)
        if name in _CALLS_WITH_ELEMENTS:
            return self._call_for_elements(elements, name, first, node)
        if name in ("reduce", "reduceRight"):
            start = arguments[1] if len(arguments) > 1 else elements
            result = self.call_value(first, EMPTY, (start, elements, ANY_DATA), node)
            return result | start
        if name in _ONE_ELEMENT:
            return elements or ANY_DATA
        if name in _SAME_ELEMENTS:
            for argument in arguments if name == "concat" else ():
                elements |= self.list_elements(argument)
            return self.make_array(self.current.frame, node, elements, name)
        if name in ("then", "catch", "finally"):
            return self._call_promise_method(this, name, arguments, node)
        if name == "entries":
            return self.make_array(self.current.frame, node, self.list_entries(item), "entries")
        self.call_callbacks(arguments, node)
        return ANY_DATA

    def _call_map_method(
        self, item: JsObject, name: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        names = read_texts(arguments[0]) if arguments else None
        if name == "set" and len(arguments) > 1:
            for key in names or ("*",):
                self.set_object_member(item, key, arguments[1])
            return frozenset((item,))
        if name == "get":
            return self.get_members(frozenset((item,)), arguments[0] if arguments else ANY_DATA, node.line)
        if name == "has" and names is not None and "*" not in item.slots and len(names) == 1:
            self.read(item.keys)
            return ALWAYS if names[0] in item.slots else NEVER
        return EITHER

    def _find_membership(self, item: JsObject, value: AbstractValue) -> AbstractValue:
        """Return whether an array of constants has a constant."""
        texts = read_texts(value)
        elements = read_texts(self._get_all_members(item))
        if texts is None or elements is None or len(texts) != 1:
            return EITHER
        return ALWAYS if texts[0] in elements else NEVER

    def _call_for_elements(
        self, elements: AbstractValue, name: str, function: AbstractValue, node: JsNode
    ) -> AbstractValue:
        """Call a callback for each element separately, and return the result of the method."""
        kept: set[JsItem] = set()
        results: set[JsItem] = set()
        for element in elements:
            given: AbstractValue = frozenset((element,))
            result = self.call_value(function, EMPTY, (given, ANY_DATA, ANY_DATA), node)
            if name.startswith("f") and find_truth(result) is False:
                continue
            kept.add(element)
            results |= self.list_elements(result) if name == "flatMap" else result
        if name in ("find", "findLast"):
            return frozenset(kept) | (EMPTY if kept else ANY_DATA)
        if name in ("map", "flatMap"):
            return self.make_array(self.current.frame, node, frozenset(results), name)
        if name in ("filter", "sort", "toSorted"):
            return self.make_array(self.current.frame, node, frozenset(kept), name)
        return EITHER if name in ("some", "every") else ANY_DATA


def _change_text(text: str, method: str) -> str:
    if method == "trim":
        return text.strip()
    return text.lower() if method == "toLowerCase" else text.upper() if method == "toUpperCase" else text
