"""The drift cases that are sequences: a server plays them over real stdio and HTTP, and the probe asks it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.surface.probe.probe import ProbeOptions, probe
from pinwarden.surface.surface import Surface
from pinwarden.system.target import HttpTarget, StdioTarget
from tests.conformance.sequences import play_of, sequences_by_wire
from tests.conformance.test_drift_cases import judge
from tests.servers import turning
from tests.servers.turning_http import turning_http

OPTIONS = ProbeOptions(allow_execute=True, allow_private=True, timeout=240)


def seen(state: dict[str, Any], wire: str) -> Surface:
    script = {"states": [state]}
    if wire == "stdio":
        command = (sys.executable, "-I", "-S", str(Path(turning.__file__)), json.dumps(script))
        return probe(StdioTarget(command=command, env={}), OPTIONS)
    with turning_http(script, wire) as world:
        return probe(HttpTarget(url=world.url), OPTIONS)


@pytest.mark.parametrize(("case", "wire"), sequences_by_wire(["stdio", "json", "events"]))
def test_a_live_server_that_plays_the_sequence_is_judged_as_the_case_says(case: dict[str, Any], wire: str) -> None:
    before, *later = (seen(state.script, wire) for state in play_of(case).states)
    judge(case, before, *later)
