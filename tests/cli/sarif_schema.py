"""The official schema of SARIF 2.1.0, from the npm package that carries it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.needs import missing

if TYPE_CHECKING:
    from jsonschema import Draft4Validator

_FILE = Path(__file__).parents[1] / "npm/node_modules/@microsoft/jest-sarif/lib/schemas/sarif-2.1.0-rtm.5.json"


def sarif_problems(log: Any) -> list[str]:
    """What the schema says is wrong with a log."""
    return [f"{error.json_path}: {error.message[:200]}" for error in _validator().iter_errors(log)]


@cache
def _validator() -> Draft4Validator:
    from jsonschema import Draft4Validator

    if not _FILE.is_file():
        missing("the schema of SARIF", "tools/npm-packages.sh")
    return Draft4Validator(json.loads(_FILE.read_text(encoding="utf-8")))
