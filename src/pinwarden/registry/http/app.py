"""The HTTP face of a registry: reading for everybody, writing for those with a token.

What a CID names never changes, so it is kept in memory and told to be kept for ever. All work on the database is done
in a few threads, so that a slow one holds up nobody who reads.
"""

from __future__ import annotations

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

from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.errors import PinwardenError
from pinwarden.registry.authorization import Caller
from pinwarden.registry.http import changes as writing
from pinwarden.registry.http import official
from pinwarden.registry.http import queries as reading
from pinwarden.registry.http.cache import LARGEST_KEPT, FoundCache
from pinwarden.registry.http.comparisons import Comparisons
from pinwarden.registry.http.errors import refusal
from pinwarden.registry.read_api import BRIEFLY, BYTES, FOREVER, JSON, Found, find
from pinwarden.registry.registry import Registry

_READERS = 16  # threads; each has a connection to the database of its own
_WRITERS = 4  # a publish may take seconds and holds an archive in memory; it must not take the place of readers
_OF_ONE = _WRITERS // 2  # whoever sends slowly, or whose servers are slow to ask, leaves half of them to others
_WAITING_OF_ONE = 32
_ADMITTING = 4  # threads that count the uses of tokens, for which they may have to wait for each other
_KEPT = {
    FOREVER: "public, max-age=31536000, immutable",
    BRIEFLY: "public, max-age=60",
}
_FILES = ("pointers/", "documents/", "manifests/", "attestations/", "blobs/", "log/", "versions/", "tools", "registry.")
_SAFE = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'"))
Work = Callable[..., Any]


