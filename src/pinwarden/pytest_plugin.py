"""A pytest plugin: a test that fails when a server no longer keeps its contract.

    def test_contract(pinwarden_contract):
        pinwarden_contract("src/server.py")

``pytest --pinwarden-update`` writes the lockfile instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Check = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that updates instead of checking."""
    group = parser.getgroup("pinwarden")
    group.addoption("--pinwarden-update", action="store_true", help="write the contract's lockfile instead of checking")


@pytest.fixture
def pinwarden_contract(request: pytest.FixtureRequest) -> Check:
    """Hold a server (``file.py[:object]``) against its lockfile, by default ``mcp-fusion.lock`` in the root folder."""
    root = request.config.rootpath
    update = bool(request.config.getoption("--pinwarden-update"))

    def contract(
        server: str, *, lock: str | os.PathLike[str] = "mcp-fusion.lock", python: str = sys.executable
    ) -> None:
        __tracebackhide__ = True
        told = _told(root, server, root / lock, python, update=update)
        if told is not None:
            pytest.fail(told, pytrace=False)

    return contract


def _told(root: Path, server: str, lock: Path, python: str, *, update: bool) -> str | None:
    """What is wrong with the contract, as the command line tells it; None if nothing is."""
    from pinwarden.cli.render.text import render_text
    from pinwarden.contract import check_report as checking
    from pinwarden.contract import lock_command as locking
    from pinwarden.contract.observation import observe_python
    from pinwarden.contract.python_server import python_server
    from pinwarden.core.errors import PinwardenError
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.clock import now

    try:
        place = locking.place_of(str(lock))
        named = python_server(str(root / server))
        observed = observe_python(named, python, ProbeOptions())
        if update:
            locking.lock(observed, place, now=now(), dialect=None, name=None)
            return None
        report = checking.check(observed, place)
    except PinwardenError as err:
        return f"{err.message} [{err.code}]\nhint: {err.hint}"
    return None if report.exit_code == 0 else render_text(report, colour=False)
