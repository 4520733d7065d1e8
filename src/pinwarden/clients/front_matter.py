"""Servers that an agent brings with it: the YAML between two lines of dashes at the top of a Markdown file.

Most agents only name servers that are configured elsewhere, and most of these files hold no server at all. One whose
YAML is broken is passed over, as clients do, unless it speaks of servers: then nobody knows what it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.lazy_regex import pattern

_FENCED = pattern(rb"\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", 0x18)  # MULTILINE and DOTALL
_SPEAKS_OF_SERVERS = pattern(
    rb"^[ \t]*(?:\{.*|\?[ \t]*)?(?:[\"']?mcp[-_]?servers[\"']?[ \t]*(?::|$)|\"[^\"\n]*\\[^\"\n]*\"[ \t]*:)", 0x0A
)  # MULTILINE and IGNORECASE: the member, on a line of its own or in braces, or any that is spelt with escapes
_MEMBERS = ("mcpServers", "mcp-servers", "mcp_servers")


def read_front_matter(data: bytes) -> dict[str, Any]:
    """The servers of an agent under ``mcpServers``, as other files have them; an empty object if it brings none."""
    from pinwarden.clients.jsonc import decode
    from pinwarden.clients.yaml_text import read_yaml

    fenced = _FENCED.match(data.removeprefix(b"\xef\xbb\xbf"))
    head = fenced[1] if fenced else b""
    if b"mcp" not in head.lower() and b"\\" not in head:  # a name may also be spelt with escapes
        return {}
    try:
        document = read_yaml(decode(head))
    except PinwardenError:
        if _SPEAKS_OF_SERVERS.search(head):
            raise
        return {}
    servers: dict[str, Any] = {}
    for member in _MEMBERS:
        for name, entry in _brought(document.get(member) if type(document) is dict else None):
            if name in servers:
                raise PinwardenError("CONFIG_INVALID", f"two servers have the name {name[:80]!a}")
            servers[name] = entry
    return {"mcpServers": servers} if servers else {}


def _brought(listed: Any) -> Iterator[tuple[str, Any]]:
    """Name and entry of each server; what is only named is configured elsewhere."""
    for item in listed if type(listed) is list else [listed]:
        if type(item) is not dict:
            continue
        if type(item.get("name")) is str and ("command" in item or "url" in item):
            yield item["name"], item
            continue
        for name, entry in item.items():
            if entry is not None and type(entry) not in (str, bool):
                yield str(name), entry
