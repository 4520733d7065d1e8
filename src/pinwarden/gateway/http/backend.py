"""One server behind the merged endpoint: the gateway introduces itself to it in whichever era it speaks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import array_elements, object_members
from pinwarden.gateway import splice
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.frames import Frame, RequestId, encode, replace_value, request_id_of
from pinwarden.gateway.http.header_checks import Client
from pinwarden.gateway.http.session_manager import HANDSHAKE, STATELESS, AnyConversation, SessionManager, Upstream
from pinwarden.gateway.http.upstream_transport import SERVER_ENDED
from pinwarden.gateway.messages import LIST_METHODS, META_KEYS
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CLIENT_META,
    HANDSHAKE_VERSIONS,
    INITIALIZED,
    INTERNAL_ERROR,
    SERVER_AWAY,
    STATELESS_VERSIONS,
    VERSION_META,
)

_MOST_PAGES = 200
_LONGEST_REASON = 500  # characters
_OWN = "pinwarden-merged-"
_CACHE = {"ttlMs": 0, "cacheScope": "private"}
_CACHEABLE = frozenset({*LIST_METHODS, "resources/read"})
"""Methods whose results say in the newest revision for how long they may be kept."""


class BackendError(Exception):
    """A server that did not do its part, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class RefusedUnreadError(BackendError):
    """A server that did not execute a request, because it does not know the session."""


class ResponseFuture:
    """Waits for one answer, and hands on what comes before it."""

    def __init__(self, on_message: Callable[[Frame], None] | None = None) -> None:
        self._future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._on_message = on_message

    @property
    def open(self) -> bool:
        """Whether anybody still waits."""
        return not self._future.done()

    def message(self, frame: Frame) -> None:
        """A message before the answer."""
        if self._on_message is not None:
            self._on_message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        """The answer."""
        del status
        if not self._future.done():
            self._future.set_result(frame)

    def failed(self, code: int, why: str) -> None:
        """There will be none."""
        if not self._future.done():
            self._future.set_exception(BackendError(code, why))

    def refused_unread(self, why: str) -> None:
        """There will be none in this session, and the server did not execute the request."""
        if not self._future.done():
            self._future.set_exception(RefusedUnreadError(SERVER_AWAY, why))

    def dropped(self) -> None:
        """There will be none, and the client does not wait any more."""
        self.failed(SERVER_AWAY, "the request was cancelled")

    def __await__(self) -> Any:
        return self._future.__await__()


