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

from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.registry.read_api import JSON
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.store import publications
from pinwarden.surface import surface as surface_document
from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.surface import Surface
from pinwarden.system.database import Transaction
from pinwarden.system.fair_executor import FairExecutor, check_items

_MAX_CACHE_BYTES = 32 * 1024 * 1024
_MAX_RESULT_BYTES = 4 * 1024 * 1024
_FAILURE_BYTES = 512  # the size that each cached failure counts for
_PERMANENT = frozenset({"INPUT_LIMIT", "JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR", "SURFACE_INVALID"})
"""Codes of failures that are cached, because they depend only on the two versions."""
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
        pair: VersionPair = await self._work(find_pair, self._registry, tool, before, after)
        compared = await self._get_members(pair, identify_client(request))
        versions = {"tool": tool, "before": before, "after": after}
        members = sorted(
            {**compared, **{name: canonicalize(value, "rulebook") for name, value in versions.items()}}.items()
        )
        body = b"{" + b",".join(b'"' + name.encode() + b'":' + value for name, value in members) + b"}\n"
        return Response(body, media_type=JSON, headers={"cache-control": "no-cache"})

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
        elif isinstance(problem, PinwardenError) and problem.code in _PERMANENT:
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


class VersionPair(Record):
    """Two versions to compare."""

    before: PublishedVersion
    after: PublishedVersion

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests that determine the result, used as the cache key."""
        return _list_digests(self.before) + _list_digests(self.after)


def find_pair(registry: Registry, tool: str, before: str, after: str) -> VersionPair:
    """Find two versions of a bundle. Raises if one is not published."""
    with registry.database.transaction() as transaction:
        return VersionPair(
            before=_find_version(transaction, tool, before), after=_find_version(transaction, tool, after)
        )


def compare_pair(registry: Registry, pair: VersionPair) -> dict[str, Any]:
    """Compare two versions. Raises if a surface has too many items."""
    old, new = pair.before, pair.after
    with registry.database.transaction() as transaction:
        manifests = _load_manifest(transaction, old), _load_manifest(transaction, new)
        surfaces = _load_surface(transaction, old), _load_surface(transaction, new)
    return {
        "same_content": old.root_cid == new.root_cid,
        "files": _compare_files(*manifests),
        "api_surface": {
            "before": old.api_surface,
            "after": new.api_surface,
            "same": old.api_surface == new.api_surface if old.api_surface and new.api_surface else None,
        },
        "drift": _compare_surfaces(*surfaces, registry.limits.compared_items),
    }


def _list_digests(version: PublishedVersion) -> tuple[str, ...]:
    surface = (version.surface_cid or "", version.api_surface or "")
    return (version.root_cid, version.descriptor_cid, *surface)


def _find_version(transaction: Transaction, tool: str, version: str) -> PublishedVersion:
    published = publications.find_version(transaction, tool, version)
    if published is None:
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool[:80]!a} {version[:80]!a} is not published in this registry")
    return published


def _load_manifest(transaction: Transaction, version: PublishedVersion) -> bytes:
    body = publications.find_manifest(transaction, version.root_cid, version.descriptor_cid)
    if body is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the manifest of {version.tool} {version.version} is missing")
    return body


def _load_surface(transaction: Transaction, version: PublishedVersion) -> bytes | None:
    return publications.find_document(transaction, version.surface_cid) if version.surface_cid else None


def _compare_files(old: bytes, new: bytes) -> dict[str, list[str]]:
    before, after = _read_blob_cids(old), _read_blob_cids(new)
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
    }


def _read_blob_cids(body: bytes) -> dict[str, tuple[str, bool]]:
    return {entry.path: (entry.blob_cid, entry.executable) for entry in manifest_document.parse_manifest(body).entries}


def _compare_surfaces(old: bytes | None, new: bytes | None, limit: int) -> dict[str, Any] | None:
    """Return the drift between two surfaces; None if the registry lacks one or both."""
    if old is None or new is None:
        return None
    changes = compare(_parse_surface(old, limit), _parse_surface(new, limit))
    return {"changes": [change.to_json() for change in changes], "blocked_by_default": blocked_by_default(changes)}


def _parse_surface(body: bytes, limit: int) -> Surface:
    surface = surface_document.parse_surface(body)
    check_items(sum(map(len, surface.items.values())), limit, "items in one surface")
    return surface
