"""Computes the client's side of a gateway from the server's side: the same bytes, except for documented rewrites.

The rewrites are the rows of ``docs/reference/gateway-rewrites.md``. `UNCHANGED` are those that apply to a server whose
surface is approved. They are implemented here independently of the gateway's code.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any, ClassVar

from tests.gateway.http_tap import Streams
from tests.gateway.json_text import replaced
from tests.gateway.published_servers import OWN

PAGE = Path(__file__).parent.parent.parent / "docs/reference/gateway-rewrites.md"
UNCHANGED = frozenset({"own-requests", "cache-hints", "hang-up"})
MERGED = "pinwarden-merged-"
"""Prefix of the ids with which the gateway opens and lists servers for the merged endpoint."""
KEPT_FOR = 30_000
"""Milliseconds after which the gateway refreshes a list."""
_SHARED = re.compile(r"pinwarden-[0-9a-f]{16}-\d+")
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
_HINTED = _LISTS | {"server/discover"}
_USES = frozenset(
    {
        *("tools/call", "prompts/get", "resources/read", "resources/subscribe", "completion/complete"),
        *("tasks/get", "tasks/result", "tasks/cancel"),
    }
)


def documented() -> list[str]:
    """Return the names of the rewrites on the reference page."""
    return re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)


class Side:
    """All messages on one side of the gateway."""

    def __init__(self, up: list[bytes], down: Streams) -> None:
        self.up = up
        self.down = down


class SharedIds:
    """The side of a shared process, with the ids and progress tokens that the client chose.

    A request with an id of the gateway corresponds to the client's first request that differs only in id and token.
    """

    def __init__(self, server: Side, requests: list[bytes], own: Container[str] = ()) -> None:
        """``requests``: the client's, as the server must receive them; ``own``: methods of the gateway's requests."""
        self._unmatched = [(_without_ids(frame), json.loads(frame)) for frame in requests if b'"id"' in frame]
        self._client_requests: dict[str, Any] = {}
        """The client's request by the id that the gateway gave it."""
        self.rewrites: set[str] = set()
        up = [self._up(frame, own) for frame in server.up]
        if self._client_requests:
            self.rewrites.add("shared-ids")
        self.side = Side(up, [[self._down(frame) for frame in stream] for stream in server.down])

    def _up(self, frame: bytes, own: Container[str]) -> bytes:
        message = json.loads(frame)
        request_id, params = message.get("id"), message.get("params", {})
        if "method" not in message:
            return frame
        if params.get("requestId") in self._client_requests and message["method"] == "notifications/cancelled":
            return replaced(frame, ("params", "requestId"), self._client_requests[params["requestId"]]["id"])
        if not _SHARED.fullmatch(str(request_id)):
            return frame
        if message["method"] in own:
            self._client_requests[request_id] = {"id": f"{MERGED}{request_id}"}
            return replaced(frame, ("id",), self._client_requests[request_id]["id"])
        matched = next(candidate for candidate in self._unmatched if candidate[0] == _without_ids(frame))
        self._unmatched.remove(matched)
        self._client_requests[request_id] = matched[1]
        if "progressToken" in params.get("_meta", {}):
            assert params["_meta"]["progressToken"] == request_id
            frame = replaced(frame, ("params", "_meta", "progressToken"), _token(matched[1]))
        return replaced(frame, ("id",), matched[1]["id"])

    def _down(self, frame: bytes) -> bytes:
        if b'"pinwarden-' not in frame:
            return frame
        message = json.loads(frame)
        request_id, params = message.get("id"), message.get("params", {})
        if "method" not in message:
            return (
                replaced(frame, ("id",), self._client_requests[request_id]["id"])
                if request_id in self._client_requests
                else frame
            )
        if params.get("progressToken") in self._client_requests:
            frame = replaced(frame, ("params", "progressToken"), _token(self._client_requests[params["progressToken"]]))
        subscription = params.get("_meta", {}).get(_SUBSCRIPTION)
        if subscription in self._client_requests:
            frame = replaced(frame, ("params", "_meta", _SUBSCRIPTION), self._client_requests[subscription]["id"])
        return frame


def _token(message: Any) -> Any:
    return message["params"]["_meta"]["progressToken"]


def _without_ids(frame: bytes) -> bytes:
    if "progressToken" in json.loads(frame).get("params", {}).get("_meta", {}):
        frame = replaced(frame, ("params", "_meta", "progressToken"), None)
    return replaced(frame, ("id",), None)


