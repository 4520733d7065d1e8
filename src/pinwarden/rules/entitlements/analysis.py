"""The entitlements of handlers, from source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from pinwarden.rules.entitlements.engine import Engine
from pinwarden.rules.entitlements.program import Activation
from pinwarden.rules.entitlements.values import (
    KINDS,
    Analysis,
    Entitlements,
    Finding,
    Handler,
    Source,
    Step,
    UnknownReach,
)

MAX_TOLD = 200
"""Findings that are told of one handler; its entitlements are complete all the same."""


def entitlements_of(
    sources: Mapping[str, Source], handlers: Iterable[Handler], packages: Mapping[str, Source] | None = None
) -> Mapping[str, Entitlements]:
    """What each handler can do, by the name of its tool.

    ``sources`` are the server's own modules by their dotted name. ``packages`` are modules of third-party packages to
    look into where the maintained table knows nothing about them; only its ``get`` is used, so it may read lazily.
    """
    return analyse(sources, handlers, packages).handlers


def analyse(
    sources: Mapping[str, Source], handlers: Iterable[Handler], packages: Mapping[str, Source] | None = None
) -> Analysis:
    """As ``entitlements_of``, with what the server does while it is imported."""
    engine = Engine(sources, packages)
    wanted = tuple(handlers)
    begun = engine.follow(wanted)
    at_start = [module.activation for each in wanted if (module := engine.module(each.module)) is not None]
    started = _reached(dict.fromkeys(at_start), set())
    modules = {each for each in started if each.label == "<module>"}
    found: dict[str, Entitlements] = {}
    for handler in wanted:
        found[handler.name] = _told(begun[handler], modules, handler, engine)
    return Analysis(handlers=found, startup=_entitlements(started))


def handlers_in(sources: Mapping[str, Source]) -> tuple[Handler, ...]:
    """The tools that the source registers, with where their code begins."""
    engine = Engine(sources, None)
    engine.discover()
    found: dict[str, Handler] = {}
    dispatching = []
    for each in engine.registrations.values():
        if each.kind == "tool":
            name = each.name or each.qualname.rpartition(".")[2]
            found.setdefault(name, Handler(name=name, module=each.module, function=each.qualname, line=each.line))
        elif each.kind in ("call_tool", "call_request"):
            dispatching.append(each)
    for name in engine.tool_names if dispatching else ():
        each = dispatching[0]
        handler = Handler(name=name, module=each.module, function=each.qualname, line=each.line, case=name)
        found.setdefault(name, handler)
    return tuple(found.values())


def _told(roots: dict[Activation, None], at_start: set[Activation], handler: Handler, engine: Engine) -> Entitlements:
    told = _entitlements(_reached(roots, at_start))
    why = ""
    if not roots:
        why = "the handler was not found in the source"
    elif engine.exhausted:
        why = "the program is too large to be followed to its end"
    if not why:
        return told
    note = UnknownReach(reason=why, path="", line=handler.line, what=handler.function, evidence="", way=())
    return Entitlements(kinds=told.kinds, findings=told.findings, unknown=(note, *told.unknown))


def _reached(roots: dict[Activation, None], skipped: set[Activation]) -> dict[Activation, tuple[Step, ...]]:
    """Everything that can be called from the roots, each with the shortest way to it."""
    ways: dict[Activation, tuple[Step, ...]] = dict.fromkeys(roots, ())
    queue = deque(roots)
    while queue:
        at = queue.popleft()
        way = ways[at]
        for called, line in sorted(at.calls.items(), key=_by_place):
            if called not in ways and called not in skipped:
                step = Step(function=at.label, path=at.module.source.path, line=line)
                ways[called] = (*way, step)
                queue.append(called)
    return ways


def _by_place(call: tuple[Activation, int]) -> tuple[int, str, str]:
    called, line = call
    return line, called.module.name, called.label


def _place(told: Finding | UnknownReach) -> tuple[str, int, str]:
    return told.path, told.line, told.kind if isinstance(told, Finding) else told.reason


def _entitlements(ways: dict[Activation, tuple[Step, ...]]) -> Entitlements:
    findings: dict[tuple[str, str, int], Finding] = {}
    unknown: dict[tuple[str, str, int], UnknownReach] = {}
    for at, way in ways.items():
        module = at.module
        path = module.source.path
        for kind, line, what in at.effects:
            if (kind, path, line) not in findings:
                findings[kind, path, line] = Finding(
                    kind=kind,
                    path=path,
                    line=line,
                    what=what,
                    evidence=module.line(line),
                    way=(*way, Step(function=at.label, path=path, line=line)),
                    third_party=module.third_party,
                )
        for reason, line, what in at.unknown:
            if (reason, path, line) not in unknown:
                unknown[reason, path, line] = UnknownReach(
                    reason=reason,
                    path=path,
                    line=line,
                    what=what,
                    evidence=module.line(line),
                    way=(*way, Step(function=at.label, path=path, line=line)),
                )
    kinds = {each.kind for each in findings.values()}
    return Entitlements(
        kinds=tuple(kind for kind in KINDS if kind in kinds),
        findings=tuple(sorted(findings.values(), key=_place)[:MAX_TOLD]),
        unknown=tuple(sorted(unknown.values(), key=_place)[:MAX_TOLD]),
    )
