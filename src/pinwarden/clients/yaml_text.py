"""Parse YAML 1.2, and edit one element of a list of named objects in place.

Clients follow YAML 1.2, in which ``no`` is a string. PyYAML follows YAML 1.1, in which ``no`` is false. Therefore this
module uses only PyYAML's syntax tree, which also has the position of every node, and builds the values itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pinwarden.clients.toml_text import quote_string
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import DEFAULT_LIMITS, Limits
from pinwarden.core.text import INVISIBLE, lazy_pattern

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

MAX_CHARACTERS = 1024 * 1024  # parsing takes several microseconds per character
MAX_NODES = 200_000  # a small file with aliases can expand to a huge value
_STR = "tag:yaml.org,2002:str"
_NULL = re.compile(r"(?:~|null|Null|NULL)?")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]{1,1000}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Text that needs no quotes in any version of YAML. Other text is written in quotes.
_PLAIN = re.compile(r"(?:[A-Za-z0-9_/.$<+(^~]|[-?:](?=[^\s,\[\]{}]))(?:[^\s:#]|:(?=\S)|(?<=\S)#| (?=[^\s#]))*")
_NOT_TEXT = re.compile(
    r"~|null|true|false|yes|no|on|off|y|n|=|<<|[-+]?\.(?:inf|nan)|"
    r"(?![0-9]+(?:\.[0-9]+){2,}\Z)[-+]?[.0-9][-+0-9a-fxobe_.,:]*",
    re.IGNORECASE,
)


def read_yaml(text: str, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Parse a text with one document. Refuses repeated members, merge keys, tags, and aliases that expand too far."""
    node = _compose(text)
    return None if node is None else _ValueBuilder(limits).build_value(node, 1)


