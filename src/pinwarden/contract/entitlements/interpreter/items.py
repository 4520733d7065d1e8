"""The abstract values of the analysis.

A value is a set of items: every own function, class, object or external thing that a variable may stand for. Numbers,
unknown texts and everything else without reach are no items at all; the empty set says "nothing that matters".
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.contract.entitlements.interpreter.program import Activation, Frame, Module


class Item:
    """One thing that a variable can stand for. Two items are the same if they are the same object, unless said."""

    __slots__ = ()


class Value:
    """An immutable set of items, in the order in which they were found.

    A ``frozenset`` would be walked in the order of hashes and addresses, which differ from process to process: limits
    would then cut off something else each time, and the lock of the same source would not be the same.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __le__(self, other: Value) -> bool:
        return self._items.keys() <= other._items.keys()

    def __or__(self, other: Value) -> Value:
        if not other._items or other is self:
            return self
        if not self._items:
            return other
        joined = Value()
        joined._items = self._items | other._items
        return joined

    def union(self, *others: Value) -> Value:
        """This value and all others together."""
        result = self
        for other in others:
            result |= other
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self._items == other._items

    def __hash__(self) -> int:
        return hash(frozenset(self._items))


EMPTY = Value()


class Text(Item):
    """A constant text, or the beginning of one."""

    __slots__ = ("text", "whole")

    def __init__(self, text: str, *, whole: bool = True) -> None:
        self.text = text
        self.whole = whole

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and other.text == self.text and other.whole is self.whole

    def __hash__(self) -> int:
        return hash(self.text)


class Outside(Item):
    """Something of a module that is not looked into, spelt from its package on: ``httpx.AsyncClient().get``.

    ``()`` stands for what a call returned.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outside) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


class Function(Item):
    """A function or lambda of the source, with the frame that it was made in."""

    __slots__ = ("home", "in_class", "module", "name", "node", "parameters", "qualname", "told_by")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        module: Module,
        home: Frame,
        name: str,
        qualname: str,
    ) -> None:
        self.node = node
        self.module = module
        self.home = home
        self.name = name
        self.qualname = qualname
        given = node.args
        self.parameters = tuple(argument.arg for argument in (*given.posonlyargs, *given.args))
        self.told_by: dict[str, None] = {}
        """Parameters whose text decides what the function does: calls with different texts are analysed separately."""
        self.in_class: Class | None = None


class Class(Item):
    """A class of the source."""

    __slots__ = (
        "attributes",
        "bases",
        "body",
        "called_back",
        "children",
        "enumeration",
        "methods_run",
        "module",
        "node",
        "outer",
        "qualname",
        "readers",
        "sets",
    )

    def __init__(self, node: ast.ClassDef, module: Module, qualname: str, body: Frame) -> None:
        self.node = node
        self.module = module
        self.qualname = qualname
        self.body = body
        self.bases: list[Item] = []
        self.enumeration = any(ast.unparse(base).endswith("Enum") for base in node.bases)
        self.children: list[Class] = []
        self.outer = False
        """Whether a base that is not looked into may call what is defined here."""
        self.called_back: set[str] = set()
        """Methods that a decorator from outside was given: it calls them when it likes."""
        self.attributes: dict[str, Value] = {}
        """What is stored into attributes of its objects, wherever that happens."""
        self.readers: dict[str, dict[Activation, None]] = {}
        self.sets: dict[int, set[str]] = {}
        """Attributes that each method assigns, computed on demand."""
        self.methods_run: set[str] = set()
        """Attributes whose assigning methods were already analysed."""


class Instance(Item):
    """Any object of a class of the source."""

    __slots__ = ("cls",)

    def __init__(self, cls: Class) -> None:
        self.cls = cls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instance) and other.cls is self.cls

    def __hash__(self) -> int:
        return hash(id(self.cls))


class Super(Item):
    """The value of ``super()``: an object, seen from above one of its classes."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Item) -> None:
        self.cls = cls
        self.receiver = receiver

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Super) and other.cls is self.cls and other.receiver == self.receiver

    def __hash__(self) -> int:
        return hash((id(self.cls), self.receiver))


