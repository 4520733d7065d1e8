"""Where signatures come from: a key in a file, or one in a variable of the environment.

Whatever else holds a key (an agent, a token, a key service) is one more function here that gives a ``Signer``.
"""

from __future__ import annotations

import os
from pathlib import Path

from pinwarden.adapters.key_files import load_key_file
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, Signer


def file_signer(path: Path, passphrase: bytes | None = None) -> Signer:
    """The key in a file that only its owner can read."""
    return load_key_file(path, passphrase)


def environment_signer(variable: str, passphrase: bytes | None = None) -> Signer:
    """The key whose PEM is in a variable, as secrets of a build service are given out. It is shown nowhere."""
    pem = os.environ.get(variable)
    if not pem:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable[:80]!a} is not set, or empty")
    return PrivateKey.from_pem(os.fsencode(pem), passphrase)