def put_list_item(text: str, member: str, name: str, value: dict[str, Any]) -> str:
    """Return the text with ``value`` as the element called ``name`` of the list ``member``.

    An existing element of that name is replaced. Otherwise the element is added at the end.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    root = _require_block_mapping(_compose(text))
    listed = _find_member(root, member)
    if listed is None:
        before = text if not text or text.endswith("\n") else text + newline
        return before + newline.join([f"{member}:", *_render_element(value, 2)]) + newline
    items = _list_block_items(listed)
    if items is None:
        start, end = listed.start_mark.index, listed.end_mark.index
        while start < end and text[start - 1] in " \t":
            start -= 1
        text = text[:start] + text[end:]
        line_end = _find_line_end(text, start)  # after a comment on this line
        return text[:line_end] + newline + newline.join(_render_element(value, 2)) + text[line_end:]
    for item in items:
        if _get_name(item) == name:
            start, end = item.start_mark.index, _find_content_end(item)
            return (
                text[:start]
                + newline.join(_render_element(value, _find_dash_column(text, item)))[
                    _find_dash_column(text, item) + 2 :
                ]
                + text[end:]
            )
    last = items[-1]
    end = _find_line_end(text, _find_content_end(last))
    return text[:end] + newline + newline.join(_render_element(value, _find_dash_column(text, last))) + text[end:]


def remove_list_item(text: str, member: str, name: str) -> str:
    """Return the text without the element called ``name`` of the list ``member``."""
    listed = _find_member(_require_block_mapping(_compose(text)), member)
    items = None if listed is None else _list_block_items(listed)
    if listed is None or items is None:
        return text
    for item in items:
        if _get_name(item) != name:
            continue
        start = text.rfind("\n", 0, item.start_mark.index) + 1
        end = _find_line_end(text, _find_content_end(item))
        end += len(re.compile(r"(?:\r?\n)?").match(text, end)[0])  # type: ignore[index]  # it always matches
        text = text[:start] + text[end:]
        if len(items) == 1:
            key_end = next(
                key.end_mark.index for key, _ in _require_block_mapping(_compose(text)).value if key.value == member
            )
            colon = text.index(":", key_end) + 1
            text = text[:colon] + " []" + text[colon:]
        return text
    return text


def put_mapping(text: str, path: tuple[str, ...], value: dict[str, Any]) -> str:
    """Replace the object at a path of members by ``value``. Members that do not change keep their text and comments."""
    import yaml

    node: Node | None = _compose(text)
    for step in path:
        node = _find_member(_require_block_mapping(node), step)
    if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{'/'.join(path)[:120]!a} is not an object with one member per line")
    newline = "\r\n" if "\r\n" in text else "\n"
    column = node.value[0][0].start_mark.column
    between = newline + " " * column
    present = {key.value for key, _ in node.value}
    added = {name: item for name, item in value.items() if name not in present}
    edits: list[tuple[int, int, str]] = []
    for index, (key, part) in enumerate(node.value):
        start = key.start_mark.index
        if key.value not in value:
            edits.append((*_find_member_range(text, key, part, first=index == 0), ""))
        elif not _is_same(_ValueBuilder(DEFAULT_LIMITS).build_value(part, 1), value[key.value]):
            rendered = _join_members({key.value: value[key.value]}, column, newline)
            edits.append((start, max(_find_content_end(part), key.end_mark.index + 1), rendered))
    if added:
        start = node.start_mark.index
        edits.insert(0, (start, start, _join_members(added, column, newline) + between))
    for start, end, rendered in reversed(edits):
        text = text[:start] + rendered + text[end:]
    return text


def _find_member_range(text: str, key: Node, value: Node, *, first: bool) -> tuple[int, int]:
    """Find the text of a member with one line end, so that removing it leaves no empty line."""
    start, end = key.start_mark.index, _find_line_end(text, max(_find_content_end(value), key.end_mark.index))
    if first:
        return start, re.compile(r"(?:\r?\n[ \t]*)?").match(text, end).end()  # type: ignore[union-attr]  # it always matches
    return len(text[:start].rstrip(" ").removesuffix("\n").removesuffix("\r")), end


def _join_members(value: dict[str, Any], column: int, newline: str) -> str:
    return newline.join(_render_members(value, column)).lstrip(" ")


def _is_same(one: Any, other: Any) -> bool:
    """Compare values by type too: true is not 1."""
    return type(one) is type(other) and one == other and repr(one) == repr(other)


def render_yaml(value: dict[str, Any]) -> str:
    """Render a new YAML file, indented by two spaces."""
    return "\n".join(_render_members(value, 0)) + "\n"


def _compose(text: str) -> Node | None:
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise PinwardenError("CONFIG_INVALID", f"the file has more than {MAX_CHARACTERS} characters")
    try:
        # BaseLoader makes every scalar a string. `_parse_scalar` decides its type later.
        node: Node | None = yaml.compose(text, Loader=yaml.BaseLoader)
    except RecursionError as err:
        raise PinwardenError("CONFIG_INVALID", "the file is nested too deeply") from err
    except yaml.MarkedYAMLError as err:
        # PyYAML's message quotes the text of the file, which can contain a secret.
        where = f" (line {err.problem_mark.line + 1})" if err.problem_mark else ""
        raise PinwardenError("CONFIG_INVALID", f"the file is not valid YAML{where}") from err
    except (yaml.YAMLError, ValueError) as err:
        raise PinwardenError("CONFIG_INVALID", "the file is not valid YAML") from err
    return node


class _ValueBuilder:
    """Builds Python values from PyYAML's nodes. Raises if there are too many of them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.left = MAX_NODES

    def build_value(self, node: Node, depth: int) -> Any:
        import yaml

        self.left -= 1
        if self.left < 0 or depth > self.limits.max_depth:
            raise PinwardenError("CONFIG_INVALID", "the YAML expands to too many or too deeply nested values")
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build_value(item, depth + 1) for item in node.value]
        if node.tag != _STR or not isinstance(node, yaml.ScalarNode):
            raise PinwardenError("CONFIG_INVALID", f"line {line}: tags are not supported")
        return _parse_scalar(node.value) if node.style is None else node.value

    def _build_mapping(self, node: MappingNode, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = key.value
            if type(name) is not str:
                raise PinwardenError("CONFIG_INVALID", f"line {line}: the name of a member is not a string")
            if name == "<<":  # a merge key, which only some parsers support
                raise PinwardenError("CONFIG_INVALID", f"line {line}: merge keys are not supported")
            if name in members:
                raise PinwardenError("CONFIG_INVALID", f"line {line}: member {name[:80]!a} occurs more than once")
            members[name] = self.build_value(value, depth + 1)
        return members


def _parse_scalar(text: str) -> Any:
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _require_block_mapping(node: Node | None) -> MappingNode:
    import yaml

    if node is None:
        return yaml.MappingNode("tag:yaml.org,2002:map", [])
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise PinwardenError("CONFIG_UNEDITABLE", "the file is not a YAML mapping with one member per line")
    return node


def _find_member(node: MappingNode, member: str) -> Node | None:
    return next((value for key, value in node.value if key.value == member), None)


def _list_block_items(node: Node) -> list[Node] | None:
    """Return the elements of a list that is written with dashes; None if the list is empty."""
    import yaml

    if isinstance(node, yaml.ScalarNode) and node.style is None and _NULL.fullmatch(node.value):
        return None
    if isinstance(node, yaml.SequenceNode) and not node.value:
        return None
    if not isinstance(node, yaml.SequenceNode) or node.flow_style:
        raise PinwardenError("CONFIG_UNEDITABLE", "the servers are not a list with one dash per server")
    if not all(isinstance(item, yaml.MappingNode) and not item.flow_style for item in node.value):
        raise PinwardenError("CONFIG_UNEDITABLE", "a server in the list is not a YAML mapping with one member per line")
    return list(node.value)


def _get_name(item: Node) -> Any:
    return next((value.value for key, value in item.value if key.value == "name"), None)


def _find_content_end(node: Node) -> int:
    """Return the position at which the text of a node ends.

    PyYAML's own end position is that of the next node, after blank lines and comments.
    """
    import yaml

    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return max(_find_content_end(part) for part in node.value[-1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return _find_content_end(node.value[-1])
    end = node.end_mark.index
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        raise PinwardenError("CONFIG_UNEDITABLE", "the last value of a server is a YAML block scalar (| or >)")
    return end


def _find_dash_column(text: str, item: Node) -> int:
    start = item.start_mark.index
    line = text.rfind("\n", 0, start) + 1
    before = text[line:start]
    if not re.fullmatch(r" *- ", before):
        raise PinwardenError("CONFIG_UNEDITABLE", "the entry of a server does not begin on the line of its dash")
    return len(before) - 2


def _find_line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    return end - 1 if end > position and text[end - 1] == "\r" else end


def _render_element(value: dict[str, Any], column: int) -> list[str]:
    first, *others = _render_members(value, column + 2)
    return [" " * column + "- " + first.lstrip(" "), *others]


def _render_members(value: dict[str, Any], column: int) -> list[str]:
    pad = " " * column
    lines: list[str] = []
    for name, item in value.items():
        key = pad + _quote_if_needed(name) + ":"
        if type(item) is dict and item:
            lines += [key, *_render_members(item, column + 2)]
        elif type(item) is list and item:
            lines.append(key)
            for element in item:
                lines += _render_list_item(element, column + 2)
        else:
            lines.append(f"{key} {_render_scalar(item)}")
    return lines


def _render_list_item(element: Any, column: int) -> list[str]:
    if type(element) is dict and element:
        return _render_element(element, column)
    if type(element) is list and element:
        raise PinwardenError("CONFIG_UNEDITABLE", "Pinwarden cannot write a list inside a list as YAML")
    return [" " * column + "- " + _render_scalar(element)]


def _render_scalar(value: Any) -> str:
    if type(value) is str:
        return _quote_if_needed(value)
    if value is None or type(value) is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) in (int, float):
        return repr(value)
    return "{}" if type(value) is dict else "[]"


def _quote_if_needed(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text) and not INVISIBLE.search(text):
        return text
    return quote_string(text)


_FENCED = lazy_pattern(rb"\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", 0x18)  # MULTILINE and DOTALL
_MENTIONS_SERVERS = lazy_pattern(
    rb"^[ \t]*(?:\{.*|\?[ \t]*)?(?:[\"']?mcp[-_]?servers[\"']?[ \t]*(?::|$)|\"[^\"\n]*\\[^\"\n]*\"[ \t]*:)", 0x0A
)  # MULTILINE and IGNORECASE: the member, on its own line or in braces, or any member written with escapes
_MEMBERS = ("mcpServers", "mcp-servers", "mcp_servers")


def read_front_matter(data: bytes) -> dict[str, Any]:
    """Return the servers that the front matter of an agent's Markdown file declares, as ``{"mcpServers": {...}}``.

    The result is an empty object if there are none.
    """
    from pinwarden.clients.jsonc import decode_text

    fenced = _FENCED.match(data.removeprefix(b"\xef\xbb\xbf"))
    head = fenced[1] if fenced else b""
    if b"mcp" not in head.lower() and b"\\" not in head:  # escapes may hide the name of a member
        return {}
    try:
        document = read_yaml(decode_text(head))
    except PinwardenError:
        if _MENTIONS_SERVERS.search(head):
            raise
        return {}
    servers: dict[str, Any] = {}
    for member in _MEMBERS:
        for name, entry in _iter_declared_servers(document.get(member) if type(document) is dict else None):
            if name in servers:
                raise PinwardenError("CONFIG_INVALID", f"two servers have the name {name[:80]!a}")
            servers[name] = entry
    return {"mcpServers": servers} if servers else {}


def _iter_declared_servers(listed: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and entry of each declared server. A bare name refers to another file and is skipped."""
    for item in listed if type(listed) is list else [listed]:
        if type(item) is not dict:
            continue
        if type(item.get("name")) is str and ("command" in item or "url" in item):
            yield item["name"], item
            continue
        for name, entry in item.items():
            if entry is not None and type(entry) not in (str, bool):
                yield str(name), entry
