"""Routes HTTP requests: checks the headers, finds the conversation, and passes it the message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits, parse_json
from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.eras import relay_initialize, send_stateless_request
from pinwarden.gateway.http.header_checks import (
    MCP_PREFIX,
    Access,
    AccessDenied,
    BadRequest,
    GatewayClient,
    KeysOutdatedError,
    build_cors_headers,
    build_preflight_headers,
    find_routing_mismatch,
    is_preflight,
)
from pinwarden.gateway.http.http1 import Reply, Request
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.open_requests import HttpResponseSink
from pinwarden.gateway.http.session_manager import AnyConversation, Route, SessionManager
from pinwarden.gateway.session.messages import CALL, ParsedMessage, build_error_response, parse_client_message
from pinwarden.gateway.store.tokens import CALLS, METRICS, READ
from pinwarden.surface.protocol import (
    CANCELLED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    PARSE_ERROR,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    VERSION_META,
)
from pinwarden.system.fair_executor import OverloadedError

_EVENTS = "text/event-stream"
_JSON = b"application/json"
_UNAVAILABLE = "The gateway blocks all requests; see /readyz."
_WELL_KNOWN = "/.well-known/"
_TASKS = "tasks/"
_PUBLIC = {"access-control-allow-origin": "*"}
_STATUS_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}


class Page(Protocol):
    """A page for operators: health, readiness or metrics."""

    def __call__(self, client: GatewayClient | None, /) -> tuple[int, str, bytes]:
        """Returns status, content type and body. ``client`` is None on public pages."""


class Endpoint:
    """Handles all requests of all clients: checks them, and passes each message to its conversation."""

    def __init__(
        self,
        manager: SessionManager,
        access: Access,
        limits: HttpLimits,
        merged: Callable[[GatewayClient], Route] | None = None,
    ) -> None:
        self._manager = manager
        self.access = access
        access.on_revoked = manager.revoke
        self._limits = limits
        self._json = Limits(max_bytes=limits.max_body_bytes, max_values=limits.max_body_values)
        self._merged = merged
        self.public_pages: dict[str, Page] = {}
        """Public pages, by path."""
        self.pages: dict[str, Page] = {}
        self.services: dict[str, Callable[[Request, Reply], Coroutine[Any, Any, None]]] = {}
        """Services that authenticate their senders themselves, by path."""
        self.routes: dict[bytes, CachedRoute] = {}
        """Cached routes of tool calls, by the exact bytes of the request head."""
        self.requests = 0
        self.failures = 0
        """Requests that failed because of an error in the gateway."""

    @property
    def generation(self) -> int:
        """Changes when clients or servers change. Cached routes of an older generation are invalid."""
        return self.access.generation + self._manager.generation

    def handle_request(self, request: Request, reply: Reply) -> None:
        """Handle one request. Errors become responses."""
        self.requests += 1
        self._run_and_send_errors(reply, lambda: self._route_request(request, reply))

    def _run_and_send_errors(self, reply: Reply, work: Callable[[], None]) -> None:
        """Run work, and send what it raises as the response."""
        try:
            work()
        except AccessDenied as denied:
            code = SERVER_UNAVAILABLE if denied.status == 503 else INVALID_REQUEST
            headers = denied.headers or _STATUS_HEADERS.get(denied.status)
            reply.send(denied.status, _build_refusal(code, denied.reason), headers=headers)
        except KeysOutdatedError:
            self._manager.run_task(self._repeat_with_new_keys(work, reply))
        except PinwardenError as err:
            self.failures += 1
            reply.send(500, _build_refusal(SERVER_UNAVAILABLE, err.message))

    async def _repeat_with_new_keys(self, work: Callable[[], None], reply: Reply) -> None:
        """Fetch the keys of the issuer, then handle the request. Without a newer key, its token is refused."""
        if self.access.verifier is not None:
            await self.access.verifier.refresh_keys()
        self._run_and_send_errors(reply, work)

    def authenticate(self, headers: dict[bytes, bytes], path: str) -> str:
        """Authenticate the sender of a large body before the body is read. Returns the client's name."""
        try:
            self.access.check_host_and_origin(headers)
            return self.access.authenticate(headers, path).name
        except AccessDenied as denied:
            raise BadRequest(denied.status, denied.reason, denied.headers) from denied
        except KeysOutdatedError as err:
            if self.access.verifier is not None:
                self._manager.run_task(self.access.verifier.refresh_keys())
            raise BadRequest(503, "The keys of the issuer are being fetched.", {"retry-after": "1"}) from err

    def _route_request(self, request: Request, reply: Reply) -> None:
        if request.path.startswith(_WELL_KNOWN):
            self._send_metadata(request, reply)
            return
        origin = self.access.check_host_and_origin(request.headers)
        if origin:
            reply.cors = build_cors_headers(origin)
            if is_preflight(request.method, request.headers):
                reply.send(200, headers=build_preflight_headers(request.headers))
                return
        service = self.services.get(request.path)
        if service is not None:
            self._manager.run_task(service(request, reply))
            return
        page = self.public_pages.get(request.path)
        client = None if page is not None else self.access.authenticate(request.headers, request.path)
        if client is not None:
            reply.set_client(client.name)
            self.access.require_scope(client, METRICS if request.path in self.pages else READ, request.path)
        page = page or self.pages.get(request.path)
        if page is not None or client is None:
            self._send_page(page, request, reply, client)
            return
        route = self._find_route(request.path, client)
        if not self._manager.upstreams and (route is not None or request.path.startswith(MCP_PREFIX)):
            self._send_unavailable(request, reply)
        elif route is None:
            reply.send(404, _build_refusal(INVALID_REQUEST, "No such server."))
        elif request.method == "POST":
            self._handle_post(request, reply, client, route)
        elif request.method == "GET":
            self._handle_get(request, reply, client, route)
        elif request.method == "DELETE":
            self._handle_delete(request, reply, client, route)
        else:
            reply.send(405, headers={"allow": "GET, POST, DELETE"})

    def _send_metadata(self, request: Request, reply: Reply) -> None:
        """Send the protected resource metadata to anyone, also to web pages: it is the same for every request."""
        verifier = self.access.verifier
        body = None if verifier is None else verifier.build_metadata(request.path)
        if body is None:
            reply.send(404)
        elif is_preflight(request.method, request.headers):
            reply.send(204, headers={**_PUBLIC, **build_preflight_headers(request.headers)})
        elif request.method in ("GET", "HEAD"):
            reply.send(200, body, headers={**_PUBLIC, "cache-control": "max-age=300"})
        else:
            reply.send(405, headers={**_PUBLIC, "allow": "GET, HEAD, OPTIONS"})

    def _send_page(self, page: Page | None, request: Request, reply: Reply, client: GatewayClient | None) -> None:
        if page is None or request.method not in ("GET", "HEAD"):
            reply.send(405 if page else 404)
            return
        status, content_type, body = page(client)
        reply.send(status, body, content_type=content_type)

    def _send_unavailable(self, request: Request, reply: Reply) -> None:
        """Respond that no server is available, because the lock or the policy cannot be read.

        The status must not be 404, because clients take 404 for the end of their session. Clients of the handshake era
        show the reason only if the status is 200.
        """
        request_id, stateless = None, True
        with suppress(PinwardenError):
            message = parse_client_message(request.body, self._json)
            request_id = None if message.id is None or not message.is_request else message.id[1]
            stateless = (
                request.get_header(b"mcp-protocol-version") in STATELESS_VERSIONS
                or message.meta.get(VERSION_META) in STATELESS_VERSIONS
            )
        status = 200 if request_id is not None and not stateless else 503
        reply.send(
            status,
            build_error_response(request_id, SERVER_UNAVAILABLE, _UNAVAILABLE),
            headers=_STATUS_HEADERS.get(status),
        )

    def _find_route(self, path: str, client: GatewayClient) -> Route | None:
        if path == "/mcp":
            return None if self._merged is None else self._merged(client)
        if not path.startswith(MCP_PREFIX):
            return None
        upstream = self._manager.upstreams.get(path[len(MCP_PREFIX) :])
        return upstream if upstream is not None and client.may_use(upstream.name) else None

    # POST: one message

    def _handle_post(self, request: Request, reply: Reply, client: GatewayClient, route: Route) -> None:
        """Parse the message of a request: here, or on a thread if it is long."""
        content_type = request.headers.get(b"content-type", b"")
        if content_type != _JSON and content_type.partition(b";")[0].strip().lower() != _JSON:
            reply.send(415, _build_refusal(INVALID_REQUEST, "The content type must be application/json."))
            return
        if len(request.body) > self._limits.max_bytes_at_once:
            self._parse_on_thread(request, reply, client)
            return
        try:
            message = parse_client_message(request.body, self._json)
        except PinwardenError as err:
            reply.send(400, _build_refusal(PARSE_ERROR, err.message))
            return
        if message.method == CANCELLED and self._manager.executor.is_busy(client.name):
            # The cancellation must not overtake the long message that it cancels.
            self._parse_on_thread(request, reply, client)
            return
        self._handle_message(request, reply, client, route, message)

    def _parse_on_thread(self, request: Request, reply: Reply, client: GatewayClient) -> None:
        """Parse a long message on a thread, then look up client and route again, because they may have changed."""

        def on_parsed(parsing: asyncio.Future[ParsedMessage]) -> None:
            if parsing.cancelled():
                reply.send(
                    503,
                    _build_refusal(SERVER_UNAVAILABLE, "The gateway is shutting down."),
                    headers=_STATUS_HEADERS[503],
                )
                return
            err = parsing.exception()
            if isinstance(err, OverloadedError):
                self._send_overloaded(reply, err)
            elif isinstance(err, PinwardenError):
                reply.send(400, _build_refusal(PARSE_ERROR, err.message))
            else:  # an unexpected exception goes to the loop's handler
                self._run_and_send_errors(reply, partial(self._handle_parsed, request, reply, parsing.result()))

        try:
            parsing = self._manager.executor.submit(
                client.name, partial(parse_client_message, request.body, self._json)
            )
        except OverloadedError as err:
            self._send_overloaded(reply, err)
        else:
            parsing.add_done_callback(on_parsed)

    def _send_overloaded(self, reply: Reply, err: OverloadedError) -> None:
        reply.send(503, _build_refusal(SERVER_UNAVAILABLE, err.message), headers={"retry-after": str(err.retry_after)})

    def _handle_parsed(self, request: Request, reply: Reply, message: ParsedMessage) -> None:
        client = self.access.authenticate(request.headers, request.path)
        route = self._find_route(request.path, client)
        if route is None:
            reply.send(404, _build_refusal(INVALID_REQUEST, "No such server."))
        elif reply.is_open or b"mcp-session-id" in request.headers:
            self._handle_message(request, reply, client, route, message)
        else:
            reply.send(400)  # the client disconnected, which cancels a stateless request

    def _handle_message(
        self, request: Request, reply: Reply, client: GatewayClient, route: Route, message: ParsedMessage
    ) -> None:
        """Refuse what is not one JSON-RPC message, and pass the others on by their protocol era."""
        if not isinstance(message.value, dict):
            reply.send(400, _build_refusal(INVALID_REQUEST, "Batches are not supported; send one message."))
            return
        if "method" in message.members and type(message.members["method"]) is not str:
            request_id = None if message.id is None else message.id[1]
            reply.send(400, build_error_response(request_id, INVALID_REQUEST, "The method must be a string."))
            return
        if message.is_request and message.id is None:
            reply.send(400, _build_refusal(INVALID_REQUEST, "The id of a request must be a number or a string."))
            return
        if message.method == CALL or message.method.startswith(_TASKS):
            self.access.require_scope(client, CALLS, request.path)
        route.requests += 1
        version = request.get_header(b"mcp-protocol-version")
        if version in STATELESS_VERSIONS or (
            message.meta.get(VERSION_META) in STATELESS_VERSIONS and b"mcp-session-id" not in request.headers
        ):
            self._handle_stateless_post(request, reply, client, route, message)
        else:
            self._handle_session_post(request, reply, client, route, message)

    def _handle_stateless_post(
        self, request: Request, reply: Reply, client: GatewayClient, route: Route, message: ParsedMessage
    ) -> None:
        """Handle a request of the stateless era."""
        mismatch = find_routing_mismatch(request.headers, message)
        if mismatch:
            request_id = message.members.get("id")
            reply.send(400, build_error_response(request_id if message.is_request else None, HEADER_MISMATCH, mismatch))
            return
        if not message.is_request:
            # Revision 2026-07-28 has no client notifications over HTTP.
            reply.send(202)
            return
        sink = HttpResponseSink(reply, message.members.get("id"), stateless=True)
        conversation, cancel = send_stateless_request(
            self._manager, route, client, message, sink, request.param_headers
        )
        if conversation is not None:
            self._cache_route(request, client, route, conversation, message, stateless=True)
        if reply.is_open:
            reply.on_disconnect = cancel

    def _handle_session_post(
        self, request: Request, reply: Reply, client: GatewayClient, route: Route, message: ParsedMessage
    ) -> None:
        """Pass a message of the handshake era to the conversation of its session. ``initialize`` opens a session."""
        session_id = request.get_header(b"mcp-session-id")
        if message.method == "initialize" and message.is_request:
            if session_id:
                reply.send(400, _build_refusal(INVALID_REQUEST, "The session is already initialized."))
                return
            client_session = self._manager.open_session(route, client)
            if client_session is None:
                reply.send(503, _build_refusal(SERVER_UNAVAILABLE, "Too many sessions."), headers={"retry-after": "5"})
                return
            sink = HttpResponseSink(reply, message.members.get("id"), headers={"mcp-session-id": client_session.id})
            relay_initialize(self._manager, client_session, message, sink, request.param_headers)
            return
        if not session_id:
            reply.send(400, _build_refusal(INVALID_REQUEST, "The header mcp-session-id is missing."))
            return
        client_session = self._manager.find_session(session_id, client, route)
        if client_session is None:
            reply.send(404, _build_refusal(INVALID_REQUEST, "No such session."))
        elif message.is_request:
            self._cache_route(request, client, route, client_session.conversation, message, stateless=False)
            sink = HttpResponseSink(reply, message.members.get("id"))
            client_session.conversation.request(message, sink, request.param_headers)
        else:
            client_session.conversation.notify(message)
            reply.send(202)

    def _cache_route(  # noqa: PLR0913
        self,
        request: Request,
        client: GatewayClient,
        route: Route,
        conversation: AnyConversation,
        message: ParsedMessage,
        *,
        stateless: bool,
    ) -> None:
        """Cache the route of a tool call, for later requests with the same head."""
        head = request.head
        if (
            message.method != CALL
            or not head
            or len(head) > MAX_CACHED_HEAD_BYTES
            or not isinstance(conversation, Conversation)
        ):
            return
        if b"origin" in request.headers or request.param_headers:
            # A cached route skips all header checks. The response to a browser needs headers that depend on its origin,
            # and ``mcp-param-`` headers must be compared with the arguments of each call.
            return
        name = message.params.get("name")
        if conversation.traced or type(name) is not str:
            return  # calls with spans need the general path
        if len(self.routes) >= MAX_CACHED_ROUTES:
            self.routes.clear()
        cached = CachedRoute(self, route, conversation, self._json, len(request.body))
        cached.expires_at = client.expires_at
        if stateless:
            cached.set_stateless(message.meta[VERSION_META], name)
        self.routes[head] = cached

    # GET: the notification stream. DELETE: end a session.

    def _handle_get(self, request: Request, reply: Reply, client: GatewayClient, route: Route) -> None:
        session_id = request.get_header(b"mcp-session-id")
        if _EVENTS not in request.get_header(b"accept"):
            reply.send(406, _build_refusal(INVALID_REQUEST, f"The accept header must include {_EVENTS}."))
            return
        client_session = self._manager.find_session(session_id, client, route) if session_id else None
        if client_session is None:
            reply.send(404 if session_id else 405, headers=None if session_id else {"allow": "POST"})
        else:
            client_session.conversation.listen(reply)

    def _handle_delete(self, request: Request, reply: Reply, client: GatewayClient, route: Route) -> None:
        session_id = request.get_header(b"mcp-session-id")
        client_session = self._manager.find_session(session_id, client, route) if session_id else None
        if client_session is None:
            reply.send(404)
        else:
            self._manager.end_session(client_session)
            reply.send(200)


