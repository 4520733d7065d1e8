"""The command that moves the servers of a report one step further: the last line of a text report."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence

from pinwarden.clients.drift import CONFIG_KINDS
from pinwarden.core.errors import PinwardenError
from pinwarden.core.report import COULD_NOT_CHECK, Row, is_failing
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.lock.lockfile import PROBLEMS, Lock
from pinwarden.project.locked_servers import has_pinned_bytes

CHECK_LIVE = "pinwarden ci --live --allow-execute"
CHOOSE_CONFIGS = "pinwarden init"
PIN_RELEASES = "pinwarden pin"
RECORD_TOOLS = "pinwarden init --allow-execute"
_MAX_NAMES = 3
_MAX_NAME = 120


def choose_after_finding(rows: Iterable[Row], servers: Collection[str]) -> str | None:
    """The next command after a check that failed, by the most severe row. ``servers`` are the locked names."""
    failing = [row for row in rows if is_failing(row)]
    if not failing:
        return None
    first = min(failing, key=lambda row: (row.code == COULD_NOT_CHECK, row.severity != "critical"))
    if first.code in PROBLEMS or first.code == "config_unreadable":
        return "pinwarden doctor"
    if first.code == "floating_release":
        return PIN_RELEASES
    if first.code in CONFIG_KINDS or first.entity == "config":
        return CHOOSE_CONFIGS
    if first.entity == "policy":
        return "pinwarden policy check"
    server = _find_server(first, servers)
    if first.code == COULD_NOT_CHECK:
        return CHECK_LIVE if "--allow-execute" in first.message else None
    if server is None:
        return "pinwarden doctor"
    # Only a change of a live server has the name of the server in its entity.
    if first.entity.startswith(f"{server}: "):
        return f"pinwarden approve {quote_name(server)} --allow-execute"
    return f"pinwarden explain {quote_name(server)}"


def choose_after_locking(*, floating: bool, without_tools: bool, without_bytes: bool) -> str:
    """The next command for servers that are locked."""
    if floating:
        return "pinwarden pin"
    if without_tools:
        return RECORD_TOOLS
    return "pinwarden prove" if without_bytes else "pinwarden ci"


def choose_after_proof(*, pinned: bool, refused: Sequence[str], failed: Sequence[str]) -> str | None:
    """The next command after ``pinwarden prove``."""
    if refused:
        return f"pinwarden explain {quote_name(refused[0])}"
    if failed:
        return " ".join(["pinwarden prove", *(map(quote_name, failed) if len(failed) <= _MAX_NAMES else ())])
    return "pinwarden fetch" if pinned else None


def choose_after_scan(warned: Sequence[str], *, locked: bool) -> str:
    """The next command after ``pinwarden scan`` of all configured servers."""
    if warned:
        return f"pinwarden inspect {quote_name(warned[0])} --allow-execute"
    return CHECK_LIVE if locked else CHOOSE_CONFIGS


def has_all_bytes(lock: Lock | None) -> bool:
    """Whether the bytes of all packages and images in a lock are pinned. Nothing else has bytes to pin."""
    for entry in lock.entries if lock is not None else ():
        try:
            runs = read_locked_launch(entry).launch
        except PinwardenError:
            continue
        if (runs.via or runs).kind in ("npm", "pypi", "oci") and not has_pinned_bytes(entry):
            return False
    return True


def quote_name(name: str) -> str:
    """A server's name for a shell."""
    return shlex.quote(name[:_MAX_NAME])


def _find_server(row: Row, servers: Collection[str]) -> str | None:
    """The locked server that a row is about: its name, or the part of its entity before the colon."""
    if row.name in servers:
        return row.name
    return next((name for name in servers if row.entity.startswith(f"{name}: ")), None)
