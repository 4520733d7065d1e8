"""The folder with the state of Pinwarden on this machine: the gateway's database, and when servers were checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_state_folder(variables: Mapping[str, str], home: Path) -> Path:
    """Return the state folder of this user, or the folder that ``PINWARDEN_STATE`` names."""
    named = variables.get("PINWARDEN_STATE")
    if named:
        return Path(named)
    base = variables.get("XDG_STATE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else home / ".local" / "state") / "pinwarden"


def prepare_state_folder(folder: Path) -> None:
    """Create the state folder if needed. Raises ``STORE_UNSAFE`` if other users can write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"the state folder {folder} cannot be used: {err}") from err
    if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        from shlex import quote

        raise PinwardenError(
            "STORE_UNSAFE",
            f"{folder} belongs to another user, or other users may write to it",
            hint=f"Run chmod 700 {quote(str(folder))}, or name another folder with PINWARDEN_STATE.",
        )
