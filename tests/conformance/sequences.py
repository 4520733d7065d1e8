"""The drift cases that are sequences, as plays: what a server shows in turn, page by page, and what may pass of it.

A sequence is a recording. Its list answers are replayed with the cursors that they came with, for every kind, and a
client looks after each round: what is the same as what was approved passes at every moment, what the comparison blocks
is blocked and refused at every moment, and what the case says about the whole has to come of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pytest

from pinwarden.gateway.session.lists import read_server_info
from pinwarden.gateway.session.requests import template_matches
from pinwarden.surface.drift.changes import Change
from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.protocol import CAPABILITY
from pinwarden.surface.surface import ITEM_KINDS, TOOL, Item, ItemKind, Surface, surface_from_listing
from tests.conformance.vectors import cases, vectors_dir
from tests.servers.turning import Turning
from tests.support.waiting import poll

Case = dict[str, Any]
Page = tuple[str | None, dict[str, Any]]
Named = tuple[str, str]
"""An entity and what identifies it."""

LISTS = {kind.method: kind for kind in ITEM_KINDS}
OPENINGS = ("initialize", "server/discover")
USES = {
    "tool": "tools/call",
    "prompt": "prompts/get",
    "resource": "resources/read",
    "resourceTemplate": "resources/read",
}


def sequences(file: str = "*.jsonl") -> list[Any]:
    """The cases that are sequences, as parameters of a test."""
    folder = vectors_dir() / "attacks" / "own"
    lines = [line for path in sorted(folder.glob(file)) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [json.loads(line) for line in lines if line.strip()]
    return cases([row for row in rows if "sequence" in row])


def sequences_by_wire(wires: Sequence[str]) -> list[Any]:
    """The given cases on every wire; of our own further ones each on one, in turn."""
    given = sequences("drift-cases.jsonl")
    further = [case for case in sequences() if case.id not in {each.id for each in given}]
    pairs = [(case, wire) for case in given for wire in wires]
    pairs += [(case, wires[number % len(wires)]) for number, case in enumerate(further)]
    return [pytest.param(*case.values, wire, id=f"{case.id}-{wire}") for case, wire in pairs]


@dataclass(slots=True)
class _Act:
    """What the server sends between two changes."""

    notices: list[str] = field(default_factory=list)
    opening: dict[str, Any] | None = None
    rounds: dict[str, list[Page]] = field(default_factory=dict)
    uses: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)

    @property
    def is_begun(self) -> bool:
        return bool(self.opening or self.rounds or self.uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the server shows for a while."""

    script: dict[str, Any]
    """The state of the turning server."""
    surface: Surface
    reopened: bool
    """Whether the server's identity changes, which a client sees only in a new session."""
    uses: tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A sequence with a beginning: the first state is what was approved."""

    states: tuple[State, ...]
    kinds: tuple[ItemKind, ...]

    @property
    def approved(self) -> Surface:
        return self.states[0].surface

    @property
    def script(self) -> dict[str, Any]:
        """For the turning server."""
        return {"states": [state.script for state in self.states]}


class Face(Protocol):
    """A client of a gateway with the server of a play behind it."""

    def open(self, place: int) -> dict[str, Any]:
        """Begin a conversation with the server in this state; the answer that says who the server is."""

    def turn(self) -> None:
        """Let the server turn to its next state, and tell what it tells then."""

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The message that answers a request."""


def play_of(case: Case) -> Play:
    """What the recorded server shows in turn."""
    acts = _acts(case["sequence"])
    changed = {name for _, name, _ in case["expect"]["changed"]}
    if len(acts) == 1:  # it was asked only once: the lock was written before that
        acts.insert(0, _Act(opening=acts[0].opening, rounds=acts[0].rounds))
    openings = _openings(acts)
    offered = openings[0].get("capabilities")
    methods = [
        method
        for method, kind in LISTS.items()
        if any(method in act.rounds for act in acts) or (kind is TOOL and _offers(offered, kind))
    ]
    lists = {method: _told(method, acts, changed) for method in methods}
    for method in methods:
        if offered is not None and not _offers(offered, LISTS[method]):
            lists[method][0] = _nothing(method)
    states = []
    for number, act in enumerate(acts):
        script: dict[str, Any] = {"pages": {method: lists[method][number] for method in methods}}
        script["announce"] = act.notices
        script["answers"] = act.answers
        if openings[number]:
            script["server"] = openings[number]
        reopened = number == 0 or openings[number] != openings[number - 1]
        states.append(State(script=script, surface=_surface(script), reopened=reopened, uses=tuple(act.uses)))
    return Play(states=tuple(states), kinds=tuple(LISTS[method] for method in methods))


def _offers(capabilities: Any, kind: ItemKind) -> bool:
    return isinstance(capabilities, dict) and CAPABILITY[kind] in capabilities


