"""``canonicalize``, ``digest``, ``cid`` and ``lock digest``: canonical forms and digests."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_from
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError

_INPUT_HELP = "JSON file, or - for standard input"
_CID_KINDS = ("document", "manifest-root", "blob")


def _configure_canonicalize(parser: ArgumentParser) -> None:
    from pinwarden.core.canonical import PROFILES

    parser.add_argument("file", help=_INPUT_HELP)
    parser.add_argument(
        "--profile", default="jcs", choices=list(PROFILES), help="canonical form to use (default: jcs, RFC 8785)"
    )


@command(_configure_canonicalize)
def canonicalize(args: Namespace) -> int:
    """Print JSON in canonical form: the exact bytes, without a newline at the end.

    Examples:
      pinwarden canonicalize tools.json
    """
    from pinwarden.core.canonical import canonicalize

    sys.stdout.buffer.write(canonicalize(_read_input(args.file), args.profile))
    return EXIT_CLEAN


def _configure_digest(parser: ArgumentParser) -> None:
    from pinwarden.core.digest import TOOL_PROFILES

    parser.add_argument("file", help=_INPUT_HELP)
    parser.add_argument(
        "--profile",
        default="pinwarden",
        choices=list(TOOL_PROFILES),
        help="whose digest to compute (default: pinwarden)",
    )
    parser.add_argument("--format", default="text", choices=["text", "json"], help="output format (default: text)")


@command(_configure_digest)
def digest(args: Namespace) -> int:
    """Print the digest of each tool in a tools/list result, in a JSON array of tools, or of a single tool.

    A tool without a digest is listed with the reason, and the exit code is 1; the other tools are still printed.

    Examples:
      pinwarden digest tools.json
      pinwarden digest tools.json --format json
    """
    import json

    from pinwarden.core.strict_json import parse_json
    from pinwarden.core.text import escape_json_for_log, neutralize_log_commands, show_invisible

    rows = [_build_digest_row(tool, args.profile) for tool in _list_tools(parse_json(_read_input(args.file)))]
    if args.format == "json":
        sys.stdout.write(escape_json_for_log(json.dumps({"profile": args.profile, "tools": rows}, indent=2)) + "\n")
    else:
        for row in rows:
            result = row.get("digest") or f"undigestable: {row['error']['message']}"
            sys.stdout.write(neutralize_log_commands(f"{show_invisible(result)}  {row['name']!a}\n"))
    return EXIT_REFUSED if any("error" in row for row in rows) else EXIT_CLEAN


def _configure_cid(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="file, or - for standard input")
    parser.add_argument(
        "--kind",
        default="document",
        choices=_CID_KINDS,
        help="read the file as JSON, as a bundle manifest, or as bytes (default: document)",
    )


@command(_configure_cid)
def cid(args: Namespace) -> int:
    """Print the content identifier (CID) of a JSON document, a bundle manifest or any file.

    Examples:
      pinwarden cid tools.json
      pinwarden cid --kind blob notes_server.py
    """
    from pinwarden.core.digest import blob_cid, document_cid, manifest_root_cid

    functions = dict(zip(_CID_KINDS, (document_cid, manifest_root_cid, blob_cid), strict=True))
    sys.stdout.write(f"{functions[args.kind](_read_input(args.file))}\n")
    return EXIT_CLEAN


def _configure_lock_digest(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--sealed",
        action="store_true",
        help="print the digest for ci --expect-digest, which also covers Pinwarden's extension fields and the policy",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_lock_digest)
def lock_digest(args: Namespace) -> int:
    """Print the digest of the lockfile, as ToolPin computes it, after checking the file.

    The exit code is 1 if the lockfile or an approved surface next to it was changed outside Pinwarden.

    Examples:
      pinwarden lock digest
      pinwarden lock digest --sealed
    """
    from pinwarden.project.lock_documents import report_lock_digest
    from pinwarden.project.project import load_policies

    project = project_from(args)
    return emit(report_lock_digest(project.lock, load_policies(project) if args.sealed else None), args.format)


def _read_input(name: str) -> bytes:
    """Return the bytes of a file, or of standard input if the name is ``-``."""
    from pinwarden.core.strict_json import DEFAULT_LIMITS
    from pinwarden.system.files import read_file

    if name != "-":
        return read_file(Path(name))
    data = sys.stdin.buffer.read(DEFAULT_LIMITS.max_bytes + 1)
    if len(data) > DEFAULT_LIMITS.max_bytes:
        raise PinwardenError("FILE_UNREADABLE", f"standard input is larger than {DEFAULT_LIMITS.max_bytes} bytes")
    return data


def _list_tools(listing: Any) -> list[Any]:
    if isinstance(listing, dict) and isinstance(listing.get("tools"), list):
        tools: list[Any] = listing["tools"]
        return tools
    return listing if isinstance(listing, list) else [listing]


def _build_digest_row(tool: Any, profile: str) -> dict[str, Any]:
    from pinwarden.core.digest import tool_digest

    name = tool.get("name") if isinstance(tool, dict) else None
    try:
        return {"name": name, "digest": str(tool_digest(tool, profile))}
    except PinwardenError as err:
        return {"name": name, "error": {"code": err.code, "message": err.message}}
