"""Run Cisco's YARA rules over surfaces, as its scanner does: a program for the interpreter that has ``mcpscanner``.

Reads one listing per line from stdin, and writes for each a JSON list with the names of the items with a finding.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from mcpscanner.core.analyzers.yara_analyzer import YaraAnalyzer


async def find_suspected(analyzer: YaraAnalyzer, listing: dict[str, Any]) -> list[str]:
    """The names of the tools and prompts with a finding; an empty name stands for the instructions.

    The scanner analyses the description and the rest of the definition one after the other.
    """
    names = []
    items = [*listing.get("tools", []), *listing.get("prompts", []), *listing.get("resources", [])]
    for item in [*items, {"name": "", "description": listing.get("instructions")}]:
        rest = json.dumps({member: value for member, value in item.items() if member != "description"})
        texts = [text for text in (item.get("description"), rest) if text]
        if any([await analyzer.analyze(text, {"tool_name": item["name"]}) for text in texts]):
            names.append(item["name"])
    return names


async def main() -> None:
    logging.disable(logging.CRITICAL)
    analyzer = YaraAnalyzer()
    for line in sys.stdin:
        print(json.dumps(await find_suspected(analyzer, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
