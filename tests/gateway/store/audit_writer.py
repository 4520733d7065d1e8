"""Records events and prints the number of each one once it is recorded. Tests kill it."""

from __future__ import annotations

import sys
from pathlib import Path

from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.audit.log import AuditLog


def main(url: str, folder: str) -> None:
    log = AuditLog(url, Path(folder), when_unavailable="spool")
    form = AuditEvent(kind="called", call=f"{log.source}/", session=log.source)
    for number in range(1_000_000):
        if number % 50 == 0:
            log.record_durably(AuditEvent(kind="blocked", item=str(number), session=log.source))
        elif number % 2:
            log.record(AuditEvent(kind="called", item=str(number), session=log.source))
        else:
            log.record_call(form, number)
        sys.stdout.write(f"{log.source} {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