class Bound(Item):
    """A function together with its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Function, receiver: Item) -> None:
        self.function = function
        self.receiver = receiver

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and other.function is self.function and other.receiver == self.receiver

    def __hash__(self) -> int:
        return hash((id(self.function), self.receiver))


class Descriptor(Item):
    """What ``staticmethod``, ``classmethod`` or ``property`` makes of a function."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Value) -> None:
        self.kind = kind
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descriptor) and other.kind == self.kind and other.value == self.value

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


class ModuleItem(Item):
    """A module whose source is known."""

    __slots__ = ("module",)

    def __init__(self, module: Module) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleItem) and other.module is self.module

    def __hash__(self) -> int:
        return hash(id(self.module))


class Alias(Item):
    """A name of another module, looked up when it is used: modules may import each other."""

    __slots__ = ("module", "name")

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alias) and other.module is self.module and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.module), self.name))


class Table(Item):
    """A list, tuple, set or dict: what is under constant keys, and what is somewhere in it."""

    __slots__ = ("closed", "keys", "readers", "rest")

    def __init__(self) -> None:
        self.keys: dict[str, Value] = {}
        self.rest: Value = EMPTY
        self.closed = False
        """Holds constant texts and nothing else, so that ``in`` can be answered."""
        self.readers: dict[Activation, None] = {}

    def everything(self) -> Value:
        """What may be taken out of it without knowing the key."""
        return self.rest.union(*self.keys.values()) if self.keys else self.rest


class TableMethod(Item):
    """A method of a table, before it is called."""

    __slots__ = ("name", "table")

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableMethod) and other.table is self.table and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.table), self.name))


class Partial(Item):
    """A callable with some of its arguments given."""

    __slots__ = ("keywords", "positional", "target")

    def __init__(self, target: Value, positional: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...]) -> None:
        self.target = target
        self.positional = positional
        self.keywords = keywords

    def _content(self) -> object:
        return self.target, self.positional, self.keywords

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partial) and other._content() == self._content()

    def __hash__(self) -> int:
        return hash(self._content())


class Returns(Item):
    """A method whose answer is already known: ``"TEXT".lower``."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Returns) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class Mark(Item):
    """Says that a value came in through a parameter, so that a question about its text is noticed."""

    __slots__ = ("function", "parameter")

    def __init__(self, function: Function, parameter: str) -> None:
        self.function = function
        self.parameter = parameter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mark) and other.function is self.function and other.parameter == self.parameter

    def __hash__(self) -> int:
        return hash((id(self.function), self.parameter))


class Registrar(Item):
    """``server.tool(name=…)`` before it is applied to a function."""

    __slots__ = ("kind", "name")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registrar) and (other.kind, other.name) == (self.kind, self.name)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))


class Request(Item):
    """The parameters of a ``tools/call`` whose tool is known."""

    __slots__ = ("tool",)

    def __init__(self, tool: str) -> None:
        self.tool = tool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and other.tool == self.tool

    def __hash__(self) -> int:
        return hash(self.tool)


class Namespace(Item):
    """``globals()``, ``vars()``, ``__dict__`` and the like: names that are looked up by a computed text."""

    __slots__ = ("module",)

    def __init__(self, module: Module) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other.module is self.module

    def __hash__(self) -> int:
        return hash(id(self.module))


def order(item: Item) -> tuple[str, str, int]:
    """By which items are sorted, so that the same source always gives the same answer."""
    inner = item.function if isinstance(item, Bound) else item
    if isinstance(inner, Function):
        return type(item).__name__, f"{inner.module.name}.{inner.qualname}", inner.node.lineno
    if isinstance(inner, Outside):
        return "Outside", inner.path, 0
    if isinstance(inner, Class):
        return "Class", f"{inner.module.name}.{inner.qualname}", inner.node.lineno
    if isinstance(inner, Instance):
        return "Instance", f"{inner.cls.module.name}.{inner.cls.qualname}", inner.cls.node.lineno
    if isinstance(inner, TableMethod):
        return "TableMethod", inner.name, 0
    return type(item).__name__, "", 0
