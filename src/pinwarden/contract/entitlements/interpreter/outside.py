"""External calls: the catalogue decides their entitlements, and functions passed to them count as called."""

from __future__ import annotations

import ast
from collections.abc import Callable

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.base import unmarked
from pinwarden.contract.entitlements.interpreter.calls import Servers
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Bound,
    Class,
    Descriptor,
    Function,
    Instance,
    Item,
    ModuleItem,
    Namespace,
    Outside,
    Partial,
    Table,
    TableMethod,
    Text,
    Value,
)
from pinwarden.contract.entitlements.interpreter.program import Frame
from pinwarden.contract.entitlements.interpreter.terms import NOTHING_GIVEN, Given

_FRAMEWORKS = ("mcp", "fastmcp")
_GET, _CALL = "operator.attrgetter()", "operator.methodcaller()"
_DYNAMIC = "the name of what is used is computed"
_CALLABLE = (Function, Bound, Partial, Outside, Table, Class)
_GIVES_BACK = frozenset(terms.GIVES_BACK.split())


class OutsideCalls(Servers):
    """What code that is not looked into does with its arguments."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]  # as EngineBase takes them
        special = self._special
        self.forms: dict[str, Callable[[Given, ast.AST, Frame], Value]] = {
            "builtins.getattr": self.getattr,
            "builtins.setattr": self._setattr,
            "builtins.__import__": self.import_by_name,
            "importlib.import_module": self.import_by_name,
            "builtins.super": lambda _, __, frame: self.superior(frame),
            "builtins.globals": lambda _, __, frame: Value((Namespace(frame.module),)),
            "builtins.locals": lambda _, __, frame: Value((Namespace(frame.module),)),
            "builtins.vars": self._vars,
            "builtins.next": lambda given, _, __: self.elements(given.at(0) or EMPTY),
            "builtins.type": self._type,
            "builtins.staticmethod": special("static"),
            "builtins.classmethod": special("class"),
            "builtins.property": special("property"),
            "functools.cached_property": special("property"),
            "inspect.getattr_static": self.getattr,
            "functools.wraps": lambda _, __, ___: Value((Outside("functools.wraps()"),)),
            "functools.wraps()": lambda given, _, __: given.at(0) or EMPTY,
            "functools.update_wrapper": lambda given, _, __: given.at(0) or EMPTY,
            "functools.partial": lambda given, _, __: _partial(given),
            "functools.partialmethod": lambda given, _, __: _partial(given),
            "operator.attrgetter": lambda given, _, __: _later(_GET, given),
            "operator.methodcaller": lambda given, _, __: _later(_CALL, given),
            _GET: self._get_later,
            _CALL: self._call_later,
            "builtins.map": self._map,
            "builtins.filter": self._map,
        }

    def call_outside(self, path: str, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call something that is not looked into."""
        form = self.forms.get(path)
        if form is not None:
            return form(given, node, frame)
        if path in _GIVES_BACK:
            return self._give_back(path, given, node, frame)
        if path.partition(".")[0] in _FRAMEWORKS:
            registered = self.framework(path, given)
            if registered is not None:
                return registered
        self.note_effect(path, given, node, frame)
        result = EMPTY if effects.never_calls(path) else self.hand_over(given, node, frame)
        after = effects.result_of(path)
        return result | Value((Outside(after),)) if after is not None else result

    def note_effect(self, path: str, given: Given, node: ast.AST, frame: Frame) -> None:
        """Note what the table says about a call."""
        effect = effects.effect_of(path)
        if not effect.known:
            package = path.partition(".")[0]
            self.cannot_see(frame, f"the package {package} is not in the table and was not scanned", node, path)
            return
        kinds = effect.kinds
        if kinds and "@" in kinds[0]:
            rule, _, place = kinds[0].partition("@")
            kinds = self._by_argument(rule, int(place), given)
        elif not kinds and not effect.stated and "(" in path:
            kinds = effects.kinds_of_method(path.rpartition(".")[2])
        for kind in kinds:
            self.needs(frame, kind, node, path)

    def _by_argument(self, rule: str, place: int, given: Given) -> tuple[str, ...]:
        value = given.at(place, "mode" if rule == "mode" else "sql")
        if value is None and rule == "mode":
            return effects.kinds_of_mode(None if given.spread else "r")
        texts = self.texts(value) if value is not None else []
        if value is None or not texts or (rule == "mode" and not all(text.whole for text in texts)):
            return effects.kinds_of_mode(None) if rule == "mode" else effects.kinds_of_sql(None)
        judge = effects.kinds_of_mode if rule == "mode" else effects.kinds_of_sql
        kinds = {kind for text in texts for kind in judge(text.text)}
        return tuple(sorted(kinds))

    def hand_over(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call the functions among the arguments, as unknown code may; their results may be returned."""
        result: Value = EMPTY
        for place, value in enumerate(given.positional):
            for item in value:
                if isinstance(item, _CALLABLE):
                    rest = Given(positional=given.positional[place + 1 :], keywords=given.keywords)
                    result |= self._call_back(item, rest, node, frame)
        for name, value in given.keywords.items():
            for item in value:
                if isinstance(item, _CALLABLE):
                    rest = self._thread_arguments(given) if name == "target" else NOTHING_GIVEN
                    self._call_back(item, rest, node, frame)
        for item in given.spread:
            self._call_back(item, NOTHING_GIVEN, node, frame)
        return result

    def _thread_arguments(self, given: Given) -> Given:
        positional: tuple[Value, ...] = ()
        for item in given.keywords.get("args", EMPTY):
            if isinstance(item, Table):
                positional = tuple(item.keys[key] for key in sorted(item.keys) if key.isdigit())
        return Given(positional=positional)

    def _call_back(self, item: Item, given: Given, node: ast.AST, frame: Frame) -> Value:
        if isinstance(item, Function | Bound | Partial):
            return self.invoke(Value((item,)), given, node, frame) | Value((item,))
        if isinstance(item, Class) and item.outer:
            return self.invoke(Value((item,)), NOTHING_GIVEN, node, frame)
        if isinstance(item, Table):
            for inner in item.everything():
                if isinstance(inner, Function | Bound | Partial | Outside):
                    self._call_back(inner, NOTHING_GIVEN, node, frame)
        if isinstance(item, Outside) and not item.path.endswith(")"):
            effect = effects.effect_of(item.path)
            last = item.path.rpartition(".")[2]
            if effect.kinds and (effect.stated or last[:1].islower()):
                return self.call_outside(item.path, given, node, frame)
        return EMPTY

    def _give_back(self, path: str, given: Given, node: ast.AST, frame: Frame) -> Value:
        result = unmarked(given.everything())
        if path == "builtins.iter" and len(given.positional) > 1:  # with a function and a value at which to end
            return result | self.invoke(given.positional[0], NOTHING_GIVEN, node, frame)
        if path in ("builtins.sorted", "builtins.max", "builtins.min") and "key" in given.keywords:
            self.invoke(given.keywords["key"], Given(positional=(self.elements(result),)), node, frame)
        if path in ("builtins.enumerate", "builtins.zip"):
            pair, outer = self.table(frame, node, "pair"), self.table(frame, node, "pairs")
            shift = 1 if path.endswith("enumerate") else 0
            for place, value in enumerate(given.positional):
                self.put(pair, str(place + shift), self.elements(value))
            self.put(outer, None, Value((pair,)))
            return Value((outer,))
        if path in ("builtins.max", "builtins.min"):
            return self.elements(result)
        if path == "builtins.dict" and given.keywords:
            table = self.table(frame, node, "dict")
            for name, value in given.keywords.items():
                self.put(table, name, value)
            return Value((table,)) | (given.at(0) or EMPTY)
        return result

    # Forms whose meaning the analysis knows

    def _special(self, kind: str) -> Callable[[Given, ast.AST, Frame], Value]:
        def wrap(given: Given, _: ast.AST, __: Frame) -> Value:
            value = given.at(0, "fget")
            return Value((Descriptor(kind, value),)) if value else EMPTY

        return wrap

    def getattr(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        """``getattr`` with a constant is an attribute; with anything else it is whatever the object has."""
        value, name = given.at(0) or EMPTY, given.at(1) or EMPTY
        texts = self.texts(name)
        result = given.at(2) or EMPTY
        if texts and all(text.whole for text in texts):
            for text in texts:
                result |= self.attribute(value, text.text, node, frame)
            return result
        for item in value:
            if isinstance(item, ModuleItem | Class | Instance):
                self.cannot_see(frame, _DYNAMIC, node, "getattr")
                result |= self.all_methods(item, node, frame)
            elif isinstance(item, Outside):
                self.cannot_see(frame, _DYNAMIC, node, f"getattr({item.path}, …)")
        return result

    def all_methods(self, item: Item, node: ast.AST, frame: Frame) -> Value:
        """Whatever an own object has: any of it can be the one that is asked for."""
        names: dict[str, Value] = {}
        if isinstance(item, ModuleItem):
            names = item.module.frame.every
        elif isinstance(item, Class):
            names = item.body.every
        elif isinstance(item, Instance):
            names = {**item.cls.body.every, **item.cls.attributes}
        result: Value = EMPTY
        for name in list(names):
            if not name.startswith("__"):
                for inner in self.attribute(Value((item,)), name, node, frame):
                    if isinstance(inner, Function | Bound):
                        result |= Value((inner,))
        return result

    def _setattr(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        value, name, content = given.at(0) or EMPTY, self.texts(given.at(1) or EMPTY), given.at(2) or EMPTY
        for item in value:
            for part in name:
                if isinstance(item, Instance):
                    self.remember(item.cls, part.text, content)
                elif isinstance(item, ModuleItem):
                    self.store(item.module.frame, part.text, unmarked(content))
            if not name and content and isinstance(item, Instance | ModuleItem | Class):
                self.cannot_see(frame, _DYNAMIC, node, "setattr")
        return EMPTY

    def import_by_name(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Import a module by a text."""
        texts = self.texts(given.at(0, "name") or EMPTY)
        if not texts or not all(text.whole for text in texts):
            self.cannot_see(frame, "the module that is imported is computed", node, "import")
            return EMPTY
        result: Value = EMPTY
        for text in texts:
            name = text.text
            if name.startswith("."):
                package = self.texts(given.at(1, "package") or EMPTY)
                base = package[0].text if package else frame.module.name.rpartition(".")[0]
                name = base + name
            result |= self.import_module(name, frame, node)
        return result

    def import_module(self, name: str, frame: Frame, node: ast.AST) -> Value:
        """A module by its full name."""
        module = self.module(name)
        if module is None:
            self.touch(name, node, frame)
            return Value((Outside(effects.spelt(name)),))
        self.calls(frame, module.activation, node)
        return Value((ModuleItem(module),))

    def _vars(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        if not given.positional:
            return Value((Namespace(frame.module),))
        return self.attribute(given.positional[0], "__dict__", node, frame)

    def _type(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        if len(given.positional) == 3:
            self.cannot_see(frame, "a class is made at run time", node, "type")
            return EMPTY
        return Value(item.cls for item in given.at(0) or EMPTY if isinstance(item, Instance))

    def _get_later(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        *names, value = given.positional
        result: Value = EMPTY
        for name in names:
            result |= self.getattr(Given(positional=(value, name)), node, frame)
        return result

    def _call_later(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        name, *arguments, value = given.positional
        method = self.getattr(Given(positional=(value, name)), node, frame)
        return self.invoke(method, Given(positional=tuple(arguments), keywords=given.keywords), node, frame)

    def _map(self, given: Given, node: ast.AST, frame: Frame) -> Value:
        elements = tuple(self.elements(value) for value in given.positional[1:])
        result = self.invoke(given.at(0) or EMPTY, Given(positional=elements), node, frame)
        table = self.table(frame, node, "map")
        self.put(table, None, result.union(*elements))
        return Value((table,))


def _partial(given: Given) -> Value:
    if not given.positional:
        return EMPTY
    keywords = tuple(sorted(((name, unmarked(value)) for name, value in given.keywords.items()), key=_by_name))
    return Value((Partial(given.positional[0], tuple(map(unmarked, given.positional[1:])), keywords),))


def _later(form: str, given: Given) -> Value:
    keywords = tuple(sorted(given.keywords.items(), key=_by_name))
    return Value((Partial(Value((Outside(form),)), given.positional, keywords),))


def _by_name(pair: tuple[str, Value]) -> str:
    return pair[0]


class Tables(OutsideCalls):
    """What goes into containers, and what comes out."""

    def call_table(self, method: TableMethod, given: Given, node: ast.AST, frame: Frame) -> Value:
        """Call a method of a list or dict."""
        table, name = method.table, method.name
        first, second = given.at(0) or EMPTY, given.at(1, "default") or EMPTY
        if name in ("append", "add", "appendleft", "push"):
            self.put(table, None, first)
        elif name in ("insert", "__setitem__"):
            self.put(table, self.one_text(first), second)
        elif name in ("extend", "update", "extendleft", "union"):
            self._merge(table, given)
        elif name in ("get", "pop", "setdefault", "__getitem__"):
            if name == "setdefault":
                self.put(table, self.one_text(first), second)
            return self.subscript(Value((table,)), first, node, frame) | second
        elif name == "items":
            return self._items(table, node, frame)
        elif name == "keys":
            keys = self.table(frame, node, "keys")
            for key in table.keys:
                self.put(keys, None, Value((Text(key),)))
            return Value((keys,))
        elif name in ("values", "copy", "__iter__"):
            return Value((table,))
        elif name in ("popleft", "popitem"):
            return self.elements(Value((table,)))
        elif name == "sort":
            self.invoke(given.at(0, "key") or EMPTY, Given(positional=(table.everything(),)), node, frame)
        return EMPTY

    def _merge(self, table: Table, given: Given) -> None:
        for item in given.everything():
            if isinstance(item, Table):
                item.readers[self.current] = None
                for key, value in list(item.keys.items()):
                    self.put(table, key, value)
                self.put(table, None, item.rest)
        for name, value in given.keywords.items():
            self.put(table, name, value)

    def _items(self, table: Table, node: ast.AST, frame: Frame) -> Value:
        pair, outer = self.table(frame, node, "item"), self.table(frame, node, "items")
        table.readers[self.current] = None
        self.put(pair, "0", Value(Text(key) for key in table.keys))
        self.put(pair, "1", table.everything())
        self.put(outer, None, Value((pair,)))
        return Value((outer,))

    def subscript(self, value: Value, key: Value, node: ast.AST, frame: Frame) -> Value:
        """What ``value[key]`` can stand for."""
        result: Value = EMPTY
        for item in value:
            if isinstance(item, Table):
                item.readers[self.current] = None
                text = self.one_text(key)
                result |= item.keys.get(text, EMPTY) | item.rest if text is not None else item.everything()
            elif isinstance(item, Namespace):
                result |= self._in_namespace(item, key, node, frame)
            elif isinstance(item, Outside):
                result |= self._in_outside(item, key, node, frame)
            elif isinstance(item, Instance):
                method = self.attribute(Value((item,)), "__getitem__", node, frame)
                if method:
                    result |= self.invoke(method, Given(positional=(key,)), node, frame)
            elif isinstance(item, Class) and item.enumeration:
                result |= self.elements(Value((item,)))
        return result

    def _in_namespace(self, item: Namespace, key: Value, node: ast.AST, frame: Frame) -> Value:
        text = self.one_text(key)
        if text is None:
            self.cannot_see(frame, "looks names up by a computed text", node, "globals()")
            return self.all_methods(ModuleItem(item.module), node, frame)
        return self.global_name(text, item.module)

    def _in_outside(self, item: Outside, key: Value, node: ast.AST, frame: Frame) -> Value:
        if item.path == "sys.modules":
            return self.import_by_name(Given(positional=(key,)), node, frame)
        if item.path == "builtins.__builtins__":
            return self.getattr(Given(positional=(Value((Outside("builtins"),)), key)), node, frame)
        return Value((item,))
