"""Where signatures come from besides key files (``key_files``): a key in a variable of the environment.

Whatever else holds a key (an agent, a token, a key service) is one more function here that gives a ``Signer``.
"""

from __future__ import annotations

import os

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, Signer


def environment_signer(variable: str, passphrase: bytes | None = None) -> Signer:
    """The key whose PEM is in a variable, as secrets of a build service are given out. It is shown nowhere."""
    pem = os.environ.get(variable)
    if not pem:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable[:80]!a} is not set, or empty")
    return PrivateKey.from_pem(os.fsencode(pem), passphrase)
