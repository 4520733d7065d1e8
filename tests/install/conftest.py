"""A registry on SQLite, and a user who trusts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.world import User, new_user
from tests.registry.world import open_world


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    world = open_world(tmp_path / "registry")
    yield new_user(world, tmp_path)
    world.registry.database.close()