class Expected:
    """The expected messages on the client's side."""

    _made: ClassVar[dict[tuple[int, bool], tuple[Side, Expected]]] = {}

    @classmethod
    def of(cls, server: Side, *, hanging_up: bool = False) -> Expected:
        """Return the cached expectation for this side. ``hanging_up``: clients cancel by disconnecting."""
        known = cls._made.get((id(server), hanging_up))
        if known is None or known[0] is not server:
            cls._made.clear()
            known = cls._made[id(server), hanging_up] = server, cls(server, hanging_up=hanging_up)
        return known[1]

    def __init__(self, server: Side, *, hanging_up: bool) -> None:
        self.rewrites: set[str] = set()
        self.waiting: set[bytes] = set()
        """Messages that may have waited until a list was judged, so that others overtook them."""
        self._methods: dict[Any, str] = {}
        self.up = [frame for frame in server.up if self._passes_up(frame, hanging_up=hanging_up)]
        streams = ([self._passed_down(frame) for frame in stream] for stream in server.down)
        self.down = [kept for stream in streams if (kept := [frame for frame in stream if frame])]

    def _passes_up(self, frame: bytes, *, hanging_up: bool) -> bool:
        message = json.loads(frame)
        request_id = message.get("id", message.get("params", {}).get("requestId"))
        if str(request_id).startswith(OWN):
            self.rewrites.add("own-requests")
            return False
        request_id = message.get("id")
        if "method" in message and request_id is not None:
            self._methods[request_id] = message["method"]
            if message["method"] in _USES:
                self.waiting.add(frame)
        # An HTTP client cancels by disconnecting; the gateway sends its process a notification.
        is_cancellation = message.get("method") == "notifications/cancelled"
        if is_cancellation and hanging_up and message["params"].keys() == {"requestId"}:
            assert message["params"]["requestId"] in self._methods
            self.rewrites.add("hang-up")
            return False
        return True

    def _passed_down(self, frame: bytes) -> bytes:
        message = json.loads(frame)
        request_id = None if "method" in message else message.get("id")
        subscription = message.get("params", {}).get("_meta", {}).get("io.modelcontextprotocol/subscriptionId")
        if str(request_id).startswith(OWN) or str(subscription).startswith(OWN):
            return b""
        method = self._methods.get(request_id)
        hinted = self._with_hints(frame) if method in _HINTED and "result" in message else frame
        if hinted != frame:
            self.rewrites.add("cache-hints")
        if method in _LISTS or method == "tasks/list":
            self.waiting.add(hinted)
        return hinted

    @staticmethod
    def _with_hints(frame: bytes) -> bytes:
        def lowered(match: re.Match[bytes]) -> bytes:
            return match[1] + b"%d" % min(int(match[2]), KEPT_FOR)

        frame, times = re.subn(rb'("ttlMs":)(\d+)', lowered, frame)
        assert times <= 1
        return frame.replace(b'"cacheScope":"public"', b'"cacheScope":"private"')


def difference(expected: list[bytes], actual: list[bytes]) -> str:
    """Describe the first difference between two lists of messages; empty if there is none."""
    for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one != other:
            near = _first_different(one, other)
            cut = slice(max(0, near - 60), near + 120)
            return f"message {index} at {near}: expected {one[cut]!r}, found {other[cut]!r}"
    if len(expected) != len(actual):
        longer = max(expected, actual, key=len)[min(len(expected), len(actual))]
        return f"{len(expected)} messages expected, {len(actual)} found; one of them alone: {longer[:200]!r}"
    return ""


def difference_in_order(expected: list[bytes], actual: list[bytes], waiting: set[bytes]) -> str:
    """Like `difference`, but messages that wait for a list may be overtaken."""
    differs = difference(expected, actual)
    if not differs or Counter(expected) != Counter(actual):
        return differs
    return difference(
        [frame for frame in expected if frame not in waiting], [entry for entry in actual if entry not in waiting]
    )


def _first_different(one: bytes, other: bytes) -> int:
    same, longest = 0, min(len(one), len(other))
    while same < longest:  # messages can have millions of bytes
        middle = (same + longest + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            longest = middle - 1
    return same


def difference_of_streams(expected: Streams, actual: Streams, waiting: set[bytes]) -> str:
    """Like `difference` for several streams: the same messages, and in each stream in the server's order."""
    ours, theirs = (Counter(frame for stream in streams for frame in stream) for streams in (expected, actual))
    if ours != theirs:
        return difference(sorted((ours - theirs).elements()), sorted((theirs - ours).elements()))
    for stream in actual:
        if not any(_in_order([frame for frame in stream if frame not in waiting], said) for said in expected):
            return f"a stream is in another order: {[frame[:100] for frame in stream]}"
    return ""


def _in_order(stream: list[bytes], said: list[bytes]) -> bool:
    rest = iter(said)
    return all(any(frame == entry for entry in rest) for frame in stream)