class Backend:
    """A server, as one client sees it through the merged endpoint."""

    def __init__(
        self, manager: SessionManager, upstream: Upstream, client: Client, hear: Callable[[Backend, Frame], None]
    ) -> None:
        self.slug = upstream.slug
        self._manager = manager
        self.upstream = upstream
        self._client = client
        self._hear = hear
        self.conversation: AnyConversation | None = None
        self.modern = False
        self.about: dict[str, Any] = {}
        """What the server says of itself, as far as that was approved."""
        self._number = 0

    async def open(self, info: Any, capabilities: Any, *, for_modern_client: bool) -> None:
        """Find the era of the server, and begin. What a client of the other era can do is of no use to the server."""
        # Half of the time is left for a try of this client.
        async with self.upstream.finding_era(self._manager.limits.merged_opening_seconds / 2):
            await self._open(info, capabilities, for_modern_client=for_modern_client)

    async def _open(self, info: Any, capabilities: Any, *, for_modern_client: bool) -> None:
        upstream = self.upstream
        shared = (
            None if upstream.era == HANDSHAKE else self._manager.open_stateless_conversation(upstream, self._client)
        )
        conversation = shared or self._manager.conversation(upstream, self._client, stateless=upstream.era == STATELESS)
        try:
            if upstream.era != HANDSHAKE:
                result = await self._discover(conversation, info, capabilities if for_modern_client else {})
                if result is not None:
                    self.conversation = self._manager.adopt_stateless(upstream, self._client, conversation)
                    self.modern, self.about = True, result
                    upstream.is_stateless(self.conversation)
                    return
                # The process that was asked serves this session too, unless others use it or the question ended it.
                if shared is not None or conversation.closed or _shares_process(conversation):
                    if conversation is not shared:
                        conversation.close("the server is not stateless any more")
                    conversation = self._manager.conversation(upstream, self._client)
            self.about = await self._initialize(conversation, info, {} if for_modern_client else capabilities)
        except BaseException:
            if conversation is not shared:
                conversation.close("the handshake failed")
            raise
        self.conversation = conversation
        upstream.era, upstream.failing = HANDSHAKE, False

    async def _discover(self, conversation: AnyConversation, info: Any, capabilities: Any) -> dict[str, Any] | None:
        """What a server of the newest revision says of itself; None if it is an older one."""
        failing = self.upstream.failing
        meta = {VERSION_META: STATELESS_VERSIONS[0], CLIENT_META: info, CAPABILITIES_META: capabilities}
        try:
            answer = await self._ask(conversation, "server/discover", {"_meta": meta})
        except BackendError as err:
            if err.why == SERVER_ENDED and not failing:
                return None  # some older servers end when the first message is not the handshake
            raise
        result = answer.members.get("result")
        return result if isinstance(result, dict) else None

    async def _initialize(self, conversation: AnyConversation, info: Any, capabilities: Any) -> dict[str, Any]:
        """Begin a session, and hear what the server tells in it; what the server says of itself."""
        hello = {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": capabilities, "clientInfo": info}
        answer = await self._ask(conversation, "initialize", hello)
        result = answer.members.get("result")
        if not isinstance(result, dict):
            self.upstream.era = ""  # another release of it may have been started
            error = answer.members.get("error")
            why = str(error.get("message")) if isinstance(error, dict) else "no handshake"
            raise BackendError(SERVER_AWAY, why[:_LONGEST_REASON])
        note = {"jsonrpc": "2.0", "method": INITIALIZED}
        conversation.tell(Frame(data=encode(note), message=note))
        conversation.listen(_Ear(self, self._hear))
        conversation.stream_counts = False  # it is ours, and the session begins again when it is needed
        return result

    @property
    def failing(self) -> bool:
        """Whether the server did not even begin the last time."""
        return self.upstream.failing

    def did_not_begin(self) -> None:
        """It took too long: nobody else waits for it, until it begins after all."""
        self.upstream.failing = True

    @property
    def open_now(self) -> bool:
        """Whether the server can be asked."""
        conversation = self.conversation
        if conversation is None or conversation.closed or conversation.ended:
            return False
        return not self.modern or self.upstream.era == STATELESS

    def offers(self, capability: str) -> bool:
        """Whether the server says that it can do something."""
        capabilities = self.about.get("capabilities")
        return isinstance(capabilities, dict) and capability in capabilities

    async def items(self, method: str, member: str, meta: Mapping[str, Any]) -> list[bytes]:
        """The text of every item of a list, from all its pages."""
        found: list[bytes] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            if self.modern:
                params["_meta"] = {**meta, VERSION_META: STATELESS_VERSIONS[0]}
            answer = await self.ask(method, params)
            result = answer.members.get("result")
            if not isinstance(result, dict):
                raise BackendError(INTERNAL_ERROR, f"no answer to {method}")
            found += await self._manager.offload_if_large(
                self._client.name, len(answer.data), partial(_elements, answer.data, member)
            )
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                return found
        raise BackendError(INTERNAL_ERROR, f"the answer to {method} does not end")

    async def ask(self, method: str, params: dict[str, Any]) -> Frame:
        """A question of the gateway's own."""
        if self.conversation is None:
            raise BackendError(SERVER_AWAY, "the server is not there")
        return await self._ask(self.conversation, method, params)

    def relay(self, frame: Frame, answer: ResponseFuture, parameters: bytes) -> RequestId | None:
        """A request of the client, under the client's id."""
        if self.conversation is None or self.conversation.closed:
            answer.failed(SERVER_AWAY, "the server is not there")
            return None
        if frame.method == "resources/subscribe":
            self.conversation.stream_counts = True  # the client waits for what the server has to tell
        return self.conversation.request(frame, answer, parameters)

    def tell(self, frame: Frame) -> None:
        """A notification or an answer of the client. The newest revision has no notifications of clients."""
        if self.conversation is not None and (frame.is_answer or not self.modern):
            self.conversation.tell(frame)

    def close(self) -> None:
        """Let go of the server. What is shared with the server's own endpoint stays."""
        if self.conversation is not None and not self.modern:
            self.conversation.close("the session was ended")

    async def _ask(self, conversation: AnyConversation, method: str, params: dict[str, Any]) -> Frame:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": f"{_OWN}{id(self):x}-{self._number}", "method": method, "params": params}
        answer = ResponseFuture()
        conversation.request(Frame(data=encode(message), message=message), answer)
        made: Frame = await answer
        return made


class _Ear:
    """Hears what a server tells without being asked."""

    open = True

    def __init__(self, backend: Backend, hear: Callable[[Backend, Frame], None]) -> None:
        self._backend = backend
        self._hear = hear

    def start_events(self) -> None:
        pass

    def event(self, data: bytes) -> None:
        self._hear(self._backend, Frame(data=data, message=orjson.loads(data)))

    def end_events(self) -> None:
        self.open = False


def _shares_process(conversation: AnyConversation) -> bool:
    return isinstance(conversation, Conversation) and conversation.link is not None and conversation.link.shared


def _elements(data: bytes, member: str) -> list[bytes]:
    try:
        result = dict(object_members(data))["result"]
        return array_elements(dict(object_members(result))[member])
    except (PinwardenError, KeyError) as err:
        raise BackendError(INTERNAL_ERROR, f"the answer has no list of {member}") from err


def with_meta(frame: Frame, meta: Mapping[str, Any]) -> Frame:
    """A request of a client of the older era as the newest revision wants it."""
    text = frame.data.decode()
    params = splice.member(text, 0, "params")
    value = encode(dict(meta)).decode()
    if params is None:
        edit = splice.with_member(text, 0, "params", f'{{"_meta":{value}}}')
    else:
        present = splice.member(text, params.start, "_meta")
        if present is None:
            edit = splice.with_member(text, params.start, "_meta", value)
        else:
            edit = (present.start, present.end, encode({**frame.meta, **meta}).decode())
    data = splice.edited(text, [edit]).encode()
    message = {**frame.members, "params": {**frame.params, "_meta": {**frame.meta, **meta}}}
    return Frame(data=data, message=message)


def without_meta(frame: Frame) -> Frame:
    """A request of a client of the newest revision as older servers want it: who asks was said in the handshake."""
    if not any(name in frame.meta for name in META_KEYS):
        return frame
    text = frame.data.decode()
    kept = {name: value for name, value in frame.meta.items() if name not in META_KEYS}
    params = splice.member(text, 0, "params")
    meta = None if params is None else splice.member(text, params.start, "_meta")
    if params is None or meta is None:
        raise PinwardenError("JSON_PARSE_ERROR", "there is no member _meta")
    if kept:
        edits = splice.without_members(text, meta.start, META_KEYS)
        message = {**frame.members, "params": {**frame.params, "_meta": kept}}
    else:
        edits = splice.without_members(text, params.start, ("_meta",))
        message = {**frame.members, "params": {name: value for name, value in frame.params.items() if name != "_meta"}}
    return Frame(data=splice.edited(text, edits).encode(), message=message)


def as_stateless(frame: Frame, method: str) -> Frame:
    """An answer of a server with a handshake as the newest revision wants it: with what it demands of results."""
    result = frame.members.get("result")
    wanted = {"resultType": "complete", **(_CACHE if method in _CACHEABLE else {})}
    added = {name: value for name, value in wanted.items() if isinstance(result, dict) and name not in result}
    text = frame.data.decode()
    span = splice.member(text, 0, "result") if added else None
    if span is None:
        return frame
    place, end, _ = splice.with_member(text, span.start, "", "")
    members = encode(added).decode()[1:-1] + ("," if result else "")
    return Frame(data=splice.edited(text, [(place, end, members)]).encode(), message=frame.message)


_RANDOM_BYTES = 16  # of an id: what nobody can guess in the life of a session


class ServerRequests:
    """The open questions of the servers behind one conversation."""

    def __init__(self, most: int) -> None:
        """``most`` of one server are kept. A server that asks more loses its own oldest, and no other's."""
        self._most = most
        self._open: dict[str, tuple[Backend, Any]] = {}
        """By the id that the client sees: who asked, and its own id."""

    def __len__(self) -> int:
        return len(self._open)

    def asked(self, backend: Backend, frame: Frame) -> Frame:
        """A question of a server as the client gets it."""
        own = [number for number, (asker, _) in self._open.items() if asker is backend]
        if len(own) >= self._most:
            del self._open[own[0]]
        chosen = frame.members.get("id")
        number = f"{backend.slug}:{secrets.token_urlsafe(_RANDOM_BYTES)}:{chosen}"
        self._open[number] = backend, chosen
        return Frame(replace_value(frame.data, ("id",), encode(number)), {**frame.members, "id": number})

    def answer(self, frame: Frame) -> None:
        """Give an answer of the client to the server that asked; one to no question goes nowhere."""
        number = frame.members.get("id")
        found = self._open.pop(number, None) if type(number) is str else None
        if found is not None:
            backend, own = found
            backend.tell(Frame(replace_value(frame.data, ("id",), encode(own)), {**frame.members, "id": own}))

    def withdrawn(self, backend: Backend, frame: Frame) -> Frame | None:
        """A server does not wait for an answer any more: what the client is told; None if it did not ask."""
        own = request_id_of(frame.params.get("requestId"))
        number = None if own is None else self._number_of(backend, own)
        if number is None:
            return None
        del self._open[number]
        params = {**frame.params, "requestId": number}
        data = replace_value(frame.data, ("params", "requestId"), encode(number))
        return Frame(data, {**frame.members, "params": params})

    def _number_of(self, backend: Backend, own: RequestId) -> str | None:
        asked = (
            number for number, (asker, each) in self._open.items() if asker is backend and request_id_of(each) == own
        )
        return next(asked, None)


def refuse(backend: Backend, frame: Frame, why: str) -> None:
    """Answer a question in place of the client: nobody else ever would, and the server would wait."""
    answer = {"jsonrpc": "2.0", "id": frame.members.get("id"), "error": {"code": SERVER_AWAY, "message": why}}
    backend.tell(Frame(encode(answer), answer))
