"""Relay a client's stdio to a remote server: one message per line in, HTTP requests out, and the responses back.

``pinwarden run`` starts this module as the server process of a remote address, so that the stdio gateway checks its
messages like those of any other server::

    client <-stdio-> pinwarden run NAME <-stdio-> this process <-HTTP-> remote server

The main thread reads lines and posts notifications and responses in order. A separate thread posts each request,
because the response may be a stream that stays open. Headers and the address may contain placeholders such as
``${TOKEN}``, which are filled in from this process's environment: no secret is part of a command line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Full, LifoQueue
from threading import TIMEOUT_MAX, Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.strict_json import parse_json
from pinwarden.gateway.http.header_checks import ROUTING_PARAMETERS, encode_header
from pinwarden.gateway.session.messages import encode
from pinwarden.surface.probe.event_stream import EventParser
from pinwarden.surface.probe.http_transports import SseTransport
from pinwarden.surface.protocol import (
    CANCELLED,
    HANDSHAKE_VERSIONS,
    INITIALIZED,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    VERSION_META,
)
from pinwarden.system.net.connections import NetworkRules, is_private_literal
from pinwarden.system.net.http_client import HttpClient, HttpOptions, HttpRequest, HttpResponse, NoResponse
from pinwarden.system.probe_budget import ProbeBudget, ProbeLimits
from pinwarden.system.target import HttpAddress, HttpTarget, expand_placeholders

if TYPE_CHECKING:
    from pinwarden.identity.grants import Grant
    from pinwarden.identity.remote_tokens import RemoteCredential, RemoteToken

_MAX_REQUESTS = 64  # maximum number of open requests; further requests are queued
_MAX_IDLE_CLIENTS = 8
_MAX_LINE = 64 * 1024 * 1024
_MAX_SESSION_ID = 1024
_POST_SECONDS = 60.0  # time for the server to acknowledge a notification
_DELETE_SECONDS = 2.0
_RECONNECT_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_EVENTS = "text/event-stream"
_SESSION_ENDED = "the server ended the session"
_UNAUTHORIZED = 401
_DENIED = frozenset({_UNAUTHORIZED, 403})
_LIMITS = ProbeLimits(max_message_bytes=_MAX_LINE, max_total_bytes=sys.maxsize)


def main(arguments: Sequence[str] | None = None) -> int:
    """Relay until stdin ends or the server ends the session. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="remote_bridge", allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("--transport", choices=["auto", "streamable-http", "sse"], default="auto")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE")
    parser.add_argument("--allow-private", action="store_true")
    parser.add_argument(
        "--connected-as", default="", metavar="SERVER", help="use the grant for the server of this name"
    )
    parser.add_argument("--settings", default="", metavar="FILE", help="file with [remotes]")
    args = parser.parse_args(arguments)
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in args.header)}
    try:
        target = HttpTarget(
            url=expand_placeholders(args.url, os.environ),
            headers={name: expand_placeholders(value, os.environ) for name, value in headers.items()},
            transport=args.transport,
        )
        credential = _open_credential(args, target) if args.connected_as else None
        return _relay(target, credential, allow_private=args.allow_private)
    except PinwardenError as err:
        sys.stderr.write(f"error: {err.message}\n")
        return 1


def _open_credential(args: argparse.Namespace, target: HttpTarget) -> RemoteCredential:
    """Return the token of this user for the server. Nothing is read before the first request."""
    from pinwarden.project.remote_access import load_remote_settings, open_local_credential

    settings = load_remote_settings(Path(args.settings), os.environ).get(args.connected_as)

    def on_failed(grant: Grant, reason: str) -> None:
        from pinwarden.gateway.remote_grants import build_grant_event, record_grant_event
        from pinwarden.gateway.state import GatewayState

        with GatewayState(find_state_folder(os.environ, home), os.environ.get("PINWARDEN_DATABASE")) as state:
            record_grant_event(state, build_grant_event(GRANT_FAILED, grant, reason=reason))

    from pinwarden.gateway.audit.event import GRANT_FAILED
    from pinwarden.identity.remote_settings import RemoteSettings
    from pinwarden.identity.remote_tokens import RemoteTarget
    from pinwarden.system.state_folder import find_state_folder

    home = Path.home()
    remote = RemoteTarget(
        server=args.connected_as,
        url=target.url,
        settings=settings or RemoteSettings(),
        allow_private=args.allow_private,
    )
    return open_local_credential(remote, os.environ, home, on_failed)


