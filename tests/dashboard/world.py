"""A dashboard on a real port, with the reviews of a locked server, and a browser-like client for it."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import unescape
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvicorn

from pinwarden.census.census import Census
from pinwarden.cli.project_arguments import find_current_project
from pinwarden.dashboard.access import LOOPBACK_HOSTS, DashboardUser, SignInCode, build_local_site
from pinwarden.dashboard.app import DashboardApp
from pinwarden.dashboard.provider_login import ProviderLogin
from pinwarden.dashboard.remote_pages import CONNECT_CALLBACK, RemoteConnections
from pinwarden.dashboard.sources import Sources
from pinwarden.gateway.state import GatewayState
from pinwarden.identity.settings import Role


class Answer:
    """A response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, cookies: Sequence[str] = ()) -> None:
        self.status = status
        self.cookies = tuple(cookies)
        self.headers = headers
        self.body = body

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """What a person reads: without tags, blanks joined."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    def values(self, name: str) -> list[str]:
        """The values of the hidden fields of this name."""
        return [
            unescape(value) for value in re.findall(rf'<input type="hidden" name="{name}" value="([^"]*)"', self.html)
        ]


class Client:
    """One browser, as far as HTTP is concerned: it keeps the cookie and sends its origin."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.cookie = ""
        self.base = ""
        """The path of the pages, from the redirect after signing in."""

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, b"", headers)

    def post(self, path: str, fields: Any, **headers: str) -> Answer:
        """Send a form as a page of the dashboard does. A header with the value ``-`` is left out."""
        content = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{self.host}"}
        return self.send("POST", path, urlencode(fields, doseq=True).encode(), {**content, **headers})

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        sent = {"cookie": self.cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(
                method, path, body, {name: value for name, value in sent.items() if value not in ("", "-")}
            )
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            cookies = response.headers.get_all("set-cookie") or ()
            answer = Answer(response.status, headers, response.read(), cookies)
        finally:
            connection.close()
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def sign_in(self, code: str) -> Answer:
        answer = self.post("/sign-in", {"code": code})
        self.base = answer.headers.get("location", "")
        return answer

    def page(self, path: str = "") -> Answer:
        """A page of the dashboard, by its path below the base."""
        return self.get(f"{self.base}{path}")

    def submit(self, path: str, fields: Mapping[str, Any], **headers: str) -> Answer:
        """Send a form with the token of the session."""
        token = self.page("reviews/").values("csrf")[0]
        return self.post(f"{self.base}{path}", {"csrf": token, **fields}, **headers)


class Dashboard:
    """A served dashboard."""

    def __init__(self, url: str, codes: list[str]) -> None:
        self.url = url
        self.codes = codes

    def client(self) -> Client:
        """A client that signed in."""
        made = Client(self.url)
        assert made.sign_in(self.codes[-1]).status == 303
        return made


@contextmanager
def serving_dashboard(
    state: GatewayState,
    *,
    role: Role = "admin",
    name: str = "ana",
    login: ProviderLogin | None = None,
    port: int = 0,
    census: Census | None = None,
) -> Iterator[Dashboard]:
    """Serve the dashboard of the current folder's project from this process."""
    project = find_current_project()
    sources = Sources(state=state, project=project, scopes=(project,), census=census)
    codes: list[str] = []
    site = build_local_site(LOOPBACK_HOSTS, is_secure=False)
    with socket.create_server(("127.0.0.1", port)) as listener:
        remotes = RemoteConnections(sources, f"http://127.0.0.1:{listener.getsockname()[1]}/{CONNECT_CALLBACK}")
        sign_in = login or SignInCode(DashboardUser(name=name, role=role), codes.append)
        app = DashboardApp(sources, site, sign_in, remotes=remotes)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Dashboard(f"http://127.0.0.1:{listener.getsockname()[1]}/", codes)
        finally:
            app.close()
            server.should_exit = True
            thread.join(60)
