"""Derive the entitlements of handlers from their source code."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.contract.entitlements.interpreter.interpreter import AbstractInterpreter
from pinwarden.contract.entitlements.interpreter.program import Activation
from pinwarden.contract.entitlements.values import (
    CODE_EVALUATION,
    FILESYSTEM_WRITE,
    KINDS,
    NATIVE,
    SUBPROCESS,
    Analysis,
    EntitlementFinding,
    Entitlements,
    Handler,
    Source,
    Step,
    UnfollowedCode,
)
from pinwarden.core.record import Record

MAX_REPORTED = 200
"""The maximum number of findings for one handler. The list of its entitlements is always complete."""


_REGISTRATION_KINDS = {
    "prompt": ("prompt", False),
    "resource": ("resource", False),
    "get_prompt": ("prompt", True),
    "read_resource": ("resource", True),
}
"""The kind of handler for each registration method, and whether one function handles all items of that kind."""


def analyse(
    sources: Mapping[str, Source],
    handlers: Iterable[Handler] | None = None,
    packages: Mapping[str, Source] | None = None,
) -> Analysis:
    """Find the entitlements of each handler, and of the code that runs when the server is imported.

    ``sources`` are the server's own modules by their dotted name. ``handlers`` defaults to the handlers that the source
    registers. ``packages`` has the modules of third-party packages, which are analysed if the catalogue does not cover
    them. Only ``packages.get`` is called, so the mapping may read files on demand.
    """
    interpreter = AbstractInterpreter(sources, packages)
    selected = _list_registered_handlers(interpreter) if handlers is None else tuple(handlers)
    roots = interpreter.follow(selected)
    at_start = [
        module.activation for handler in selected if (module := interpreter.load_module(handler.module)) is not None
    ]
    started = find_reachable(dict.fromkeys(at_start), set())
    modules = {activation for activation in started if activation.label == "<module>"}
    by_kind: dict[str, dict[str, list[Handler]]] = {"tool": {}, "prompt": {}, "resource": {}}
    for handler in selected:
        by_kind[handler.kind].setdefault(handler.name, []).append(handler)
    by_kind_and_name = {
        kind: {
            name: _combine_entitlements(same_name, roots, modules, interpreter) for name, same_name in by_name.items()
        }
        for kind, by_name in by_kind.items()
    }
    analysis = Analysis(
        handlers=by_kind_and_name["tool"],
        prompts=by_kind_and_name["prompt"],
        resources=by_kind_and_name["resource"],
        startup=collect_entitlements(started),
    )
    interpreter.clear()
    return analysis


def find_handlers(sources: Mapping[str, Source]) -> tuple[Handler, ...]:
    """Find the functions that the source registers as tools, prompts and resources.

    A name can occur more than once. A function that handles all prompts or all resources has the name ``*``.
    """
    interpreter = AbstractInterpreter(sources, None)
    handlers = _list_registered_handlers(interpreter)
    interpreter.clear()
    return handlers


def _list_registered_handlers(interpreter: AbstractInterpreter) -> tuple[Handler, ...]:
    interpreter.discover()
    handlers: dict[Handler, None] = {}
    for registration in interpreter.registrations.values():
        if registration.kind == "tool":
            name = registration.name or registration.qualname.rpartition(".")[2]
            handlers[
                Handler(name=name, module=registration.module, function=registration.qualname, line=registration.line)
            ] = None
        elif registration.kind in ("call_tool", "call_request"):
            for name in interpreter.tool_names:
                handler = Handler(
                    name=name,
                    module=registration.module,
                    function=registration.qualname,
                    line=registration.line,
                    case=name,
                )
                handlers[handler] = None
        elif registration.kind in _REGISTRATION_KINDS:
            kind, serves_all = _REGISTRATION_KINDS[registration.kind]
            name = "*" if serves_all else registration.name or registration.qualname.rpartition(".")[2]
            handlers[
                Handler(
                    name=name,
                    module=registration.module,
                    function=registration.qualname,
                    line=registration.line,
                    kind=kind,
                )
            ] = None
    return tuple(handlers)


def _combine_entitlements(
    handlers: list[Handler],
    roots: Mapping[Handler, dict[Activation, None]],
    at_start: set[Activation],
    interpreter: AbstractInterpreter,
) -> Entitlements:
    """Return the entitlements of all handlers that are registered under one name."""
    first_activations = {activation: None for handler in handlers for activation in roots[handler]}
    entitlements = collect_entitlements(find_reachable(first_activations, at_start))
    notes = [
        _build_unfollowed_code("the handler was not found in the source", handler)
        for handler in handlers
        if not roots[handler]
    ]
    if interpreter.exhausted:
        notes.append(_build_unfollowed_code("the program is too large to be followed to its end", handlers[0]))
    return Entitlements(
        kinds=entitlements.kinds, findings=entitlements.findings, unknown=(*notes, *entitlements.unknown)
    )


def _build_unfollowed_code(reason: str, handler: Handler) -> UnfollowedCode:
    return UnfollowedCode(reason=reason, path="", line=handler.line, what=handler.function, evidence="", call_path=())


def find_reachable(roots: dict[Any, None], skipped: set[Any]) -> dict[Any, tuple[Step, ...]]:
    """Return the activations reachable from the roots without ``skipped``, each with its shortest call path."""
    call_paths: dict[Any, tuple[Step, ...]] = dict.fromkeys(roots, ())
    queue = deque(roots)
    while queue:
        caller = queue.popleft()
        call_path = call_paths[caller]
        for called, line in sorted(caller.calls.items(), key=_call_sort_key):
            if called not in call_paths and called not in skipped:
                step = Step(function=caller.label, path=caller.module.source.path, line=line)
                call_paths[called] = (*call_path, step)
                queue.append(called)
    return call_paths


def _call_sort_key(call: tuple[Activation, int]) -> tuple[int, str, str]:
    called, line = call
    return line, called.module.name, called.label


def _finding_sort_key(finding: EntitlementFinding | UnfollowedCode) -> tuple[str, int, str]:
    return finding.path, finding.line, finding.kind if isinstance(finding, EntitlementFinding) else finding.reason


def collect_entitlements(call_paths: dict[Any, tuple[Step, ...]]) -> Entitlements:
    """Return the entitlements of activations of any language, each with its call path."""
    findings: dict[tuple[str, str, int], EntitlementFinding] = {}
    unknown: dict[tuple[str, str, int], UnfollowedCode] = {}
    for activation, call_path in call_paths.items():
        module = activation.module
        path = module.source.path
        for kind, line, what in activation.effects:
            if (kind, path, line) not in findings:
                findings[kind, path, line] = EntitlementFinding(
                    kind=kind,
                    path=path,
                    line=line,
                    what=what,
                    evidence=module.get_line(line),
                    call_path=(*call_path, Step(function=activation.label, path=path, line=line)),
                    third_party=module.third_party,
                )
        for reason, line, what in activation.unknown:
            if (reason, path, line) not in unknown:
                unknown[reason, path, line] = UnfollowedCode(
                    reason=reason,
                    path=path,
                    line=line,
                    what=what,
                    evidence=module.get_line(line),
                    call_path=(*call_path, Step(function=activation.label, path=path, line=line)),
                )
    kinds = {finding.kind for finding in findings.values()}
    return Entitlements(
        kinds=tuple(kind for kind in KINDS if kind in kinds),
        findings=tuple(sorted(findings.values(), key=_finding_sort_key)[:MAX_REPORTED]),
        unknown=tuple(sorted(unknown.values(), key=_finding_sort_key)[:MAX_REPORTED]),
    )


READ_ONLY_BROKEN = "read_only_contradicted"
GAINED = "entitlement_gained"

_NOT_READ_ONLY = (FILESYSTEM_WRITE, SUBPROCESS, CODE_EVALUATION, NATIVE)


class Contradiction(Record):
    """Code that contradicts a tool's annotation or its locked entitlements."""

    code: str
    tool: str
    kind: str
    message: str
    findings: tuple[EntitlementFinding, ...]


def find_contradictions(
    tool: str, annotations: Mapping[str, object], entitlements: Entitlements
) -> tuple[Contradiction, ...]:
    """Return the entitlements that contradict ``readOnlyHint: true`` in the tool's annotations."""
    if annotations.get("readOnlyHint") is not True:
        return ()
    return tuple(
        _build_contradiction(
            READ_ONLY_BROKEN, tool, kind, f"{tool} declares readOnlyHint, but its code has {kind}", entitlements
        )
        for kind in _NOT_READ_ONLY
        if kind in entitlements.kinds
    )


def find_new_entitlements(tool: str, locked: tuple[str, ...], entitlements: Entitlements) -> tuple[Contradiction, ...]:
    """Return the entitlements that the code has but the lock does not record."""
    return tuple(
        _build_contradiction(GAINED, tool, kind, f"{tool} now has {kind}, which is not in the lock", entitlements)
        for kind in KINDS
        if kind in entitlements.kinds and kind not in locked
    )


def _build_contradiction(code: str, tool: str, kind: str, message: str, entitlements: Entitlements) -> Contradiction:
    findings = tuple(finding for finding in entitlements.findings if finding.kind == kind)
    return Contradiction(code=code, tool=tool, kind=kind, message=message, findings=findings)
