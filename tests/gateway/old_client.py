"""A client of the older SDK, run by a Python that has it; prints what it sees of each server as JSON.

``python old_client.py '<JSON list of [kind, target…]>'``; a target is ``["http", address, token, tool, arguments]`` or
``["stdio", command, tool, arguments]``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


async def see(read: Any, write: Any, tool: str, arguments: Any) -> dict[str, Any]:
    async with ClientSession(read, write) as session:
        about = await session.initialize()
        tools = await session.list_tools()
        called = await session.call_tool(tool, arguments)
        return {
            "version": str(about.protocolVersion),
            "tools": sorted(entry.name for entry in tools.tools),
            "text": called.content[0].text,
        }


async def main(targets: list[Any]) -> None:
    seen = []
    for kind, *target in targets:
        if kind == "http":
            url, token, tool, arguments = target
            headers = {"Authorization": f"Bearer {token}"}
            async with streamablehttp_client(url, headers=headers) as (read, write, _):
                seen.append(await see(read, write, tool, arguments))
        else:
            command, tool, arguments = target
            async with stdio_client(StdioServerParameters(command=command[0], args=command[1:])) as (read, write):
                seen.append(await see(read, write, tool, arguments))
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
