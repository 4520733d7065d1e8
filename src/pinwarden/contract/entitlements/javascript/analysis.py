"""Derive the entitlements of the handlers of a JavaScript or TypeScript server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pinwarden.contract.entitlements.analysis import collect_entitlements, find_reachable
from pinwarden.contract.entitlements.javascript.engine import TooLargeError
from pinwarden.contract.entitlements.javascript.loading import UNREADABLE
from pinwarden.contract.entitlements.javascript.registrations import (
    HANDLER_MEMBERS,
    PROMPT,
    RESOURCE,
    TOOL,
    JsRegistration,
    JsRegistrations,
)
from pinwarden.contract.entitlements.javascript.syntax import JsNode
from pinwarden.contract.entitlements.javascript.values import (
    ANY_DATA,
    AbstractValue,
    Frame,
    JsActivation,
    JsObject,
    JsText,
)
from pinwarden.contract.entitlements.values import Analysis, Entitlements, UnfollowedCode

NOT_FOUND = "the handler was not found in the source"
UPDATED = "the handler is updated with an object that cannot be followed"
REPLACED = "the server uses a private member of the SDK, through which handlers can be replaced"
TOO_LARGE = "the program is too large to be followed to its end"


class _Interpreter(JsRegistrations):
    def __init__(self, files: Mapping[str, str], *, scan_packages: bool) -> None:
        super().__init__(files, scan_packages=scan_packages)
        self.registrations: dict[tuple[object, ...], JsRegistration] = {}
        self.unfollowed_updates: dict[JsObject, None] = {}
        self.private_members: dict[str, str] = {}


def analyse_javascript(
    files: Mapping[str, str],
    entries: Iterable[str],
    names: Mapping[str, Iterable[str]],
    *,
    scan_packages: bool = False,
) -> Analysis:
    """Find the entitlements of each handler, and of the code that runs when the server starts.

    ``files`` has the text of each file by its path from the server's folder. It may read files on demand, and raise
    ``UnreadableSourceError``. ``entries`` are the files that the server is started with. ``names`` are the names of the
    server's tools and prompts and the URIs of its resources, by ``tool``, ``prompt`` and ``resource``. With
    ``scan_packages``, packages in ``node_modules`` that the catalogue does not cover are analysed too, but not their
    dependencies.
    """
    wanted = {kind: sorted(set(names.get(kind, ()))) for kind in (TOOL, PROMPT, RESOURCE)}
    interpreter = _Interpreter(files, scan_packages=scan_packages)
    interpreter.tool_names = frozenset(name for kind in wanted.values() for name in kind)
    roots: dict[tuple[str, str], dict[JsActivation, None]] = {}
    modules = [interpreter.open_module(path, third_party=False) for path in entries]
    try:
        for module in modules:
            interpreter.run(module.activation)
        interpreter.drain()
        _follow_handlers(interpreter, wanted, roots)
    except (TooLargeError, RecursionError):
        interpreter.exhausted = True
    started = find_reachable({module.activation: None for module in modules}, set())
    at_start = {activation for activation in started if activation.label == "<module>"}
    by_kind = {
        kind: {name: _combine(name, roots.get((kind, name), {}), at_start, interpreter) for name in wanted[kind]}
        for kind in wanted
    }
    return Analysis(
        handlers=by_kind[TOOL],
        prompts=by_kind[PROMPT],
        resources=by_kind[RESOURCE],
        startup=collect_entitlements(started),
    )


def _follow_handlers(
    interpreter: _Interpreter, wanted: Mapping[str, list[str]], roots: dict[tuple[str, str], dict[JsActivation, None]]
) -> None:
    """Follow each handler for each name, until handlers register no further ones."""
    done = 0
    while done != len(interpreter.registrations):
        done = len(interpreter.registrations)
        for registration in list(interpreter.registrations.values()):
            for name in _select_names(registration, wanted[registration.kind], interpreter):
                root = _start_handler(interpreter, registration, name)
                roots.setdefault((registration.kind, name), {})[root] = None
            _start_handler(interpreter, registration, None)  # tools without a known name may leave code for the others
        interpreter.drain()


def _select_names(registration: JsRegistration, wanted: list[str], interpreter: _Interpreter) -> list[str]:
    if registration.dispatches:
        return wanted
    if registration.names:
        return [name for name in wanted if name in registration.names]
    registered = {
        name for other in interpreter.registrations.values() if other.kind == registration.kind for name in other.names
    }
    return [name for name in wanted if name not in registered]


def _start_handler(interpreter: _Interpreter, registration: JsRegistration, name: str | None) -> JsActivation:
    """Return an activation that calls the handler as the SDK does."""
    key = ("handler", registration.kind, name, registration.module, registration.line, id(registration))
    root = interpreter.activations.get(key)
    if root is None:
        module = interpreter.modules[registration.module]
        root = _Root(name, registration, interpreter, Frame(module, module.frame))
        interpreter.activations[key] = root
    interpreter.enqueue(root)
    return root


class _Root(JsActivation):
    """A call of a handler by the SDK."""

    __slots__ = ("interpreter", "name", "registration")

    def __init__(self, name: str | None, registration: JsRegistration, interpreter: _Interpreter, frame: Frame) -> None:
        super().__init__(f"handler of {name or registration.kind}", frame.module, frame)
        self.name = name
        self.registration = registration
        self.interpreter = interpreter

    def follow(self) -> None:
        """Call the handler."""
        node = JsNode("call_expression", self.registration.line, "")
        self.interpreter.call_schema(self.registration.schemas, node)
        request = self._build_request()
        arguments = (request, ANY_DATA) if self.registration.dispatches else (ANY_DATA, ANY_DATA, ANY_DATA)
        self.interpreter.call_value(self.registration.handlers, self.registration.this, arguments, node)
        registered = self.registration.registered
        if registered is not None:
            self.interpreter.read(registered.keys)  # follow the handler again when it is replaced
            for member in [member for member in HANDLER_MEMBERS if member in registered.slots]:
                replaced = self.interpreter.read(registered.slots[member])
                self.interpreter.call_value(replaced, frozenset((registered,)), arguments, node)

    def _build_request(self) -> AbstractValue:
        member = "uri" if self.registration.kind == RESOURCE else "name"
        parameters = self.interpreter.make_object(self.frame, 0, "params")
        request = self.interpreter.make_object(self.frame, 0, "request")
        name: AbstractValue = ANY_DATA if self.name is None else frozenset((JsText(self.name),))
        self.interpreter.set_object_member(parameters, member, name)
        self.interpreter.set_object_member(parameters, "arguments", ANY_DATA)
        self.interpreter.set_object_member(request, "params", frozenset((parameters,)))
        return frozenset((request,))


def _combine(
    name: str, roots: dict[JsActivation, None], at_start: set[JsActivation], interpreter: _Interpreter
) -> Entitlements:
    entitlements = collect_entitlements(find_reachable(roots, at_start))
    notes = []
    if not roots:
        notes.append(_build_note(NOT_FOUND, name))
    objects = {root.registration.registered for root in roots if isinstance(root, _Root)}
    if not objects.isdisjoint(interpreter.unfollowed_updates):
        notes.append(_build_note(UPDATED, name))
    notes += [
        _build_note(REPLACED, f"{member} ({place})") for member, place in sorted(interpreter.private_members.items())
    ]
    if interpreter.exhausted:
        notes.append(_build_note(TOO_LARGE, name))
    # Code of a module that cannot be read may be called from anywhere.
    notes += [_build_note(UNREADABLE, f"{path}: {problem}") for path, problem in sorted(interpreter.unreadable.items())]
    return Entitlements(
        kinds=entitlements.kinds, findings=entitlements.findings, unknown=(*notes, *entitlements.unknown)
    )


def _build_note(reason: str, what: str) -> UnfollowedCode:
    return UnfollowedCode(reason=reason, path="", line=0, what=what, evidence="", call_path=())
