"""What the suites over Fusion's vectors share: which files there are, and which dialect each label speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinwarden.contract.contract import PromptArgument, PromptContract
from pinwarden.contract.dialect import F1, F2, F3, F4, F5, Dialect, V
from tests.conformance.vectors import load, vectors_dir

FOLDER = vectors_dir() / "fusion"
MADE_AT = "2026-01-02T03:04:05.678Z"
_LAST_RELEASES = (((2, 8, 0), F1), ((3, 1, 8), F2), ((3, 1, 13), F3), ((3, 1, 21), F4), ((3, 1, 31), F5))


def dialect_of(label: str) -> Dialect:
    """The dialect that a release speaks, e.g. ``fusion-3.1.13``."""
    name, _, version = label.rpartition("-")
    release = tuple(int(part) for part in version.split("."))
    if name == "vurb":
        return V
    return next(dialect for last, dialect in _LAST_RELEASES if release <= last)


def labels(folder: str) -> list[str]:
    """The labels of the files in one folder. An empty folder is a failure, not an empty suite."""
    paths = sorted(path.stem for path in (FOLDER / folder).glob("*.json"))
    assert paths, f"no vectors in {folder}"
    return paths


def rows(folder: str) -> list[Any]:
    """Every case of every file in a folder whose files are lists, with its dialect."""
    return [
        pytest.param(dialect_of(label), case, id=f"{label}-{case['id']}")
        for label in labels(folder)
        for case in load(f"fusion/{folder}/{label}.json")
    ]


def server_files() -> list[Path]:
    """Every server case, in every dialect."""
    paths = sorted((FOLDER / "servers").glob("*/*.json"))
    assert paths
    return paths


def prompts_of(listed: list[dict[str, Any]] | None) -> list[PromptContract]:
    """Prompts as the vectors state them."""
    return [_prompt(prompt) for prompt in listed or ()]


def _prompt(prompt: dict[str, Any]) -> PromptContract:
    definition = prompt["definition"]
    return PromptContract(
        name=prompt.get("name", definition["name"]),
        description=definition.get("description"),
        title=definition.get("title"),
        tags=tuple(prompt.get("tags", ())),
        arguments=tuple(
            PromptArgument(
                name=argument["name"],
                description=argument.get("description"),
                required=argument.get("required") or False,
            )
            for argument in definition.get("arguments") or ()
        ),
        has_middleware=prompt.get("hasMiddleware", False),
        hydration_timeout=prompt.get("hydrationTimeout"),
    )