def _build_refusal(code: int, reason: str) -> bytes:
    return build_error_response(None, code, reason)


MAX_CACHED_ROUTES = 4096
"""The maximum number of cached routes, which take about two megabytes."""
MAX_CACHED_HEAD_BYTES = 2048
"""Longer request heads are not cached."""
_MAX_CACHED_ROUTE_BODY_BYTES = 1 << 16  # longer bodies take the general path


class CachedRoute:
    """The route of tool calls whose request head was already checked. The message is still checked each time."""

    __slots__ = (
        "_conversation",
        "_endpoint",
        "_generation",
        "_json",
        "_name",
        "_route",
        "_version",
        "expires_at",
        "length",
    )

    def __init__(self, endpoint: Endpoint, route: Route, conversation: Conversation, json: Limits, length: int) -> None:
        self._endpoint = endpoint
        self._generation = endpoint.generation
        self._route = route
        self._conversation = conversation
        self._json = json
        self._version = ""
        self._name = ""
        self.length = length
        """The content length that the head announces."""
        self.expires_at = inf
        """When the token in the head expires, in seconds since 1970."""

    def set_stateless(self, version: str, name: str) -> None:
        """Set the protocol version and tool name from the headers. Each message must agree with both."""
        self._version = version
        self._name = name

    def relay_call(self, body: bytes, connection: ClientConnection) -> bool:
        """Forward a call. Returns False, without side effects, if the request needs the general path."""
        conversation = self._conversation
        endpoint = self._endpoint
        if self._generation != endpoint.generation or conversation.closed or self.length > _MAX_CACHED_ROUTE_BODY_BYTES:
            return False
        if self.expires_at != inf and endpoint.access.is_expired(self.expires_at):
            return False
        try:
            message = parse_json(body, self._json)
        except PinwardenError:
            return False
        if type(message) is not dict or message.get("method") != CALL:
            return False
        params = message.get("params")
        if type(params) is not dict or type(name := params.get("name")) is not str:
            return False
        meta = params.get("_meta")
        if meta is not None and type(meta) is not dict:
            return False
        version = self._version
        if (meta is not None and meta.get(VERSION_META, "") != version) or (
            version and (name != self._name or not meta)
        ):
            return False
        if not conversation.send_call(body, message, name, connection, stateless=bool(version)):
            return False
        endpoint.requests += 1
        self._route.requests += 1
        return True
