"""A client of the mcp SDK that is held to the lock in the current folder: ``guarded_client.py [SERVER OPTIONS]``."""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

import pinwarden

SERVER = StdioServerParameters(command="python3", args=["examples/notes_server.py", *sys.argv[1:]])


async def main() -> None:
    async with stdio_client(SERVER) as streams, ClientSession(*streams) as session:
        try:
            async with pinwarden.guard(session, "notes"):
                await session.initialize()
                tools = (await session.list_tools()).tools
                print("approved:", *(tool.name for tool in tools))
        except pinwarden.PinwardenError as err:
            print(f"{err.code}: {err}")


asyncio.run(main())
