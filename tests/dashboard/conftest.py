"""A locked server with a gateway's state, its dashboard, and one browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.world import Client, Dashboard, serving_dashboard
from tests.gateway.review_world import SEARCH, ReviewWorld
from tests.support.browser import Browser, open_browser


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[ReviewWorld]:
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    made.lock_server(SEARCH)
    made.use()
    yield made
    made.state.close()


@pytest.fixture
def unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[ReviewWorld]:
    """Without a lock: servers are trusted on first use."""
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    made.use()
    yield made
    made.state.close()


@pytest.fixture
def dashboard(world: ReviewWorld) -> Iterator[Dashboard]:
    with serving_dashboard(world.state) as served:
        yield served


@pytest.fixture
def client(dashboard: Dashboard) -> Client:
    return dashboard.client()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
