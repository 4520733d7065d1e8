"""The two databases that every test of the registry runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registry.world import World, open_world


@pytest.fixture(params=["sqlite", "postgresql"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A registry on each kind of database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("cluster").new_database()
    made = open_world(tmp_path / "registry", url)
    yield made
    made.registry.database.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A registry on SQLite, for what does not depend on the database."""
    made = open_world(tmp_path / "registry")
    yield made
    made.registry.database.close()
