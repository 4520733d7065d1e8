"""What other tools say about the surfaces of the judgement benchmark.

Each peer returns the names of the items of one surface that it reports. The server's instructions have the name "".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from pinwarden.surface import interop as toolpin

Listing = dict[str, Any]
Peer = Callable[[Listing], set[str]]
_CISCO_RULES = "mcpscanner/data/yara_rules"


def available_peers() -> dict[str, Peer]:
    """The peers that can run here, by name. Cisco's rules are in the environment that ``make bench`` sets up."""
    peers: dict[str, Peer] = {"ToolPin": suspected_by_toolpin}
    with suppress(ImportError, PackageNotFoundError):  # then the report has no column for it
        peers["Cisco YARA"] = load_cisco_rules()
    return peers


def suspected_by_toolpin(listing: Listing) -> set[str]:
    """ToolPin's warnings, which it computes from the names and descriptions of tools."""
    return {
        tool["name"]
        for tool in listing.get("tools", [])
        if _has_toolpin_warning((tool["name"], tool.get("description")))
    }


def _has_toolpin_warning(texts: Iterable[object]) -> bool:
    return any(
        advisory.severity == "warning"
        for text in texts
        if isinstance(text, str)
        for advisory, _, _ in toolpin.find_advisories(text)
    )


def load_cisco_rules() -> Peer:
    """The rules of Cisco's mcp-scanner, applied as its YARA analyzer does: every match is a finding.

    It analyses the description of an item, and then the JSON text of its other members.
    """
    import yara

    folder = distribution("cisco-ai-mcp-scanner").locate_file(_CISCO_RULES)
    rules = yara.compile(sources={path.name: path.read_text() for path in _list_rule_files(folder)})

    def suspected(listing: Listing) -> set[str]:
        items = [item for member in ("tools", "prompts", "resources") for item in listing.get(member, [])]
        items.append({"name": "", "description": listing.get("instructions")})
        return {item["name"] for item in items if any(rules.match(data=text) for text in _split_item(item))}

    return suspected


def _list_rule_files(folder: Any) -> list[Any]:
    return sorted((path for path in folder.iterdir() if path.suffix in (".yara", ".yar")), key=lambda path: path.name)


def _split_item(item: Listing) -> list[str]:
    rest = json.dumps({member: value for member, value in item.items() if member != "description"})
    return [text for text in (item.get("description"), rest) if text]
