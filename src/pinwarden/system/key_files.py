"""Private keys: in files that only their owner can read, or in an environment variable.

To support another source of signatures (an agent, a hardware token, a key service), add a function that returns a
``Signer``.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, Signer
from pinwarden.system.files import create_file, open_regular

_MAX_KEY_FILE = 64 * 1024


def generate_key() -> PrivateKey:
    """Return a new random key."""
    return PrivateKey.from_seed(secrets.token_bytes(32))


def create_key_file(path: Path, key: PrivateKey, passphrase: bytes | None = None) -> None:
    """Write a new key file with mode 0600. An existing file is never overwritten."""
    create_file(path, key.pem(passphrase), mode=0o600)


def load_key_file(path: Path, passphrase: bytes | None = None) -> PrivateKey:
    """Load a key file. Raises KEY_FILE_UNSAFE if other users can read or write it."""
    with open_regular(path) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            if path.suffix == ".pub":
                raise PinwardenError("KEY_INVALID", f"{path} is a public key; signing needs the private key")
            problem = f"other users can access {path} (mode {stat.S_IMODE(mode):04o})"
            raise PinwardenError("KEY_FILE_UNSAFE", problem, hint=f"Run: chmod 600 {path}")
        return PrivateKey.from_pem(stream.read(_MAX_KEY_FILE), passphrase)


def load_environment_signer(variable: str, passphrase: bytes | None = None) -> Signer:
    """Return the key whose PEM is in an environment variable, as CI services provide secrets."""
    pem = os.environ.get(variable)
    if not pem:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable[:80]!a} is not set or empty")
    return PrivateKey.from_pem(os.fsencode(pem), passphrase)
