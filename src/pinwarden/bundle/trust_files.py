"""The trust store of this user, and what was seen of each registry's log. Neither lies in a project: a repository
must not decide whom its readers trust."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pinwarden.bundle import trust_store
from pinwarden.bundle.shape import LIMITS
from pinwarden.bundle.trust_store import TrustStore
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.signed_note import NoteKey
from pinwarden.lock.lock_store import exclusive
from pinwarden.system.files import read_file, write_atomically

TRUST_VARIABLE = "PINWARDEN_TRUST"
POLICY_NAME = "installer-policy.json"


def trust_path(home: Path, variables: Mapping[str, str]) -> Path:
    """Where the trust store is: ``PINWARDEN_TRUST``, or in the user's folder of settings."""
    named = variables.get(TRUST_VARIABLE)
    if named:
        return Path(named)
    settings = variables.get("XDG_CONFIG_HOME")
    return (Path(settings) if settings else home / ".config") / "pinwarden" / "trust.json"


def policy_path(trust: Path) -> Path:
    """Where the user keeps what tools are allowed, beside whom they trust."""
    return trust.with_name(POLICY_NAME)


def log_state_path(trust: Path, log: NoteKey) -> Path:
    """Where it is kept what was last seen of a log. Under another key it is another log."""
    return trust.parent / "logs" / f"{Digest.of_bytes(str(log).encode()).hex[:40]}.json"


def load_trust(path: Path) -> TrustStore:
    """The store; an empty one where there is no file. One that cannot be read is an error."""
    if not path.exists() and not path.is_symlink():
        return TrustStore()
    return trust_store.parse(read_file(path, LIMITS.max_bytes))


def change_trust(path: Path, change: Callable[[TrustStore], TrustStore]) -> TrustStore:
    """Read, change and write the store, one process at a time. If ``change`` raises, nothing is written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror or err}") from err
    with exclusive(path):
        changed = change(load_trust(path))
        write_atomically(path, trust_store.to_bytes(changed))
    return changed
