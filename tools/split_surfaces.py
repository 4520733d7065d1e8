"""Split collected surfaces into development and held-out data: ``python -m tools.split_surfaces FOLDER``.

FOLDER is what `tools/collect_surfaces.py` wrote. FOLDER/development and FOLDER/held-out get ``servers.jsonl`` and
``upgrades.jsonl`` for `benchmarks/judgement.py`. The split is by publisher: the hash of the name decides, but a
publisher or package whose text or score was used before (benchmarks/data/judgement/packages.md,
tools/data/steering/servers.txt) is never held out. With a file FOLDER/development.txt, the publishers in it are the
development part instead, so that all that are collected after someone looked at the first ones are held out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "benchmarks" / "data" / "judgement" / "packages.md"
LISTED = ROOT / "tools" / "data" / "steering" / "servers.txt"
PARTS = ("development", "held-out")


def main(folder: Path) -> int:
    chosen = folder / "development.txt"
    looked_at = frozenset(chosen.read_text().split()) if chosen.exists() else None
    known = read_known_names() | (looked_at or frozenset())
    surfaces = {(doc["ecosystem"], doc["package"]): doc for doc in read_documents(folder / "surfaces")}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {
        (part, kind): [] for part in PARTS for kind in ("servers", "upgrades")
    }
    for document in surfaces.values():
        part = choose_part(document["source"], document["package"], known, by_hash=looked_at is None)
        rows[part, "servers"].append({**describe(document, part), "id": document["id"], "surface": document["surface"]})
    for older in read_documents(folder / "older"):
        newer = surfaces.get((older["ecosystem"], older["package"]))
        if newer is None or newer["version"] == older["version"]:
            continue
        part = choose_part(newer["source"], newer["package"], known, by_hash=looked_at is None)
        identity = f"{older['id']} -> {newer['version']}"
        sides = {"before": older["surface"], "after": newer["surface"]}
        rows[part, "upgrades"].append({**describe(newer, part), "id": identity, **sides})
    for (part, kind), cases in rows.items():
        (folder / part).mkdir(exist_ok=True)
        lines = (json.dumps(case, ensure_ascii=False) for case in sorted(cases, key=lambda case: case["id"]))
        (folder / part / f"{kind}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        changed = sum(case["before"] != case["after"] for case in cases) if kind == "upgrades" else len(cases)
        publishers = Counter(case["source"] for case in cases)
        print(f"{part} {kind}: {len(cases)} of {len(publishers)} publishers ({changed} with any change)")
    return 0


def read_known_names() -> frozenset[str]:
    """The packages and publishers of data that rules, weights or thresholds were chosen on."""
    cells = [line.split("|") for line in PUBLISHED.read_text().splitlines() if line.startswith("| ")]
    listed = [line.split() for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    return frozenset([cell.strip().strip("`") for row in cells for cell in row[2:4]] + [words[1] for words in listed])


def choose_part(publisher: str, package: str, known: frozenset[str], *, by_hash: bool) -> str:
    if publisher in known or package in known:
        return "development"
    if not by_hash:
        return "held-out"
    return PARTS[hashlib.sha256(publisher.encode()).digest()[0] % 2]


def describe(document: dict[str, Any], part: str) -> dict[str, str]:
    return {"source": f"publisher:{document['source']}", "licence": document["licence"], "part": part}


def read_documents(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        yield json.loads(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
