"""How our own JSON files are written: for ``git diff`` and for honest eyes."""

from __future__ import annotations

import json
from typing import Any

from pinwarden.core.visible import escape_in_json


def to_json_file(value: Any) -> bytes:
    """Sorted members, two spaces, a final newline, and every invisible character spelt out as an escape."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (escape_in_json(text) + "\n").encode()
