"""The two databases that every test of the store runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import Cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, SQLite and PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "state" / "trial.sqlite")
    running: Cluster = request.getfixturevalue("cluster")
    return running.new_database()
