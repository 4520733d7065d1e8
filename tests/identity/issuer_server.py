"""An issuer that publishes whatever a test wants, to see what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from tests.support.oidc_provider import SigningKey

METADATA = "/.well-known/oauth-authorization-server"


class IssuerServer:
    """A server on loopback with an answer for each path: a JSON value, or a function that writes the response."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: Counter[str] = Counter()
        self.away = False
        self.released = Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests[self.path] += 1
                answer = server.answers.get(self.path)
                if server.away or answer is None:
                    self.send_error(503 if server.away else 404)
                elif callable(answer):
                    answer(self)
                else:
                    self.respond(json.dumps(answer).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def respond(self, body: bytes, content_type: str = "application/json") -> None:
                self.send_response(200)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def redirect(self, location: str) -> None:
                self.send_response(302)
                self.send_header("location", location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def publish(self, *keys: SigningKey, **metadata: Any) -> None:
        """Publish metadata with these keys. ``metadata`` adds or replaces members."""
        self.answers[METADATA] = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
            "code_challenge_methods_supported": ["S256"],
            **metadata,
        }
        self.answers["/jwks"] = {"keys": [key.jwk() for key in keys]}


@contextmanager
def issuer_server() -> Iterator[IssuerServer]:
    server = IssuerServer()
    thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def identity_table(issuer: str, gateway: str = "http://127.0.0.1:8642", **login: str) -> str:
    """The settings with which an issuer counts for clients, and for people with these members of the login."""
    members = "".join(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in login.items())
    return f"""
[identity]
issuer = "{issuer}"

[identity.clients]
url = "{gateway}"

[identity.login]
client-id = "dashboard"
scopes = ["openid", "profile", "email", "groups"]
{members}
[identity.roles]
viewer = ["staff"]
reviewer = ["reviewers"]
admin = ["security"]
"""
