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


NOT_OURS = "may not be copied into this repository"
"""The one reason for which a test may be skipped in CI too: nothing that could be installed would bring it."""


def not_ours(what: str) -> NoReturn:
    """Stop a test over a published collection whose licence keeps it out of this repository."""
    pytest.skip(f"{what} {NOT_OURS} and is not beside it; name a folder that has it in PINWARDEN_VECTORS")


def missing(what: str, install: str) -> NoReturn:
    """Stop a test because something that no command name tells is not there."""
    pytest.skip(f"{what} is not there; run: {install}")
