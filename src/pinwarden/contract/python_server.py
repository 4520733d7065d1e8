"""Introspect a Python server: import it in a separate process, then probe it as a client.

1. Find the module for the path, and the interpreter that has its packages.
2. Run ``introspector.py`` with that interpreter. It imports the server, writes facts that only its process knows to a
   file, and serves MCP on its standard streams.
3. Probe the server like any other server, then read the facts from the file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.surface.probe.probe import ProbeOptions, list_sent_values, probe
from pinwarden.surface.probe.secret_mask import SecretMask, refuse_echoed_secrets_in
from pinwarden.surface.surface import Surface
from pinwarden.system.files import read_file
from pinwarden.system.sandbox import Sandbox
from pinwarden.system.target import StdioTarget

_INTROSPECTOR = Path(__file__).with_name("introspector.py")
_UNREADABLE = "the server's process wrote an invalid introspection file"
_FAILURES = {
    "no-server": "SERVER_OBJECT_UNKNOWN",
    "exited": "SERVER_IMPORT_FAILED",
    "import-failed": "SERVER_IMPORT_FAILED",
}


class PythonServer(Record):
    """A Python server that the user named as ``path/to/server.py[:object]``."""

    folder: Path
    """The folder to put on the import path."""
    module: str
    name: str | None = None
    """The name of the server object; None if the module has only one server."""


class Introspection(Record):
    """The surface of a Python server, and the facts that its process reported."""

    surface: Surface
    facts: Mapping[str, Any] = field(default_factory=dict)


def parse_python_server(text: str) -> PythonServer:
    """Parse ``path/to/server.py[:object]``. A file inside a package is imported as part of that package."""
    path_text, mark, name = text.partition(":") if not _starts_with_drive(text) else (text, "", "")
    path = Path(path_text)
    if path.is_dir() and (path / "__init__.py").is_file():
        path = path / "__init__.py"
    if not path.is_file():
        problem = "is a folder, not a Python file" if path.is_dir() else "does not exist"
        raise PinwardenError("SERVER_OBJECT_UNKNOWN", f"the server {path_text[:200]!a} {problem}")
    if path.suffix != ".py" or (mark and not all(part.isidentifier() for part in name.split("."))):
        raise PinwardenError("USAGE", "--server takes path/to/server.py or path/to/server.py:object")
    path = path.resolve()
    if "${" in str(path):  # placeholders in commands are expanded, possibly to secrets
        raise PinwardenError(
            "USAGE", f"{str(path)[:200]!a} contains '${{', which starts a variable", hint="Rename the folder."
        )
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if not all(part.isidentifier() for part in parts):
        raise PinwardenError("USAGE", f"{path.name[:200]!a} is not a valid name for a Python module")
    return PythonServer(folder=folder, module=".".join(parts), name=name or None)


def _starts_with_drive(text: str) -> bool:
    return text[1:3] in (":\\", ":/")


def find_interpreter(server: PythonServer, variables: Mapping[str, str], chosen: str | None = None) -> str:
    """Find the Python interpreter that has the server's packages.

    Tries, in this order, the chosen interpreter, the active virtual environment, the project's ``.venv``, and
    Pinwarden's own interpreter.
    """
    if chosen is not None:
        return chosen
    active = [Path(variables["VIRTUAL_ENV"])] if variables.get("VIRTUAL_ENV") else []
    folders = [folder / ".venv" for folder in (server.folder, *server.folder.parents[:3])]
    for environment in (*active, *filter(_is_owned_by_user_or_system, folders)):
        for program in (environment / "bin" / "python", environment / "Scripts" / "python.exe"):
            if program.is_file():
                return str(program)
    return sys.executable


def _is_owned_by_user_or_system(folder: Path) -> bool:
    """Whether a folder belongs to this user or to the system."""
    import os

    try:
        return not hasattr(os, "getuid") or folder.lstat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def introspect(
    server: PythonServer, python: str, options: ProbeOptions, variables: Mapping[str, str] | None = None
) -> Introspection:
    """Import the server in a separate process, with additional environment variables, and probe it.

    This runs the server's code. The user consented to it by naming the server's file on the command line.
    """
    with tempfile.TemporaryDirectory(prefix="pinwarden-") as folder:
        facts = Path(folder) / "facts.json"
        object_name = () if server.name is None else (server.name,)
        command = (python, str(_INTROSPECTOR), str(facts), str(server.folder), server.module, *object_name)
        target = StdioTarget(command=command, env=dict(variables or {}))
        allowed = replace(options, allow_execute=True, sandbox=_widen_sandbox(options.sandbox, server, folder))
        try:
            surface = probe(target, allowed)
        except PinwardenError as err:
            raise _build_introspection_error(
                err, facts, server, SecretMask(value for _, value in list_sent_values(target, allowed))
            ) from err
        parsed = _read_facts(facts)
        if not _has_valid_members(parsed):
            raise PinwardenError("SERVER_IMPORT_FAILED", _UNREADABLE)
        refuse_echoed_secrets_in(parsed, list_sent_values(target, allowed))
        return Introspection(surface=surface, facts=parsed)


def _widen_sandbox(sandbox: Sandbox | None, server: PythonServer, folder: str) -> Sandbox | None:
    """Add read access to the server's folder, and write access to the folder for the facts."""
    if sandbox is None:
        return None
    readable = (*sandbox.readable, str(_INTROSPECTOR), str(server.folder))
    return replace(sandbox, readable=readable, writable=(*sandbox.writable, folder))


