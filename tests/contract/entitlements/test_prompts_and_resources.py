"""Prompts and resources that the source registers, and what their code can do."""

from __future__ import annotations

import pytest

from pinwarden.contract.entitlements.analysis import analyse, find_handlers
from tests.contract.entitlements.servers import sources

READS = "return open('/etc/hosts').read()"


def reached(text: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    given = sources(server=text)
    result = analyse(given, find_handlers(given))
    return (
        {name: found.kinds for name, found in result.prompts.items()},
        {name: found.kinds for name, found in result.resources.items()},
    )


@pytest.mark.parametrize(
    "head",
    [
        "from mcp.server.fastmcp import FastMCP\nserver = FastMCP('x')",
        "from mcp.server.mcpserver import MCPServer\nserver = MCPServer('x')",
        "from fastmcp import FastMCP\nserver = FastMCP('x')",
    ],
)
@pytest.mark.parametrize(
    ("registered", "prompts", "resources"),
    [
        (f"@server.prompt()\ndef p():\n    {READS}", "p", None),
        (f"@server.prompt('named')\ndef p():\n    {READS}", "named", None),
        (f"@server.prompt(name='named')\ndef p():\n    {READS}", "named", None),
        (f"@server.prompt\ndef p():\n    {READS}", "p", None),
        (f"@server.resource('a://b', name='shown')\ndef r():\n    {READS}", None, "a://b"),
        (f"@server.resource(uri='a://{{b}}')\ndef r(b):\n    {READS}", None, "a://{b}"),
        (f"def r():\n    {READS}\nserver.resource('a://b')(r)", None, "a://b"),
        (
            f"def p():\n    {READS}\nfrom mcp.server.fastmcp.prompts import Prompt\n"
            "server.add_prompt(Prompt.from_function(p, name='named'))",
            "named",
            None,
        ),
        (
            f"def r():\n    {READS}\nfrom mcp.server.fastmcp.resources import FunctionResource\n"
            "server.add_resource(FunctionResource(uri='a://b', fn=r))",
            None,
            "a://b",
        ),
    ],
)
def test_a_prompt_or_resource_is_found_however_it_is_registered(
    head: str, registered: str, prompts: str | None, resources: str | None
) -> None:
    kinds = ("filesystem:read",)
    expected = ({prompts: kinds} if prompts else {}, {resources: kinds} if resources else {})
    assert reached(f"{head}\n{registered}\n") == expected


def test_a_server_that_was_handed_in_gets_prompts_and_resources_too() -> None:
    text = f"""
def register(server):
    @server.prompt(name="p")
    def p():
        {READS}

    @server.resource("a://b")
    def r():
        {READS}
"""
    assert reached(text) == ({"p": ("filesystem:read",)}, {"a://b": ("filesystem:read",)})


def test_handlers_of_the_low_level_server_serve_every_prompt_and_resource() -> None:
    text = f"""
from mcp.server.lowlevel import Server
server = Server("x")

@server.get_prompt()
async def get(name, arguments):
    {READS}

@server.read_resource()
async def read(uri):
    {READS}
"""
    assert reached(text) == ({"*": ("filesystem:read",)}, {"*": ("filesystem:read",)})


def test_attack_a_method_named_like_a_registration_hides_nothing() -> None:
    text = """
import boto3
from fastmcp import FastMCP
server = FastMCP("x")

@server.prompt()
def known():
    return boto3.resource("s3").Bucket("b").download_file("a", "b")

@server.prompt()
def handed_in(session):
    return session.resource("x").read_text()
"""
    assert reached(text) == ({"known": ("network",), "handed_in": ("filesystem:read",)}, {})
