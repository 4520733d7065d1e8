"""Where alerts arrive: an HTTP server that remembers what was posted, and a real mail server."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.ports import reserved_port


@dataclass(frozen=True)
class Post:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    url: str
    posts: list[Post] = field(default_factory=list)
    status: int = 200


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Answer every POST with ``status`` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.posts.append(Post(self.path, headers, body))
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Mailbox:
    port: int = 0
    messages: list[tuple[list[str], Message]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content
        assert isinstance(content, bytes)
        self.messages.append((envelope.rcpt_tos, message_from_bytes(content)))
        return "250 OK"


@contextmanager
def mail_server(tls: ssl.SSLContext | None = None) -> Iterator[Mailbox]:
    """A mail server on loopback. With ``tls`` it demands STARTTLS and a login with the password ``right``."""
    mailbox = Mailbox()

    def authenticate(_server: SMTP, _session: Session, _envelope: Envelope, _method: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        mailbox.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)

    options: dict[str, Any] = {}
    if tls is not None:
        options = {"tls_context": tls, "require_starttls": True, "auth_required": True, "authenticator": authenticate}
    mailbox.port = reserved_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port, **options)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
