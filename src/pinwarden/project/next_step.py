"""The command that moves the servers of a report one step further: the last line of a text report."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence

from pinwarden.clients.drift import CONFIG_KINDS
from pinwarden.core.report import COULD_NOT_CHECK, Row, is_failing
from pinwarden.lock.lockfile import PROBLEMS

CHECK_LIVE = "pinwarden ci --live --allow-execute"
APPROVE_ALL = "pinwarden approve --all"
ENFORCE_ALL = "pinwarden enforce"
FETCH = "pinwarden fetch"
PIN_RELEASES = "pinwarden pin"
SET_UP = "pinwarden setup"
ALLOW_EXECUTE = "--allow-execute"
_COMMANDS = {ALLOW_EXECUTE: CHECK_LIVE, FETCH: FETCH}
"""The next command, by what a check needed (`Row.needs`)."""
_UNAPPROVED_KINDS = ("rogue_entry", "look_alike_entry")
_SKILLS = ("skill", "instruction file")
_MAX_NAMES = 3
_MAX_NAME = 120


def choose_after_finding(rows: Iterable[Row], servers: Collection[str]) -> str | None:
    """Return the next command for the most severe failing row; None if none fails. ``servers`` are locked names.

    After a critical finding, which may be an attack, the command approves nothing without a question: ``approve`` shows
    the changed tools again, with skip as the default, and other commands only show something.
    """
    failing = [row for row in rows if is_failing(row)]
    if not failing:
        return None
    first = min(failing, key=lambda row: (row.code == COULD_NOT_CHECK, row.severity != "critical"))
    if first.code in PROBLEMS or first.code == "config_unreadable":
        return "pinwarden doctor"
    direct = list(dict.fromkeys(row.name for row in failing if row.code == "started_directly" and row.name))
    if direct and first.severity != "critical":
        return f"pinwarden enforce {quote_name(direct[0])}" if len(direct) == 1 else ENFORCE_ALL
    if first.code == "floating_release":
        return PIN_RELEASES
    if first.code in CONFIG_KINDS and first.severity == "critical":
        known = first.name in servers and first.code not in _UNAPPROVED_KINDS
        return f"pinwarden explain {quote_name(first.name)}" if known else "pinwarden doctor"
    if first.code in CONFIG_KINDS:
        names = list(dict.fromkeys(row.name for row in failing if row.code in CONFIG_KINDS and row.name))
        return f"pinwarden approve {quote_name(names[0])}" if len(names) == 1 else APPROVE_ALL
    if first.entity in _SKILLS:
        names = list(dict.fromkeys(row.name for row in failing if row.entity in _SKILLS and row.name))
        return " ".join(["pinwarden approve", *map(quote_name, names[:_MAX_NAMES])]) if names else "pinwarden doctor"
    if first.entity == "policy":
        return "pinwarden policy check"
    server = _find_server(first, servers)
    if first.code == COULD_NOT_CHECK:
        return _COMMANDS.get(first.needs or "")
    if server is None:
        return "pinwarden doctor"
    if first.server is not None:  # a change of a live server
        return f"pinwarden approve {quote_name(server)}"
    return f"pinwarden explain {quote_name(server)}"


def choose_after_proof(*, refused: Sequence[str], failed: Sequence[str]) -> str | None:
    """Return the next command after ``pinwarden prove`` refused or could not check something."""
    if refused:
        return f"pinwarden explain {quote_name(refused[0])}"
    if failed:
        return " ".join(["pinwarden prove", *(map(quote_name, failed) if len(failed) <= _MAX_NAMES else ())])
    return None


def choose_after_scan(warned: Sequence[str], *, locked: bool) -> str:
    """Return the next command after ``pinwarden scan`` of all configured servers."""
    if warned:
        return f"pinwarden inspect {quote_name(warned[0])} --allow-execute"
    return CHECK_LIVE if locked else SET_UP


def quote_name(name: str) -> str:
    """Return the name of a server, shortened and quoted for a shell."""
    return shlex.quote(name[:_MAX_NAME])


def _find_server(row: Row, servers: Collection[str]) -> str | None:
    """Return the locked server that a row is about; None if it is about none."""
    return next((name for name in (row.server, row.name) if name in servers), None)
