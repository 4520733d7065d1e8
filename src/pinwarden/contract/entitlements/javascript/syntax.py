"""Parse JavaScript and TypeScript with tree-sitter, and lower the tree to small nodes.

The grammars come with the extra ``javascript``. Parsing can take long on hostile input and cannot be interrupted, so
callers run it in a process of its own. Source that the grammar misreads without an error is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnreadableSourceError(Exception):
    """The source has a syntax error, or a construct that the grammar misreads."""


class JsNode:
    """A node of the syntax tree, without types, comments and parentheses."""

    __slots__ = ("children", "fields", "kind", "line", "text")

    def __init__(self, kind: str, line: int, text: str) -> None:
        self.kind = kind
        self.line = line
        self.text = text
        """The source text of names, literals and operators; empty for all other nodes."""
        self.children: list[JsNode] = []
        self.fields: dict[str, JsNode] = {}

    def get(self, name: str) -> JsNode | None:
        """Return the child in this field; None if the field is absent."""
        return self.fields.get(name)

    def walk(self) -> Iterator[JsNode]:
        """Yield this node and all its descendants."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += node.children


MAX_NODES: Final = 3_000_000
MAX_DEPTH: Final = 1_500
"""The maximum depth of the lowered tree. It is limited because the interpreter visits the tree recursively."""

_TRANSPARENT: Final = frozenset(
    (
        "parenthesized_expression",
        "as_expression",
        "satisfies_expression",
        "non_null_expression",
        "type_assertion",
        "instantiation_expression",
    )
)
_DROPPED: Final = frozenset(
    (
        *("comment", "html_comment", "hash_bang_line", "type_annotation", "type_arguments", "type_parameters"),
        *("interface_declaration", "type_alias_declaration", "ambient_declaration", "implements_clause"),
        *("abstract_method_signature", "method_signature", "function_signature", "index_signature", "asserts"),
        *("accessibility_modifier", "override_modifier", "type_predicate_annotation", "asserts_annotation"),
        *("predefined_type", "this_type", "empty_statement", "readonly_type", "opting_type_annotation"),
    )
)
_LEAVES: Final = frozenset(
    (
        *("identifier", "property_identifier", "private_property_identifier", "shorthand_property_identifier"),
        *("shorthand_property_identifier_pattern", "statement_identifier", "string", "number", "regex", "this"),
        *("super", "true", "false", "null", "undefined", "meta_property", "type_identifier", "string_fragment"),
        "escape_sequence",
    )
)
_KEPT_WORDS: Final = frozenset(("async", "static", "get", "set", "*", "default", "readonly", "type"))
"""Keywords that are not nodes of their own. ``Node.text`` has those of its children."""
_OPERATORS: Final = frozenset(("operator", "kind"))


@lru_cache(2)
def _load_language(name: str) -> Any:
    import tree_sitter

    if name == "javascript":
        import tree_sitter_javascript

        return tree_sitter.Language(tree_sitter_javascript.language())
    import tree_sitter_typescript

    grammar = tree_sitter_typescript.language_tsx if name == "tsx" else tree_sitter_typescript.language_typescript
    return tree_sitter.Language(grammar())


def parse(path: str, text: str) -> JsNode:
    """Parse one module. Raises ``UnreadableSourceError`` if a part of the code might be misread."""
    import tree_sitter

    _refuse_hidden_code(text)
    language = "typescript" if path.endswith((".ts", ".mts", ".cts")) else "tsx" if path.endswith(".tsx") else ""
    data = text.encode("utf-8", "surrogatepass")
    tree = tree_sitter.Parser(_load_language(language or "javascript")).parse(data)
    return _lower(tree, data)


_HIDING_LINE_END: Final = re.compile("^\ufeff?#![^\n]*[\r\u2028\u2029](?!\n)")
_LOST_EXPORT: Final = re.compile(r"^\s*export[ \t]*\r?\n", re.MULTILINE)
_DIVISION_AFTER_KEYWORD: Final = re.compile(r"\b(?:yield|await)\s*/[^/*\n]*\(")


def _refuse_hidden_code(text: str) -> None:
    if _HIDING_LINE_END.match(text):
        raise UnreadableSourceError("code hidden behind the first line")
    if _LOST_EXPORT.search(text):
        raise UnreadableSourceError("an export that the grammar loses")
    if _DIVISION_AFTER_KEYWORD.search(text):
        raise UnreadableSourceError("a division or regular expression after yield or await")


def _lower(tree: Any, data: bytes) -> JsNode:
    """Copy the tree into ``Node`` objects, without recursion."""
    root = JsNode("program", 1, "")
    count = 0
    pending: list[tuple[Any, JsNode, int]] = [(tree.root_node, root, 0)]
    while pending:
        source, target, depth = pending.pop()
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise UnreadableSourceError("the code is too large or nested too deeply")
        cursor = source.walk()
        if not cursor.goto_first_child():
            continue
        while True:
            child, field = cursor.node, cursor.field_name
            if child.is_error or child.is_missing:
                if not _is_keyword_in_export_list(child):
                    raise UnreadableSourceError("a syntax error")
            elif child.type not in _DROPPED and (child.is_named or field in _OPERATORS):
                inner = _skip_transparent(child)
                if inner is not None:
                    is_leaf = inner.type in _LEAVES or not inner.is_named
                    text = data[inner.start_byte : inner.end_byte].decode("utf-8", "replace") if is_leaf else ""
                    node = JsNode(inner.type, inner.start_point[0] + 1, text)
                    target.children.append(node)
                    if field is not None and field not in target.fields:
                        target.fields[field] = node
                    if not is_leaf:
                        pending.append((inner, node, depth + 1))
            elif child.type in _KEPT_WORDS:
                target.text += f"{child.type} "
            elif child.type == "accessibility_modifier":
                target.text += "readonly "
            if not cursor.goto_next_sibling():
                break
    return root


def _is_keyword_in_export_list(node: Any) -> bool:
    parent = node.parent
    return parent is not None and parent.type in ("import_specifier", "export_specifier")


def _skip_transparent(node: Any) -> Any:
    """Return the expression inside parentheses and type assertions; None for an empty one."""
    while node.type in _TRANSPARENT:
        inner = [child for child in node.named_children if child.type not in _DROPPED]
        if not inner:
            return None
        node = inner[-1] if node.type == "type_assertion" else inner[0]
    return node


_ESCAPE: Final = re.compile(
    r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([0-7]{1,3})|(\r\n|[\s\S]))"
)
_SIMPLE_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "\n": "", "\r\n": ""}


def decode_text(text: str) -> str:
    """Replace the escapes in a name or in the inside of a string."""
    return _ESCAPE.sub(_decode_escape, text) if "\\" in text else text


def _decode_escape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is not None:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else ""
    if match[4] is not None:
        return chr(int(match[4], 8))
    return _SIMPLE_ESCAPES.get(match[5], match[5])


def read_string(node: JsNode) -> str:
    """Return the value of a string literal."""
    return decode_text(node.text[1:-1])
