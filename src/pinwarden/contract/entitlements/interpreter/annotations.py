"""Type annotations: which objects they promise."""

from __future__ import annotations

import ast

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter import language
from pinwarden.contract.entitlements.interpreter.expressions import MAX_TEXT, Expressions
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Class,
    Instance,
    Outside,
    Value,
)
from pinwarden.contract.entitlements.interpreter.program import Frame

_TYPES_OF_TYPES = frozenset(("Optional", "Union", "Annotated", "Final", "ClassVar", "Required", "NotRequired"))
_CONTAINERS = frozenset(language.CONTAINERS.split())
_PLAIN = frozenset(language.PLAIN_TYPES.split())


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
        found: Value = EMPTY
        for item in self.evaluate(node, frame):
            if isinstance(item, Class) and not item.enumeration:
                found |= Value((Instance(item),))
            elif isinstance(item, Outside):
                path = effects.spelt(f"{item.path}()")
                if effects.has_reach(path) and effects.effect_of(path).known:
                    found |= Value((Outside(path),))
        return found

    def _promised_by_generic(self, node: ast.Subscript, frame: Frame) -> Value:
        head = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Annotated":
            inner = inner[:1]
        if head in ("Callable", "Literal", "type", "Type"):
            return EMPTY
        found: Value = EMPTY
        for each in inner:
            if not isinstance(each, ast.List):
                found |= self.meaning_of_annotation(each, frame)
        if head in _CONTAINERS and found:
            table = self.table(frame, node, "annotation")
            self.put(table, None, found)
            return Value((table,))
        if head not in _TYPES_OF_TYPES:
            return found | self.meaning_of_annotation(node.value, frame)
        return found
