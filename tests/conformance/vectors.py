"""Where the vectors lie: the folder in ``PINWARDEN_VECTORS``, or else the copy in this repository.

Some published collections may not be copied into the repository. They are read from the given folder, or from
``../shared/vectors`` beside the repository, when they are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinwarden.surface.drift.changes import Change, blocked_by_default

REPOSITORY = Path(__file__).resolve().parents[2]


def vectors_dir() -> Path:
    """The folder that the conformance suite reads."""
    named = os.environ.get("PINWARDEN_VECTORS")
    return Path(named).resolve() if named else REPOSITORY / "tests" / "vectors"


def load(relative: str) -> Any:
    """One JSON file of the vectors. A missing file is a failure, not an empty suite."""
    return json.loads((vectors_dir() / relative).read_text(encoding="utf-8"))


def uncopied(relative: str) -> Path | None:
    """A file or folder that may not be copied here, if one of the two places has it."""
    for folder in (vectors_dir(), REPOSITORY.parent / "shared" / "vectors"):
        if (folder / relative).exists():
            return folder / relative
    return None


def cases(rows: list[dict[str, Any]], *, label: str = "id") -> list[Any]:
    """Rows as pytest parameters, each under its own name."""
    import pytest  # the benchmarks read vectors too, and have no pytest

    return [pytest.param(row, id=str(row.get(label, number))[:80]) for number, row in enumerate(rows)]


def assert_judged(changes: Sequence[Change], expect: dict[str, Any]) -> None:
    """What a collection expects of a comparison, if it says so: names, messages and blocking."""
    named = {(change.entity, change.name, change.field) for change in changes}
    assert {tuple(row) for row in expect.get("changed", ())} <= named
    if expect["must_report"] is not None:
        assert bool(changes) is expect["must_report"]
    if expect["must_block_by_default"] is not None:
        assert blocked_by_default(changes) is expect["must_block_by_default"]
