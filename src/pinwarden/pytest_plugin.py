"""A pytest plugin: a test that fails when a server no longer matches its contract.

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
    """Add the option ``--pinwarden-update``."""
    group = parser.getgroup("pinwarden")
    group.addoption("--pinwarden-update", action="store_true", help="write the contract's lockfile instead of checking")


@pytest.fixture
def pinwarden_contract(request: pytest.FixtureRequest) -> Check:
    """Return a function that fails the test if a server (``file.py[:object]``) does not match its lockfile."""
    root = request.config.rootpath
    update = bool(request.config.getoption("--pinwarden-update"))

    def check_contract(
        server: str, *, lock: str | os.PathLike[str] = "mcp-fusion.lock", python: str = sys.executable
    ) -> None:
        __tracebackhide__ = True
        problem = _find_problem(root, server, root / lock, python, update=update)
        if problem is not None:
            pytest.fail(problem, pytrace=False)

    return check_contract


def _find_problem(root: Path, server: str, lock: Path, python: str, *, update: bool) -> str | None:
    """Return the output of ``pinwarden contract check`` if the check fails; otherwise None.

    With ``update``, writes the lockfile instead of checking it. An error is returned as text too.
    """
    from pinwarden.cli.render.text import render_text
    from pinwarden.contract import check_report, lock_command
    from pinwarden.contract.observation import observe_python
    from pinwarden.contract.python_server import parse_python_server
    from pinwarden.core.errors import PinwardenError
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.clock import now

    try:
        stored = lock_command.load_lockfile(str(lock))
        observed = observe_python(parse_python_server(str(root / server)), python, ProbeOptions())
        if update:
            lock_command.lock(observed, stored, now=now(), dialect=None, name=None)
            return None
        report = check_report.check(observed, stored)
    except PinwardenError as err:
        return f"{err.message} [{err.code}]\nhint: {err.hint}"
    return None if report.exit_code == 0 else render_text(report, colour=False)
