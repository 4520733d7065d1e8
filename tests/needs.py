"""Tests that need a component of the machine say so, with the command that installs it.

Without the component a test is skipped on a user's machine; where ``CI=true`` the skip fails (see conftest.py).
"""

from __future__ import annotations

import shutil
from typing import NoReturn

import pytest


def needs(command: str, *, install: str) -> pytest.MarkDecorator:
    """Mark a test that runs ``command``."""
    reason = f"{command} is not installed; run: {install}"
    return pytest.mark.skipif(shutil.which(command) is None, reason=reason)


def missing(what: str, install: str) -> NoReturn:
    """Stop a test because something that no command name tells is not there."""
    pytest.skip(f"{what} is not there; run: {install}")
