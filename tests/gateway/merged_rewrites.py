"""Computes the client's side of the merged endpoint from the sides of the servers behind it.

The rewrites are the rows of ``docs/reference/gateway-rewrites.md`` that begin with ``merged``, implemented here
independently of the gateway's code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pinwarden import __version__
from tests.gateway.json_text import added, compact, elements, members, place, replaced
from tests.gateway.published_servers import OWN
from tests.gateway.rewrites import MERGED, SharedIds, Side, difference_of_streams

META = "io.modelcontextprotocol/"
NEWEST = "2026-07-28"
OPENINGS = frozenset({"initialize", "server/discover"})
LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
PATHS = {
    "tools/call": ("params", "name"),
    "prompts/get": ("params", "name"),
    "resources/read": ("params", "uri"),
    "resources/subscribe": ("params", "uri"),
    "resources/unsubscribe": ("params", "uri"),
}
ANSWERED = OPENINGS | LISTS.keys() | {"ping", "logging/setLevel", "notifications/initialized"}
"""Messages that the gateway answers itself or does not forward."""
_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_NONSENSE = (ValueError, KeyError, IndexError, AssertionError, AttributeError, StopIteration)
_UNHEARD = "the client has no stream open"
_FRESH = b'"resultType":"complete","ttlMs":0,"cacheScope":"private"'


def judge(servers: dict[str, Side], client: Side) -> str:
    """Describe how the sides differ from the expected ones; empty if they do not."""
    try:
        expected = Expected(servers, client)
        for slug, sent in expected.relayed.items():
            said = difference_of_streams([expected.up[slug]], [[message] for message in sent], set())
            if said:
                return f"to {slug}: {said}"
    except _NONSENSE as err:
        return f"no such conversation: {err!r}"
    return judge_down(expected, client)


def judge_down(expected: Expected, client: Side) -> str:
    """Describe how the client's messages differ from the expected ones; empty if they do not."""
    try:
        got = [expected.with_own_id(frame) for stream in client.down for frame in stream]
    except _NONSENSE as err:
        return f"no such message: {err!r}"
    return difference_of_streams(
        [expected.down], [[message] for message in got if not expected.is_notice(message)], set()
    )


