"""One registry with hostile content, one server and one browser for all tests of pages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from pinwarden.registry.http.app import RegistryApp
from pinwarden.registry.registry import Registry
from tests.registry.pages.hostile import open_hostile_world
from tests.registry.world import World
from tests.support.browser import Browser, open_browser


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = open_hostile_world(tmp_path_factory.mktemp("hostile") / "registry")
    yield made
    made.registry.close()


@pytest.fixture(scope="session")
def site(hostile: World) -> Iterator[str]:
    """The address of the registry."""
    with serving(hostile.registry) as url:
        yield url


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@contextmanager
def serving(registry: Registry) -> Iterator[str]:
    """Serve a registry from this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(RegistryApp(registry), log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(60)
