"""The path of the program that runs now, as a client's configuration can name it, and how a client finds it by name."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import find_program

_NAME = "pinwarden.exe" if os.name == "nt" else "pinwarden"
_TEMPORARY_PARTS = frozenset({"archive-v0", "environments-v2", "builds-v0"})
"""Folders of uv's cache: ``uvx`` runs a program there, and a later clean-up removes it."""


def find_own_program(search_path: str, executable: str | None = None) -> str:
    """Return the absolute path of the ``pinwarden`` script that belongs to this Python.

    A link on the search path is preferred over its target: pipx, uv and Homebrew replace the target when they upgrade,
    and keep the link. Raises PROGRAM_UNKNOWN if the only paths are temporary, as with ``uvx``.
    """
    own = Path(os.path.abspath(executable or sys.executable)).parent / _NAME  # noqa: PTH100  keep links
    if own.is_file():
        for folder in search_path.split(os.pathsep):
            candidate = Path(folder) / _NAME
            if candidate.is_absolute() and _is_same_program(candidate, own) and not _is_temporary(candidate):
                return str(candidate)
        if not _is_temporary(own):
            return str(own)
    raise PinwardenError(
        "PROGRAM_UNKNOWN",
        "Pinwarden runs from a temporary environment, which a client's configuration cannot name",
        hint="Install it, for example with `uv tool install pinwarden` or `pipx install pinwarden`, and try again.",
    )


def find_outside_environment(variables: Mapping[str, str], executable: str | None = None) -> Path | None:
    """Return where a client that was started outside this virtual environment finds ``pinwarden``; None if it does not.

    Such a client has the search path of this process without the folders of the environment. A desktop program may
    have an even shorter one, which cannot be known here.
    """
    environments = [variables.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    own = [Path(folder) / ("Scripts" if os.name == "nt" else "bin") for folder in environments if folder]
    if executable is not None or sys.prefix != sys.base_prefix:
        own.append(Path(os.path.abspath(executable or sys.executable)).parent)  # noqa: PTH100  keep links
    folders = [
        folder
        for folder in variables.get("PATH", "").split(os.pathsep)
        if Path(folder).is_absolute() and Path(folder) not in own and not _is_temporary(Path(folder))
    ]
    return find_program("pinwarden", os.pathsep.join(folders))


def build_install_command(variables: Mapping[str, str], executable: str | None = None) -> str:
    """Return a command that installs ``pinwarden`` where every client finds it, with the installer that is there."""
    search_path = variables.get("PATH", "")
    for installer, words in (("uv", ("uv", "tool", "install")), ("pipx", ("pipx", "install"))):
        if find_program(installer, search_path) is not None:
            return shlex.join((*words, _find_requirement()))
    own = Path(os.path.abspath(executable or sys.executable)).parent / _NAME  # noqa: PTH100  keep links
    return f"mkdir -p ~/.local/bin && ln -s {shlex.quote(str(own))} ~/.local/bin/pinwarden"


def _find_requirement() -> str:
    """Return the folder or address that this Pinwarden was installed from, or else the published package."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        record = json.loads(distribution("pinwarden").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        record = {}
    address = record.get("url") if isinstance(record, dict) else None
    if not isinstance(address, str):
        return "pinwarden"
    if address.startswith("file://"):
        return unquote(urlsplit(address).path)
    control = record.get("vcs_info")
    return f"{control['vcs']}+{address}" if isinstance(control, dict) and "vcs" in control else address


def _is_same_program(candidate: Path, own: Path) -> bool:
    try:
        return os.access(candidate, os.X_OK) and candidate.samefile(own)
    except OSError:
        return False


def _is_temporary(path: Path) -> bool:
    return bool(_TEMPORARY_PARTS & set(path.parts))
