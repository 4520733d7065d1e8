"""Targets and options that the probe tests share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.probe.probe import ProbeOptions, probe
from pinwarden.surface.surface import Surface
from pinwarden.system.target import HttpTarget, StdioTarget

SCRIPTED = Path(__file__).parent.parent / "servers" / "scripted.py"
ALLOWED = ProbeOptions(allow_execute=True, timeout=240)
LOCAL = ProbeOptions(allow_private=True, timeout=240)


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "inputSchema": {"type": "object"}, **members}


def scripted(script: dict[str, Any], *arguments: str, env: dict[str, str] | None = None) -> StdioTarget:
    """The scripted server over stdio."""
    command = (sys.executable, "-I", "-S", str(SCRIPTED), json.dumps(script), *arguments)
    return StdioTarget(command=command, env=env or {})


def names(surface: Surface, member: str = "tools") -> list[str]:
    return [item.key for item in surface.items[member]]


def failure(target: StdioTarget | HttpTarget, options: ProbeOptions) -> PinwardenError:
    """The error that the probe ends with."""
    try:
        surface = probe(target, options)
    except PinwardenError as err:
        return err
    raise AssertionError(f"the probe succeeded: {surface.observed}")
