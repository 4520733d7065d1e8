"""Encrypts tokens at rest with AES-256-GCM. The key is in an environment variable or in a file, never in the database.

``PINWARDEN_GRANT_KEY`` has the key: 32 bytes in base64. ``PINWARDEN_GRANT_KEY_FILE`` names a file with it, which only
its owner may read. There may be several, separated by commas or lines: the first one encrypts, all decrypt. Without
either variable, the key is in the state folder, and only `GrantKey.create` makes a new one.
"""

from __future__ import annotations

import binascii
import os
import re
import secrets
import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import create_file, open_regular
from pinwarden.system.state_folder import GRANT_KEY_FILE, GRANT_KEY_VARIABLES

VARIABLE, FILE_VARIABLE = GRANT_KEY_VARIABLES
_KEY_BYTES = 32
_NONCE_BYTES = 12
_ID_BYTES = 8
_VERSION = b"\x01"
_MAX_FILE = 4096


class GrantKey:
    """The keys that encrypt and decrypt tokens. Never shown: its ``repr`` has no key."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = {sha256(b"pinwarden grant key\0" + key).digest()[:_ID_BYTES]: key for key in keys}

    @classmethod
    def load(cls, variables: Mapping[str, str], state_folder: Path) -> GrantKey:
        """Read the key. Raises GRANT_KEY_INVALID."""
        text = variables.get(VARIABLE)
        if text:
            return cls(_parse_keys(text, VARIABLE))
        named = variables.get(FILE_VARIABLE)
        path = Path(named) if named else state_folder / GRANT_KEY_FILE
        return cls(_parse_keys(_read_key_file(path), str(path)))

    @classmethod
    def create(cls, variables: Mapping[str, str], state_folder: Path) -> GrantKey:
        """Read the key, after writing a new one to the state folder if there is none and no variable names one."""
        path = state_folder / GRANT_KEY_FILE
        if not any(variables.get(name) for name in GRANT_KEY_VARIABLES) and not path.exists():
            try:
                create_file(path, b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n", mode=0o600)
            except PinwardenError as err:
                if err.code != "FILE_EXISTS":  # another process was faster
                    raise
        return cls.load(variables, state_folder)

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Encrypt data. It can be decrypted only with the same context, which is not stored with it."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id, key = next(iter(self._keys.items()))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + key_id + nonce + AESGCM(key).encrypt(nonce, data, context)

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt data. Raises GRANT_KEY_INVALID if it has another key or context, or was changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_end = len(_VERSION) + _ID_BYTES
        key = self._keys.get(sealed[len(_VERSION) : key_end])
        if sealed[: len(_VERSION)] != _VERSION or key is None:
            raise _key_error("the token was encrypted with another key")
        nonce = sealed[key_end : key_end + _NONCE_BYTES]
        try:
            return AESGCM(key).decrypt(nonce, sealed[key_end + _NONCE_BYTES :], context)
        except (InvalidTag, ValueError) as err:
            raise _key_error("the encrypted token was changed, or belongs to another grant") from err


def _read_key_file(path: Path) -> str:
    if not path.exists():
        raise _key_error(f"there is no key {path}", hint=_MISSING)
    with open_regular(path) as stream:
        status = os.fstat(stream.fileno())
        if os.name == "posix" and (stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid not in (0, os.geteuid())):
            raise _key_error(f"other users can access {path}", hint=f"Run: chmod 600 {path}")
        return stream.read(_MAX_FILE).decode("ascii", "replace")


_MISSING = (
    f"Set {VARIABLE} or {FILE_VARIABLE} on every host to the same key: 32 random bytes in base64, such as the output "
    "of openssl rand -base64 32. On your own machine, pinwarden remote connect creates a key."
)


def _parse_keys(text: str, source: str) -> list[bytes]:
    keys = []
    for word in re.split(r"[\s,]+", text.strip()):
        try:
            key = b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError) as err:
            raise _key_error(f"{source} is not 32 bytes in base64") from err
        if len(key) != _KEY_BYTES:
            raise _key_error(f"{source} is not 32 bytes in base64")
        keys.append(key)
    return keys


def _key_error(message: str, *, hint: str | None = None) -> PinwardenError:
    return PinwardenError("GRANT_KEY_INVALID", message, hint=hint)