def _relay(target: HttpTarget, credential: RemoteCredential | None, *, allow_private: bool) -> int:
    address = HttpAddress.parse(target.url)
    rules = NetworkRules(allow_private=allow_private or is_private_literal(address.host))
    options = HttpOptions(address=address, headers=target.headers, rules=rules, repeat_if_closed=False)
    bridge = RemoteBridge(options, target.transport, LineOutput(), credential)
    try:
        while line := sys.stdin.buffer.readline(_MAX_LINE + 1):
            if len(line) > _MAX_LINE:
                raise PinwardenError("INPUT_LIMIT", f"a message is longer than {_MAX_LINE} bytes")
            message = _parse_message(line)
            if message is not None:
                bridge.send(line.strip(), message)
    finally:
        bridge.close()
    return 0


class RemoteBridge:
    """Sends the client's messages to one remote server, over Streamable HTTP or the older HTTP+SSE."""

    def __init__(
        self,
        options: HttpOptions,
        transport: str,
        output: LineOutput,
        credential: RemoteCredential | None = None,
    ) -> None:
        self._options = options
        self._credential = credential
        self._output = output
        self._may_be_sse = transport == "auto"
        """Whether the server may still be an HTTP+SSE server. False after its first response."""
        self._sse = SseTransport(options, _create_unlimited_budget()) if transport == "sse" else None
        self._session: dict[str, str] = {}
        """The headers of the session: its id and the revision that ``initialize`` agreed on."""
        self._open: dict[str, HttpClient] = {}
        """The HTTP clients of open requests, by the type and text of the request id (`_make_key`)."""
        self._lock = Lock()
        self._idle: LifoQueue[HttpClient] = LifoQueue(_MAX_IDLE_CLIENTS)
        self._threads = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="request")
        self._closed = Event()

    def send(self, line: bytes, message: Mapping[str, Any]) -> None:
        """Send one message of the client. Returns before the response to a request arrives."""
        if self._sse is not None:
            self._send_to_stream(self._sse, line, message)
        elif "method" in message and "id" in message:
            self._threads.submit(self._send_request, line, message)
        else:
            self._notify(line, message)

    def close(self) -> None:
        """Cancel open requests, end the session and close all connections."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            clients = list(self._open.values())
        for client in clients:
            client.abort()
        if self._sse is not None:
            self._sse.abort()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if "mcp-session-id" in self._session:
            with suppress(PinwardenError, NoResponse), self._borrow_client() as client:
                self._send_http_request(client, "DELETE", {}, wait=_DELETE_SECONDS).close()

    # Streamable HTTP

    def _send_request(self, line: bytes, message: Mapping[str, Any]) -> None:
        """Post a request and write every message of its response. A request without a response gets an error."""
        key = _make_key(message["id"])
        problem = "the server sent no response"
        try:
            with self._borrow_client() as client:
                with self._lock:
                    self._open[key] = client
                response = self._send_http_request(client, "POST", message, line)
                if response.status in _DENIED and self._credential is not None:
                    problem = _explain_refusal(self._credential, response)
                    response.close()
                elif self._is_sse_server(response):
                    response.close()
                    self._switch_to_sse(line, message)
                    return
                elif self._write_response(response, message):
                    return
                else:
                    problem = _describe_status(response.status)
        except NoResponse:
            problem = "the server closed the connection before it responded"
        except PinwardenError as err:
            problem = f"{err.message}. {err.hint}" if err.code == "GRANT_KEY_INVALID" else err.message
        finally:
            with self._lock:
                cancelled = self._open.pop(key, None) is None
        if not (cancelled or self._closed.is_set()):
            self._output.write(encode(_build_error(message["id"], problem)))

    def _write_response(self, response: HttpResponse, message: Mapping[str, Any]) -> bool:
        """Write the messages of an HTTP response. Returns whether they include the response to the request."""
        if response.status == 404 and "mcp-session-id" in self._session:
            response.close()
            self._end_session()
            return False
        if message["method"] == "initialize" and response.status < 300:
            self._store_session_id(response)
        is_stream = response.content_type == _EVENTS and response.status < 400
        has_responded = False
        for data in _iterate_events(response) if is_stream else (response.body(_MAX_LINE),):
            parsed = _parse_message(data)
            if parsed is None or (response.status >= 400 and "error" not in parsed):
                continue
            is_response = response.status >= 400 or _is_response(parsed, message["id"])
            if is_response and message["method"] == "initialize":
                self._store_version(parsed)
            has_responded = has_responded or is_response
            # A server that could not parse the request does not know its id.
            self._output.write(data if response.status < 400 else encode({**parsed, "id": message["id"]}))
            if is_response and is_stream:
                break  # the server may keep the connection open
        if is_stream:
            response.close()
        return has_responded

    def _notify(self, line: bytes, message: Mapping[str, Any]) -> None:
        """Post a notification, or the response to a request of the server, and wait until the server accepted it."""
        if message.get("method") == CANCELLED:
            self._cancel(message)
            if not self._session:
                return  # a stateless server notices the closed connection
        try:
            with self._borrow_client() as client:
                response = self._send_http_request(client, "POST", message, line, wait=_POST_SECONDS)
                status = response.status
                response.close()
        except NoResponse:
            return
        if status == 404 and "mcp-session-id" in self._session:
            self._end_session()
        elif message.get("method") == INITIALIZED:
            Thread(target=self._listen, name="notifications", daemon=True).start()

    def _cancel(self, message: Mapping[str, Any]) -> None:
        params = message.get("params")
        request_id = params.get("requestId") if isinstance(params, dict) else None
        with self._lock:
            client = self._open.pop(_make_key(request_id), None)
        if client is not None:
            client.abort()

    def _listen(self) -> None:
        """Read the notification stream of the session, and reconnect when it ends. Servers need not have one."""
        attempt = 0
        while not self._closed.is_set():
            with suppress(NoResponse, PinwardenError), self._borrow_client() as client:
                response = self._send_http_request(client, "GET", {})
                if response.status != 200 or response.content_type != _EVENTS:
                    response.close()
                    if response.status < 500:
                        return
                else:
                    for data in _iterate_events(response):
                        attempt = 0
                        self._output.write(data)
            self._closed.wait(_RECONNECT_SECONDS[min(attempt, len(_RECONNECT_SECONDS) - 1)])
            attempt += 1

    def _send_http_request(
        self,
        client: HttpClient,
        method: str,
        message: Mapping[str, Any],
        line: bytes | None = None,
        wait: float | None = None,
    ) -> HttpResponse:
        """Send a request with the user's token, if there is one. If the server refuses the token, try once with a new
        one: it did not execute the request."""
        request = self._build_http_request(method, message, line, wait)
        if self._credential is None:
            return client.request(request)
        token = self._credential.load()
        response = client.request(_authorize(request, token))
        if response.status != _UNAUTHORIZED or token is None:
            return response
        response.close()
        return client.request(_authorize(request, self._credential.load(token.access_token)))

    def _build_http_request(
        self, method: str, message: Mapping[str, Any], line: bytes | None = None, wait: float | None = None
    ) -> HttpRequest:
        headers = {"Accept": _EVENTS if method == "GET" else f"application/json, {_EVENTS}"}
        if line is not None:
            headers["Content-Type"] = "application/json"
        headers |= _build_stateless_headers(message) or self._session
        return HttpRequest(method=method, address=self._options.address, headers=headers, body=line, wait=wait)

    @contextmanager
    def _borrow_client(self) -> Iterator[HttpClient]:
        """Yield an HTTP client that no other thread uses, and close its connection after a failure."""
        try:
            client = self._idle.get_nowait()
        except Empty:
            client = HttpClient(self._options, _create_unlimited_budget())
        try:
            yield client
        except BaseException:
            client.close()
            raise
        try:
            if client.aborted:
                raise Full
            self._idle.put_nowait(client)
        except Full:
            client.close()

    def _store_session_id(self, response: HttpResponse) -> None:
        session = response.header("mcp-session-id")
        if session and len(session) <= _MAX_SESSION_ID and session.isascii() and session.isprintable():
            self._session = {**self._session, "mcp-session-id": session}

    def _store_version(self, response: Mapping[str, Any]) -> None:
        result = response.get("result")
        version = result.get("protocolVersion") if isinstance(result, dict) else None
        if version in HANDSHAKE_VERSIONS:
            self._session = {**self._session, "mcp-protocol-version": str(version)}

    def _end_session(self) -> None:
        """End this process, so that the client starts a new session and the gateway checks the surface again."""
        if not self._closed.is_set():
            sys.stderr.write(f"error: {_SESSION_ENDED}\n")
            sys.stderr.flush()
            os._exit(1)  # the main thread waits for the client's next message

    # HTTP+SSE

    def _is_sse_server(self, response: HttpResponse) -> bool:
        """Whether the response to the first POST shows that the server supports only HTTP+SSE."""
        first, self._may_be_sse = self._may_be_sse, False
        refused = 400 <= response.status < 500 and response.status not in _DENIED
        return first and refused and response.content_type != "application/json"

    def _switch_to_sse(self, line: bytes, message: Mapping[str, Any]) -> None:
        self._sse = SseTransport(self._options, _create_unlimited_budget())
        self._send_to_stream(self._sse, line, message)

    def _send_to_stream(self, transport: SseTransport, line: bytes, message: Mapping[str, Any]) -> None:
        is_request = "method" in message and "id" in message
        is_first = not transport.is_open
        try:
            transport.send(line, {}, expects_response=is_request, wait=_POST_SECONDS)
        except PinwardenError as err:
            if is_request:
                self._output.write(encode(_build_error(message["id"], err.message)))
        if is_first and transport.is_open:
            Thread(target=self._read_stream, args=(transport,), name="stream", daemon=True).start()

    def _read_stream(self, transport: SseTransport) -> None:
        while isinstance(data := transport.receive(), bytes):
            self._output.write(data)
        self._end_session()


class LineOutput:
    """Writes messages to stdout, one line each, from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()

    def write(self, data: bytes) -> None:
        """Write one message. Line ends become spaces, because valid JSON has line ends only between tokens."""
        line = data.replace(b"\r", b" ").replace(b"\n", b" ").strip() + b"\n"
        with self._lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def _build_stateless_headers(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat parts of a message in stateless revisions; empty for other revisions."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION_META) if isinstance(meta, dict) else None
    if version not in STATELESS_VERSIONS or not isinstance(params, dict):
        return {}
    method = str(message.get("method"))
    headers = {"mcp-protocol-version": version, "mcp-method": encode_header(method)}
    name = params.get(ROUTING_PARAMETERS.get(method, ""))
    if isinstance(name, str):
        headers["mcp-name"] = encode_header(name)
    return headers


def _iterate_events(response: HttpResponse) -> Iterator[bytes]:
    parser = EventParser(_MAX_LINE)
    for chunk in response.chunks():
        yield from (event.data for event in parser.feed(chunk) if event.name == "message")


def _parse_message(data: bytes) -> dict[str, Any] | None:
    """Parse a JSON-RPC message. Returns None if the bytes are not one JSON object."""
    try:
        parsed = parse_json(data, _LIMITS.json)
    except PinwardenError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _is_response(message: Mapping[str, Any], request_id: Any) -> bool:
    return "method" not in message and "id" in message and _make_key(message["id"]) == _make_key(request_id)


def _make_key(request_id: Any) -> str:
    """Return a key for a request id that differs between the number 1 and the string "1"."""
    return f"{type(request_id).__name__} {request_id}"


def _build_error(request_id: Any, problem: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": SERVER_UNAVAILABLE, "message": problem}}


def _authorize(request: HttpRequest, token: RemoteToken | None) -> HttpRequest:
    return (
        request
        if token is None
        else replace(request, headers={**request.headers, "Authorization": f"Bearer {token.access_token}"})
    )


def _explain_refusal(credential: RemoteCredential, response: HttpResponse) -> str:
    if response.status == _UNAUTHORIZED or credential.token is None:
        return credential.explain_missing()
    return credential.explain_refusal(response.header("www-authenticate") or "")


def _describe_status(status: int) -> str:
    if status in _DENIED:
        return (
            f"the server requires authentication (HTTP status {status}); connect it with pinwarden remote connect, or "
            "add its header to the client's entry"
        )
    return f"the server responded with HTTP status {status}" if status >= 300 else "the server sent no response"


def _create_unlimited_budget() -> ProbeBudget:
    """Create a budget without a total limit, because a session can last forever. Single messages are still limited."""
    return ProbeBudget(_LIMITS, TIMEOUT_MAX / 2)


if __name__ == "__main__":
    sys.exit(main())