def _acts(sequence: list[dict[str, Any]]) -> list[_Act]:
    """A notice begins an act, and so does an answer to a question that was answered in this one."""
    acts = [_Act()]
    for step in sequence:
        notice, call = step.get("notify", step.get("notification")), str(step.get("call"))
        cursor, result = step.get("cursor"), step.get("result")
        again = (call in LISTS and cursor is None and call in acts[-1].rounds) or (
            call in OPENINGS and acts[-1].opening is not None
        )
        if (notice is not None and acts[-1].is_begun) or (again and isinstance(result, dict)):
            acts.append(_Act())
        act = acts[-1]
        if notice is not None:
            act.notices.append(notice)
        elif call in OPENINGS and isinstance(result, dict):
            act.opening = result
        elif call in LISTS and isinstance(result, dict):
            act.rounds.setdefault(call, []).append((cursor, result))
        elif call in USES.values():
            params = step.get("params", {name: step[name] for name in ("name", "uri", "arguments") if name in step})
            act.uses.append((call, params))
            if isinstance(result, dict):
                act.answers[call] = json.dumps(result)
    return acts


def _told(method: str, acts: list[_Act], changed: set[str]) -> list[list[Page]]:
    """The pages of one list in each act. A page that appears only later was there from the start."""
    given = [act.rounds.get(method) for act in acts]
    if not any(given):
        return [_nothing(method)] * len(acts)
    rounds = [each for number, each in enumerate(given) if each and (number == 0 or each is not given[number - 1])]
    pages = _linked(rounds[0])
    states = []
    for each in given:
        if each is not None and each[0][0] is not None:  # the rest of a list that a notice interrupted
            later = {cursor for cursor, _ in each}
            pages = _linked([*(page for page in pages if page[0] not in later), *each])
        elif each is not None:
            pages = _linked(each)
        states.append(pages)
    if len(rounds) == 1:
        kind = LISTS[method]
        first, *others = (page for _, page in states[0])
        items = [item for page in others for item in page[kind.member] if _called(kind, item).isdisjoint(changed)]
        whole = {name: value for name, value in first.items() if name != "nextCursor"}
        states[0] = [(None, {**whole, kind.member: [*first[kind.member], *items]})]
    return states


def _nothing(method: str) -> list[Page]:
    return [(None, {LISTS[method].member: []})]


def _called(kind: ItemKind, item: dict[str, Any]) -> set[Any]:
    return {item.get("name"), item.get(kind.key)}


def _linked(pages: list[Page]) -> list[Page]:
    """A page that was asked for was led to, also where the recording leaves that out."""
    followers: list[Page | None] = [*pages[1:], None]
    return [
        (cursor, page if follower is None else {"nextCursor": follower[0], **page})
        for (cursor, page), follower in zip(pages, followers, strict=True)
    ]


def _openings(acts: list[_Act]) -> list[dict[str, Any]]:
    known = next((act.opening for act in acts if act.opening is not None), {})
    states = []
    for act in acts:
        known = known if act.opening is None else act.opening
        states.append(read_server_info(known))
    return states


def pages_of(script: dict[str, Any], method: str) -> Iterator[dict[str, Any]]:
    """The complete list, read by following the cursors."""
    server, cursor = Turning({"states": [script]}), None
    for _ in script["pages"][method]:
        page = server._recorded(method, cursor)
        yield page
        cursor = page.get("nextCursor")
        if cursor is None:
            return


def _surface(script: dict[str, Any]) -> Surface:
    lists = {
        LISTS[method].member: [item for page in pages_of(script, method) for item in page[LISTS[method].member]]
        for method in script["pages"]
    }
    return surface_from_listing({**Turning({"states": [script]})._server(), **lists})


# What has to come of it


@dataclass(frozen=True, slots=True)
class Expected:
    """What may pass of one state."""

    shown: dict[ItemKind, list[Item]]
    blocked: frozenset[Named]
    server: frozenset[str]
    """The members of the opening answer that are blocked."""
    barred: frozenset[ItemKind]
    """The lists that need an unapproved capability: they are refused completely."""


def expected(case: Case, play: Play, state: State) -> Expected:
    """What is as approved passes; of the rest, what the comparison does not block, and nothing may block if so said."""
    changes = compare(play.approved, state.surface)
    shown: dict[ItemKind, list[Item]] = {}
    blocked: set[Named] = set()
    barred = frozenset(kind for kind in play.kinds if not _offers(_capabilities(play.approved), kind))
    for kind in play.kinds:
        if kind in barred:
            continue
        known = {item.key: item.digest for item in play.approved.items_of_kind(kind)}
        items = state.surface.items_of_kind(kind)
        keys = [item.key for item in items]
        gone = set()
        for item in items:
            same = item.digest is not None and known.get(item.key) == item.digest and keys.count(item.key) == 1
            if not same and (item.digest is None or _blocked(changes, kind.entity, item.name)):
                gone.add(item.key)
        shown[kind] = [item for item in items if item.key not in gone]
        blocked |= {(kind.entity, key) for key in gone}
    now = state.surface.server or {}
    server = {
        name for name in now if blocked_by_default([c for c in changes if (c.entity, c.field) == ("server", name)])
    }
    if case["expect"]["must_block_by_default"] is False:
        assert (blocked, server) == (set(), set())
    return Expected(shown, frozenset(blocked), frozenset(server), barred)


