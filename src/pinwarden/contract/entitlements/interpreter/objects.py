"""The abstract values of the analysis.

An abstract value is the set of Python objects that a variable may refer to: functions, classes, instances, external
names. Numbers, unknown texts and other objects that need no entitlement are left out, so the set may be empty.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.contract.entitlements.interpreter.program import Activation, Module, PythonFrame


class PythonObject:
    """One object that a variable can refer to. Compared by identity unless the subclass defines ``__eq__``."""

    __slots__ = ()


class AbstractValue:
    """An immutable, ordered set of Python objects.

    The order makes the analysis reproducible. A ``frozenset`` has a different order in each process, so limits would
    drop different objects each time, and two locks of the same source would differ.
    """

    __slots__ = ("_evaluate_items",)

    def __init__(self, items: Iterable[PythonObject] = ()) -> None:
        self._evaluate_items = dict.fromkeys(items)

    def __iter__(self) -> Iterator[PythonObject]:
        return iter(self._evaluate_items)

    def __len__(self) -> int:
        return len(self._evaluate_items)

    def __contains__(self, item: object) -> bool:
        return item in self._evaluate_items

    def __le__(self, other: AbstractValue) -> bool:
        return self._evaluate_items.keys() <= other._evaluate_items.keys()

    def __or__(self, other: AbstractValue) -> AbstractValue:
        if not other._evaluate_items or other is self:
            return self
        if not self._evaluate_items:
            return other
        joined = AbstractValue()
        joined._evaluate_items = self._evaluate_items | other._evaluate_items
        return joined

    def union(self, *others: AbstractValue) -> AbstractValue:
        """Return the union with all other values."""
        result = self
        for other in others:
            result |= other
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractValue) and self._evaluate_items == other._evaluate_items

    def __hash__(self) -> int:
        return hash(frozenset(self._evaluate_items))


EMPTY = AbstractValue()


class Text(PythonObject):
    """A constant text, or the known beginning of a text."""

    __slots__ = ("complete", "text")

    def __init__(self, text: str, *, complete: bool = True) -> None:
        self.text = text
        self.complete = complete

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and other.text == self.text and other.complete is self.complete

    def __hash__(self) -> int:
        return hash(self.text)


class ExternalName(PythonObject):
    """A member of a module whose source is not analysed, with its full path: ``httpx.AsyncClient().get``.

    ``()`` is the result of a call.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExternalName) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


class Function(PythonObject):
    """A function or lambda in the source, with the frame that defines it."""

    __slots__ = ("defining_frame", "in_class", "module", "name", "node", "parameters", "qualname", "text_sensitive")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        module: Module,
        defining_frame: PythonFrame,
        name: str,
        qualname: str,
    ) -> None:
        self.node = node
        self.module = module
        self.defining_frame = defining_frame
        self.name = name
        self.qualname = qualname
        arguments = node.args
        self.parameters = tuple(argument.arg for argument in (*arguments.posonlyargs, *arguments.args))
        self.text_sensitive: dict[str, None] = {}
        """Parameters whose text affects what the function does. Calls with different texts are analysed separately."""
        self.in_class: Class | None = None


class Class(PythonObject):
    """A class in the source."""

    __slots__ = (
        "attributes",
        "attributes_set",
        "bases",
        "body",
        "callback_methods",
        "children",
        "enumeration",
        "has_external_base",
        "module",
        "node",
        "qualname",
        "readers",
        "setters_followed",
    )

    def __init__(self, node: ast.ClassDef, module: Module, qualname: str, body: PythonFrame) -> None:
        self.node = node
        self.module = module
        self.qualname = qualname
        self.body = body
        self.bases: list[PythonObject] = []
        self.enumeration = any(ast.unparse(base).endswith("Enum") for base in node.bases)
        self.children: list[Class] = []
        self.has_external_base = False
        """Whether the class has an external base class that may call its methods."""
        self.callback_methods: set[str] = set()
        """Methods with an external decorator, which may call them at any time."""
        self.attributes: dict[str, AbstractValue] = {}
        """The values that the program assigns to each attribute of the objects of this class."""
        self.readers: dict[str, dict[Activation, None]] = {}
        self.attributes_set: dict[int, set[str]] = {}
        """The attributes that each method assigns, computed on demand."""
        self.setters_followed: set[str] = set()
        """Attributes whose assigning methods were already analysed."""


class Instance(PythonObject):
    """An instance of a class in the source. Instances of one class are not distinguished."""

    __slots__ = ("cls",)

    def __init__(self, cls: Class) -> None:
        self.cls = cls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instance) and other.cls is self.cls

    def __hash__(self) -> int:
        return hash(id(self.cls))


class Super(PythonObject):
    """The value of ``super()`` in a method of ``cls``."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: PythonObject) -> None:
        self.cls = cls
        self.receiver = receiver

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Super) and other.cls is self.cls and other.receiver == self.receiver

    def __hash__(self) -> int:
        return hash((id(self.cls), self.receiver))


class BoundMethod(PythonObject):
    """A function together with its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Function, receiver: PythonObject) -> None:
        self.function = function
        self.receiver = receiver

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethod) and other.function is self.function and other.receiver == self.receiver

    def __hash__(self) -> int:
        return hash((id(self.function), self.receiver))


