"""The chapters of ``pinwarden demo``, in order: a server package and a remote server, from finding to publishing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, TextIO

from pinwarden.demo.services import PACKAGE, Services, read_notes_server
from pinwarden.demo.stage import Stage


def play(output: TextIO, *, with_registry: bool, columns: int) -> None:
    """Play all chapters. Those about bundles need the packages of the registry extra.

    Raises ``DEMO_FAILED`` if a command does not end as the story says.
    """
    with tempfile.TemporaryDirectory(prefix="pinwarden-demo-") as folder, Services() as services:
        variables = {"UV_DEFAULT_INDEX": services.index, "PINWARDEN_APPROVER": "you@example.org"}
        stage = Stage(Path(folder), output, variables=variables, columns=columns)
        stage.say("Two MCP servers in one project: `notes`, a Python package, and `weather`, a remote server.")
        stage.say("Both run on this machine, in a temporary folder. Every command below is real.")
        _approve_servers(stage, services)
        _block_changes(stage, services)
        if with_registry:
            _distribute(stage)


def _approve_servers(stage: Stage, services: Services) -> None:
    entries = {
        "notes": {"command": "uvx", "args": [PACKAGE]},
        "weather": {"type": "http", "url": services.weather},
    }
    stage.edit(".mcp.json", json.dumps({"mcpServers": entries}, indent=2))
    stage.start_chapter("1. Find", "What do the clients of this project start, and what is known about it?")
    stage.run("status", keep=["^SERVER", "^notes", "^weather", "^2 servers"], expect=["0 of 1 pinned"])

    stage.start_chapter(
        "2. Pin", "`uvx` would start whatever is newest. Write the exact release into the client's file:"
    )
    stage.run("pin --yes", keep=[r"^[-+] ", "^1 entry"], expect=[f"{PACKAGE}@1.0.0"])

    stage.start_chapter(
        "3. Lock and verify", "Download the package, hash it and every dependency here, and keep those bytes:"
    )
    stage.run("init", keep=["^2 of 2 configured"])
    stage.run("prove notes", keep=["verified"])
    stage.run("fetch notes", keep=["ready"])

    stage.start_chapter("4. Approve", "Read what the servers tell the model, and agree to it:")
    stage.run(
        "approve --all --yes --allow-execute --allow-private",
        keep=["^notes", "^weather", "^The scan", r"^  \w+\(", "^      ", "approved"],
        at_most=16,
        expect=["notes: approved by", "weather: approved by"],
    )

    stage.start_chapter(
        "5. Enforce", "Let the client start both servers through Pinwarden. `enforce --undo` takes it back."
    )
    stage.run("enforce --yes", keep=[r"^[-+] +\"(command|url)", "^2 entries"])
    stage.run("status", keep=["^SERVER", "^notes", "^weather", "^2 servers"], expect=["2 of 2 enforced"])

    stage.start_chapter("6. Check in CI", "Servers, configuration and tools are as approved:")
    stage.run("ci --live --allow-execute --allow-private", keep=["^2 entries"], expect=["as approved"])


def _block_changes(stage: Stage, services: Services) -> None:
    services.pull_the_rug()
    stage.start_chapter(
        "7. The rug pull", "The remote server changes a description and adds a tool. CI fails and says why:"
    )
    stage.run(
        "ci --live --allow-execute --allow-private",
        exit_code=1,
        keep=["^critical", "^review", "^ {10}", r"^\d+ entries"],
        at_most=16,
        expect=["forecast", "sunrise"],
    )

    stage.start_chapter("8. The gateway blocks it", "The client starts `weather` as its file says and lists the tools:")
    listed = stage.run(
        "run weather --client claude",
        stdin=_client_messages(),
        keep=["blocked tool"],
        expect=["blocked tool 'forecast'", "blocked tool 'sunrise'"],
    )
    tools = [tool["name"] for line in listed.splitlines() for tool in _read_tools(line)]
    stage.say(f"The model sees {', '.join(tools) or 'no tool'}.")

    stage.start_chapter("9. Decide", "The new tool is fine, the order in the description is not:")
    reviews = json.loads(stage.query("review list --json"))["reviews"]
    names = {review["item"]: review["name"] for review in reviews}
    stage.run(f"review approve {names['sunrise']}", keep=["approved"])
    stage.run(f"review reject {names['forecast']} --why 'asks for a private key'", keep=["rejected"])
    listed = stage.query("run weather --client claude", stdin=_client_messages())
    tools = [tool["name"] for line in listed.splitlines() for tool in _read_tools(line)]
    stage.say(f"The model sees {', '.join(tools)}.")


def _distribute(stage: Stage) -> None:
    stage.edit("notes/server.py", read_notes_server())
    manifest = {
        "name": "acme.notes",
        "version": "1.0.0",
        "description": "Keeps notes in memory.",
        "runtime": "python",
        "entry": "server.py",
    }
    stage.edit("notes/server.json", json.dumps(manifest, indent=2))
    stage.start_chapter("10. Run a registry", "Its operator gives the namespace `acme` to the key of its owner:")
    with stage.serve("registry serve --data registry --port 0", lines=3) as (address, _, verifier):
        stage.run("keygen acme.key", keep=())
        stage.run("registry namespace add acme --owner acme.key.pub --data registry", keep=["belongs"])
        token = stage.run("registry token add acme --data registry", keep=()).strip()
        stage.variables["PINWARDEN_REGISTRY_TOKEN"] = token

        stage.start_chapter("11. Publish", "The author packs a server, signs what was packed, and publishes it:")
        archive = "packed/acme.notes-1.0.0.car"
        stage.run("bundle pack notes -o packed", keep=["contains"])
        stage.run(f"attest {archive} --key acme.key --role maintainer -o signed.json", keep=["attested"])
        stage.run(f"publish {archive} --attestation signed.json --key acme.key --registry {address}", keep=["is on"])

        stage.start_chapter(
            "12. Install", "A user trusts the registry's log and the author, and checks every step again:"
        )
        stage.run(f"trust add {verifier} --role registry --url {address}", keep=["trusted"])
        stage.run("trust add acme.key.pub --name acme --role maintainer", keep=["trusted"])
        stage.run(f"install acme.notes --registry {address}", keep=["passed", "^ACCEPT"])

        stage.start_chapter("13. Verify the log", "Every change of the registry is in a log that can only grow:")
        stage.run(f"log verify {address}", keep=["all entries match"])


def _read_tools(line: str) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = json.loads(line).get("result", {}).get("tools", [])
    return tools


def _client_messages() -> str:
    """Return what a client sends to list the tools, a message per line."""
    client = {"name": "demo", "version": "1"}
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    return "".join(f"{json.dumps(message)}\n" for message in messages)
