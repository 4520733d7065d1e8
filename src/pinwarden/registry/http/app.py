"""The registry's ASGI application: public reads, and writes with a token.

Content under a CID never changes, so it is cached in memory and marked as immutable. Database work runs in separate
thread pools for reads, writes and authentication, so that slow writes do not delay reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import Any

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pinwarden.bundle.document import encode_document
from pinwarden.core.errors import PinwardenError
from pinwarden.core.signed_note import Note
from pinwarden.registry.access import Caller
from pinwarden.registry.http import operations as writing
from pinwarden.registry.http import routes
from pinwarden.registry.http.comparisons import Comparisons
from pinwarden.registry.http.page_routes import PageRoutes
from pinwarden.registry.http.routes import build_error_response, refuse_nul_bytes
from pinwarden.registry.metrics import MEDIA_TYPE, RequestMetrics, render_metrics
from pinwarden.registry.names import CHECKPOINT
from pinwarden.registry.read_api import BRIEFLY, BYTES, FOREVER, JSON, TEXT, RegistryFile, find_file
from pinwarden.registry.readiness import Readiness
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import operators
from pinwarden.registry.witness_client import WitnessClient

_READERS = 16  # threads, each with its own database connection
_WRITERS = 4  # few, because a publish takes seconds and keeps an archive in memory
_WRITERS_PER_NAMESPACE = _WRITERS // 2  # per namespace, so that a slow publisher leaves half of the writers to others
_MAX_WAITING_PER_NAMESPACE = 32
_MAX_WAITING_FOR_WITNESSES = 32  # threads; each waits for at most a few seconds
_AUTHENTICATORS = 4  # threads for authentication, which may wait for a database lock
_CACHE_CONTROL = {
    FOREVER: "public, max-age=31536000, immutable",
    BRIEFLY: "public, max-age=60",
}
_FILE_PATHS = (
    "pointers/",
    "documents/",
    "manifests/",
    "attestations/",
    "blobs/",
    "log/",
    "versions/",
    "tools",
    "registry.",
)
_SECURITY_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'"))
Work = Callable[..., Any]


class RegistryApp:
    """An ASGI application for one registry."""

    def __init__(self, registry: Registry, witnesses: WitnessClient | None = None) -> None:
        self._registry = registry
        self._witnesses = witnesses
        self._waiting: CapacityLimiter | None = None
        self.requests = RequestMetrics()
        self._cache = FileCache()
        self._readiness = Readiness(registry)
        self._status_pages: CapacityLimiter | None = None
        self._readers: CapacityLimiter | None = None
        self._writers: CapacityLimiter | None = None
        self._authenticators: CapacityLimiter | None = None
        self._namespace_limiters: dict[str, CapacityLimiter] = {}
        self._comparisons = Comparisons(registry, self.run_read)
        pages = PageRoutes(registry, self.run_read, self._comparisons)
        self._inner = Starlette(
            routes=[*self._build_routes(), *pages.build_routes()], exception_handlers={404: pages.respond}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: files directly, everything else through its route."""
        if scope["type"] != "http":
            return
        response: ASGIApp = self._inner
        path = scope["path"][1:]
        if scope["method"] in ("GET", "HEAD") and path.startswith(_FILE_PATHS):
            try:
                response = await self._serve_file(path) or self._inner
            except PinwardenError as err:
                response = build_error_response(err)
        await response(scope, receive, send)

    async def _serve_file(self, path: str) -> ASGIApp | None:
        """Return the response for a file, from the cache, the disk or the database; None if there is no such file."""
        if path == CHECKPOINT and (note := await self._settle()) is not None:
            return partial(_send_file, RegistryFile(body=bytes(note), media_type=TEXT))
        file = self._cache.get(path)
        if path.startswith("blobs/") and await self.run_read(self._is_taken_down, path):
            return None
        if file is None and path.startswith("blobs/"):
            large: Response | None = await self.run_read(self._serve_large_file, path)
            if large is not None:
                return large
        if file is None:
            file = await self.run_read(find_file, self._registry, path)
            if file is None:
                return None
            if file.cache == FOREVER:
                self._cache.add(path, file)
        return partial(_send_file, file)

    async def run_read(self, function: Work, *args: Any) -> Any:
        """Run a blocking function in the pool for reads."""
        if self._readers is None:  # needs a running event loop
            self._readers = CapacityLimiter(_READERS)
        return await anyio.to_thread.run_sync(partial(function, *args), limiter=self._readers)

    def _is_taken_down(self, path: str) -> bool:
        """Whether an archive must not be served. Asked each time, because the operator can take it down any time."""
        with self._registry.database.transaction() as transaction:
            return operators.is_archive_taken_down(transaction, path.removeprefix("blobs/"))

    def _serve_large_file(self, path: str) -> Response | None:
        """Return a response that streams a large archive; None for other files. Clients verify it, not the registry."""
        try:
            file = self._registry.blobs.find_path(path.removeprefix("blobs/"))
        except PinwardenError:
            return None
        if file is None or file.stat().st_size <= MAX_CACHED_FILE:
            return None
        headers = {name.decode(): value.decode() for name, value in _SECURITY_HEADERS} | {
            "cache-control": _CACHE_CONTROL[FOREVER]
        }
        return FileResponse(file, media_type=BYTES, headers=headers)

    def _build_routes(self) -> list[Route]:
        def route(path: str, work: Callable[[Registry, Request, bytes], Response], methods: list[str]) -> Route:
            return Route(path, self._build_read_endpoint(work), methods=methods)

        return [
            route("/health", routes.get_health, ["GET"]),
            route("/openapi.json", routes.get_openapi, ["GET"]),
            Route("/readyz", self._get_readiness, methods=["GET"]),
            Route("/metrics", self._get_metrics, methods=["GET"]),
            route("/api/search", routes.get_search, ["GET"]),
            Route("/api/compare/{tool}/{before}/{after}", self._compare, methods=["GET"]),
            route("/v0.1/servers", routes.get_servers, ["GET"]),
            route("/v0.1/servers/{name:path}/versions", routes.get_versions, ["GET"]),
            route("/v0.1/servers/{name:path}/versions/{version}", routes.get_version, ["GET"]),
            *(
                Route(path, self._build_write_endpoint(operation), methods=[operation.method])
                for path, operation in (
                    ("/api/blobs/{cid}", writing.UPLOAD),
                    ("/api/publish", writing.PUBLISH),
                    ("/api/change", writing.CHANGE),
                    ("/api/attestations", writing.ATTEST),
                    ("/api/cosignatures", writing.COSIGN),
                )
            ),
        ]

    async def _get_readiness(self, _request: Request) -> Response:
        """``GET /readyz``: whether the registry can do its work, and otherwise each problem with its code."""
        problems = await self._run_status(self._readiness.find_problems)
        body = {"status": "unavailable" if problems else "ready", "problems": problems}
        headers = {"cache-control": "no-store"}
        return Response(encode_document(body), 503 if problems else 200, headers=headers, media_type=JSON)

    async def _get_metrics(self, _request: Request) -> Response:
        """``GET /metrics``: metrics in the text format of Prometheus."""
        text = await self._run_status(
            lambda: render_metrics(self._registry, self.requests, self._readiness.find_problems())
        )
        return Response(text, media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})

    async def _run_status(self, function: Work) -> Any:
        """Run a check on a thread of its own pool, so that a database that hangs does not delay the answer."""
        if self._status_pages is None:
            self._status_pages = CapacityLimiter(2)
        return await anyio.to_thread.run_sync(function, limiter=self._status_pages)

    async def _compare(self, request: Request) -> Response:
        try:
            refuse_nul_bytes(request)
            return await self._comparisons.respond(request)
        except PinwardenError as err:
            return build_error_response(err)

    def _build_read_endpoint(
        self, work: Callable[[Registry, Request, bytes], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                refuse_nul_bytes(request)
                response: Response = await self.run_read(work, self._registry, request, b"")
            except PinwardenError as err:
                return build_error_response(err)
            return response

        return endpoint

    def _build_write_endpoint(self, operation: writing.WriteOperation) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that authenticates the caller before reading the body."""

        async def endpoint(request: Request) -> Response:
            caller = None
            try:
                limit = operation.limit(self._registry)
                length = _read_content_length(request, limit)
                caller = await self._authenticate(operation.admit, self._registry, request, length)
                value = await self._run_write(operation, caller, request, length)
                if operation in (writing.PUBLISH, writing.CHANGE):
                    await self._settle()
            except PinwardenError as err:
                await self._authenticate(writing.audit_refusal, self._registry, caller, operation.name, err)
                return build_error_response(err)
            except (ClientDisconnect, TimeoutError):
                return Response(status_code=408)
            return Response(encode_document(value), media_type=JSON)

        return endpoint

    async def _settle(self) -> Note | None:
        """Wait for the witnesses, for a bounded time. Returns a cosigned checkpoint that is at least as new as now."""
        if self._witnesses is None:
            return None
        if self._waiting is None:
            self._waiting = CapacityLimiter(_MAX_WAITING_FOR_WITNESSES)
        return await anyio.to_thread.run_sync(self._witnesses.settle, limiter=self._waiting)

    async def _authenticate(self, function: Work, *args: Any) -> Any:
        """Run a blocking function in the pool for authentication."""
        if self._authenticators is None:
            self._authenticators = CapacityLimiter(_AUTHENTICATORS)
        return await anyio.to_thread.run_sync(partial(function, *args), limiter=self._authenticators)

    async def _run_write(
        self, operation: writing.WriteOperation, caller: Caller | None, request: Request, length: int
    ) -> Any:
        """Read the body and run the operation within the limits for its namespace and for all writers.

        Bodies of unauthenticated requests are read before taking a slot, so that slow senders block no publisher.
        """
        if self._writers is None:
            self._writers = CapacityLimiter(_WRITERS)
        received = await _read_body(operation, request, length) if caller is None else None
        async with self._get_namespace_limiter(caller) if caller is not None else nullcontext(), self._writers:
            body = await _read_body(operation, request, length) if received is None else received
            run = partial(operation.run, self._registry, caller, request, body)
            return await anyio.to_thread.run_sync(run, limiter=CapacityLimiter(1))

    def _get_namespace_limiter(self, caller: Caller) -> CapacityLimiter:
        """Return the limiter of a namespace. Raises if too many requests are waiting, since each keeps a connection."""
        limiter = self._namespace_limiters.setdefault(caller.token.namespace, CapacityLimiter(_WRITERS_PER_NAMESPACE))
        if limiter.statistics().tasks_waiting >= _MAX_WAITING_PER_NAMESPACE:
            problem = f"{_MAX_WAITING_PER_NAMESPACE} requests of {caller.token.namespace} are already waiting"
            raise PinwardenError("PUBLISH_LIMIT", problem, data={"reason": "rate"})
        return limiter


async def _read_body(operation: writing.WriteOperation, request: Request, length: int) -> bytes:
    with anyio.fail_after(operation.compute_body_timeout(length)):
        return await _receive_body(request, length)


def _read_content_length(request: Request, limit: int) -> int:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or len(length) > 15:
        raise PinwardenError("PUBLISH_LIMIT", "a request needs a Content-Length header")
    if int(length) > limit:
        raise PinwardenError("PUBLISH_LIMIT", f"the request has {int(length)} bytes; the limit is {limit}")
    return int(length)


async def _receive_body(request: Request, limit: int) -> bytes:
    body = BytesIO()  # one buffer, so that a large archive is in memory only once
    async for chunk in request.stream():
        if body.tell() + len(chunk) > limit:
            raise PinwardenError("PUBLISH_LIMIT", f"the request exceeds {limit} bytes")
        body.write(chunk)
    return body.getvalue()


async def _send_file(file: RegistryFile, scope: Scope, _receive: Receive, send: Send) -> None:
    """Send a file as plain ASGI messages. Bypasses Starlette, because this is the hot path of every install."""
    etag = b'"' + sha256(file.body).hexdigest()[:32].encode() + b'"' if file.cache != FOREVER else b'"forever"'
    headers = [
        (b"content-type", file.media_type.encode()),
        (b"cache-control", _CACHE_CONTROL.get(file.cache, "no-cache").encode()),
        (b"etag", etag),
        *_SECURITY_HEADERS,
    ]
    unchanged = any(name == b"if-none-match" and value == etag for name, value in scope["headers"])
    body = b"" if unchanged or scope["method"] == "HEAD" else file.body
    headers.append((b"content-length", str(0 if unchanged else len(file.body)).encode()))
    await send({"type": "http.response.start", "status": 304 if unchanged else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_MAX_CACHE_BYTES = 64 * 1024 * 1024
MAX_CACHED_FILE = 1024 * 1024


class FileCache:
    """A least-recently-used cache of immutable files, limited by bytes. Used only on the event loop."""

    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._files: OrderedDict[str, RegistryFile] = OrderedDict()
        self._max_bytes = max_bytes
        self._size = 0

    def get(self, path: str) -> RegistryFile | None:
        """Return the cached file of a path; None if it is not cached."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
        return file

    def add(self, path: str, file: RegistryFile) -> None:
        """Add a file, and evict the least recently used files beyond the limit."""
        if len(file.body) > MAX_CACHED_FILE or path in self._files:
            return
        self._files[path] = file
        self._size += len(file.body)
        while self._size > self._max_bytes:
            _, oldest = self._files.popitem(last=False)
            self._size -= len(oldest.body)
