"""A remote server that every user is connected to with an account of their own.

Each owner of a grant has a connection pool of their own, and each conversation sends only the token of its owner. While
a token is looked up or renewed, requests wait in order. A request that the server refuses with status 401 is repeated
once with a new token, because it was not executed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.remote_transport import PostListener, RemoteServer, RemoteTransport
from pinwarden.gateway.http.upstream_connection import GeneralRequest
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import TransportOwner
from pinwarden.gateway.session.messages import ParsedMessage, RequestId
from pinwarden.identity.grants import GrantOwner
from pinwarden.identity.remote_tokens import RemoteCredential, RemoteTarget, RemoteToken, RemoteTokens
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall

_THREADS = 4  # lookups and renewals of tokens for one server
_MAX_OWNERS = 1000  # with a pool; more are possible while these are in use
_UNAUTHORIZED = 401
_SCOPE_ERROR = "insufficient_scope"
_RECONNECTED = "the server was connected again or forgotten; open a new session"


class ConnectedServer:
    """A remote server, and the pool and token of each owner."""

    def __init__(
        self,
        target: RemoteTarget,
        tokens: RemoteTokens,
        headers: Mapping[str, str],
        rules: NetworkRules,
        limits: HttpLimits,
    ) -> None:
        self._target = target
        self._tokens = tokens
        self._headers = headers
        self._rules = rules
        self._limits = limits
        self._address = HttpAddress.parse(target.url)
        self._by_owner: dict[GrantOwner, tuple[RemoteServer, RemoteCredential]] = {}
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="grants")
        RemoteServer.create(UpstreamPool(self._address, rules, limits), self._address, headers)  # checks the headers

    def open(self, owner: TransportOwner) -> ConnectedTransport:
        """Open the transport of a conversation, for the person that its client acts for."""
        issuer, subject = owner.person
        person = GrantOwner(issuer=issuer, subject=subject)
        server, credential = self._find(person)
        return ConnectedTransport(server, owner, self._limits, credential, self._executor)

    def close(self) -> None:
        """Close all connections."""
        for server, _ in self._by_owner.values():
            server.pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _find(self, person: GrantOwner) -> tuple[RemoteServer, RemoteCredential]:
        known = self._by_owner.get(person)
        if known is None:
            if len(self._by_owner) >= _MAX_OWNERS:
                self._forget_idle()
            pool = UpstreamPool(self._address, self._rules, self._limits)
            server = RemoteServer.create(pool, self._address, self._headers)
            known = self._by_owner[person] = server, RemoteCredential(self._tokens, self._target, person)
        return known

    def _forget_idle(self) -> None:
        for person in [person for person, (server, _) in self._by_owner.items() if server.pool.is_unused]:
            del self._by_owner[person]


class ConnectedTransport(RemoteTransport):
    """The transport of one conversation, with the token of one owner."""

    def __init__(
        self,
        server: RemoteServer,
        owner: TransportOwner,
        limits: HttpLimits,
        credential: RemoteCredential,
        executor: ThreadPoolExecutor,
    ) -> None:
        super().__init__(server, owner, limits)
        self._credential = credential
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._token: RemoteToken | None = None
        self._grant_id = ""
        """The grant that the server knows this conversation by; empty while it was used without one."""
        self._waiting: deque[tuple[RequestId | None, float, Callable[[], None]]] = deque()
        """What is sent as soon as the token is known: id, time, and how it is sent."""

    def send(self, message: ParsedMessage, param_headers: bytes) -> None:
        """Post one message, as soon as there is a valid token."""
        request_id = message.id if message.is_request else None
        self._when_authorized(request_id, partial(super().send, message, param_headers))

    def send_call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Post a tool call, as soon as there is a valid token."""
        if not self._waiting and self._credential.is_fresh and self._credential.token is self._token:
            super().send_call(call, body, message, name)
        else:
            self._when_authorized(call.request_id, partial(super().send_call, call, body, message, name))

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request, also one that waits for the token."""
        waiting = deque(entry for entry in self._waiting if entry[0] != request_id)
        if len(waiting) == len(self._waiting):
            super().cancel(request_id)
        self._waiting = waiting

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Cancel what was sent, or began to wait, before a time."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] >= before or entry[0] in keep)
        super().expire(before, keep)

    def close(self) -> None:
        """Cancel all requests."""
        self._waiting.clear()
        super().close()

    # Tokens

    def _when_authorized(self, request_id: RequestId | None, send: Callable[[], None]) -> None:
        if self._closed:
            return
        if not self._waiting and self._credential.is_fresh:
            if self._use(self._credential.token):
                send()
            return
        self._waiting.append((request_id, self._clock(), send))
        if len(self._waiting) == 1:
            self._load("", self._flush)

    def _load(self, rejected: str, then: Callable[[PinwardenError | None], None]) -> None:
        """Look the token up on a thread, then continue on the loop."""

        def on_loaded(loading: asyncio.Future[RemoteToken | None]) -> None:
            if loading.cancelled() or self._closed:
                return
            err = loading.exception()
            if err is not None and not isinstance(err, PinwardenError):
                self._loop.call_exception_handler({"message": "a token could not be looked up", "exception": err})
                err = PinwardenError("REMOTE_UNAVAILABLE", "the token of this server cannot be looked up")
            then(err)

        try:
            loading = self._loop.run_in_executor(self._executor, self._credential.load, rejected)
        except RuntimeError:  # the server was replaced, and this conversation is about to end
            self._end(_RECONNECTED)
        else:
            loading.add_done_callback(on_loaded)

    def _flush(self, err: PinwardenError | None) -> None:
        """Send what waited for the token, or fail it."""
        waiting, self._waiting = self._waiting, deque()
        if err is None and not self._use(self._credential.token):
            return
        for request_id, _, send in waiting:
            if err is None:
                send()
            elif request_id is not None:
                self._owner.on_request_failed(request_id, _describe(err))

    def _use(self, token: RemoteToken | None) -> bool:
        """Use a token from now on. Returns False, and ends the conversation, if it is of another grant than before."""
        if token is self._token:
            return True
        grant_id = "" if token is None else token.grant_id
        if self._grant_id and grant_id != self._grant_id:
            # The server's session, and the lists in this conversation, may be those of another account.
            self._end(_RECONNECTED)
            return False
        self._token, self._grant_id = token, grant_id
        self._set_fixed_headers(_build_line(token))
        return True

    def _end(self, reason: str) -> None:
        """End the conversation without counting it as a failure of the server."""
        self.evicted = True
        self._owner.on_server_lost(reason)

    # Refusals of the server

    def _make_listener(self, request_id: RequestId | None, *, initialize: bool = False) -> PostListener:
        return _ConnectedListener(self, self._owner, request_id, self._token, initialize=initialize)

    def repeat(self, listener: _ConnectedListener, request_id: RequestId) -> bool:
        """Send a request again with a new token. Returns False if that is not possible."""
        post = self._posts.get(request_id)
        if post is None or listener.token is None:
            return False
        data, sent_at, stream = post[0].data, post[1], post[0].stream
        before = _build_line(listener.token)

        def send_again(err: PinwardenError | None) -> None:
            if request_id not in self._posts:
                return  # cancelled in the meantime
            if err is not None or not self._use(self._credential.token) or self._token is None:
                listener.fail(self._credential.explain_missing() if err is None else _describe(err))
                return
            again = _ConnectedListener(
                self, self._owner, request_id, self._token, initialize=listener.initialize, is_repeated=True
            )
            # The first occurrence: the line is at the beginning of the head.
            outgoing = GeneralRequest(
                data.replace(before, _build_line(self._token), 1), again, self._owner.client, stream=stream
            )
            self._posts[request_id] = outgoing, sent_at
            self._server.pool.start(outgoing)

        self._load(listener.token.access_token, send_again)
        return True

    def explain(self, listener: _ConnectedListener, status: int, challenge: str) -> None:
        """Say what the person can do about a refusal of the server.

        Without a valid token, the conversation ends, because the gateway's own requests are refused too.
        """
        if status == _UNAUTHORIZED or listener.token is None:
            self._end(self._credential.explain_missing())
            return

        def on_found(finding: asyncio.Future[str]) -> None:
            if not finding.cancelled() and not self._closed:
                err = finding.exception()
                listener.fail(finding.result() if err is None else "the server refused the request")

        try:
            finding = self._loop.run_in_executor(self._executor, self._credential.explain_refusal, challenge)
        except RuntimeError:
            self._end(_RECONNECTED)
        else:
            finding.add_done_callback(on_found)


class _ConnectedListener(PostListener):
    """Receives the response to a message that was sent with a token."""

    __slots__ = ("_challenge", "_connected", "_is_repeated", "initialize", "token")

    def __init__(  # noqa: PLR0913
        self,
        transport: ConnectedTransport,
        owner: TransportOwner,
        request_id: RequestId | None,
        token: RemoteToken | None,
        *,
        initialize: bool,
        is_repeated: bool = False,
    ) -> None:
        super().__init__(transport, owner, request_id, initialize=initialize)
        self._connected = transport
        self._challenge = ""
        self._is_repeated = is_repeated
        self.initialize = initialize
        self.token = token

    def on_challenge(self, challenge: str) -> None:
        self._challenge = challenge

    def on_message(self, message: bytes) -> None:
        if not self._is_refused:
            super().on_message(message)

    def on_end(self) -> None:
        if not self._is_refused or self._request_id is None:
            super().on_end()
        elif not (
            self._status == _UNAUTHORIZED and not self._is_repeated and self._connected.repeat(self, self._request_id)
        ):
            self._connected.explain(self, self._status, self._challenge)

    def fail(self, reason: str) -> None:
        """Fail the request."""
        self._end(reason)

    @property
    def _is_refused(self) -> bool:
        """Whether the server demands another token. Status 403 without this reason can mean anything."""
        return self._status == _UNAUTHORIZED or (self._status == 403 and _SCOPE_ERROR in self._challenge)


def _build_line(token: RemoteToken | None) -> bytes:
    """Return the header with a token, which has only printable ASCII characters."""
    return b"" if token is None else f"authorization: Bearer {token.access_token}\r\n".encode("ascii")


def _describe(err: PinwardenError) -> str:
    return f"{err.message}. {err.hint}" if err.code == "GRANT_KEY_INVALID" else err.message