class WrappedMethod(PythonObject):
    """A function wrapped in ``staticmethod``, ``classmethod`` or ``property``."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: AbstractValue) -> None:
        self.kind = kind
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrappedMethod) and other.kind == self.kind and other.value == self.value

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


class ModuleItem(PythonObject):
    """A module whose source is analysed."""

    __slots__ = ("module",)

    def __init__(self, module: Module) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleItem) and other.module is self.module

    def __hash__(self) -> int:
        return hash(id(self.module))


class ImportedName(PythonObject):
    """A name in another module, looked up when it is used, because modules may import each other."""

    __slots__ = ("module", "name")

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImportedName) and other.module is self.module and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.module), self.name))


class Container(PythonObject):
    """A list, tuple, set or dict: values under constant keys, and values whose key is unknown."""

    __slots__ = ("closed", "keys", "readers", "values_of_unknown_keys")

    def __init__(self) -> None:
        self.keys: dict[str, AbstractValue] = {}
        self.values_of_unknown_keys: AbstractValue = EMPTY
        self.closed = False
        """Whether the container has only constant texts, so that the analysis can evaluate ``in``."""
        self.readers: dict[Activation, None] = {}

    def merge_values(self) -> AbstractValue:
        """Return the union of the values under all keys, known and unknown."""
        return self.values_of_unknown_keys.union(*self.keys.values()) if self.keys else self.values_of_unknown_keys


class ContainerMethod(PythonObject):
    """A method of a container, before it is called."""

    __slots__ = ("name", "table")

    def __init__(self, table: Container, name: str) -> None:
        self.table = table
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContainerMethod) and other.table is self.table and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.table), self.name))


class Partial(PythonObject):
    """A callable with some of its arguments bound."""

    __slots__ = ("keywords", "positional", "target")

    def __init__(
        self,
        target: AbstractValue,
        positional: tuple[AbstractValue, ...],
        keywords: tuple[tuple[str, AbstractValue], ...],
    ) -> None:
        self.target = target
        self.positional = positional
        self.keywords = keywords

    def _content(self) -> object:
        return self.target, self.positional, self.keywords

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partial) and other._content() == self._content()

    def __hash__(self) -> int:
        return hash(self._content())


class KnownResult(PythonObject):
    """A method whose result is already known: ``"TEXT".lower``."""

    __slots__ = ("value",)

    def __init__(self, value: AbstractValue) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownResult) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class ParameterMark(PythonObject):
    """Marks a value that comes from a parameter, so that the analysis records which conditions depend on its text."""

    __slots__ = ("function", "parameter")

    def __init__(self, function: Function, parameter: str) -> None:
        self.function = function
        self.parameter = parameter

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ParameterMark) and other.function is self.function and other.parameter == self.parameter
        )

    def __hash__(self) -> int:
        return hash((id(self.function), self.parameter))


class Registrar(PythonObject):
    """``server.tool(name=…)`` before it is applied to a function."""

    __slots__ = ("kind", "name")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registrar) and (other.kind, other.name) == (self.kind, self.name)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))


class ToolCallParams(PythonObject):
    """The parameters of a ``tools/call`` whose tool is known."""

    __slots__ = ("tool",)

    def __init__(self, tool: str) -> None:
        self.tool = tool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCallParams) and other.tool == self.tool

    def __hash__(self) -> int:
        return hash(self.tool)


class Namespace(PythonObject):
    """A namespace object such as ``globals()``, ``vars()`` or ``__dict__``, in which names are looked up by text."""

    __slots__ = ("module",)

    def __init__(self, module: Module) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other.module is self.module

    def __hash__(self) -> int:
        return hash(id(self.module))


def compute_sort_key(item: PythonObject) -> tuple[int, str, int]:
    """Return a sort key, so that the same source always gives the same result."""
    rank = _RANKS[type(item)]
    inner = item.function if isinstance(item, BoundMethod) else item
    if isinstance(inner, Function):
        return rank, f"{inner.module.name}.{inner.qualname}", inner.node.lineno
    if isinstance(inner, ExternalName):
        return rank, inner.path, 0
    if isinstance(inner, Class):
        return rank, f"{inner.module.name}.{inner.qualname}", inner.node.lineno
    if isinstance(inner, Instance):
        return rank, f"{inner.cls.module.name}.{inner.cls.qualname}", inner.cls.node.lineno
    if isinstance(inner, ContainerMethod):
        return rank, inner.name, 0
    return rank, "", 0


_RANKS: dict[type[PythonObject], int] = {
    kind: rank
    for rank, kind in enumerate(
        (
            ImportedName,
            BoundMethod,
            Class,
            WrappedMethod,
            Function,
            Instance,
            ParameterMark,
            ModuleItem,
            Namespace,
            ExternalName,
            Partial,
            Registrar,
            ToolCallParams,
            KnownResult,
            Super,
            Container,
            ContainerMethod,
            Text,
        )
    )
}
"""The sort order of objects of different classes. Changing it would change existing locks in which a limit applies."""
