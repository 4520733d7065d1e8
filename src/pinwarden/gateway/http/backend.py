"""The gateway's session with one server behind a bridge or the merged endpoint, in the server's protocol era."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_array, split_object
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.session_manager import HANDSHAKE, STATELESS, AnyConversation, SessionManager, Upstream
from pinwarden.gateway.http.upstream_transport import SERVER_ENDED
from pinwarden.gateway.session import splice
from pinwarden.gateway.session.messages import LIST_METHODS, META_KEYS, ParsedMessage, RequestId, encode, to_request_id
from pinwarden.gateway.session.splice import replace_value
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CLIENT_META,
    HANDSHAKE_VERSIONS,
    INITIALIZED,
    INTERNAL_ERROR,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    VERSION_META,
    choose_stateless_version,
    read_supported_versions,
)

_MAX_PAGES = 200
_MAX_REASON = 500  # characters of an error message of the server
_ID_PREFIX = "pinwarden-merged-"
_CACHE = {"ttlMs": 0, "cacheScope": "private"}
_CACHEABLE = frozenset({*LIST_METHODS, "resources/read"})
"""Methods whose results need cache hints in the stateless era."""


class BackendError(Exception):
    """A request to a server failed, with a JSON-RPC error code and the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class NotExecutedError(BackendError):
    """The server rejected a request without executing it, because it does not know the session."""


class ResponseFuture:
    """A response sink that can be awaited. Messages before the response go to a callback."""

    def __init__(self, on_message: Callable[[ParsedMessage], None] | None = None) -> None:
        self._future: asyncio.Future[ParsedMessage] = asyncio.get_running_loop().create_future()
        self._on_message = on_message

    @property
    def is_open(self) -> bool:
        """Whether the response is still awaited."""
        return not self._future.done()

    def send_message(self, message: ParsedMessage) -> None:
        """Pass a message that the server sent before its response to the callback."""
        if self._on_message is not None:
            self._on_message(message)

    def respond(self, message: ParsedMessage, status: int) -> None:
        """Complete the future with the response."""
        del status
        if not self._future.done():
            self._future.set_result(message)

    def fail(self, code: int, reason: str) -> None:
        """Raise `BackendError` where the response is awaited."""
        if not self._future.done():
            self._future.set_exception(BackendError(code, reason))

    def fail_not_executed(self, reason: str) -> None:
        """Raise `NotExecutedError` where the response is awaited."""
        if not self._future.done():
            self._future.set_exception(NotExecutedError(SERVER_UNAVAILABLE, reason))

    def drop(self) -> None:
        """Raise `BackendError`, because the request was cancelled."""
        self.fail(SERVER_UNAVAILABLE, "the request was cancelled")

    def __await__(self) -> Any:
        return self._future.__await__()