def _capabilities(surface: Surface) -> Any:
    return (surface.server or {}).get("capabilities")


def _blocked(changes: tuple[Change, ...], entity: str, name: str) -> bool:
    return blocked_by_default([change for change in changes if (change.entity, change.name) == (entity, name)])


def perform(case: Case, play: Play, face: Face) -> set[Named]:
    """Play it through a gateway, look after each round, and give everything that has to be in the log as blocked."""
    blocked: set[Named] = set()
    gone: set[Named] = set()
    for number, state in enumerate(play.states):
        want = expected(case, play, state)
        blocked |= want.blocked | {("server", name) for name in want.server}
        if state.reopened:
            opening = face.open(number)
            if "serverInfo" in want.server:
                assert opening["error"]["data"]["pinwarden"]["name"] == "serverInfo"
                continue
            _assert_opening(opening["result"], state, want)
        else:
            face.turn()
        for kind in play.kinds:
            if kind not in want.barred:
                _assert_listed(face, kind, play.approved, want)
            elif _offers(_capabilities(state.surface), kind):
                assert face.ask(kind.method, {})["error"]["data"]["pinwarden"]["name"] == "capabilities"
        for kind in play.kinds:
            for item in state.surface.items_of_kind(kind):
                _assert_used(face, item, want)
        for method, params in state.uses:
            face.ask(method, params)
        gone |= _use_what_is_gone(face, play, state)
    if case["expect"]["must_block_by_default"]:
        assert _names(play, blocked) & {name for place in case["expect"]["changed"] for name in place[1:]}
    return blocked | gone


def _names(play: Play, named: set[Named]) -> set[str]:
    """What these are called: a resource goes by its name or by its address, what the server says by the member."""
    items = [item for state in play.states for kind in play.kinds for item in state.surface.items_of_kind(kind)]
    names = {item.name for item in items if (item.kind.entity, item.key) in named}
    return names | {key for _, key in named}


def _assert_opening(result: dict[str, Any], state: State, want: Expected) -> None:
    now = state.surface.server or {}
    passed = read_server_info(result)
    assert {name for name in now if passed.get(name) != now[name]} == want.server
    assert "instructions" not in want.server or "instructions" not in passed


def _listed(face: Face, kind: ItemKind) -> list[Item]:
    items: list[Item] = []
    params: dict[str, Any] = {}
    seen: set[Any] = set()
    while True:
        result = face.ask(kind.method, params)["result"]
        items += [Item.from_value(kind, value) for value in result[kind.member]]
        cursor = result.get("nextCursor")
        if cursor is None:
            return items
        assert cursor not in seen, "the list has no end"
        seen.add(cursor)
        params = {"cursor": cursor}


def _assert_listed(face: Face, kind: ItemKind, approved: Surface, want: Expected) -> None:
    """What is not approved is never seen. The approved copy of what is now there twice may be, in the first pages.

    A page is judged by the list that the gateway knows, which may be as old as the policy says. If all of a page is in
    it as approved, it passes, though a later page may make one of its names doubtful. Then that page is what the
    gateway learns it from: the second copy does not pass, nor does any call of that name from then on, nor the first
    copy when it is listed again.
    """
    right = [item.digest for item in want.shown[kind]]
    known = {item.key: item.digest for item in approved.items_of_kind(kind)}

    def is_right() -> bool:
        items = _listed(face, kind)
        leaked = [item.value for item in items if item.digest not in right and item.digest != known.get(item.key)]
        assert leaked == []
        return [item.digest for item in items] == right

    poll(is_right)


def _assert_used(face: Face, item: Item, want: Expected) -> None:
    """What is shown can be used, and what is blocked is refused by the gateway."""
    params = _params(item)
    if item.kind in want.barred:
        assert "error" in face.ask(USES[item.kind.entity], params)
        return
    blocked = (item.kind.entity, item.key) in want.blocked
    templates = [key for entity, key in want.blocked if entity == "resourceTemplate"]
    if not blocked and any(template_matches(template, params.get("uri", "")) for template in templates):
        return  # its address may be one of a template that is blocked
    answer = face.ask(USES[item.kind.entity], params)
    if blocked:
        assert answer["error"]["data"]["pinwarden"]["name"] == next(iter(params.values()))
    else:
        assert "result" in answer


def _use_what_is_gone(face: Face, play: Play, state: State) -> set[Named]:
    """A tool or prompt that the server took away is refused, once the gateway knows that it is gone."""
    refused = set()
    for kind in play.kinds:
        if kind.entity not in ("tool", "prompt"):
            continue
        there = {item.key for item in state.surface.items_of_kind(kind)}
        for item in play.approved.items_of_kind(kind):
            if item.key in there:
                continue
            poll(partial(_is_refused, face, item))
            refused.add((kind.entity, item.key))
    return refused


def _is_refused(face: Face, item: Item) -> bool:
    return "error" in face.ask(USES[item.kind.entity], _params(item))


def _params(item: Item) -> dict[str, Any]:
    if item.kind.entity in ("tool", "prompt"):
        return {"name": item.key}
    return {"uri": re.sub(r"\{[^{}]*\}", "x", item.key)}
