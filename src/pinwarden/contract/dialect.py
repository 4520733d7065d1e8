"""The dialects of MCP Fusion's lockfile format.

Every dialect has ``lockfileVersion`` 1, so that member does not identify the dialect. ``detect_dialects`` finds the
possible dialects from other members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace


class Dialect(Record):
    """How one range of MCP Fusion releases derives, hashes and writes lockfiles."""

    name: str
    releases: str
    program: str
    """The name of the command line program."""
    file_name: str
    version_key: str
    """The name of the member with the framework's version. Each program refuses files without its own member."""
    framework_version: str
    """The version to write if the server does not state its framework's version."""
    title: str
    """The framework's name in messages."""
    code_evaluation: bool
    """Whether lockfiles have the entitlement ``codeEvaluation``, in the body and in the digest."""
    one_prompt_per_name: bool
    """Whether a prompt replaces an earlier one with the same name."""


F5 = Dialect(
    name="F5",
    releases="mcp-fusion 3.1.22 to 3.1.31",
    program="fusion",
    file_name="mcp-fusion.lock",
    version_key="fusionVersion",
    framework_version="1.1.0",
    title="MCP Fusion",
    code_evaluation=True,
    one_prompt_per_name=True,
)
F4 = replace(F5, name="F4", releases="mcp-fusion 3.1.14 to 3.1.21")
F3 = replace(F4, name="F3", releases="mcp-fusion 3.1.9 to 3.1.13")
F2 = replace(F3, name="F2", releases="mcp-fusion 2.8.1 to 3.1.8", one_prompt_per_name=False)
F1 = replace(F2, name="F1", releases="mcp-fusion 2.8.0", code_evaluation=False)
V = replace(
    F5,
    name="V",
    releases="vurb 3.2.0 to 3.17.2",
    program="vurb",
    file_name="vurb.lock",
    version_key="vurbVersion",
    framework_version="3.17.2",
    title="Vurb",
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (F1, F2, F3, F4, F5, V)}
DEFAULT_DIALECT = F5
"""The dialect of the last releases that write ``mcp-fusion.lock``."""


def get_dialect(name: str) -> Dialect:
    """Return the dialect with this name. Raises ``PROFILE_UNKNOWN``."""
    if name not in DIALECTS:
        raise PinwardenError("PROFILE_UNKNOWN", f"unknown dialect {name!a}; known: {', '.join(DIALECTS)}")
    return DIALECTS[name]


def detect_dialects(document: Mapping[str, Any]) -> tuple[Dialect, ...]:
    """Return the possible dialects of a lockfile, newest first.

    F2 to F5 cannot be distinguished by the file alone, so callers recompute the digest with each of them.
    """
    if isinstance(document.get(V.version_key), str) and not isinstance(document.get(F5.version_key), str):
        return (V,)
    fusion = (F5, F4, F3, F2)
    if isinstance(document.get(V.version_key), str):
        return (V, *fusion)
    tools = document.get("capabilities", {}).get("tools", {})
    entries = list(tools.values()) if isinstance(tools, Mapping) else []
    flags = [entry.get("entitlements") for entry in entries if isinstance(entry, Mapping)]
    if flags and not any(isinstance(entry, Mapping) and "codeEvaluation" in entry for entry in flags):
        return (F1,)
    return fusion if flags else (*fusion, F1)  # without tools, the lockfile could also be of dialect F1
