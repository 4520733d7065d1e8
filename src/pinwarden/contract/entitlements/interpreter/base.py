"""The base of the interpreter: the program, budgets, and recording of findings."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Alias,
    Class,
    Function,
    Mark,
    ModuleItem,
    Outside,
    Table,
    TableMethod,
    Text,
    Value,
    order,
)
from pinwarden.contract.entitlements.interpreter.program import Activation, Frame, Module
from pinwarden.contract.entitlements.interpreter.terms import MAX_ITEMS, Given, Registration
from pinwarden.contract.entitlements.values import Source

_NODE = ast.Pass(lineno=0, col_offset=0)


class EngineBase:
    """State, and the questions that the parts of the interpreter ask each other."""

    def __init__(self, sources: Mapping[str, Source], packages: Mapping[str, Source] | None) -> None:
        self.sources = sources
        self.packages = packages
        self.modules: dict[str, Module | None] = {}
        self.activations: dict[object, Activation] = {}
        self.definitions: dict[tuple[str, str], list[tuple[int, Value]]] = {}
        """What each ``def`` ends up as after its decorators, by module and qualified name."""
        self.registrations: dict[tuple[str, str, int, str | None], Registration] = {}
        self.tool_names: dict[str, None] = {}
        """Names in ``Tool(name=…)``, in order."""
        self.quoted: dict[str, ast.expr | None] = {}
        """Annotations that are written as texts, parsed."""
        self.shapes: dict[int, int] = {}
        """With how many kinds of arguments each function of the source was called."""
        self.runs = 0
        self.depth = 0
        self.exhausted = False
        self.current = Activation("<nobody>", NOWHERE, NOWHERE.frame)
        """What is being followed."""
        self.again: dict[Activation, None] = {}
        """What is to be followed, or followed again: something it read is more than was known then."""

    # What other parts answer

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """What an expression can stand for."""
        raise NotImplementedError

    def run(self, body: Sequence[ast.stmt], frame: Frame) -> bool:
        """Follow statements; whether the code after them is reached."""
        raise NotImplementedError

    def invoke(self, callee: Value, given: Given, node: ast.AST, frame: Frame) -> Value:
        """What a call can return, noting what it needs."""
        raise NotImplementedError

    def enter(self, function: Function, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call a function of the source."""
        raise NotImplementedError

    def attribute(self, value: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        """What an attribute can stand for."""
        raise NotImplementedError

    def meaning_of_annotation(self, node: ast.expr | None, frame: Frame) -> Value:
        """The objects that a type annotation promises."""
        raise NotImplementedError

    def module(self, name: str) -> Module | None:
        """A module of the server, or of a package that is looked into; followed once, as import does."""
        raise NotImplementedError

    # Facts

    def needs(self, frame: Frame, kind: str, node: ast.AST, what: str) -> None:
        """Note an entitlement."""
        frame.activation.effects.setdefault((kind, getattr(node, "lineno", 0), what))

    def cannot_see(self, frame: Frame, reason: str, node: ast.AST, what: str) -> None:
        """Note a place behind which nothing can be seen."""
        frame.activation.unknown.setdefault((reason, getattr(node, "lineno", 0), what))

    def calls(self, frame: Frame, activation: Activation, node: ast.AST) -> None:
        """Note who is called, and the first line that does it."""
        line = getattr(node, "lineno", 0)
        known = frame.activation.calls.get(activation)
        if known is None or line < known:
            frame.activation.calls[activation] = line

    def touch(self, path: str, node: ast.AST, frame: Frame) -> Value:
        """Something outside, by its path."""
        path = effects.spelt(path)
        if effects.on_sight(path):
            for kind in effects.effect_of(path).kinds:
                self.needs(frame, kind, node, path)
        return Value((Outside(path),)) if effects.has_reach(path) or effects.interpreted(path) else EMPTY

    # Names

    def store(self, frame: Frame, name: str, value: Value) -> None:
        """Bind a name."""
        if len(value) > MAX_ITEMS:
            value = self.limited(value)
        home = frame.elsewhere.get(name)
        if home is None:
            frame.names[name] = value
            home = frame
        else:
            home.names[name] = home.names.get(name, EMPTY) | value
        known = home.every.get(name)
        if known is None or not value <= known:
            home.every[name] = value if known is None else self.limited(known | value)
            if readers := home.readers.get(name):
                self.again.update(readers)

    def look_up(self, name: str, frame: Frame) -> Value:
        """What a name stands for here, resolved through imports."""
        value = frame.names.get(name)
        if value is None or name in frame.elsewhere:
            value = self._from_outer(name, frame)
        for item in value:
            if type(item) is Alias:
                return self.resolved(value, frame)
        return value

    def _from_outer(self, name: str, frame: Frame) -> Value:
        home = frame.elsewhere.get(name)
        outer = home if home is not None else frame.parent
        while outer is not None:
            if outer.cls is None:
                self.reads(outer.readers, name)
                value = outer.every.get(name)
                if value is not None and outer.parent is not None:
                    return value
                if outer.parent is None:
                    break
            outer = outer.parent
        return self.global_name(name, frame.module)

    def global_name(self, name: str, module: Module) -> Value:
        """What a name of a module stands for, builtins included."""
        self.reads(module.frame.readers, name)
        value = module.frame.every.get(name)
        writers = self.writers_of(name, module)
        if writers:
            value = module.frame.every.get(name, value)
        if value is not None:
            return value
        for star in module.stars:
            if isinstance(star, Module):
                if name in star.frame.every or any(star.stars):
                    return self.global_name(name, star)
            elif not name.startswith("_") and name not in _BUILTINS:
                return Value((Outside(effects.spelt(f"{star}.{name}")),))
        if name in _BUILTINS:
            return Value((Outside(f"builtins.{name}"),))
        if name == "__name__":
            return Value((Text(module.name), Mark(NOBODY, "__name__")))
        return EMPTY

    def writers_of(self, name: str, module: Module) -> bool:
        """Follow the functions that declare ``global name``; whether there are any."""
        raise NotImplementedError

    def resolved(self, value: Value, frame: Frame) -> Value:
        """The value with names of other modules looked up."""
        result: Value = EMPTY
        for item in value:
            if type(item) is Alias:
                result |= self.member(item.module, item.name, frame)
            else:
                result |= Value((item,))
        return result

    def member(self, module: Module, name: str, frame: Frame) -> Value:
        """A name of a module, or a module below it."""
        self.reads(module.frame.readers, name)
        value = module.frame.every.get(name)
        if value is not None or self.writers_of(name, module):
            self.writers_of(name, module)
            value = module.frame.every.get(name, EMPTY)
            if any(type(item) is Alias and item.module is module and item.name == name for item in value):
                below = self.module(f"{module.name}.{name}")
                return Value((ModuleItem(below),)) if below else EMPTY
            return self.resolved(value, frame)
        below = self.module(f"{module.name}.{name}")
        if below is not None:
            return Value((ModuleItem(below),))
        for star in module.stars:
            if isinstance(star, Module):
                if star is not module and (got := self.member(star, name, frame)):
                    return got
            elif not name.startswith("_"):
                return Value((Outside(effects.spelt(f"{star}.{name}")),))
        return EMPTY

    # Texts

    def texts(self, value: Value) -> list[Text]:
        """The constant texts that a value can be. Asking tells apart the calls that gave the texts."""
        result = []
        for item in value:
            if type(item) is Mark:
                item.function.told_by[item.parameter] = None
            elif type(item) is Text:
                result.append(item)
        return result

    def one_text(self, value: Value) -> str | None:
        """The one whole text that a value can be, and nothing else."""
        result = self.texts(value)
        if len(result) == 1 and result[0].whole and all(isinstance(item, Text | Mark) for item in value):
            return result[0].text
        return None

    def table(self, frame: Frame, node: ast.AST, use: str = "") -> Table:
        """The table that is made in this place of a frame."""
        made = frame.tables.get((id(node), use))
        if made is None:
            made = frame.tables[id(node), use] = Table()
        return made

    def put(self, table: Table, key: str | None, value: Value) -> None:
        """Add to a table."""
        value = unmarked(value)
        known = table.rest if key is None else table.keys.get(key)
        if known is not None and value <= known:
            return
        more = self.limited(value if known is None else known | value)
        if more == known:
            return
        if key is None:
            table.rest = more
        else:
            table.keys[key] = more
        if not all(type(item) is Text for item in value) or not value:
            table.closed = False
        if table.readers:
            self.again.update(table.readers)

    def limited(self, value: Value) -> Value:
        """The value, or the part of it that has reach by itself, where it holds too much to go on with."""
        if len(value) <= MAX_ITEMS:
            return value
        value = Value(item for item in value if type(item) is not Text)  # without them it is a text not known
        if len(value) <= MAX_ITEMS:
            return value
        self.cannot_see(self.current.frame, "a variable can stand for too many things", _NODE, self.current.label)
        kept = [item for item in value if not isinstance(item, Table | TableMethod)]
        return Value(sorted(kept, key=order)[:MAX_ITEMS])

    def content(self, table: Table) -> Value:
        """Everything in a table."""
        table.readers[self.current] = None
        return table.everything()

    def reads(self, readers: dict[str, dict[Activation, None]], name: str) -> None:
        """Note that what is being followed depends on a name."""
        known = readers.get(name)
        if known is None:
            readers[name] = {self.current: None}
        else:
            known[self.current] = None

    def elements(self, value: Value) -> Value:
        """What iterating over a value gives."""
        result: Value = EMPTY
        for item in value:
            if type(item) is Table:
                result |= self.content(item)
            elif type(item) is Outside:
                result |= Value((item,))
            elif type(item) is Class:
                result |= Value().union(*(v for v in item.body.every.values()))
        return result

    def remember(self, cls: Class, name: str, value: Value) -> None:
        """Add to what an attribute of a class's objects can stand for."""
        self.texts(value)  # a text that is kept tells the calls apart that gave it
        value = unmarked(value)
        known = cls.attributes.get(name)
        if known is None or not value <= known:
            cls.attributes[name] = value if known is None else self.limited(known | value)
            if readers := cls.readers.get(name):
                self.again.update(readers)


def unmarked(value: Value) -> Value:
    """The value without the marks of parameters, which mean nothing outside the call."""
    for item in value:
        if type(item) is Mark:
            return Value(item for item in value if type(item) is not Mark)
    return value


def with_reach(value: Value) -> Value:
    """The value without texts."""
    for item in value:
        if type(item) is Text or type(item) is Mark:
            return Value(item for item in value if type(item) is not Text and type(item) is not Mark)
    return value


_BUILTINS = frozenset(terms.BUILTINS.split())
NOWHERE = Module("", Source(path="", text=""), third_party=False)
NOBODY = Function(
    ast.Lambda(
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=ast.Constant(value=None),
    ),
    NOWHERE,
    NOWHERE.frame,
    "",
    "",
)
"""Stands for the interpreter, which sets ``__name__``."""
