"""The user's file of secrets, for clients that cannot refer to an environment variable in their own files.

Such a client passes ``${NAME}`` on as it is written. `fill_in_references` replaces it by the value of the variable
``NAME``, from the file of secrets or from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import lazy_pattern
from pinwarden.system.files import read_file

SECRETS_FILE = "~/.config/pinwarden/secrets.env"
"""The same on every system. A desktop client passes on HOME, but no variable for another configuration folder."""

_MAX_BYTES = 256 * 1024
_REFERENCE = lazy_pattern(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_LINE = lazy_pattern(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def read_secret_variables(home: Path) -> dict[str, str]:
    """Read the user's file of secrets: lines of the form NAME=VALUE. Returns no variables if there is no file.

    Raises if other users can read the file, or if a line has another form. No error contains the text of a line.
    """
    path = home / SECRETS_FILE.removeprefix("~/")
    if not path.exists():
        return {}
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise PinwardenError(
            "FILE_UNREADABLE", f"{SECRETS_FILE} can be read by other users", hint=f"Run: chmod 600 {SECRETS_FILE}"
        )
    variables: dict[str, str] = {}
    for number, line in enumerate(read_file(path, _MAX_BYTES).decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None or "\x00" in text:
            raise PinwardenError(
                "CONFIG_INVALID",
                f"line {number} of {SECRETS_FILE} does not have the form NAME=VALUE",
                hint=f"Correct the line: ${{EDITOR:-vi}} +{number} {SECRETS_FILE}",
            )
        variables[match[1]] = _strip_quotes(match[2].strip())
    return variables


def fill_in_references(variables: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with each that is only a reference replaced by the value that it refers to.

    A reference stays as it is if there is no such value.
    """
    filled = dict(variables)
    for name, value in variables.items():
        match = _REFERENCE.fullmatch(value)
        if match is None:
            continue
        referred = secrets.get(match[1], variables.get(match[1], value))
        if _REFERENCE.fullmatch(referred) is None:
            filled[name] = referred
    return filled


def find_open_reference(value: str) -> str | None:
    """Return the name of the variable if a value is only a reference to one; else None."""
    match = _REFERENCE.fullmatch(value)
    return None if match is None else match[1]


def add_secrets(variables: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables that the entries of clients can refer to: these, and the secrets of the user.

    A server gets only those that its entry names.
    """
    secrets = read_secret_variables(home)
    return {**secrets, **fill_in_references(variables, secrets)}


def load_variables() -> dict[str, str]:
    """Return the environment variables and the user's secrets."""
    return add_secrets(os.environ, Path.home())


def _strip_quotes(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text