class Backend:
    """One client's session with one server, in the server's era."""

    def __init__(
        self,
        manager: SessionManager,
        upstream: Upstream,
        client: GatewayClient,
        on_message: Callable[[Backend, ParsedMessage], None],
    ) -> None:
        self.slug = upstream.slug
        self._manager = manager
        self.upstream = upstream
        self._client = client
        self._on_message = on_message
        self.conversation: AnyConversation | None = None
        self.version = ""
        """The stateless revision in use; empty in the handshake era."""
        self.description: dict[str, Any] = {}
        """The server's approved description of itself: capabilities, instructions, name and version."""
        self._last_id = 0

    async def open(self, client_info: Any, capabilities: Any, *, for_stateless_client: bool) -> None:
        """Detect the server's era and open a session. Capabilities are sent only to a server of the client's era."""
        # Wait at most half of the time for another client's attempt, so that this client can still try.
        async with self.upstream.serialize_era_detection(self._manager.limits.merged_opening_seconds / 2):
            await self._open(client_info, capabilities, for_stateless_client=for_stateless_client)

    async def _open(self, client_info: Any, capabilities: Any, *, for_stateless_client: bool) -> None:
        upstream = self.upstream
        shared = (
            None if upstream.era == HANDSHAKE else self._manager.find_stateless_conversation(upstream, self._client)
        )
        conversation = shared or self._manager.open_conversation(
            upstream, self._client, stateless=upstream.era == STATELESS
        )
        try:
            if upstream.era != HANDSHAKE:
                version, result = await self._discover(
                    conversation, client_info, capabilities if for_stateless_client else {}
                )
                if result is not None:
                    self.conversation = self._manager.adopt_stateless_conversation(upstream, self._client, conversation)
                    self.version, self.description = version, result
                    upstream.mark_stateless(self.conversation)
                    return
                # Reuse the process for the handshake, unless other clients share it or it ended.
                if shared is not None or conversation.closed or _shares_process(conversation):
                    if conversation is not shared:
                        conversation.close("the server is no longer stateless")
                    conversation = self._manager.open_conversation(upstream, self._client)
            self.description = await self._initialize(
                conversation, client_info, {} if for_stateless_client else capabilities
            )
        except BaseException:
            if conversation is not shared:
                conversation.close("the handshake failed")
            raise
        self.conversation = conversation
        upstream.era, upstream.failing = HANDSHAKE, False

    async def _discover(
        self, conversation: AnyConversation, client_info: Any, capabilities: Any
    ) -> tuple[str, dict[str, Any] | None]:
        """Send ``server/discover``. Returns the revision to use, and the server's description of itself.

        The description is None if the server is of the handshake era.
        """
        failing = self.upstream.failing
        meta = {CLIENT_META: client_info, CAPABILITIES_META: capabilities}
        version = STATELESS_VERSIONS[0]

        async def discover() -> ParsedMessage:
            return await self._request(conversation, "server/discover", {"_meta": {VERSION_META: version, **meta}})

        try:
            response = await discover()
            other_version = choose_stateless_version(read_supported_versions(response.members.get("error")))
            if other_version not in {"", version}:
                version = other_version
                response = await discover()
        except BackendError as err:
            if err.reason == SERVER_ENDED and not failing:
                return "", None  # some servers exit if the first message is not initialize
            raise
        result = response.members.get("result")
        if not isinstance(result, dict):
            return "", None
        return choose_stateless_version(result.get("supportedVersions")) or version, result

    async def _initialize(self, conversation: AnyConversation, client_info: Any, capabilities: Any) -> dict[str, Any]:
        """Open a session and its notification stream. Returns the server's description of itself."""
        params = {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": capabilities, "clientInfo": client_info}
        response = await self._request(conversation, "initialize", params)
        result = response.members.get("result")
        if not isinstance(result, dict):
            self.upstream.era = ""  # another release may have started
            error = response.members.get("error")
            reason = (
                str(error.get("message")) if isinstance(error, dict) else "the server did not complete the handshake"
            )
            raise BackendError(SERVER_UNAVAILABLE, reason[:_MAX_REASON])
        initialized = {"jsonrpc": "2.0", "method": INITIALIZED}
        conversation.notify(ParsedMessage(data=encode(initialized), value=initialized))
        conversation.listen(_NotificationSink(self, self._on_message))
        # The gateway opened this stream itself, so the stream must not keep an unused session open.
        conversation.stream_keeps_session_open = False
        return result

    @property
    def stateless(self) -> bool:
        """Whether the server is of the stateless era."""
        return bool(self.version)

    @property
    def failing(self) -> bool:
        """Whether the server is marked as failing (`Upstream.failing`)."""
        return self.upstream.failing

    def mark_failing(self) -> None:
        """Mark the server as failing, so that requests do not wait for it until it responds again."""
        self.upstream.failing = True

    @property
    def is_open(self) -> bool:
        """Whether the session is open."""
        conversation = self.conversation
        if conversation is None or conversation.closed or conversation.server_session_ended:
            return False
        return not self.stateless or self.upstream.era == STATELESS

    def offers(self, capability: str) -> bool:
        """Whether the server announces a capability."""
        capabilities = self.description.get("capabilities")
        return isinstance(capabilities, dict) and capability in capabilities

    async def list_items(self, method: str, member: str, meta: Mapping[str, Any]) -> list[bytes]:
        """Fetch all pages of a list. Returns the JSON of each item."""
        items: list[bytes] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            if self.stateless:
                params["_meta"] = {**meta, VERSION_META: self.version}
            response = await self.request(method, params)
            result = response.members.get("result")
            if not isinstance(result, dict):
                raise BackendError(INTERNAL_ERROR, f"the server sent no result for {method}")
            items += await self._manager.offload_if_large(
                self._client.name, len(response.data), partial(_split_list, response.data, member)
            )
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                return items
        raise BackendError(INTERNAL_ERROR, f"the server's response to {method} has more than {_MAX_PAGES} pages")

    async def request(self, method: str, params: dict[str, Any]) -> ParsedMessage:
        """Send a request that the gateway makes itself, and await the response."""
        if self.conversation is None:
            raise BackendError(SERVER_UNAVAILABLE, "the server is unavailable")
        return await self._request(self.conversation, method, params)

    def relay(self, message: ParsedMessage, response: ResponseFuture, param_headers: bytes) -> RequestId | None:
        """Forward a request of the client. Returns its upstream id; None if it was not sent."""
        if self.conversation is None or self.conversation.closed:
            response.fail(SERVER_UNAVAILABLE, "the server is unavailable")
            return None
        if message.method == "resources/subscribe":
            self.conversation.stream_keeps_session_open = True  # the client waits for updates
        return self.conversation.request(message, response, param_headers)

    def notify(self, message: ParsedMessage) -> None:
        """Forward a notification or a response of the client. Stateless servers accept no notifications."""
        if self.conversation is not None and (message.is_response or not self.stateless):
            self.conversation.notify(message)

    def close(self) -> None:
        """Close the session. A stateless conversation stays open, because the client's other requests share it."""
        if self.conversation is not None and not self.stateless:
            self.conversation.close("the session ended")

    async def _request(self, conversation: AnyConversation, method: str, params: dict[str, Any]) -> ParsedMessage:
        self._last_id += 1
        message = {
            "jsonrpc": "2.0",
            "id": f"{_ID_PREFIX}{id(self):x}-{self._last_id}",
            "method": method,
            "params": params,
        }
        future = ResponseFuture()
        conversation.request(ParsedMessage(data=encode(message), value=message), future)
        response: ParsedMessage = await future
        return response


class _NotificationSink:
    """Receives server messages that belong to no request."""

    is_open = True

    def __init__(self, backend: Backend, on_message: Callable[[Backend, ParsedMessage], None]) -> None:
        self._backend = backend
        self._on_message = on_message

    def start_events(self) -> None:
        pass

    def send_event(self, data: bytes) -> None:
        self._on_message(self._backend, ParsedMessage(data=data, value=orjson.loads(data)))

    def end_events(self) -> None:
        self.is_open = False


def _shares_process(conversation: AnyConversation) -> bool:
    return (
        isinstance(conversation, Conversation) and conversation.transport is not None and conversation.transport.shared
    )


def _split_list(data: bytes, member: str) -> list[bytes]:
    try:
        result = dict(split_object(data))["result"]
        return split_array(dict(split_object(result))[member])
    except (PinwardenError, KeyError) as err:
        raise BackendError(INTERNAL_ERROR, f"the server's result has no list of {member}") from err


def add_stateless_meta(message: ParsedMessage, meta: Mapping[str, Any]) -> ParsedMessage:
    """Add the ``_meta`` members that stateless servers require to a request."""
    text = message.data.decode()
    params = splice.find_member(text, 0, "params")
    value = encode(dict(meta)).decode()
    if params is None:
        edit = splice.build_member_insertion(text, 0, "params", f'{{"_meta":{value}}}')
    else:
        present = splice.find_member(text, params.start, "_meta")
        if present is None:
            edit = splice.build_member_insertion(text, params.start, "_meta", value)
        else:
            edit = (present.start, present.end, encode({**message.meta, **meta}).decode())
    data = splice.apply_edits(text, [edit]).encode()
    members = {**message.members, "params": {**message.params, "_meta": {**message.meta, **meta}}}
    return ParsedMessage(data=data, value=members)


def remove_stateless_meta(message: ParsedMessage) -> ParsedMessage:
    """Remove the ``_meta`` members of the stateless era from a request; the handshake already sent their content."""
    if not any(name in message.meta for name in META_KEYS):
        return message
    text = message.data.decode()
    kept = {name: value for name, value in message.meta.items() if name not in META_KEYS}
    params = splice.find_member(text, 0, "params")
    meta = None if params is None else splice.find_member(text, params.start, "_meta")
    if params is None or meta is None:
        raise PinwardenError("JSON_PARSE_ERROR", "the member _meta is missing")
    if kept:
        edits = splice.build_member_removals(text, meta.start, META_KEYS)
        members = {**message.members, "params": {**message.params, "_meta": kept}}
    else:
        edits = splice.build_member_removals(text, params.start, ("_meta",))
        members = {
            **message.members,
            "params": {name: value for name, value in message.params.items() if name != "_meta"},
        }
    return ParsedMessage(data=splice.apply_edits(text, edits).encode(), value=members)


def add_result_members(message: ParsedMessage, method: str) -> ParsedMessage:
    """Add the members that results of the stateless era require to a response."""
    result = message.members.get("result")
    required = {"resultType": "complete", **(_CACHE if method in _CACHEABLE else {})}
    added = {name: value for name, value in required.items() if isinstance(result, dict) and name not in result}
    text = message.data.decode()
    span = splice.find_member(text, 0, "result") if added else None
    if span is None:
        return message
    start, end, _ = splice.build_member_insertion(text, span.start, "", "")
    members = encode(added).decode()[1:-1] + ("," if result else "")
    return ParsedMessage(data=splice.apply_edits(text, [(start, end, members)]).encode(), value=message.value)


_RANDOM_BYTES = 16  # makes an id unguessable


class ServerRequests:
    """Open requests of several servers to one client. The gateway assigns ids that no server can guess or choose."""

    def __init__(self, max_open: int) -> None:
        """Each server may have ``max_open`` open requests. At the limit, the server's oldest request is dropped."""
        self._max_open = max_open
        self._open: dict[str, tuple[Backend, Any]] = {}
        """The server, and the id that the server chose, by the id that the client sees."""

    def __len__(self) -> int:
        return len(self._open)

    def register(self, backend: Backend, message: ParsedMessage) -> ParsedMessage:
        """Register a request of a server. Returns the request with the id that the client sees."""
        same_server = [client_id for client_id, (sender, _) in self._open.items() if sender is backend]
        if len(same_server) >= self._max_open:
            del self._open[same_server[0]]
        server_id = message.members.get("id")
        client_id = f"{backend.slug}:{secrets.token_urlsafe(_RANDOM_BYTES)}:{server_id}"
        self._open[client_id] = backend, server_id
        return ParsedMessage(
            replace_value(message.data, ("id",), encode(client_id)), {**message.members, "id": client_id}
        )

    def forward_response(self, message: ParsedMessage) -> None:
        """Forward a response of the client to the server that sent the request. Drop responses to unknown requests."""
        client_id = message.members.get("id")
        request = self._open.pop(client_id, None) if type(client_id) is str else None
        if request is not None:
            backend, server_id = request
            data = replace_value(message.data, ("id",), encode(server_id))
            backend.notify(ParsedMessage(data, {**message.members, "id": server_id}))

    def cancel(self, backend: Backend, message: ParsedMessage) -> ParsedMessage | None:
        """Translate a server's cancellation of its request for the client; None if the server sent no such request."""
        server_id = to_request_id(message.params.get("requestId"))
        client_id = None if server_id is None else self._find_client_id(backend, server_id)
        if client_id is None:
            return None
        del self._open[client_id]
        params = {**message.params, "requestId": client_id}
        data = replace_value(message.data, ("params", "requestId"), encode(client_id))
        return ParsedMessage(data, {**message.members, "params": params})

    def _find_client_id(self, backend: Backend, server_id: RequestId) -> str | None:
        matching = (
            client_id
            for client_id, (sender, sender_id) in self._open.items()
            if sender is backend and to_request_id(sender_id) == server_id
        )
        return next(matching, None)


def refuse_server_request(backend: Backend, message: ParsedMessage, reason: str) -> None:
    """Respond to a request of a server with an error, on behalf of the client."""
    response = {
        "jsonrpc": "2.0",
        "id": message.members.get("id"),
        "error": {"code": SERVER_UNAVAILABLE, "message": reason},
    }
    backend.notify(ParsedMessage(encode(response), response))
