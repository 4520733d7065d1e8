"""Container registries on this machine: Debian's own ``docker-registry``, and a scripted one that lies."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

from tests.servers.listening import listening
from tests.support.needs import needs

needs_registry = needs("docker-registry", install="apt-get install docker-registry")
needs_skopeo = needs("skopeo", install="apt-get install skopeo")
needs_htpasswd = needs("htpasswd", install="apt-get install apache2-utils")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRegistry:
    """A running registry that keeps its content in a folder, where a test can change it."""

    host: str
    data: Path
    headers: Mapping[str, str] = field(default_factory=dict)
    """What a push needs."""

    def put_blob(self, name: str, data: bytes, digest: str) -> None:
        started = self._send("POST", f"/v2/{name}/blobs/uploads/", b"")
        mark = "&" if "?" in started else "?"
        self._send("PUT", f"{started}{mark}digest={digest}", data, {"content-type": "application/octet-stream"})

    def put_manifest(self, name: str, tag: str, data: bytes, media_type: str) -> None:
        self._send("PUT", f"/v2/{name}/manifests/{tag}", data, {"content-type": media_type})

    def blob_file(self, digest: str) -> Path:
        """Where the bytes of a manifest, config or layer are."""
        algorithm, _, value = digest.partition(":")
        return self.data / "docker/registry/v2/blobs" / algorithm / value[:2] / value / "data"

    def move_tag(self, name: str, tag: str, digest: str) -> None:
        """What an owner of the storage does: no push, no log."""
        link = self.data / "docker/registry/v2/repositories" / name / "_manifests/tags" / tag / "current/link"
        link.write_text(digest)

    def _send(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
        url = path if path.startswith("http") else f"http://{self.host}{path}"
        request = Request(url, data=body, method=method, headers={**self.headers, **(headers or {})})
        with urlopen(request, timeout=60) as response:
            return str(response.headers.get("Location", ""))


@contextmanager
def docker_registry(
    folder: Path, *, auth: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Iterator[DockerRegistry]:
    """Debian's registry on a free port. ``auth`` is that part of its settings."""
    data = folder / "data"
    settings: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(data)}},
        "http": {"addr": "127.0.0.1:0", "secret": "a secret of this test"},
    }
    if auth:
        settings["auth"] = dict(auth)
    file = folder / "registry.yml"
    file.write_text(json.dumps(settings))  # YAML can be written as JSON
    with subprocess.Popen(["docker-registry", "serve", str(file)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = ""
        for line in process.stderr:
            if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
                port = found[1]
                break
        drain = Thread(target=process.stderr.read)
        drain.start()
        try:
            assert port, "docker-registry did not start"
            yield DockerRegistry(host=f"127.0.0.1:{port}", data=data, headers=headers or {})
        finally:
            process.terminate()
            process.wait(60)
            drain.join(60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a scripted server answers."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Scripted:
    """A server that answers as a test says, and remembers who asked."""

    host: str
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], Reply] = lambda _: Reply(status=404)

    def authorizations(self) -> list[str | None]:
        """The credential of each request."""
        return [each.headers.get("authorization") for each in self.asked]


@contextmanager
def scripted(*, tls: ssl.SSLContext | None = None, name: str = "127.0.0.1") -> Iterator[Scripted]:
    """Such a server on a free port, reached as ``name``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, or the client waits for the second

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {key.lower(): value for key, value in self.headers.items()}
            asked = Asked(method=self.command, path=self.path, headers=headers, body=body)
            server.asked.append(asked)
            reply = server.answer(asked)
            self.send_response(reply.status)
            for key, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815 - the name is given

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with listening(Handler, tls) as port:
        server = Scripted(host=f"{name}:{port}")
        yield server
