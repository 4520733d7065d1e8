"""Scenarios in which the official client uses every feature of MCP that a server has."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import FileUrl

ODD = 'hé "quoted" \\ \u2028 \U0001f600 </script>'


class RecordingUser:
    """Answers the server's requests for the user and the model, and records requests and notifications."""

    def __init__(self, folder: Path = Path()) -> None:
        self.notifications: list[str] = []
        """Methods of notifications; of log messages ``log`` and the level."""
        self.server_requests: list[str] = []
        self.folder = folder
        """The folder that file servers may read."""

    def client(self, target: Any, mode: str) -> Client:
        """Return a client that has all capabilities."""
        return Client(
            target,
            mode=mode,
            sampling_callback=self._sample,
            elicitation_callback=self._elicit,
            list_roots_callback=self._roots,
            logging_callback=self._log,
            message_handler=self._hear,
            log_level="debug",
            cache=None,
        )

    async def _sample(self, context: Any, params: Any) -> Any:  # noqa: ARG002
        self.server_requests.append("sampling")
        content = types.TextContent(type="text", text=f"{ODD} {params.max_tokens}")
        return types.CreateMessageResult(role="assistant", content=content, model="m", stop_reason="endTurn")

    async def _elicit(self, context: Any, params: Any) -> Any:  # noqa: ARG002
        self.server_requests.append(f"elicitation {params.mode}")
        return types.ElicitResult(action="accept", content=None if params.mode == "url" else {"name": ODD})

    async def _roots(self, context: Any) -> Any:  # noqa: ARG002
        self.server_requests.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///tmp/%C3%A9"), name=ODD)])

    async def _log(self, params: Any) -> None:
        self.notifications.append(f"log {params.level}")

    async def _hear(self, message: Any) -> None:
        self.notifications.append(getattr(message, "method", type(message).__name__))

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until ``done`` returns true, at most a minute."""
        with anyio.fail_after(60):
            while not done():
                await anyio.sleep(0.01)


async def _call_for_progress(client: Client, tool: str, arguments: dict[str, Any]) -> list[float]:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    await client.call_tool(tool, arguments, progress_callback=on_progress)
    return seen


LONG = {"duration": 5, "steps": 25}
"""The first progress comes soon, and then there is time to cancel the call, even on a slow machine."""


async def _call_and_cancel(client: Client, tool: str, arguments: dict[str, Any]) -> None:
    """Call a tool, and cancel the call after its first progress notification."""
    async with anyio.create_task_group() as group:

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            group.cancel_scope.cancel()

        async def call() -> None:
            await client.call_tool(tool, arguments, progress_callback=on_progress)
            pytest.fail("it was not cancelled")

        group.start_soon(call)


async def _list_everything(client: Client) -> None:
    await client.list_tools()
    await client.list_prompts()
    await client.list_resources()
    await client.list_resource_templates()


async def use_everything_server(client: Client, user: RecordingUser, size: int) -> None:
    """Use server-everything, which supports only the handshake."""
    await _list_everything(client)
    await client.send_ping()
    await client.call_tool("echo", {"message": ODD})
    assert await _call_for_progress(client, "trigger-long-running-operation", {"duration": 0.2, "steps": 4}) == [
        1,
        2,
        3,
        4,
    ]
    await _call_and_cancel(client, "trigger-long-running-operation", LONG)
    await user.until(lambda: "roots" in user.server_requests)
    await client.send_roots_list_changed()
    await user.until(lambda: user.server_requests.count("roots") == 2)
    await client.call_tool("get-roots-list", {})
    await client.call_tool("trigger-sampling-request", {"prompt": ODD, "maxTokens": 7})
    await client.call_tool("trigger-elicitation-request", {})
    login = {"url": "https://login.example.com/start?x=1&y=%C3%A9", "message": ODD, "elicitationId": "one"}
    await client.call_tool("trigger-url-elicitation", login)
    with pytest.raises(MCPError):
        await client.call_tool("trigger-url-elicitation", {**login, "errorPath": True})
    for uri in ("demo://resource/dynamic/text/1", "demo://resource/dynamic/blob/2"):
        await client.read_resource(uri)
    await client.subscribe_resource("demo://resource/dynamic/text/1")
    await client.call_tool("toggle-subscriber-updates", {})
    await user.until(lambda: "notifications/resources/updated" in user.notifications)
    await client.call_tool("toggle-subscriber-updates", {})
    await client.unsubscribe_resource("demo://resource/dynamic/text/1")
    await client.set_logging_level("debug")
    logged = sum(method.startswith("log") for method in user.notifications)
    await client.call_tool("toggle-simulated-logging", {})
    await user.until(lambda: sum(method.startswith("log") for method in user.notifications) > logged)
    await client.call_tool("toggle-simulated-logging", {})
    prompt = types.PromptReference(type="ref/prompt", name="completable-prompt")
    await client.complete(prompt, {"name": "department", "value": "S"})
    template = types.ResourceTemplateReference(type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}")
    await client.complete(template, {"name": "resourceId", "value": "7"})
    await client.get_prompt("args-prompt", {"city": ODD})
    for tool in ("get-tiny-image", "get-resource-links"):
        await client.call_tool(tool, {})
    await client.call_tool("get-resource-reference", {"resourceType": "Blob", "resourceId": 3})
    await client.call_tool("get-annotated-message", {"messageType": "error", "includeImage": True})
    await client.call_tool("get-structured-content", {"location": "Chicago"})
    assert (await client.call_tool("get-sum", {"a": "no number"})).is_error
    await client.call_tool("echo", {"message": "x" * size})
    # That server continues a cancelled call and still sends its progress.
    await user.until(lambda: user.notifications.count("notifications/progress") == 4 + LONG["steps"])
    assert {"sampling", "elicitation form", "elicitation url", "roots"} == set(user.server_requests)


async def use_full_server(client: Client, user: RecordingUser, size: int) -> None:
    """Use a server of the newest SDK, in the revision without a handshake."""
    await _list_everything(client)
    assert await _call_for_progress(client, "steps", {"count": 3}) == [0.5, 1.5, 2.5]
    await user.until(lambda: user.notifications.count("log info") == 3)
    await _call_and_cancel(client, "wait", {})
    for tool in ("sampled", "elicited", "sent_away", "rooted", "media"):
        assert not (await client.call_tool(tool, {})).is_error, tool
    for uri in ("note://today", "note://bytes", "note://day/monday"):
        await client.read_resource(uri)
    async with client.listen(resource_subscriptions=["note://today"]) as updates:
        await client.call_tool("touch", {"uri": "note://today"})
        async for _ in updates:
            break
    prompt = types.PromptReference(type="ref/prompt", name="greet")
    await client.complete(prompt, {"name": "name", "value": ODD})
    template = types.ResourceTemplateReference(type="ref/resource", uri="note://day/{day}")
    await client.complete(template, {"name": "day", "value": "m"})
    await client.get_prompt("greet", {"name": ODD})
    large = (await client.call_tool("large", {"size": size})).content[0]
    assert isinstance(large, types.TextContent)
    assert len(large.text) == size
    assert {"sampling", "elicitation form", "elicitation url", "roots"} == set(user.server_requests)


async def use_merged_servers(client: Client, user: RecordingUser, size: int, *, handshake: bool) -> None:
    """Use server-everything and the server of the newest SDK, merged at ``/mcp``."""
    await _list_everything(client)
    await client.call_tool("everything__echo", {"message": ODD})
    await client.call_tool("full__media", {})
    if handshake:
        await _use_merged_servers_in_session(client, user)
    else:
        assert await _call_for_progress(client, "full__steps", {"count": 3}) == [0.5, 1.5, 2.5]
        await _call_and_cancel(client, "full__wait", {})
        for tool in ("sampled", "elicited", "sent_away", "rooted"):
            assert not (await client.call_tool(f"full__{tool}", {})).is_error, tool
    for uri in ("everything+demo://resource/dynamic/text/1", "full+note://bytes", "full+note://day/monday"):
        await client.read_resource(uri)
    for name in ("everything__completable-prompt", "full__greet"):
        prompt = types.PromptReference(type="ref/prompt", name=name)
        await client.complete(prompt, {"name": "department" if "everything" in name else "name", "value": "S"})
    template = types.ResourceTemplateReference(type="ref/resource", uri="full+note://day/{day}")
    await client.complete(template, {"name": "day", "value": ODD})
    await client.get_prompt("everything__args-prompt", {"city": ODD})
    await client.get_prompt("full__greet", {"name": ODD})
    assert (await client.call_tool("everything__get-sum", {"a": "no number"})).is_error
    await client.call_tool("everything__get-tiny-image", {})
    await client.call_tool("everything__echo", {"message": "x" * size})
    await client.call_tool("full__large", {"size": size})
    await _list_everything(client)


async def _use_merged_servers_in_session(client: Client, user: RecordingUser) -> None:
    long = "everything__trigger-long-running-operation"
    assert await _call_for_progress(client, long, {"duration": 0.2, "steps": 4}) == [1, 2, 3, 4]
    await _call_and_cancel(client, long, LONG)
    await client.send_ping()
    await client.send_roots_list_changed()
    await user.until(lambda: "roots" in user.server_requests)
    await client.call_tool("everything__trigger-sampling-request", {"prompt": ODD, "maxTokens": 7})
    await client.call_tool("everything__trigger-elicitation-request", {})
    await client.subscribe_resource("everything+demo://resource/dynamic/text/1")
    await client.call_tool("everything__toggle-subscriber-updates", {})
    await user.until(lambda: "notifications/resources/updated" in user.notifications)
    await client.call_tool("everything__toggle-subscriber-updates", {})
    await client.unsubscribe_resource("everything+demo://resource/dynamic/text/1")
    await client.set_logging_level("debug")
    # That server continues a cancelled call and still sends its progress.
    await user.until(lambda: user.notifications.count("notifications/progress") == 4 + LONG["steps"])
    assert {"sampling", "elicitation form", "roots"} <= set(user.server_requests)


def use_tasks(ask: Callable[[str, dict[str, Any]], Any]) -> None:
    """Use the tasks of server-everything with raw requests; the official client has no tasks.

    Each task runs for four seconds, so requests about a running task come first.
    """
    call = {"name": "simulate-research-query", "arguments": {"topic": ODD}, "task": {"ttl": 60_000}}
    second = ask("tools/call", call)["result"]["task"]["taskId"]
    assert ask("tasks/cancel", {"taskId": second})["result"]["status"] == "cancelled"
    first = ask("tools/call", call)["result"]["task"]["taskId"]
    assert ask("tasks/get", {"taskId": first})["result"]["status"] == "working"
    assert len(ask("tasks/list", {})["result"]["tasks"]) == 2
    assert ODD in ask("tasks/result", {"taskId": first})["result"]["content"][0]["text"]
    assert ask("tasks/get", {"taskId": first})["result"]["status"] == "completed"
    assert ask("tasks/cancel", {"taskId": first})["error"]["code"] == -32602


async def use_filesystem_server(client: Client, user: RecordingUser, size: int) -> None:
    """Use server-filesystem: read a file with all byte values, whose content is in the result twice."""
    await client.list_tools()
    await user.until(lambda: "roots" in user.server_requests)
    allowed = (await client.call_tool("list_allowed_directories", {})).content[0]
    assert isinstance(allowed, types.TextContent)
    file = Path(allowed.text.splitlines()[-1]) / "large.png"
    file.write_bytes(bytes(range(256)) * (size * 3 // 8 // 256))
    [picture] = (await client.call_tool("read_media_file", {"path": str(file)})).content
    assert isinstance(picture, types.ImageContent)
    assert 2 * len(picture.data) > size * 0.99


async def use_git_server(client: Client, user: RecordingUser, size: int) -> None:
    """Use mcp-server-git: add, commit and show a file whose name and content have special characters."""
    await client.list_tools()
    folder = user.folder
    (folder / "snö.txt").write_text(f"{ODD}\n" + "x" * size)
    repository = {"repo_path": str(folder)}
    for tool, more in (
        ("git_status", {}),
        ("git_add", {"files": ["snö.txt"]}),
        ("git_diff_staged", {}),
        ("git_commit", {"message": ODD}),
        ("git_log", {"max_count": 1}),
        ("git_show", {"revision": "HEAD"}),
    ):
        assert not (await client.call_tool(tool, {**repository, **more})).is_error, tool
    assert (await client.call_tool("git_show", {**repository, "revision": "nowhere"})).is_error


async def use_fastmcp_server(client: Client, user: RecordingUser, size: int) -> None:
    """Use a server written with FastMCP."""
    del user
    await _list_everything(client)
    assert (await client.call_tool("add", {"a": 40})).structured_content == {"result": 42}
    assert (await client.call_tool("add", {"a": ODD})).is_error
    await client.get_prompt("explain", {"topic": ODD + "x" * size})
    for uri in ("note://today", "note://monday"):
        await client.read_resource(uri)
    with pytest.raises(MCPError):
        await client.get_prompt("explain", {})


SCENARIOS: dict[str, Callable[[Client, RecordingUser, int], Coroutine[Any, Any, None]]] = {
    "everything": use_everything_server,
    "filesystem": use_filesystem_server,
    "full": use_full_server,
    "git": use_git_server,
    "fastmcp": use_fastmcp_server,
}
"""The scenario for each server."""
