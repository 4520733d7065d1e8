"""Branches, loops and type annotations: possible paths, and the values of names after them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.expressions import MAX_TEXT, Expressions
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Class,
    Instance,
    Mark,
    Outside,
    Table,
    Text,
    Value,
)
from pinwarden.contract.entitlements.interpreter.program import Frame, parts_of
from pinwarden.contract.entitlements.interpreter.terms import NOTHING_GIVEN

_TYPES_OF_TYPES = frozenset(("Optional", "Union", "Annotated", "Final", "ClassVar", "Required", "NotRequired"))
_CONTAINERS = frozenset(terms.CONTAINERS.split())
_PLAIN = frozenset(terms.PLAIN_TYPES.split())


class Annotations(Expressions):
    """What a parameter or attribute is, by its annotation."""

    def meaning_of_annotation(self, node: ast.expr | None, frame: Frame) -> Value:
        """The objects that a type annotation promises."""
        if node is None:
            return EMPTY
        if isinstance(node, ast.Name | ast.Attribute):
            return self._promised(node, frame)
        if isinstance(node, ast.BinOp):
            return self.meaning_of_annotation(node.left, frame) | self.meaning_of_annotation(node.right, frame)
        if isinstance(node, ast.Subscript):
            return self._promised_by_generic(node, frame)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < MAX_TEXT:
            return self.meaning_of_annotation(self._parsed(node.value), frame)
        return EMPTY

    def _parsed(self, text: str) -> ast.expr | None:
        """The expression in a quoted annotation. It is kept: what is made in a place is found again by its node."""
        if text not in self.quoted:
            try:
                self.quoted[text] = ast.parse(text, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self.quoted[text] = None
        return self.quoted[text]

    def _promised(self, node: ast.Name | ast.Attribute, frame: Frame) -> Value:
        if isinstance(node, ast.Name) and node.id in _PLAIN:
            return EMPTY
        result: Value = EMPTY
        for item in self.evaluate(node, frame):
            if isinstance(item, Class) and not item.enumeration:
                result |= Value((Instance(item),))
            elif isinstance(item, Outside):
                path = effects.spelt(f"{item.path}()")
                if effects.has_reach(path) and effects.effect_of(path).known:
                    result |= Value((Outside(path),))
        return result

    def _promised_by_generic(self, node: ast.Subscript, frame: Frame) -> Value:
        head = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Annotated":
            inner = inner[:1]
        if head in ("Callable", "Literal", "type", "Type"):
            return EMPTY
        result: Value = EMPTY
        for element in inner:
            if not isinstance(element, ast.List):
                result |= self.meaning_of_annotation(element, frame)
        if head in _CONTAINERS and result:
            table = self.table(frame, node, "annotation")
            self.put(table, None, result)
            return Value((table,))
        if head not in _TYPES_OF_TYPES:
            return result | self.meaning_of_annotation(node.value, frame)
        return result


class Branches(Annotations):
    """What is reached, and with what."""

    def if_statement(self, node: ast.If, frame: Frame) -> bool:
        """Follow the branch that is taken, or both."""
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

    def match_statement(self, node: ast.Match, frame: Frame) -> bool:
        """Follow the cases that can fit."""
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
            answers = [self._fits(alternative, text, subject, frame) for alternative in pattern.patterns]
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

    def for_statement(self, node: ast.For | ast.AsyncFor, frame: Frame) -> bool:
        """Follow a loop over what its iterable gives."""
        value = self.iterated(self.evaluate(node.iter, frame), node, frame)
        self._loop(node, frame, lambda: self.assign(node.target, value, frame))
        return True

    def while_statement(self, node: ast.While, frame: Frame) -> bool:
        """Follow a loop; one without end goes on only by a ``break``."""
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

    def try_statement(self, node: ast.Try | ast.TryStar, frame: Frame) -> bool:
        """Follow the body, and each handler from any point of it."""
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

    def with_statement(self, node: ast.With | ast.AsyncWith, frame: Frame) -> bool:
        """Follow a block with what its context managers give."""
        for entry in node.items:
            value = self.evaluate(entry.context_expr, frame)
            entered = self._entered(value, node, frame)
            if entry.optional_vars is not None:
                self.assign(entry.optional_vars, entered, frame)
        return self.run(node.body, frame)

    def _entered(self, value: Value, node: ast.AST, frame: Frame) -> Value:
        """What ``with … as`` gives: an outer object gives itself, a generator what it yields."""
        values: Value = EMPTY
        for item in value:
            if isinstance(item, Instance):
                for name in ("__enter__", "__aenter__", "__exit__", "__aexit__"):
                    if self.in_class(item.cls, name, set()):
                        method = self.attribute(Value((item,)), name, node, frame)
                        result = self.invoke(method, NOTHING_GIVEN, node, frame)
                        values |= result if "enter" in name else EMPTY
                values = values or Value((item,))
            elif isinstance(item, Table):
                values |= self.elements(Value((item,)))
            else:
                values |= Value((item,))
        return values


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