class Expected:
    """The expected messages on all sides."""

    def __init__(self, servers: dict[str, Side], client: Side) -> None:
        self.rewrites: set[str] = set()
        self._slugs = sorted(servers)
        self._client_requests = {message["id"]: message for message in map(json.loads, client.up) if "id" in message}
        opening = next(request for request in self._client_requests.values() if request.get("method") in OPENINGS)
        self._modern = opening["method"] == "server/discover"
        self._about = self._opened(servers)
        self._info = (
            opening["params"]["_meta"][f"{META}clientInfo"] if self._modern else opening["params"]["clientInfo"]
        )
        self._unheard: set[tuple[str, Any]] = set()
        for slug, side in servers.items():
            for message in map(json.loads, side.up):
                if message.get("error", {}).get("message") == _UNHEARD:
                    self._unheard.add((slug, message["id"]))
        self.up: dict[str, list[bytes]] = {slug: [] for slug in servers}
        for frame in client.up:
            self._pass_up(frame)
        shared = {slug: SharedIds(side, self.up[slug], OPENINGS | LISTS.keys()) for slug, side in servers.items()}
        servers = {slug: ids.side for slug, ids in shared.items()}
        self.rewrites.update(*(ids.rewrites for ids in shared.values()))
        self.relayed = {slug: [frame for frame in side.up if not self._is_own(frame)] for slug, side in servers.items()}
        """Messages to servers without the gateway's own requests."""
        self._notices: set[bytes] = set()
        """Notifications that may be missing because the client had no stream open yet."""
        self.down = [*self._own_answers(servers, client)]
        for slug, side in servers.items():
            self.down += [kept for stream in side.down for frame in stream if (kept := self._passed_down(slug, frame))]

    def _opened(self, servers: dict[str, Side]) -> dict[str, tuple[bool, dict[str, Any]]]:
        """Return by server whether it uses the newest revision, and its description of itself."""
        about: dict[str, tuple[bool, dict[str, Any]]] = {}
        for slug, side in servers.items():
            for message in (json.loads(frame) for stream in side.down for frame in stream):
                result = message.get("result", {})
                if "supportedVersions" in result or "protocolVersion" in result:
                    about.setdefault(slug, ("supportedVersions" in result, result))
        return about

    # From the client

    def _is_own(self, frame: bytes) -> bool:
        message = json.loads(frame)
        request_id = message.get("id", message.get("params", {}).get("requestId"))
        if str(request_id).startswith((OWN, MERGED)):
            self.rewrites.add("own-requests")
            return True
        if message.get("method") == "notifications/cancelled" and self._modern:
            assert message["params"].keys() == {"requestId"}
            self.rewrites.add("hang-up")
            return True
        return frame == _INITIALIZED or message.get("error", {}).get("message") == _UNHEARD

    def _pass_up(self, frame: bytes) -> None:
        message = json.loads(frame)
        method = message.get("method")
        if method is None:
            slug, own = _server_and_id(message["id"])
            self.up[slug].append(replaced(frame, ("id",), own))
        elif method in ANSWERED:
            return
        elif method == "notifications/cancelled":
            slug, _ = self._target(self._client_requests[message["params"]["requestId"]])
            self.up[slug].append(frame)
        elif "id" not in message:
            for slug, (modern, _) in self._about.items():
                if not modern:
                    self.up[slug].append(frame)
        else:
            slug, own = self._target(message)
            frame = replaced(frame, _path(message), own)
            self.rewrites.add("merged-names")
            if self._about[slug][0] and not self._modern:
                self.rewrites.add("merged-eras")
                frame = self._with_meta(frame, message)
            elif self._modern and not self._about[slug][0]:
                self.rewrites.add("merged-eras")
                frame = _without_meta(frame, message)
            self.up[slug].append(frame)

    def _target(self, message: Any) -> tuple[str, str]:
        path = _path(message)
        name: Any = message
        for member in path:
            name = name[member]
        slug, _, own = name.partition("__" if path[-1] == "name" else "+")
        return slug, own

    def _with_meta(self, frame: bytes, message: Any) -> bytes:
        meta = {f"{META}protocolVersion": NEWEST, f"{META}clientInfo": self._info, f"{META}clientCapabilities": {}}
        if "_meta" in message["params"]:
            return replaced(frame, ("params", "_meta"), {**message["params"]["_meta"], **meta})
        return added(frame, "params", b'"_meta":' + compact(meta))

    # From the servers

    def _passed_down(self, slug: str, frame: bytes) -> bytes:
        message = json.loads(frame)
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            if str(request_id).startswith((OWN, MERGED)):
                return b""
            if self._modern and not self._about[slug][0] and "result" in message:
                self.rewrites.add("merged-eras")
                read = self._client_requests.get(request_id, {}).get("method") == "resources/read"
                return added(frame, "result", _FRESH if read else b'"resultType":"complete"')
            return frame
        subscription = message.get("params", {}).get("_meta", {}).get(f"{META}subscriptionId")
        if str(subscription).startswith(OWN):
            return b""
        if request_id is not None:
            if (slug, request_id) in self._unheard:
                self.rewrites.add("merged-unheard")
                return b""
            self.rewrites.add("merged-questions")
            return frame
        if method == "notifications/resources/updated":
            return replaced(frame, ("params", "uri"), f"{slug}+{message['params']['uri']}")
        if method.endswith("/list_changed"):
            self._notices.add(frame)
            return b""
        return frame

    def is_notice(self, frame: bytes) -> bool:
        """Whether this is a list-changed notification that reached the client."""
        return frame in self._notices

    def with_own_id(self, frame: bytes) -> bytes:
        """Return a server request with the id that its server chose."""
        message = json.loads(frame)
        if "method" in message and "id" in message:
            return replaced(frame, ("id",), _server_and_id(message["id"])[1])
        return frame

    # From the gateway

    def _own_answers(self, servers: dict[str, Side], client: Side) -> Iterator[bytes]:
        listed = {slug: _lists_of(side) for slug, side in servers.items()}
        for message in map(json.loads, client.up):
            method = message.get("method")
            head = b'{"jsonrpc":"2.0","id":' + compact(message.get("id")) + b',"result":'
            if method in LISTS:
                self.rewrites.add("merged-lists")
                answers = {slug: listed[slug][method].pop(0) for slug in self._slugs if listed[slug].get(method)}
                yield head + self._joined(method, answers) + b"}"
            elif method in OPENINGS:
                self.rewrites.add("merged-opening")
                yield head + compact(self._introduction(message)) + b"}"
            elif method in ("ping", "logging/setLevel"):
                yield head + b"{}}"

    def _joined(self, method: str, answers: dict[str, bytes]) -> bytes:
        member, name = LISTS[method]
        items: list[bytes] = []
        for slug, answer in answers.items():
            start, _ = place(answer.decode(), ("result", member))
            for item in elements(answer.decode(), start):
                own = json.loads(item)[name]
                items.append(replaced(item.encode(), (name,), f"{slug}{'__' if name == 'name' else '+'}{own}"))
        fresh = b"," + _FRESH if self._modern else b""
        return b'{"' + member.encode() + b'":[' + b",".join(items) + b"]" + fresh + b"}"

    def _introduction(self, message: Any) -> dict[str, Any]:
        capabilities: dict[str, Any] = {}
        for name in ("tools", "prompts", "resources", "completions", "logging"):
            given = [modern for modern, about in self._about.values() if name in about["capabilities"]]
            if given:
                plain = self._modern or name in ("completions", "logging")
                capabilities[name] = {} if plain else {"listChanged": True}
                if name == "resources" and not self._modern and not all(given):
                    capabilities[name]["subscribe"] = True
        instructions = [f"{slug}: {self._about[slug][1]['instructions']}" for slug in self._slugs]
        info = {"name": "pinwarden", "title": "Pinwarden gateway", "version": __version__}
        about = {"capabilities": capabilities, "instructions": "\n\n".join(instructions)}
        if not self._modern:
            return {"protocolVersion": message["params"]["protocolVersion"], "serverInfo": info, **about}
        stamp = {"_meta": {f"{META}serverInfo": info}}
        return {"supportedVersions": [NEWEST], **about, **stamp, **json.loads(b"{" + _FRESH + b"}")}


