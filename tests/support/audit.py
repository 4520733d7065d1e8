"""Reading an audit log in tests."""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.gateway.audit.chain import read_rows
from pinwarden.gateway.audit.event import AuditHead, ChainResult, ChainVerifier
from pinwarden.system.database import Database


def verify(database: Database, heads: Sequence[AuditHead] = ()) -> ChainResult:
    """Follow the chain from its first entry to its last."""
    check = ChainVerifier(heads)
    for number, line, columns in read_rows(database):
        check.check_entry(number, line, columns)
    return check.finish()
