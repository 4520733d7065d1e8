"""Statements: how they bind names, and which of them are reached."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from pinwarden.rules.entitlements.engine_base import NOTHING_GIVEN, Given, unmarked
from pinwarden.rules.entitlements.engine_expressions import Expressions
from pinwarden.rules.entitlements.items import (
    EMPTY,
    Alias,
    Class,
    Function,
    Instance,
    Mark,
    ModuleItem,
    Namespace,
    Outside,
    Registrar,
    Table,
    Text,
    Value,
)
from pinwarden.rules.entitlements.program import Frame, Module, parts_of


class Statements(Expressions):
    """What statements do to the names of a frame."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.actions: dict[type[ast.stmt], Callable[[Any, Frame], bool]] = {
            ast.Expr: self._expression,
            ast.Assign: self._assign_statement,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.Return: self._return,
            ast.If: self._if,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.Try: self._try,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Match: self._match,
            ast.Raise: self._raise,
            ast.Assert: self._assert,
            ast.Global: self._global,
            ast.Nonlocal: self._nonlocal,
            ast.Continue: lambda _, __: False,
            ast.Break: lambda _, __: False,
            ast.Pass: lambda _, __: True,
            ast.Delete: lambda _, __: True,
        }
        self.actions[ast.TryStar] = self._try

    def run(self, body: Sequence[ast.stmt], frame: Frame) -> bool:
        """Follow statements; whether the code after them is reached."""
        actions = self.actions
        for statement in body:
            action = actions.get(type(statement))
            if action is None:
                self.cannot_see(frame, "a statement of a newer Python", statement, type(statement).__name__)
            elif not action(statement, frame):
                return False
        return True

    # Simple statements

    def _expression(self, node: ast.Expr, frame: Frame) -> bool:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, frame)
        return True

    def _return(self, node: ast.Return, frame: Frame) -> bool:
        if node.value is not None:
            frame.activation.returns |= unmarked(self.evaluate(node.value, frame))
        return False

    def _raise(self, node: ast.Raise, frame: Frame) -> bool:
        for part in (node.exc, node.cause):
            if part is not None:
                self.evaluate(part, frame)
        return False

    def _assert(self, node: ast.Assert, frame: Frame) -> bool:
        self.evaluate(node.test, frame)
        if node.msg is not None:
            self.evaluate(node.msg, frame)
        return True

    def _global(self, node: ast.Global, frame: Frame) -> bool:
        for name in node.names:
            frame.elsewhere[name] = frame.module.frame
        return True

    def _nonlocal(self, node: ast.Nonlocal, frame: Frame) -> bool:
        for name in node.names:
            outer = frame.parent
            while outer is not None and name not in outer.every:
                outer = outer.parent
            if outer is not None:
                frame.elsewhere[name] = outer
        return True

    # Binding

    def _assign_statement(self, node: ast.Assign, frame: Frame) -> bool:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return True

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> bool:
        value = self.evaluate(node.value, frame) if node.value is not None else EMPTY
        if not any(not isinstance(item, Text | Mark) for item in value):
            value |= self.meaning_of_annotation(node.annotation, frame)
        if node.value is not None or value:
            self.assign(node.target, value, frame)
        return True

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> bool:
        value = self.evaluate(node.value, frame)
        if isinstance(node.target, ast.Name):
            known = self.look_up(node.target.id, frame)
            if known:
                for item in known:
                    if isinstance(item, Table):
                        self.put(item, None, self.elements(value))
                kept = frozenset(Text(item.text, whole=False) if isinstance(item, Text) else item for item in known)
                self.store(frame, node.target.id, kept)
        else:
            self.assign(node.target, value, frame)
        return True

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a target of an assignment."""
        if isinstance(target, ast.Name):
            self.store(frame, target.id, value)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value, frame)
        elif isinstance(target, ast.Subscript):
            self._assign_subscript(target, value, frame)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, value, frame)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, frame)

    def _assign_attribute(self, target: ast.Attribute, value: Value, frame: Frame) -> None:
        for item in self.evaluate(target.value, frame):
            if isinstance(item, Instance):
                self.remember(item.cls, target.attr, value)
            elif isinstance(item, Class):
                self.remember(item, target.attr, value)
            elif isinstance(item, ModuleItem):
                self.store(item.module.frame, target.attr, unmarked(value))
            elif isinstance(item, Function):
                table = self.table(item.home, item.node, f"attribute {target.attr}")
                self.put(table, None, value)
            elif isinstance(item, Outside):
                self.hand_over(Given(positional=(value,)), target, frame)  # a hook: it will be called there

    def _assign_subscript(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        key = self.evaluate(target.slice, frame)
        for item in self.evaluate(target.value, frame):
            if isinstance(item, Table):
                self.put(item, self.one_text(key), value)
            elif isinstance(item, Namespace):
                text = self.one_text(key)
                if text is not None:
                    self.store(item.module.frame, text, unmarked(value))
            elif isinstance(item, Instance):
                method = self.attribute(frozenset((item,)), "__setitem__", target, frame)
                if method:
                    self.invoke(method, Given(positional=(key, value)), target, frame)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value, frame: Frame) -> None:
        for place, each in enumerate(target.elts):
            found: Value = EMPTY
            for item in value:
                if isinstance(item, Table):
                    item.readers.add(self.current)
                    found |= item.keys.get(str(place), EMPTY) | item.rest
                elif isinstance(item, Outside):
                    found |= {item}
            self.assign(each, found, frame)

    # Branches

    def _if(self, node: ast.If, frame: Frame) -> bool:
        decided = self.decide(node.test, frame)
        if decided is True:
            return self.run(node.body, frame)
        if decided is False:
            return self.run(node.orelse, frame)
        return self._branches((node.body, node.orelse), frame)

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]], frame: Frame) -> bool:
        """Follow several ways from the same point; afterwards a name can stand for what any of them left."""
        before = frame.names
        ends = []
        for body in bodies:
            frame.names = before.copy()
            if self.run(body, frame):
                ends.append(frame.names)
        if not ends:
            frame.names = before
            return False
        frame.names = joined(ends)
        return True

    def decide(self, node: ast.expr, frame: Frame) -> bool | None:
        """Whether a condition holds, where texts given by the caller settle it; ``None`` where they do not."""
        if isinstance(node, ast.Compare):
            return self._decide_compare(node, frame)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.decide(node.operand, frame)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            return self._decide_boolean(node, frame)
        if (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING") or (
            isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING"
        ):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            return self._decide_affix(node, node.func, frame)
        self.evaluate(node, frame)
        return None

    def _decide_boolean(self, node: ast.BoolOp, frame: Frame) -> bool | None:
        settles = isinstance(node.op, ast.Or)
        answers = []
        for part in node.values:
            answer = self.decide(part, frame)
            if answer is settles:
                return settles
            answers.append(answer)
        return None if None in answers else not settles

    def _decide_affix(self, node: ast.Call, function: ast.Attribute, frame: Frame) -> bool | None:
        if function.attr in ("startswith", "endswith"):
            text = self._given_text(self.evaluate(function.value, frame))
            other = self.one_text(self.evaluate(node.args[0], frame))
            if text is None or other is None:
                return None
            return text.startswith(other) if function.attr == "startswith" else text.endswith(other)
        self.evaluate(node, frame)
        return None

    def _given_text(self, value: Value) -> str | None:
        """A text that the caller gave. Constants of the program do not count: they can be changed elsewhere."""
        text = self.one_text(value)
        return text if text is not None and any(type(item) is Mark for item in value) else None

    def _decide_compare(self, node: ast.Compare, frame: Frame) -> bool | None:
        left = self.evaluate(node.left, frame)
        rights = [self.evaluate(part, frame) for part in node.comparators]
        if len(rights) != 1:
            return None
        operator = node.ops[0]
        if isinstance(operator, ast.Eq | ast.NotEq):
            first, second = self.one_text(left), self.one_text(rights[0])
            if first is None or second is None or not any(type(item) is Mark for item in left | rights[0]):
                return None
            return (first == second) is isinstance(operator, ast.Eq)
        if isinstance(operator, ast.In | ast.NotIn):
            held = self._holds(rights[0], self._given_text(left))
            return None if held is None else held is isinstance(operator, ast.In)
        return None

    def _holds(self, value: Value, text: str | None) -> bool | None:
        if text is None or len(value) != 1:
            return None
        table = next(iter(value))
        if not isinstance(table, Table):
            return None
        if table.closed:
            return any(isinstance(item, Text) and item.text == text for item in table.everything())
        return None

    def _match(self, node: ast.Match, frame: Frame) -> bool:
        subject = self.evaluate(node.subject, frame)
        text = self._given_text(subject)
        bodies: list[Sequence[ast.stmt]] = []
        complete = False
        for case in node.cases:
            fits = self._fits(case.pattern, text, subject, frame)
            if case.guard is not None:
                self.evaluate(case.guard, frame)
                fits = None if fits else fits
            if fits is False:
                continue
            bodies.append(case.body)
            if fits is True:
                complete = True
                break
        return self._branches(bodies if complete else [*bodies, ()], frame)

    def _fits(self, pattern: ast.pattern, text: str | None, subject: Value, frame: Frame) -> bool | None:
        if isinstance(pattern, ast.MatchValue):
            expected = self.one_text(self.evaluate(pattern.value, frame))
            return None if text is None or expected is None else text == expected
        if isinstance(pattern, ast.MatchOr):
            answers = [self._fits(each, text, subject, frame) for each in pattern.patterns]
            return True if True in answers else (None if None in answers else False)
        if isinstance(pattern, ast.MatchAs):
            fits = True if pattern.pattern is None else self._fits(pattern.pattern, text, subject, frame)
            if pattern.name is not None:
                self.store(frame, pattern.name, subject)
            return fits
        for part in parts_of(pattern):
            if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name is not None:
                self.store(frame, part.name, self.elements(subject) | subject)
        return None

    # Loops

    def _for(self, node: ast.For | ast.AsyncFor, frame: Frame) -> bool:
        value = self.iterated(self.evaluate(node.iter, frame), node, frame)
        self._loop(node, frame, lambda: self.assign(node.target, value, frame))
        return True

    def _while(self, node: ast.While, frame: Frame) -> bool:
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._loop(node, frame, lambda: self.decide(node.test, frame))
        return not forever or any(isinstance(part, ast.Break) for part in parts_of(node))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, frame: Frame, begin: Callable[[], object]) -> None:
        """Follow the body, and once more if a name that was there before came to stand for more."""
        before = frame.names.copy()
        begin()
        self.run(node.body, frame)
        after = joined([before, frame.names])
        if any(after[name] != value for name, value in before.items()):
            frame.names = after.copy()
            begin()
            self.run(node.body, frame)
            after = joined([after, frame.names])
        frame.names = after
        if node.orelse:
            self.run(node.orelse, frame)

    def _try(self, node: ast.Try | ast.TryStar, frame: Frame) -> bool:
        before = frame.names.copy()
        passed = self.run(node.body, frame)
        if passed and node.orelse:
            passed = self.run(node.orelse, frame)
        ends = [frame.names] if passed else []
        failed = joined([before, frame.names])
        for handler in node.handlers:
            frame.names = failed.copy()
            if handler.name is not None:
                self.store(frame, handler.name, EMPTY)
            if self.run(handler.body, frame):
                ends.append(frame.names)
        frame.names = joined(ends) if ends else failed
        if node.finalbody and not self.run(node.finalbody, frame):
            return False
        return bool(ends)

    def _with(self, node: ast.With | ast.AsyncWith, frame: Frame) -> bool:
        for entry in node.items:
            value = self.evaluate(entry.context_expr, frame)
            entered = self._entered(value, node, frame)
            if entry.optional_vars is not None:
                self.assign(entry.optional_vars, entered, frame)
        return self.run(node.body, frame)

    def _entered(self, value: Value, node: ast.AST, frame: Frame) -> Value:
        """What ``with … as`` gives: an outer object gives itself, a generator what it yields."""
        found: Value = EMPTY
        for item in value:
            if isinstance(item, Instance):
                for name in ("__enter__", "__aenter__", "__exit__", "__aexit__"):
                    if self.in_class(item.cls, name, set()):
                        method = self.attribute(frozenset((item,)), name, node, frame)
                        result = self.invoke(method, NOTHING_GIVEN, node, frame)
                        found |= result if "enter" in name else EMPTY
                found = found or frozenset((item,))
            elif isinstance(item, Table):
                found |= self.elements(frozenset((item,)))
            else:
                found |= {item}
        return found

    # Definitions

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> bool:
        function = self.function_at(node, frame, node.name)
        value: Value = frozenset((function,))
        for decorator in reversed(node.decorator_list):
            value = self._decorated(decorator, value, function, frame)
        self.store(frame, node.name, value)
        places = self.definitions.setdefault((frame.module.name, function.qualname), [])
        if (node.lineno, value) not in places:
            places.append((node.lineno, value))
        return True

    def _decorated(self, node: ast.expr, value: Value, function: Function, frame: Frame) -> Value:
        decorator = self.evaluate(node, frame)
        if any(isinstance(item, Registrar) for item in decorator) or self._registers_directly(node, decorator):
            for kind, name in self._registrars(node, decorator):
                self.register(Registrar(kind, name), Given(positional=(frozenset((function,)),)))
            return value
        own = frozenset(item for item in decorator if not isinstance(item, Outside))
        if own:
            return self.invoke(own, Given(positional=(value,)), node, frame) or value
        for item in decorator:
            if isinstance(item, Outside):
                form = self.forms.get(item.path)
                if form is not None:
                    return form(Given(positional=(value,)), node, frame) or value
                if item.path.endswith(".setter"):
                    return value
                self._note_effect(item.path, Given(), node, frame)
        return value

    def _registers_directly(self, node: ast.expr, decorator: Value) -> bool:
        """Whether this is ``@server.tool`` without a call."""
        if not isinstance(node, ast.Attribute) or node.attr not in ("tool", "call_tool", "list_tools"):
            return False
        return not decorator or any(
            isinstance(item, Outside) and item.path.partition(".")[0] in ("mcp", "fastmcp") for item in decorator
        )

    def _registrars(self, node: ast.expr, decorator: Value) -> list[tuple[str, str | None]]:
        found = [(item.kind, item.name) for item in decorator if isinstance(item, Registrar)]
        return found or [(node.attr, None)] if isinstance(node, ast.Attribute) else found

    def _class(self, node: ast.ClassDef, frame: Frame) -> bool:
        cls = frame.classes.get(id(node))
        if cls is None:
            body = Frame(frame.module, frame, f"{frame.qualname}{node.name}.")
            body.activation = frame.activation
            cls = frame.classes[id(node)] = Class(node, frame.module, frame.qualname + node.name, body)
            body.cls = cls
        for base in node.bases:
            target = base.value if isinstance(base, ast.Subscript) else base
            for item in self.evaluate(target, frame):
                if isinstance(item, Class | Outside) and item not in cls.bases and item is not cls:
                    cls.bases.append(item)
                    if isinstance(item, Class):
                        item.children.append(cls)
        cls.body.activation = frame.activation
        self.run(node.body, cls.body)
        value: Value = frozenset((cls,))
        for decorator in reversed(node.decorator_list):
            decorators = frozenset(item for item in self.evaluate(decorator, frame) if not isinstance(item, Outside))
            if decorators:
                value |= self.invoke(decorators, Given(positional=(value,)), node, frame)
        self.store(frame, node.name, value)
        self._tell_bases(cls, node, frame)
        return True

    def _tell_bases(self, cls: Class, node: ast.ClassDef, frame: Frame) -> None:
        """Making a subclass runs ``__init_subclass__`` of its bases."""
        for base in cls.bases:
            if isinstance(base, Class):
                for item in self.in_class(base, "__init_subclass__", set()):
                    if isinstance(item, Function):
                        self.enter(item, Given(positional=(frozenset((cls,)),)), node, frame)

    # Imports

    def _import(self, node: ast.Import, frame: Frame) -> bool:
        for alias in node.names:
            value = self.import_module(alias.name, frame, node)
            if alias.asname is None:
                root = alias.name.partition(".")[0]
                value = value if root == alias.name else self.import_module(root, frame, node)
                self.store(frame, root, value)
            else:
                self.store(frame, alias.asname, value)
        return True

    def _import_from(self, node: ast.ImportFrom, frame: Frame) -> bool:
        name = self._absolute(node, frame.module)
        module = self.module(name) if name else None
        if module is not None:
            self.calls(frame, module.activation, node)
        for alias in node.names:
            if alias.name == "*":
                frame.module.stars.append(module if module is not None else name)
            elif module is not None:
                self._import_member(module, alias, node, frame)
            else:
                self.store(frame, alias.asname or alias.name, self.touch_import(f"{name}.{alias.name}", node, frame))
        return True

    def touch_import(self, path: str, node: ast.AST, frame: Frame) -> Value:
        """What an import from a module that is not looked into binds."""
        below = self.module(path)
        if below is not None:
            self.calls(frame, below.activation, node)
            return frozenset((ModuleItem(below),))
        return self.touch(path, node, frame)

    def _import_member(self, module: Module, alias: ast.alias, node: ast.AST, frame: Frame) -> None:
        bound = alias.asname or alias.name
        below = None if alias.name in module.frame.every else self.module(f"{module.name}.{alias.name}")
        if below is not None:
            self.calls(frame, below.activation, node)
            self.store(frame, bound, frozenset((ModuleItem(below),)))
        else:
            self.store(frame, bound, frozenset((Alias(module, alias.name),)))

    def _absolute(self, node: ast.ImportFrom, module: Module) -> str:
        if not node.level:
            return node.module or ""
        parts = module.name.split(".")
        keep = len(parts) - node.level + (1 if module.source.package else 0)
        return ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])


def joined(ends: list[dict[str, Value]]) -> dict[str, Value]:
    """What names can stand for after one of several ways."""
    result = ends[0].copy()
    for other in ends[1:]:
        for name, value in other.items():
            known = result.get(name)
            if known is None:
                result[name] = value
            elif known is not value and known != value:
                result[name] = known | value
    return result
