"""The merged endpoint `/mcp`: all servers of a client as one server.

Lists contain the items of all servers, with the server's name as prefix: ``server__name`` for tools and prompts,
``server+uri`` for resources. A slug contains neither separator, so no server can use the names of another. A request
goes to the server that its prefix names, with the prefix removed. Each server's messages are checked by a session, in
the same way as at the server's own path.
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

from pinwarden.gateway.http.backend import Backend, BackendError, NotExecutedError
from pinwarden.gateway.http.bridge import (
    OPENING_METHODS,
    Bridge,
    RelayedRequest,
    build_stateless_members,
    choose_handshake_version,
)
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import SessionManager, Upstream
from pinwarden.gateway.session.messages import ParsedMessage, encode
from pinwarden.gateway.session.splice import replace_value
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CLIENT_META,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_META,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
)

_LISTS = {
    "tools/list": ("tools", "tools", "name"),
    "prompts/list": ("prompts", "prompts", "name"),
    "resources/list": ("resources", "resources", "uri"),
    "resources/templates/list": ("resources", "resourceTemplates", "uriTemplate"),
}
"""For each method: the capability, the member of the result, and the member that names an item."""
_ROUTED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}
UNAVAILABLE = "pinwarden/unavailable"
"""The member of a list's ``_meta`` that names unavailable servers, with the reasons."""
_OWN_INFO = {"name": "pinwarden", "title": "Pinwarden gateway"}


class MergedRoute:
    """The route of `/mcp`."""

    name = "merged"
    slug = ""

    def __init__(self) -> None:
        self.requests = 0

    def open_conversation(
        self, manager: SessionManager, client: GatewayClient, *, stateless: bool = False
    ) -> MergedConversation:
        """Open a conversation with all servers that the client may use."""
        del stateless
        return MergedConversation(manager, client)


def create_merged_route() -> Callable[[GatewayClient], MergedRoute]:
    """Return a function that returns the route of `/mcp` for a client. All clients get the same route."""
    route = MergedRoute()
    return lambda _: route


