"""Digests, CIDs and strict parsing, compared with the standard library and other packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dag_cbor
import rfc8785

from benchmarks.measure import Goal, compare, table
from pinwarden import document_cid, parse_json, tool_digest

VECTORS = Path(__file__).resolve().parents[1] / "tests" / "vectors"


def real_tools() -> list[dict[str, Any]]:
    return [
        tool
        for path in sorted((VECTORS / "real-servers").glob("*.json"))
        for tool in json.loads(path.read_bytes())["tools"]
    ]


def apply_to_all(items: list[Any], function: Callable[[Any], object]) -> Callable[[], None]:
    def run() -> None:
        for item in items:
            function(item)

    return run


def digest_report() -> str:
    from mcp_hangar.domain.services.digest_computation import compute_tool_digest

    def stdlib(tool: Any) -> str:
        return hashlib.sha256(json.dumps(tool, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def with_rfc8785(tool: Any) -> str:
        return hashlib.sha256(rfc8785.dumps(tool)).hexdigest()

    tools = real_tools()
    rows = compare(
        {
            "json.dumps + sha256": apply_to_all(tools, stdlib),
            "pinwarden": apply_to_all(tools, tool_digest),
            "rfc8785 + sha256": apply_to_all(tools, with_rfc8785),
            "mcp-hangar": apply_to_all(tools, compute_tool_digest),
        },
        baseline="json.dumps + sha256",
        rounds=15,
    )
    goals = [
        Goal(name="pinwarden", against="json.dumps + sha256", at_most=0.5),
        Goal(name="pinwarden", against="mcp-hangar", at_most=0.1),
    ]
    return table(f"Digest of a real tool definition ({len(tools)} tools)", rows, len(tools), goals)


def manifest_json(size: int) -> bytes:
    entries: list[dict[str, Any]] = []
    while len(entries) * 176 < size:
        index = len(entries)
        entries.append(
            {
                "path": f"src/package_{index // 100:04d}/module_{index:06d}.py",
                "blob_cid": "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
                "size_bytes": index * 7,
                "executable": index % 5 == 0,
            }
        )
    return json.dumps({"schema_version": "toolbundle.manifest.v0.1", "cid_profile": {}, "entries": entries}).encode()


def cid_report() -> str:
    data = manifest_json(5_000_000)

    value = json.loads(data)

    def reference() -> bytes:
        return hashlib.sha256(dag_cbor.encode(json.loads(rfc8785.dumps(value)))).digest()

    rows = compare(
        {
            "rfc8785 + dag-cbor": reference,
            "pinwarden": lambda: document_cid(value),
            "pinwarden, from text": lambda: document_cid(data),
        },
        baseline="rfc8785 + dag-cbor",
        rounds=5,
    )
    goals = [
        Goal(name="pinwarden", against="rfc8785 + dag-cbor", at_most=1 / 8),
        Goal(name="pinwarden, from text", against="rfc8785 + dag-cbor", at_most=1 / 8),
    ]
    return table(f"CID of a manifest of {len(data) / 1e6:.1f} MB", rows, 1, goals)


def lock_text(entries: int) -> bytes:
    lock = json.loads((VECTORS / "toolpin" / "locks" / "whole.mcp-lock.json").read_bytes())
    approved = list(lock["servers"].items())
    servers = {
        f"{index}.{name}": entry for index in range(entries) for name, entry in [approved[index % len(approved)]]
    }
    return json.dumps({**lock, "servers": servers}, indent=2).encode()


def parse_report() -> str:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        parsed = dict(pairs)
        if len(parsed) != len(pairs):
            raise ValueError("duplicate member")
        return parsed

    def stdlib(data: bytes) -> Any:
        return json.loads(data, object_pairs_hook=members)

    tools = real_tools()
    compact = [json.dumps(tool, separators=(",", ":")).encode() for tool in tools]
    indented = [json.dumps(tool, indent=1).encode() for tool in tools]
    listing = [json.dumps({"tools": tools * 5}).encode()]
    lock = [lock_text(500)]
    reports = []
    for name, texts in (
        ("tools, compact", compact),
        ("tools, indented", indented),
        (f"one listing of {len(listing[0]) / 1e6:.1f} MB", listing),
        (f"a lock of 500 entries, {len(lock[0]) / 1e6:.1f} MB", lock),
    ):
        rows = compare(
            {"json.loads + duplicate hook": apply_to_all(texts, stdlib), "pinwarden": apply_to_all(texts, parse_json)},
            baseline="json.loads + duplicate hook",
            rounds=15,
        )
        # The lock has no goal: it has many short strings, which the standard library parses fastest.
        goal = Goal(name="pinwarden", against="json.loads + duplicate hook", at_most=0.8)
        goals = [] if texts is lock else [goal]
        reports.append(table(f"Strict parse: {name}", rows, len(texts), goals))
    return "\n\n".join(reports)
