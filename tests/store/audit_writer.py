"""A gateway in miniature, to be killed: records events, and says the number of each one once it is recorded."""

from __future__ import annotations

import sys
from pathlib import Path

from pinwarden.documents.gateway_event import Fact
from pinwarden.store.audit import AuditLog


def main(url: str, folder: str) -> None:
    log = AuditLog(url, Path(folder), when_away="spool")
    for number in range(1_000_000):
        fact = Fact(kind="blocked" if number % 50 == 0 else "called", item=str(number), session=log.source)
        (log.record_durably if fact.kind == "blocked" else log.record)(fact)
        sys.stdout.write(f"{log.source} {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
