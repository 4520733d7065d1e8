"""Servers: how tools, prompts and resources are registered with the MCP SDK and with fastmcp."""

from __future__ import annotations

from pinwarden.contract.entitlements import effects
from pinwarden.contract.entitlements.interpreter.base import unmarked
from pinwarden.contract.entitlements.interpreter.calls import Calls
from pinwarden.contract.entitlements.interpreter.items import (
    EMPTY,
    Bound,
    Function,
    Partial,
    Registrar,
    Text,
    Value,
)
from pinwarden.contract.entitlements.interpreter.terms import Given, Registration

_HANDLER_OPTIONS = (
    ("call_request", "on_call_tool"),
    ("list_tools", "on_list_tools"),
    ("get_prompt", "on_get_prompt"),
    ("read_resource", "on_read_resource"),
)
"""Arguments of the low-level server that take a handler."""
_ADDED = {"add_tool": "tool", "add_prompt": "prompt", "add_resource": "resource", "add_template": "resource"}
_DIRECT = ("tool", "prompt", "resource")


class Servers(Calls):
    """Which functions are handed to a server, under which name."""

    def framework(self, path: str, given: Given) -> Value | None:
        """What a call of the SDK or of fastmcp registers or returns; ``None`` where it does neither."""
        last = path.rpartition(".")[2]
        name = self._name_of(given)
        if last in ("Tool", "types.Tool") and name is not None:
            self.tool_names.setdefault(name)
        if last in ("from_function", "from_tool"):
            known = self._address_of(given) or name or ""
            return Value((Partial(given.at(0, "fn") or EMPTY, (), (("name", Value((Text(known),))),)),))
        if last in ("FunctionResource", "FunctionPrompt") and "fn" in given.keywords:
            known = self._address_of(given) or name or ""
            return Value((Partial(given.keywords["fn"], (), (("name", Value((Text(known),))),)),))
        for kind, keyword in _HANDLER_OPTIONS:
            if keyword in given.keywords:
                self.register(Registrar(kind, None), Given(positional=(given.keywords[keyword],)))
        if last not in effects.REGISTERING or "(" not in path:
            return None
        if last in ("get_prompt", "read_resource") and (given.positional or given.keywords):
            return None  # a client asks for one; a server's decorator has no arguments
        kind = _ADDED.get(last, last)
        first = given.at(0, "fn") or given.at(0, kind) or EMPTY
        if kind in _DIRECT and any(not isinstance(item, Text) for item in unmarked(first)):
            name = self.one_text(given.at(1, "name") or EMPTY)
            return self.register(Registrar(kind, name), Given(positional=(first,)))
        return Value((Registrar(kind, self._address_of(given) or name if kind == "resource" else name),))

    def _address_of(self, given: Given) -> str | None:
        """The URI or URI template of a resource; its ``name`` is only for display."""
        for keyword in ("uri", "uri_template"):
            if keyword in given.keywords:
                return self.one_text(given.keywords[keyword])
        return self.one_text(given.positional[0]) if given.positional else None

    def _name_of(self, given: Given) -> str | None:
        value = given.keywords.get("name")
        if value is None and given.positional:
            value = given.positional[0]
        return self.one_text(value) if value else None

    def register(self, registrar: Registrar, given: Given) -> Value:
        """Hand a function to a server."""
        value = unmarked(given.at(0) or EMPTY)
        for item in value:
            name, target = registrar.name, item
            if isinstance(item, Partial) and item.target:
                named = dict(item.keywords).get("name", EMPTY)
                name = name or next((each.text for each in named if isinstance(each, Text) and each.text), None)
                target = next(iter(item.target))
            function = target.function if isinstance(target, Bound) else target
            if isinstance(function, Function):
                line = getattr(function.node, "lineno", 0)
                key = (function.module.name, function.qualname, line, name)
                self.registrations.setdefault(
                    key,
                    Registration(
                        kind=registrar.kind,
                        name=name,
                        value=Value((target,)),
                        module=function.module.name,
                        qualname=function.qualname,
                        line=line,
                    ),
                )
        return value