def _without_meta(frame: bytes, message: Any) -> bytes:
    """Remove the client's description of itself, which is part of the handshake in the older revision."""
    said = {f"{META}protocolVersion", f"{META}clientInfo", f"{META}clientCapabilities"}
    text, kept = frame.decode(), message["params"]["_meta"].keys() - said
    parent, gone = (("params", "_meta"), said) if kept else (("params",), {"_meta"})
    start, end = place(text, parent)
    left = [json.dumps(name) + ":" + text[begin:stop] for name, begin, stop in members(text, start) if name not in gone]
    return (text[:start] + "{" + ",".join(left) + "}" + text[end:]).encode()


def _path(message: Any) -> tuple[str, ...]:
    if message["method"] == "completion/complete":
        return "params", "ref", "uri" if "uri" in message["params"]["ref"] else "name"
    return PATHS[message["method"]]


def _server_and_id(request_id: str) -> tuple[str, Any]:
    """Return the server that sent a request, and the id that it chose."""
    slug, random, own = request_id.split(":")
    assert len(random) == 22
    return slug, int(own)


def _lists_of(side: Side) -> dict[str, list[bytes]]:
    """Return the responses to the gateway's list requests on behalf of the client."""
    methods = {message.get("id"): message.get("method") for message in map(json.loads, side.up)}
    responses: dict[str, list[bytes]] = {}
    for frame in (frame for stream in side.down for frame in stream):
        message = json.loads(frame)
        if str(message.get("id")).startswith(MERGED) and methods.get(message["id"]) in LISTS:
            assert "nextCursor" not in message["result"]
            responses.setdefault(methods[message["id"]], []).append(frame)
    return responses
