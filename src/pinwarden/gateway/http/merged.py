"""One endpoint for all servers of a client.

Lists are put together from all servers, under names that begin with the server; requests go to the server that they
name, with its own name in body and headers. Everything that a server says passes its session first, as on the server's
own endpoint: what is withheld there is not here either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import orjson

from pinwarden.documents.protocol import (
    CANCELLED,
    CAPABILITIES_META,
    CLIENT_META,
    HANDSHAKE_VERSIONS,
    INITIALIZED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PROGRESS,
    SERVER_AWAY,
    SERVER_META,
    STATELESS_VERSIONS,
    VERSION_META,
)
from pinwarden.gateway.http.access import Client
from pinwarden.gateway.http.backend import Answer, Backend, BackendError, with_meta, with_result_type
from pinwarden.gateway.http.ears import Ears, Hearing
from pinwarden.gateway.http.exchange import Waiting
from pinwarden.gateway.http.hub import Hub
from pinwarden.gateway.http.messages import Frame, Id, encoded, key_of, with_value
from pinwarden.gateway.http.names import merged_name, merged_uri, split_name, split_uri
from pinwarden.gateway.http.questions import Questions, refuse

_LISTS = {
    "tools/list": ("tools", "tools", "name"),
    "prompts/list": ("prompts", "prompts", "name"),
    "resources/list": ("resources", "resources", "uri"),
    "resources/templates/list": ("resources", "resourceTemplates", "uriTemplate"),
}
"""Method -> what a server must offer, the member of the answer, the name of an item in it."""
_ROUTED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}
_SUBSCRIPTIONS = frozenset({"resources/subscribe", "resources/unsubscribe"})
_OWN_INFO = {"name": "pinwarden", "title": "Pinwarden gateway"}


class MergedPlace:
    """The address of the merged endpoint."""

    name = "merged"
    slug = ""

    def __init__(self) -> None:
        self.requests = 0

    def converse(self, hub: Hub, client: Client) -> Merged:
        """A conversation with all servers that the client may see."""
        return Merged(hub, client)


def merged_place() -> Callable[[Client], MergedPlace]:
    """The one merged endpoint, for any client."""
    place = MergedPlace()
    return lambda _: place


class Merged:
    """A conversation of one client with all its servers."""

    def __init__(self, hub: Hub, client: Client) -> None:
        self._hub = hub
        self._limits = hub.limits
        self._client = client
        self.closed = False
        self.used = hub.clock()
        self._backends: dict[str, Backend] = {}
        self._opening: asyncio.Task[None] | None = None
        self._first = True
        self._tried: dict[str, float] = {}
        self._beginning: set[str] = set()
        """Servers that have not answered yet. A second conversation with one would be nobody's, and stay."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ears = Ears(hub.limits)
        self._questions = Questions(hub.limits.max_in_flight)
        self._work: dict[Id, _Work] = {}
        """By a number of our own: programs of one client may use the same id at once."""
        self._numbers = 0
        self._late: dict[tuple[Backend, str], asyncio.Task[list[bytes]]] = {}
        """Lists that were waited for long enough, by the server and the method."""
        self._long_names: dict[str, tuple[str, str]] = {}
        self._info: Any = {"name": client.name, "version": "0"}
        self._capabilities: Any = {}
        self._modern = False

    # What clients do

    def request(self, frame: Frame, waiting: Waiting, parameters: bytes = b"") -> Id | None:
        """A request, answered by us or by the server that it names."""
        self.used = self._hub.clock()
        self._numbers += 1
        number: Id = (_Work, self._numbers)
        work = self._work[number] = _Work(frame)
        work.task = self._begin(self._answer(frame, waiting, parameters, work))
        work.task.add_done_callback(lambda _: self._work.pop(number, None))
        return number

    def tell(self, frame: Frame) -> None:
        """A notification goes to all servers, an answer to the one that asked."""
        self.used = self._hub.clock()
        if frame.is_answer:
            self._questions.answer(frame)
        elif frame.method == CANCELLED:
            self._cancelled(frame)
        elif frame.method != INITIALIZED:
            for backend in self._backends.values():
                backend.tell(frame)

    def give_up(self, number: Id | None) -> None:
        """The client of one request hung up."""
        work = self._work.pop(number, None) if number is not None else None
        if work is not None:
            work.give_up()

    def listen(self, reply: Hearing) -> None:
        """Open the stream for what belongs to no request."""
        self._ears.listen(reply)

    def tick(self) -> None:
        """The conversations with the servers keep their own time."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._tasks and not self._ears.open

    def end_stream(self) -> None:
        """End the stream that belongs to no request."""
        self._ears.end()

    def close(self, why: str) -> None:
        """End it, and what was opened for it."""
        del why
        if not self.closed:
            self.closed = True
            self.end_stream()
            for backend in self._backends.values():
                backend.close()
            for task in (*self._tasks, *self._late.values(), *filter(None, (self._opening,))):
                task.cancel()

    # Answering

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, frame: Frame, waiting: Waiting, parameters: bytes, work: _Work) -> None:
        try:
            self._introduce(frame)
            if frame.method == "ping":
                self._reply(frame, waiting, {})
                return
            await self._opened()
            if frame.method in ("initialize", "server/discover"):
                self._reply(frame, waiting, self._about(frame))
            elif frame.method in _LISTS:
                await self._list(frame, waiting)
            elif frame.method == "logging/setLevel":
                await self._everywhere(frame, "logging")
                self._reply(frame, waiting, {})
            else:
                await self._route(frame, waiting, parameters, work)
        except BackendError as err:
            if work.cancelled:
                waiting.dropped()  # whoever cancelled it is owed no answer
            else:
                waiting.failed(err.code, err.why)
        except asyncio.CancelledError:
            if work.cancelled:
                waiting.dropped()
            else:
                waiting.failed(SERVER_AWAY, "the session was ended")
            raise
        except Exception as err:
            waiting.failed(INTERNAL_ERROR, f"the gateway failed ({type(err).__name__})")
            raise

    def _introduce(self, frame: Frame) -> None:
        """Who the client says that it is, for the servers to hear."""
        if frame.method == "initialize":
            self._info = frame.params.get("clientInfo", self._info)
            self._capabilities = frame.params.get("capabilities", {})
        elif VERSION_META in frame.meta:
            self._modern = True
            self._info = frame.meta.get(CLIENT_META, self._info)
            self._capabilities = frame.meta.get(CAPABILITIES_META, {})

    async def _opened(self) -> None:
        """Begin with every server that the client may see. Only the first try is waited for: a server that does not
        answer is left out, tried again now and then, and there again when it answers."""
        missing = [
            each
            for slug, each in self._hub.upstreams.items()
            if self._client.sees(each.name) and (slug not in self._backends or not self._backends[slug].open_now)
        ]
        now = self._hub.clock()
        again = self._limits.merged_again_seconds
        missing = [each for each in missing if each.slug not in self._beginning]
        due = [each for each in missing if self._tried.get(each.slug, -again) <= now - again]
        first = any(each.slug not in self._tried and not each.failing for each in due)
        if due and (self._opening is None or self._opening.done()):
            self._tried |= {each.slug: now for each in due}
            self._beginning |= {each.slug for each in due}
            made = [Backend(self._hub, each, self._client, self._heard) for each in due]
            self._first = first
            if first and any(each.failing for each in due):
                # Those that just failed are not waited for.
                self._begin(self._open_all([each for each in made if each.failing]))
                made = [each for each in made if not each.failing]
            self._opening = asyncio.get_running_loop().create_task(self._open_all(made))
        if self._opening is not None and self._first:
            await asyncio.shield(self._opening)

    async def _open_all(self, backends: list[Backend]) -> None:
        async def one(backend: Backend) -> None:
            try:
                async with asyncio.timeout(self._limits.merged_opening_seconds):
                    await backend.open(self._info, self._capabilities, for_modern_client=self._modern)
            except BackendError:
                return
            except TimeoutError:
                backend.did_not_begin()
                return
            finally:
                self._beginning.discard(backend.slug)
            self._backends[backend.slug] = backend

        await asyncio.gather(*(one(each) for each in backends))

    def _reply(self, frame: Frame, waiting: Waiting, result: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", "id": frame.members["id"], "result": result}
        waiting.answered(Frame(data=encoded(message), message=message), 0)

    def _about(self, frame: Frame) -> dict[str, Any]:
        """What we say of ourselves: the sum of what was approved of the servers."""
        from pinwarden import __version__

        capabilities: dict[str, Any] = {}
        for name in ("tools", "prompts", "resources", "completions", "logging"):
            given = [each for each in self._backends.values() if each.offers(name)]
            if given:
                capabilities[name] = {} if name in ("completions", "logging") or self._modern else {"listChanged": True}
                if name == "resources" and not self._modern and any(not each.modern for each in given):
                    capabilities[name]["subscribe"] = True
        told = {slug: each.about.get("instructions") for slug, each in sorted(self._backends.items())}
        text = "\n\n".join(f"{slug}: {each}" for slug, each in told.items() if isinstance(each, str) and each)
        info = {**_OWN_INFO, "version": __version__}
        result: dict[str, Any] = {"capabilities": capabilities, **({"instructions": text} if text else {})}
        if frame.method == "initialize":
            asked = frame.params.get("protocolVersion")
            version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
            return {"protocolVersion": version, "serverInfo": info, **result}
        meta = {"_meta": {SERVER_META: info}}
        return {"supportedVersions": list(STATELESS_VERSIONS), **result, **meta, **_fresh()}

    async def _list(self, frame: Frame, waiting: Waiting) -> None:
        """All items of all servers on one page."""
        capability, member, name = _LISTS[frame.method]
        meta = {CLIENT_META: self._info, CAPABILITIES_META: self._capabilities}
        asked = [each for _, each in sorted(self._backends.items()) if each.open_now and each.offers(capability)]
        found = await asyncio.gather(
            *(self._items_of(each, frame.method, member, meta) for each in asked), return_exceptions=True
        )
        items: list[bytes] = []
        for backend, each in zip(asked, found, strict=True):
            if isinstance(each, BackendError):
                continue  # its own endpoint says why; the other servers are of use without it
            if isinstance(each, BaseException):
                raise each
            items += await self._hub.aside(sum(map(len, each)), partial(self._renamed, backend.slug, each, name))
        fresh = encoded(_fresh())[1:-1] if self._modern else b""
        result = b'{"' + member.encode() + b'":[' + b",".join(items) + b"]" + (b"," + fresh if fresh else b"") + b"}"
        number = encoded(frame.members["id"])
        data = b'{"jsonrpc":"2.0","id":' + number + b',"result":' + result + b"}"
        waiting.answered(Frame(data=data, message={"id": frame.members["id"], "result": {}}), 0)

    async def _items_of(self, backend: Backend, method: str, member: str, meta: dict[str, Any]) -> list[bytes]:
        """The items of one server. All others wait for them too, so they are not waited for without end."""
        key = backend, method
        if key in self._late:
            raise BackendError(SERVER_AWAY, "the server is still about to list")
        task = asyncio.get_running_loop().create_task(backend.items(method, member, meta))
        try:
            done, _ = await asyncio.wait({task}, timeout=self._limits.merged_list_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        self._late[key] = task
        task.add_done_callback(lambda _: self._came_late(key))
        raise BackendError(SERVER_AWAY, "the server did not list in time")

    def _came_late(self, key: tuple[Backend, str]) -> None:
        """A server that was left out has listed, or will not: who hears of changes is told to ask again."""
        task = self._late.pop(key)
        failed = task.cancelled() or task.exception() is not None
        if not failed and not self._modern:
            note = {"jsonrpc": "2.0", "method": f"notifications/{_LISTS[key[1]][0]}/list_changed"}
            self._ears.hear(encoded(note))

    def _renamed(self, slug: str, items: list[bytes], member: str) -> list[bytes]:
        renamed: list[bytes] = []
        for item in items:
            own = orjson.loads(item)[member]
            if member == "name":
                name = merged_name(slug, own)
                if split_name(name) != (slug, own):
                    self._long_names[name] = slug, own
            else:
                name = merged_uri(slug, own)
            renamed.append(with_value(item, (member,), encoded(name)))
        return renamed

    async def _everywhere(self, frame: Frame, capability: str) -> None:
        asked = [each for each in self._backends.values() if each.offers(capability) and not each.modern]
        tasks = [asyncio.get_running_loop().create_task(each.ask(frame.method, frame.params)) for each in asked]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limits.merged_list_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Requests that name a server

    async def _route(self, frame: Frame, waiting: Waiting, parameters: bytes, work: _Work) -> None:
        path, slug, own = self._target(frame)
        backend = self._backends.get(slug)
        if backend is None or not backend.open_now:
            known = slug in self._hub.upstreams and self._client.sees(self._hub.upstreams[slug].name)
            why = f"the server {slug} is not there" if known else f"unknown {path[-1]}: it begins with no server's name"
            raise BackendError(SERVER_AWAY if known else INVALID_PARAMS, why)
        if frame.method in _SUBSCRIPTIONS and (self._modern or backend.modern):
            # In the newest revision a subscription is a request with a stream of its own.
            raise BackendError(
                METHOD_NOT_FOUND, f"subscriptions to {slug} are not served here, but on the server's own address"
            )
        sent = _with(frame, path, own)
        if backend.modern and not self._modern:
            sent = with_meta(
                sent, {VERSION_META: STATELESS_VERSIONS[0], CLIENT_META: self._info, CAPABILITIES_META: {}}
            )
        answer = Answer(partial(self._on_the_way, backend, waiting))
        work.backend, work.inner = backend, backend.relay(sent, answer, parameters)
        made: Frame = await answer
        result = made.members.get("result")
        if not self._modern and isinstance(result, dict) and result.get("resultType") == "input_required":
            raise BackendError(INVALID_PARAMS, "the server wants input in a way that this client's revision has not")
        waiting.answered(with_result_type(made) if self._modern else made, 0)

    def _target(self, frame: Frame) -> tuple[tuple[str, ...], str, str]:
        """Where in the request the name stands, the server that it names, and the server's own name for it."""
        path: tuple[str, ...]
        if frame.method in _ROUTED:
            path = ("params", _ROUTED[frame.method])
            name = frame.params.get(path[-1])
        elif frame.method == "completion/complete":
            reference = frame.params.get("ref")
            member = "uri" if isinstance(reference, dict) and "uri" in reference else "name"
            path = ("params", "ref", member)
            name = reference.get(member) if isinstance(reference, dict) else None
        else:
            what = frame.method[:80] or "a method without a name"
            raise BackendError(METHOD_NOT_FOUND, f"{what} is not served here, but on a server's own address")
        if not isinstance(name, str):
            raise BackendError(INVALID_PARAMS, f"the request has no {path[-1]}")
        if name in self._long_names and path[-1] == "name":
            return path, *self._long_names[name]
        return path, *(split_name(name) if path[-1] == "name" else split_uri(name))

    def _cancelled(self, frame: Frame) -> None:
        """A client of the handshake era cancels a request of its session."""
        number = key_of(frame.params.get("requestId"))
        for work in [each for each in self._work.values() if number is not None and each.own == number]:
            work.cancelled = True
            if work.backend is None or work.backend.modern:
                work.give_up()
            elif work.inner is not None:
                own = work.inner[1]
                data = with_value(frame.data, ("params", "requestId"), encoded(own))
                work.backend.tell(Frame(data, {**frame.members, "params": {**frame.params, "requestId": own}}))

    # What servers tell

    def _heard(self, backend: Backend, frame: Frame) -> None:
        """A message of a server that belongs to no request."""
        if self._ears.open:
            told = self._told(backend, frame)
            if told is not None:
                self._ears.hear(told.data)
        elif frame.is_request:
            refuse(backend, frame, "the client does not listen")

    def _on_the_way(self, backend: Backend, waiting: Waiting, frame: Frame) -> None:
        """A message of a server before its answer to a request."""
        told = self._told(backend, frame)
        if told is not None:
            waiting.message(told)

    def _told(self, backend: Backend, frame: Frame) -> Frame | None:
        """A message of a server as the client gets it, wherever it comes; None if it goes nowhere."""
        if frame.is_request:
            if self._modern or backend.modern:
                refuse(backend, frame, "the newest revision has no questions of this kind")
                return None
            return self._questions.asked(backend, frame)
        if frame.method == CANCELLED:
            return self._questions.withdrawn(backend, frame)
        if frame.method == PROGRESS:
            own = any(each.backend is backend and each.token == frame.progress_token for each in self._work.values())
            return frame if own else None  # of a call that another server answers, it has nothing to tell
        if frame.method == "notifications/resources/updated" and isinstance(frame.params.get("uri"), str):
            uri = merged_uri(backend.slug, frame.params["uri"])
            return Frame(data=with_value(frame.data, ("params", "uri"), encoded(uri)), message=frame.message)
        return frame


class _Work:
    """A request of a client, from when it came until it is answered."""

    __slots__ = ("backend", "cancelled", "inner", "own", "task", "token")

    def __init__(self, frame: Frame) -> None:
        self.own = frame.id
        """Its id for the client."""
        self.token = frame.progress_token
        """By which the client hears of its progress."""
        self.backend: Backend | None = None
        self.inner: Id | None = None
        """Its id on the way to the server."""
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        """Whether the client said that it does not wait."""

    def give_up(self) -> None:
        """Nobody waits for it."""
        self.cancelled = True
        if self.backend is not None and self.backend.conversation is not None:
            self.backend.conversation.give_up(self.inner)
        if self.task is not None:
            self.task.cancel()


def _fresh() -> dict[str, Any]:
    return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def _with(frame: Frame, path: tuple[str, ...], name: str) -> Frame:
    data = with_value(frame.data, path, encoded(name))
    params = dict(frame.params)
    if len(path) == 3:
        params["ref"] = {**params["ref"], path[-1]: name}
    else:
        params[path[-1]] = name
    return Frame(data=data, message={**frame.members, "params": params})
