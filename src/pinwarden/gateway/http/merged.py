"""All servers of a client as one server, at `/mcp`.

Lists contain the items of all servers, with the server's name as prefix: ``server__name`` for tools and prompts,
``server+uri`` for resources. A slug contains neither separator, so no server can take another one's names. Requests go
to the server that they name, under its own name. All messages of a server pass its session first, as at its own path.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson

from pinwarden.gateway.http.backend import Backend, BackendError, RefusedUnreadError
from pinwarden.gateway.http.bridge import OPENINGS, Bridge, RelayedRequest, fresh, handshake_version
from pinwarden.gateway.http.header_checks import Client
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import SessionManager, Upstream
from pinwarden.gateway.session.messages import Frame, encode
from pinwarden.gateway.session.splice import replace_value
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CLIENT_META,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_AWAY,
    SERVER_META,
    STATELESS_VERSIONS,
)

_LISTS = {
    "tools/list": ("tools", "tools", "name"),
    "prompts/list": ("prompts", "prompts", "name"),
    "resources/list": ("resources", "resources", "uri"),
    "resources/templates/list": ("resources", "resourceTemplates", "uriTemplate"),
}
"""By method: the capability, the member of the result, and the naming member of an item."""
_ROUTED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}
UNAVAILABLE = "pinwarden/unavailable"
"""The member of ``_meta`` in a list that names missing servers and the reasons."""
_OWN_INFO = {"name": "pinwarden", "title": "Pinwarden gateway"}


class MergedRoute:
    """The route of `/mcp`."""

    name = "merged"
    slug = ""

    def __init__(self) -> None:
        self.requests = 0

    def converse(self, manager: SessionManager, client: Client, *, stateless: bool = False) -> MergedConversation:
        """Open a conversation with all servers that the client may use."""
        del stateless
        return MergedConversation(manager, client)


def merged_route() -> Callable[[Client], MergedRoute]:
    """The route of `/mcp`, the same for all clients."""
    place = MergedRoute()
    return lambda _: place


class MergedConversation(Bridge):
    """A conversation of one client with all its servers."""

    def __init__(self, manager: SessionManager, client: Client) -> None:
        super().__init__(manager, client)
        self._late: dict[tuple[Backend, str], asyncio.Task[list[bytes]]] = {}
        """Lists that missed their deadline and are still awaited."""
        self._long_names: dict[str, tuple[str, str]] = {}

    def close(self, why: str) -> None:
        """End the conversation and its sessions with servers."""
        super().close(why)
        for task in self._late.values():
            task.cancel()

    async def _respond(self, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest) -> None:
        seen = self._seen()
        for upstream in seen.values():
            self._open(upstream)
        if frame.method in _ROUTED or frame.method not in (*OPENINGS, *_LISTS, "logging/setLevel"):
            await self._route(frame, sink, parameters, work)
            return
        await self._wait_for(*seen)
        if frame.method in OPENINGS or frame.method in _LISTS:
            self._refuse_if_all_are_missing()
        if frame.method in OPENINGS:
            self._reply(frame, sink, self._about(frame))
        elif frame.method in _LISTS:
            await self._list(frame, sink)
        else:
            await self._everywhere(frame, "logging")
            self._reply(frame, sink, {})

    def _seen(self) -> dict[str, Upstream]:
        """The servers that the client may use."""
        return {slug: each for slug, each in self._manager.upstreams.items() if self._client.sees(each.name)}

    def _refuse_if_all_are_missing(self) -> None:
        """Fail with the reasons if no server is available, because an empty list would look valid."""
        missing = self._unavailable()
        if missing and not any(each.open_now for each in self._backends.values()):
            reasons = "; ".join(f"{slug}: {why}" for slug, why in missing.items())
            raise BackendError(SERVER_AWAY, f"no server is available: {reasons}")

    def _unavailable(self) -> dict[str, str]:
        """The servers without an open session, and the reasons."""
        return {
            slug: self._failures.get(slug, "the server has not started yet")
            for slug in sorted(self._seen())
            if not (slug in self._backends and self._backends[slug].open_now)
        }

    def _about(self, frame: Frame) -> dict[str, Any]:
        """The gateway's self-description: the sum of the servers' approved capabilities and instructions."""
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
            return {"protocolVersion": handshake_version(frame), "serverInfo": info, **result}
        meta = {"_meta": {SERVER_META: info}}
        return {"supportedVersions": list(STATELESS_VERSIONS), **result, **meta, **fresh()}

    async def _list(self, frame: Frame, sink: ResponseSink) -> None:
        """All items of all servers on one page."""
        capability, member, name = _LISTS[frame.method]
        meta = {CLIENT_META: self._info, CAPABILITIES_META: self._capabilities}
        asked = [each for _, each in sorted(self._backends.items()) if each.open_now and each.offers(capability)]
        found = await asyncio.gather(
            *(self._items_of(each, frame.method, member, meta) for each in asked), return_exceptions=True
        )
        items: list[bytes] = []
        missing = self._unavailable()
        for backend, each in zip(asked, found, strict=True):
            if isinstance(each, BackendError):
                missing[backend.slug] = each.why
                continue  # the list is useful without it
            if isinstance(each, BaseException):
                raise each
            renamed = partial(self._renamed, backend.slug, each, name)
            items += await self._manager.offload_if_large(self._client.name, sum(map(len, each)), renamed)
        more = {**(fresh() if self._modern else {}), **({"_meta": {UNAVAILABLE: missing}} if missing else {})}
        rest = b"," + encode(more)[1:-1] if more else b""
        result = b'{"' + member.encode() + b'":[' + b",".join(items) + b"]" + rest + b"}"
        number = encode(frame.members["id"])
        data = b'{"jsonrpc":"2.0","id":' + number + b',"result":' + result + b"}"
        sink.answered(Frame(data=data, message={"id": frame.members["id"], "result": {}}), 0)

    async def _items_of(self, backend: Backend, method: str, member: str, meta: dict[str, Any]) -> list[bytes]:
        """The items of one server, if they come in time: the lists of all servers wait for them."""
        key = backend, method
        if key in self._late:
            raise BackendError(SERVER_AWAY, "the server is still listing")
        task = asyncio.get_running_loop().create_task(self._items_in_session(backend, method, member, meta))
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

    async def _items_in_session(self, backend: Backend, method: str, member: str, meta: dict[str, Any]) -> list[bytes]:
        """The items of one server, from a new session if the server forgot the old one."""
        try:
            return await backend.items(method, member, meta)
        except RefusedUnreadError:
            return await (await self._backend(backend.upstream)).items(method, member, meta)

    def _came_late(self, key: tuple[Backend, str]) -> None:
        """A late list arrived or failed. If it arrived, send ``list_changed``."""
        task = self._late.pop(key)
        failed = task.cancelled() or task.exception() is not None
        if not failed and not self._modern:
            note = {"jsonrpc": "2.0", "method": f"notifications/{_LISTS[key[1]][0]}/list_changed"}
            self._notifications.hear(encode(note))

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
            renamed.append(replace_value(item, (member,), encode(name)))
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

    async def _route(self, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest) -> None:
        path, slug, own = self._target(frame)
        upstream = self._seen().get(slug)
        if upstream is None:
            raise BackendError(INVALID_PARAMS, f"unknown {path[-1]}: it must begin with the name of a server")
        await self._relay(upstream, _with(frame, path, own), sink, parameters, work)

    def _target(self, frame: Frame) -> tuple[tuple[str, ...], str, str]:
        """The path of the name in the request, the server's slug, and the server's own name."""
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

    def _told(self, backend: Backend, frame: Frame) -> Frame | None:
        told = super()._told(backend, frame)
        if told is not None and told.method == "notifications/resources/updated":
            own = told.params.get("uri")
            if isinstance(own, str):
                uri = merged_uri(backend.slug, own)
                return Frame(data=replace_value(told.data, ("params", "uri"), encode(uri)), message=told.message)
        return told


def _with(frame: Frame, path: tuple[str, ...], name: str) -> Frame:
    data = replace_value(frame.data, path, encode(name))
    params = dict(frame.params)
    if len(path) == 3:
        params["ref"] = {**params["ref"], path[-1]: name}
    else:
        params[path[-1]] = name
    return Frame(data=data, message={**frame.members, "params": params})


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
_LONGEST_SLUG = 32
LONGEST_NAME = 128
"""Characters of a tool name, as the protocol recommends."""
_SHORT, _LONG = 8, 64  # digits of a hash suffix
_MARK_OF_NAME = 32  # digits: long enough to prevent collisions
_SHORTENED = re.compile(rf".*-[0-9a-f]{{{_MARK_OF_NAME}}}", re.DOTALL)
_SEPARATOR = "__"
_SCHEME = "+"


def slugs_of(names: Iterable[str]) -> dict[str, str]:
    """A unique slug for each server, for paths and name prefixes."""
    slugs = wanted = {name: _slug(name) for name in sorted(set(names))}
    # All names with the same slug get a hash suffix, so that their order does not matter. A name may be chosen to equal
    # another one with its suffix; then the suffix is longer than any name.
    for letters in (_SHORT, _LONG):
        times = Counter(slug.lower() for slug in slugs.values())
        slugs = {
            name: f"{wanted[name]}-{_mark(name, letters)}" if times[slug.lower()] > 1 else slug
            for name, slug in slugs.items()
        }
    return slugs


def _slug(name: str) -> str:
    plain = _NOT_PLAIN.sub("-", name).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"s-{plain}"
    if len(plain) > _LONGEST_SLUG:
        plain = f"{plain[: _LONGEST_SLUG - 9]}-{_mark(name)}"
    return plain.rstrip("-") if plain != name else plain


def _mark(name: str, letters: int = _SHORT) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:letters]


def merged_name(slug: str, name: str) -> str:
    """The name of a tool or prompt at `/mcp`; a long one is cut and ends in a hash.

    So does one that looks as if it had been cut: it may be chosen to equal the short name of another one.
    """
    whole = f"{slug}{_SEPARATOR}{name}"
    if len(whole) < LONGEST_NAME or (len(whole) == LONGEST_NAME and not _SHORTENED.fullmatch(whole)):
        return whole
    return f"{whole[: LONGEST_NAME - _MARK_OF_NAME - 1]}-{_mark(name, _MARK_OF_NAME)}"


def split_name(name: str) -> tuple[str, str]:
    """The slug and the server's own name of a tool or prompt; the slug is empty if the name has none."""
    slug, separator, rest = name.partition(_SEPARATOR)
    return (slug, rest) if separator else ("", name)


def merged_uri(slug: str, uri: str) -> str:
    """The URI of a resource, or a URI template, at `/mcp`."""
    return f"{slug}{_SCHEME}{uri}"


def split_uri(uri: str) -> tuple[str, str]:
    """The slug and the server's own URI of a resource."""
    slug, separator, rest = uri.partition(_SCHEME)
    return (slug, rest) if separator else ("", uri)
