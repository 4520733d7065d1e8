"""What other tools say about the surfaces of the judgement benchmark.

Each peer returns, for one surface, the names of the items that it reports. The server's instructions have the name "".
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pinwarden.surface import interop as toolpin

Listing = dict[str, Any]
Peer = Callable[[Sequence[Listing]], list[set[str]]]
_REPOSITORY = Path(__file__).parents[1]


def available_peers() -> dict[str, Peer]:
    """The peers that can run here, by name. Cisco's scanner needs its own environment: ``make bench`` installs it."""
    peers: dict[str, Peer] = {"ToolPin": suspected_by_toolpin}
    if _cisco_python().exists():
        peers["Cisco YARA"] = suspected_by_cisco
    return peers


def suspected_by_toolpin(listings: Sequence[Listing]) -> list[set[str]]:
    """ToolPin's warnings, which it computes from the names and descriptions of tools."""
    return [
        {
            tool["name"]
            for tool in listing.get("tools", [])
            if _has_toolpin_warning((tool["name"], tool.get("description")))
        }
        for listing in listings
    ]


def _has_toolpin_warning(texts: Iterable[object]) -> bool:
    return any(
        advisory.severity == "warning"
        for text in texts
        if isinstance(text, str)
        for advisory, _, _ in toolpin.find_advisories(text)
    )


def suspected_by_cisco(listings: Sequence[Listing]) -> list[set[str]]:
    """The findings of the YARA rules of Cisco's mcp-scanner, run by its own analyzer."""
    lines = "".join(json.dumps(listing) + "\n" for listing in listings)
    command = [str(_cisco_python()), str(_REPOSITORY / "benchmarks" / "cisco_yara.py")]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


def _cisco_python() -> Path:
    default = _REPOSITORY / ".venv-cisco" / "bin" / "python"
    return Path(os.environ.get("PINWARDEN_CISCO_PYTHON", default))
