"""``/api/compare``: the changes between two versions (files, API surface hash, surface drift).

A comparison can take seconds. Therefore clients take turns, and each result is cached by the digests of both versions.
"""

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
from pinwarden.registry.read_api import JSON
from pinwarden.registry.registry import Registry
from pinwarden.registry.version_pair import PERMANENT_FAILURES, VersionPair, compare_pair, find_pair
from pinwarden.system.fair_executor import FairExecutor

_MAX_CACHE_BYTES = 32 * 1024 * 1024
_MAX_RESULT_BYTES = 4 * 1024 * 1024
_FAILURE_BYTES = 512  # the size that each cached failure counts for
_MAX_WAITING = 16  # per client
_MAX_ALL_WAITING = 64
_WAIT_SECONDS = 20.0
_IPV6_NETWORK_BITS = 64  # addresses in one /64 network are one client

Digests = tuple[str, ...]
ComparisonMembers = dict[str, bytes]
"""The members of a comparison as canonical JSON."""
Work = Callable[..., Awaitable[Any]]


class Comparisons:
    """Handles ``/api/compare``. Used only on the event loop."""

    def __init__(self, registry: Registry, work: Work) -> None:
        """``work`` runs a database query in a thread."""
        self._registry = registry
        self._work = work
        self._executor = FairExecutor(
            max_queued=_MAX_WAITING, max_queued_in_total=_MAX_ALL_WAITING, max_queue_seconds=_WAIT_SECONDS
        )
        self._results: OrderedDict[Digests, ComparisonMembers | PinwardenError] = OrderedDict()
        self._size = 0
        self._running: dict[Digests, asyncio.Future[ComparisonMembers]] = {}

    async def respond(self, request: Request) -> Response:
        """Return the response to a request. Raises for unknown versions, and if too many comparisons are waiting."""
        parameters = request.path_params
        tool, before, after = parameters["tool"], parameters["before"], parameters["after"]
        compared = await self.compare(tool, before, after, identify_client(request))
        versions = {"tool": tool, "before": before, "after": after}
        members = sorted(
            {**compared, **{name: canonicalize(value, "rulebook") for name, value in versions.items()}}.items()
        )
        body = b"{" + b",".join(b'"' + name.encode() + b'":' + value for name, value in members) + b"}\n"
        return Response(body, media_type=JSON, headers={"cache-control": "no-cache"})

    async def compare(self, tool: str, before: str, after: str, client: str) -> ComparisonMembers:
        """Compare two versions for a client. Raises like `respond`."""
        pair: VersionPair = await self._work(find_pair, self._registry, tool, before, after)
        return await self._get_members(pair, client)

    async def _get_members(self, pair: VersionPair, client: str) -> ComparisonMembers:
        digests = pair.digests
        cached = self._results.get(digests)
        if cached is not None:
            self._results.move_to_end(digests)
            if isinstance(cached, PinwardenError):
                raise PinwardenError(cached.code, cached.message, hint=cached.hint)
            return cached
        running = self._running.get(digests)
        if running is None:
            running = self._executor.submit(client, partial(_compare_to_json, self._registry, pair))
            self._running[digests] = running
            running.add_done_callback(partial(self._finish, digests))
        return await asyncio.shield(running)  # shielded, because other requests may wait for the same result

    def _finish(self, digests: Digests, future: asyncio.Future[ComparisonMembers]) -> None:
        self._running.pop(digests, None)
        if future.cancelled():
            return
        problem = future.exception()
        if problem is None:
            self._cache_result(digests, future.result())
        elif isinstance(problem, PinwardenError) and problem.code in PERMANENT_FAILURES:
            self._cache_result(digests, problem)

    def _cache_result(self, digests: Digests, result: ComparisonMembers | PinwardenError) -> None:
        size = _measure_result(result)
        if size > _MAX_RESULT_BYTES:
            return
        self._results[digests] = result
        self._size += size
        while self._size > _MAX_CACHE_BYTES:
            _, oldest = self._results.popitem(last=False)
            self._size -= _measure_result(oldest)


def _compare_to_json(registry: Registry, pair: VersionPair) -> ComparisonMembers:
    """Compare two versions, and encode each member of the result. Runs on a thread of the executor."""
    return {name: canonicalize(value, "rulebook") for name, value in compare_pair(registry, pair).items()}


def _measure_result(result: ComparisonMembers | PinwardenError) -> int:
    return _FAILURE_BYTES if isinstance(result, PinwardenError) else _FAILURE_BYTES + sum(map(len, result.values()))


def identify_client(request: Request) -> str:
    """Return an identifier of the client: its IPv4 address, or the /64 network of its IPv6 address."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> (128 - _IPV6_NETWORK_BITS))
    return str(address)
