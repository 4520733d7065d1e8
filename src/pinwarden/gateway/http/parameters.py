"""Arguments that a tool wants as headers too (``x-mcp-header``): what they say has to be what the message says.

Somebody on the way may decide by such a header, and the server by the message. What cannot be held against the message,
because the tool does not declare it, is not passed on.
"""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.http.messages import plain_value

_MARK = "x-mcp-header"
_PREFIX = b"mcp-param-"
_DEEPEST = 32  # objects inside of each other, in which a declaration is looked for


class Mismatch(Exception):  # noqa: N818  an answer to give, not a failure to report
    """A header that says something else than the message."""


def checked(lines: bytes, definition: Any, arguments: Any) -> bytes:
    """Of these header lines of a call those that the tool declares. Raises if one of them is not its argument."""
    declared = _declared(definition.get("inputSchema") if type(definition) is dict else None)
    kept = b""
    for line in lines.splitlines(keepends=True):
        name, _, value = line.partition(b":")
        path = declared.get(name.removeprefix(_PREFIX).decode("latin-1"))
        if path is None:
            continue
        if plain_value(value.strip().decode("latin-1")) not in _spellings(_at(arguments, path)):
            raise Mismatch(f"the header {name.decode('latin-1')} is not the argument of the message")
        kept += line
    return kept


def _declared(schema: Any) -> dict[str, tuple[str, ...] | None]:
    """By their names in lower case, the arguments that headers stand for; None for a name that stands for two."""
    found: dict[str, tuple[str, ...] | None] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, each = pending.pop()
        if type(each) is not dict:
            continue
        name = each.get(_MARK)
        if type(name) is str and path:
            found[name.lower()] = None if name.lower() in found else path
        properties = each.get("properties")
        if type(properties) is dict and len(path) < _DEEPEST:
            pending += [((*path, key), value) for key, value in properties.items()]
    return found


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        arguments = arguments.get(name) if type(arguments) is dict else None
    return arguments


def _spellings(value: Any) -> tuple[str, ...]:
    """How a header may say a value; not at all if there is none, or one that no header can say."""
    if type(value) is bool:
        return ("true" if value else "false",)
    if type(value) is str:
        return (value,)
    if type(value) is int:
        return (f"{value:d}",)
    if type(value) is float:
        return (repr(value), f"{value:.0f}") if value.is_integer() else (repr(value),)
    return ()
