"""A registry on SQLite, a user who trusts it, and the machine of that user."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.install.desk import Desk
from tests.install.world import User, new_user
from tests.registry.world import Clock, open_world


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    world = open_world(tmp_path / "registry")
    yield new_user(world, tmp_path)
    world.registry.database.close()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    world = open_world(tmp_path / "registry", probing="auto", clock=Clock(datetime.now(UTC)))
    user = new_user(world, tmp_path)
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PINWARDEN_TRUST", str(user.trust))
    monkeypatch.setenv("PINWARDEN_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1784548800")  # for what is written; an install is decision by the clock
    (tmp_path / "home").mkdir()
    yield Desk(user=user, root=root, export=tmp_path / "export", capture=capsys)
    world.registry.database.close()
