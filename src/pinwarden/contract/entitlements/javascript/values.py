"""Abstract values and the state of the program: slots, objects, frames, modules and activations."""

from __future__ import annotations

from itertools import count
from typing import Final, TypeAlias
from zlib import crc32

from pinwarden.contract.entitlements.javascript.syntax import JsNode
from pinwarden.contract.entitlements.values import Source


class JsItem:
    """One possible value of an expression."""

    __slots__ = ()


AbstractValue: TypeAlias = frozenset[JsItem]
"""All values that an expression may have. Empty if none is known yet."""


class OpaqueValue(JsItem):
    """A value of which the analysis tracks only the kind."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


DATA: Final = OpaqueValue("data")
"""Anything that is not code: numbers, text from outside, undefined. Its methods need no entitlement."""
TRUE: Final = OpaqueValue("true")
FALSE: Final = OpaqueValue("false")

EMPTY: Final[AbstractValue] = frozenset()
ANY_DATA: Final[AbstractValue] = frozenset((DATA,))
ALWAYS: Final[AbstractValue] = frozenset((TRUE,))
NEVER: Final[AbstractValue] = frozenset((FALSE,))
EITHER: Final[AbstractValue] = frozenset((TRUE, FALSE))


class JsText(JsItem):
    """A constant string. Texts with the same content are equal."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsText) and other.text == self.text

    def __hash__(self) -> int:
        return crc32(self.text.encode("utf-8", "surrogatepass"))

    def __repr__(self) -> str:
        return f"Text({self.text!r})"


class External(JsItem):
    """Code outside the analysed modules: a global, or something that a package exports or returns."""

    __slots__ = ("members", "root")

    def __init__(self, root: str, members: tuple[str, ...] = ()) -> None:
        self.root = root
        """The name of the package or built-in module; ``global`` for global names."""
        self.members = members
        """The members and calls from the root on, e.g. ``("Pool", "()", "connect")``."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, External) and other.root == self.root and other.members == self.members

    def __hash__(self) -> int:
        return crc32(".".join((self.root, *self.members)).encode("utf-8", "surrogatepass"))

    def __repr__(self) -> str:
        return self.describe()

    def describe(self) -> str:
        """Return the name as people write it, e.g. ``fs.promises.readFile``."""
        names = self.members if self.root == "global" else (self.root, *self.members)
        return ".".join(names).replace(".()", "()")


class Slot:
    """A variable or property: its possible values, and the activations that read it."""

    __slots__ = ("readers", "value")

    def __init__(self, value: AbstractValue = EMPTY) -> None:
        self.value = value
        self.readers: dict[JsActivation, None] = {}


_serials = count(1)


class JsObject(JsItem):
    """All objects that one expression creates in one frame."""

    __slots__ = ("_serial", "bases", "cls", "exports", "getters", "keys", "label", "prototypes", "setters", "slots")

    def __init__(self, label: str = "") -> None:
        self._serial = next(_serials)
        self.label = label
        """``array``, ``map``, or empty."""
        self.slots: dict[str, Slot] = {}
        """The properties by name. ``*`` has the values of properties with computed names."""
        self.keys = Slot()
        """Changes when the object gets a new property."""
        self.cls: ClassValue | None = None
        self.bases: dict[External, None] = {}
        """External classes that the object is an instance of."""
        self.prototypes: dict[JsObject, None] = {}
        self.getters: dict[str, JsFunction] = {}
        self.setters: dict[str, JsFunction] = {}
        self.exports = False
        """Whether these are the exports of a module."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return self._serial  # an order of creation makes results the same in every process


class JsFunction(JsObject):
    """A function with the frame in which it was created."""

    __slots__ = ("frame", "home", "is_arrow", "is_generator", "module", "name", "node")

    def __init__(self, node: JsNode, frame: Frame, name: str) -> None:
        super().__init__()
        self.node = node
        self.frame = frame
        self.module = frame.module
        self.name = name
        self.home: ClassValue | None = None
        """The class of which this is a method."""
        self.is_arrow = node.kind == "arrow_function"
        self.is_generator = "*" in node.text.split() or node.kind.startswith("generator")


