"""The core of the interpreter: reading and writing slots, the work queue, members of objects, and effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pinwarden.contract.entitlements.javascript.effects import extend, find_kinds, keeps_result
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
    OpaqueValue,
    Slot,
)
from pinwarden.contract.entitlements.values import ENVIRONMENT

MAX_STEPS: Final = 6_000_000
MAX_ITEMS: Final = 600
MAX_RUNS: Final = 80
MAX_DEPTH: Final = 120
"""The maximum depth of calls that are followed at once; deeper calls wait in the queue."""
PROCESS_ENV: Final = External("global", ("process", "env"))
COMPUTED_MEMBER: Final = "a member with a computed name is used"
COMPUTED_IMPORT: Final = "a module with a computed name is loaded"
COMPUTED_MODULE: Final = External("a computed module")
MISSING_FILE: Final = "an imported file is missing"
UNKNOWN_PACKAGE: Final = "the catalogue does not cover the package"


class TooLargeError(Exception):
    """The program reaches a limit of the analysis."""


class Engine:
    """State and basic operations that the parts of the interpreter share."""

    def __init__(self) -> None:
        self.current: JsActivation
        self.queue: deque[JsActivation] = deque()
        self.steps = 0
        self.depth = 0
        self.exhausted = False
        """Whether a limit was reached, so that entitlements may be missing."""
        self.tool_names: frozenset[str] = frozenset()
        """The names by which handlers are selected. Calls are followed for each of them separately."""

    # Implemented by the other parts of the interpreter.

    def evaluate(self, node: JsNode, frame: Frame) -> AbstractValue:
        """Return the possible values of an expression."""
        raise NotImplementedError

    def call_value(
        self, callee: AbstractValue, this: AbstractValue, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue:
        """Call every function that the value may be, and return the possible results."""
        raise NotImplementedError

    # Slots and the queue.

    def read(self, slot: Slot) -> AbstractValue:
        """Return the value of a slot, and follow the current activation again when it changes."""
        slot.readers[self.current] = None
        return slot.value

    def write(self, slot: Slot, value: AbstractValue) -> None:
        """Add values to a slot."""
        if value <= slot.value:
            return
        joined = slot.value | value
        if len(joined) > MAX_ITEMS:
            self.exhausted = True
            return
        slot.value = joined
        for reader in slot.readers:
            self.enqueue(reader)

    def enqueue(self, activation: JsActivation) -> None:
        """Follow an activation again later."""
        if not activation.queued:
            activation.queued = True
            self.queue.append(activation)

    def count_step(self) -> None:
        """Count one step. Raises ``TooLargeError`` at the limit."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TooLargeError

    # Effects.

    def add_effect(self, kind: str, line: int, what: str) -> None:
        """Record that the current code needs an entitlement."""
        self.current.effects[kind, line, what] = None

    def add_unknown(self, reason: str, line: int, what: str) -> None:
        """Record that the current code cannot be followed."""
        self.current.unknown[reason, line, what] = None

    # Members.

    def get_member(self, value: AbstractValue, name: str | None, line: int) -> AbstractValue:
        """Return the values of a member; None stands for a computed name."""
        result: set[JsItem] = set()
        for item in value:
            if isinstance(item, External):
                result |= self._get_external_member(item, name, line)
            elif isinstance(item, JsObject):
                result |= self.get_object_member(item, name, line)
            else:
                result.add(DATA)
        return frozenset(result)

    def _get_external_member(self, item: External, name: str | None, line: int) -> AbstractValue:
        if item == PROCESS_ENV:
            self.add_effect(ENVIRONMENT, line, "process.env")
            return ANY_DATA
        if name is None:
            if find_kinds(item) is None or item.root == "global" or keeps_result(item) or find_kinds(item):
                self.add_unknown(COMPUTED_MEMBER, line, item.describe() or "globalThis")
            elif item.root in ("fs", "process", "module"):
                self.add_unknown(COMPUTED_MEMBER, line, item.describe())
            return ANY_DATA
        member = extend(item, name)
        if member == PROCESS_ENV:
            self.add_effect(ENVIRONMENT, line, "process.env")
        if name == "constructor":
            return frozenset((External("global", ("Function",)),))
        return frozenset((member,))

    def get_object_member(self, item: JsObject, name: str | None, line: int) -> AbstractValue:
        """Return the values of a member of an object, its class and its prototypes."""
        if name is None:
            return self._get_all_members(item)
        result: AbstractValue = EMPTY
        slot = item.slots.get(name)
        if slot is not None:
            result = self.read(slot)
        else:
            self.read(item.keys)
        others = item.slots.get("*")
        if others is not None:
            result |= self.read(others)
        getter = self._find_accessor(item, name)
        if getter is not None:
            result |= self.call_value(frozenset((getter,)), frozenset((item,)), (), JsNode("getter", line, ""))
        if slot is None or name not in item.slots:
            result |= self._get_inherited_member(item, name, line)
        if not result and item.exports and name == "default":
            return frozenset((item,))
        if not result and name == "constructor":
            return self._get_constructor(item)
        return result or ANY_DATA

    @staticmethod
    def _find_accessor(item: JsObject, name: str) -> JsFunction | None:
        if name in item.getters:
            return item.getters[name]
        return item.cls.getters.get(f"#{name}") if item.cls is not None else None

    @staticmethod
    def _get_constructor(item: JsObject) -> AbstractValue:
        if isinstance(item, JsFunction | ClassValue):
            return frozenset((External("global", ("Function",)),))
        return frozenset((item.cls,)) if item.cls is not None else ANY_DATA

    def _get_inherited_member(self, item: JsObject, name: str, line: int) -> AbstractValue:
        result: set[JsItem] = set()
        if item.cls is not None:
            result |= self.find_method(item.cls, name)
        if isinstance(item, ClassValue):
            for base in item.base:
                if isinstance(base, JsObject):
                    result |= self.get_object_member(base, name, line) - ANY_DATA
                elif isinstance(base, External):
                    result.add(extend(base, name))
        for prototype in item.prototypes:
            result |= self.get_object_member(prototype, name, line) - ANY_DATA
        if not result:
            for base in item.bases:
                result.add(extend(extend(base, "()"), name))
        return frozenset(result)

    def find_method(self, cls: ClassValue, name: str) -> AbstractValue:
        """Return the methods of a class and its bases with this name."""
        seen: set[ClassValue] = set()
        current: ClassValue | None = cls
        while current is not None and current not in seen:
            seen.add(current)
            if name in current.methods:
                return frozenset(current.methods[name])
            prototype = current.slots.get("prototype")
            if prototype is not None:
                values = self.get_member(prototype.value, name, 0) - ANY_DATA
                if values:
                    return values
            bases = [base for base in current.base if isinstance(base, ClassValue)]
            current = bases[0] if bases else None
        return EMPTY

    def _get_all_members(self, item: JsObject) -> AbstractValue:
        self.read(item.keys)
        result: set[JsItem] = set()
        for slot in list(item.slots.values()):
            result |= self.read(slot)
        if item.cls is not None:
            for functions in item.cls.methods.values():
                result |= functions.keys()
        for getter in item.getters.values():
            result |= self.call_value(frozenset((getter,)), frozenset((item,)), (), getter.node)
        for prototype in item.prototypes:
            result |= self._get_all_members(prototype)
        return frozenset(result) or ANY_DATA

    def list_elements(self, value: AbstractValue) -> AbstractValue:
        """Return the elements of arrays, sets and other iterables."""
        result: set[JsItem] = set()
        for item in value:
            if isinstance(item, JsObject):
                if item.label == "map":
                    result |= self.list_entries(item)
                else:
                    result |= self._get_all_members(item)
            elif isinstance(item, External):
                result.add(item if find_kinds(item) else DATA)
            else:
                result.add(DATA)
        return frozenset(result)

    def list_entries(self, item: JsObject) -> AbstractValue:
        """Return pairs of key and value as arrays, one for each property."""
        self.read(item.keys)
        pairs: set[JsItem] = set()
        for name, slot in list(item.slots.items()):
            pair = self.make_object(self.current.frame, id(item), f"pair {name}", "array")
            key: AbstractValue = ANY_DATA if name == "*" else frozenset((JsText(name),))
            self.set_object_member(pair, "0", key)
            self.set_object_member(pair, "1", self.read(slot))
            pairs.add(pair)
        return frozenset(pairs)

    def make_object(self, frame: Frame, site: int, detail: str = "", label: str = "") -> JsObject:
        """Return the object that a node creates in a frame; always the same one."""
        item = frame.objects.get((site, detail))
        if not isinstance(item, JsObject):
            item = frame.objects[site, detail] = JsObject(label)
        return item

    def make_array(self, frame: Frame, node: JsNode, elements: AbstractValue, detail: str = "array") -> AbstractValue:
        """Return an array with elements at unknown positions."""
        array = self.make_object(frame, id(node), detail, "array")
        self.set_object_member(array, "*", elements)
        return frozenset((array,))

    def set_object_member(self, item: JsObject, name: str | None, value: AbstractValue) -> None:
        """Add values to a member. Booleans become data, because code that is not followed may change members."""
        key = "*" if name is None else name
        slot = item.slots.get(key)
        if slot is None:
            slot = item.slots[key] = Slot()
            for reader in item.keys.readers:
                self.enqueue(reader)
        self.write(slot, forget_booleans(value))

    def set_member(self, target: AbstractValue, name: str | None, value: AbstractValue, node: JsNode) -> None:
        """Assign to a member of every object that the target may be."""
        for item in target:
            if not isinstance(item, JsObject):
                continue
            setter = item.setters.get(name or "") or (
                item.cls.setters.get(f"#{name}") if item.cls is not None else None
            )
            if setter is not None:
                self.call_value(frozenset((setter,)), frozenset((item,)), (value,), node)
            self.set_object_member(item, name, value)


def forget_booleans(value: AbstractValue) -> AbstractValue:
    """Replace known booleans by data."""
    if any(isinstance(item, OpaqueValue) and item is not DATA for item in value):
        return frozenset(DATA if isinstance(item, OpaqueValue) else item for item in value)
    return value


def list_callables(value: AbstractValue) -> AbstractValue:
    """Return the items that can be called and are the server's own code."""
    return frozenset(item for item in value if isinstance(item, JsFunction | Bound | ClassValue))
