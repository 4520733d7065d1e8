"""Keys that a user names on the command line: private ones in files, public ones in files or as did:key."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pinwarden.adapters.files import read_file
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, PublicKey

PASSPHRASE_VARIABLE = "PINWARDEN_KEY_PASSPHRASE"  # noqa: S105  # the name of a variable, not its value


def private_keys(names: Sequence[str]) -> tuple[PrivateKey, ...]:
    """The keys in these files; an encrypted one is opened with the variable, or by asking on a terminal."""
    return tuple(_private_key(Path(name)) for name in names)


def public_keys(texts: Sequence[str]) -> dict[str, PublicKey]:
    """Keys by name. ``NAME=KEY`` names one; else a file is named by its stem, and did:key by itself."""
    keys: dict[str, PublicKey] = {}
    for text in texts:
        name, key = _named_key(text)
        if name in keys:
            raise PinwardenError("USAGE", f"two public keys are named {name[:80]!a}", hint="Name them: NAME=FILE.")
        keys[name] = key
    return keys


def passphrase_in(variable: str) -> bytes:
    """The passphrase that a named environment variable holds; an empty one is not one."""
    value = os.environ.get(variable)
    if not value:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable[:80]!a} is not set, or empty")
    return os.fsencode(value)


def _private_key(path: Path) -> PrivateKey:
    from pinwarden.adapters.key_files import load_key_file

    given = os.environ.get(PASSPHRASE_VARIABLE)
    try:
        return load_key_file(path, os.fsencode(given) if given else None)
    except PinwardenError as err:
        if err.code != "KEY_PASSPHRASE_REQUIRED":
            raise
        if given or not sys.stdin.isatty():
            hint = f"Put the passphrase into {PASSPHRASE_VARIABLE}, or run this on a terminal."
            raise PinwardenError(err.code, f"{path}: {err.message}", hint=hint) from err
    from getpass import getpass

    return load_key_file(path, os.fsencode(getpass(f"passphrase of {path}: ")))


def _named_key(text: str) -> tuple[str, PublicKey]:
    name, mark, rest = text.partition("=")
    if not mark or Path(text).is_file():
        name, rest = "", text
    if rest.startswith("did:"):
        key = PublicKey.from_did(rest)
        return name or key.did, key
    data = read_file(Path(rest))
    try:
        key = PublicKey.parse(data.decode("ascii").strip())
    except UnicodeDecodeError as err:
        raise PinwardenError("KEY_INVALID", f"{rest[:200]!a} does not hold a public key") from err
    return name or Path(rest).stem, key
