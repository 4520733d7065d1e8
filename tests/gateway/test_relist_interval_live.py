"""A silent change is detected at the relist interval of the policy while the client is idle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.gateway.session_harness import DELETE, POISONED, SEARCH, approved_surface, policy, refusal_code
from tests.gateway.test_drift_sequences_stdio import SERVER, gateway
from tests.gateway.test_http_enforcement import scene
from tests.servers import turning
from tests.support.waiting import poll

STATES = {"states": [{"tools": [SEARCH, DELETE]}, {"tools": [POISONED, DELETE]}]}
CHANGED = b'"notifications/tools/list_changed"'


def test_attack_a_silent_change_is_detected_at_the_relist_interval_on_stdio_and_announced(tmp_path: Path) -> None:
    (tmp_path / "pinwarden.toml").write_text("[policy.gateway]\nrelist-seconds = 1\n")
    script = tmp_path / "script.json"
    script.write_text(json.dumps(STATES))
    with gateway(tmp_path, sys.executable, str(SERVER), f"@{script}") as (client, said):
        assert client.names() == ["search_notes", "delete_note"]
        client.notify(turning.TURN)

        def is_announced() -> bool:
            assert "result" in client.ask("ping")  # the client is connected and idle
            return any(CHANGED in line for line in client.lines)

        poll(is_announced)
        poll(lambda: "blocked tool 'search_notes'" in said.read_text())  # an unmatched response
        assert refusal_code(client.ask("tools/call", {"name": "search_notes"})) == "new_exfiltration"
        assert client.names() == ["delete_note"]


@pytest.mark.parametrize("wire", ["stdio", "sessions"])
def test_attack_a_silent_change_is_detected_at_the_relist_interval_over_http(wire: str, tmp_path: Path) -> None:
    surface = approved_surface(STATES["states"][0])
    with scene(wire, STATES, surface, tmp_path, policy(**{"relist-seconds": 1})) as at:
        assert at.names() == ["search_notes", "delete_note"]
        at.turn()

        def is_refused() -> bool:
            assert "result" in at.ask("ping")
            return any((fact.kind, fact.item) == ("blocked", "search_notes") for fact in at.kept.events)

        poll(is_refused)
        assert refusal_code(at.call("search_notes")) == "new_exfiltration"
        assert at.names() == ["delete_note"]
