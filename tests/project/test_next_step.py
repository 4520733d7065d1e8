"""The command that a report recommends next."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.core.report import COULD_NOT_CHECK, Row
from pinwarden.project.next_step import choose_after_finding

LOCKED = ("notes", "files")


def _row(code: str = "text_changed", **members: Any) -> Row:
    parts: dict[str, Any] = {
        "severity": "review",
        "entity": "tool",
        "name": "search",
        "path": "",
        "message": "It has changed.",
    }
    return Row(code=code, **{**parts, **members})


def test_attack_a_tool_with_the_name_of_another_server_does_not_get_that_server_approved() -> None:
    assert choose_after_finding([_row(server="notes", name="files")], LOCKED) == "pinwarden approve notes"


def test_the_next_command_after_a_change_of_a_locked_server_that_is_not_running_explains_it() -> None:
    assert choose_after_finding([_row(entity="server", name="notes")], LOCKED) == "pinwarden explain notes"


@pytest.mark.parametrize(
    ("needs", "command"),
    [
        ({"needs": "--allow-execute"}, "pinwarden ci --live --allow-execute"),
        ({"needs": "pinwarden fetch"}, "pinwarden fetch"),
        ({"message": "attack: a server whose error says (--allow-execute)"}, None),
    ],
)
def test_the_next_command_gives_what_a_check_needed(needs: dict[str, str], command: str | None) -> None:
    assert choose_after_finding([_row(COULD_NOT_CHECK, name="notes", **needs)], LOCKED) == command
