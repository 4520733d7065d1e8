"""The script that collects surfaces of published servers, as far as it needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.needs import needs
from tools.collect_surfaces import (
    CollectionError,
    Package,
    choose_program,
    choose_publisher,
    list_server,
    parse_list,
    to_listing,
)


def test_a_list_has_packages_with_arguments_and_comments() -> None:
    text = "npm @acme/notes --stdio  # a comment\n\npypi acme-time\ncargo other\n"
    assert parse_list(text) == [Package("npm", "@acme/notes", ("--stdio",)), Package("pypi", "acme-time", ())]


def test_the_program_with_the_name_of_the_package_is_started() -> None:
    assert choose_program(["cli", "notes", "notes-mcp-server"], "@acme/notes") == "notes"
    assert choose_program(["cli", "acme-mcp-server"], "@acme/notes") == "acme-mcp-server"


@pytest.mark.parametrize(
    ("addresses", "package", "publisher"),
    [
        ("git+https://github.com/Acme/notes.git/", "@other/notes", "acme"),
        ("https://acme.example/", "@Acme/notes", "acme"),
        ("", "acme-notes", "acme"),
    ],
)
def test_packages_of_one_owner_have_one_publisher(addresses: str, package: str, publisher: str) -> None:
    assert choose_publisher(addresses, package) == publisher


SERVER = """
import json, os, sys
if "NOTES_API_KEY" not in os.environ:
    sys.exit("NOTES_API_KEY is not set")
for line in sys.stdin:
    request = json.loads(line)
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "notes"}},
        "tools/list": {"tools": [{"name": "add_note", "inputSchema": {"type": "object"}}]},
    }
    if "id" in request:
        result = results.get(request["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


@needs("bwrap", install="apt-get install bubblewrap")
def test_a_server_gets_dummy_values_for_the_settings_that_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    surface = list_server((sys.executable, str(tmp_path / "server.py")), tmp_path)
    assert [tool["name"] for tool in to_listing(surface)["tools"]] == ["add_note"]


@needs("bwrap", install="apt-get install bubblewrap")
def test_a_server_that_does_not_start_is_an_error_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("raise SystemExit('the database is missing')")
    with pytest.raises(CollectionError, match="the database is missing"):
        list_server((sys.executable, str(tmp_path / "server.py")), tmp_path)
