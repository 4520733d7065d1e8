"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support.needs import NOT_OURS

if TYPE_CHECKING:
    from tests.support.postgres import Cluster

# Hundreds of tests start the program anew; without bytecode each start would compile all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Workers are told how wide the screen is. Tests that give commands a variable less would not share a start with others.
os.environ.pop("COLUMNS", None)

# Behind a mirror with a certificate of its own, uv has to look where every other client does.
os.environ.setdefault("UV_SYSTEM_CERTS", "1")
os.environ.setdefault("UV_NATIVE_TLS", "1")

# A shell starts background jobs with SIGINT ignored, and so would every command that a test interrupts with Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported and collected stays until the end, so the collector of garbage need not look through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """In CI a skipped test is a hole that nobody looks at, so it fails."""
    report = yield
    told = str(report.longrepr)
    if os.environ.get("CI") == "true" and report.skipped and NOT_OURS not in told:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {told}"
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One PostgreSQL for all tests of a process; each makes a database of its own in it."""
    from tests.support.postgres import postgres

    with postgres() as running:
        yield running
