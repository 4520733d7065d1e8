"""Branches, loops and type annotations: possible paths, and the values of names after them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import terms
from pinwarden.contract.entitlements.interpreter.expressions import MAX_TEXT, Expressions
from pinwarden.contract.entitlements.interpreter.objects import (
    EMPTY,
    AbstractValue,
    Class,
    Container,
    ExternalName,
    Instance,
    ParameterMark,
    Text,
)
from pinwarden.contract.entitlements.interpreter.program import PythonFrame, walk
from pinwarden.contract.entitlements.interpreter.terms import NO_ARGUMENTS

_TYPES_OF_TYPES = frozenset(("Optional", "Union", "Annotated", "Final", "ClassVar", "Required", "NotRequired"))
_CONTAINERS = frozenset(terms.CONTAINERS.split())
_PLAIN = frozenset(terms.PLAIN_TYPES.split())


class Annotations(Expressions):
    """Mixin that derives values from type annotations."""

    def evaluate_annotation(self, node: ast.expr | None, frame: PythonFrame) -> AbstractValue:
        """Return the value that a type annotation implies."""
        if node is None:
            return EMPTY
        if isinstance(node, ast.Name | ast.Attribute):
            return self._evaluate_annotated_name(node, frame)
        if isinstance(node, ast.BinOp):
            return self.evaluate_annotation(node.left, frame) | self.evaluate_annotation(node.right, frame)
        if isinstance(node, ast.Subscript):
            return self._evaluate_generic_annotation(node, frame)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < MAX_TEXT:
            return self.evaluate_annotation(self._parse_annotation(node.value), frame)
        return EMPTY

    def _parse_annotation(self, text: str) -> ast.expr | None:
        """Parse an annotation that is written as a string. Cached, so that its nodes keep their identity."""
        if text not in self.parsed_annotations:
            try:
                self.parsed_annotations[text] = ast.parse(text, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self.parsed_annotations[text] = None
        return self.parsed_annotations[text]

    def _evaluate_annotated_name(self, node: ast.Name | ast.Attribute, frame: PythonFrame) -> AbstractValue:
        if isinstance(node, ast.Name) and node.id in _PLAIN:
            return EMPTY
        result: AbstractValue = EMPTY
        for item in self.evaluate(node, frame):
            if isinstance(item, Class) and not item.enumeration:
                result |= AbstractValue((Instance(item),))
            elif isinstance(item, ExternalName):
                path = effects.canonicalize_path(f"{item.path}()")
                if effects.has_reach(path) and effects.find_effect(path).known:
                    result |= AbstractValue((ExternalName(path),))
        return result

    def _evaluate_generic_annotation(self, node: ast.Subscript, frame: PythonFrame) -> AbstractValue:
        head = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Annotated":
            inner = inner[:1]
        if head in ("Callable", "Literal", "type", "Type"):
            return EMPTY
        result: AbstractValue = EMPTY
        for element in inner:
            if not isinstance(element, ast.List):
                result |= self.evaluate_annotation(element, frame)
        if head in _CONTAINERS and result:
            table = self.get_container(frame, node, "annotation")
            self.put(table, None, result)
            return AbstractValue((table,))
        if head not in _TYPES_OF_TYPES:
            return result | self.evaluate_annotation(node.value, frame)
        return result


class Branches(Annotations):
    """Mixin that follows branches and loops."""

    def follow_if(self, node: ast.If, frame: PythonFrame) -> bool:
        """Follow the branch that the condition selects, or both branches if the condition is unknown."""
        decided = self.evaluate_condition(node.test, frame)
        if decided is True:
            return self.run(node.body, frame)
        if decided is False:
            return self.run(node.orelse, frame)
        return self._follow_branches((node.body, node.orelse), frame)

    def _follow_branches(self, bodies: Sequence[Sequence[ast.stmt]], frame: PythonFrame) -> bool:
        """Follow alternative branches, then merge the values of their names."""
        before = frame.names
        ends = []
        for body in bodies:
            frame.names = before.copy()
            if self.run(body, frame):
                ends.append(frame.names)
        if not ends:
            frame.names = before
            return False
        frame.names = merge_names(ends)
        return True

    def evaluate_condition(self, node: ast.expr, frame: PythonFrame) -> bool | None:
        """Evaluate a condition by the texts that the caller passed. Returns None if they do not determine it."""
        if isinstance(node, ast.Compare):
            return self._evaluate_comparison(node, frame)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.evaluate_condition(node.operand, frame)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            return self._evaluate_boolean_condition(node, frame)
        if (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING") or (
            isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING"
        ):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            return self._evaluate_affix_condition(node, node.func, frame)
        self.evaluate(node, frame)
        return None

    def _evaluate_boolean_condition(self, node: ast.BoolOp, frame: PythonFrame) -> bool | None:
        settles = isinstance(node.op, ast.Or)
        answers = []
        for part in node.values:
            answer = self.evaluate_condition(part, frame)
            if answer is settles:
                return settles
            answers.append(answer)
        return None if None in answers else not settles

    def _evaluate_affix_condition(self, node: ast.Call, function: ast.Attribute, frame: PythonFrame) -> bool | None:
        if function.attr in ("startswith", "endswith"):
            text = self._read_caller_text(self.evaluate(function.value, frame))
            affix = self.get_single_text(self.evaluate(node.args[0], frame))
            if text is None or affix is None:
                return None
            return text.startswith(affix) if function.attr == "startswith" else text.endswith(affix)
        self.evaluate(node, frame)
        return None

    def _read_caller_text(self, value: AbstractValue) -> str | None:
        """Return the text that the caller passed; None for other values, which other code could change."""
        text = self.get_single_text(value)
        return text if text is not None and any(type(item) is ParameterMark for item in value) else None

    def _evaluate_comparison(self, node: ast.Compare, frame: PythonFrame) -> bool | None:
        left = self.evaluate(node.left, frame)
        rights = [self.evaluate(part, frame) for part in node.comparators]
        if len(rights) != 1:
            return None
        operator = node.ops[0]
        if isinstance(operator, ast.Eq | ast.NotEq):
            first, second = self.get_single_text(left), self.get_single_text(rights[0])
            if first is None or second is None or not any(type(item) is ParameterMark for item in left | rights[0]):
                return None
            return (first == second) is isinstance(operator, ast.Eq)
        if isinstance(operator, ast.In | ast.NotIn):
            contained = self._evaluate_containment(rights[0], self._read_caller_text(left))
            return None if contained is None else contained is isinstance(operator, ast.In)
        return None

    def _evaluate_containment(self, value: AbstractValue, text: str | None) -> bool | None:
        if text is None or len(value) != 1:
            return None
        table = next(iter(value))
        if not isinstance(table, Container):
            return None
        if table.closed:
            return any(isinstance(item, Text) and item.text == text for item in table.merge_values())
        return None

    def follow_match(self, node: ast.Match, frame: PythonFrame) -> bool:
        """Follow the cases that can match."""
        subject = self.evaluate(node.subject, frame)
        text = self._read_caller_text(subject)
        bodies: list[Sequence[ast.stmt]] = []
        complete = False
        for case in node.cases:
            fits = self._evaluate_match(case.pattern, text, subject, frame)
            if case.guard is not None:
                self.evaluate(case.guard, frame)
                fits = None if fits else fits
            if fits is False:
                continue
            bodies.append(case.body)
            if fits is True:
                complete = True
                break
        return self._follow_branches(bodies if complete else [*bodies, ()], frame)

    def _evaluate_match(
        self, pattern: ast.pattern, text: str | None, subject: AbstractValue, frame: PythonFrame
    ) -> bool | None:
        if isinstance(pattern, ast.MatchValue):
            expected = self.get_single_text(self.evaluate(pattern.value, frame))
            return None if text is None or expected is None else text == expected
        if isinstance(pattern, ast.MatchOr):
            answers = [self._evaluate_match(alternative, text, subject, frame) for alternative in pattern.patterns]
            return True if True in answers else (None if None in answers else False)
        if isinstance(pattern, ast.MatchAs):
            fits = True if pattern.pattern is None else self._evaluate_match(pattern.pattern, text, subject, frame)
            if pattern.name is not None:
                self.store(frame, pattern.name, subject)
            return fits
        for part in walk(pattern):
            if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name is not None:
                self.store(frame, part.name, self.list_elements(subject) | subject)
        return None

    # Loops

    def follow_for(self, node: ast.For | ast.AsyncFor, frame: PythonFrame) -> bool:
        """Follow a loop over an iterable."""
        value = self.list_iterated(self.evaluate(node.iter, frame), node, frame)
        self._follow_loop(node, frame, lambda: self.assign(node.target, value, frame))
        return True

    def follow_while(self, node: ast.While, frame: PythonFrame) -> bool:
        """Follow a ``while`` loop. The code after an endless loop is reached only through ``break``."""
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._follow_loop(node, frame, lambda: self.evaluate_condition(node.test, frame))
        return not forever or any(isinstance(part, ast.Break) for part in walk(node))

    def _follow_loop(
        self, node: ast.For | ast.AsyncFor | ast.While, frame: PythonFrame, begin: Callable[[], object]
    ) -> None:
        """Follow the body of a loop, and follow it again if a name from before the loop got more values."""
        before = frame.names.copy()
        begin()
        self.run(node.body, frame)
        after = merge_names([before, frame.names])
        if any(after[name] != value for name, value in before.items()):
            frame.names = after.copy()
            begin()
            self.run(node.body, frame)
            after = merge_names([after, frame.names])
        frame.names = after
        if node.orelse:
            self.run(node.orelse, frame)

    def follow_try(self, node: ast.Try | ast.TryStar, frame: PythonFrame) -> bool:
        """Follow the body of ``try``, and each ``except`` block as if any statement of the body had raised."""
        before = frame.names.copy()
        passed = self.run(node.body, frame)
        if passed and node.orelse:
            passed = self.run(node.orelse, frame)
        ends = [frame.names] if passed else []
        failed = merge_names([before, frame.names])
        for handler in node.handlers:
            frame.names = failed.copy()
            if handler.name is not None:
                self.store(frame, handler.name, EMPTY)
            if self.run(handler.body, frame):
                ends.append(frame.names)
        frame.names = merge_names(ends) if ends else failed
        if node.finalbody and not self.run(node.finalbody, frame):
            return False
        return bool(ends)

    def follow_with(self, node: ast.With | ast.AsyncWith, frame: PythonFrame) -> bool:
        """Follow a block with the values of its context managers."""
        for entry in node.items:
            value = self.evaluate(entry.context_expr, frame)
            entered = self._enter_context(value, node, frame)
            if entry.optional_vars is not None:
                self.assign(entry.optional_vars, entered, frame)
        return self.run(node.body, frame)

    def _enter_context(self, value: AbstractValue, node: ast.AST, frame: PythonFrame) -> AbstractValue:
        """Return what ``with … as`` binds: the result of ``__enter__``, a value of ``yield``, or the object itself."""
        values: AbstractValue = EMPTY
        for item in value:
            if isinstance(item, Instance):
                for name in ("__enter__", "__aenter__", "__exit__", "__aexit__"):
                    if self.find_in_class(item.cls, name, set()):
                        method = self.read_attribute(AbstractValue((item,)), name, node, frame)
                        result = self.invoke(method, NO_ARGUMENTS, node, frame)
                        values |= result if "enter" in name else EMPTY
                values = values or AbstractValue((item,))
            elif isinstance(item, Container):
                values |= self.list_elements(AbstractValue((item,)))
            else:
                values |= AbstractValue((item,))
        return values


def merge_names(ends: list[dict[str, AbstractValue]]) -> dict[str, AbstractValue]:
    """Merge the values that each name has at the end of several alternative branches."""
    result = ends[0].copy()
    for names in ends[1:]:
        for name, value in names.items():
            known = result.get(name)
            if known is None:
                result[name] = value
            elif known is not value and known != value:
                result[name] = known | value
    return result
