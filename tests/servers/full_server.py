"""A server written with the official Python SDK that uses all of MCP: ``python full_server.py stdio|http``.

Its lists say that they may be kept for an hour by anybody, which a gateway must not let pass.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    Completion,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestURLParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

EVERY_BYTE = bytes(range(256)) * 4
LOGIN = "https://login.example.com/start?x=1&y=%C3%A9"
KEEP = CacheHint(ttl_ms=3_600_000, scope="public")
HINTS: Any = dict.fromkeys(
    ("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"), KEEP
)
server = MCPServer("full", version="1", instructions="Use all of it.", log_level="ERROR", cache_hints=HINTS)


class Person(BaseModel):
    """What is asked of a person."""

    name: str


def ask_model() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="Say hé."))], max_tokens=5)


def ask_person() -> Elicit[Person]:
    return Elicit("Who are you? ☃", Person)


def ask_roots() -> ListRoots:
    return ListRoots()


@server.tool()
async def steps(count: int, ctx: Context[Any, Any]) -> str:
    """Tells its progress, and logs it."""
    for step in range(count):
        await ctx.report_progress(step + 0.5, count, f"step {step} é")
        await ctx.session.send_log_message("info", {"step": step}, related_request_id=ctx.request_id)
    return "done"


@server.tool()
async def wait(ctx: Context[Any, Any]) -> str:
    """Ends when it is cancelled."""
    await ctx.report_progress(0, 1, "waiting")
    await anyio.sleep(300)
    return "nobody cancelled"


@server.tool()
def sampled(answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Asks the client's model."""
    return answer.model_dump_json()


@server.tool()
def elicited(person: Annotated[Person, Resolve(ask_person)]) -> str:
    """Asks the user."""
    return person.name


@server.tool()
async def sent_away(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Sends the user to a page."""
    if ctx.input_responses:
        return "came back"
    params = ElicitRequestURLParams(message="Log in.", url=LOGIN, elicitation_id="one")
    return InputRequiredResult(input_requests={"login": ElicitRequest(params=params)})


@server.tool()
def rooted(roots: Annotated[ListRootsResult, Resolve(ask_roots)]) -> str:
    """Asks for the client's folders."""
    return roots.model_dump_json()


@server.tool()
def media() -> list[Any]:
    """A picture, a sound and a file, of every byte there is."""
    data = base64.b64encode(EVERY_BYTE).decode()
    file = BlobResourceContents(uri="note://file", blob=data, mime_type="application/octet-stream")
    return [
        ImageContent(type="image", data=data, mime_type="image/png"),
        AudioContent(type="audio", data=data, mime_type="audio/wav"),
        EmbeddedResource(type="resource", resource=file),
    ]


@server.tool(structured_output=False)
def large(size: int) -> str:
    """So many characters."""
    return "é\\" + "x" * (size - 2)


@server.tool()
async def touch(uri: str, ctx: Context[Any, Any]) -> str:
    """Tells that a resource changed."""
    await ctx.notify_resource_updated(uri)
    return "told"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


@server.resource("note://today")
def today() -> str:
    """Today's note."""
    return "nothing é \u2028 \U0001f600"


@server.resource("note://bytes", mime_type="application/octet-stream")
def every_byte() -> bytes:
    """Every byte there is."""
    return EVERY_BYTE


@server.resource("note://day/{day}")
def of_day(day: str) -> str:
    """The note of a day."""
    return day


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(_ref: Any, argument: Any, _context: Any) -> Completion:
    """Anything that begins like it."""
    return Completion(values=[f"{argument.value}a", f"{argument.value}b"], total=2)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        sys.path.insert(0, str(Path(__file__).parent.parent.parent))
        from tests.servers.serve_http import serve

        serve(server.streamable_http_app())
