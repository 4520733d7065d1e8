"""Print the digest of every tool in a listing.

The file holds a tools/list result ({"tools": […]}), a plain list of tools, or one tool. A tool that cannot be
digested is named with the reason and makes the exit code 1; the others are still printed.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from pinwarden.cli.inputs import read_input
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.strict_json import parse
from pinwarden.core.tool_digest import TOOL_PROFILES, tool_digest
from pinwarden.core.visible import inert_in_log, printed_json, show_invisible


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("file", help="JSON file, or - for standard input")
    parser.add_argument("--profile", default="pinwarden", choices=list(TOOL_PROFILES), help="default: pinwarden")
    parser.add_argument("--format", default="text", choices=["text", "json"])


def run(args: Namespace) -> int:
    """Digest each tool and print the rows."""
    rows = [_row(tool, args.profile) for tool in _tools(parse(read_input(args.file)))]
    if args.format == "json":
        sys.stdout.write(printed_json(json.dumps({"profile": args.profile, "tools": rows}, indent=2)) + "\n")
    else:
        for row in rows:
            told = row.get("digest") or f"undigestable: {row['error']['message']}"
            sys.stdout.write(inert_in_log(f"{show_invisible(told)}  {row['name']!a}\n"))
    return EXIT_REFUSED if any("error" in row for row in rows) else EXIT_CLEAN


def _tools(listing: Any) -> list[Any]:
    if isinstance(listing, dict) and isinstance(listing.get("tools"), list):
        tools: list[Any] = listing["tools"]
        return tools
    return listing if isinstance(listing, list) else [listing]


def _row(tool: Any, profile: str) -> dict[str, Any]:
    name = tool.get("name") if isinstance(tool, dict) else None
    try:
        return {"name": name, "digest": str(tool_digest(tool, profile))}
    except PinwardenError as err:
        return {"name": name, "error": {"code": err.code, "message": err.message}}
