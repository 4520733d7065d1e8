"""A version that its publisher yanked: whoever locked it hears of it, with the reason."""

from __future__ import annotations

from typing import Any

from pinwarden.registry.registry_documents import YANK
from tests.install.desk import Desk
from tests.registry.world import SERVER, bundle

WHY = "acme.notes 1.0.0 was yanked by its publisher: it leaks notes"


def _remarks(told: Any) -> list[str]:
    rows = told.get("remarks", told.get("findings", []))
    return [row["message"] for row in rows if row["code"] == "version_yanked"]


def test_a_yank_reaches_everybody_who_locked_the_version(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    assert desk.install()[0] == 0
    code, told = desk.run("ci")
    assert (code, _remarks(told)) == (0, [])
    desk.publish(bundle(version="1.1.0", content=SERVER), channel="next")
    desk.user.world.change(YANK, tool="acme.notes", version="1.0.0", reason="it leaks notes")
    desk.write_export()

    code, told = desk.run("fetch", "--registry", str(desk.export))  # reads the log up to its head
    assert code == 0
    assert [message.partition(" (")[0] for message in _remarks(told)] == [WHY]
    code, told = desk.run("ci")  # contacts nobody: what fetch has seen of the log counts
    assert code == 0
    assert [message.partition(" (")[0] for message in _remarks(told)] == [WHY]
    assert WHY in desk.started().stderr
    code, told = desk.update()
    assert code == 1
    assert any(row["message"].startswith(WHY) for row in told["changes"]), told


def test_a_yank_that_was_undone_is_not_told_any_more(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    for action in ("yank", "unyank"):
        desk.user.world.change(action, tool="acme.notes", version="1.0.0", reason="a mistake")
    desk.write_export()
    code, told = desk.run("fetch", "--registry", str(desk.export))
    assert (code, _remarks(told)) == (0, [])
    assert _remarks(desk.run("ci")[1]) == []
