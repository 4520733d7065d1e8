"""Reading an audit log in tests."""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.gateway.audit.chain import rows
from pinwarden.gateway.audit.event import ChainCheck, ChainResult, LogHead
from pinwarden.system.database import Database


def verify(database: Database, heads: Sequence[LogHead] = ()) -> ChainResult:
    """Follow the chain from its first entry to its last."""
    check = ChainCheck(heads)
    for number, line, filed in rows(database):
        check.follow(number, line, filed)
    return check.outcome()
