"""Digest, CID and strict parse against the standard library and the packages others use."""

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


def over(items: list[Any], function: Callable[[Any], object]) -> Callable[[], None]:
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
            "json.dumps + sha256": over(tools, stdlib),
            "pinwarden": over(tools, tool_digest),
            "rfc8785 + sha256": over(tools, with_rfc8785),
            "mcp-hangar": over(tools, compute_tool_digest),
        },
        baseline="json.dumps + sha256",
        rounds=15,
    )
    goals = [
        Goal(name="pinwarden", against="json.dumps + sha256", at_most=0.5),
        Goal(name="pinwarden", against="mcp-hangar", at_most=0.1),
    ]
    return table(f"Digest of a real tool definition ({len(tools)} tools)", rows, len(tools), goals)


def manifest(size: int) -> bytes:
    entries: list[dict[str, Any]] = []
    while len(entries) * 176 < size:
        number = len(entries)
        entries.append(
            {
                "path": f"src/package_{number // 100:04d}/module_{number:06d}.py",
                "blob_cid": "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
                "size_bytes": number * 7,
                "executable": number % 5 == 0,
            }
        )
    return json.dumps({"schema_version": "toolbundle.manifest.v0.1", "cid_profile": {}, "entries": entries}).encode()


def cid_report() -> str:
    data = manifest(5_000_000)

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
    whole = json.loads((VECTORS / "toolpin" / "locks" / "whole.mcp-lock.json").read_bytes())
    found = list(whole["servers"].items())
    servers = {f"{number}.{name}": entry for number in range(entries) for name, entry in [found[number % len(found)]]}
    return json.dumps({**whole, "servers": servers}, indent=2).encode()


def parse_report() -> str:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a member twice")
        return found

    def stdlib(data: bytes) -> Any:
        return json.loads(data, object_pairs_hook=members)

    tools = real_tools()
    small = [json.dumps(tool, separators=(",", ":")).encode() for tool in tools]
    spaced = [json.dumps(tool, indent=1).encode() for tool in tools]
    whole = [json.dumps({"tools": tools * 5}).encode()]
    lock = [lock_text(500)]
    reports = []
    for name, texts in (
        ("tools, compact", small),
        ("tools, indented", spaced),
        (f"one listing of {len(whole[0]) / 1e6:.1f} MB", whole),
        (f"a lock of 500 entries, {len(lock[0]) / 1e6:.1f} MB", lock),
    ):
        rows = compare(
            {"json.loads + duplicate hook": over(texts, stdlib), "pinwarden": over(texts, parse_json)},
            baseline="json.loads + duplicate hook",
            rounds=15,
        )
        # The lock is here for honesty: its many short strings are where the standard library is at its best.
        goal = Goal(name="pinwarden", against="json.loads + duplicate hook", at_most=0.8)
        goals = [] if texts is lock else [goal]
        reports.append(table(f"Strict parse: {name}", rows, len(texts), goals))
    return "\n\n".join(reports)