def _build_introspection_error(
    err: PinwardenError, facts: Path, server: PythonServer, mask: SecretMask
) -> PinwardenError:
    """Build the error from the introspector's own report, if it wrote one before it failed."""
    data = dict(err.data or {})
    if not facts.is_file():
        if data.get("reason") == "start":
            hint = "Choose the interpreter that has the server's packages with --python."
            return PinwardenError(err.code, err.message, hint=hint, data=data)
        return PinwardenError(
            "SERVER_IMPORT_FAILED",
            f"the import of {server.module} did not finish: {err.message}",
            data=data,
        )
    failed = _read_facts(facts).get("failed")
    if not isinstance(failed, dict):
        return err
    code = _FAILURES.get(str(failed.get("reason")), "SERVER_IMPORT_FAILED")
    message = mask.mask_text(str(failed.get("message")))
    if code != "SERVER_OBJECT_UNKNOWN":
        message = f"{server.module} cannot be imported: {message}"
    return PinwardenError(code, message[:600], data=data)


def _read_facts(path: Path) -> Mapping[str, Any]:
    """Read the facts that the server's process wrote. They are not trusted."""
    try:
        facts = strict_json.parse_json(read_file(path))
    except PinwardenError as err:
        raise PinwardenError("SERVER_IMPORT_FAILED", f"{_UNREADABLE}: {err.message}", data=err.data) from err
    if not isinstance(facts, dict):
        raise PinwardenError("SERVER_IMPORT_FAILED", _UNREADABLE)
    return facts


def _has_valid_members(facts: Mapping[str, Any]) -> bool:
    """Whether all members that Pinwarden uses are present and have the right type."""
    lists = [facts.get(name) for name in ("duplicates", "middleware", "packages")]
    maps = [facts.get(name) for name in ("modules", "prompts", "resources", "tools", "versions")]
    return (
        all(isinstance(row, list) for row in lists)
        and all(isinstance(mapping, dict) for mapping in maps)
        and all(isinstance(fact, str) for fact in facts["duplicates"])
        and all(isinstance(row, dict) and _is_middleware(row) for row in facts["middleware"])
        and all(
            isinstance(row, dict) and _is_location(row.get("handler"))
            for member in ("tools", "prompts", "resources")
            for row in facts[member].values()
        )
    )


def _is_middleware(facts: Mapping[str, Any]) -> bool:
    return (
        isinstance(facts.get("name"), str)
        and isinstance(facts.get("sourceDigest"), str | None)
        and isinstance(facts.get("onlyFor"), list)
    )


def _is_location(handler: Any) -> bool:
    return handler is None or (isinstance(handler, dict) and {"module", "qualname"} <= handler.keys())
