"""The user's trust store, and the last seen state of each registry's log.

These files belong to the user, not to a project: a repository must not decide which keys its users trust.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pinwarden.bundle.document import DOCUMENT_LIMITS
from pinwarden.bundle.trust import TrustStore, encode_trust_store, parse_trust_store
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.signed_note import NoteKey
from pinwarden.system.files import hold_write_lock, read_file, write_atomically

TRUST_VARIABLE = "PINWARDEN_TRUST"
POLICY_NAME = "installer-policy.json"


def trust_path(home: Path, variables: Mapping[str, str]) -> Path:
    """Return the path of the trust store: ``PINWARDEN_TRUST``, or a file in the user's configuration folder."""
    named = variables.get(TRUST_VARIABLE)
    if named:
        return Path(named)
    settings = variables.get("XDG_CONFIG_HOME")
    return (Path(settings) if settings else home / ".config") / "pinwarden" / "trust.json"


def policy_path(trust: Path) -> Path:
    """Return the path of the installer policy, which is next to the trust store."""
    return trust.with_name(POLICY_NAME)


def log_state_path(trust: Path, log: NoteKey) -> Path:
    """Return the path of a log's last seen state. The path depends on the log's key."""
    return trust.parent / "logs" / f"{Digest.of_bytes(str(log).encode()).hex[:40]}.json"


def load_trust(path: Path) -> TrustStore:
    """Load the trust store; empty if there is no file. Raises if the file is damaged."""
    if not path.exists() and not path.is_symlink():
        return TrustStore()
    return parse_trust_store(read_file(path, DOCUMENT_LIMITS.max_bytes))


def change_trust(path: Path, change: Callable[[TrustStore], TrustStore]) -> TrustStore:
    """Load, change and write the store under a lock. If ``change`` raises, nothing is written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent} cannot be written: {err.strerror or err}") from err
    with hold_write_lock(path):
        changed = change(load_trust(path))
        write_atomically(path, encode_trust_store(changed))
    return changed
