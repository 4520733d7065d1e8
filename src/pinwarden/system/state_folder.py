"""The folder with the state of Pinwarden on this machine: the gateway's database, and when servers were checked."""

from __future__ import annotations

import os
from contextlib import suppress
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


GRANT_KEY_FILE = "grants.key"
"""The file in the state folder with the key of tokens for remote servers, if no variable has or names it."""
GRANT_KEY_VARIABLES = ("PINWARDEN_GRANT_KEY", "PINWARDEN_GRANT_KEY_FILE")
"""The variables with the key and with the name of its file."""


DATABASE_FILE = "gateway.sqlite"
"""The file in the state folder with the gateway's database, if ``PINWARDEN_DATABASE`` names no other."""


def find_database(variables: Mapping[str, str], home: Path) -> str:
    """Return the gateway's database of this user: its address or path."""
    return variables.get("PINWARDEN_DATABASE") or str(find_state_folder(variables, home) / DATABASE_FILE)


def may_have_grants(variables: Mapping[str, str], home: Path) -> bool:
    """Whether there is a key for the tokens of remote servers. Without one, no server was connected."""
    named = any(variables.get(name) for name in GRANT_KEY_VARIABLES)
    return named or (find_state_folder(variables, home) / GRANT_KEY_FILE).exists()


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


def read_host_id(folder: Path) -> str:
    """Return the host name with a random suffix from the state folder, because host names are not unique."""
    prepare_state_folder(folder)
    path = folder / "host"
    new = folder / f"host.{os.getpid()}"
    try:
        if not path.exists():
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(os.urandom(8).hex())
            with suppress(FileExistsError):  # another process created it
                os.link(new, path)
            new.unlink()
        text = path.read_text("ascii")[:_SUFFIX_LENGTH]
    except (OSError, UnicodeError) as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"{path} cannot be used: {err}") from err
    if len(text) != _SUFFIX_LENGTH or not text.isalnum():
        raise PinwardenError("DATABASE_CORRUPT", f"{path} is damaged", hint="Delete it; the gateway creates a new one.")
    return f"{_get_host_name()[:64]}#{text}"


_SUFFIX_LENGTH = 16


def _get_host_name() -> str:
    """Return the host name. Like ``socket.gethostname()``, but ``socket`` is slow to import."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