class Bound(JsItem):
    """A function with bound arguments, as ``bind`` returns."""

    __slots__ = ("arguments", "function", "this")

    def __init__(self, function: JsItem, this: AbstractValue, arguments: tuple[AbstractValue, ...]) -> None:
        self.function = function
        self.this = this
        self.arguments = arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and (self.function, self.this, self.arguments) == (
            other.function,
            other.this,
            other.arguments,
        )

    def __hash__(self) -> int:
        return hash(self.function)


class Resolver(JsItem):
    """The function that resolves a promise."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = Slot()


class ClassValue(JsObject):
    """A class. Its properties are the static members."""

    __slots__ = ("base", "constructor", "fields", "frame", "initializer", "methods", "name", "node")

    def __init__(self, node: JsNode, frame: Frame, name: str) -> None:
        super().__init__()
        self.node = node
        self.frame = frame
        self.name = name
        self.base: AbstractValue = EMPTY
        self.methods: dict[str, dict[JsFunction, None]] = {}
        self.constructor: JsFunction | None = None
        self.fields: list[JsNode] = []
        self.initializer = JsFunction(node, frame, f"{name}.<fields>")
        """The code that gives fields their first values."""
        self.initializer.home = self


class Frame:
    """The names of one activation, block or module."""

    __slots__ = ("blocks", "function", "functions", "module", "names", "objects", "parent", "this")

    def __init__(self, module: JsModule, parent: Frame | None) -> None:
        self.module = module
        self.parent = parent
        self.this: Slot | None = None
        """``this`` of the function whose frame this is; None in blocks and arrow functions."""
        self.names: dict[str, Slot] = {}
        self.function: JsFunction | None = None if parent is None else parent.function
        self.blocks: dict[tuple[int, object], Frame] = {}
        """The frames of blocks and loop rounds. Following the code again reuses them, as it does for objects."""
        self.objects: dict[tuple[int, str], JsItem] = {}
        self.functions: dict[int, JsFunction] = {}


class JsActivation:
    """A node of the call graph: a function with one combination of arguments, or the loading of a module."""

    __slots__ = (
        *("arguments", "calls", "effects", "frame", "function", "label", "module", "queued", "returns", "rest", "runs"),
        "unknown",
    )

    def __init__(self, label: str, module: JsModule, frame: Frame, function: JsFunction | None = None) -> None:
        self.label = label
        self.module = module
        self.frame = frame
        self.function = function
        self.effects: dict[tuple[str, int, str], None] = {}
        self.unknown: dict[tuple[str, int, str], None] = {}
        self.calls: dict[JsActivation, int] = {}
        self.returns = Slot()
        self.arguments: list[Slot] = []
        self.rest = Slot()
        """The arguments after the known ones, whose position is not known."""
        self.runs = 0
        self.queued = False

    def follow(self) -> None:
        """Follow an activation that has no function."""


class JsModule:
    """One file of the server or of a package."""

    __slots__ = (
        *("activation", "exports", "frame", "holder", "lines", "name", "problem", "source", "third_party", "tree"),
    )

    def __init__(self, name: str, text: str, *, third_party: bool) -> None:
        self.name = name
        self.source = Source(path=name, text=text)
        self.third_party = third_party
        self.tree: JsNode | None = None
        self.problem = ""
        """Why the module cannot be read; empty if it can."""
        self.lines: list[str] | None = None
        self.exports = JsObject()
        self.exports.exports = True
        self.holder = JsObject()
        """The object that CommonJS code sees as ``module``."""
        self.frame = Frame(self, None)
        self.activation = JsActivation("<module>", self, self.frame)

    def get_line(self, number: int) -> str:
        """Return the stripped and shortened text of a line."""
        if self.lines is None:
            self.lines = self.source.text.split("\n")
        text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""
        return text if len(text) <= _MAX_EVIDENCE else text[: _MAX_EVIDENCE - 1] + "…"


_MAX_EVIDENCE: Final = 160


def find_truth(value: AbstractValue) -> bool | None:
    """Return whether a condition is certainly true or false; None if it may be either."""
    if value == ALWAYS:
        return True
    if value == NEVER:
        return False
    if value and all(isinstance(item, JsObject | Bound) for item in value):
        return True
    return None


def read_texts(value: AbstractValue) -> list[str] | None:
    """Return the constant strings of a value, sorted; None if it may be something else."""
    if not value or not all(isinstance(item, JsText) for item in value):
        return None
    return sorted(item.text for item in value if isinstance(item, JsText))