class MergedConversation(Bridge):
    """A conversation of one client with all its servers."""

    def __init__(self, manager: SessionManager, client: GatewayClient) -> None:
        super().__init__(manager, client)
        self._late_lists: dict[tuple[Backend, str], asyncio.Task[list[bytes]]] = {}
        """Tasks that still wait for a list after its deadline, by server and method."""
        self._long_names: dict[str, tuple[str, str]] = {}

    def close(self, reason: str) -> None:
        """End the conversation and its sessions with servers."""
        super().close(reason)
        for task in self._late_lists.values():
            task.cancel()

    async def _respond(
        self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes, relayed: RelayedRequest
    ) -> None:
        visible = self._find_visible_upstreams()
        for upstream in visible.values():
            self._open_if_due(upstream)
        if message.method in _ROUTED or message.method not in (*OPENING_METHODS, *_LISTS, "logging/setLevel"):
            await self._relay_to_server(message, sink, param_headers, relayed)
            return
        await self._wait_for_first_attempts(*visible)
        if message.method in OPENING_METHODS or message.method in _LISTS:
            self._fail_if_none_available()
        if message.method in OPENING_METHODS:
            self._send_result(message, sink, self._describe_gateway(message))
        elif message.method in _LISTS:
            await self._respond_with_list(message, sink)
        else:
            await self._send_to_all(message, "logging")
            self._send_result(message, sink, {})

    def _find_visible_upstreams(self) -> dict[str, Upstream]:
        """Return the servers that the client may use."""
        upstreams = self._manager.upstreams
        return {slug: upstream for slug, upstream in upstreams.items() if self._client.may_use(upstream.name)}

    def _fail_if_none_available(self) -> None:
        """Raise `BackendError` with the reasons if no server is available, because an empty list would look valid."""
        missing = self._find_missing_servers()
        if missing and not any(backend.is_open for backend in self._backends.values()):
            reasons = "; ".join(f"{slug}: {reason}" for slug, reason in missing.items())
            raise BackendError(SERVER_UNAVAILABLE, f"no server is available: {reasons}")

    def _find_missing_servers(self) -> dict[str, str]:
        """Return the servers without an open session, and the reasons."""
        return {
            slug: self._failures.get(slug, "the server has not started yet")
            for slug in sorted(self._find_visible_upstreams())
            if not (slug in self._backends and self._backends[slug].is_open)
        }

    def _describe_gateway(self, message: ParsedMessage) -> dict[str, Any]:
        """Return the gateway's description of itself: the approved capabilities and instructions of all servers."""
        from pinwarden.core.version import __version__

        capabilities: dict[str, Any] = {}
        for name in ("tools", "prompts", "resources", "completions", "logging"):
            offering = [backend for backend in self._backends.values() if backend.offers(name)]
            if offering:
                capabilities[name] = (
                    {} if name in ("completions", "logging") or self._stateless else {"listChanged": True}
                )
                if name == "resources" and not self._stateless and any(not backend.stateless for backend in offering):
                    capabilities[name]["subscribe"] = True
        instructions = {
            slug: backend.description.get("instructions") for slug, backend in sorted(self._backends.items())
        }
        text = "\n\n".join(
            f"{slug}: {own_text}" for slug, own_text in instructions.items() if isinstance(own_text, str) and own_text
        )
        info = {**_OWN_INFO, "version": __version__}
        result: dict[str, Any] = {"capabilities": capabilities, **({"instructions": text} if text else {})}
        if message.method == "initialize":
            return {"protocolVersion": choose_handshake_version(message), "serverInfo": info, **result}
        meta = {"_meta": {SERVER_META: info}}
        return {"supportedVersions": list(STATELESS_VERSIONS), **result, **meta, **build_stateless_members()}

    async def _respond_with_list(self, message: ParsedMessage, sink: ResponseSink) -> None:
        """Respond to a list request with the items of all servers on one page."""
        capability, member, name = _LISTS[message.method]
        meta = {CLIENT_META: self._info, CAPABILITIES_META: self._capabilities}
        backends = [backend for _, backend in sorted(self._backends.items())]
        backends = [backend for backend in backends if backend.is_open and backend.offers(capability)]
        results = await asyncio.gather(
            *(self._list_items(backend, message.method, member, meta) for backend in backends), return_exceptions=True
        )
        items: list[bytes] = []
        missing = self._find_missing_servers()
        for backend, result in zip(backends, results, strict=True):
            if isinstance(result, BackendError):
                missing[backend.slug] = result.reason
                continue  # the other servers' items are still useful
            if isinstance(result, BaseException):
                raise result
            rename = partial(self._rename_items, backend.slug, result, name)
            items += await self._manager.offload_if_large(self._client.name, sum(map(len, result)), rename)
        extra_members = {
            **(build_stateless_members() if self._stateless else {}),
            **({"_meta": {UNAVAILABLE: missing}} if missing else {}),
        }
        encoded_extras = b"," + encode(extra_members)[1:-1] if extra_members else b""
        merged = b'{"' + member.encode() + b'":[' + b",".join(items) + b"]" + encoded_extras + b"}"
        request_id = encode(message.members["id"])
        data = b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + merged + b"}"
        sink.respond(ParsedMessage(data=data, value={"id": message.members["id"], "result": {}}), 0)

    async def _list_items(self, backend: Backend, method: str, member: str, meta: dict[str, Any]) -> list[bytes]:
        """List the items of one server. Raises `BackendError` after a timeout, so that clients need not wait."""
        key = backend, method
        if key in self._late_lists:
            raise BackendError(SERVER_UNAVAILABLE, "the server has not sent its list yet")
        task = asyncio.get_running_loop().create_task(self._list_items_in_session(backend, method, member, meta))
        try:
            done, _ = await asyncio.wait({task}, timeout=self._limits.merged_list_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        self._late_lists[key] = task
        task.add_done_callback(lambda _: self._on_late_list(key))
        raise BackendError(SERVER_UNAVAILABLE, "the server did not send its list in time")

    async def _list_items_in_session(
        self, backend: Backend, method: str, member: str, meta: dict[str, Any]
    ) -> list[bytes]:
        """List the items of one server. If the server no longer knows the session, open a new one."""
        try:
            return await backend.list_items(method, member, meta)
        except NotExecutedError:
            return await (await self._get_backend(backend.upstream)).list_items(method, member, meta)

    def _on_late_list(self, key: tuple[Backend, str]) -> None:
        """Send ``list_changed`` when a late list arrives."""
        task = self._late_lists.pop(key)
        failed = task.cancelled() or task.exception() is not None
        if not failed and not self._stateless:
            notification = {"jsonrpc": "2.0", "method": f"notifications/{_LISTS[key[1]][0]}/list_changed"}
            self._notifications.send(encode(notification))

    def _rename_items(self, slug: str, items: list[bytes], member: str) -> list[bytes]:
        renamed: list[bytes] = []
        for item in items:
            own_name = orjson.loads(item)[member]
            if member == "name":
                name = build_merged_name(slug, own_name)
                if split_name(name) != (slug, own_name):
                    self._long_names[name] = slug, own_name
            else:
                name = build_merged_uri(slug, own_name)
            renamed.append(replace_value(item, (member,), encode(name)))
        return renamed

    async def _send_to_all(self, message: ParsedMessage, capability: str) -> None:
        """Send a request to all servers of the handshake era with this capability. Their responses are ignored."""
        loop = asyncio.get_running_loop()
        backends = [backend for backend in self._backends.values() if backend.offers(capability)]
        requests = [backend.request(message.method, message.params) for backend in backends if not backend.stateless]
        tasks = [loop.create_task(request) for request in requests]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limits.merged_list_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Requests that name a server

    async def _relay_to_server(
        self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes, relayed: RelayedRequest
    ) -> None:
        path, slug, own_name = self._find_target(message)
        upstream = self._find_visible_upstreams().get(slug)
        if upstream is None:
            raise BackendError(INVALID_PARAMS, f"unknown {path[-1]}: it must begin with the name of a server")
        await self._relay(upstream, _replace_name(message, path, own_name), sink, param_headers, relayed)

    def _find_target(self, message: ParsedMessage) -> tuple[tuple[str, ...], str, str]:
        """Return the path of the member that names an item, the server's slug, and the item's name at that server."""
        path: tuple[str, ...]
        if message.method in _ROUTED:
            path = ("params", _ROUTED[message.method])
            name = message.params.get(path[-1])
        elif message.method == "completion/complete":
            reference = message.params.get("ref")
            member = "uri" if isinstance(reference, dict) and "uri" in reference else "name"
            path = ("params", "ref", member)
            name = reference.get(member) if isinstance(reference, dict) else None
        else:
            method = message.method[:80] or "a method without a name"
            raise BackendError(METHOD_NOT_FOUND, f"{method} is supported only at a server's own address")
        if not isinstance(name, str):
            raise BackendError(INVALID_PARAMS, f"the request has no {path[-1]}")
        if name in self._long_names and path[-1] == "name":
            return path, *self._long_names[name]
        return path, *(split_name(name) if path[-1] == "name" else split_uri(name))

    def _translate_for_client(self, backend: Backend, message: ParsedMessage) -> ParsedMessage | None:
        translated = super()._translate_for_client(backend, message)
        if translated is not None and translated.method == "notifications/resources/updated":
            own_name = translated.params.get("uri")
            if isinstance(own_name, str):
                uri = build_merged_uri(backend.slug, own_name)
                return ParsedMessage(
                    data=replace_value(translated.data, ("params", "uri"), encode(uri)), value=translated.value
                )
        return translated


def _replace_name(message: ParsedMessage, path: tuple[str, ...], name: str) -> ParsedMessage:
    data = replace_value(message.data, path, encode(name))
    params = dict(message.params)
    if len(path) == 3:
        params["ref"] = {**params["ref"], path[-1]: name}
    else:
        params[path[-1]] = name
    return ParsedMessage(data=data, value={**message.members, "params": params})


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
_MAX_SLUG = 32
MAX_NAME = 128
"""The longest tool name that the protocol recommends, in characters."""
_SHORT_HASH, _LONG_HASH = 8, 64  # hex digits of the hash at the end of a shortened name
_NAME_HASH_DIGITS = 32  # long enough to prevent collisions
_SHORTENED = re.compile(rf".*-[0-9a-f]{{{_NAME_HASH_DIGITS}}}", re.DOTALL)
_SEPARATOR = "__"
_SCHEME = "+"


def assign_slugs(names: Iterable[str]) -> dict[str, str]:
    """Assign a unique slug to each server, for paths and name prefixes."""
    slugs = plain = {name: _make_slug(name) for name in sorted(set(names))}
    # All names with the same slug get a hash suffix, so that slugs do not depend on the order of names. If a server
    # is named like the slug of another server with its suffix, both get a suffix that is longer than any slug.
    for digits in (_SHORT_HASH, _LONG_HASH):
        times = Counter(slug.lower() for slug in slugs.values())
        slugs = {
            name: f"{plain[name]}-{_compute_hash_suffix(name, digits)}" if times[slug.lower()] > 1 else slug
            for name, slug in slugs.items()
        }
    return slugs


def _make_slug(name: str) -> str:
    plain = _NOT_PLAIN.sub("-", name).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"s-{plain}"
    if len(plain) > _MAX_SLUG:
        plain = f"{plain[: _MAX_SLUG - 9]}-{_compute_hash_suffix(name)}"
    return plain.rstrip("-") if plain != name else plain


def _compute_hash_suffix(name: str, digits: int = _SHORT_HASH) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:digits]


