"""Addresses of resources that a server handed out in its results.

Servers need not list what they link to. Such an address comes from the server itself, in an answer to a request that
was let through, so it may be read where an address that came out of nowhere may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LINKED = b'"resource'
"""Stands in every result that holds a link or a resource, unless somebody took pains to write it otherwise; then the
link is not noticed, and not followed."""
_MOST = 10_000
_LONGEST = 8192


class ResourceLinks:
    """The addresses that a session has seen."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def __contains__(self, uri: str) -> bool:
        return uri in self._seen

    def learn(self, result: Any) -> None:
        """Keep the addresses in a result that is passed on."""
        for uri in _addresses(result):
            if type(uri) is str and len(uri) <= _LONGEST:
                self._seen.pop(uri, None)
                self._seen[uri] = None
                if len(self._seen) > _MOST:
                    del self._seen[next(iter(self._seen))]


def _addresses(result: Any) -> Iterator[Any]:
    """Of the contents of a tool's result, the messages of a prompt, the contents of a resource, and a task's result."""
    if type(result) is not dict:
        return
    for content in _objects(result.get("content")):
        yield from _address(content)
    for message in _objects(result.get("messages")):
        inside = message.get("content")
        for each in _objects(inside if type(inside) is list else [inside]):
            yield from _address(each)
    for resource in _objects(result.get("contents")):
        yield resource.get("uri")
    if type(result.get("result")) is dict:
        yield from _addresses(result["result"])


def _address(content: dict[str, Any]) -> Iterator[Any]:
    if content.get("type") == "resource_link":
        yield content.get("uri")
    resource = content.get("resource")
    if content.get("type") == "resource" and type(resource) is dict:
        yield resource.get("uri")


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    if type(values) is list:
        yield from (each for each in values if type(each) is dict)
