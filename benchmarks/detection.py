"""How many published attack texts the scan finds, and how many harmless texts it reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pinwarden.surface.scan.scan import MESSAGES, scan
from pinwarden.surface.surface import Surface, surface_from_listing
from tests.conformance.vectors import uncopied, vectors_dir

_PROXY = "attacks/mcpproxy-go-20a3e509"
_STRESS = "attacks/mcp-stress-test-1.0.3"


def report() -> str:
    sections = [_detection(), _security(), _stress(), _harmless_tools(), _real_servers()]
    return "\n\n".join(sections)


def is_suspected(surface: Surface, neighbours: Iterable[tuple[str, Surface]] = ()) -> bool:
    """Whether the scan reports a warning with one of Pinwarden's own codes."""
    return any(
        finding.severity == "warning" and finding.code in MESSAGES for finding in scan(surface, tuple(neighbours))
    )


def _tool(description: str) -> Surface:
    return surface_from_listing({"tools": [{"name": "t", "description": description}]})


def _load(path: str) -> Any:
    copy = uncopied(path)
    return None if copy is None else json.loads(copy.read_bytes())


def _not_available(title: str, path: str) -> str:
    return f"{title}\n  skipped: no copy of {path}; set PINWARDEN_VECTORS to a folder that contains it"


def _table(title: str, rows: list[tuple[str, str, bool, bool]], goals: str = "") -> str:
    """Return a table of (category, id, is an attack, was suspected), category by category."""
    lines = [title]
    for attack, heading in ((True, "detected"), (False, "false alarms")):
        labelled_rows = [row for row in rows if row[2] is attack]
        if not labelled_rows:
            continue
        warned = sum(row[3] for row in labelled_rows)
        lines.append(f"  {heading:24} {warned:3} of {len(labelled_rows):3}")
        for category in sorted({row[0] for row in labelled_rows}):
            category_rows = [row for row in labelled_rows if row[0] == category]
            wrong = [row[1] for row in category_rows if row[3] is not attack]
            wrong_names = f"    {'missed' if attack else 'suspected'}: {', '.join(wrong)}" if wrong else ""
            lines.append(
                f"    {category:22} {sum(row[3] for row in category_rows):3} of {len(category_rows):3}{wrong_names}"
            )
    return "\n".join([*lines, goals] if goals else lines)


def _detection() -> str:
    title, path = "Detection corpus of mcpproxy-go", f"{_PROXY}/detect_corpus_v1.json"
    corpus = _load(path)
    if corpus is None:
        return _not_available(title, path)
    rows = []
    for entry in corpus["entries"]:
        own, others = [entry["tool"]], dict[str, list[Any]]()
        for peer in entry.get("peers", []):
            (own if peer["server"] == entry["server"] else others.setdefault(peer["server"], [])).append(peer["tool"])
        neighbours = [(name, surface_from_listing({"tools": tools})) for name, tools in others.items()]
        suspected = is_suspected(surface_from_listing({"tools": own}), neighbours)
        rows.append((entry["category"], entry["id"], entry["label"] == "malicious", suspected))
    attacks = [row[3] for row in rows if row[2]]
    recall, alarms = sum(attacks) / len(attacks), sum(row[3] for row in rows if not row[2])
    met = "met" if recall >= 0.9 and alarms <= 1 else "NOT MET"
    goal = f"  goal: recall {recall:.2f} (at least 0.90), false alarms {alarms} (at most 1): {met}"
    return _table(title, rows, goal)


def _security() -> str:
    title, path = (
        "Security corpus of mcpproxy-go (self-authored part)",
        f"{_PROXY}/security_corpus_v1.self-authored.json",
    )
    corpus = _load(path)
    if corpus is None:
        return _not_available(title, path)
    rows = [
        (entry["category"], entry["id"], entry["label"] == "malicious", is_suspected(_tool(entry["description"])))
        for entry in corpus["entries"]
    ]
    return _table(title, rows)


def _stress() -> str:
    title = "mcp-stress-test 1.0.3 (attacks only; many patterns only describe an attack)"
    rows = []
    for file, member, text in (("payloads", "payloads", "content"), ("patterns", "patterns", "template")):
        corpus = _load(f"{_STRESS}/{file}.json")
        if corpus is None:
            return _not_available(title, f"{_STRESS}/{file}.json")
        rows += [
            (f"{file}: {row['category']}", row["id"], True, is_suspected(_tool(row[text]))) for row in corpus[member]
        ]
    return _table(title, rows)


def _harmless_tools() -> str:
    title, path = "45 real tools collected by mcpproxy-go", f"{_PROXY}/corpus_v1.tools.json"
    corpus = _load(path)
    if corpus is None:
        return _not_available(title, path)
    rows = [(row["server"], row["tool_id"], False, is_suspected(_tool(row["description"]))) for row in corpus["tools"]]
    return _table(title, rows)


def _real_servers() -> str:
    paths = sorted((vectors_dir() / "real-servers").glob("*.json"))
    suspected = [path.stem for path in paths if is_suspected(surface_from_listing(json.loads(path.read_bytes())))]
    met = "met" if paths and not suspected else f"NOT MET: {', '.join(suspected)}"
    return f"Listings of real servers\n  goal: {len(suspected)} of {len(paths)} listings with a warning (none): {met}"
