"""Find the handlers of tools, prompts and resources in calls of the MCP SDKs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinwarden.contract.entitlements.javascript.catalogue import SDK
from pinwarden.contract.entitlements.javascript.effects import get_package
from pinwarden.contract.entitlements.javascript.engine import list_callables
from pinwarden.contract.entitlements.javascript.loading import Loading
from pinwarden.contract.entitlements.javascript.syntax import JsNode
from pinwarden.contract.entitlements.javascript.values import (
    ANY_DATA,
    DATA,
    EMPTY,
    AbstractValue,
    External,
    JsItem,
    JsObject,
    JsText,
)

TOOL, PROMPT, RESOURCE = "tool", "prompt", "resource"
_BY_METHOD: Final = {
    "registerTool": TOOL,
    "tool": TOOL,
    "registerToolTask": TOOL,
    "registerPrompt": PROMPT,
    "prompt": PROMPT,
    "registerResource": RESOURCE,
    "resource": RESOURCE,
}
_BY_OBJECT: Final = {
    "addTool": (TOOL, ("execute", "handler", "run")),
    "addTools": (TOOL, ("execute", "handler", "run")),
    "addPrompt": (PROMPT, ("load", "get")),
    "addResource": (RESOURCE, ("load", "read")),
    "addResourceTemplate": (RESOURCE, ("load", "read")),
}
_BY_REQUEST: Final = {
    "tools/call": TOOL,
    "CallToolRequestSchema": TOOL,
    "prompts/get": PROMPT,
    "GetPromptRequestSchema": PROMPT,
    "resources/read": RESOURCE,
    "ReadResourceRequestSchema": RESOURCE,
}


_REGISTERED, _CALLBACK = "registered", "callback"
_PRIVATE_MEMBERS: Final = frozenset(
    (
        *("_registeredTools", "_registeredPrompts", "_registeredResources", "_registeredResourceTemplates"),
        *("_requestHandlers", "fallbackRequestHandler"),
    )
)
HANDLER_MEMBERS: Final = (_CALLBACK, "handler", "readCallback", "*")
"""The members of what a registration returns whose assignment replaces the handler."""


class JsRegistration:
    """A function that the server registers as a handler."""

    __slots__ = ("dispatches", "handlers", "kind", "line", "module", "names", "registered", "schemas", "this")

    def __init__(self, kind: str, module: str, line: int) -> None:
        self.kind = kind
        self.module = module
        self.line = line
        self.names: set[str] = set()
        """The names of the tool or prompt, or the URI of the resource; empty if they are not constant."""
        self.handlers: AbstractValue = EMPTY
        self.this: AbstractValue = EMPTY
        self.schemas: AbstractValue = EMPTY
        self.registered: JsObject | None = None
        """The object that the call returned, through which the server can replace the handler."""
        self.dispatches = False
        """Whether the function handles all items of this kind, and selects by name."""


class JsRegistrations(Loading):
    """The calls that register handlers."""

    registrations: dict[tuple[object, ...], JsRegistration]
    unfollowed_updates: dict[JsObject, None]
    """Results of registrations that the server updates with an object that the analysis cannot follow."""
    private_members: dict[str, str]
    """Where the server uses a private member of the SDK that holds handlers, by the name of the member."""

    def get_member(self, value: AbstractValue, name: str | None, line: int) -> AbstractValue:
        """Return the values of a member, and notice the use of an SDK's private members."""
        if name in _PRIVATE_MEMBERS and any(map(_is_of_sdk, value)):
            self.private_members.setdefault(name, f"{self.current.module.name}:{line}")
        return super().get_member(value, name, line)

    def register(
        self, receiver: AbstractValue, name: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue | None:
        """Record a call that registers handlers. Returns the call's result; None if it registers nothing."""
        if name == "update" and arguments:
            return self._update_registered(receiver, arguments[0], node)
        if name not in _BY_METHOD and name not in _BY_OBJECT and name != "setRequestHandler":
            return None
        if not self._may_be_server(receiver, name) or not arguments:
            return None
        if name == "setRequestHandler":
            return self._register_request(arguments, node)
        if name in _BY_OBJECT:
            return self._register_objects(name, arguments, node)
        return self._register_call(name, arguments, node)

    def _may_be_server(self, receiver: AbstractValue, name: str) -> bool:
        """Whether the receiver may be a server of an SDK, and has no method of its own with this name."""
        for item in receiver:
            if isinstance(item, External):
                if get_package(item.root) in SDK or item.root != "global":
                    return True
            elif isinstance(item, JsObject):
                own = self.get_object_member(item, name, 0) - ANY_DATA
                if not any(isinstance(member, JsObject) for member in own):
                    return True
                if name in ("setRequestHandler", "registerTool") and item.cls is not None and not item.bases:
                    return _looks_like_sdk(item.cls.name)
            elif item is DATA:
                return True
        return not receiver

    def _add(self, kind: str, node: JsNode, detail: object) -> JsRegistration:
        key = (kind, self.current, id(node), detail)
        registration = self.registrations.get(key)
        if registration is None:
            registration = self.registrations[key] = JsRegistration(kind, self.current.module.name, node.line)
        return registration

    def _register_call(self, name: str, arguments: Sequence[AbstractValue], node: JsNode) -> AbstractValue | None:
        kind = _BY_METHOD[name]
        handlers = self._find_handlers(arguments[-1])
        if len(arguments) < 2 or not handlers:
            return None
        registration = self._add(kind, node, "")
        registration.handlers |= handlers
        registration.names |= self._read_names(arguments[1] if kind == RESOURCE else arguments[0])
        for argument in arguments[1:-1]:
            registration.schemas |= argument
        result = self.make_object(self.current.frame, id(node), "registered", _REGISTERED)
        registration.registered = result
        return frozenset((result,))

    def _update_registered(self, receiver: AbstractValue, changes: AbstractValue, node: JsNode) -> AbstractValue | None:
        """Record ``update({callback})`` of what a registration returned. Returns None for other objects."""
        registered = [item for item in receiver if isinstance(item, JsObject) and item.label == _REGISTERED]
        for item in registered:
            for change in changes:
                if not isinstance(change, JsObject) or "*" in change.slots or change.prototypes:
                    self.unfollowed_updates[item] = None
                elif _CALLBACK in change.slots:
                    self.set_object_member(item, _CALLBACK, self.get_object_member(change, _CALLBACK, node.line))
        return ANY_DATA if registered else None

    def _find_handlers(self, value: AbstractValue) -> AbstractValue:
        """Return the functions of a handler, which may be an object with methods."""
        callables = frozenset(item for item in value if not isinstance(item, JsText) and item is not DATA)
        direct = list_callables(callables) | frozenset(item for item in callables if isinstance(item, External))
        inside: set[JsItem] = set()
        for item in callables - direct:
            if isinstance(item, JsObject):
                for member in ("createTask", "getTask", "getTaskResult", "handler", "execute"):
                    if member in item.slots:
                        inside |= list_callables(self.get_object_member(item, member, 0))
        return direct | inside

    def _read_names(self, value: AbstractValue) -> set[str]:
        names = {item.text for item in value if isinstance(item, JsText)}
        for item in value:
            if isinstance(item, JsObject) and item.bases:  # a URI template
                for member in self.get_object_member(item, "*arguments", 0):
                    if isinstance(member, JsText):
                        names.add(member.text)
        return names

    def _register_objects(self, name: str, arguments: Sequence[AbstractValue], node: JsNode) -> AbstractValue | None:
        kind, members = _BY_OBJECT[name]
        items = self.list_elements(arguments[0]) if name == "addTools" else arguments[0]
        found = False
        for item in items:
            if not isinstance(item, JsObject):
                continue
            for member in members:
                handlers = list_callables(self.get_object_member(item, member, node.line))
                if not handlers:
                    continue
                found = True
                registration = self._add(kind, node, item)
                registration.handlers |= handlers
                registration.this = frozenset((item,))
                for label in ("name",) if kind != RESOURCE else ("uri", "uriTemplate", "name"):
                    texts = self.get_object_member(item, label, node.line)
                    registration.names |= {text.text for text in texts if isinstance(text, JsText)}
                for label in ("parameters", "inputSchema"):
                    registration.schemas |= self.get_object_member(item, label, node.line)
                break
        return ANY_DATA if found else None

    def _register_request(self, arguments: Sequence[AbstractValue], node: JsNode) -> AbstractValue | None:
        if len(arguments) < 2:
            return None
        kind = self._find_request_kind(arguments[0], node)
        handlers = self._find_handlers(arguments[-1])
        if kind is None:
            return ANY_DATA
        registration = self._add(kind, node, "")
        registration.handlers |= handlers
        registration.dispatches = True
        return ANY_DATA

    def _find_request_kind(self, schema: AbstractValue, node: JsNode) -> str | None:
        for item in schema:
            if isinstance(item, JsText) and item.text in _BY_REQUEST:
                return _BY_REQUEST[item.text]
            if isinstance(item, External) and item.members and item.members[-1] in _BY_REQUEST:
                return _BY_REQUEST[item.members[-1]]
        stated = node.get("arguments")
        if stated is None or not stated.children:
            return None
        name = stated.children[0]
        text = name.fields["property"].text if "property" in name.fields else name.text
        return _BY_REQUEST.get(text.partition("$")[0])


def _is_of_sdk(item: JsItem) -> bool:
    """Whether an item is, or may be an instance of, a class of an SDK that is not part of the analysed source."""
    if isinstance(item, External):
        return get_package(item.root) in SDK
    return isinstance(item, JsObject) and any(get_package(base.root) in SDK for base in item.bases)


def _looks_like_sdk(name: str) -> bool:
    return name.lstrip("_$") in ("McpServer", "Server", "Protocol", "FastMCP") or len(name) <= 3
