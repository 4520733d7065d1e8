"""Receives the redirect of an authorization server on this machine (RFC 8252, section 7.3), for commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.identity.code_flow import MAX_QUERY_LENGTH, login_error

_PATH = "/callback"
_REQUEST_SECONDS = 5.0
_PAGE = "<!doctype html><meta charset=utf-8><title>Pinwarden</title><p>{text}</p>"
_DONE = "The login is complete. You can close this window and go back to the terminal."
_NOT_DONE = "This request does not belong to the login that waits in the terminal."


class LoopbackRedirect:
    """A server for one redirect, on a free port of 127.0.0.1. Use as a context manager."""

    def __init__(self, port: int = 0) -> None:
        """``port`` is 0 for any free one. Some providers accept only redirect URIs with a registered port."""
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except OSError as err:
            raise PinwardenError("USAGE", f"cannot listen on 127.0.0.1:{port}: {err.strerror or err}") from err
        self.uri = f"http://127.0.0.1:{self._server.server_port}{_PATH}"
        """The redirect URI."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.server_close()

    def wait(self, belongs: Callable[[str], bool], seconds: float, uri: str = "") -> str:
        """Return the query of the first redirect for which ``belongs`` is true. ``uri`` may be below `uri`.

        Other requests are refused: any program and web page can send requests to this port.
        """
        server = self._server
        server.belongs = belongs
        server.path = urlsplit(uri or self.uri).path
        end = time.monotonic() + seconds
        while server.query is None:
            server.timeout = end - time.monotonic()
            if server.timeout <= 0:
                raise login_error("expired", "the login was not completed in time")
            server.handle_request()
        return server.query


class _Server(HTTPServer):
    allow_reuse_address = False
    query: str | None = None
    path = _PATH
    belongs: Callable[[str], bool] = staticmethod(lambda _: False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore requests that are malformed or end early."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS
    server_version = "pinwarden"
    sys_version = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        own_host = self.headers.get("host") == f"127.0.0.1:{self.server.server_port}"
        if path == self.server.path and own_host and len(query) <= MAX_QUERY_LENGTH and self.server.belongs(query):
            self.server.query = query
            self._respond(200, _DONE)
        else:
            self._respond(400 if path == self.server.path else 404, _NOT_DONE)

    def _respond(self, status: int, text: str) -> None:
        body = _PAGE.format(text=text).encode()
        self.send_response(status)
        for name, value in (
            ("content-type", "text/html; charset=utf-8"),
            ("content-length", str(len(body))),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the library's
        """Write nothing: the query has a code."""