class RegistryApp:
    """An ASGI application for one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._cache = FoundCache()
        self._readers: CapacityLimiter | None = None
        self._writers: CapacityLimiter | None = None
        self._admitting: CapacityLimiter | None = None
        self._turns: dict[str, CapacityLimiter] = {}
        self._comparisons = Comparisons(registry, self.work)
        self._inner = Starlette(routes=self._routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Files of the layout are answered here, everything else by its route."""
        if scope["type"] != "http":
            return
        answer: ASGIApp = self._inner
        path = scope["path"][1:]
        if scope["method"] in ("GET", "HEAD") and path.startswith(_FILES):
            try:
                answer = await self._file(path) or self._inner
            except PinwardenError as err:
                answer = refusal(err)
        await answer(scope, receive, send)

    async def _file(self, path: str) -> ASGIApp | None:
        """What sends the file at a path: from memory, from the disk piece by piece, or from the database."""
        found = self._cache.get(path)
        if found is None and path.startswith("blobs/"):
            large: Response | None = await self.work(self._large_file, path)
            if large is not None:
                return large
        if found is None:
            found = await self.work(find, self._registry, path)
            if found is None:
                return None
            if found.kept == FOREVER:
                self._cache.keep(path, found)
        return partial(_send_found, found)

    async def work(self, function: Work, *args: Any) -> Any:
        """Do something that waits, in one of a few threads."""
        if self._readers is None:  # not before there is an event loop
            self._readers = CapacityLimiter(_READERS)
        return await anyio.to_thread.run_sync(partial(function, *args), limiter=self._readers)

    def _large_file(self, path: str) -> Response | None:
        """An archive that is sent from its file piece by piece. Whoever asked checks it against the CID in any case."""
        try:
            file = self._registry.blobs.file_of(path.removeprefix("blobs/"))
        except PinwardenError:
            return None
        if file is None or file.stat().st_size <= LARGEST_KEPT:
            return None
        headers = {name.decode(): value.decode() for name, value in _SAFE} | {"cache-control": _KEPT[FOREVER]}
        return FileResponse(file, media_type=BYTES, headers=headers)

    def _routes(self) -> list[Route]:
        def route(path: str, work: Callable[[Registry, Request, bytes], Response], methods: list[str]) -> Route:
            return Route(path, self._endpoint(work), methods=methods)

        return [
            route("/health", reading.health, ["GET"]),
            route("/api/search", reading.search, ["GET"]),
            Route("/api/compare/{tool}/{before}/{after}", self._compare, methods=["GET"]),
            route("/v0.1/servers", official.servers, ["GET"]),
            route("/v0.1/servers/{name:path}/versions", official.versions, ["GET"]),
            route("/v0.1/servers/{name:path}/versions/{version}", official.version, ["GET"]),
            *(
                Route(path, self._writing(each), methods=[each.method])
                for path, each in (
                    ("/api/blobs/{cid}", writing.UPLOAD),
                    ("/api/publish", writing.PUBLISH),
                    ("/api/change", writing.CHANGE),
                    ("/api/attestations", writing.ATTEST),
                    ("/api/cosignatures", writing.COSIGN),
                )
            ),
        ]

    async def _compare(self, request: Request) -> Response:
        try:
            _refuse_zeros(request)
            return await self._comparisons.answer(request)
        except PinwardenError as err:
            return refusal(err)

    def _endpoint(
        self, work: Callable[[Registry, Request, bytes], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                _refuse_zeros(request)
                response: Response = await self.work(work, self._registry, request, b"")
            except PinwardenError as err:
                return refusal(err)
            return response

        return endpoint

    def _writing(self, operation: writing.Operation) -> Callable[[Request], Awaitable[Response]]:
        """Who asks is looked at before a byte of the body is read."""

        async def endpoint(request: Request) -> Response:
            caller = None
            try:
                most = operation.most(self._registry)
                said = _said_length(request, most)
                caller = await self._admit(operation.admit, self._registry, request, said)
                value = await self._written(operation, caller, request, said)
            except PinwardenError as err:
                await self._admit(writing.note_refusal, self._registry, caller, operation.name, err)
                return refusal(err)
            except (ClientDisconnect, TimeoutError):
                return Response(status_code=408)
            return Response(to_bytes(value), media_type=JSON)

        return endpoint

    async def _admit(self, function: Work, *args: Any) -> Any:
        """Do something that may wait for others who write, in threads that nobody reads with."""
        if self._admitting is None:
            self._admitting = CapacityLimiter(_ADMITTING)
        return await anyio.to_thread.run_sync(partial(function, *args), limiter=self._admitting)

    async def _written(self, operation: writing.Operation, caller: Caller | None, request: Request, said: int) -> Any:
        """Read the body and do the work, when it is this request's turn. Strangers send theirs before they have one,
        and no namespace has every place: whoever sends slowly must not keep other publishers waiting."""
        if self._writers is None:
            self._writers = CapacityLimiter(_WRITERS)
        early = await _in_time(operation, request, said) if caller is None else None
        async with self._turn(caller) if caller is not None else nullcontext(), self._writers:
            body = await _in_time(operation, request, said) if early is None else early
            run = partial(operation.run, self._registry, caller, request, body)
            return await anyio.to_thread.run_sync(run, limiter=CapacityLimiter(1))

    def _turn(self, caller: Caller) -> CapacityLimiter:
        """The places of a namespace. Those who wait for one hold a connection each, so they are not many."""
        turn = self._turns.setdefault(caller.token.namespace, CapacityLimiter(_OF_ONE))
        if turn.statistics().tasks_waiting >= _WAITING_OF_ONE:
            told = f"{_WAITING_OF_ONE} requests of {caller.token.namespace} are waiting already"
            raise PinwardenError("PUBLISH_LIMIT", told, data={"reason": "rate"})
        return turn


async def _in_time(operation: writing.Operation, request: Request, said: int) -> bytes:
    with anyio.fail_after(operation.seconds_for(said)):
        return await _body(request, said)


def _refuse_zeros(request: Request) -> None:
    """No name and no text here has one, and PostgreSQL takes a question with one for a failure of its own."""
    asked = (*request.path_params.values(), *request.query_params.values())
    if any("\0" in text for text in asked):
        raise PinwardenError("USAGE", "a zero byte is in nothing that could be found here")


def _said_length(request: Request, most: int) -> int:
    said = request.headers.get("content-length", "")
    if not said.isdecimal() or len(said) > 15:
        raise PinwardenError("PUBLISH_LIMIT", "a request says how long it is")
    if int(said) > most:
        raise PinwardenError("PUBLISH_LIMIT", f"at most {most} bytes are taken, and {int(said)} were announced")
    return int(said)


async def _body(request: Request, most: int) -> bytes:
    body = BytesIO()  # whose value is its own buffer: a large archive is not there twice, as it would be in parts
    async for chunk in request.stream():
        if body.tell() + len(chunk) > most:
            raise PinwardenError("PUBLISH_LIMIT", f"at most {most} bytes are taken")
        body.write(chunk)
    return body.getvalue()


async def _send_found(found: Found, scope: Scope, _receive: Receive, send: Send) -> None:
    """Written out here because it is the path that everybody's installer takes."""
    etag = b'"' + sha256(found.body).hexdigest()[:32].encode() + b'"' if found.kept != FOREVER else b'"forever"'
    headers = [
        (b"content-type", found.media_type.encode()),
        (b"cache-control", _KEPT.get(found.kept, "no-cache").encode()),
        (b"etag", etag),
        *_SAFE,
    ]
    unchanged = any(name == b"if-none-match" and value == etag for name, value in scope["headers"])
    body = b"" if unchanged or scope["method"] == "HEAD" else found.body
    headers.append((b"content-length", str(0 if unchanged else len(found.body)).encode()))
    await send({"type": "http.response.start", "status": 304 if unchanged else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
