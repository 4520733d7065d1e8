"""A guarded client of the older SDK: ``python old_guarded_client.py PYTHON SERVER`` prints what it sees as JSON.

It runs with a Python that has the older SDK; Pinwarden and its dependencies come from the environment of the tests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PYTHON, SERVER = Path(sys.argv[1]), sys.argv[2]
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
sys.path += map(str, (PYTHON.parent.parent / "lib").glob("python*/site-packages"))  # behind those of the older SDK

from mcp import ClientSession, StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402


async def main() -> dict[str, Any]:
    pinwarden: Any = import_module("pinwarden")
    seen: dict[str, Any] = {}
    parameters = StdioServerParameters(command=str(PYTHON), args=[SERVER])
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        async with pinwarden.guard(session, "weather"):
            await session.initialize()
            seen["tools"] = sorted(tool.name for tool in (await session.list_tools()).tools)
            called: Any = await session.call_tool("weather", {"city": "Rome"})
            seen["text"] = called.content[0].text
            await session.call_tool("turn", {"what": "tool", "announce": True})
            try:
                await session.list_tools()
            except pinwarden.PinwardenError as err:
                seen["list"] = [err.code, [row["name"] for row in err.data["items"]]]
            try:
                await session.call_tool("weather", {"city": "Oslo"})
            except pinwarden.PinwardenError as err:
                seen["call"] = err.code
        try:
            async with pinwarden.guard(session, "weather"):
                pass
        except pinwarden.PinwardenError as err:
            seen["late"] = err.code
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main())))
