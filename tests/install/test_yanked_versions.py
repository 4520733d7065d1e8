"""A yanked version is reported, with the reason, to users who locked it."""

from __future__ import annotations

from typing import Any

from pinwarden.registry.registry_documents import YANK
from tests.install.desk import Desk
from tests.registry.world import SERVER, bundle

WHY = "acme.notes 1.0.0 was yanked by its publisher: it leaks notes"


def _remarks(report: Any) -> list[str]:
    rows = report.get("remarks", report.get("findings", []))
    return [row["message"] for row in rows if row["code"] == "version_yanked"]


def test_a_yank_is_reported_to_users_who_locked_the_version(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    assert desk.install()[0] == 0
    code, report = desk.run("ci")
    assert (code, _remarks(report)) == (0, [])
    desk.publish(bundle(version="1.1.0", content=SERVER), channel="next")
    desk.user.world.change(YANK, tool="acme.notes", version="1.0.0", reason="it leaks notes")
    desk.write_export()

    code, report = desk.run("fetch", "--registry", str(desk.export))  # reads the log up to its head
    assert code == 0
    assert [message.partition(" (")[0] for message in _remarks(report)] == [WHY]
    code, report = desk.run("ci")  # offline: uses the log state that fetch saved
    assert code == 0
    assert [message.partition(" (")[0] for message in _remarks(report)] == [WHY]
    assert WHY in desk.started().stderr
    code, report = desk.update()
    assert code == 1
    assert any(row["message"].startswith(WHY) for row in report["changes"]), report


def test_an_undone_yank_is_no_longer_reported(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    for action in ("yank", "unyank"):
        desk.user.world.change(action, tool="acme.notes", version="1.0.0", reason="a mistake")
    desk.write_export()
    code, report = desk.run("fetch", "--registry", str(desk.export))
    assert (code, _remarks(report)) == (0, [])
    assert _remarks(desk.run("ci")[1]) == []
