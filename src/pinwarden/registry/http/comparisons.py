"""Comparisons of two versions: one client after the other, each pair of digests once, within bounds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.registry.comparison import Pair, compare_pair, pair_of
from pinwarden.registry.read_api import JSON
from pinwarden.registry.registry import Registry
from pinwarden.system.fair_executor import FairExecutor

_MOST_BYTES = 32 * 1024 * 1024
_LARGEST_KEPT = 4 * 1024 * 1024
_FAILURE_BYTES = 512  # for which a kept failure counts
_LASTING = frozenset({"INPUT_LIMIT", "JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR", "SURFACE_INVALID"})
"""Failures that the same two versions would lead to again."""
_MAX_WAITING = 16  # comparisons of one client
_MAX_ALL_WAITING = 64
_WAIT_SECONDS = 20.0
_IPV6_NETWORK_BITS = 64  # one client has as many addresses as these leave

Digests = tuple[str, ...]
Parts = dict[str, bytes]
"""The members of a comparison, each as canonical JSON."""
Work = Callable[..., Awaitable[Any]]


class Comparisons:
    """Answers ``/api/compare``. Used by the event loop alone."""

    def __init__(self, registry: Registry, work: Work) -> None:
        """``work`` looks something up in the database."""
        self._registry = registry
        self._work = work
        self._executor = FairExecutor(
            max_waiting=_MAX_WAITING, max_all_waiting=_MAX_ALL_WAITING, wait_seconds=_WAIT_SECONDS
        )
        self._kept: OrderedDict[Digests, Parts | PinwardenError] = OrderedDict()
        self._size = 0
        self._running: dict[Digests, asyncio.Future[Parts]] = {}

    async def answer(self, request: Request) -> Response:
        """The answer to a request. Raises for versions that are not there, and if too much waits."""
        given = request.path_params
        tool, before, after = given["tool"], given["before"], given["after"]
        pair: Pair = await self._work(pair_of, self._registry, tool, before, after)
        parts = await self._parts(pair, client_of(request))
        named = {"tool": tool, "before": before, "after": after}
        members = sorted({**parts, **{name: canonicalize(value, "rulebook") for name, value in named.items()}}.items())
        body = b"{" + b",".join(b'"' + name.encode() + b'":' + value for name, value in members) + b"}\n"
        return Response(body, media_type=JSON, headers={"cache-control": "no-cache"})

    async def _parts(self, pair: Pair, client: str) -> Parts:
        digests = pair.digests
        known = self._kept.get(digests)
        if known is not None:
            self._kept.move_to_end(digests)
            if isinstance(known, PinwardenError):
                raise PinwardenError(known.code, known.message, hint=known.hint)
            return known
        running = self._running.get(digests)
        if running is None:
            running = self._executor.submit(client, partial(_compared, self._registry, pair))
            self._running[digests] = running
            running.add_done_callback(partial(self._done, digests))
        return await asyncio.shield(running)  # others may wait for the same

    def _done(self, digests: Digests, done: asyncio.Future[Parts]) -> None:
        self._running.pop(digests, None)
        if done.cancelled():
            return
        problem = done.exception()
        if problem is None:
            self._keep(digests, done.result())
        elif isinstance(problem, PinwardenError) and problem.code in _LASTING:
            self._keep(digests, problem)

    def _keep(self, digests: Digests, found: Parts | PinwardenError) -> None:
        size = _size(found)
        if size > _LARGEST_KEPT:
            return
        self._kept[digests] = found
        self._size += size
        while self._size > _MOST_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._size -= _size(oldest)


def _compared(registry: Registry, pair: Pair) -> Parts:
    """On a thread of the executor."""
    return {name: canonicalize(value, "rulebook") for name, value in compare_pair(registry, pair).items()}


def _size(found: Parts | PinwardenError) -> int:
    return _FAILURE_BYTES if isinstance(found, PinwardenError) else _FAILURE_BYTES + sum(map(len, found.values()))


def client_of(request: Request) -> str:
    """Who asks, as far as an address says so. All addresses of one IPv6 network are one client."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> (128 - _IPV6_NETWORK_BITS))
    return str(address)