def build_merged_name(slug: str, name: str) -> str:
    """Build the name of a tool or prompt at `/mcp`. A long name is shortened and ends in a hash.

    A name that looks shortened also gets a hash, because it may imitate the short form of another name.
    """
    full_name = f"{slug}{_SEPARATOR}{name}"
    if len(full_name) < MAX_NAME or (len(full_name) == MAX_NAME and not _SHORTENED.fullmatch(full_name)):
        return full_name
    return f"{full_name[: MAX_NAME - _NAME_HASH_DIGITS - 1]}-{_compute_hash_suffix(name, _NAME_HASH_DIGITS)}"


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a tool or prompt at `/mcp` into slug and own name. Without a prefix, the slug is empty."""
    slug, separator, own_name = name.partition(_SEPARATOR)
    return (slug, own_name) if separator else ("", name)


def build_merged_uri(slug: str, uri: str) -> str:
    """Build the URI, or the URI template, of a resource at `/mcp`."""
    return f"{slug}{_SCHEME}{uri}"


def split_uri(uri: str) -> tuple[str, str]:
    """Split the URI of a resource at `/mcp` into slug and own URI. Without a prefix, the slug is empty."""
    slug, separator, own_uri = uri.partition(_SCHEME)
    return (slug, own_uri) if separator else ("", uri)
